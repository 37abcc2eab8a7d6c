"""Read a catalogue: which kernels of an operator exist on which arch, and with which tiles.

A catalogue is a TOML file:

    operator = "gemm_aquant"
    variants = ["fp8", "bf8"]               # of every family and arch

    [layouts]                               # layouts of each family
    decode = ["rcr", "rrr", "crr", "ccr"]

    [[geometry]]                            # one tile; every (arch, family) pair has at least one
    archs = ["generic"]
    families = ["decode"]
    tile = [16, 64, 256]                    # m, n, k
    warps = [1, 4, 1]
    warp_tile = [16, 16]                    # m, n; k follows from the arch
    out = ["f16"]                           # optional

The third number of the warp tile is never written: the arch's instruction decides it.
"""

from __future__ import annotations

import difflib
import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gemmill.arch import ARCHS, find_arch
from gemmill.errors import ArgumentError
from gemmill.layout import LAYOUTS
from gemmill.variant import OUTPUTS, VARIANTS

from kernels.config import FAMILIES, KernelConfig, derive_warp_tile_k, find_family

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

DEFAULT = Path(__file__).parent / "catalogue" / "gemm_aquant.toml"

_TOP_KEYS = ("operator", "variants", "layouts", "geometry")
_GEOMETRY_KEYS = ("archs", "families", "tile", "warps", "warp_tile", "out")


class CatalogueError(ArgumentError):
    """A catalogue file is wrong; the text names file, key, value and what is accepted."""


@dataclass(frozen=True)
class Geometry:
    """One tile and who uses it."""

    archs: tuple[str, ...]
    families: tuple[str, ...]
    tile: tuple[int, int, int]
    warps: tuple[int, int, int]
    warp_tile: tuple[int, int]
    out: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """A validated catalogue."""

    path: Path
    operator: str
    variants: tuple[str, ...]
    layouts: dict[str, tuple[str, ...]]
    geometry: tuple[Geometry, ...]

    @property
    def archs(self) -> tuple[str, ...]:
        """Archs that it has kernels for, in the order of the arch table."""
        named = {arch for row in self.geometry for arch in row.archs}
        return tuple(arch for arch in ARCHS if arch in named)

    def configs(
        self,
        arch: str,
        variant: str | Iterable[str] | None = None,
        family: str | Iterable[str] | None = None,
        layout: str | Iterable[str] | None = None,
        out: str | Iterable[str] | None = "f16",
    ) -> list[KernelConfig]:
        """Return the kernels of an arch, by family, variant, layout and tile.

        Parameters
        ----------
        arch : str
        variant, family, layout, out : str or iterable of str, optional
            Only these. None takes all; `out` is f16 alone unless said otherwise.

        Raises
        ------
        ArgumentError
            For a name that no table has, or that this catalogue has no kernels for.
        """
        arch = find_arch(arch).name
        if arch not in self.archs:
            raise ArgumentError(f"{self.path} has no kernels for {arch}: it has some for {', '.join(self.archs)}")
        variants = _select("variant", variant, self.variants)
        families = _select("family", family, tuple(self.layouts))
        layouts = _select("layout", layout, tuple(LAYOUTS))
        outs = _select("out", out, tuple(OUTPUTS))
        return [
            KernelConfig(
                arch=arch,
                variant=one_variant,
                layout=one_layout,
                family=one_family,
                tile=row.tile,
                warps=row.warps,
                warp_tile=(*row.warp_tile, derive_warp_tile_k(ARCHS[arch], FAMILIES[one_family], row.tile[2])),
                out=one_out,
                operator=self.operator,
            )
            for one_family in families
            for one_variant in variants
            for one_layout in self.layouts[one_family]
            if one_layout in layouts
            for row in self.geometry
            if arch in row.archs and one_family in row.families
            for one_out in row.out
            if one_out in outs
        ]


def load_catalogue(path: str | Path = DEFAULT) -> Catalogue:
    """Read and validate a catalogue.

    Raises
    ------
    CatalogueError
        If the file can't be read or anything in it is wrong.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise CatalogueError(f"failed to read catalogue {path}: {error.strerror}") from None
    except ValueError as error:  # TOML errors carry line and column; so do those of UTF-8, as a byte offset
        raise CatalogueError(f"{path} is not TOML: {error}") from None
    return _Reader(path).catalogue(data)


def _select(label: str, wanted: str | Iterable[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if wanted is None:
        return known
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in names:
        if name not in known:
            raise ArgumentError(f"unknown {label} {name!r}: known are {', '.join(known)}")
    return tuple(name for name in known if name in names)


class _Reader:
    """Turns parsed TOML into a Catalogue, or says what is wrong where."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def catalogue(self, data: dict[str, Any]) -> Catalogue:
        self.keys("", data, _TOP_KEYS, required=_TOP_KEYS)
        if data["operator"] != "gemm_aquant":
            self.fail("operator", data["operator"], "gemm_aquant")
        layouts = data["layouts"]
        if not isinstance(layouts, dict) or not layouts:
            self.fail("layouts", layouts, "a table of family = [layouts]")
        self.keys("layouts.", layouts, tuple(FAMILIES))
        rows = data["geometry"]
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            self.fail("geometry", rows, "one or more [[geometry]] tables")
        catalogue = Catalogue(
            path=self.path,
            operator=data["operator"],
            variants=self.names("variants", data["variants"], tuple(VARIANTS)),
            layouts={
                family: self.names(f"layouts.{family}", value, self.accepted_layouts(family))
                for family, value in layouts.items()
            },
            geometry=tuple(self.geometry(f"geometry[{i}].", row, tuple(layouts)) for i, row in enumerate(rows)),
        )
        self.check_whole(catalogue)
        return catalogue

    def geometry(self, where: str, row: dict[str, Any], families: tuple[str, ...]) -> Geometry:
        self.keys(where, row, _GEOMETRY_KEYS, required=_GEOMETRY_KEYS[:-1])
        tile, warps = self.numbers(where + "tile", row["tile"], 3), self.numbers(where + "warps", row["warps"], 3)
        warp_tile = self.numbers(where + "warp_tile", row["warp_tile"], 2)
        return Geometry(
            archs=self.names(where + "archs", row["archs"], tuple(ARCHS)),
            families=self.names(where + "families", row["families"], families),
            tile=(tile[0], tile[1], tile[2]),
            warps=(warps[0], warps[1], warps[2]),
            warp_tile=(warp_tile[0], warp_tile[1]),
            out=self.names(where + "out", row.get("out", ["f16"]), tuple(OUTPUTS)),
        )

    def check_whole(self, catalogue: Catalogue) -> None:
        """Refuse geometries that no kernel can have, pairs without one, and two that make the same kernel."""
        seen: dict[str, int] = {}
        for i, row in enumerate(catalogue.geometry):
            for arch, family, out in itertools.product(row.archs, row.families, row.out):
                where = f"{self.path}: geometry[{i}], {arch}, {family}"
                k = derive_warp_tile_k(ARCHS[arch], FAMILIES[family], row.tile[2])
                variant, layout, warp_tile = catalogue.variants[0], catalogue.layouts[family][0], (*row.warp_tile, k)
                try:
                    config = KernelConfig(arch, variant, layout, family, row.tile, row.warps, warp_tile, out)
                except ArgumentError as error:
                    raise CatalogueError(f"{where}: {error}") from None
                if config.id in seen:
                    raise CatalogueError(f"{where}: repeats geometry[{seen[config.id]}]: {config.name}")
                seen[config.id] = i
        pairs = {(arch, family) for row in catalogue.geometry for arch in row.archs for family in row.families}
        for arch in catalogue.archs:
            for family in catalogue.layouts:
                if (arch, family) not in pairs:
                    raise CatalogueError(f"{self.path}: no [[geometry]] has {arch} with {find_family(family).name}")

    def accepted_layouts(self, family: str) -> tuple[str, ...]:
        # The shuffle is defined on a row-major AQ.
        return tuple(row.name for row in LAYOUTS.values() if not (FAMILIES[family].preshuffle and row.aq_col))

    def keys(
        self, where: str, table: dict[str, Any], accepted: tuple[str, ...], required: tuple[str, ...] = ()
    ) -> None:
        for key in table:
            if key not in accepted:
                near = difflib.get_close_matches(key, accepted, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise CatalogueError(
                    f"{self.path}: unknown key {where + key!r}{hint}; accepted are {', '.join(accepted)}"
                )
        for key in required:
            if key not in table:
                raise CatalogueError(f"{self.path}: key {where + key!r} is missing")

    def names(self, key: str, value: Any, accepted: tuple[str, ...]) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            self.fail(key, value, f"a list of one or more of {', '.join(accepted)}")
        for i, name in enumerate(value):
            if name not in accepted:
                self.fail(f"{key}[{i}]", name, ", ".join(accepted))
            if name in value[:i]:
                raise CatalogueError(f"{self.path}: {key} names {name!r} twice")
        return tuple(value)

    def numbers(self, key: str, value: Any, count: int) -> list[int]:
        if not isinstance(value, list) or len(value) != count or not all(type(x) is int and x > 0 for x in value):
            self.fail(key, value, f"a list of {count} positive integers")
        return list(value)

    def fail(self, key: str, value: Any, accepted: str) -> NoReturn:
        raise CatalogueError(f"{self.path}: {key} = {value!r}: accepted is {accepted}")
