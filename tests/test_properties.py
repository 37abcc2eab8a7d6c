"""End to end, on built kernels: any shape, variant, layout, stride and alignment, through gemmill.gemm_aquant.

C is held to float64 with the bound that gemmill.reference derives, so a single term that is dropped, doubled or taken
from elsewhere shows. Bits must not depend on how many threads work, nor on how C is cut.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gemmill
import numpy as np
import pytest
from gemmill.dtypes import kind_dtype
from gemmill.layout import find_layout, groups
from gemmill.reference import error_bound, reference_gemm_aquant
from gemmill.search import VARIABLE
from gemmill.variant import INT4, VARIANTS, find_variant
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.config import FAMILIES

TESTS = Path(__file__).parent
LAYOUTS = {"decode": ("rcr", "rrr", "crr", "ccr"), "preshufflequant": ("rcr", "rrr", "crr")}
FILLER = 0xFF  # NaN in every float type: a gap that is read shows in C


@dataclass(frozen=True)
class Case:
    """One product and how its operands lie in memory.

    Attributes
    ----------
    m, n, k : int
    variant, family, layout : str
        Of the kernel.
    pads : tuple of int
        Elements between two lines of A, AQ, B and C beyond the packed ones; A's counts for fp8 alone.
    shift : int
        Bytes by which every operand starts off its natural alignment.
    seed : int
    """

    m: int
    n: int
    k: int
    variant: str
    family: str
    layout: str
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    shift: int = 0
    seed: int = 0


def sizes(most: int, *edges: int) -> st.SearchStrategy[int]:
    """Draw a dimension: small, beside an edge of something, or anything up to `most`; 0 now and then."""
    near = [edge + d for edge in edges for d in (-1, 0, 1)]
    return st.one_of(st.integers(1, 9), st.sampled_from([*near, 0]), st.integers(10, most), st.integers(10, most))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case; edges are those of groups and of the CPU kernels' tiles."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    return Case(
        m=draw(sizes(300, 16, 192, 256)),
        n=draw(sizes(600, 32, 64, 512)),
        k=draw(sizes(700, 128, 256, 384, 512)),
        variant=draw(st.sampled_from(sorted(VARIANTS))),
        family=family,
        layout=draw(st.sampled_from(LAYOUTS[family])),
        pads=draw(st.tuples(*[st.sampled_from((0, 0, 1, 3, 64))] * 4)),
        shift=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def place(values: np.ndarray, column_major: bool, pad: int, shift: int) -> np.ndarray:
    """Return a copy of a matrix in the given order, lines `pad` elements apart and `shift` bytes off alignment."""
    lines = values.T if column_major else values
    outer, inner = lines.shape
    room = np.full(shift + outer * (inner + pad) * values.itemsize, FILLER, np.uint8)
    placed = room[shift:].view(values.dtype).reshape(outer, inner + pad)[:, :inner]
    placed[...] = lines
    return placed.T if column_major else placed


def make_operands(case: Case):
    """Return A, B and AQ of a case: normal values in the variant's types, as the layout has them."""
    variant, layout = find_variant(case.variant), find_layout(case.layout)
    rng = np.random.default_rng(case.seed)
    pad_a, pad_aq, pad_b, _ = case.pads
    a = rng.standard_normal((case.m, case.k)) * 3
    b = rng.standard_normal((case.k, case.n))
    aq = np.exp(rng.standard_normal((case.m, groups(case.k)))) / 8
    if variant.a == INT4:
        a_q = gemmill.Int4Matrix.from_values(np.clip(np.rint(a), -8, 7).astype(np.int8), "F" if layout.a_col else "C")
    else:
        a_q = place(a.astype(kind_dtype(variant.a, "ocp")), layout.a_col, pad_a, case.shift)
    b = place(b.astype(kind_dtype(variant.b, "ocp")), layout.b_col, pad_b, case.shift)
    return a_q, b, place(aq.astype(kind_dtype(variant.aq, "ocp")), layout.aq_col, pad_aq, case.shift)


def assert_within_bound(c: np.ndarray, a, b, aq) -> None:
    """Compare C with float64; on failure name the first wrong element and both values."""
    exact = reference_gemm_aquant(a, b, aq)
    bound = error_bound(a, b, aq, exact)
    wrong = ~(np.abs(c.astype(np.float64) - exact) <= bound)
    if wrong.any():
        m, n = np.argwhere(wrong)[0]
        pytest.fail(
            f"C[{m},{n}] is {c[m, n]}, exact {exact[m, n]}, bound {bound[m, n]:.3g}; {wrong.sum()} of {c.size} differ"
        )


@pytest.fixture(scope="module")
def kernel_of(built_kernels) -> Iterator[Callable[[Case], gemmill.Kernel]]:
    """Load this machine's kernels, let gemmill find them by itself too, and return what gives a case its kernel."""
    configs = built_kernels.need()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(built_kernels.root))
        loaded = {(c.variant, c.layout, c.family): gemmill.load(c.id) for c in configs}
        yield lambda case: loaded[case.variant, case.layout, case.family]


@settings(deadline=None, max_examples=1000)
@given(case=cases(), shuffle_first=st.booleans(), give_out=st.booleans())
def test_any_product(kernel_of, case, shuffle_first, give_out):
    kernel = kernel_of(case)
    a, b, aq = make_operands(case)
    scale = aq
    if kernel.preshuffle and shuffle_first:
        scale = gemmill.preshuffle_scale(aq, kernel.config["tile"][2])
    if not give_out:
        assert_within_bound(gemmill.gemm_aquant(a, b, scale, kernel=kernel), a, b, aq)
        return
    out = place(np.full((case.m, case.n), np.nan, np.float16), False, case.pads[3], case.shift)
    assert gemmill.gemm_aquant(a, b, scale, out=out, kernel=kernel) is out
    assert_within_bound(out, a, b, aq)
    out.view(np.uint16)[...] = 0xFFFF
    assert np.all(out.base == FILLER), "wrote between the rows of out, or beyond them"


@settings(deadline=None, max_examples=300)
@given(case=cases())
def test_the_kernel_found_by_strides_is_right(kernel_of, case):
    """Let gemmill choose: where a dimension is 0 or 1, several layouts fit."""
    a, b, aq = make_operands(case)
    assert_within_bound(gemmill.gemm_aquant(a, b, aq), a, b, aq)


@settings(deadline=None, max_examples=300)
@given(case=cases(), rows=st.floats(0, 1), columns=st.floats(0, 1))
def test_bits_do_not_depend_on_how_c_is_cut(kernel_of, case, rows, columns):
    """Compute the top left part of C alone, in whole register tiles of rows: fewer work items, the same bits."""
    kernel = kernel_of(case)
    tile_m = kernel.config["warp_tile"][0]
    m, n = int(rows * case.m) // tile_m * tile_m, int(columns * case.n)
    a, b, aq = make_operands(case)
    c = gemmill.gemm_aquant(a, b, aq, kernel=kernel)
    top = gemmill.Int4Matrix.from_values(a.values()[:m], a.order) if isinstance(a, gemmill.Int4Matrix) else a[:m]
    part = gemmill.gemm_aquant(top, b[:, :n], aq[:m], kernel=kernel)
    np.testing.assert_array_equal(part.view(np.uint16), c[:m, :n].view(np.uint16))


def test_another_arch_on_request(built_kernels, kernel_of):
    """Use the portable arch, which every machine runs, where a better one is there too."""
    built_kernels.need("generic", variant=("fp8", "fp8i4"), layout="rcr", family="decode")
    for variant in ("fp8", "fp8i4"):
        a, b, aq = make_operands(Case(33, 65, 300, variant, "decode", "rcr"))
        assert_within_bound(gemmill.gemm_aquant(a, b, aq, arch="generic"), a, b, aq)


# Each has several work items, so that threads share it; M = 1 cuts along N alone.
THREAD_CASES = [
    Case(m, n, k, variant, family, layout, seed=k)
    for m, n, k in [(1, 3000, 640), (77, 1030, 513), (513, 257, 1000)]
    for variant, family, layout in [
        ("fp8", "decode", "rcr"),
        ("bf8", "preshufflequant", "crr"),
        ("fp8i4", "decode", "ccr"),
        ("bf8i4f32", "preshufflequant", "rrr"),
    ]
]


def print_digests(names: list[str]) -> None:
    """Print a hash of C's bytes, twice computed, for each of THREAD_CASES with the kernel of that name."""
    for case, name in zip(THREAD_CASES, names, strict=True):
        operands = make_operands(case)
        for _ in range(2):
            print(hashlib.sha256(gemmill.gemm_aquant(*operands, kernel=name).tobytes()).hexdigest())


def test_bits_do_not_depend_on_the_number_of_threads(kernel_of):
    loaded = [kernel_of(case) for case in THREAD_CASES]
    names = [f"{kernel.arch}/{kernel.name}" for kernel in loaded]
    code = "import sys, test_properties; test_properties.print_digests(sys.argv[1:])"
    paths = os.pathsep.join(str(path) for path in (TESTS, TESTS.parent))
    printed = {}
    for threads in ("1", "2", "3", "8"):
        environment = {**os.environ, "PYTHONPATH": paths, "GEMMILL_NUM_THREADS": threads}
        child = subprocess.run(
            [sys.executable, "-c", code, *names], env=environment, capture_output=True, text=True, timeout=120
        )
        assert child.returncode == 0, child.stderr
        printed[threads] = child.stdout.split()
    assert len(printed["1"]) == 2 * len(THREAD_CASES)
    assert printed["1"][0::2] == printed["1"][1::2], "one thread, the same product twice"
    for threads, digests in printed.items():
        wrong = [THREAD_CASES[i // 2] for i, (x, y) in enumerate(zip(digests, printed["1"], strict=True)) if x != y]
        assert not wrong, f"{threads} threads and 1 differ: {wrong}"
