"""gemm_aquant on numpy arrays.

Everything that depends only on types, shapes, strides and options (variant, layout, kernel, leading dimensions) is
decided once and kept as a plan, so that a repeated call costs a dictionary look-up beside the C call. A plan holds no
array. Kernels stay loaded for the life of the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gemmill.arch import ARCHS, Arch, find_arch, host_archs
from gemmill.dtypes import output_dtype, output_kind, variant_of
from gemmill.errors import ArgumentError, KernelNotFound, UnsupportedError
from gemmill.layout import GROUP_K, LAYOUTS, find_layout, groups
from gemmill.loader import Candidate, Kernel, by_pattern, explain_miss, first_usable, resolve
from gemmill.operands import (
    Array,
    Int4Matrix,
    Leading,
    PreshuffledScale,
    describe_array,
    leading_dimensions,
    shuffled,
)
from gemmill.search import VARIABLE, search_path
from gemmill.variant import INT4, OUTPUTS, dtype_name, find_variant

_MAX_PLANS = 4096
_OVERLAP_WORK = 100_000  # steps of numpy's exact overlap search before it counts as an overlap
_WORKSPACE_ALIGN = 256  # native/abi.h


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
class _Plan:
    """A decided call: everything but the pointers."""

    kernel: Kernel | None  # None: nothing to multiply
    dims: tuple[int, int, int, int, int, int]  # M N K lda ldaq ldb
    out_dtype: np.dtype[Any]
    prepare_aq: str = ""  # "": as it is; "C", "F": copied to that order; "shuffle"
    b: int = 1  # groups a tile, for "shuffle"
    workspace: int = 0


# Plans and workspaces are caches of pure decisions; dict operations are atomic, so readers take no lock.
_plans: dict[tuple[Any, ...], _Plan] = {}
_plans_lock = threading.Lock()
_local = threading.local()


def gemm_aquant(
    a_q: Array | Int4Matrix,
    b: Array,
    a_scale: Array | PreshuffledScale,
    out: Array | None = None,
    out_dtype: Any = None,
    kernel: Kernel | str | None = None,
    arch: str | None = None,
    *,
    allow_untested: bool = False,
) -> Array:
    """Multiply a block-scaled A by B: ``C[m,n] = sum_g AQ[m,g] * sum_{k in g} A[m,k] * B[k,n]``.

    A group g is 128 consecutive k; the last one may be short. Layouts are read from the strides: ``w.T`` of an
    [N, K] weight is a column-major B.

    Parameters
    ----------
    a_q : numpy.ndarray or Int4Matrix
        A [M, K]: float8_e4m3fn or float8_e5m2 (the FNUZ types on archs that use them), row- or column-major,
        rows (columns) may lie further apart than packed; or packed int4.
    b : numpy.ndarray
        B [K, N], fp8, row- or column-major likewise.
    a_scale : numpy.ndarray or PreshuffledScale
        AQ [M, ceil(K / 128)], float32, or B's type with an int4 A. Any strides: where the kernel wants another
        order than it has, it is copied. A PreshuffledScale selects a preshufflequant kernel of its tile_k.
    out : numpy.ndarray, optional
        C [M, N], written in place and returned: row-major, rows may lie further apart than packed; must not overlap
        an input.
    out_dtype : dtype, optional
        float16 (default), bfloat16 or float32.
    kernel : Kernel or str, optional
        A loaded kernel, a kernel's name or a key; else the best that the search path has: best arch first,
        family decode unless AQ is preshuffled.
    arch : str, optional
        Only this arch; else whichever the host runs.
    allow_untested : bool
        Take kernels without a passed selftest.

    Returns
    -------
    numpy.ndarray
        C [M, N]; empty where M or N is 0, zeros where K is 0.

    Raises
    ------
    ArgumentError
        If dtypes, shapes, strides, encoding or options do not fit; the text says what would.
    KernelNotFound
        If no cache has a usable kernel; the text lists what was searched and refused, and the build command.
    Refused
        If `kernel` names one that must not be loaded.
    UnsupportedError, DeviceError
        If the kernel says so.
    """
    signature = (
        _signature(a_q),
        _signature(b),
        _signature(a_scale),
        None if out is None else _signature(out),
        out_dtype,
        kernel,
        arch,
        allow_untested,
        os.environ.get(VARIABLE),
    )
    try:
        plan = _plans.get(signature)
    except TypeError:  # something unhashable, which the checks below refuse by name
        plan = None
    if plan is None:
        plan = _make_plan(a_q, b, a_scale, out, out_dtype, kernel, arch, allow_untested)
        with _plans_lock:
            if len(_plans) >= _MAX_PLANS:
                _plans.clear()
            _plans[signature] = plan
    m, n, k, lda, ldaq, ldb = plan.dims
    a = a_q.data if isinstance(a_q, Int4Matrix) else a_q
    aq = a_scale.data if isinstance(a_scale, PreshuffledScale) else a_scale
    if out is None:
        c = np.empty((m, n), plan.out_dtype)
        ldc = n
    else:
        _check_out(out, a, b, aq)
        c = out
        ldc = c.strides[0] // c.itemsize if m > 1 else n
    if plan.kernel is None:
        c[...] = 0
        return c
    if plan.prepare_aq:
        aq = shuffled(aq, plan.b) if plan.prepare_aq == "shuffle" else np.array(aq, order=plan.prepare_aq)  # type: ignore[call-overload]
    workspace = _workspace(plan.workspace) if plan.workspace else None
    library = plan.kernel.library
    code = library.run(
        a.ctypes.data, aq.ctypes.data, b.ctypes.data, c.ctypes.data,
        m, n, k, lda, ldaq, ldb, ldc,
        workspace, plan.workspace, None,
    )  # fmt: skip
    if code:
        library.check(code)
    return c


def _signature(x: Any) -> tuple[Any, ...]:
    if type(x) is np.ndarray:
        return (x.dtype, x.shape, x.strides)
    if isinstance(x, Int4Matrix):
        return (Int4Matrix, x.shape, x.order)
    if isinstance(x, PreshuffledScale):
        return (PreshuffledScale, x.data.dtype, x.data.shape, x.groups, x.tile_k)
    if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        return (x.dtype, x.shape, x.strides)
    raise ArgumentError(
        f"an operand is a {type(x).__module__}.{type(x).__qualname__}: needed a numpy.ndarray without mask "
        "(A may be an Int4Matrix, AQ a PreshuffledScale)"
    )


def _make_plan(
    a_q: Array | Int4Matrix,
    b: Array,
    a_scale: Array | PreshuffledScale,
    out: Array | None,
    out_dtype: Any,
    kernel: Kernel | str | None,
    arch: str | None,
    allow_untested: bool,
) -> _Plan:
    operands = _read_operands(a_q, b, a_scale)
    row = find_arch(arch) if arch is not None else None
    chosen = None if kernel is None else resolve(kernel, arch, allow_untested)
    kind = _output_kind(out, out_dtype, chosen)
    m, n, k = operands.m, operands.n, operands.k
    if out is not None:
        _check_out_shape(out, m, n)
    if chosen is not None:
        _check_kernel(chosen, operands, kind)
    else:
        _check_encoding(operands, row)
    dtype = output_dtype(kind)
    if m == 0 or n == 0 or k == 0:
        return _Plan(None, (m, n, k, 0, 0, 0), dtype)
    if chosen is None:
        chosen = _select(operands, kind, row, allow_untested)
    return _plan_call(chosen, operands, dtype)


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
    if not isinstance(out, np.ndarray) or out.shape != (m, n):
        raise ArgumentError(f"out has shape {out.shape}: needed (M, N) = ({m}, {n})")
    if leading_dimensions(out.shape, out.strides, out.itemsize).row is None:
        raise ArgumentError(f"out is not row-major ({describe_array(out)}): C needs unit stride along N")


def _check_out(out: Array, *inputs: Array) -> None:
    if not out.flags.writeable:
        raise ArgumentError("out is read-only: needed a writable array")
    for label, x in zip(("A", "B", "AQ"), inputs, strict=True):
        if np.may_share_memory(out, x) and _overlap(out, x):
            raise ArgumentError(f"out overlaps {label} in memory: give an array of its own")


def _overlap(x: Array, y: Array) -> bool:
    try:
        return bool(np.shares_memory(x, y, max_work=_OVERLAP_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


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
    return "_preshufflequant" in name and config["tile"][2] // GROUP_K == tile_k // GROUP_K


def _select(operands: _Operands, kind: str, row: Arch | None, allow_untested: bool) -> Kernel:
    """Return the best usable kernel: best arch first, then the layouts that fit, then the search path's order."""
    places = list(search_path())
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


def _plan_call(kernel: Kernel, operands: _Operands, dtype: np.dtype[Any]) -> _Plan:
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
    return _Plan(kernel, (m, n, k, a, aq or 0, b), dtype, prepare, per_tile, workspace)


def _workspace(size: int) -> int:
    """Return the address of this thread's workspace, at least `size` bytes."""
    buffer = getattr(_local, "workspace", None)
    if buffer is None or buffer.size < size + _WORKSPACE_ALIGN:
        buffer = _local.workspace = np.empty(size + _WORKSPACE_ALIGN, np.uint8)
    return -(-buffer.ctypes.data // _WORKSPACE_ALIGN) * _WORKSPACE_ALIGN
