"""The measurements as data: one row a contender and case, and the file that holds them.

A file is a JSON object:

    schema     1
    date       ISO 8601, UTC
    machine    card, driver, clocks, power limit, versions
    method     how it was timed
    rows       [Row, ...]
    numerics   [{"data", "who", "error", "worst"}, ...]
    skipped    labels of cases that the time limit left out
    seconds    of the whole run
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hopper.cases import Case

SCHEMA = 1
ARCH = "sm_90a"


@dataclass(frozen=True)
class Row:
    """One contender at one case.

    Attributes
    ----------
    kernel, peer : str or None
        A kernel's name, or else what it is compared with; `detail` is the peer's tile or the kernel's family.
    us : float or None
        Median µs a call; None where it failed, and `error` says why.
    low, high : float or None
        The fastest and the slowest replay, µs a call.
    replays, calls : int
        How many replays of a graph of how many calls. Contenders far from the best one are replayed less often.
    deviation : float or None
        Relative to the result of float32 arithmetic: norm of the difference over norm of the result.
    """

    arch: str
    variant: str
    layout: str
    m: int
    n: int
    k: int
    kernel: str | None = None
    peer: str | None = None
    detail: str = ""
    tile: list[int] | None = None
    us: float | None = None
    low: float | None = None
    high: float | None = None
    replays: int = 0
    calls: int = 0
    deviation: float | None = None
    error: str | None = None

    @property
    def case(self) -> Case:
        return Case(self.variant, self.layout, self.m, self.n, self.k)


@dataclass
class Report:
    """All of a run."""

    date: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    numerics: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n")
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read a file that `save` wrote; ValueError where it is something else."""
        data = json.loads(path.read_text())
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"{path} holds no measurements of schema {SCHEMA}")
        given = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        given["rows"] = [Row(**row) for row in given.get("rows", [])]
        return cls(**given)

    def best(self, case: Case, peer: str | None = None, shuffled: bool = False) -> Row | None:
        """Return the fastest row of a case: of gemmill's kernels, or of one peer.

        `shuffled` asks for the kernels that read a preshuffled AQ, which are no alternative to the others.
        """
        found = [row for row in self.of(case, peer) if is_shuffled(row) == shuffled]
        return min(found, key=lambda row: row.us or 0, default=None)

    def of(self, case: Case, peer: str | None = None) -> Iterable[Row]:
        """Return the rows of a case that have a time."""
        return (row for row in self.rows if row.case == case and row.peer == peer and row.us)


def is_shuffled(row: Row) -> bool:
    """Tell whether a row is of a kernel that reads a preshuffled AQ."""
    return row.kernel is not None and "_preshufflequant" in row.kernel
