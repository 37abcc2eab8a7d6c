"""What the matrix instruction keeps of a group's sum, bit by bit, and the error bound with operands made to lose most.

A kernel's C has fewer bits than a group's sum. So three further groups take the sum's leading digits away again: row m
of A picks digit j of row m by a single 1, and C is what the model of tests/wgmma.py leaves of the first group, which a
few bits hold. Where C equals it, the instruction did what the model says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import wgmma
from gemmill.arch import find_arch
from gemmill.dtypes import kind_dtype
from gemmill.layout import GROUP_K
from gemmill.loader import Kernel
from gemmill.reference import error_bound, reference_gemm_aquant
from gemmill.variant import INT4, find_variant
from operands import Array, Case, Problem, encode, expected
from workbench import Workbench, Wrong

_ROWS, _COLUMNS = 96, 80
_DIGITS = 3


def _random(rng: np.random.Generator, shape: tuple[int, int], dtype: Any) -> Array:
    return rng.standard_normal(shape)


def _spread(rng: np.random.Generator, shape: tuple[int, int], dtype: Any) -> Array:
    """Return exponents all over the type, subnormals included, so that most products lie below the largest."""
    least = np.log2(float(ml_dtypes.finfo(dtype).smallest_subnormal))
    return np.exp2(rng.uniform(least, 2.5, shape)) * rng.choice([-1.0, 1.0], shape)


def _one_large(rng: np.random.Generator, shape: tuple[int, int], dtype: Any) -> Array:
    """Return one large element a line, at a place of its own in the group, and small ones of one sign."""
    values = rng.uniform(2.0**-8, 2.0**-6, shape)
    if shape[0] == GROUP_K:
        values[3, :] = 4  # B
    else:
        values[:, 3] = 4
    return values


def _steps(rng: np.random.Generator, shape: tuple[int, int], dtype: Any) -> Array:
    """Return one product of 16, and equal small ones: powers of two, another one a row and column of C."""
    if shape[0] == GROUP_K:
        values = np.broadcast_to(np.exp2(-(np.arange(shape[1]) % 10.0)), shape).copy()
        values[3, :] = 4
    else:
        values = np.broadcast_to(np.exp2(-(np.arange(shape[0]) % 10.0))[:, None], shape).copy()
        values[:, 3] = 4
    return values


DATA: dict[str, Callable[..., Array]] = {"random": _random, "spread": _spread, "one large": _one_large, "steps": _steps}


def check_sums(bench: Workbench, kernel: Kernel) -> None:
    """Compare the group sums of several kinds of data with the model, bit by bit, and with the bound."""
    kinds = find_variant(kernel.config["variant"])
    for label, make in DATA.items():
        rng = np.random.default_rng(11)
        b_type = kind_dtype(kinds.b, "ocp")
        a_type = kind_dtype("fp8", "ocp") if kinds.a == INT4 else kind_dtype(kinds.a, "ocp")
        b = make(rng, (GROUP_K, _COLUMNS), b_type).astype(b_type).astype(np.float64)
        if kinds.a == INT4:
            a = rng.integers(-8, 8, (_ROWS, GROUP_K)).astype(np.float64)
        else:
            a = make(rng, (_ROWS, GROUP_K), a_type).astype(a_type).astype(np.float64)
        _check_sums(bench, kernel, label, a, b, wgmma.group_sum(a, b, a_type, b_type), b_type)


def _check_sums(bench: Workbench, kernel: Kernel, label: str, a: Array, b: Array, modelled: Array, b_type: Any) -> None:
    kinds, rows = find_variant(kernel.config["variant"]), np.arange(_ROWS)
    ones = np.zeros((_ROWS, GROUP_K))
    ones[rows, rows] = 1
    rest, digits = modelled.copy(), []
    for _ in range(_DIGITS):
        digit = np.zeros((GROUP_K, _COLUMNS))
        digit[:_ROWS] = rest.astype(b_type).astype(np.float64)
        rest -= digit[:_ROWS]
        digits.append(-digit)
    whole_a, whole_b = np.concatenate([a, *[ones] * _DIGITS], axis=1), np.concatenate([b, *digits])
    aq = np.ones((_ROWS, 1 + _DIGITS))
    p = Problem(
        *(encode(kind, x) for kind, x in ((kinds.a, whole_a), (kinds.b, whole_b), (kinds.aq, aq))),
        exact=rest,
    )
    assert np.array_equal(expected(rest, kernel.config["out"]).astype(np.float64), rest), "C holds what is left"
    o = bench.place(kernel, p, Case(*p.shape))
    try:
        c = bench.multiply(kernel, o).astype(np.float64)
    finally:
        bench.release(o)
    wrong = c != rest
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        unit = 2.0 ** (np.frexp(modelled[i, j])[1] - 1 - wgmma.BITS)
        raise Wrong(
            f"{label}: {wrong.sum()} of {wrong.size} sums are not the model's; [{i},{j}]: model {modelled[i, j]!r}, "
            f"kernel {modelled[i, j] + c[i, j] - rest[i, j]!r}, {(c[i, j] - rest[i, j]) / unit} last places apart"
        )
    # The sums are the model's: is the bound one for them?
    a_q = (
        whole_a[:, :GROUP_K].astype(np.float32)
        if kinds.a == INT4
        else p.a[:, :GROUP_K].view(kind_dtype(kinds.a, "ocp"))
    )
    one = np.ones((_ROWS, 1), np.float32)
    exact = reference_gemm_aquant(a_q, b.astype(b_type), one)
    bound = error_bound(a_q, b.astype(b_type), one, exact, "f32", find_arch(kernel.arch).product_sum)
    over = np.abs(modelled - exact) / bound
    if over.max() > 1:
        raise Wrong(f"{label}: an error {over.max()} times its bound")
