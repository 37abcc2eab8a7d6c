"""What the kernels compute, in float64, and how far float32 arithmetic may lie from it."""

from __future__ import annotations

from typing import Any

import numpy as np
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
    sum_roundoff: float = 0.0,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how far a correct kernel's C may lie from the exact one, element by element.

    A product of two fp8 or int4 values is exact in float32 (at most 4 + 4 significand bits). A term A*B*AQ then
    passes through the multiplication by AQ, at most min(K, 128) additions within its group and QK between groups,
    each rounding with u = 2^-24, whatever their order; with r = min(K, 128) + QK + 1 roundings the sum is off by
    at most gamma * S, gamma = r*u / (1 - r*u), S = sum |AQ|*|A|*|B|. Rounding the float32 sum to the output type
    adds half a unit in the last place: its unit roundoff times |C|, or half its smallest subnormal.

    Parameters
    ----------
    a_q, b, a_scale : as for reference_gemm_aquant
    c : numpy.ndarray
        The exact product [M, N], float64.
    out : {"f16", "bf16", "f32"}
        Output kind.
    sum_roundoff : float
        What the arch loses within a group, relative to S; `gemmill.arch.Arch` has it.
    """
    if out not in OUTPUTS:
        raise ArgumentError(f"unknown out {out!r}: known outputs are {', '.join(OUTPUTS)}")
    a, b, aq = (np.abs(decode(x)) for x in (a_q, b, a_scale))
    roundings = (min(a.shape[1], GROUP_K) + aq.shape[1] + 1) * _U32
    accumulation = (roundings / (1 - roundings) + sum_roundoff) * _grouped(a, b, aq)
    roundoff, tiny = _ROUNDOFF[out]
    bound: np.ndarray[Any, np.dtype[np.float64]] = accumulation + (np.abs(c) + accumulation) * roundoff + tiny
    return bound
