"""Quantising activations: groups of 128 along K, one scale a row and group."""

from __future__ import annotations

from typing import Any

import numpy as np
from gemmill.arch import find_arch
from gemmill.dtypes import ENCODINGS, decode_table, is_wide_float, kind_dtype, max_finite
from gemmill.errors import ArgumentError
from gemmill.layout import GROUP_K, find_layout, groups
from gemmill.operands import Array, Int4Matrix, describe_array, plain_array
from gemmill.variant import INT4, find_variant

_BLOCK = 1 << 18  # elements quantised at a time, so that float32 temporaries stay in cache
_INT4_MAX = 7.0
# A smaller scale could be flushed to zero by a kernel that treats float32 subnormals as zeros.
_MIN_SCALE = float(np.finfo(np.float32).tiny)


def quantize_a(
    x: Any, variant: str = "fp8", arch: str | None = None, encoding: str | None = None, layout: str = "rcr"
) -> tuple[Any, Array]:
    """Quantise A for gemm_aquant.

    The scale of a group is its largest magnitude over the largest value of A's type, so that ``x`` is about
    ``a_q * a_scale``. Elements are rounded to nearest, ties to even, and saturate. An all-zero group has scale 1.
    Infinities saturate to the largest finite value of their sign and do not count for the scale; NaN stays NaN and
    does not count either. int4 uses -7..7 and has no NaN, so NaN is refused there. A scale in an fp8 type is
    rounded up, so that nothing overflows; groups whose scale would exceed the type's range saturate, and those below
    its smallest value lose precision.

    Parameters
    ----------
    x : numpy.ndarray
        [M, K] of floats (float16, bfloat16, float32, float64), any strides.
    variant : str
        ``fp8``, ``bf8``, ``fp8i4``, ``bf8i4``, ``fp8i4f32`` or ``bf8i4f32``.
    arch : str, optional
        Use this arch's fp8 encoding.
    encoding : {"ocp", "fnuz"}, optional
        fp8 encoding; ``ocp`` unless an arch says otherwise.
    layout : str
        Storage of the results: A column-major for ``crr`` and ``ccr``, AQ column-major for ``ccr``.

    Returns
    -------
    a_q : numpy.ndarray or Int4Matrix
        A [M, K].
    a_scale : numpy.ndarray
        AQ [M, ceil(K / 128)], float32, or B's fp8 type for fp8i4 and bf8i4.

    Raises
    ------
    ArgumentError
        If x is not a 2-D float array, or variant, arch, encoding or layout are unknown or contradict each other.
    """
    row, place = find_variant(variant), find_layout(layout)
    encoding = _encoding(arch, encoding)
    x = plain_array("x", x)
    if x.ndim != 2 or not is_wide_float(x.dtype):
        raise ArgumentError(f"x must be a 2-D array of floats, not {describe_array(x)}")
    m, k = x.shape
    is_int4 = row.a == INT4
    a_type = np.dtype(np.int8) if is_int4 else kind_dtype(row.a, encoding)
    aq_type = kind_dtype(row.aq, encoding)
    a_order: Any = "F" if place.a_col else "C"
    a_q = np.empty((m, k), a_type, order=a_order)
    a_scale = np.empty((m, groups(k)), aq_type, order="F" if place.aq_col else "C")
    limit = _INT4_MAX if is_int4 else max_finite(a_type)
    step = max(1, _BLOCK // max(k, 1))
    for start in range(0, m, step):
        block = slice(start, start + step)
        _quantize_rows(x[block], a_q[block], a_scale[block], limit)
    return (Int4Matrix.from_values(a_q, a_order) if is_int4 else a_q), a_scale


def _encoding(arch: str | None, encoding: str | None) -> str:
    if encoding is not None and encoding not in ENCODINGS:
        raise ArgumentError(f"unknown encoding {encoding!r}: known are {', '.join(ENCODINGS)}")
    if arch is None:
        return encoding or "ocp"
    native = find_arch(arch).encoding
    if encoding not in (None, native):
        raise ArgumentError(f"arch {arch} uses the {native} encoding, not {encoding}: leave one of them out")
    return native


def _quantize_rows(x: Array, a_q: Array, a_scale: Array, limit: float) -> None:
    k = x.shape[1]
    if k == 0:
        return
    with np.errstate(all="ignore"):
        values = x.astype(np.float32)
        magnitude = np.abs(values)
        magnitude[~np.isfinite(magnitude)] = 0
        amax = np.maximum.reduceat(magnitude, np.arange(0, k, GROUP_K), axis=1)
        scale = _round_scale(amax / np.float32(limit), a_scale.dtype)
        scale[amax == 0] = 1
        a_scale[...] = scale.astype(a_scale.dtype)
        for g in range(scale.shape[1]):
            values[:, g * GROUP_K : (g + 1) * GROUP_K] /= scale[:, g, None]
        if a_q.dtype == np.int8:
            if np.isnan(values).any():
                raise ArgumentError("x has NaN, which int4 can't hold: replace it first, e.g. numpy.nan_to_num(x)")
            np.rint(values, out=values)
        np.clip(values, -limit, limit, out=values)
        a_q[...] = values.astype(a_q.dtype)


def _round_scale(scale: Array, dtype: np.dtype[Any]) -> Array:
    """Return scales as float32 values that `dtype` holds exactly, none below what was asked unless out of range."""
    rounded: Array
    if dtype == np.float32:
        rounded = np.maximum(scale, np.float32(_MIN_SCALE))
        return rounded
    values = decode_table(dtype.name)
    values = np.sort(values[(values > 0) & np.isfinite(values)])
    rounded = values[np.minimum(np.searchsorted(values, scale), values.size - 1)]
    return rounded
