"""Kernel names: one function makes them, one parses them, and each inverts the other.

    gemm_aquant_{variant}_{layout}_{pipeline}_{epilogue}_{scheduler}_{tile}_{warps}_{warp_tile}_qg{group}
        [_preshufflequant][_out{type}]

Triples are ``MxNxK``. A segment in brackets appears only where it differs from the default, and new ones
go to the end, so that existing names never change.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gemmill.errors import ArgumentError
from gemmill.variant import OUTPUTS

if TYPE_CHECKING:
    from kernels.config import KernelConfig, Triple

GRAMMAR = "gemm_aquant_VARIANT_LAYOUT_PIPELINE_EPILOGUE_SCHEDULER_MxNxK_MxNxK_MxNxK_qgMxNxK[_preshufflequant][_outTYPE]"

# No leading zeros and ASCII digits only: parsing must invert formatting byte for byte.
_NUMBER = "[1-9][0-9]*"
_TRIPLE = f"{_NUMBER}x{_NUMBER}x{_NUMBER}"
_PATTERN = re.compile(
    r"(?P<operator>gemm_aquant)_(?P<variant>[a-z0-9]+)_(?P<layout>[rc]{3})"
    r"_(?P<pipeline>[a-z0-9]+)_(?P<epilogue>[a-z0-9]+)_(?P<scheduler>[a-z0-9]+)"
    rf"_(?P<tile>{_TRIPLE})_(?P<warps>{_TRIPLE})_(?P<warp_tile>{_TRIPLE})_qg(?P<group>{_TRIPLE})"
    rf"(?P<preshuffle>_preshufflequant)?(?:_out(?P<out>{'|'.join(o for o in OUTPUTS if o != 'f16')}))?"
)


def _join(triple: Triple) -> str:
    return "x".join(map(str, triple))


def _split(text: str) -> Triple:
    m, n, k = map(int, text.split("x"))
    return m, n, k


def format_name(config: KernelConfig) -> str:
    """Return the kernel's name."""
    family = config.family_row
    parts = [
        config.operator,
        config.variant,
        config.layout,
        family.pipeline,
        family.epilogue,
        family.scheduler,
        _join(config.tile),
        _join(config.warps),
        _join(config.warp_tile),
        "qg" + _join(config.group),
    ]
    if family.preshuffle:
        parts.append("preshufflequant")
    if config.out != "f16":
        parts.append("out" + config.out)
    return "_".join(parts)


def parse_name(arch: str, name: str) -> KernelConfig:
    """Return the config that `name` describes on `arch`.

    Raises
    ------
    ArgumentError
        If the name does not follow the grammar, or describes a kernel that can't exist.
    """
    from kernels.config import FAMILIES, KernelConfig

    match = _PATTERN.fullmatch(name)
    if match is None:
        raise ArgumentError(f"not a kernel name: {name!r}; a name reads {GRAMMAR}")
    part = match.groupdict()
    preshuffle = part["preshuffle"] is not None
    traits = (part["pipeline"], part["scheduler"], part["epilogue"], preshuffle)
    for family in FAMILIES.values():
        if traits == (family.pipeline, family.scheduler, family.epilogue, family.preshuffle):
            break
    else:
        known = ", ".join(
            f"{f.name} ({f.pipeline}, {f.epilogue}, {f.scheduler}, {'' if f.preshuffle else 'not '}preshuffled)"
            for f in FAMILIES.values()
        )
        raise ArgumentError(f"{name!r} belongs to no family: known are {known}")
    return KernelConfig(
        arch=arch,
        variant=part["variant"],
        layout=part["layout"],
        family=family.name,
        tile=_split(part["tile"]),
        warps=_split(part["warps"]),
        warp_tile=_split(part["warp_tile"]),
        out=part["out"] or "f16",
        operator=part["operator"],
        group=_split(part["group"]),
    )
