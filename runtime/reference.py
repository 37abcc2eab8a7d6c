"""What the kernels compute, in float64, and how far float32 arithmetic may lie from it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from gemmill.arch import FixedPointSum
from gemmill.dtypes import decode_table, encoding_of
from gemmill.errors import ArgumentError
from gemmill.layout import GROUP_K, groups
from gemmill.operands import Array, Int4Matrix, PreshuffledScale
from gemmill.variant import OUTPUTS

# Unit roundoff 2^-p of a type with p significand bits, and half its smallest subnormal.
_ROUNDOFF = {"f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 2.0**-134), "f32": (2.0**-24, 2.0**-150)}
_U32 = 2.0**-24


def decode(x: Array | Int4Matrix | PreshuffledScale) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return an operand's values as float32, which holds every one of them exactly."""
    if isinstance(x, PreshuffledScale):
        x = x.unshuffled()
    if isinstance(x, Int4Matrix):
        return x.values().astype(np.float32)
    if encoding_of(x.dtype):
        return decode_table(x.dtype.name)[x.view(np.uint8)]
    return x.astype(np.float32, copy=False)


def reference_gemm_aquant(
    a_q: Array | Int4Matrix, b: Array, a_scale: Array | PreshuffledScale
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Compute ``C[m,n] = sum over g of AQ[m,g] * sum over k in g of A[m,k] * B[k,n]`` in float64.

    Parameters
    ----------
    a_q : numpy.ndarray or Int4Matrix
        A [M, K], fp8 or packed int4 (wider float types are taken as they are).
    b : numpy.ndarray
        B [K, N].
    a_scale : numpy.ndarray or PreshuffledScale
        AQ [M, ceil(K / 128)].

    Returns
    -------
    numpy.ndarray
        C [M, N], float64, not rounded to any output type.

    Raises
    ------
    ArgumentError
        If the shapes do not fit.
    """
    a, b, aq = decode(a_q), decode(b), decode(a_scale)
    return _grouped(a, b, aq)


def _grouped(a: Array, b: Array, aq: Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    (m, k), n = a.shape, b.shape[1]
    if b.shape[0] != k or aq.shape != (m, groups(k)):
        raise ArgumentError(f"A {a.shape}, B {b.shape}, AQ {aq.shape}: needed (M, K), (K, N), (M, ceil(K / {GROUP_K}))")
    c = np.zeros((m, n))
    with np.errstate(all="ignore"):  # NaN and Inf are answers here
        for g in range(aq.shape[1]):
            part = slice(g * GROUP_K, (g + 1) * GROUP_K)
            c += aq[:, g, None].astype(np.float64) * (a[:, part].astype(np.float64) @ b[part].astype(np.float64))
    return c


def error_bound(
    a_q: Array | Int4Matrix,
    b: Array,
    a_scale: Array | PreshuffledScale,
    c: Array,
    out: str = "f16",
    product_sum: FixedPointSum | None = None,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how far a correct kernel's C may lie from the exact one, element by element.

    A product of two fp8 or int4 values is exact in float32 (at most 4 + 4 significand bits). A term A*B*AQ then
    passes through the multiplication by AQ, at most min(K, 128) additions within its group and QK between groups,
    each rounding with u = 2^-24, whatever their order; with r = min(K, 128) + QK + 1 roundings the sum is off by
    at most gamma * S, gamma = r*u / (1 - r*u), S = sum |AQ|*|A|*|B|. Rounding the float32 sum to the output type
    adds half a unit in the last place: its unit roundoff times |C|, or half its smallest subnormal.

    Where the matrix instruction sums within a group in fixed point, what its cuts lose comes on top: bits below 2^-bits
    of the largest exponent, of each of its terms, and below 2^-bits of the sum. No multiple of S bounds that usefully:
    1 and 127 products just below 2^-13 make 1, which is 1.5 % less than their sum. So the loss is followed step by
    step, from the largest exponents of the operands and from the sum so far.

    Parameters
    ----------
    a_q, b, a_scale : as for reference_gemm_aquant
    c : numpy.ndarray
        The exact product [M, N], float64.
    out : {"f16", "bf16", "f32"}
        Output kind.
    product_sum : FixedPointSum, optional
        How the arch sums within a group; `gemmill.arch.Arch` has it. Subnormal fp8 values count with their type's least
        exponent, so operands must then come in their own types, not decoded.
    """
    if out not in OUTPUTS:
        raise ArgumentError(f"unknown out {out!r}: known outputs are {', '.join(OUTPUTS)}")
    b_q = b
    a, b, aq = (np.abs(decode(x)) for x in (a_q, b, a_scale))
    roundings = (min(a.shape[1], GROUP_K) + aq.shape[1] + 1) * _U32
    accumulation = roundings / (1 - roundings) * _grouped(a, b, aq)
    if product_sum:
        accumulation += _cut(a_q, b_q, aq, product_sum)
    roundoff, tiny = _ROUNDOFF[out]
    bound: np.ndarray[Any, np.dtype[np.float64]] = accumulation + (np.abs(c) + accumulation) * roundoff + tiny
    return bound


def _cut(
    a_q: Array | Int4Matrix, b_q: Array, aq: Array, product_sum: FixedPointSum
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return what cuts within groups may change C by, element by element; `aq` holds absolute values."""
    a, b = decode(a_q).astype(np.float64), decode(b_q).astype(np.float64)
    largest_a, largest_b = _powers(a_q), _powers(b_q)
    bit = 2.0**-product_sum.bits
    change = np.zeros((a.shape[0], b.shape[1]))
    for g in range(aq.shape[1]):
        sum_so_far, lost = np.zeros_like(change), np.zeros_like(change)
        end = min(a.shape[1], (g + 1) * GROUP_K)
        for start in range(g * GROUP_K, end, product_sum.terms):
            step = slice(start, min(end, start + product_sum.terms))
            largest = np.multiply.outer(largest_a[:, step].max(axis=1), largest_b[step].max(axis=0))
            largest = np.maximum(largest, np.abs(sum_so_far) + lost)
            sum_so_far += a[:, step] @ b[step]
            # The largest term is exact: of the sum so far, by the last cut; of products, because they are that short.
            lost += product_sum.terms * bit * largest
            lost += bit * (np.abs(sum_so_far) + lost)
        change += aq[:, g, None] * lost
    return change


def _powers(x: Array | Int4Matrix) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return 2^e of each element's exponent e, which for subnormals is the least of the type; 0 for 0."""
    values = np.abs(decode(x)).astype(np.float64)
    least = 0.0
    if not isinstance(x, Int4Matrix) and encoding_of(x.dtype):
        least = float(ml_dtypes.finfo(x.dtype).smallest_normal)  # type: ignore[no-untyped-call]
    powers = np.exp2(np.frexp(values)[1] - 1.0)
    return np.where(values > 0, np.maximum(powers, least), 0.0)
