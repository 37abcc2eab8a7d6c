"""Kernels of provider ck_tile: compiled for real where clang, HIP's headers and Composable Kernel's are, else skipped.

Nothing here runs on an AMD GPU: what the library would launch, it launches on a driver that only writes it down.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gemmill.cache import Cache, CacheObject
from gemmill.errors import KernelNotFound, UnsupportedError
from gemmill.selftest import run_selftest

from kernels import ck_instance
from kernels.backends import ck_tile
from kernels.build import Build
from kernels.catalogue import load_catalogue
from kernels.ck_headers import find_headers
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths
from kernels.toolchain import numbered

PATHS = Paths.of(CHECKOUT.root, cache=CHECKOUT.build / "test" / "cache", build=CHECKOUT.build / "test")


def kernel(variant: str, family: str = "decode", layout: str = "rcr", arch: str = "gfx942") -> KernelConfig:
    (config,) = load_catalogue().configs(arch, variant=variant, layout=layout, family=family)
    return config


# An int4 decode kernel has all that a ck_tile kernel can have: the permuted A, and the race of the memory pipeline.
CONFIG = kernel("fp8i4")


@functools.cache
def built(config: KernelConfig = CONFIG, compiler: str | None = None) -> CacheObject:
    """Return a kernel's object, compiled for real: about 15 s of one core, and 30 s before zig's first C++ program."""
    build = Build(PATHS, compiler, provider="ck_tile")
    try:
        ck_tile.flags(config, build.toolchain(config.arch))
        reason = build.why_not(config)
    except UnsupportedError as error:
        reason = str(error)
    if reason:
        pytest.skip(f"provider=ck_tile can't build this here: {reason}")
    outcome = build.compile(config)
    assert outcome.ok, outcome.message
    return Cache(PATHS.cache).read(outcome.key)


@pytest.mark.parametrize("compiler", numbered("clang++") or ["no clang++-N is installed"])
def test_each_clang_of_the_system_compiles_one(compiler: str) -> None:
    resources = built(CONFIG, compiler).manifest["build"]["resources"]
    assert all(figures["matrix_instructions"] > 0 for figures in resources.values())


@functools.cache
def fake_driver() -> Path:
    library = CHECKOUT.build / "test" / "fake_hip.so"
    source = Path(__file__).with_name("fake_hip.cpp")
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libamdhip64.so", "-I", str(CHECKOUT.native)]
    subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True, timeout=120)
    return library


def calls(*shapes: tuple[int, int, int], arch: str = "gfx942:sramecc+:xnack-") -> list[Any]:
    argv = [sys.executable, str(Path(__file__).with_name("ck_child.py")), str(built().library), str(fake_driver())]
    done = subprocess.run(
        [*argv, json.dumps(shapes)], capture_output=True, text=True, env={**os.environ, "FAKE_ARCH": arch}, timeout=60
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["name"] == CONFIG.name
    return list(said["calls"])


def test_the_object_says_whose_it_is() -> None:
    obj = built()
    assert (obj.arch, obj.name, obj.provider) == ("gfx942", CONFIG.name, "ck_tile")
    assert obj.manifest["inputs"]["provider"] == "ck_tile"
    assert len(obj.manifest["inputs"]["toolchain"]["composable_kernel"]) == 64
    assert any("compiled, neither simulated nor tested on hardware" in note for note in obj.notes)
    assert obj.outcome == "untested"
    for figures in obj.manifest["build"]["resources"].values():
        assert figures["lds_bytes"] >= 16 * 128 + 64 * 256
        assert not figures["scratch_bytes"] and not figures["vgpr_spills"]
        # A tile is eight products of 16x16x32 a wave: once where nothing loops, and twice more in the loop.
        assert figures["matrix_instructions"] in (8, 24)


def test_preshufflequant_for_gfx950_compiles() -> None:
    obj = built(kernel("fp8", "preshufflequant", arch="gfx950"))
    assert obj.arch == "gfx950" and not any("race" in note for note in obj.notes)
    figures = obj.manifest["build"]["resources"]
    assert set(figures) == {"cold_odd", "cold_even", "hot_full"}
    assert not any(one["vgpr_spills"] or one["sgpr_spills"] for one in figures.values())


def test_it_never_answers_for_a_native_kernel() -> None:
    obj = built()
    cache = Cache(PATHS.cache)
    assert cache.entry("gfx942", CONFIG.name, "ck_tile").key == obj.key
    with contextlib.suppress(KernelNotFound):
        assert cache.entry("gfx942", CONFIG.name).key != obj.key
    assert obj.key not in [entry.key for entry in cache.entries("gfx942")]
    assert obj.key in [entry.key for entry in cache.entries("gfx942", provider=None)]


def test_it_is_not_simulated(tmp_path: Path) -> None:
    record = run_selftest(Cache(PATHS.cache), built().key, simulated=fake_driver())
    assert record["outcome"] == "untested" and not record["saved"]
    assert "ck_tile are not simulated" in record["reason"]


def test_a_launch_is_planned_by_composable_kernel() -> None:
    one, three = calls((17, 80, 256), (17, 80, 768))
    for said, k, instance in ((one, 256, "cold_odd"), (three, 768, "hot_odd")):
        assert said["code"] == 0, said["text"]
        permute, product = said["launches"]
        assert permute[:3] == [f"{CONFIG.name}_permute", [17, 1, 1], 256]
        rows = struct.unpack_from("<2Q4q", bytes.fromhex(permute[3]))
        assert rows == (0x1000, 0x5000, 17, k // 8, k // 8, k // 8)
        assert product[:3] == [f"{CONFIG.name}_{instance}", [2 * 2, 1, 1], 256]
        arguments = bytes.fromhex(product[3])
        # a, b, aq, bq, c; M, N, K, QK_A, QK_B; strides of A, B, C, AQ, BQ; k_batch
        assert struct.unpack_from("<5Q", arguments) == (0x5000, 0x3000, 0x2000, 0, 0x4000)
        assert struct.unpack_from("<11i", arguments, 40) == (17, 80, k, k // 128, 0, k, k, 80, k // 128, 0, 1)


def test_no_k_writes_zeros() -> None:
    (said,) = calls((3, 5, 0))
    assert said["code"] == 0
    ((function, grid, threads, arguments),) = said["launches"]
    assert (function, grid, threads) == (f"{CONFIG.name}_zero", [3, 1, 1], 256)
    assert struct.unpack_from("<2Q4q", bytes.fromhex(arguments)) == (0, 0x4000, 3, 5, 0, 5)


def test_what_it_does_not_do_is_refused_by_name() -> None:
    for shape, text in (
        ((16, 64, 130), "K = 130: expected a multiple of 256"),
        ((16, 60, 256), "N = 60: expected a multiple of 8"),
        ((1 << 20, 64, 4096 + 256), "M * lda"),
    ):
        (said,) = calls(shape)
        assert (said["code"], said["launches"]) == (-2, [])
        assert text in said["text"]
    (said,) = calls((16, 64, 256), arch="gfx950")
    assert said["code"] == -2 and "is for gfx942, but device 0 is gfx950" in said["text"]


def test_k_that_races_is_refused_and_has_no_instance() -> None:
    obj = built()
    if not ck_instance.has_race(CONFIG, find_headers()):
        pytest.skip("these headers have a barrier in the even tail")
    for said in calls((16, 64, 512), (16, 64, 4096)):
        assert (said["code"], said["launches"]) == (-2, [])
        assert "expected no multiple of 512" in said["text"] and "races" in said["text"]
    assert set(obj.manifest["build"]["resources"]) == {"cold_odd", "hot_odd"}
    assert any("race when K is a multiple of 512" in note for note in obj.notes)


PERMUTE = """
#define GEMMILL_ROWS
#define __device__
struct Index { unsigned x; };
static Index blockIdx, threadIdx;
#include "hip/ck_tile/rows.h"
extern "C" void permute(const void* in, void* out, long long rows, long long words, long long ld_in) {
    for (blockIdx.x = 0; blockIdx.x < rows; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < gemmill::hip::ck::kThreads; ++threadIdx.x)
            gemmill::hip::ck::permute_int4_rows({in, out, rows, words, ld_in, words});
}
"""


def test_int4_is_permuted_as_composable_kernel_reads_it(tmp_path: Path) -> None:
    import ctypes

    source, library = tmp_path / "permute.cpp", tmp_path / "permute.so"
    source.write_text(PERMUTE)
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-I", str(CHECKOUT.native), str(source), "-o", str(library)]
    subprocess.run(command, check=True, timeout=120)
    given = np.random.default_rng(1).integers(0, 256, (3, 140), np.uint8)
    out = np.zeros((3, 128), np.uint8)
    size = ctypes.c_longlong
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (given, out)]
    ctypes.CDLL(str(library)).permute(*pointers, size(3), size(32), size(35))
    codes = np.stack([given >> 4, given & 15], axis=-1).reshape(3, -1)[:, :256].reshape(3, 32, 8)
    # Its own host code turns 0x76543210 into 0x75316420, elements as nibbles, the first in the lowest.
    nibbles = np.stack([out & 15, out >> 4], axis=-1).reshape(3, 32, 8)
    assert (nibbles == codes[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]).all()
