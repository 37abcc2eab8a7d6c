"""Time gemm_aquant on a Hopper GPU beside cuBLASLt and Triton, in one run.

    python bench/sm_90a.py [--cache DIR] [--json FILE] [--match 'fp8/rcr/*']... [--seconds 150] [--full]
    python bench/sm_90a.py --list | --show FILE

Needs PyTorch with CUDA, and a cache with sm_90a kernels, tested or not; Triton is optional. Times are µs a call: inputs
rotated through several times the level-2 cache inside a CUDA graph, median of 20 replays, every result checked against
float32 arithmetic. The JSON file is written again after each case, so that an interrupted run leaves what it had.
What fails is recorded, and the rest goes on. bench/plot_sm_90a.py draws the file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from hopper import ROOT
from hopper.cases import GOALS, Case, all_cases, parse_shape, select
from hopper.results import Report, Row
from hopper.tables import PEERS, all_tables


class Timer(Protocol):
    """What measures: hopper.device.Device, or a test's stand-in."""

    def measure(self, case: Case) -> list[Row]: ...
    def numerics(self) -> list[dict[str, Any]]: ...
    def machine(self) -> dict[str, Any]: ...
    def clocks(self) -> dict[str, Any]: ...
    def method(self) -> dict[str, Any]: ...


def run(
    timer: Timer, cases: Sequence[Case], json: Path, seconds: float, numerics: bool = True, begin: float | None = None
) -> Report:
    """Measure the cases until they or the time, counted from `begin`, are used up; keep the file up to date.

    Raises
    ------
    DeviceLost
        If the GPU can't be used any more; what was measured is in the file.
    """
    begin = time.monotonic() if begin is None else begin
    report = Report(datetime.now(timezone.utc).isoformat(timespec="seconds"), timer.machine(), timer.method())
    report.skipped = [case.label for case in cases]
    if numerics:
        report.numerics = timer.numerics()
    longest = 0.0
    for done, case in enumerate(cases, 1):
        at = time.monotonic() - begin
        # The next case may take as long as the longest so far.
        if at + longest > seconds:
            print(f"{at:6.1f} s  no time left for {len(cases) - done + 1} cases", flush=True)
            break
        report.rows += timer.measure(case)
        report.skipped.remove(case.label)
        report.seconds = round(time.monotonic() - begin, 1)
        longest = max(longest, report.seconds - at)
        report.save(json)
        print(f"{report.seconds:6.1f} s  {case.label:<26} {_summary(report, case)}", flush=True)
    report.machine |= {"at_the_end": timer.clocks()}
    report.seconds = round(time.monotonic() - begin, 1)
    report.save(json)
    return report


def _summary(report: Report, case: Case) -> str:
    parts = []
    if best := report.best(case):
        parts.append(f"{best.us:8.2f} {'x'.join(map(str, (best.tile or [])[:2]))}")
    parts += [f"{peer} {found.us:.2f}" for peer in PEERS if (found := report.best(case, peer))]
    failed = sum(row.case == case and row.error is not None for row in report.rows)
    return ", ".join(parts + ([f"{failed} failed"] if failed else []))


def main() -> int:
    """Measure, and print the tables; 1 where nothing of ours could be timed or the device was lost."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=ROOT / "cache", help="the cache of kernels (default: cache/)")
    parser.add_argument("--json", type=Path, default=Path("sm_90a.json"), help="where the measurements go")
    parser.add_argument("--match", action="append", default=[], metavar="PATTERN", help="cases: VARIANT/LAYOUT/MxNxK")
    parser.add_argument(
        "--shape", action="append", default=[], type=parse_shape, metavar="MxNxK", help="further shapes"
    )
    parser.add_argument("--seconds", type=float, default=150, help="start no case that would end later (default: 150)")
    parser.add_argument("--full", action="store_true", help="every variant in every layout, for a selection table")
    parser.add_argument("--no-peers", action="store_true", help="time gemmill alone")
    parser.add_argument("--no-numerics", action="store_true", help="leave out the error against float64")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the tables of an earlier run's JSON file")
    parser.add_argument("--list", action="store_true", help="print the cases that would be timed")
    options = parser.parse_args()
    if options.show:
        print(all_tables(Report.load(options.show)))
        return 0
    cases = select(all_cases([*GOALS, *options.shape], options.full), options.match)
    if not cases:
        parser.error(f"no case matches {' '.join(options.match)}: they look like fp8/rcr/16x4096x4096")
    if options.list:
        print(*(case.label for case in cases), sep="\n")
        return 0

    from hopper.device import Device, DeviceLost

    try:
        timer = Device(options.cache, not options.no_peers)
        report = run(timer, cases, options.json, options.seconds, not options.no_numerics, begin)
    except DeviceLost as error:
        print(f"the device is lost: {error}; {options.json} has what was measured (--show)", file=sys.stderr)
        return 1
    print(f"\n{report.date}, {report.machine.get('card')}, {report.seconds} s\n\n{all_tables(report)}")
    return 0 if any(row.kernel and row.us for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
