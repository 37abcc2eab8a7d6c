"""What Hopper's wgmma computes of 8-bit floats, by the model that published studies confirmed on hardware bit by bit.

Thirty-two products and the accumulator are aligned to the largest exponent, cut toward zero to 13 fraction bits below
it, and added exactly; the sum is cut to 13 fraction bits. A product's exponent is the sum of its factors' exponents
(its significand lies in [1, 4)), and a subnormal factor has its type's least exponent.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

TERMS, BITS = 32, 13
_NEVER = -(2**20)  # the exponent of zero


def exponents(x: Array, dtype: Any) -> Array:
    """Return the exponent field's meaning of values that `dtype` holds."""
    found = np.frexp(x)[1] - 1
    least = int(np.log2(float(ml_dtypes.finfo(dtype).smallest_normal)))
    return np.where(x == 0, _NEVER, np.maximum(found, least))


def cut(x: Array, unit: Array) -> Array:
    """Return multiples of a power of two, toward zero."""
    return np.trunc(x / unit) * unit


def step(acc: Array, a: Array, b: Array, a_exponents: Array, b_exponents: Array) -> Array:
    """Return acc [M, N] + a [M, <= 32] b [<= 32, N] as one instruction computes it, in float64."""
    products = a[:, :, None] * b[None]
    of_products = a_exponents[:, :, None] + b_exponents[None]
    of_acc = np.where(acc == 0, _NEVER, np.frexp(acc)[1] - 1)
    largest = np.maximum(of_products.max(axis=1), of_acc)
    unit = np.exp2(np.maximum(largest, -1000) - float(BITS))
    total = cut(products, unit[:, None]).sum(axis=1) + cut(acc, unit)
    return cut(total, np.exp2(np.frexp(total)[1] - 1.0 - BITS))


def group_sum(a: Array, b: Array, a_dtype: Any, b_dtype: Any) -> Array:
    """Return one group's sum, a [M, <= 128] and b [<= 128, N] as float64 values of their types."""
    ea, eb = exponents(a, a_dtype), exponents(b, b_dtype)
    acc = np.zeros((a.shape[0], b.shape[1]))
    for start in range(0, a.shape[1], TERMS):
        part = slice(start, start + TERMS)
        acc = step(acc, a[:, part], b[part], ea[:, part], eb[part])
    return acc
