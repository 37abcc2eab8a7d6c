"""Generators of the device tests: problems with one right answer, and how their operands are stored.

Integers of magnitude 8 or less, with scales that are powers of two: a group's sum stays within the bits that the
matrix instruction keeps, and sums over groups within float32's, in any order. So C is the exact sum rounded once, and
is compared bit by bit; one product in float64 serves every layout, tile and entry of a variant.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gemmill.dtypes import kind_dtype, output_dtype
from gemmill.layout import GROUP_K, Layout, find_layout, groups, packed_strides
from gemmill.operands import pack_codes, shuffled
from gemmill.variant import INT4, find_variant

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

ROWS = (1, 3, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 1000)
_LEAST_EXPONENT = -7  # of a scale: e4m3, the coarsest type of AQ, has 2^-7 to 1 exactly
_NAN_BYTE = 0xFF  # a byte of which every float type makes NaN


@dataclass(frozen=True)
class Problem:
    """Operands as stored codes, and the exact product.

    Attributes
    ----------
    a, b : numpy.ndarray
        Codes, uint8: [M, K] and [K, N]; int4 ones are 0..15.
    aq : numpy.ndarray
        AQ [M, QK], float32 or fp8 codes (uint8).
    exact : numpy.ndarray
        C [M, N], float64.
    """

    a: Array
    b: Array
    aq: Array
    exact: Array

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]

    def rows(self, m: int) -> Problem:
        """Return the problem with the first m rows of A."""
        return Problem(self.a[:m], self.b, self.aq[:m], self.exact[:m])


@dataclass(frozen=True)
class Case:
    """One way to call: a shape, how far lines lie apart, how far bases are from alignment.

    Attributes
    ----------
    m, n, k : int
    lines : str
        ``packed``; ``aligned``: leading dimensions that the copy engine takes; ``odd``: odd ones beyond the packed.
    shift : int
        Elements (bytes of A and B) between an aligned address and each base.
    """

    m: int
    n: int
    k: int
    lines: str = "packed"
    shift: int = 0

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self.lines}{f'+{self.shift}' if self.shift else ''}"


# (N, K, lines): single elements; tails for both entries; whole tiles; long prime K, which is split; many columns.
COLUMNS = (
    (1, 1, "packed"),
    (61, 127, "odd"),
    (193, 523, "aligned"),
    (256, 512, "packed"),
    (97, 2053, "aligned"),
    (1021, 131, "aligned"),
)


def shape_cases(brief: bool = False) -> list[Case]:
    """Return the shapes that every kernel is tried with; `brief` ones need a tenth of the time."""
    cases = [Case(m, n, k, lines) for n, k, lines in COLUMNS for m in ((1, 17, 129) if brief else ROWS)]
    cases += [Case(m, 131, 260, lines, shift) for m in (1, 17, 130) for lines, shift in (("packed", 1), ("odd", 1))]
    # More tiles than blocks are resident, so that a block goes on to a second tile.
    cases += [] if brief else [Case(2000, 4097, 259, "aligned")]
    return [*cases, Case(5, 70, 0), Case(0, 5, 7), Case(5, 0, 7)]


@functools.lru_cache(maxsize=64)
def _whole(variant: str, m: int, n: int, k: int, seed: int) -> Problem:
    kinds = find_variant(variant)
    rng = np.random.default_rng([seed, n, k])
    low, high = (-8, 7) if kinds.a == INT4 else (-8, 8)
    a, b = rng.integers(low, high + 1, (m, k)), rng.integers(-8, 9, (k, n))
    exponents = rng.integers(_LEAST_EXPONENT, 1, (m, groups(k)))
    exact, magnitude = np.zeros((m, n)), np.zeros((m, n))
    for g in range(groups(k)):
        part = slice(g * GROUP_K, (g + 1) * GROUP_K)
        term = np.exp2(exponents[:, g : g + 1]) * (a[:, part].astype(np.float64) @ b[part].astype(np.float64))
        exact += term
        magnitude += np.abs(term)
    assert magnitude.max(initial=0) < 2.0 ** (24 + _LEAST_EXPONENT), "sums beyond float32's bits: choose a smaller K"
    return Problem(
        encode(kinds.a, a), encode(kinds.b, b), encode(kinds.aq, np.exp2(exponents.astype(np.float32))), exact
    )


def problem(variant: str, m: int, n: int, k: int, seed: int = 0) -> Problem:
    """Return the exact problem of a variant; those of the same N and K share their operands and product."""
    most = next((rows for rows in (300, max(ROWS)) if m <= rows), m)
    return _whole(variant, most, n, k, seed).rows(m)


def encode(kind: str, values: Array) -> Array:
    """Return the codes of values that a kind holds exactly."""
    if kind == INT4:
        return (values + 8).astype(np.uint8)
    if kind == "f32":
        return values.astype(np.float32)
    codes = values.astype(np.float32).astype(kind_dtype(kind, "ocp"))
    assert np.array_equal(codes.astype(np.float32), values)
    return codes.view(np.uint8)


def expected(exact: Array, out: str) -> Array:
    """Return C as it must come: the exact sum, rounded once to the output type."""
    return exact.astype(np.float32).astype(output_dtype(out))


@dataclass(frozen=True)
class Stored:
    """Operands in storage order, and the leading dimensions of the call, in elements."""

    a: Bytes
    aq: Bytes
    b: Bytes
    lda: int
    ldaq: int
    ldb: int
    ldc: int


class Storing(Protocol):
    """What decides how operands are stored."""

    config: dict[str, Any]
    preshuffle: bool


def store(kernel: Storing, p: Problem, lines: str) -> Stored:
    """Store a problem's operands as a kernel's device-pointer entry takes them; gaps hold NaN, or int4 code 15."""
    m, n, k = p.shape
    layout, kinds = layout_of(kernel), find_variant(kernel.config["variant"])
    packed = packed_strides(layout, m, n, k)
    aq, aq_col, ldaq = p.aq, layout.aq_col, packed.aq
    if kernel.preshuffle:
        per_tile = kernel.config["tile"][2] // GROUP_K
        tiles = shuffled(aq, per_tile)
        aq, aq_col, ldaq = tiles.reshape(tiles.shape[0], m * per_tile), False, m * per_tile
    lda, ldb, ldc = (spaced(x, lines, 32) for x in (packed.a, packed.b, packed.c))
    ldaq = spaced(ldaq, lines, 4)
    return Stored(
        _lines(p.a, kinds.a, layout.a_col, lda),
        _lines(aq, kinds.aq, aq_col, ldaq),
        _lines(p.b, kinds.b, layout.b_col, ldb),
        *(lda, ldaq, ldb, ldc),
    )


def spaced(length: int, lines: str, multiple: int) -> int:
    """Return a leading dimension for lines of `length` elements."""
    if lines == "aligned":
        return (length // multiple + 1) * multiple
    return length + 3 + length % 2 if lines == "odd" else length


def layout_of(kernel: Storing) -> Layout:
    """Return the row of a kernel's layout."""
    return find_layout(kernel.config["layout"])


def _lines(codes: Array, kind: str, column: bool, leading: int) -> Bytes:
    matrix = codes.T if column else codes
    outer, inner = matrix.shape
    if not outer or not inner:
        return np.empty(0, np.uint8)
    filler: Any = np.nan if kind == "f32" else 15 if kind == INT4 else _NAN_BYTE
    flat = np.full((outer, leading), filler, codes.dtype)
    flat[:, :inner] = matrix
    flat = flat.reshape(-1)[: (outer - 1) * leading + inner]
    return pack_codes(flat) if kind == INT4 else np.ascontiguousarray(flat).view(np.uint8)
