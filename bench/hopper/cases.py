"""What is measured: shapes with their goals, and the cases that the variants and layouts make of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gemmill.layout import LAYOUTS, groups
from gemmill.variant import INT4, VARIANTS

INT4_VARIANTS = tuple(name for name, variant in VARIANTS.items() if variant.a == INT4)
OTHER_LAYOUTS = tuple(name for name in LAYOUTS if name != "rcr")

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Goal:
    """What is to be reached at a shape, and what peers took there when the goal was set: µs a call on one H200.

    Fp8, rcr. None: the peer refused the shape.
    """

    goal: float
    deepgemm: float
    cublaslt_block: float | None
    triton: float
    cublaslt: float


GOALS: dict[Shape, Goal] = {
    (1, 4096, 4096): Goal(6.0, 10.4, None, 15.7, 8.3),
    (16, 4096, 4096): Goal(6.0, 8.7, 15.2, 14.4, 8.0),
    (16, 7168, 2048): Goal(5.5, 8.1, 9.9, 9.5, 7.0),
    (64, 4096, 4096): Goal(6.5, 8.7, 15.5, 14.7, 8.3),
    (64, 7168, 18432): Goal(34, 39.4, 54.0, 59.9, 36.9),
    (128, 4096, 7168): Goal(10.5, 13.1, 23.3, 22.5, 12.8),
    (512, 512, 512): Goal(3.2, 3.5, 5.0, 3.4, 3.7),
    (1024, 1024, 1024): Goal(5.2, 5.7, 6.7, 6.5, 5.3),
    (2048, 2048, 2048): Goal(16.5, 17.2, 17.9, 23.8, 16.0),
    (2048, 512, 8192): Goal(16.5, 20.4, 25.9, 29.6, 16.3),
    (1024, 4096, 4096): Goal(27.0, 27.4, 30.5, 42.3, 26.9),
    (4096, 4096, 4096): Goal(98, 98.6, 117.5, 160.9, 100.2),
    (4096, 7168, 2048): Goal(91, 92.4, 109.8, 150.2, 88.9),
    (4096, 24576, 1536): Goal(237, 239, 303, 432, 245),
    (8192, 8192, 8192): Goal(860, 869, 958, 1379, 828),
}

LARGE_M = 1024  # from here on, layouts are compared with rcr


@dataclass(frozen=True)
class Case:
    """One problem: operand types, layout, shape."""

    variant: str
    layout: str
    m: int
    n: int
    k: int

    @property
    def shape(self) -> Shape:
        return self.m, self.n, self.k

    @property
    def label(self) -> str:
        """What `--match` patterns are held against: VARIANT/LAYOUT/MxNxK."""
        return f"{self.variant}/{self.layout}/{self.m}x{self.n}x{self.k}"

    @property
    def int4(self) -> bool:
        return self.variant in INT4_VARIANTS

    @property
    def input_bytes(self) -> int:
        a = (self.m * self.k + 1) // 2 if self.int4 else self.m * self.k
        aq = self.m * groups(self.k) * (4 if VARIANTS[self.variant].aq == "f32" else 1)
        return a + aq + self.n * self.k

    @property
    def bytes(self) -> int:
        """Bytes that a call must move, each operand once; C is float16."""
        return self.input_bytes + 2 * self.m * self.n

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


def all_cases(shapes: Iterable[Shape], full: bool = False) -> list[Case]:
    """Return the cases of some shapes, the most important first, so that a time limit cuts the others.

    Fp8 and bf8 as rcr, the other layouts for fp8 and large M, then int4. `full` adds every variant and layout that is
    left: what a selection table is made from.
    """
    shapes = list(shapes)
    order = [Case(variant, "rcr", *shape) for variant in ("fp8", "bf8") for shape in shapes]
    order += [
        Case("fp8", layout, *shape) for layout in ("rrr", "crr", "ccr") for shape in shapes if shape[0] >= LARGE_M
    ]
    order += [Case(variant, "rcr", *shape) for variant in INT4_VARIANTS for shape in shapes]
    if full:
        order += [Case(v, layout, *shape) for v in VARIANTS for layout in OTHER_LAYOUTS for shape in shapes]
    return list(dict.fromkeys(order))


def select(cases: Iterable[Case], patterns: Iterable[str]) -> list[Case]:
    """Return the cases whose label matches any of the patterns of a shell; all of them where there is none."""
    patterns = list(patterns)
    return [case for case in cases if not patterns or any(fnmatchcase(case.label, pattern) for pattern in patterns)]


def parse_shape(text: str) -> Shape:
    """Return (M, N, K) of ``MxNxK``; ValueError where it is something else."""
    numbers = [int(word) for word in text.split("x")]
    if len(numbers) != 3 or min(numbers) < 1:
        raise ValueError(f"{text!r} is no shape: needed MxNxK, such as 16x4096x4096")
    return numbers[0], numbers[1], numbers[2]
