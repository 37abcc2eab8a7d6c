"""Every kernel on every shape: tails, both entries, misaligned bases, gaps between lines, several tiles a block."""

from __future__ import annotations

from gemmill.loader import Kernel
from operands import Case, shape_cases
from workbench import Workbench, Wrong, expect_equal

_REPEATS = 8


def check_shapes(bench: Workbench, kernel: Kernel) -> None:
    """Multiply each case and compare every bit of C."""
    for case in shape_cases(bench.brief):
        bench.check(kernel, bench.operands(kernel, case), str(case))


def check_inputs_are_left_alone(bench: Workbench, kernel: Kernel) -> None:
    """Compare operands, and what lies around them, before and after."""
    for case in (Case(130, 193, 523, "aligned"), Case(17, 131, 260, "odd", 1)):
        o = bench.operands(kernel, case)
        sizes = (("A", o.a, o.stored.a), ("AQ", o.aq, o.stored.aq), ("B", o.b, o.stored.b))
        bench.check(kernel, o, str(case))
        for name, address, data in sizes:
            if (bench.gpu.download(address, data.size) != data).any():
                raise Wrong(f"{case}: changed {name}, an input")


def check_repeats(bench: Workbench, kernel: Kernel) -> None:
    """Give the same bits every time, without waiting between the calls, where C is not exact too."""
    for case in (Case(16, 256, 4096), Case(300, 520, 1100, "aligned"), Case(129, 131, 260, "odd")):
        o = bench.operands(kernel, case)
        first = bench.multiply(kernel, o)
        bench.expect(o, first, str(case))
        for turn in range(2 if bench.brief else _REPEATS):
            bench.poison(o)
            for _ in range(4):
                bench.launch(kernel, o)
            expect_equal(bench.result(kernel, o), first, f"{case}, repeat {turn}")
