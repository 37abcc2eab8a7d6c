"""Calls that overlap: streams, threads, graphs, and chains without a wait between kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from driver import DriverError
from gemmill.layout import packed_strides
from gemmill.loader import Kernel
from gemmill.variant import INT4, find_variant
from operands import Case, layout_of
from workbench import Operands, Workbench, Wrong, expect_equal

# Small and split over k; several tiles; the slow entry.
_CASES = (Case(16, 256, 4096), Case(300, 520, 1100, "aligned"), Case(65, 131, 260, "odd"))


def _turns(bench: Workbench) -> int:
    return 4 if bench.brief else 50


def check_two_streams(bench: Workbench, kernel: Kernel) -> None:
    """Keep two streams busy at once; each must have its own result."""
    first, second = (bench.operands(kernel, case) for case in _CASES[:2])
    for o in (first, second):
        bench.poison(o)
    bench.gpu.synchronize()
    with bench.gpu.stream() as one, bench.gpu.stream() as two:
        for _ in range(_turns(bench)):
            bench.launch(kernel, first, one)
            bench.launch(kernel, second, two)
    for o, case in ((first, _CASES[0]), (second, _CASES[1])):
        bench.expect(o, bench.result(kernel, o), f"two streams, {case}")


def check_bits_under_load(bench: Workbench, kernel: Kernel) -> None:
    """Give the same bits while another stream keeps the multiprocessors busy."""
    small, large = (bench.operands(kernel, case) for case in _CASES[:2])
    with bench.gpu.stream() as busy, bench.gpu.stream() as stream:
        for turn in range(_turns(bench) // 4):
            bench.poison(small)
            bench.gpu.synchronize()
            for _ in range(8):
                bench.launch(kernel, large, busy)
            bench.launch(kernel, small, stream)
            bench.expect(small, bench.result(kernel, small), f"under load, turn {turn}")


def check_two_threads(bench: Workbench, kernel: Kernel) -> None:
    """Call from two threads at once, each with its stream and its problem; ctypes lets both into the library."""
    problems = [bench.operands(kernel, case) for case in _CASES]
    for o in problems:
        bench.poison(o)
    bench.gpu.synchronize()
    start = threading.Barrier(len(problems))

    def work(o: Operands) -> None:
        bench.gpu.enter()
        with bench.gpu.stream() as stream:
            start.wait()
            for _ in range(_turns(bench)):
                bench.launch(kernel, o, stream)

    _in_threads([lambda o=o: work(o) for o in problems])  # type: ignore[misc]
    for o, case in zip(problems, _CASES, strict=True):
        bench.expect(o, bench.result(kernel, o), f"two threads, {case}")


def check_threads_without_context(bench: Workbench, kernel: Kernel) -> None:
    """Call from a thread that has no context; it must have none afterwards."""
    o = bench.operands(kernel, _CASES[0])
    bench.poison(o)
    bench.gpu.synchronize()
    left: list[int | None] = []

    def work() -> None:
        bench.launch(kernel, o)
        left.append(bench.gpu.current())

    _in_threads([work])
    if left != [None]:
        raise Wrong("a call left a context to a thread that had none")
    bench.expect(o, bench.result(kernel, o), "a thread without a context")


def _in_threads(functions: list[Callable[[], None]]) -> None:
    failures: list[str] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except (Wrong, DriverError) as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise Wrong("; ".join(failures))


def check_graph(bench: Workbench, kernel: Kernel) -> None:
    """Capture calls of all cases, and replay them with the inputs of another problem in the same memory."""
    placed = [(bench.operands(kernel, case), bench.operands(kernel, case, seed=1)) for case in _CASES]
    with bench.gpu.stream() as stream:
        with bench.gpu.captured(stream) as graph:
            for o, _ in placed:
                bench.launch(kernel, o, stream)
        try:
            for turn in range(4):
                for o, other in placed:
                    bench.poison(o)
                    source = other if turn % 2 else o
                    for address, data in ((o.a, source.stored.a), (o.aq, source.stored.aq), (o.b, source.stored.b)):
                        bench.gpu.upload(address, data)
                bench.gpu.synchronize()
                graph.launch(stream)
                graph.launch(stream)
                bench.gpu.wait(stream)
                for (o, other), case in zip(placed, _CASES, strict=True):
                    right = other if turn % 2 else o
                    bench.expect(right, bench.result(kernel, o), f"graph, replay {turn}, {case}")
        finally:
            graph.close()
            for o, _ in placed:
                for address, data in ((o.a, o.stored.a), (o.aq, o.stored.aq), (o.b, o.stored.b)):
                    bench.gpu.upload(address, data)


def check_rewritten_inputs(bench: Workbench, kernel: Kernel) -> None:
    """Overwrite A right after each call, by a copy and by a kernel whose C it is: no call may see what comes later.

    Without a wait, the next kernel starts while this one still multiplies (programmatic dependent launch).
    """
    o, other = bench.operands(kernel, _CASES[1]), bench.operands(kernel, Case(64, 256, 300, "aligned"))
    size = o.stored.a.size
    assert other.c_bytes <= size and o.a % 16 == 0
    inside = replace(other, c=o.a)
    keep = bench.gpu.allocate(size)
    bench.gpu.copy(keep, o.a, size)
    bench.poison(o)
    bench.gpu.synchronize()
    try:
        with bench.gpu.stream() as stream:
            for _ in range(_turns(bench)):
                bench.launch(kernel, o, stream)
                bench.launch(kernel, inside, stream)  # its C lies in the A that the call before reads
                bench.gpu.copy(o.a, keep, size, stream)
        bench.expect(o, bench.result(kernel, o), "A overwritten after each call")
    finally:
        bench.gpu.synchronize()
        bench.gpu.free(keep)


def check_chain(bench: Workbench, kernel: Kernel) -> None:
    """Let each call read the last one's C as its packed int4 A; with and without waits the bits must agree."""
    kinds, layout = find_variant(kernel.config["variant"]), layout_of(kernel)
    if kinds.a != INT4 or kernel.config["out"] == "f32":
        return
    m, n = 64, 64
    k = 4 * n  # C's bytes are this many int4 codes a row, or a column of the same count
    o = bench.operands(kernel, Case(m, n, k))
    strides = packed_strides(layout, m, n, k)
    size = m * n * 2
    assert size == o.stored.a.size
    spare = [bench.gpu.allocate(size) for _ in range(2)]

    def step(source: int, to: int, stream: int) -> None:
        code = kernel.library.run(
            source, o.aq, o.b, to, m, n, k, strides.a, o.stored.ldaq, strides.b, strides.c, None, 0, stream
        )
        if code:
            raise Wrong(f"chain: returned {code}: {kernel.library.last_error}")

    def chain(stream: int, wait: bool) -> np.ndarray:
        source = o.a
        for i in range(10):
            step(source, spare[i % 2], stream)
            source = spare[i % 2]
            if wait:
                bench.gpu.wait(stream)
        bench.gpu.wait(stream)
        return np.concatenate([bench.gpu.download(one, size) for one in spare])[None]

    try:
        with bench.gpu.stream() as stream:
            wanted = chain(stream, wait=True)
            for turn in range(_turns(bench) // 2):
                expect_equal(chain(stream, wait=False), wanted, f"chain, turn {turn}")
    finally:
        for one in spare:
            bench.gpu.free(one)
