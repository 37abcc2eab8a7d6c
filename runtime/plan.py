"""What a call of gemm_aquant comes to: variant, layout, kernel and leading dimensions, from types, shapes and strides.

A plan depends on nothing else and holds no array, so `gemmill.api` makes it once for all calls that look the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gemmill.arch import ARCHS, Arch, find_arch, host_archs
from gemmill.dtypes import output_dtype, output_kind, variant_of
from gemmill.errors import ArgumentError, KernelNotFound, UnsupportedError
from gemmill.layout import GROUP_K, LAYOUTS, find_layout, groups
from gemmill.loader import Candidate, Kernel, by_pattern, explain_miss, first_usable, resolve
from gemmill.operands import Array, Int4Matrix, Leading, PreshuffledScale, describe_array, leading_dimensions
from gemmill.search import VARIABLE, SearchPath
from gemmill.variant import INT4, OUTPUTS, dtype_name, find_variant


@dataclass(frozen=True)
class _Operands:
    """What the plan depends on, read from the arguments and checked against each other."""

    m: int
    n: int
    k: int
    variant: str
    encoding: str
    a: Leading
    b: Leading
    aq: Leading | None  # None: preshuffled
    tile_k: int | None  # of a preshuffled AQ

    def fits(self, layout: str) -> bool:
        row = find_layout(layout)
        a = self.a.col if row.a_col else self.a.row
        b = self.b.col if row.b_col else self.b.row
        return a is not None and b is not None

    @property
    def layouts(self) -> list[str]:
        return [name for name in LAYOUTS if self.fits(name)]


@dataclass(frozen=True)
class Plan:
    """A decided call: everything but the pointers."""

    kernel: Kernel | None  # None: nothing to multiply
    dims: tuple[int, int, int, int, int, int]  # M N K lda ldaq ldb
    out_dtype: np.dtype[Any]
    prepare_aq: str = ""  # "": as it is; "C", "F": copied to that order; "shuffle"
    b: int = 1  # groups a tile, for "shuffle"
    workspace: int = 0


# Chosen kernels by what the choice depends on, so that a new shape costs no search. Entries are only ever added.
_kernels: dict[tuple[Any, ...], Kernel] = {}


def forget() -> None:
    """Forget the kernels chosen so far; those that are loaded stay loaded."""
    _kernels.clear()


def make_plan(
    a_q: Array | Int4Matrix,
    b: Array,
    a_scale: Array | PreshuffledScale,
    out: Array | None,
    out_dtype: Any,
    kernel: Kernel | str | None,
    arch: str | None,
    allow_untested: bool,
) -> Plan:
    """Decide a call of `gemmill.gemm_aquant`; arguments and errors are its own."""
    operands = _read_operands(a_q, b, a_scale)
    row = find_arch(arch) if arch is not None else None
    where = (arch, allow_untested, os.environ.get(VARIABLE))
    chosen = None if kernel is None else _remembered((kernel, *where), lambda: resolve(kernel, arch, allow_untested))
    m, n, k = operands.m, operands.n, operands.k
    if out is not None:
        _check_out_shape(out, m, n)
    kind = _output_kind(out, out_dtype, chosen)
    if chosen is not None:
        _check_kernel(chosen, operands, kind)
    else:
        _check_encoding(operands, row)
    dtype = output_dtype(kind)
    if m == 0 or n == 0 or k == 0:
        return Plan(None, (m, n, k, 0, 0, 0), dtype)
    if chosen is None:
        wanted = (operands.variant, operands.encoding, *operands.layouts, operands.tile_k, kind)
        chosen = _remembered((*wanted, *where), lambda: _select(operands, kind, row, allow_untested))
    return _plan_call(chosen, operands, dtype)


def _remembered(key: tuple[Any, ...], choose: Callable[[], Kernel]) -> Kernel:
    try:
        kernel = _kernels.get(key)
    except TypeError:  # an unhashable argument, which choose() refuses by name
        kernel = None
    if kernel is None:
        kernel = choose()
        _kernels[key] = kernel
    return kernel


def _read_operands(a_q: Array | Int4Matrix, b: Array, a_scale: Array | PreshuffledScale) -> _Operands:
    if isinstance(b, (Int4Matrix, PreshuffledScale)) or isinstance(a_q, PreshuffledScale):
        raise ArgumentError("only A may be an Int4Matrix, and only AQ a PreshuffledScale")
    if isinstance(a_scale, Int4Matrix):
        raise ArgumentError("AQ is an Int4Matrix: needed an array [M, ceil(K / 128)] or a PreshuffledScale")
    for label, x in (("A", a_q), ("B", b), ("AQ", a_scale)):
        if isinstance(x, np.ndarray) and x.ndim != 2:
            raise ArgumentError(f"{label} has {x.ndim} dimensions, shape {x.shape}: needed 2")
    (m, k), (kb, n) = a_q.shape, b.shape
    if k != kb:
        raise ArgumentError(f"A is [M, K] = {a_q.shape} and B [K, N] = {b.shape}: their K differ, {k} and {kb}")
    aq: Leading | None = None
    scales = a_scale.data if isinstance(a_scale, PreshuffledScale) else a_scale
    if isinstance(a_scale, PreshuffledScale):
        if (a_scale.data.shape[1], a_scale.groups) != (m, groups(k)):
            raise ArgumentError(f"{a_scale!r} does not fit A {a_q.shape}: needed M = {m}, {groups(k)} groups")
    else:
        if a_scale.shape != (m, groups(k)):
            raise ArgumentError(
                f"AQ has shape {a_scale.shape}: A {a_q.shape} has one scale for each of M = {m} rows and "
                f"ceil(K / {GROUP_K}) = {groups(k)} groups, so needed ({m}, {groups(k)})"
            )
        aq = leading_dimensions(a_scale.shape, a_scale.strides, a_scale.itemsize)
    a_name = INT4 if isinstance(a_q, Int4Matrix) else _native_name(a_q)
    variant, encoding = variant_of(a_name, _native_name(b), _native_name(scales))
    return _Operands(
        m, n, k, variant, encoding,
        a=_read_order("A", a_q), b=_read_order("B", b), aq=aq,
        tile_k=a_scale.tile_k if isinstance(a_scale, PreshuffledScale) else None,
    )  # fmt: skip


def _native_name(x: Array) -> str:
    return x.dtype.name if x.dtype.isnative else f"{x.dtype.name} (byte-swapped)"


def _read_order(label: str, x: Array | Int4Matrix) -> Leading:
    if isinstance(x, Int4Matrix):
        rows, cols = x.shape
        either = rows <= 1 or cols <= 1
        return Leading(
            cols if x.order == "C" or either else None,
            rows if x.order == "F" or either else None,
        )
    found = leading_dimensions(x.shape, x.strides, x.itemsize)
    if found.row is None and found.col is None:
        raise ArgumentError(
            f"{label} is neither row- nor column-major ({describe_array(x)}): accepted is one dimension of unit stride "
            "and the other at least packed; copy it first, e.g. numpy.ascontiguousarray(x)"
        )
    return found


def _output_kind(out: Array | None, out_dtype: Any, kernel: Kernel | None) -> str:
    if out is not None:
        kind = output_kind(out.dtype)
        if out_dtype is not None and output_kind(out_dtype) != kind:
            raise ArgumentError(f"out is {out.dtype}, out_dtype {out_dtype!r}: leave one of them out")
        return kind
    if out_dtype is not None:
        return output_kind(out_dtype)
    return str(kernel.config["out"]) if kernel is not None else "f16"


def _check_out_shape(out: Array, m: int, n: int) -> None:
    if not isinstance(out, np.ndarray):
        raise ArgumentError(f"out is a {type(out).__qualname__}: needed a numpy.ndarray")
    if out.shape != (m, n):
        raise ArgumentError(f"out has shape {out.shape}: needed (M, N) = ({m}, {n})")
    if leading_dimensions(out.shape, out.strides, out.itemsize).row is None:
        raise ArgumentError(f"out is not row-major ({describe_array(out)}): C needs unit stride along N")


def _check_encoding(operands: _Operands, row: Arch | None) -> None:
    """Refuse operands of the other fp8 encoding: the same bytes mean other values there."""
    rows = [row] if row else host_archs()
    if any(r.encoding == operands.encoding for r in rows):
        return
    variant = find_variant(operands.variant)
    came = dtype_name(variant.b, operands.encoding)
    archs = ", ".join(r.name for r in rows)
    takers = ", ".join(r.name for r in ARCHS.values() if r.encoding == operands.encoding)
    needed = dtype_name(variant.b, rows[0].encoding)
    raise ArgumentError(
        f"{came} is an fp8 type of the {operands.encoding.upper()} encoding (archs {takers}); {archs} uses "
        f"{rows[0].encoding.upper()}: needed {needed}. The same bytes mean other values, so convert with astype"
    )


def _check_kernel(kernel: Kernel, operands: _Operands, kind: str) -> None:
    _check_encoding(operands, find_arch(kernel.arch))
    config = kernel.config
    if config["variant"] != operands.variant:
        raise ArgumentError(f"{kernel!r} is of variant {config['variant']}; the operands are {operands.variant}")
    if not operands.fits(config["layout"]):
        raise ArgumentError(
            f"{kernel!r} has layout {config['layout']}; the operands' strides mean {' or '.join(operands.layouts)}"
        )
    if config["out"] != kind:
        raise ArgumentError(f"{kernel!r} writes {OUTPUTS[config['out']]}, not {OUTPUTS[kind]}")
    if operands.tile_k is not None and not _takes_shuffled(kernel.config, kernel.name, operands.tile_k):
        raise ArgumentError(
            f"AQ is shuffled for tile_k {operands.tile_k}, {kernel!r} "
            + (f"has tile_k {config['tile'][2]}" if kernel.preshuffle else "takes it unshuffled")
        )


def _takes_shuffled(config: dict[str, Any], name: str, tile_k: int) -> bool:
    tile = config.get("tile")
    return "_preshufflequant" in name and isinstance(tile, list) and tile[2:] == [tile_k]


def _select(operands: _Operands, kind: str, row: Arch | None, allow_untested: bool) -> Kernel:
    """Return the best usable kernel: best arch first, then the layouts that fit, then the search path's order."""
    places = SearchPath()
    archs = [row] if row else [r for r in host_archs() if r.encoding == operands.encoding]

    def candidates() -> Iterator[Candidate]:
        for arch in archs:
            for layout in operands.layouts:
                pattern = f"gemm_aquant_{operands.variant}_{layout}_*"
                yield from by_pattern(
                    places, [arch.name], pattern, allow_untested,
                    lambda entry: _suits(entry.config, entry.name, operands, kind),
                )  # fmt: skip

    kernel, refused = first_usable(candidates())
    if kernel is not None:
        return kernel
    segment = "" if kind == "f16" else f"_out{kind}"
    wanted = f"{archs[0].name}/gemm_aquant_{operands.variant}_{operands.layouts[0]}_*{segment}"
    raise KernelNotFound(explain_miss(wanted, places, refused))


def _suits(config: dict[str, Any], name: str, operands: _Operands, kind: str) -> bool:
    if config.get("variant") != operands.variant or config.get("out") != kind:
        return False
    if operands.tile_k is not None:
        return _takes_shuffled(config, name, operands.tile_k)
    return config.get("family") == "decode"


def _plan_call(kernel: Kernel, operands: _Operands, dtype: np.dtype[Any]) -> Plan:
    if find_arch(kernel.arch).backend != "cpu":
        raise UnsupportedError(f"{kernel!r}: numpy arrays go to cpu kernels only")
    m, n, k = operands.m, operands.n, operands.k
    layout = find_layout(kernel.config["layout"])
    a = operands.a.col if layout.a_col else operands.a.row
    b = operands.b.col if layout.b_col else operands.b.row
    assert a is not None and b is not None  # _check_kernel or _select saw to it
    per_tile = kernel.config["tile"][2] // GROUP_K
    prepare = ""
    if kernel.preshuffle:
        aq: int | None = m * per_tile
        prepare = "shuffle" if operands.aq is not None else ""
    else:
        assert operands.aq is not None
        aq = operands.aq.col if layout.aq_col else operands.aq.row
        if aq is None:
            prepare = "F" if layout.aq_col else "C"
            aq = m if layout.aq_col else groups(k)
    workspace = kernel.library.workspace_bytes(m, n, k)
    return Plan(kernel, (m, n, k, a, aq or 0, b), dtype, prepare, per_tile, workspace)
