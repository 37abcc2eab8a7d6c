"""The encoder's linear layers, in float32 by numpy and in FP8 or int4 by gemmill.

y = x @ W.T + b. Activations x are quantised as they come, with one scale per row and 128 consecutive k;
weights W once, with one power of two 2^shift per tensor. B carries no scale, so the power of two goes into AQ:
x is divided by it before it is quantised. That leaves A's codes as they are and moves AQ alone, and a quantiser
that must round AQ (fp8i4, bf8i4) still chooses the codes for the AQ that is stored.

How far a tensor can be shifted: with float32 scales, until its largest element reaches the top of the FP8 type.
An FP8 scale has no room for that. Its smallest normal value is 2^-6 (e4m3) or 2^-14 (e5m2), and a scale of int4
activations is max|x| / 7: shifted as far as with float32, most scales would be too small for the type. So the
shift stops where a group with max|x| = 1/8, small for this network, still has a normal scale: at 0 for e4m3 and
at 8 for e5m2. Weights that stay subnormal by it cost little, since they are the small ones.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import gemmill
import ml_dtypes
import numpy as np
from encoder import Encoder, Floats
from gemmill.variant import dtype_name, find_variant

SMALL_GROUP = 1 / 8  # max|x| of a group whose FP8 scale must still be normal
INT4_MAX = 7


@dataclass
class Record:
    """What one linear layer took, best of all runs, and the relative error it added (Frobenius norms)."""

    quantise_s: float = math.inf
    multiply_s: float = math.inf
    error: float = 0.0

    def keep_best(self, quantise_s: float, multiply_s: float) -> None:
        """Take over a run's times where it was faster as a whole."""
        if quantise_s + multiply_s < self.seconds:
            self.quantise_s, self.multiply_s = quantise_s, multiply_s

    @property
    def seconds(self) -> float:
        return self.quantise_s + self.multiply_s


class Float32Linears:
    """x @ W.T + b in float32, by numpy."""

    def __init__(self, encoder: Encoder) -> None:
        self.weights = encoder.weights
        self.records = {name: Record() for name in encoder.linear_names()}

    def apply(self, name: str, x: Floats) -> Floats:
        """Return x [M, K] @ W.T [K, N] + b [N], float32."""
        start = time.perf_counter()
        y = x @ self.weights[name + ".weight"].T
        self.records[name].keep_best(0.0, time.perf_counter() - start)
        return y + self.weights[name + ".bias"]


class GemmillLinears:
    """x @ W.T + b with gemm_aquant, all operands in the types of `variant`.

    Parameters
    ----------
    encoder : Encoder
        Its weights are cast here, once.
    variant : str
        ``fp8``, ``bf8``, ``fp8i4``, ``bf8i4``, ``fp8i4f32`` or ``bf8i4f32``.
    """

    def __init__(self, encoder: Encoder, variant: str) -> None:
        self.variant = variant
        self.weights = encoder.weights
        self.records = {name: Record() for name in encoder.linear_names()}
        self.cast = {name: cast_weight(encoder.weights[name + ".weight"], variant) for name in self.records}

    def apply(self, name: str, x: Floats) -> Floats:
        """Return x [M, K] @ W.T [K, N] + b [N], float32."""
        weight, shift = self.cast[name]
        start = time.perf_counter()
        a, scale = gemmill.quantize_a(x * np.float32(2.0**-shift), self.variant)
        quantised = time.perf_counter()
        # The transpose of a row-major [N, K] is a column-major [K, N]: layout rcr, nothing is copied.
        y = gemmill.gemm_aquant(a, weight.T, scale).astype(np.float32)
        record = self.records[name]
        record.keep_best(quantised - start, time.perf_counter() - quantised)
        record.error = relative_error(y, x @ self.weights[name + ".weight"].T)
        return y + self.weights[name + ".bias"]


def cast_weight(weight: Floats, variant: str) -> tuple[Any, int]:
    """Return W * 2^shift in the type of the variant's B, shape [N, K] as W, and shift."""
    row = find_variant(variant)
    dtype = np.dtype(getattr(ml_dtypes, dtype_name(row.b, "ocp")))
    shift = math.floor(math.log2(float(ml_dtypes.finfo(dtype).max) / float(np.abs(weight).max())))
    if row.aq != "f32":
        smallest = float(ml_dtypes.finfo(dtype_name(row.aq, "ocp")).smallest_normal)
        shift = min(shift, math.floor(math.log2(SMALL_GROUP / INT4_MAX / smallest)))
    return (weight * np.float32(2.0**shift)).astype(dtype), shift


def relative_error(got: Floats, want: Floats) -> float:
    """Return |got - want| / |want|, Frobenius norms."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
