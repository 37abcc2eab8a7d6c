"""How tests/gpu/sanitize.py reads compute-sanitizer's output; the tool itself needs a device."""

from __future__ import annotations

import re
from pathlib import Path

from sanitize import cases, findings, place, run_tool

NATIVE = Path(__file__).parents[2] / "native"

PRINTED = """\
========= COMPUTE-SANITIZER
@@ kernel first 17x67x300 aligned
========= Error: Race reported between Write access at gemmill_fast+0x1a0 in /native/cuda/fill.cuh:98
=========     and Read access at gemmill_fast+0x2f0 in /native/cuda/gemm.cuh:288 [128 hazards]
=========
@@ kernel first 18x70x260 odd+1
========= Warning: Race reported between Read access at gemmill_scalar+0x50
=========     and Write access at gemmill_scalar+0x70 [4 hazards]
=========     and Write access at gemmill_scalar+0x90 [2 hazards]
@@ kernel second 17x67x300 aligned
@@ kernel third 17x67x300 aligned
========= Invalid __global__ read of size 4 bytes
=========     at gemmill_fast+0x10 in gemm.cuh:134
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""


def test_hazards_are_told_by_kernel_and_places() -> None:
    found = findings(PRINTED)
    assert list(found) == ["first", "second", "third"]
    assert found["first"]["Write fill.cuh:98 / Read gemm.cuh:288"] == 128
    assert found["first"]["Read gemmill_scalar+0x50 / Write gemmill_scalar+0x70"] == 4
    assert found["first"]["Read gemmill_scalar+0x50 / Write gemmill_scalar+0x90"] == 2
    assert not found["second"]
    assert found["third"] == {"Invalid __global__ read of size 4 bytes": 1}


def test_a_place_is_a_line_where_there_is_one() -> None:
    assert place("gemmill_fast+0x1a0 in /a b/fill.cuh:98") == "fill.cuh:98"
    assert place("gemmill_fast+0x1a0") == "gemmill_fast+0x1a0"


def test_a_run_that_broke_off_is_not_clean() -> None:
    cut = PRINTED[: PRINTED.index("@@ kernel third")]
    assert findings(cut)["second"] == {"the tool came to no end": 1}


def test_a_tool_that_hangs_is_ended_with_what_it_started() -> None:
    printed = run_tool(["sh", "-c", "echo @@ kernel one; sleep 600 & echo $!; wait"], 1)
    assert findings(printed)["one"] == {"Error: not finished after 1 s": 1}
    stat = Path("/proc", printed.split()[3], "stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_every_block_goes_around_its_ring() -> None:
    most = re.search(r"stages = fit > (\d+) \? \1 : fit", (NATIVE / "cuda" / "traits.h").read_text())
    assert most is not None
    _, whole, split, scalar = (case.k / 128 for case in cases([64, 64, 128]))
    assert min(whole, split / 2, scalar) > int(most[1])
