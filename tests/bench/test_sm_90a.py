"""bench/sm_90a.py without a GPU: which cases there are, what the file holds, the tables and the plots."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import plot_sm_90a
import pytest
import sm_90a
from hopper.cases import GOALS, LARGE_M, Case, all_cases, parse_shape, select
from hopper.results import ARCH, Report, Row
from hopper.tables import all_tables, failures, peers_table

from kernels.catalogue import load_catalogue
from kernels.paths import CHECKOUT

SMALL, LARGE = (16, 4096, 4096), (4096, 4096, 4096)
_PEERS = {"cublaslt": 1.1, "cublaslt_block": 1.5, "triton": 2.0}


class FakeTimer:
    """Gives every kernel of the catalogue its goal's time times a factor, and the peers theirs."""

    def __init__(self, factor: float = 1.0, broken: str = "") -> None:
        self.factor, self.broken = factor, broken
        self.measured: list[Case] = []

    def measure(self, case: Case) -> list[Row]:
        self.measured.append(case)
        us = GOALS[case.shape].goal * self.factor
        at = (ARCH, case.variant, case.layout, *case.shape)
        rows = []
        for i, config in enumerate(load_catalogue().configs(ARCH, variant=case.variant, layout=case.layout)):
            if config.name == self.broken:
                rows.append(Row(*at, kernel=config.name, error="DeviceError: it broke\nin two lines"))
            else:
                rows.append(Row(*at, kernel=config.name, tile=list(config.tile), us=us * (1 + i / 100)))
        if (case.variant, case.layout) == ("fp8", "rcr"):
            rows += [Row(*at, peer=peer, us=us * ratio) for peer, ratio in _PEERS.items()]
        return rows

    def numerics(self) -> list[dict[str, Any]]:
        good = {"data": "normal", "who": "gemmill", "error": 2.4e-4, "worst": 1e-4}
        return [good, {"data": "normal", "who": "x", "error": None, "worst": None, "failed": "no"}]

    def machine(self) -> dict[str, Any]:
        return {"card": "a card"}

    def clocks(self) -> dict[str, Any]:
        return {"clocks.sm": "1980 MHz"}

    def method(self) -> dict[str, Any]:
        return {"replays": 20}


def measured(tmp_path: Path, timer: FakeTimer, *patterns: str, seconds: float = 1e9) -> Report:
    return sm_90a.run(timer, select(all_cases(GOALS), patterns), tmp_path / "out.json", seconds)


def test_cases_come_once_and_the_table_first() -> None:
    cases = all_cases(GOALS)
    assert len(set(cases)) == len(cases)
    assert [case.shape for case in cases[: len(GOALS)]] == list(GOALS)
    assert {case.layout for case in cases if case.m < LARGE_M} == {"rcr"}
    full = all_cases(GOALS, full=True)
    assert len(full) == len(set(full)) == 6 * 4 * len(GOALS)
    assert full[: len(cases)] == cases


def test_bytes_and_operations() -> None:
    fp8, int4 = Case("fp8", "rcr", 16, 64, 256), Case("fp8i4", "rcr", 16, 64, 256)
    assert fp8.input_bytes == 16 * 256 + 16 * 2 * 4 + 64 * 256
    assert int4.input_bytes == 16 * 128 + 16 * 2 + 64 * 256
    assert fp8.bytes - fp8.input_bytes == 2 * 16 * 64
    assert fp8.flops == 2 * 16 * 64 * 256


@pytest.mark.parametrize("text", ["16x64", "16x64x0", "axbxc", "1x2x3x4", ""])
def test_shape_must_be_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"shape|int\(\)"):
        parse_shape(text)
    assert parse_shape("16x64x128") == (16, 64, 128)


def test_file_holds_every_row(tmp_path: Path) -> None:
    report = measured(tmp_path, FakeTimer(), "fp8/rcr/*", "bf8/rcr/16x*")
    assert Report.load(tmp_path / "out.json") == report
    assert not report.skipped
    kernels = {config.name for config in load_catalogue().configs(ARCH, variant="fp8", layout="rcr")}
    data = json.loads((tmp_path / "out.json").read_text())
    found = [row for row in data["rows"] if (row["m"], row["n"], row["k"]) == SMALL and row["variant"] == "fp8"]
    assert {row["kernel"] for row in found} == {*kernels, None}
    assert all(row["arch"] == "sm_90a" and row["layout"] == "rcr" and row["us"] > 0 for row in found)
    assert data["machine"]["at_the_end"] == {"clocks.sm": "1980 MHz"}


def test_best_kernel_is_not_a_preshuffled_one(tmp_path: Path) -> None:
    report = measured(tmp_path, FakeTimer(), "fp8/rcr/16x4096x4096")
    case = Case("fp8", "rcr", *SMALL)
    best, shuffled = report.best(case), report.best(case, shuffled=True)
    assert best and best.kernel and "_preshufflequant" not in best.kernel
    assert shuffled and shuffled.kernel and "_preshufflequant" in shuffled.kernel


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "reached"), (1.25, "missed, x1.25")])
def test_table_says_whether_the_goal_is_reached(tmp_path: Path, factor: float, verdict: str) -> None:
    table = peers_table(measured(tmp_path, FakeTimer(factor), "fp8/rcr/16x4096x4096"))
    line = table.splitlines()[-1]
    assert line.startswith("| 16, 4096, 4096 | ")
    assert line.endswith(f"| 8.7 | 6 | {verdict} |")
    assert f"{6 * factor * 1.1:.2f} (x1.10)" in line
    assert table.splitlines()[0].count("|") == line.count("|")


def test_tables_have_ratios_failures_and_errors(tmp_path: Path) -> None:
    broken = load_catalogue().configs(ARCH, variant="bf8", layout="rcr")[0].name
    report = measured(tmp_path, FakeTimer(broken=broken))
    text = all_tables(report)
    assert "x1.00" in text
    assert f"- {broken}, {len(GOALS)} cases (bf8/rcr/1x4096x4096 first): DeviceError: it broke" in text
    assert "in two lines" not in text
    assert "| normal | gemmill | 2.40e-04 | 1.00e-04 |" in text
    heads = [line for line in text.splitlines() if line.startswith("| M, N, K")]
    assert any("| rrr | crr | ccr |" in head for head in heads)


def test_time_limit_leaves_out_the_last_cases(tmp_path: Path) -> None:
    timer = FakeTimer()
    report = measured(tmp_path, timer, "fp8/rcr/*", seconds=0)
    assert not timer.measured
    assert report.skipped == [case.label for case in select(all_cases(GOALS), ["fp8/rcr/*"])]
    assert "no time was left for 15 cases, from fp8/rcr/1x4096x4096 on" in failures(report)
    assert Report.load(tmp_path / "out.json").numerics


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": 2}')
    with pytest.raises(ValueError, match="no measurements of schema 1"):
        Report.load(tmp_path / "x.json")
    assert plot_sm_90a.main([str(tmp_path / "x.json")]) == 1


def test_list_needs_no_gpu_and_no_torch() -> None:
    script = CHECKOUT.root / "bench" / "sm_90a.py"
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv[1:] = ['--list', '--match', 'fp8/*/8192*']; "
        f"sys.path[0] = {str(script.parent)!r}; import sm_90a; sm_90a.main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == [f"fp8/{layout}/8192x8192x8192" for layout in ("rcr", "rrr", "crr", "ccr")], ran.stderr
    ran = subprocess.run([sys.executable, script, "--match", "fp9/*"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "no case matches fp9/*" in ran.stderr


def test_tables_of_an_earlier_run(tmp_path: Path) -> None:
    report = measured(tmp_path, FakeTimer(), "fp8/rcr/16x4096x4096")
    script = [sys.executable, CHECKOUT.root / "bench" / "sm_90a.py", "--show", tmp_path / "out.json"]
    assert subprocess.run(script, capture_output=True, text=True, check=True).stdout == all_tables(report) + "\n"


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra bench is not installed")
    measured(tmp_path, FakeTimer(1.1))
    assert plot_sm_90a.main([str(tmp_path / "out.json"), "--out", str(tmp_path / "plots")]) == 0
    for name in ("roofline", "bars"):
        assert (tmp_path / "plots" / f"sm_90a_{name}.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw_is_status_1(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra bench is not installed")
    Report().save(tmp_path / "empty.json")
    assert plot_sm_90a.main([str(tmp_path / "empty.json"), "--out", str(tmp_path)]) == 1
