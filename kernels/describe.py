"""A config as the data that manifests, index entries and the libraries themselves carry."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from gemmill.cache import NATIVE, canonical_json
from gemmill.errors import GemmillError
from gemmill.variant import OUTPUTS, dtype_name

from kernels.config import KernelConfig

_ABI_VERSION = re.compile(r"^[ \t]*#[ \t]*define[ \t]+GEMMILL_ABI_VERSION[ \t]+([0-9]+)", re.MULTILINE)


def read_abi_version(native: Path) -> int:
    """Return GEMMILL_ABI_VERSION of native/abi.h, the only place that states it."""
    path = native / "abi.h"
    try:
        match = _ABI_VERSION.search(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GemmillError(f"failed to read {path}: {error.strerror}") from None
    if match is None:
        raise GemmillError(f"{path} does not define GEMMILL_ABI_VERSION as a number")
    return int(match[1])


def describe_config(config: KernelConfig) -> dict[str, Any]:
    """Return every field of a config, what follows from its family and arch, and its operands.

    An operand is {"dtype", "order"}: the numpy or ml_dtypes name (``int4``: packed, two a byte), and ``row`` or
    ``column`` major.
    """
    family, layout, variant = config.family_row, config.layout_row, config.variant_row
    encoding = config.arch_row.encoding

    def operand(kind: str, column: bool) -> dict[str, str]:
        return {"dtype": dtype_name(kind, encoding), "order": "column" if column else "row"}

    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()},
        "pipeline": family.pipeline,
        "scheduler": family.scheduler,
        "epilogue": family.epilogue,
        "preshuffle": family.preshuffle,
        "encoding": encoding,
        "operands": {
            "A": operand(variant.a, layout.a_col),
            "AQ": operand(variant.aq, layout.aq_col),
            "B": operand(variant.b, layout.b_col),
            "C": {"dtype": OUTPUTS[config.out], "order": "row"},
        },
    }


def embedded_manifest(
    config: KernelConfig, abi: int, provider: str = NATIVE, limits: dict[str, int] | None = None
) -> str:
    """Return the JSON text that gemmill_manifest() of the kernel's library gives.

    `limits` says which sizes the kernel takes, where not all: {"n", "k": multiples of these; "not_k": and not of this}.
    """
    extra = {"limits": limits} if limits else {}
    kernel = {"abi": abi, "name": config.name, "provider": provider, "backend": config.arch_row.backend}
    return canonical_json({**kernel, **describe_config(config), **extra})
