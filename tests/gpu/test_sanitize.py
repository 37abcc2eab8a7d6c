"""How tests/gpu/sanitize.py reads compute-sanitizer's output; the tool itself needs a device."""

from __future__ import annotations

from sanitize import findings, place

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
