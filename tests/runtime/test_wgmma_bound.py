"""The error bound of sm_90a against a model of its matrix instruction: never broken, and not far above."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import wgmma
from gemmill.arch import find_arch
from gemmill.reference import error_bound, reference_gemm_aquant

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
SUM = find_arch("sm_90a").product_sum
assert SUM is not None


def ratio(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the model's error relative to the bound, for one group with scale 1 and float32 output."""
    aq = np.ones((a.shape[0], 1), np.float32)
    exact = reference_gemm_aquant(a, b, aq)
    bound = error_bound(a, b, aq, exact, "f32", SUM)
    modelled = wgmma.group_sum(a.astype(np.float64), b.astype(np.float64), a.dtype, b.dtype)
    assert modelled.shape == exact.shape
    return np.abs(modelled - exact) / bound


def spread(rng: np.random.Generator, shape: tuple[int, int], dtype: Any) -> np.ndarray[Any, Any]:
    """Return values of either sign whose exponents are uniform over all of the type's, subnormals included."""
    codes = rng.integers(0, 256, shape, np.uint8).view(dtype)
    return np.where(np.isfinite(codes.astype(np.float32)), codes, np.ones((), dtype)).astype(dtype)


@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2)], ids=lambda d: f"{d[0]}-{d[1]}")
@pytest.mark.parametrize("k", [1, 31, 32, 33, 128])
def test_any_codes_stay_within_the_bound(dtypes: tuple[Any, Any], k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = spread(rng, (40, k), dtypes[0]), spread(rng, (k, 50), dtypes[1])
    assert ratio(a, b).max() <= 1
    positive = ratio(np.abs(a.astype(np.float32)).astype(dtypes[0]), np.abs(b.astype(np.float32)).astype(dtypes[1]))
    assert positive.max() <= 1


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_normal_data_come_near_the_bound(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((40, 128)).astype(dtype), rng.standard_normal((128, 50)).astype(dtype)
    found = ratio(a, b).max()
    assert 0.02 < found <= 1, "a bound far above what happens finds no faults"


def one_large(small: float, dtype: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return one product of 1 and 127 of small^2."""
    a, b = np.full((1, 128), small), np.full((128, 1), small)
    a[0, 0] = b[0, 0] = 1
    return a.astype(dtype), b.astype(dtype)


def test_what_lies_below_the_largest_term_is_lost() -> None:
    a, b = one_large(1.875 * 2**-6, E5M2)  # e5m2 rounds it to 2^-5: products of 2^-10 survive
    assert wgmma.group_sum(a.astype(float), b.astype(float), E5M2, E5M2)[0, 0] == 1 + 127 * 2.0**-10
    a, b = one_large(1.375 * 2**-7, E5M2)  # rounded to 1.5 * 2^-7: products of 1.125 * 2^-13 keep 2^-13
    assert wgmma.group_sum(a.astype(float), b.astype(float), E5M2, E5M2)[0, 0] == 1 + 127 * 2.0**-13
    a, b = one_large(1.25 * 2**-7, E5M2)  # 1.5625 * 2^-14: nothing of 127 products is left
    assert wgmma.group_sum(a.astype(float), b.astype(float), E5M2, E5M2)[0, 0] == 1
    exact = reference_gemm_aquant(a, b, np.ones((1, 1), np.float32))[0, 0]
    assert 1 - 1 / exact > 2**-7, "no small multiple of the sum of magnitudes bounds this"
    assert ratio(a, b)[0, 0] > 0.3


def test_a_bound_without_the_cuts_is_broken() -> None:
    a, b = one_large(1.25 * 2**-7, E5M2)
    aq = np.ones((1, 1), np.float32)
    exact = reference_gemm_aquant(a, b, aq)
    assert abs(1 - exact[0, 0]) > 1000 * error_bound(a, b, aq, exact, "f32")[0, 0]


def test_small_integers_are_exact() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-8, 9, shape).astype(E4M3) for shape in ((30, 128), (128, 30)))
    exact = reference_gemm_aquant(a, b, np.ones((30, 1), np.float32))
    assert np.array_equal(wgmma.group_sum(a.astype(float), b.astype(float), E4M3, E4M3), exact)
