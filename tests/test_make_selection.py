"""bench/make_selection.py: from a benchmark's rows to a table that the runtime reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gemmill.selection import read_table, schedule_of

from kernels.catalogue import load_catalogue
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT

RCR = load_catalogue().configs("sm_90a", variant="fp8", layout="rcr", family="decode")


def row(config: KernelConfig, us: float | None, m: int = 16, **more: Any) -> dict[str, Any]:
    fields = {"arch": config.arch, "variant": config.variant, "layout": config.layout, "m": m, "n": 64, "k": 128}
    return {**fields, "kernel": config.name, "us": us, **more}


def make(tmp_path: Path, content: Any, *options: str) -> tuple[int, str, Path]:
    source = tmp_path / "times.json"
    source.write_text(json.dumps(content))
    argv = [sys.executable, str(CHECKOUT.root / "bench" / "make_selection.py"), str(source)]
    done = subprocess.run([*argv, "--into", str(tmp_path / "tables"), *options], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr, tmp_path / "tables" / "sm_90a.json"


def test_rows_become_a_table_fastest_first(tmp_path: Path) -> None:
    first, second = RCR[:2]
    bf16 = load_catalogue().configs("sm_90a", variant="fp8", layout="rcr", out="bf16")[0]
    rows = [
        *(row(first, 9.0), row(second, 7.0), row(first, 8.0), row(first, 5.0, m=1)),
        *(row(first, None), row(first, 3.0, peer="cuBLASLt"), row(bf16, 1.0), row(first, 2.0, m=0)),
        {"peer": "Triton", "us": 4.0},
    ]
    rows.append(row(first, 1.0, error="C is wrong"))
    content = {"date": "2026-01-01", "machine": {"card": "a card", "at_the_end": {}}, "rows": rows, "skipped": []}
    status, said, path = make(tmp_path, content)
    assert status == 0, said
    table = read_table(path.read_text(), "it")
    assert dict(table.measured) == {"date": "2026-01-01", "card": "a card"}
    assert [(r.shape, list(r.times.items())) for r in table.rows] == [
        ((1, 64, 128), [(schedule_of(first.name), 5.0)]),
        ((16, 64, 128), [(schedule_of(second.name), 7.0), (schedule_of(first.name), 8.0)]),
    ]
    assert "left out 2 rows: no kernel of ours" in said
    assert "left out 2 rows: no time" in said and "an empty product" in said and "another output" in said
    assert "next 14% slower" in said


def test_a_table_is_extended_and_repeats_byte_for_byte(tmp_path: Path) -> None:
    make(tmp_path, [row(RCR[0], 9.0), row(RCR[0], 1.0, m=1)])
    status, _, path = make(tmp_path, [row(RCR[0], 8.0)], "--keep")
    assert status == 0
    assert [list(r.times.values()) for r in read_table(path.read_text(), "it").rows] == [[1.0], [8.0]]
    before = path.read_bytes()
    make(tmp_path, [row(RCR[0], 8.0)], "--keep")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([row(RCR[0], 1.0, layout="rrr")], "row 1: layout 'rrr', but the kernel is of 'rcr'"),
        ([row(RCR[0], 1.0, arch="sm_1")], "row 1: ArgumentError: unknown arch"),
        ([row(RCR[0], 1.0, kernel="gemm_aquant_x")], "row 1: ArgumentError: not a kernel name"),
        ({"times": []}, "KeyError: 'rows'"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_written(tmp_path: Path, content: Any, text: str) -> None:
    status, said, path = make(tmp_path, content)
    assert status == 2 and text in said
    assert not path.exists()


def test_nothing_measured_writes_nothing(tmp_path: Path) -> None:
    status, said, path = make(tmp_path, [row(RCR[0], None)])
    assert status == 1 and "nothing was written" in said
    assert not path.exists()


def test_the_shipped_tables_name_kernels_of_the_catalogue() -> None:
    tables = sorted((CHECKOUT.root / "runtime" / "tables").glob("*.json"))
    assert tables
    for path in tables:
        table = json.loads(path.read_text())
        made = {(c.variant, c.layout, schedule_of(c.name)) for c in load_catalogue().configs(table["arch"])}
        named = {(row["variant"], row["layout"], schedule) for row in table["rows"] for schedule in row["us"]}
        assert named and named <= made, sorted(named - made)[:3]
