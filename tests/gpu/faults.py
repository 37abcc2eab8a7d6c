"""Bad arguments and exhausted memory: the code, the words, a context that still works, and no memory lost."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from driver import Gpu
from gemmill.dtypes import output_dtype
from gemmill.layout import groups, packed_strides
from gemmill.loader import Kernel
from gemmill.operands import Array
from operands import Case, Problem, expected, layout_of, problem, store
from workbench import Workbench, Wrong, expect_equal

_CASE = Case(17, 96, 300)
_NAMES = ("A", "AQ", "B", "C", "M", "N", "K", "lda", "ldaq", "ldb", "ldc", "workspace", "bytes", "stream")
_HUGE = 2**62


def check_bad_arguments(bench: Workbench, kernel: Kernel) -> None:
    """Hand each argument of the device-pointer entry a bad value; a good call must follow each time."""
    o = bench.operands(kernel, _CASE)
    bench.check(kernel, o, "before")
    host = np.zeros(1 << 16, np.uint8)
    freed = bench.gpu.allocate(1 << 22)
    bench.gpu.free(freed)
    free = bench.gpu.free_bytes()
    s = o.stored
    good = dict(
        zip(_NAMES, (o.a, o.aq, o.b, o.c, *o.problem.shape, s.lda, s.ldaq, s.ldb, s.ldc, None, 0, None), strict=True)
    )
    bad: list[tuple[str, Any, int]] = []
    for name in ("A", "AQ", "B", "C"):
        bad += [(name, value, -1) for value in (None, host.ctypes.data, freed, 4096)]
    for name in ("M", "N", "K"):
        bad += [(name, -1, -1), (name, -(2**63), -1), (name, _HUGE, -1)]
    bad += [(name, value, -1) for name in ("lda", "ldaq", "ldb", "ldc") for value in (0, -1, good[name] - 1, _HUGE)]
    bad += [("C", o.c + 1, -1)]
    if o.problem.aq.dtype == np.float32:
        bad += [("AQ", o.aq + 2, -1)]
    bench.poison(o)
    for name, value, code in bad:
        arguments = {**good, name: value}
        if value == _HUGE and name == "M":
            arguments.update(lda=_HUGE, ldaq=_HUGE)
        came = kernel.library.run(*arguments.values())
        text = kernel.library.last_error
        # A huge size may be told by the leading dimension that it makes too small, or by the product that it overflows.
        words = (name, "lda", "ldb", "ldc", "ldaq", "A", "B", "C", "AQ") if value == _HUGE else (name,)
        if came != code or not any(text.startswith((f"{word} ", f"{word}:")) for word in words):
            raise Wrong(f"{name} = {value}: returned {came}, not {code}: {text!r}")
    if (bench.gpu.download(o.base_c, o.whole_c) != 0xFF).any():
        raise Wrong("a call that was refused wrote to C")
    bench.check(kernel, o, "after bad arguments")
    _same_memory(bench, free, "bad arguments")


def check_too_many_tiles(bench: Workbench, kernel: Kernel) -> None:
    """Refuse sizes that are addressable but more than the kernel counts."""
    o = bench.operands(kernel, _CASE)
    for m, n, k in ((2**31, 1, 1), (1, 2**31, 1), (1, 1, 2**31), (10**9, 10**9, 1)):
        s = packed_strides(layout_of(kernel), m, n, k)
        ldaq = m if kernel.preshuffle else s.aq
        code = kernel.library.run(o.a, o.aq, o.b, o.c, m, n, k, s.a, ldaq, s.b, s.c, None, 0, None)
        if code != -2 or "this kernel" not in kernel.library.last_error:
            raise Wrong(f"{m}x{n}x{k}: returned {code}: {kernel.library.last_error!r}")
    bench.check(kernel, o, "after too many tiles")


def check_host_entry(bench: Workbench, kernel: Kernel) -> None:
    """Call with host pointers: right, no memory lost, and refused where C does not fit into the device."""
    p = problem(kernel.config["variant"], 33, 96, 300)
    _check_host(kernel, p)  # what the library keeps for itself is there now
    free = bench.gpu.free_bytes()
    _check_host(kernel, p)
    _same_memory(bench, free, "a call with host pointers")

    m, n = 1 << 18, 1 << 19  # a C of 256 GiB; it is not touched before there is memory for it
    some = np.zeros(1 << 20, np.uint8)
    s = packed_strides(layout_of(kernel), m, n, 1)
    for _ in range(20):
        code = kernel.library.run_host(*[some.ctypes.data] * 4, m, n, 1, s.a, s.aq, s.b, s.c, 1, 1, None)
        if code != -3 or not kernel.library.last_error.startswith(f"out of device memory: {m * n * 2} bytes"):
            raise Wrong(f"out of memory: returned {code}: {kernel.library.last_error!r}")
    _same_memory(bench, free, "calls that ran out of memory")
    _check_host(kernel, p)
    bench.check(kernel, bench.operands(kernel, _CASE), "after out of memory")


def _check_host(kernel: Kernel, p: Problem) -> None:
    """Call the host-pointer entry and compare."""
    m, n, k = p.shape
    s = store(_Unshuffled(kernel), p, "packed")
    c: Array = np.zeros((m, n), output_dtype(kernel.config["out"]))
    time_ms = ctypes.c_float(-1)
    pointers = [x.ctypes.data for x in (s.a, s.aq, s.b, c)]
    code = kernel.library.run_host(*pointers, m, n, k, s.lda, s.ldaq, s.ldb, s.ldc, groups(k), 1, ctypes.byref(time_ms))
    if code or not time_ms.value > 0:
        raise Wrong(f"host pointers: returned {code}, {time_ms.value} ms: {kernel.library.last_error}")
    expect_equal(c, expected(p.exact, kernel.config["out"]), "host pointers")


class _Unshuffled:
    """A kernel as its host-pointer entry is called: AQ is never preshuffled there."""

    preshuffle = False

    def __init__(self, kernel: Kernel) -> None:
        self.config = kernel.config


def _same_memory(bench: Workbench, before: int, what: str) -> None:
    bench.gpu.synchronize()
    # The driver may give back more than it took: its own blocks go when the last of ours in them does.
    if (now := bench.gpu.free_bytes()) < before:
        raise Wrong(f"{what}: {before - now} bytes of device memory were not given back")


def check_another_context(bench: Workbench, kernel: Kernel) -> None:
    """Call in a context that is not the primary one; its memory is that context's."""
    gpu = bench.gpu
    bench.drop()
    context = ctypes.c_void_p()
    gpu.call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    try:
        o = bench.operands(kernel, _CASE)
        bench.check(kernel, o, "another context")
        bench.drop()
    finally:
        gpu.call("cuCtxDestroy_v2", context)
        gpu.enter()
    bench.check(kernel, bench.operands(kernel, _CASE), "the primary context again")


def check_wrong_device(bench: Workbench, kernel: Kernel) -> str | None:
    """Refuse memory of another device, by name of the operand and both devices."""
    if bench.gpu.count() < 2:
        return "one device here: needs two"
    o = bench.operands(kernel, _CASE)
    s = o.stored
    other = Gpu(1)
    there = other.allocate(1 << 20)
    bench.gpu.enter()
    for i, name in enumerate(("A", "AQ", "B", "C")):
        pointers = [o.a, o.aq, o.b, o.c]
        pointers[i] = there
        code = kernel.library.run(*pointers, *o.problem.shape, s.lda, s.ldaq, s.ldb, s.ldc, None, 0, None)
        if code != -1 or f"{name} lies on device 1: expected device 0" not in kernel.library.last_error:
            raise Wrong(f"{name} on another device: returned {code}: {kernel.library.last_error!r}")
    bench.check(kernel, o, "after memory of another device")
    return None
