"""NaN, infinities, subnormals, the caller's floating-point environment."""

from __future__ import annotations

import numpy as np
import pytest
from native_build import HOST_CPUS, one
from problems import Problem, dense, random_problem, scales

E4M3, E5M2 = "fp8", "bf8"


def problem(config, a, b, aq) -> Problem:
    from problems import operand_dtype

    layout, variant = config.layout_row, config.variant_row
    return Problem(
        dense(a, operand_dtype(config, variant.a), layout.a_col),
        scales(aq, config, operand_dtype(config, variant.aq), False),
        dense(b, operand_dtype(config, variant.b), layout.b_col),
        (a.shape[0], b.shape[1], a.shape[1]),
    )


def same(c, exact) -> None:
    """NaN and infinities where the formula has them; finite elsewhere."""
    c = c.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(c), np.isnan(exact))
    np.testing.assert_array_equal(np.isposinf(c), np.isposinf(exact))
    np.testing.assert_array_equal(np.isneginf(c), np.isneginf(exact))


@pytest.mark.parametrize("layout", ["rcr", "crr"])
@pytest.mark.parametrize("arch", HOST_CPUS)
def test_nan_and_infinity_in_operands(arch, layout, libraries):
    for library in libraries([one(arch, E4M3, layout), one(arch, E5M2, layout)]):
        rng = np.random.default_rng(1)
        a, b = rng.integers(-2, 3, (21, 267)).astype(float), rng.integers(-2, 3, (267, 45)).astype(float)
        b[b == 0] = 1
        a[3, 5], a[8, 266], b[130, 7] = np.nan, np.nan, np.nan
        if library.config.variant == E5M2:
            a[5, 128], a[6, 0], b[3, 40] = np.inf, -np.inf, np.inf
        p = problem(library.config, a, b, np.ones((21, 3)))
        same(library.run_packed(p), p.product())


@pytest.mark.parametrize("family", ["decode", "preshufflequant"])
@pytest.mark.parametrize("arch", HOST_CPUS)
def test_nan_and_infinity_in_scales(arch, family, libraries):
    """An infinite scale times a sum that is exactly zero is NaN; times another it is infinite."""
    (library,) = libraries([one(arch, E4M3, "rrr", family)])
    a, b = np.ones((10, 300)), np.ones((300, 20))
    b[::2, 3] = -1  # groups of an even length sum to zero
    a[9] = 0
    aq = np.ones((10, 3))
    aq[1, 0], aq[2, 1], aq[3, 2], aq[9, 0] = np.inf, np.nan, -np.inf, np.inf
    p = problem(library.config, a, b, aq)
    c = library.run_packed(p)
    same(c, p.product())
    assert np.isnan(c[1, 3]) and np.isposinf(c[1, 4]) and np.isnan(c[9]).all()


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_infinite_scale_does_not_leak_into_sums(arch, libraries):
    """Scales multiply the group's sum, never its terms: inf times (1 - 1 + 5) is inf."""
    (library,) = libraries([one(arch)])
    a, b = np.ones((1, 128)), np.zeros((128, 1))
    b[:3, 0] = 1, -1, 5
    p = problem(library.config, a, b, np.full((1, 1), np.inf))
    assert np.isposinf(library.run_packed(p)[0, 0])


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_overflow_rounds_to_infinity(arch, libraries):
    """65519.99 is the last value below half a step above the largest float16."""
    (library,) = libraries([one(arch)])
    aq = np.array([[65504.0], [65519.0], [65520.0], [-65520.0], [1e30]])
    p = problem(library.config, np.ones((5, 1)), np.ones((1, 1)), aq)
    assert library.run_packed(p)[:, 0].tolist() == [65504.0, 65504.0, np.inf, -np.inf, np.inf]


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_float16_rounding(arch, libraries):
    """Every kind of float16 result, ties and subnormals included, as numpy rounds it."""
    (library,) = libraries([one(arch)])
    rng = np.random.default_rng(2)
    bits = np.concatenate([np.arange(0, 0x7C00, 7, dtype=np.uint16), rng.integers(0, 0x400, 300, dtype=np.uint16)])
    exact = bits.view(np.float16).astype(np.float32)
    step = np.spacing(bits.view(np.float16)).astype(np.float32)
    values = np.concatenate([exact, exact + step / 2, exact + step / 4, exact + step * 3 / 4]).astype(np.float32)
    p = problem(library.config, np.ones((values.size, 1)), np.ones((1, 1)), values[:, None])
    np.testing.assert_array_equal(library.run_packed(p)[:, 0], values.astype(np.float16))


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_flush_to_zero_of_the_caller_does_not_matter(arch, libraries, toolchain, tmp_path):
    """Subnormal codes, scales and results with FTZ, DAZ and round-up set; the caller's settings survive."""
    import ctypes
    import platform
    import subprocess

    if platform.machine() != "x86_64":
        pytest.skip("sets MXCSR")
    source = tmp_path / "csr.c"
    source.write_text(
        'unsigned get(void) { unsigned v; __asm__ volatile("stmxcsr %0" : "=m"(v)); return v; }\n'
        'void set(unsigned v) { __asm__ volatile("ldmxcsr %0" : : "m"(v)); }\n'
    )
    library_path = tmp_path / "csr.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library_path)], check=True)
    csr = ctypes.CDLL(str(library_path))
    (library,) = libraries([one(arch)])
    tiny = 2.0**-9  # the smallest e4m3 subnormal
    p = problem(library.config, np.full((1, 4), tiny), np.full((4, 1), tiny), np.full((1, 1), 2.0**-6))
    small = problem(library.config, np.full((1, 1), 256.0), np.full((1, 1), 256.0), np.full((1, 1), 2.0**-130))
    before = csr.get()
    try:
        csr.set(0x1F80 | 0x8040 | 0x4000)
        code = csr.get()
        results = [raw_call(library, q) for q in (p, small)]
        after = csr.get()
    finally:
        csr.set(before)
    assert code & ~0x3F == after & ~0x3F
    assert results == [4 * tiny * tiny * 2.0**-6, 0.0]


def raw_call(library, p: Problem) -> float:
    c = np.full((1, 1), np.nan, np.float16)
    m, n, k = p.shape
    code = library.c.dispatcher_run_aquant_gemm(
        p.a.pointer, p.aq.pointer, p.b.pointer, c.ctypes.data,
        m, n, k, p.a.stride, p.aq.stride, p.b.stride, n, 1, 1, None,
    )  # fmt: skip
    assert code == 0, library.error
    return float(c[0, 0])


@pytest.mark.parametrize("arch", HOST_CPUS)
@pytest.mark.parametrize("variant", [E4M3, E5M2])
def test_all_codes_through_a_kernel(arch, variant, libraries):
    """A column of every code times one: C shows what the kernel took each code for."""
    from problems import operand_dtype

    for library in libraries([one(arch, variant), one(arch, variant, "crr")]):
        config = library.config
        p = random_problem(config, (256, 256, 1))
        codes = np.arange(256, dtype=np.uint8)
        ones = np.ones(256).astype(operand_dtype(config, variant)).view(np.uint8)
        for a, b in ((codes, ones), (ones, codes)):
            p.a.storage = a.reshape(p.a.storage.shape).copy()
            p.b.storage = b.reshape(p.b.storage.shape).copy()
            p.aq.storage[:] = 1
            values = codes.view(operand_dtype(config, variant)).astype(np.float16)
            expected = np.broadcast_to(values[:, None] if a is codes else values[None, :], (256, 256))
            np.testing.assert_array_equal(library.run_packed(p), expected)
