"""The numpy dtypes of operands, and which variant and fp8 encoding a set of them means."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
from gemmill.errors import ArgumentError
from gemmill.variant import INT4, OUTPUTS, VARIANTS, dtype_name

ENCODINGS = ("ocp", "fnuz")


@functools.cache
def named_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype that numpy or ml_dtypes calls `name`."""
    return np.dtype(getattr(ml_dtypes, name, name))


def kind_dtype(kind: str, encoding: str) -> np.dtype[Any]:
    """Return the storage dtype of an operand kind; packed int4 is stored as uint8."""
    return np.dtype(np.uint8) if kind == INT4 else named_dtype(dtype_name(kind, encoding))


def output_dtype(out: str) -> np.dtype[Any]:
    """Return the dtype of an output kind (``f16``, ``bf16``, ``f32``)."""
    return named_dtype(OUTPUTS[out])


def output_kind(dtype: Any) -> str:
    """Return the output kind of a dtype, or raise ArgumentError with those that are accepted."""
    name = str(dtype).removeprefix("torch.")
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    for kind, wanted in OUTPUTS.items():
        if name == wanted or found == output_dtype(kind):
            return kind
    raise ArgumentError(f"output dtype {dtype!r}: accepted are {', '.join(OUTPUTS.values())}")


def is_wide_float(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is a float type of 16 bits or more (numpy's kind "f" includes some of 8)."""
    return dtype.name in ("float16", "bfloat16", "float32", "float64")


def encoding_of(dtype: np.dtype[Any]) -> str | None:
    """Return the fp8 encoding that a dtype belongs to, None for other types."""
    for encoding in ENCODINGS:
        if dtype in (kind_dtype("fp8", encoding), kind_dtype("bf8", encoding)):
            return encoding
    return None


@functools.cache
def variant_of(a: str, b: str, aq: str) -> tuple[str, str]:
    """Return (variant, encoding) of three dtype names (``int4`` for a packed A).

    Raises
    ------
    ArgumentError
        If no variant takes these types together; the text lists those that exist.
    """
    accepted = []
    for encoding in ENCODINGS:
        for row in VARIANTS.values():
            types = tuple(dtype_name(kind, encoding) for kind in (row.a, row.b, row.aq))
            if types == (a, b, aq):
                return row.name, encoding
            accepted.append(f"\n  {row.name:9} {types[0]:16} {types[1]:16} {types[2]:16} ({encoding})")
    raise ArgumentError(
        f"no variant takes A {a}, B {b}, AQ {aq} together; accepted are\n"
        f"  {'variant':9} {'A':16} {'B':16} {'AQ':16} (encoding)" + "".join(accepted)
    )


@functools.cache
def decode_table(name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the float32 values of all 256 codes of an fp8 dtype."""
    codes = np.arange(256, dtype=np.uint8).view(named_dtype(name))
    table = codes.astype(np.float32)
    table.setflags(write=False)
    return table


def max_finite(dtype: np.dtype[Any]) -> float:
    """Return the largest finite value of a float dtype."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
