"""What a call of gemm_aquant comes to: variant, layout, kernel and leading dimensions, from types, shapes and strides.

A plan depends on nothing else and holds no array, so it is made once for all calls that look the same.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from gemmill.arch import ARCHS, Arch, find_arch, host_archs
from gemmill.arrays import View, view_of
from gemmill.choice import Wanted, choose_kernel, remembered, takes_shuffled
from gemmill.dtypes import output_dtype, output_kind, variant_of
from gemmill.errors import ArgumentError
from gemmill.layout import GROUP_K, LAYOUTS, find_layout, groups
from gemmill.library import call_rest
from gemmill.loader import Kernel, resolve
from gemmill.operands import Fp8Matrix, Int4Matrix, Leading, PreshuffledScale, leading_dimensions
from gemmill.variant import FP8_TYPES, INT4, OUTPUTS, dtype_name, find_variant


@dataclass(frozen=True)
class _Operands:
    """What the plan depends on, read from the arguments and checked against each other."""

    m: int
    n: int
    k: int
    variant: str
    encoding: str
    device: str
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
    """A decided call: everything but the pointers.

    Attributes
    ----------
    kernel : Kernel or None
        None where there is nothing to multiply.
    shape : (int, int)
        M, N: C's.
    out_dtype : numpy.dtype
    sizes : tuple
        M N K lda ldaq ldb ldc.
    prepare_aq : str
        "": AQ goes as it is; "C", "F": copied to that order; "shuffle".
    groups : int
        Groups of AQ a tile, for "shuffle".
    workspace : int
        Bytes.
    through_host : bool
        Host arrays for a GPU kernel: its host-pointer entry moves them, packed.
    """

    kernel: Kernel | None
    shape: tuple[int, int]
    out_dtype: np.dtype[Any]
    sizes: tuple[int, ...] = ()
    prepare_aq: str = ""
    groups: int = 1
    workspace: int = 0
    through_host: bool = False

    @cached_property
    def on_host(self) -> bytes:
        """What follows the pointers of a call without workspace on host arrays."""
        return call_rest(self.sizes)


P = TypeVar("P")


class PlanCache(dict[Hashable, P]):
    """Plans by what they depend on. Dict operations are atomic, so readers take no lock."""

    most = 4096

    def add(self, signature: Hashable | None, plan: P) -> None:
        """Keep a plan, in place of all others where there are too many; a signature of None is not kept."""
        if signature is not None:
            if len(self) >= self.most:
                self.clear()
            self[signature] = plan


def make_plan(
    a_q: Any,
    b: Any,
    a_scale: Any,
    out: Any,
    out_dtype: Any,
    kernel: Kernel | str | None,
    arch: str | None,
    allow_untested: bool,
) -> Plan:
    """Decide a call of `gemmill.gemm_aquant`; arguments and errors are its own."""
    operands = _read_operands(a_q, b, a_scale)
    archs = _archs(operands.device, find_arch(arch) if arch is not None else None)
    chosen = None
    if kernel is not None:
        # A name alone means the kernel of the device's arch.
        only = arch if operands.device == "cpu" or isinstance(kernel, Kernel) else archs[0].name
        chosen = remembered((kernel, only, allow_untested), lambda: resolve(kernel, only, allow_untested))
        if operands.device != "cpu" and chosen.arch != archs[0].name:
            raise ArgumentError(f"{chosen!r} with arrays on {operands.device}, which runs {archs[0].name}")
    m, n, k = operands.m, operands.n, operands.k
    c = None if out is None else _read_out(out, m, n, operands.device)
    kind = _output_kind(c, out_dtype, chosen)
    if chosen is not None:
        _check_kernel(chosen, operands, kind)
    else:
        _check_encoding(operands, archs)
    dtype = output_dtype(kind)
    if m == 0 or n == 0 or k == 0:
        return Plan(None, (m, n), dtype)
    if chosen is None:
        wanted = Wanted(operands.variant, tuple(operands.layouts), kind, operands.tile_k)
        candidates = [row for row in archs if row.encoding == operands.encoding]
        chosen = choose_kernel(wanted, (m, n, k), candidates, allow_untested)
    return _plan_call(chosen, operands, dtype, c)


def _archs(device: str, row: Arch | None) -> list[Arch]:
    """Return the archs that may serve arrays of a device, best first."""
    if device == "cpu":
        return [row] if row else host_archs()
    from gemmill.cuda import arch_of_device  # only who has a device pays for it

    own = find_arch(arch_of_device(int(device.partition(":")[2])))
    if row is not None and row is not own:
        raise ArgumentError(f"arch {row.name} with arrays on {device}, which runs {own.name}: leave one of them out")
    return [own]


def _read_operands(a_q: Any, b: Any, a_scale: Any) -> _Operands:
    if isinstance(b, (Int4Matrix, PreshuffledScale)) or isinstance(a_q, PreshuffledScale):
        raise ArgumentError("only A may be an Int4Matrix, and only AQ a PreshuffledScale")
    if isinstance(a_scale, Int4Matrix):
        raise ArgumentError("AQ is an Int4Matrix: needed an array [M, ceil(K / 128)] or a PreshuffledScale")
    views = {label: operand_view(label, x) for label, x in (("A", a_q), ("B", b), ("AQ", a_scale))}
    shapes = {label: x.shape for label, x in views.items()}
    if isinstance(a_q, Int4Matrix):
        shapes["A"] = a_q.shape
    for label, shape in shapes.items():
        dimensions = 3 if label == "AQ" and isinstance(a_scale, PreshuffledScale) else 2
        if len(shape) != dimensions:
            raise ArgumentError(f"{label} has {len(shape)} dimensions, shape {shape}: needed {dimensions}")
    (m, k), (kb, n) = shapes["A"], shapes["B"]
    if k != kb:
        raise ArgumentError(f"A is [M, K] = {shapes['A']} and B [K, N] = {shapes['B']}: their K differ, {k} and {kb}")
    aq: Leading | None = None
    scales = views["AQ"]
    if isinstance(a_scale, PreshuffledScale):
        if (scales.shape[1], a_scale.groups) != (m, groups(k)):
            raise ArgumentError(f"{a_scale!r} does not fit A {shapes['A']}: needed M = {m}, {groups(k)} groups")
    else:
        if scales.shape != (m, groups(k)):
            raise ArgumentError(
                f"AQ has shape {scales.shape}: A {shapes['A']} has one scale for each of M = {m} rows and "
                f"ceil(K / {GROUP_K}) = {groups(k)} groups, so needed ({m}, {groups(k)})"
            )
        aq = leading_dimensions(scales.shape, scales.strides, scales.itemsize)
    device = _one_device(views)
    a_name = INT4 if isinstance(a_q, Int4Matrix) else views["A"].dtype
    variant, encoding = _variant_of(a_name, views["B"].dtype, scales.dtype)
    return _Operands(
        m, n, k, variant, encoding, device,
        a=_int4_order(a_q) if isinstance(a_q, Int4Matrix) else _read_order("A", views["A"]),
        b=_read_order("B", views["B"]), aq=aq,
        tile_k=a_scale.tile_k if isinstance(a_scale, PreshuffledScale) else None,
    )  # fmt: skip


def operand_view(label: str, x: Any, stream: int = 0) -> View:
    """Return the View of an operand, or of the array inside it; `stream` as in gemmill.arrays.view_of."""
    if isinstance(x, (Int4Matrix, PreshuffledScale)):
        return view_of(label, x.data, stream)
    if isinstance(x, Fp8Matrix):
        return x.view(label, stream)
    return view_of(label, x, stream)


def _one_device(views: dict[str, View]) -> str:
    devices = {label: view.device for label, view in views.items()}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{label} on {device}" for label, device in devices.items())
        raise ArgumentError(f"the operands lie apart: {where}; needed all on one device")
    return devices["B"]


def _variant_of(a: str, b: str, aq: str) -> tuple[str, str]:
    try:
        return variant_of(a, b, aq)
    except ArgumentError as error:
        if not {"uint8", "void8"} & {a, b, aq}:
            raise
        raise ArgumentError(
            f"{error}\nbytes that are fp8 codes are told by gemmill.Fp8Matrix(x, {FP8_TYPES[0]!r}), "
            "packed int4 by gemmill.Int4Matrix(x, (M, K))"
        ) from None


def _int4_order(x: Int4Matrix) -> Leading:
    rows, cols = x.shape
    either = rows <= 1 or cols <= 1
    return Leading(cols if x.order == "C" or either else None, rows if x.order == "F" or either else None)


def _read_order(label: str, x: View) -> Leading:
    found = leading_dimensions(x.shape, x.strides, x.itemsize)
    if found.row is None and found.col is None:
        raise ArgumentError(
            f"{label} is neither row- nor column-major ({x}): accepted is one dimension of unit stride "
            "and the other at least packed; copy it first, e.g. numpy.ascontiguousarray(x) or x.contiguous()"
        )
    return found


def _output_kind(out: View | None, out_dtype: Any, kernel: Kernel | None) -> str:
    if out is not None:
        kind = output_kind(out.dtype)
        if out_dtype is not None and output_kind(out_dtype) != kind:
            raise ArgumentError(f"out is {out.dtype}, out_dtype {out_dtype!r}: leave one of them out")
        return kind
    if out_dtype is not None:
        return output_kind(out_dtype)
    return str(kernel.config["out"]) if kernel is not None else "f16"


def _read_out(out: Any, m: int, n: int, device: str) -> View:
    if isinstance(out, (Int4Matrix, PreshuffledScale, Fp8Matrix)):
        raise ArgumentError(f"out is a {type(out).__qualname__}: needed an array")
    view = view_of("out", out)
    if view.shape != (m, n):
        raise ArgumentError(f"out has shape {view.shape}: needed (M, N) = ({m}, {n})")
    if leading_dimensions(view.shape, view.strides, view.itemsize).row is None:
        raise ArgumentError(f"out is not row-major ({view}): C needs unit stride along N")
    if view.device != device:
        raise ArgumentError(f"out lies on {view.device}, the operands on {device}: needed all on one device")
    return view


def _check_encoding(operands: _Operands, rows: list[Arch]) -> None:
    """Refuse operands of the other fp8 encoding: the same bytes mean other values there."""
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
    _check_encoding(operands, [find_arch(kernel.arch)])
    config = kernel.config
    if config["variant"] != operands.variant:
        raise ArgumentError(f"{kernel!r} is of variant {config['variant']}; the operands are {operands.variant}")
    if not operands.fits(config["layout"]):
        raise ArgumentError(
            f"{kernel!r} has layout {config['layout']}; the operands' strides mean {' or '.join(operands.layouts)}"
        )
    if config["out"] != kind:
        raise ArgumentError(f"{kernel!r} writes {OUTPUTS[config['out']]}, not {OUTPUTS[kind]}")
    if operands.tile_k is not None and not takes_shuffled(kernel.config, kernel.name, operands.tile_k):
        raise ArgumentError(
            f"AQ is shuffled for tile_k {operands.tile_k}, {kernel!r} "
            + (f"has tile_k {config['tile'][2]}" if kernel.preshuffle else "takes it unshuffled")
        )


def _plan_call(kernel: Kernel, operands: _Operands, dtype: np.dtype[Any], out: View | None) -> Plan:
    m, n, k = operands.m, operands.n, operands.k
    layout = find_layout(kernel.config["layout"])
    a = operands.a.col if layout.a_col else operands.a.row
    b = operands.b.col if layout.b_col else operands.b.row
    assert a is not None and b is not None  # _check_kernel or choose_kernel saw to it
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
    if operands.device == "cpu" and ARCHS[kernel.arch].backend != "cpu":
        return Plan(kernel, (m, n), dtype, through_host=True)
    ldc = n if out is None or m <= 1 else out.strides[0] // out.itemsize
    sizes = (m, n, k, a, aq or 0, b, ldc)
    return Plan(kernel, (m, n), dtype, sizes, prepare, per_tile, kernel.library.workspace_bytes(m, n, k))


def check_apart(label: str, operand: View, out: View) -> None:
    """Refuse an out that shares memory with an operand."""
    if operand.overlaps(out):
        raise ArgumentError(f"out overlaps {label} in memory: give an array of its own")
