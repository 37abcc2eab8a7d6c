"""The host shim of AMD kernels, on a simulated libamdhip64 whose every call can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gemmill.cache import Cache
from gemmill.selftest import run_selftest
from simulated import PATHS, SIMULATOR, Mutation

from kernels.build import Build
from kernels.catalogue import load_catalogue
from kernels.codegen import Codegen
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths
from kernels.simulator import Simulator


def kernel(arch: str, variant: str, layout: str, family: str = "decode") -> KernelConfig:
    (config,) = load_catalogue().configs(arch, variant=variant, layout=layout, family=family)
    return config


PLAIN = kernel("gfx942", "fp8", "rcr")
INT4 = kernel("gfx942", "fp8i4", "rcr")
CCR = kernel("gfx942", "bf8", "ccr")
SHUFFLED = kernel("gfx950", "bf8i4", "crr", "preshufflequant")


def library_of(config: KernelConfig) -> Path:
    """Return the kernel's library, built where the other tests build."""
    paths = replace(PATHS, cache=PATHS.build / "cache")
    outcome = Build(paths).compile(config)
    assert outcome.ok, outcome.message
    return Cache(paths.cache).read(outcome.key).library


def ask(scenario: str, config: KernelConfig, driver: Path | None = None, **environment: str) -> Any:
    """Run a scenario of hip_child.py, on a simulated device of its own where no driver is given."""
    library = library_of(config)
    with nullcontext(driver) if driver else SIMULATOR.device(Codegen(PATHS).generate(config)) as device:
        folder = Path(__file__).parent
        argv = [sys.executable, str(folder / "hip_child.py"), scenario, str(library)]
        argv += ["" if scenario == "alone" else str(device), config.id]
        path = os.pathsep.join([str(folder), str(CHECKOUT.root), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, **environment}, timeout=300
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("config", [PLAIN, INT4, CCR, SHUFFLED], ids=lambda config: config.name[12:30])
def test_a_call_is_right_and_leaves_nothing(config: KernelConfig) -> None:
    said = ask("good", config)
    assert said["code"] == 0 and said["time"] > 0
    assert said["live"] == 1, "the module, and nothing else"
    assert said["after"] == 0
    assert said["calls"]["hipMalloc"] == said["calls"]["hipFree"] == 4
    assert said["calls"]["hipModuleLaunchKernel"] == 1 + 10


@pytest.mark.parametrize("config", [PLAIN, SHUFFLED], ids=["plain", "shuffled"])
def test_every_failing_call_has_its_code_and_leaks_nothing(config: KernelConfig) -> None:
    found = ask("failures", config)
    assert {one["name"] for one in found} >= {"hipMalloc", "hipMemcpy", "hipModuleLaunchKernel", "hipEventRecord"}
    for one in found:
        told = f"{one['name']} call {one['turn']}"
        if one["name"] in ("hipModuleUnload", "hipEventDestroy"):
            # Nothing can be done about these, and the result is there.
            assert one["code"] == 0, told
        else:
            assert one["code"] == -3, told
            assert one["name"] in one["text"], told
        # What the driver itself refuses to take back stays with it.
        given_back = one["name"] in ("hipFree", "hipModuleUnload", "hipEventDestroy")
        assert one["lost"] == (1 if given_back else 0), told
        assert one["again"] == 0, told


def test_live_arch_is_compared_exactly() -> None:
    said = ask("arch", PLAIN)
    assert said["gfx942"] == said["gfx942:sramecc+:xnack-"] == [0, ""]
    for other in ("gfx90a:sramecc+:xnack-", "gfx9420", "gfx94", "gfx950", "x" * 255):
        code, text = said[other]
        assert code == -2, other
        assert f"is for gfx942, but device 0 is {other}" in text, text


def test_threads_share_one_module() -> None:
    assert ask("threads", PLAIN) == {"loads": 1, "live": 1}


def test_sizes_beyond_the_indices_are_unsupported() -> None:
    for (code, text), name in zip(ask("limits", PLAIN), "MNK", strict=True):
        assert code == -2
        assert text.startswith(f"{name} = ") and "expected at most" in text


@pytest.mark.parametrize("config", [PLAIN, INT4, CCR, SHUFFLED], ids=lambda config: config.name[12:30])
def test_device_pointers(config: KernelConfig) -> None:
    warm, failed, launched = ask("strided", config)
    assert warm == {"hipGetDevice": 1, "hipModuleLaunchKernel": 1}, "a call allocates and waits for nothing"
    for name, code, text in failed:
        assert code == -3 and name in text
    assert launched == [-1, "device = 1: expected 0, the current one", 0]


def test_without_a_driver_the_library_says_what_it_is() -> None:
    said = ask("alone", PLAIN)
    assert said["code"] == said["run"] == -3
    assert "no HIP driver" in said["text"] and "libamdhip64.so" in said["text"]
    assert said["name"] == PLAIN.name
    assert said["manifest"]["arch"] == "gfx942" and said["manifest"]["encoding"] == "fnuz"


@pytest.mark.parametrize("name", ["libamdhip64.so.6", "libamdhip64.so.7"])
def test_the_driver_that_the_process_has_is_taken(name: str, tmp_path: Path) -> None:
    """Not the one on the loader's path, whose name is tried before: it would not know the process's pointers."""
    source = Codegen(PATHS).generate(PLAIN)
    loaded, other = tmp_path / name, tmp_path / "path" / "libamdhip64.so"
    other.parent.mkdir()
    for library in (loaded, other):
        SIMULATOR.build(source, library)
    said = ask("good", PLAIN, loaded, LD_LIBRARY_PATH=str(other.parent))
    assert said["live"] == 1, "its module is in the driver that was loaded"
    assert said["calls"]["hipMalloc"] == 4


# ---- Faults in the host code, found by the selftest ------------------------------------------------------

FAULTS = [
    (Mutation("M * K for the packed size", "hip/host_abi.h", "ceil_div(p.m * p.k, 2)", "p.m * p.k"), INT4),
    (Mutation("QK for M as ccr's stride", "host/stored_shapes.h", "Shape{groups, m}", "Shape{m, groups}"), CCR),
    (Mutation("AQ is not shuffled", "hip/host_abi.h", "if (!Kernel::kPreshuffled) return", "return"), SHUFFLED),
    (Mutation("half of C comes back", "hip/host_abi.h", "(p.c, bytes_c)", "(p.c, bytes_c / 2)"), PLAIN),
    (Mutation("one row of tiles", "hip/entry.h", "static_cast<unsigned>(tiles_m)", "1"), PLAIN),
    (Mutation("no fault", "hip/host_abi.h", "/* the default stream */", ""), PLAIN),
]


@pytest.mark.parametrize(("fault", "config"), FAULTS, ids=lambda x: getattr(x, "name", "")[:30])
def test_selftest_finds_faults_of_the_host_code(fault: Mutation, config: KernelConfig, tmp_path: Path) -> None:
    fault.apply(tmp_path)
    (tmp_path / "templates").symlink_to(CHECKOUT.templates)
    paths = Paths.of(tmp_path)
    build = Build(paths)
    outcome = build.compile(config)
    assert outcome.ok, outcome.message
    with Simulator(replace(CHECKOUT, build=PATHS.build)).device(build.codegen.path(config)) as device:
        record = run_selftest(Cache(paths.cache), outcome.key, simulated=device)
    wanted = "simulated" if fault.name == "no fault" else "failed"
    assert record["outcome"] == wanted, record["reason"]
    if fault.name.startswith("M * K"):
        assert "SIGSEGV" in record["reason"]
