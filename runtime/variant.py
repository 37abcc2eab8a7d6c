"""Operand types of the variants, and the dtype names they have in each fp8 encoding.

This module needs no numpy, so that the build side can import it at no cost; dtype names are
those of numpy and ml_dtypes.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmill.errors import ArgumentError

INT4 = "int4"  # packed, two a byte; see gemmill.Int4Matrix


@dataclass(frozen=True)
class Variant:
    """Operand kinds of one variant: ``fp8`` (e4m3), ``bf8`` (e5m2), ``int4`` or ``f32``."""

    name: str
    a: str
    b: str
    aq: str


VARIANTS: dict[str, Variant] = {
    v.name: v
    for v in (
        Variant("fp8", "fp8", "fp8", "f32"),
        Variant("bf8", "bf8", "bf8", "f32"),
        Variant("fp8i4", INT4, "fp8", "fp8"),
        Variant("bf8i4", INT4, "bf8", "bf8"),
        Variant("fp8i4f32", INT4, "fp8", "f32"),
        Variant("bf8i4f32", INT4, "bf8", "f32"),
    )
}

# Output kinds; f16 is what every name means that has no _out segment.
OUTPUTS: dict[str, str] = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}

_FP8_NAMES = {
    ("fp8", "ocp"): "float8_e4m3fn",
    ("bf8", "ocp"): "float8_e5m2",
    ("fp8", "fnuz"): "float8_e4m3fnuz",
    ("bf8", "fnuz"): "float8_e5m2fnuz",
}

FP8_TYPES = tuple(_FP8_NAMES.values())


def find_variant(name: str) -> Variant:
    """Return the variant called `name`, or raise ArgumentError with the list of those that exist."""
    try:
        return VARIANTS[name]
    except KeyError:
        raise ArgumentError(f"unknown variant {name!r}: known variants are {', '.join(VARIANTS)}") from None


def dtype_name(kind: str, encoding: str) -> str:
    """Return the numpy/ml_dtypes name of an operand kind in an fp8 encoding (``int4`` stays ``int4``)."""
    if kind == INT4:
        return INT4
    if kind == "f32":
        return "float32"
    return _FP8_NAMES[kind, encoding]
