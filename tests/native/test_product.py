"""The product itself, through both entries, against float64 with a bound derived from the arithmetic."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap

import numpy as np
import pytest
from native_build import HOST_CPUS, one, sample
from problems import SHAPES, Matrix, check, random_problem

MAP_NORESERVE = 0x4000  # Linux; the module does not have it everywhere


def check_shapes(library, shapes=SHAPES) -> None:
    config = library.config
    for i, shape in enumerate(shapes):
        p = random_problem(config, shape)
        check(config, p, library.run_packed(p))
        pads = (i % 4, i % 3, i % 5)
        p = random_problem(config, shape, 1, config.family_row.preshuffle, pads)
        check(config, p, library.run_strided(p, i % 2))


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_every_combination_on_every_arch(arch, libraries):
    for library in libraries(sample(arch)):
        check_shapes(library)


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_several_cache_blocks(arch, libraries):
    """Shapes just beyond the cache block in every direction."""
    configs = [one(arch), one(arch, "fp8i4", "crr", "preshufflequant")]
    for library in libraries(configs):
        tm, tn, tk = library.config.tile
        check_shapes(library, [(tm + 1, 40, tk + 1), (10, tn + 1, 2 * tk + 130)])


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("arch", HOST_CPUS)
def test_other_outputs(arch, out, libraries):
    (library,) = libraries([dataclasses.replace(one(arch), out=out)])
    check_shapes(library, SHAPES[5::3])


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_powers_of_two_are_exact(arch, libraries):
    """Distinct scales per (row, group) and small integers: no rounding anywhere, so no tolerance."""
    for library in libraries([one(arch), one(arch, "fp8", "crr", "preshufflequant")]):
        m, n, k = 19, 37, 400
        p = random_problem(library.config, (m, n, k))
        rng = np.random.default_rng(5)
        p.a.storage[:] = rng.integers(-4, 5, p.a.storage.shape).astype(p.a.storage.dtype)
        p.b.storage[:] = rng.integers(-4, 5, p.b.storage.shape).astype(p.b.storage.dtype)
        row, group = np.indices(p.aq.storage.shape)
        p.aq.storage[:] = 2.0 ** ((row + 3 * group) % 6 - 3)
        a = p.a.storage.T if library.config.layout_row.a_col else p.a.storage
        b = p.b.storage.T if library.config.layout_row.b_col else p.b.storage
        p.a.values, p.b.values, p.aq.values = (x.astype(np.float64) for x in (a, b, p.aq.storage))
        exact = p.product()
        np.testing.assert_array_equal(library.run_packed(p).astype(np.float64), exact.astype(np.float16))


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_empty(arch, libraries):
    (library,) = libraries([one(arch)])
    assert library.run_packed(random_problem(library.config, (3, 5, 0))).tolist() == [[0.0] * 5] * 3
    for shape in ((0, 5, 7), (5, 0, 7), (0, 0, 0)):
        assert library.run_packed(random_problem(library.config, shape)).size == 0


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_unaligned_pointers(arch, libraries):
    """Operands that start at odd addresses."""
    for library in libraries([one(arch), one(arch, "fp8i4", "crr"), one(arch, "bf8", "rrr", "preshufflequant")]):
        p = random_problem(library.config, (9, 35, 200))
        expected = library.run_packed(p)
        for matrix in (p.a, p.aq, p.b):
            raw = np.zeros(matrix.storage.nbytes + 1, np.uint8)
            raw[1:] = np.ascontiguousarray(matrix.storage).view(np.uint8).reshape(-1)
            matrix.storage = raw[1:]
        c = np.zeros(expected.nbytes + 1, np.uint8)
        code = library.c.dispatcher_run_aquant_gemm(
            p.a.pointer, p.aq.pointer, p.b.pointer, c.ctypes.data + 1,
            *p.shape, p.a.stride, p.aq.stride, p.b.stride, p.shape[1], 2, 1, None,
        )  # fmt: skip
        assert code == 0, library.error
        np.testing.assert_array_equal(c[1:], expected.copy().view(np.uint8).reshape(-1))


def far_apart(matrix: Matrix, packed: bool) -> Matrix:
    """Return the same matrix with lines more than 2^31 elements apart, in memory that is never touched in between."""
    stride, itemsize = 2**31 + 5, matrix.storage.itemsize
    near = matrix.storage.reshape(-1).view(np.uint8)
    if packed:  # one element a place, so that lines may start mid-byte
        near = np.stack([near >> 4, near & 15], axis=-1).reshape(-1)
    length = matrix.stride * itemsize
    lines = near[: near.size // length * length].reshape(-1, length)
    size = -(-len(lines) * stride * itemsize // (2 if packed else 1))
    far = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE), np.uint8)
    for i, line in enumerate(lines):
        if packed:
            for at, code in enumerate(line, i * stride):
                far[at // 2] |= code << 4 * (1 - at % 2)
        else:
            far[i * stride * itemsize :][:length] = line
    return dataclasses.replace(matrix, storage=far, stride=stride)


@pytest.mark.parametrize("arch", HOST_CPUS)
@pytest.mark.parametrize(
    ("operand", "variant", "layout", "family"),
    [
        *(("a", variant, layout, "decode") for variant in ("fp8", "fp8i4") for layout in ("rcr", "ccr")),
        *(("b", "fp8", layout, "decode") for layout in ("rcr", "rrr")),
        *(("aq", variant, layout, "decode") for variant in ("fp8", "fp8i4") for layout in ("rcr", "ccr")),
        ("aq", "fp8", "rcr", "preshufflequant"),
    ],
)
def test_offsets_beyond_32_bits(arch, operand, variant, layout, family, libraries):
    (library,) = libraries([one(arch, variant, layout, family)])
    p = random_problem(library.config, (3, 5, 300), 0, family == "preshufflequant")
    expected = library.run_strided(p)
    check(library.config, p, expected)
    far = far_apart(getattr(p, operand), packed=(operand, variant) == ("a", "fp8i4"))
    np.testing.assert_array_equal(library.run_strided(dataclasses.replace(p, **{operand: far})), expected)


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_rows_of_c_beyond_32_bits(arch, libraries):
    (library,) = libraries([one(arch)])
    p = random_problem(library.config, (3, 5, 300))
    expected = library.run_strided(p)
    stride = 2**31 + 5
    size = 2 * (2 * stride + 5)
    far = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE), np.float16)
    code = library.c.gemmill_gemm_aquant(
        p.a.pointer, p.aq.pointer, p.b.pointer, far.ctypes.data,
        3, 5, 300, p.a.stride, p.aq.stride, p.b.stride, stride, None, 0, None,
    )  # fmt: skip
    assert code == 0, library.error
    np.testing.assert_array_equal(np.stack([far[i * stride :][:5] for i in range(3)]), expected)


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_time(arch, libraries):
    (library,) = libraries([one(arch)])
    time_ms = (ctypes.c_float * 1)(-1.0)
    library.run_packed(random_problem(library.config, (16, 64, 256)), time_ms)
    assert 0 < time_ms[0] < 1000
