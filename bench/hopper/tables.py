"""The measurements as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hopper.cases import GOALS, INT4_VARIANTS, LARGE_M, OTHER_LAYOUTS, Case
from hopper.results import Report, Row

# Of the peers that run beside us: what the table calls them.
PEERS = {"cublaslt": "cuBLASLt, one scale", "cublaslt_block": "cuBLASLt block-scaled", "triton": "Triton"}


def all_tables(report: Report) -> str:
    """Return every table that the measurements fill."""
    parts = [
        ("fp8, rcr, µs a call", peers_table(report)),
        ("bf8 and int4 A, rcr: µs, and time relative to fp8", variants_table(report)),
        ("Layouts, fp8: µs, and time relative to rcr", layouts_table(report)),
        ("Preshuffled AQ, µs", shuffled_table(report)),
        ("Error against float64", numerics_table(report)),
        ("Not measured", failures(report)),
    ]
    return "\n\n".join(f"**{title}**\n\n{text}" for title, text in parts if text)


def peers_table(report: Report) -> str:
    """Return the shapes with goals: our best kernel, the peers of the same run, goals, and the ratio to each."""
    lines = []
    for shape, goal in GOALS.items():
        case = Case("fp8", "rcr", *shape)
        mine = report.best(case)
        peers = [report.best(case, peer) for peer in PEERS]
        if mine is None and not any(peers):
            continue
        beside = [_beside(peer, mine) for peer in peers]
        figures = [f"{goal.deepgemm:g}", f"{goal.goal:g}", _verdict(mine, goal.goal)]
        lines.append([_shape(case), _time(mine), _tile(mine), *beside, *figures])
    head = ["M, N, K", "gemmill", "tile", *PEERS.values(), "DeepGEMM 2.6, published", "goal", ""]
    return _table(head, lines)


def variants_table(report: Report) -> str:
    """Return the other variants' best times beside fp8's."""
    variants = ("bf8", *INT4_VARIANTS)
    lines = []
    for case in _cases(report, "fp8", "rcr"):
        others = [report.best(Case(variant, "rcr", *case.shape)) for variant in variants]
        if any(others):
            base = report.best(case)
            lines.append([_shape(case), _time(base), *(_ratio(other, base) for other in others)])
    return _table(["M, N, K", "fp8", *variants], lines)


def layouts_table(report: Report) -> str:
    """Return the other layouts' best times beside those of rcr, for many rows."""
    lines = []
    for case in _cases(report, "fp8", "rcr"):
        others = [report.best(Case("fp8", layout, *case.shape)) for layout in OTHER_LAYOUTS]
        if case.m >= LARGE_M and any(others):
            base = report.best(case)
            lines.append([_shape(case), _time(base), *(_ratio(other, base) for other in others)])
    return _table(["M, N, K", "rcr", *OTHER_LAYOUTS], lines)


def shuffled_table(report: Report) -> str:
    """Return the best times with a preshuffled AQ beside those without."""
    lines = []
    for case in _cases(report, "fp8", "rcr"):
        if shuffled := report.best(case, shuffled=True):
            lines.append([_shape(case), _ratio(shuffled, report.best(case)), _tile(shuffled)])
    return _table(["M, N, K", "fp8, rcr", "tile"], lines)


def numerics_table(report: Report) -> str:
    """Return the errors against float64: of the norm, and of the worst element relative to the largest result."""
    lines = [
        [str(row["data"]), str(row["who"]), f"{row['error']:.2e}", f"{row['worst']:.2e}"]
        for row in report.numerics
        if row.get("error") is not None
    ]
    return _table(["operands", "", "error of the norm", "worst element"], lines)


def failures(report: Report) -> str:
    """Return what failed, each reason once, and what the time limit left out."""
    count: dict[tuple[str, str], list[str]] = {}
    for row in report.rows:
        if row.error:
            count.setdefault((row.kernel or row.peer or "", row.error.splitlines()[0][:300]), []).append(row.case.label)
    lines = [f"- {who}, {len(labels)} cases ({labels[0]} first): {text}" for (who, text), labels in count.items()]
    if report.skipped:
        lines.append(f"- no time was left for {len(report.skipped)} cases, from {report.skipped[0]} on")
    return "\n".join(lines)


def _cases(report: Report, variant: str, layout: str) -> Iterable[Case]:
    found = (row.case for row in report.rows)
    return dict.fromkeys(Case(variant, layout, *case.shape) for case in found)


def _us(row: Row) -> float:
    assert row.us is not None
    return row.us


def _digits(us: float) -> str:
    return f"{us:.0f}" if us >= 200 else f"{us:.1f}" if us >= 20 else f"{us:.2f}"


def _time(row: Row | None) -> str:
    return _digits(_us(row)) if row else ""


def _tile(row: Row | None) -> str:
    return "x".join(map(str, row.tile[:2])) if row and row.tile else ""


def _verdict(row: Row | None, goal: float) -> str:
    if row is None:
        return "not measured"
    return "reached" if _us(row) <= goal else f"missed, x{_us(row) / goal:.2f}"


def _beside(peer: Row | None, mine: Row | None) -> str:
    """Return a peer's time, and how many times ours it is."""
    if peer is None or mine is None:
        return _time(peer)
    return f"{_time(peer)} (x{_us(peer) / _us(mine):.2f})"


def _ratio(row: Row | None, base: Row | None) -> str:
    """Return a time, and how many times the base's it is."""
    if row is None or base is None:
        return _time(row)
    return f"{_time(row)} (x{_us(row) / _us(base):.2f})"


def _shape(case: Case) -> str:
    return ", ".join(map(str, case.shape))


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
