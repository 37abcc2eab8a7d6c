"""The SIMT simulator itself: matrix layouts, encodings, and that it finds each kind of fault."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from simulated import ORDERS, Device, Violation, simulated_source

# Where an operand's elements lie, from the documents that native/hip/sim/matrix.h names. One line of facts each:
# (row, k) of P or Q: (lane, byte in the lane's registers).
FACTS = {
    "mfma_16x16x16_bf16": {(0, 0): (0, 0), (0, 3): (0, 6), (0, 4): (16, 0), (5, 9): (37, 2), (15, 15): (63, 6)},
    "mfma_16x16x32": {(0, 0): (0, 0), (0, 7): (0, 7), (0, 8): (16, 0), (3, 16): (35, 0), (15, 31): (63, 7)},
    "mfma_16x16x128": {(0, 15): (0, 15), (0, 16): (16, 0), (0, 64): (0, 16), (2, 80): (18, 16), (15, 127): (63, 31)},
}
# (row of P, row of Q): (lane, register) of D; the same for all three.
RESULT_FACTS = {(0, 0): (0, 0), (1, 0): (0, 1), (4, 0): (16, 0), (0, 1): (1, 0), (7, 9): (25, 3), (15, 15): (63, 3)}

# instruction: (arch, kind, k, bytes an element, dtype)
INSTRUCTIONS = {
    "bf16": ("gfx90a", "mfma_16x16x16_bf16", 16, ml_dtypes.bfloat16),
    "fp8 FNUZ": ("gfx942", "mfma_16x16x32<Kind::fp8>", 32, ml_dtypes.float8_e4m3fnuz),
    "bf8 FNUZ": ("gfx942", "mfma_16x16x32<Kind::bf8>", 32, ml_dtypes.float8_e5m2fnuz),
    "fp8 OCP": ("gfx950", "mfma_16x16x128<Kind::fp8>", 128, ml_dtypes.float8_e4m3fn),
    "bf8 OCP": ("gfx950", "mfma_16x16x128<Kind::bf8>", 128, ml_dtypes.float8_e5m2),
}

SOURCE = """
#include "hip/device.h"
namespace gemmill::hip {
struct Args { const void *p, *q; void* d; };
struct Impl {
    static constexpr Arch kArch = Arch::%(arch)s;
    static constexpr int kThreads = %(threads)d, kLdsBytes = %(lds)d;
    using Memory = Lds<kLdsBytes>;
    static void run(const Args& args) {
        const u32 lane = thread_index();
        (void)lane, (void)args;
        %(body)s
    }
};
GEMMILL_KERNEL(test_kernel, Impl, Args)
}
"""


class Args(ctypes.Structure):
    """The kernel's arguments."""

    _fields_ = [("p", ctypes.c_void_p), ("q", ctypes.c_void_p), ("d", ctypes.c_void_p)]


def source(body: str, arch: str = "gfx942", threads: int = 64, lds: int = 1024) -> str:
    return SOURCE % {"body": body, "arch": arch, "threads": threads, "lds": lds}


def matrix_source(arch: str, call: str, lane_bytes: int) -> str:
    vector = f"u32x{lane_bytes // 4}"
    return source(
        f"""
        const auto p = global_load<{vector}>((const u8*)args.p + lane * {lane_bytes});
        const auto q = global_load<{vector}>((const u8*)args.q + lane * {lane_bytes});
        const f32x4 d = global_load<f32x4>((const u8*)args.d + lane * 16);
        global_store<f32x4>((u8*)args.d + lane * 16, {call}(p, q, d));
        """,
        arch,
    )


def position(k_total: int, row: int, k: int, size: int) -> tuple[int, int]:
    """Return (lane, byte) of an operand's element."""
    if k_total == 128:
        return row + 16 * (k % 64 // 16), k // 64 * 16 + k % 16
    per_lane = k_total // 4
    return row + 16 * (k // per_lane), k % per_lane * size


def registers(matrix: np.ndarray) -> np.ndarray:
    """Return the bytes of 64 lanes that hold a [16, k] operand."""
    rows, k_total = matrix.shape
    size = matrix.dtype.itemsize
    out = np.zeros((64, k_total // 4 * size), np.uint8)
    raw = matrix.view(np.uint8).reshape(rows, k_total, size)
    for row in range(rows):
        for k in range(k_total):
            lane, byte = position(k_total, row, k, size)
            out[lane, byte : byte + size] = raw[row, k]
    return out


def run_matrix(device: Device, p: np.ndarray, q: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return D [16, 16] = P Q^T + C as the kernel computes it."""
    d = np.zeros((64, 4), np.float32)
    index = [(4 * (lane // 16) + v, lane % 16) for lane in range(64) for v in range(4)]
    d.reshape(-1)[:] = [c[i, j] for i, j in index]
    with device.memory(registers(p)) as a, device.memory(registers(q)) as b, device.memory(d) as out:
        device.launch(Args(a, b, out), (1, 1), 64)
        flat = np.frombuffer(device.read(out, d.nbytes), np.float32)
    result = np.zeros((16, 16), np.float32)
    for value, (i, j) in zip(flat, index, strict=True):
        result[i, j] = value
    return result


def test_positions_agree_with_the_documents() -> None:
    for name, k in (("mfma_16x16x16_bf16", 16), ("mfma_16x16x32", 32), ("mfma_16x16x128", 128)):
        for (row, at), wanted in FACTS[name].items():
            assert position(k, row, at, 2 if k == 16 else 1) == wanted, (name, row, at)
    for (i, j), (lane, register) in RESULT_FACTS.items():
        assert (4 * (lane // 16) + register, lane % 16) == (i, j)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_matrix_instruction(name: str, tmp_path: Path) -> None:
    arch, call, k, dtype = INSTRUCTIONS[name]
    rng = np.random.default_rng(1)
    with simulated_source(matrix_source(arch, call, k // 4 * np.dtype(dtype).itemsize), tmp_path) as device:
        p, q = (rng.standard_normal((16, k)).astype(dtype) for _ in range(2))
        c = rng.standard_normal((16, 16)).astype(np.float32)
        exact = p.astype(np.float64) @ q.astype(np.float64).T + c
        assert np.abs(run_matrix(device, p, q, c) - exact).max() <= 2.0**-22 * np.abs(exact).max()
        # One element at a time, so that a layout that is wrong in P and Q alike shows.
        for row, at in ((0, 0), (3, k - 1), (9, k // 2), (15, k // 4)):
            one, other = np.zeros((16, k), dtype), rng.standard_normal((16, k)).astype(dtype)
            one[row, at] = 1
            expected = np.zeros((16, 16), np.float32)
            expected[row] = other[:, at].astype(np.float32)
            assert np.array_equal(run_matrix(device, one, other, np.zeros((16, 16))), expected)


@pytest.mark.parametrize("name", [name for name in INSTRUCTIONS if name != "bf16"])
def test_every_code_has_the_value_of_its_encoding(name: str, tmp_path: Path) -> None:
    arch, call, k, dtype = INSTRUCTIONS[name]
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    one = np.zeros((16, k), dtype)
    one[:, 0] = 1
    with simulated_source(matrix_source(arch, call, k // 4), tmp_path) as device:
        for start in range(0, 256, 16):
            p = np.zeros((16, k), dtype)
            p[:, 0] = codes[start : start + 16]
            got = run_matrix(device, p, one, np.zeros((16, 16)))[:, 0]
            np.testing.assert_array_equal(got, p[:, 0].astype(np.float32))


def test_bf16_subnormals_are_flushed(tmp_path: Path) -> None:
    arch, call, k, dtype = INSTRUCTIONS["bf16"]
    p, q = np.zeros((16, k), dtype), np.zeros((16, k), dtype)
    p[0, 0], p[1, 0] = 2.0**-127, 2.0**-126
    q[:, 0] = 2.0**100
    with simulated_source(matrix_source(arch, call, k // 4 * 2), tmp_path) as device:
        got = run_matrix(device, p, q, np.zeros((16, 16)))[:, 0]
    assert got[0] == 0 and got[1] == 2.0**-26


def run_lanes(body: str, values: np.ndarray, folder: Path, threads: int = 64) -> np.ndarray:
    """Return what each lane makes of its value, uint32 `x`, in every order the same: uint64 `result`."""
    text = f"""
        const u32 x = global_load<u32>((const u8*)args.p + 4 * lane);
        u64 result = 0;
        {body}
        global_store<u64>((u8*)args.d + 8 * lane, result);
        """
    results = []
    with simulated_source(source(text, threads=threads), folder) as device, device.memory(values) as p:
        for order in ORDERS:
            with device.memory(8 * threads) as d:
                device.launch(Args(p, 0, d), (1, 1), threads, order)
                results.append(np.frombuffer(device.read(d, 8 * threads), np.uint64))
    assert all(np.array_equal(results[0], other) for other in results[1:])
    return results[0]


LANES = np.arange(128)
WAVES = LANES // 64 * 64
SHUFFLES = {
    "from one lane": ("shuffle(x, 5)", WAVES + 5),
    "rotated, and modulo 64": ("shuffle(x, lane + 61)", WAVES + (LANES + 61) % 64),
    "reversed": ("shuffle(x, 63 - lane % 64)", WAVES + 63 - LANES % 64),
    "exchanged in pairs": ("shuffle_xor(x, 1)", LANES ^ 1),
    "exchanged in halves": ("shuffle_xor(x, 32)", LANES ^ 32),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_shuffle(name: str, tmp_path: Path) -> None:
    call, origin = SHUFFLES[name]
    values = np.random.default_rng(2).integers(0, 2**32, 128, np.uint32)
    assert np.array_equal(run_lanes(f"result = {call};", values, tmp_path, 128), values[origin])


def test_sum_over_a_wave_by_shuffles(tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(0, 2**20, 128, np.uint32)
    body = "u32 sum = x; for (u32 step = 32; step; step /= 2) sum += shuffle_xor(sum, step); result = sum;"
    assert np.array_equal(run_lanes(body, values, tmp_path, 128), values.reshape(2, 64).sum(1).repeat(64))


def test_votes(tmp_path: Path) -> None:
    values = np.random.default_rng(4).integers(0, 2, 192, np.uint32)
    values[64:128], values[128:] = 0, 1
    mask = [sum(int(bit) << i for i, bit in enumerate(wave)) for wave in values.reshape(3, 64)]
    assert np.array_equal(run_lanes("result = ballot(x);", values, tmp_path, 192), np.repeat(np.uint64(mask), 64))
    body = "result = any(x) * 2 + all(x);"
    assert np.array_equal(run_lanes(body, values, tmp_path, 192), np.repeat([2, 0, 3], 64))


# ---- Faults ----------------------------------------------------------------------------------------------

STORE = "Memory::store<u32>(4 * lane, lane);"
FAULTS = {
    "read past an allocation": ("global_load<u32>((const u8*)args.p + 4 * lane + 1);", 64, "outside of every"),
    "write before an allocation": ("global_store<u8>((u8*)args.d - 1, 0);", 64, "outside of every allocation"),
    "LDS beyond the kernel's": ("Memory::store<u32>(1024, 0);", 64, "is outside of the kernel's 1024"),
    "LDS misaligned": ("Memory::store<u32x4>(16 * lane % 512 + 8, u32x4{});", 64, "misaligned"),
    "LDS read before written": ("Memory::load<u32>(4 * lane);", 64, "never written"),
    "neighbour's word without barrier": (STORE + "Memory::load<u32>(4 * (lane ^ 1));", 64, "race|never written"),
    "other wave's word without barrier": (STORE + "Memory::load<u32>(4 * (lane ^ 64));", 128, "race|never written"),
    "two lanes write one word": ("Memory::store<u32>(0, lane);", 64, "race"),
    "overwritten after being read": (
        STORE + "barrier(); Memory::load<u32>(4 * (lane ^ 64)); Memory::store<u32>(4 * lane, 0);",
        128,
        "race",
    ),
    "half the lanes at a barrier": ("if (lane % 2) barrier();", 64, "different wave-wide operations"),
    "a wave misses a barrier": ("if (lane < 64) barrier();", 128, "while others had finished"),
    "lanes at different matrix instructions": (
        "if (lane & 1) mfma_16x16x32<Kind::fp8>(u32x2{}, u32x2{}, f32x4{});"
        " else mfma_16x16x32<Kind::bf8>(u32x2{}, u32x2{}, f32x4{});",
        64,
        "different wave-wide operations",
    ),
    "half the lanes at a shuffle": ("if (lane % 2) shuffle_xor(lane, 1);", 64, "different wave-wide operations"),
    "one lane at a vote": ("if (lane == 9) ballot(true);", 64, "different wave-wide operations"),
    "some lanes vote, others shuffle": (
        "if (lane < 3) ballot(true); else shuffle(lane, 0);",
        64,
        "different wave-wide operations",
    ),
    "a wave shuffles where the others wait": ("if (lane < 64) shuffle(lane, 0); else barrier();", 128, "had finished"),
    "an instruction that the arch lacks": (
        "mfma_16x16x128<Kind::fp8>(u32x8{}, u32x8{}, f32x4{});",
        64,
        "gfx942 has no v_mfma_scale_f32_16x16x128_f8f6f4",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_in_every_order(name: str, tmp_path: Path) -> None:
    body, threads, message = FAULTS[name]
    with simulated_source(source(body, threads=threads), tmp_path) as device:
        for order in ORDERS:
            with device.memory(256) as p, device.memory(64) as d, pytest.raises(Violation, match=message):
                device.launch(Args(p, p, d), (1, 1), threads, order)


def test_a_kernel_without_fault_passes_and_the_orders_differ(tmp_path: Path) -> None:
    # The last wave to come writes last: what global memory holds afterwards shows the order.
    body = STORE + "barrier(); const u32 x = Memory::load<u32>(4 * (lane ^ 64)); global_store<u32>(args.d, x / 64);"
    seen = set()
    with simulated_source(source(body, threads=256, lds=2048), tmp_path) as device:
        for order in ("forward", "reverse", "1", "2", "3"):
            with device.memory(4) as d:
                device.launch(Args(0, 0, d), (1, 1), 256, order)
                seen.add(device.read(d, 4))
    assert len(seen) > 1


def test_freed_memory_is_nobodys(tmp_path: Path) -> None:
    with simulated_source(source("global_load<u32>(args.p);"), tmp_path) as device:
        with device.memory(64) as p:
            device.launch(Args(p, 0, 0), (1, 1), 64)
        with pytest.raises(Violation, match="outside of every allocation"):
            device.launch(Args(p, 0, 0), (1, 1), 64)


def test_a_simulated_device_is_no_driver_of_the_process_that_tests_it(tmp_path: Path) -> None:
    """Else kernel libraries that are opened later in this process would find a HIP driver."""
    with simulated_source(source("global_store<u32>(args.d, 0);"), tmp_path):
        for name in ("libamdhip64.so", "libamdhip64.so.6", "libamdhip64.so.7"):
            with pytest.raises(OSError, match=name):
                ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
