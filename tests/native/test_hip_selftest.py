"""A simulated selftest, of a kernel's own library, finds faults that packed operands don't show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from gemmill.cache import Cache
from gemmill.selftest import run_selftest
from simulated import SIMULATOR, Mutation

from kernels.build import Build
from kernels.catalogue import load_catalogue
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths

(ROWS,) = load_catalogue().configs("gfx942", variant="bf8i4f32", layout="rrr", family="decode")
COLUMNS, SHUFFLED = (
    *load_catalogue().configs("gfx950", variant="fp8", layout="ccr", family="decode"),
    *load_catalogue().configs("gfx90a", variant="bf8", layout="crr", family="preshufflequant"),
)
GEMM = "hip/gemm_aquant.h"
WRONG = r"gaps entry: C\[\d+,\d+\] is .*, expected"

FAULTS = [
    (ROWS, Mutation("ldc is N", GEMM, "m * args.ldc + n", "m * args.n + n"), "gaps entry: wrote between the rows of C"),
    (ROWS, Mutation("lda is K", GEMM, "a({args.a, args.lda,", "a({args.a, args.k,"), WRONG),
    (ROWS, Mutation("ldb is N", GEMM, "b({args.b, args.ldb,", "b({args.b, args.n,"), WRONG),
    (COLUMNS, Mutation("lda is M", GEMM, "a({args.a, args.lda,", "a({args.a, args.m,"), WRONG),
    (COLUMNS, Mutation("ldaq is M", GEMM, "aq({args.aq, args.ldaq,", "aq({args.aq, args.m,"), WRONG),
    (SHUFFLED, Mutation("ldaq is M * b", GEMM, "aq({args.aq, args.ldaq,", "aq({args.aq, args.m * 2,"), WRONG),
]


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that tests a kernel on a device made from given headers, and returns the record."""
    paths = Paths.of(CHECKOUT.root, cache=tmp_path_factory.mktemp("cache"), build=CHECKOUT.build / "test")
    build = Build(paths)

    def test(config: KernelConfig, headers: Path | None = None) -> dict[str, Any]:
        done = build.compile(config)
        assert done.ok, done.message
        with SIMULATOR.device(build.codegen.path(config), headers) as device:
            return run_selftest(Cache(paths.cache), done.key, record=False, simulated=device)

    return test


@pytest.mark.parametrize("config", [ROWS, COLUMNS, SHUFFLED], ids=lambda config: f"{config.arch}-{config.layout}")
def test_a_right_kernel_passes_on_every_entry(tested: Any, config: KernelConfig) -> None:
    record = tested(config)
    assert (record["outcome"], record["reason"]) == ("simulated", None)
    assert record["entries"] == ["host", "device", "gaps", "aligned"]


@pytest.mark.parametrize(
    ("config", "fault", "said"), FAULTS, ids=[f"{config.layout}-{fault.name}" for config, fault, _ in FAULTS]
)
def test_leading_dimensions_that_are_ignored(
    tested: Any, config: KernelConfig, fault: Mutation, said: str, tmp_path: Path
) -> None:
    record = tested(config, fault.apply(tmp_path))
    assert record["outcome"] == "failed"
    assert re.match(rf"exact \S+, {said}", record["reason"]), record["reason"]
