"""One kernel, fully described.

A config is frozen, validated on construction, and knows its name. The arch is not part of the name:
``arch/name`` identifies a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gemmill.arch import Arch, find_arch
from gemmill.errors import ArgumentError
from gemmill.layout import GROUP_K, Layout, find_layout
from gemmill.variant import OUTPUTS, Variant, find_variant

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Family:
    """Kernels that share pipeline, scheduler, epilogue and preshuffle flag."""

    name: str
    pipeline: str
    scheduler: str
    epilogue: str
    preshuffle: bool


FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        Family("decode", "mem", "interwave", "cshuffle", preshuffle=False),
        Family("preshufflequant", "compv3", "intrawave", "cshuffle", preshuffle=True),
    )
}


def find_family(name: str) -> Family:
    """Return the family called `name`, or raise ArgumentError with the list of those that exist."""
    try:
        return FAMILIES[name]
    except KeyError:
        raise ArgumentError(f"unknown family {name!r}: known families are {', '.join(FAMILIES)}") from None


@dataclass(frozen=True)
class KernelConfig:
    """One kernel.

    Attributes
    ----------
    arch, variant, layout, family, out : str
        Keys of the tables ARCHS, VARIANTS, LAYOUTS, FAMILIES and OUTPUTS.
    tile, warps, warp_tile : tuple of int
        (m, n, k); what the words mean on a backend stands in that backend's native folder.
    operator : str
        Only ``gemm_aquant`` so far.
    group : tuple of int
        Elements of A that share a scale, (m, n, k); only (1, 1, 128) so far.

    Raises
    ------
    ArgumentError
        On any value or combination that names no kernel.
    """

    arch: str
    variant: str
    layout: str
    family: str
    tile: Triple
    warps: Triple
    warp_tile: Triple
    out: str = "f16"
    operator: str = "gemm_aquant"
    group: Triple = (1, 1, GROUP_K)

    def __post_init__(self) -> None:
        if self.operator != "gemm_aquant":
            raise ArgumentError(f"unknown operator {self.operator!r}: known operators are gemm_aquant")
        if find_arch(self.arch).name != self.arch:
            raise ArgumentError(f"arch {self.arch!r} carries feature suffixes: write {find_arch(self.arch).name!r}")
        find_variant(self.variant)
        find_layout(self.layout)
        family = find_family(self.family)
        if self.out not in OUTPUTS:
            raise ArgumentError(f"unknown out {self.out!r}: known outputs are {', '.join(OUTPUTS)}")
        if self.group != (1, 1, GROUP_K):
            raise ArgumentError(f"group {self.group}: only (1, 1, {GROUP_K}) is implemented")
        if family.preshuffle and self.layout_row.aq_col:
            raise ArgumentError(
                f"layout {self.layout!r} with family {self.family!r}: the shuffle is defined on a row-major AQ, "
                f"and {self.layout} stores AQ column-major; use rcr, rrr or crr"
            )
        for label in ("tile", "warps", "warp_tile"):
            triple = getattr(self, label)
            if len(triple) != 3 or not all(type(x) is int and x > 0 for x in triple):
                raise ArgumentError(f"{label} {triple!r}: needed three positive integers (m, n, k)")
        if self.warps[2] != 1:
            raise ArgumentError(f"warps {self.warps}: k must be 1, warps do not share a sum over k")
        for axis, letter in enumerate("mn"):
            if self.tile[axis] % (self.warps[axis] * self.warp_tile[axis]):
                raise ArgumentError(
                    f"tile {letter} = {self.tile[axis]}: must be a multiple of warps x warp tile "
                    f"= {self.warps[axis]} x {self.warp_tile[axis]}"
                )
        if self.tile[2] % GROUP_K:
            raise ArgumentError(f"tile k = {self.tile[2]}: must be a multiple of the scale group, {GROUP_K}")
        row = find_arch(self.arch)
        accepted = sorted({row.warp_tile_k, row.warp_tile_k_preshuffle} if family.preshuffle else {row.warp_tile_k})
        if self.warp_tile[2] not in accepted:
            raise ArgumentError(
                f"warp tile k = {self.warp_tile[2]}: {self.arch} has no such instruction for {self.family}; "
                f"accepted is {' or '.join(map(str, accepted))}"
            )

    @property
    def arch_row(self) -> Arch:
        return find_arch(self.arch)

    @property
    def variant_row(self) -> Variant:
        return find_variant(self.variant)

    @property
    def layout_row(self) -> Layout:
        return find_layout(self.layout)

    @property
    def family_row(self) -> Family:
        return find_family(self.family)

    # Cached: a run with nothing to do asks for the names of a thousand kernels a dozen times.
    @cached_property
    def name(self) -> str:
        from kernels.name import format_name

        return format_name(self)

    @cached_property
    def id(self) -> str:
        """``arch/name``, as task names and the index have it."""
        return f"{self.arch}/{self.name}"


def derive_warp_tile_k(arch: Arch, family: Family, tile_k: int) -> int:
    """Return the third number of the warp tile: the arch's instruction decides it, nobody types it in.

    A preshuffled tile of two or more groups chains two instructions a step where the arch has room for it.
    """
    return arch.warp_tile_k_preshuffle if family.preshuffle and tile_k >= 2 * GROUP_K else arch.warp_tile_k
