"""Draw what bench/sm_90a.py measured: a roofline, and bars beside the peers.

    python bench/plot_sm_90a.py sm_90a.json [--out DIR]

Writes DIR/sm_90a_roofline.png and DIR/sm_90a_bars.png. Needs matplotlib (the extra `bench`), and no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopper.cases import GOALS, INT4_VARIANTS, Case
from hopper.results import Report
from hopper.tables import PEERS

# NVIDIA H200 SXM data sheet: dense FP8, and memory.
PEAK_TFLOPS, PEAK_TBS = 1979.0, 4.8

OURS = "gemmill"
_COLOURS = {OURS: "#1f6f43", "cublaslt": "#9a9a9a", "cublaslt_block": "#3f6fb0", "triton": "#c98a2b"}
_SERIES = {"fp8 rcr": ("fp8", "rcr", "o"), "bf8 rcr": ("bf8", "rcr", "s"), "int4 A rcr": (INT4_VARIANTS[0], "rcr", "^")}


def roofline(report: Report, axes: Any) -> int:
    """Draw the best kernels by arithmetic intensity and rate, and return how many there are."""
    drawn = 0
    for label, (variant, layout, marker) in _SERIES.items():
        best = [report.best(Case(variant, layout, *shape)) for shape in GOALS]
        rows = [row for row in best if row and row.us]
        if rows:
            x = [row.case.flops / row.case.bytes for row in rows]
            y = [row.case.flops / (row.us or 1) / 1e6 for row in rows]
            size = 70 if label == "fp8 rcr" else 20  # where points coincide all are seen
            axes.scatter(x, y, size, marker=marker, label=f"{OURS}, {label}", zorder=3)
            drawn += len(rows)
            if label == "fp8 rcr":
                for row, at in zip(rows, zip(x, y, strict=True), strict=True):
                    name = "x".join(map(str, row.case.shape))
                    axes.annotate(name, at, fontsize=6, xytext=(4, -7), textcoords="offset points")
    ridge = PEAK_TFLOPS / PEAK_TBS
    axes.plot([1, ridge, 1e4], [PEAK_TBS, PEAK_TFLOPS, PEAK_TFLOPS], color="black", linewidth=1)
    axes.annotate(
        f"{PEAK_TBS:g} TB/s", (4, 4 * PEAK_TBS), fontsize=8, rotation=38, xytext=(0, 5), textcoords="offset points"
    )
    axes.annotate(f"{PEAK_TFLOPS:g} TFLOP/s", (ridge * 2, PEAK_TFLOPS * 1.1), fontsize=8)
    axes.set(xscale="log", yscale="log", xlim=(1, 1e4), ylim=(1, 4e3))
    axes.set(xlabel="operations a byte that must move", ylabel="TFLOP/s")
    axes.grid(True, which="both", alpha=0.2)
    if drawn:
        axes.legend(fontsize=8, loc="lower right")
    return drawn


def bars(report: Report, axes: Any) -> int:
    """Draw speed relative to cuBLASLt with one scale, by shape, and return how many bars there are."""
    names = [OURS, *PEERS]
    shapes = [shape for shape in GOALS if report.best(Case("fp8", "rcr", *shape), "cublaslt")]
    width, drawn = 0.8 / len(names), 0
    for i, name in enumerate(names):
        at, heights = [], []
        for position, shape in enumerate(shapes):
            case = Case("fp8", "rcr", *shape)
            row, base = report.best(case, None if name == OURS else name), report.best(case, "cublaslt")
            if row and row.us and base and base.us:
                at.append(position + (i - len(names) / 2 + 0.5) * width)
                heights.append(base.us / row.us)
        axes.bar(at, heights, width, label=PEERS.get(name, name), color=_COLOURS[name])
        drawn += len(heights)
    goals = [(report.best(Case("fp8", "rcr", *shape), "cublaslt"), GOALS[shape].goal) for shape in shapes]
    marks = [base.us / goal for base, goal in goals if base and base.us]
    axes.scatter(range(len(marks)), marks, marker="_", color="black", zorder=3, label="goal")
    axes.set_xticks(
        range(len(shapes)), ["x".join(map(str, shape)) for shape in shapes], rotation=40, ha="right", fontsize=7
    )
    axes.set_ylabel("speed, cuBLASLt with one scale = 1")
    axes.axhline(1, color="black", linewidth=0.5)
    axes.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw both plots; 1 where the file holds nothing to draw or matplotlib is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("--out", type=Path, default=Path(), help="the folder for the pictures (default: here)")
    options = parser.parse_args(arguments)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        print(f"{error}: pip install 'gemmill[bench]'", file=sys.stderr)
        return 1
    try:
        report = Report.load(options.json)
    except (OSError, ValueError, TypeError) as error:
        print(error, file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    caption = f"{report.machine.get('card', 'unknown card')}, {report.date[:10]}"
    drawn = 0
    for name, draw in (("roofline", roofline), ("bars", bars)):
        figure = Figure(figsize=(10, 6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        drawn += draw(report, axes)
        figure.supxlabel(caption, fontsize=7, ha="right", x=0.99)
        path = options.out / f"sm_90a_{name}.png"
        figure.savefig(path, dpi=150)
        print(path)
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
