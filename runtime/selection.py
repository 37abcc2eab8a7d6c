"""Which of an arch's kernels is fastest for a problem: by measurements near it, else by an estimate.

``tables/ARCH.json`` holds what was measured (bench/make_selection.py writes it):

    {"schema": 1, "arch": "sm_90a", "measured": {"date": ..., "card": ..., ...},
     "rows": [{"variant": "fp8", "layout": "rcr", "m": 16, "n": 4096, "k": 4096, "us": {SCHEDULE: 7.0, ...}}, ...]}

A schedule is a kernel's name without variant, layout and output type. Each row stands for a class of shapes, those that
are nearer to it than to any other; the kernels of the row come first, fastest first, then the others by the estimate.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2
from pathlib import Path
from typing import Any

from gemmill.errors import CorruptObject
from gemmill.variant import INT4, find_variant

SCHEMA = 1

Shape = tuple[int, int, int]

# What the estimate knows of a device: multiprocessors, products a clock and bytes from L2 a clock, each of one.
_MULTIPROCESSORS, _PRODUCTS, _BYTES = 132, 4096, 40

# How far a row's class reaches, in doublings of M, N and K, and what a doubling counts. M weighs most: it decides
# between tiles. K is the length of every tile's loop and hardly does.
_REACH = (1.5, 2.5, 2.5)
_WEIGHT = (2.0, 1.0, 0.5)
_ROWS = 16  # no tile is lower


@dataclass(frozen=True)
class Row:
    """Times of kernels at one shape, µs by schedule, fastest first."""

    variant: str
    layout: str
    shape: Shape
    times: Mapping[str, float] = field(hash=False)

    def __str__(self) -> str:
        return f"M, N, K = {', '.join(map(str, self.shape))} ({self.variant}, {self.layout})"


@dataclass(frozen=True)
class Table:
    """The measurements of one arch; `measured` says when and on what."""

    arch: str
    measured: Mapping[str, Any]
    rows: tuple[Row, ...]

    def nearest(self, variant: str, layout: str, shape: Shape) -> Row | None:
        """Return the row whose class a problem belongs to: of its layout, and of its variant or one like it."""
        best: tuple[tuple[float, ...], Row] | None = None
        int4 = find_variant(variant).a == INT4
        for row in self.rows:
            if row.layout == layout and (find_variant(row.variant).a == INT4) == int4:
                distance = _distance(row.shape, shape)
                if distance is not None:
                    # At equal distance the variant's own row, then the larger M, whose tiles hold the problem.
                    key = (distance, row.variant != variant, -row.shape[0])
                    if best is None or key < best[0]:
                        best = key, row
        return best[1] if best else None


@dataclass(frozen=True)
class Ranking:
    """The order in which one arch's kernels are preferred for one problem.

    Attributes
    ----------
    arch : str
    shape : (int, int, int)
        M, N, K.
    row : Row or None
        The measurements it follows; None where none are near.
    """

    arch: str
    shape: Shape
    row: Row | None

    def time(self, name: str) -> float | None:
        """Return what the kernel of this name took at the row's shape, in µs; None where it was not measured."""
        return self.row.times.get(schedule_of(name)) if self.row else None

    def key(self, name: str, tile: Any) -> tuple[Any, ...]:
        """Return what kernels are sorted by: measured ones by time, others after them by the estimate."""
        time = self.time(name)
        return (0, time, name) if time is not None else (1, estimate(tile, self.shape), name)


def rank(arch: str, variant: str, layout: str, shape: Shape) -> Ranking:
    """Return the ranking of an arch's kernels of one variant and layout for a problem (M, N, K)."""
    table = load_table(arch)
    return Ranking(arch, shape, table.nearest(variant, layout, shape) if table else None)


def estimate(tile: Any, shape: Shape) -> float:
    """Return roughly the clocks a k that a tile's kernel takes: waves of tiles, each bound by products or bytes."""
    tm, tn, _ = tile
    m, n, _ = shape
    waves = -(-(-(-m // tm) * -(-n // tn)) // _MULTIPROCESSORS)
    return float(waves * max(tm * tn / _PRODUCTS, (tm + tn) / _BYTES))


def schedule_of(name: str) -> str:
    """Return a kernel's name without operator, variant, layout and output type."""
    return name.split("_", 4)[4].partition("_out")[0]


def _distance(row: Shape, shape: Shape) -> float | None:
    """Return how far a shape is from a row's; None where it is out of reach."""
    total = 0.0
    for i, (theirs, ours) in enumerate(zip(row, shape, strict=True)):
        if i == 0:
            theirs, ours = -(-theirs // _ROWS), -(-ours // _ROWS)
        steps = abs(log2(ours / theirs))
        if steps > _REACH[i]:
            return None
        total += _WEIGHT[i] * steps
    return total


@functools.cache
def load_table(arch: str) -> Table | None:
    """Return the table of an arch that comes with this package; None where nothing was measured."""
    path = Path(__file__).with_name("tables") / f"{arch}.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return read_table(text, str(path))


def read_table(text: str, where: str) -> Table:
    """Return the table that a text holds; CorruptObject names `where` if it is none."""
    try:
        found = json.loads(text)
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']}: this gemmill reads {SCHEMA}")
        rows = tuple(_read_row(row) for row in found["rows"])
        return Table(str(found["arch"]), dict(found["measured"]), rows)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObject(f"{where} is no selection table: {type(error).__name__}: {error}") from None


def _read_row(row: Mapping[str, Any]) -> Row:
    m, n, k = (int(row[name]) for name in "mnk")
    times = {str(name): float(time) for name, time in row["us"].items()}
    if min(m, n, k) < 1 or not times or not min(times.values()) > 0:
        raise ValueError(f"a row needs a shape and times above 0: {row}")
    find_variant(row["variant"])
    return Row(row["variant"], row["layout"], (m, n, k), dict(sorted(times.items(), key=lambda item: item[1])))
