"""Bad arguments to a kernel: each must be refused with its code and a text that names it, and nothing be written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from gemmill.fence import Fence
from gemmill.harness import CheckFailed, Harness
from gemmill.layout import GROUP_K, groups, packed_strides
from gemmill.library import Library

_OPERANDS = ("A", "AQ", "B", "C")


def check_faults(harness: Harness, step: Callable[[str], None]) -> None:
    """Hand each argument of each entry a bad value and expect its code and name.

    Parameters
    ----------
    harness : Harness
    step : callable
        Told what is to be done next.

    Raises
    ------
    CheckFailed
        On the first finding.
    """
    m, n, k = 3, 5, 130
    s = packed_strides(harness.layout, m, n, k)
    sizes = {"M": m, "N": n, "K": k}
    strides = {"stride_A": s.a, "stride_AQ": s.aq, "stride_B": s.b, "stride_C": s.c, "QK_A": groups(k)}
    bad: list[tuple[str, Any]] = [(name, None) for name in _OPERANDS]
    bad += [(name, -1) for name in (*sizes, *strides)]
    bad += [(name, value + 1) for name, value in strides.items()]
    bad += [("k_batch", 0), ("k_batch", 2)]
    good = {**_pages(harness.host), **sizes, **strides, "k_batch": 1}
    step("faults, host entry")
    _expect_faults(harness.library, "host entry", good, bad, lambda values: harness.library.run_host(*values, None))
    _expect_blank(harness.host)
    with harness.on_device():
        ldaq = m * (harness.tile[2] // GROUP_K) if harness.kernel.preshuffle else s.aq
        leading = {"lda": s.a, "ldaq": ldaq, "ldb": s.b, "ldc": s.c}
        workspace, size = harness.workspace(m, n, k)
        bad = [(name, None) for name in _OPERANDS] + [(name, -1) for name in sizes]
        bad += [(name, value - 1) for name, value in leading.items()]
        if harness.backend == "cpu":
            bad += [("stream", 1)]
        good = {**_pages(harness.device), **sizes, **leading, "stream": None}
        if harness.backend == "cuda":  # whose driver knows whose memory an address means
            bad += [(name, harness.host[name].address()) for name in _OPERANDS]
            bad += [(name, good[name] + 1) for name, element in harness.steps.items() if element > 1]
        step("faults, device entry")
        _expect_faults(
            harness.library,
            "device entry",
            good,
            bad,
            lambda values: harness.library.run(*values[:-1], workspace, size, values[-1]),
        )
        if harness.memory:
            harness.memory.synchronize()
        _expect_blank(harness.device)


def _pages(fences: dict[str, Fence]) -> dict[str, Any]:
    for name in _OPERANDS:
        fences[name].place(np.zeros(4096, np.uint8))
    return {name: fences[name].address() for name in _OPERANDS}


def _expect_blank(fences: dict[str, Fence]) -> None:
    for held, intact in (fences[name].read() for name in _OPERANDS):
        if held.any() or not intact:
            raise CheckFailed("faults: a call that was refused wrote to an operand")


def _expect_faults(
    library: Library,
    entry: str,
    good: dict[str, Any],
    bad: list[tuple[str, Any]],
    call: Callable[[list[Any]], int],
) -> None:
    for name, value in bad:
        # What the backend can't do at all may be called unsupported.
        codes = (-1, -2) if name in ("k_batch", "stream") else (-1,)
        code = call(list({**good, name: value}.values()))
        label = f"faults, {entry}: {name} = {value}"
        if code not in codes:
            raise CheckFailed(f"{label} returned {code}, not {' or '.join(map(str, codes))}")
        if not re.search(rf"\b{name}\b", library.last_error):
            raise CheckFailed(f"{label} left a text that does not name it: {library.last_error!r}")
