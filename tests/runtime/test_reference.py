"""The float64 reference against the formula written out, and the error bound against float32 sums."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from gemmill.errors import ArgumentError
from gemmill.operands import preshuffle_scale
from gemmill.reference import decode, error_bound, reference_gemm_aquant
from generators import SHAPES, int4_matrix, powers_of_two, problem


def formula(a: np.ndarray, b: np.ndarray, aq: np.ndarray) -> np.ndarray:
    (m, k), n = a.shape, b.shape[1]
    c = np.zeros((m, n))
    for i, j, x in itertools.product(range(m), range(n), range(k)):
        c[i, j] += float(aq[i, x // 128]) * float(a[i, x]) * float(b[x, j])
    return c


@pytest.mark.parametrize("shape", SHAPES[:4])
@pytest.mark.parametrize("variant", ["fp8", "bf8i4"])
def test_reference_is_the_formula(variant, shape):
    p = problem(variant, *shape)
    assert np.allclose(p.expected, formula(decode(p.a), decode(p.b), decode(p.aq)), rtol=1e-12, atol=0)


def test_reference_takes_shuffled_scales():
    p = problem("fp8", 3, 4, 700)
    assert np.array_equal(reference_gemm_aquant(p.a, p.b, preshuffle_scale(p.aq, 256)), p.expected)


def test_reference_of_nothing():
    assert reference_gemm_aquant(np.ones((2, 0)), np.ones((0, 3)), np.ones((2, 0))).tolist() == [[0] * 3] * 2
    assert reference_gemm_aquant(np.ones((0, 5)), np.ones((5, 3)), np.ones((0, 1))).shape == (0, 3)


def test_reference_lets_nan_and_inf_through():
    a, b, aq = np.ones((3, 130)), np.ones((130, 1)), np.ones((3, 2))
    a[0, 0], aq[1, 1], aq[2, 0] = np.nan, np.inf, 0
    a[2, 3] = np.inf  # 0 * Inf
    c = reference_gemm_aquant(a, b, aq)
    assert np.isnan(c[0, 0])
    assert c[1, 0] == np.inf
    assert np.isnan(c[2, 0])


def test_reference_refuses_shapes_that_do_not_fit():
    with pytest.raises(ArgumentError, match=r"needed \(M, K\), \(K, N\), \(M, ceil\(K / 128\)\)"):
        reference_gemm_aquant(np.ones((2, 130)), np.ones((130, 2)), np.ones((2, 1)))


@pytest.mark.parametrize("order", ["C", "F"])
def test_decode_int4(order):
    packed, values = int4_matrix(5, 7, order)
    assert np.array_equal(decode(packed), values)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_decode_has_all_256_codes(name):
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16).view(getattr(ml_dtypes, name))
    assert np.array_equal(decode(codes), codes.astype(np.float32), equal_nan=True)
    assert np.array_equal(decode(codes.T), codes.T.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("premultiplied", [True, False])
@pytest.mark.parametrize("out", ["f16", "bf16", "f32"])
def test_float32_sums_stay_within_the_bound(out, premultiplied, order):
    """In either order, whether AQ multiplies terms or sums; and the bound is no more than twice what f16 needs."""
    p = problem("fp8", 20, 20, 500, out=out)
    a, b, aq = decode(p.a), decode(p.b), decode(p.aq)
    c = np.zeros((20, 20), np.float32)
    part = np.zeros((20, 20), np.float32)
    steps = list(range(500))[::order]
    for at, x in enumerate(steps):
        scale = aq[:, x // 128, None]
        term = a[:, x, None] * b[None, x]
        if premultiplied:
            c = c + scale * term
        else:
            part = part + term
            if at + 1 == len(steps) or steps[at + 1] // 128 != x // 128:
                c, part = c + scale * part, np.zeros_like(part)
    dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}[out]
    ratio = np.abs(c.astype(dtype).astype(np.float64) - p.expected) / p.bound
    assert ratio.max() <= 1
    if out != "f32":
        assert ratio.max() > 0.5  # tight: rounding to the output makes up most of it


def test_bound_sees_an_error_of_one_unit_in_the_last_place():
    p = problem("fp8", 30, 30, 300)
    c = p.expected.astype(np.float16)
    beside = np.nextafter(c, np.float16(np.inf))
    assert (np.abs(beside.astype(np.float64) - p.expected) > p.bound).mean() > 0.4


def test_bound_refuses_unknown_outputs():
    p = problem("fp8", 1, 1, 1)
    with pytest.raises(ArgumentError, match="unknown out 'f64': known outputs are f16, bf16, f32"):
        error_bound(p.a, p.b, p.aq, p.expected, "f64")


def test_powers_of_two_are_distinct():
    aq = powers_of_two(4, 600)
    assert np.unique(aq).size == aq.size
