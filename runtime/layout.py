"""The layout table: where every operand's elements lie, for the C side and for Python.

A layout is three letters for A, B and C: ``r`` row-major, ``c`` column-major; C is always ``r``.
The template passes the four booleans of a row to the C source, so both sides follow this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmill.errors import ArgumentError

GROUP_K = 128  # consecutive k that share one scale


@dataclass(frozen=True)
class Layout:
    """Storage order of each operand of one layout; True means column-major."""

    name: str
    a_col: bool
    b_col: bool
    aq_col: bool


LAYOUTS: dict[str, Layout] = {
    row.name: row
    for row in (
        Layout("rcr", a_col=False, b_col=True, aq_col=False),
        Layout("rrr", a_col=False, b_col=False, aq_col=False),
        Layout("crr", a_col=True, b_col=False, aq_col=False),
        # Only ccr stores AQ column-major, leading dimension M.
        Layout("ccr", a_col=True, b_col=True, aq_col=True),
    )
}


def find_layout(name: str) -> Layout:
    """Return the layout called `name`, or raise ArgumentError with the list of those that exist."""
    try:
        return LAYOUTS[name]
    except KeyError:
        raise ArgumentError(f"unknown layout {name!r}: known layouts are {', '.join(LAYOUTS)}") from None


@dataclass(frozen=True)
class Strides:
    """Packed leading dimensions, in elements."""

    a: int
    aq: int
    b: int
    c: int


def groups(k: int) -> int:
    """Return QK = ceil(k / 128): how many scales a row of A has; the last group may be short."""
    return -(-k // GROUP_K)


def packed_strides(layout: Layout, m: int, n: int, k: int) -> Strides:
    """Return the packed leading dimensions of A [m,k], AQ [m,QK], B [k,n] and C [m,n]."""
    return Strides(
        a=m if layout.a_col else k,
        aq=m if layout.aq_col else groups(k),
        b=k if layout.b_col else n,
        c=n,
    )


def int4_bytes(m: int, k: int) -> int:
    """Return the size in bytes of a packed int4 A [m,k]: two elements a byte, the last may be half used."""
    return (m * k + 1) // 2


def preshuffled_tiles(k: int, tile_k: int) -> tuple[int, int]:
    """Return (T, b) of a preshuffled AQ, whose storage is (T, M, b): b groups a tile, T tiles."""
    b = tile_k // GROUP_K
    return -(-groups(k) // b), b
