"""Kernels that copy operands to K-major ahead, into a workspace: with it, without it, at once, and with a bad one."""

from __future__ import annotations

import numpy as np
from gemmill.loader import Kernel
from operands import Case
from workbench import Workbench, Wrong, expect_equal

# From the least sizes that take a workspace: whole tiles; one k; odd multiples of 16; tails everywhere, with gaps; k
# beyond whole groups; more tiles than blocks are resident. Few rows, which a copy of A alone is made for; k is split.
_CASES = (
    Case(512, 512, 128),
    Case(512, 544, 1, "aligned"),
    Case(608, 528, 272, "aligned"),
    Case(515, 517, 253, "aligned"),
    Case(777, 1041, 400, "aligned"),
    Case(1000, 640, 1056, "aligned"),
    Case(2000, 4097, 259, "aligned"),
)
_FEW = (Case(64, 512, 2048), Case(83, 531, 2093, "aligned"))
_BRIEF = 4  # of the first, where a device is only simulated
_REPEATS = 4


def check_conversion(bench: Workbench, kernel: Kernel) -> None:
    """Multiply with the workspace full of NaN, again with what the last call left there, and without one."""
    few = _FEW if kernel.library.workspace_bytes(*_shape(_FEW[0])) else ()
    for case in (*few, *(_CASES[:_BRIEF] if bench.brief else _CASES)):
        o = bench.operands(kernel, case)
        if not bench.workspace(kernel, o)[1]:
            raise Wrong(f"{case}: takes no workspace")
        first = bench.multiply(kernel, o)
        bench.expect(o, first, str(case))
        address, size = o.workspace
        if (bench.gpu.download(address, size) == 0xFF).all():
            raise Wrong(f"{case}: the workspace was not used")
        for _ in range(_REPEATS):
            bench.launch(kernel, o)
        expect_equal(bench.result(kernel, o), first, f"{case}, repeated")
        bench.expect(o, bench.multiply(kernel, o, bare=True), f"{case}, without a workspace")
        if (bench.gpu.download(address, size) != 0xFF).any():
            raise Wrong(f"{case}: wrote to a workspace that it was not given")


def check_in_turn(bench: Workbench, kernel: Kernel) -> None:
    """Multiply other operands in turn with one workspace on one stream: copies must wait for the kernel in front."""
    case = _CASES[3]
    placed = [bench.operands(kernel, case, seed) for seed in (0, 1)]
    shared = bench.workspace(kernel, placed[0])
    for o in placed:
        bench.poison(o)
    bench.gpu.synchronize()
    for _ in range(2 if bench.brief else 50):
        for o in placed:
            bench.launch(kernel, o, workspace=shared)
    for o, seed in zip(placed, (0, 1), strict=True):
        bench.expect(o, bench.result(kernel, o), f"{case}, in turn with others, seed {seed}")


def check_at_once(bench: Workbench, kernel: Kernel) -> None:
    """Keep two streams busy, each with its workspace; then replay both from a graph, with other inputs."""
    cases = (_CASES[2], _CASES[3])
    placed = [bench.operands(kernel, case) for case in cases]
    others = [bench.operands(kernel, case, seed=1) for case in cases]
    for o in placed:
        bench.workspace(kernel, o)
        bench.poison(o)
    bench.gpu.synchronize()
    with bench.gpu.stream() as one, bench.gpu.stream() as two:
        for _ in range(2 if bench.brief else 50):
            for o, stream in zip(placed, (one, two), strict=True):
                bench.launch(kernel, o, stream)
    for o, case in zip(placed, cases, strict=True):
        bench.expect(o, bench.result(kernel, o), f"two streams, {case}")
    with bench.gpu.stream() as stream:
        with bench.gpu.captured(stream) as graph:
            for o in placed:
                bench.launch(kernel, o, stream)
        try:
            for turn in range(4):
                sources = others if turn % 2 == 0 else placed
                for o, source in zip(placed, sources, strict=True):
                    bench.poison(o)
                    _upload(bench, o, source)
                bench.gpu.synchronize()
                graph.launch(stream)
                graph.launch(stream)
                bench.gpu.wait(stream)
                for o, source, case in zip(placed, sources, cases, strict=True):
                    bench.expect(source, bench.result(kernel, o), f"graph, replay {turn}, {case}")
        finally:
            graph.close()


def _shape(case: Case) -> tuple[int, int, int]:
    return case.m, case.n, case.k


def _upload(bench: Workbench, o: object, source: object) -> None:
    for name in ("a", "aq", "b"):
        bench.gpu.upload(getattr(o, name), getattr(source.stored, name))  # type: ignore[attr-defined]


def check_arguments(bench: Workbench, kernel: Kernel) -> None:
    """Refuse a workspace that is too small, misaligned, in host memory or given back; C stays as it is."""
    o = bench.operands(kernel, _CASES[0])
    bench.check(kernel, o, "before")
    address, size = o.workspace
    host = np.zeros(1 << 16, np.uint8)
    aligned = -(-host.ctypes.data // 256) * 256
    freed = bench.gpu.allocate(1 << 22)
    bench.gpu.free(freed)
    s = o.stored
    bench.poison(o)
    for at, given, told in (
        (address, size - 1, f"workspace_bytes = {size - 1}: expected at least {size}"),
        (address, 0, f"workspace_bytes = 0: expected at least {size}"),
        (address, -1, f"workspace_bytes = -1: expected at least {size}"),
        (address + 16, size, "workspace: expected an address that is a multiple of 256"),
        (aligned, size, "workspace "),
        (freed, size, "workspace "),
    ):
        sizes = (*o.problem.shape, s.lda, s.ldaq, s.ldb, s.ldc)
        code = kernel.library.run(o.a, o.aq, o.b, o.c, *sizes, at, given, None)
        if code != -1 or not kernel.library.last_error.startswith(told):
            raise Wrong(f"workspace {at:#x}, {given} bytes: returned {code}: {kernel.library.last_error!r}")
    if (bench.gpu.download(o.base_c, o.whole_c) != 0xFF).any():
        raise Wrong("a call that was refused wrote to C")
    bench.check(kernel, o, "after bad workspaces")
