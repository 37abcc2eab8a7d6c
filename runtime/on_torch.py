"""gemm_aquant on torch tensors: on their CUDA device and torch's current stream, or on the CPU.

The way of a repeated call is short, because a decode step goes it hundreds of times: attributes of the tensors are the
key of a plan, and the plan holds what the C call takes. What the key leaves out, the C call finds when it asks the
driver about the pointers: a tensor on another device, or in host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64
from typing import Any

import torch
from gemmill import api
from gemmill.arrays import HOST, View, view_of
from gemmill.dtypes import named_dtype
from gemmill.errors import ArgumentError
from gemmill.operands import Fp8Matrix, Int4Matrix, PreshuffledScale, groups_a_tile, told
from gemmill.plan import Plan, PlanCache, check_apart, make_plan, operand_view

# What torch.cuda.current_stream and torch.cuda.current_device ask, without the objects that they make.
_raw_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_empty_like = torch.empty_like

_PLAIN = (torch.Tensor, torch.Tensor, torch.Tensor)
_WRAPPERS = frozenset((Int4Matrix, Fp8Matrix, PreshuffledScale))


class TorchPlan:
    """A plan as calls on tensors use it.

    Attributes
    ----------
    plan : Plan
    index : int
        The device.
    like : torch.Tensor
        One element, expanded to C's shape: the quickest way to say what to allocate.
    run : callable or None
        The C call; None where there is nothing to multiply.
    sizes : tuple or None
        What it takes between the pointers and the stream; None where AQ must be prepared or a workspace made first.
    prepare : callable or None
        What brings AQ into the kernel's order.
    a_span, aq_span, b_span, c_span : int
        Bytes that the operands stretch over; C's where it was given.
    """

    __slots__ = ("a_span", "aq_span", "b_span", "c_span", "index", "like", "plan", "prepare", "run", "sizes")

    def __init__(self, plan: Plan, a: View, aq: View, b: View, out: View | None) -> None:
        self.plan = plan
        self.index = int(b.device.partition(":")[2])
        self.like = torch.empty(1, dtype=getattr(torch, plan.out_dtype.name), device=b.device).expand(plan.shape)
        self.run: Any = plan.kernel.library.run if plan.kernel else None
        self.prepare = _preparation(plan)
        self.sizes = None if self.prepare or plan.workspace else (*plan.sizes, None, c_int64(0))
        self.a_span, self.aq_span, self.b_span = a.span, aq.span, b.span
        self.c_span = out.span if out else 0


_plans: PlanCache[TorchPlan] = PlanCache()


def gemm_aquant_on_torch(
    a_q: Any, b: Any, a_scale: Any, out: Any, out_dtype: Any, kernel: Any, arch: Any, stream: Any, allow_untested: bool
) -> Any:
    """Multiply torch tensors; arguments and errors are those of `gemmill.gemm_aquant`."""
    plan = key = None
    kinds = (type(a_q), type(b), type(a_scale))
    if kinds == _PLAIN:
        a, w, aq, said = a_q, b, a_scale, None
    else:
        a, w, aq = (x.data if type(x) in _WRAPPERS else x for x in (a_q, b, a_scale))
        said = (told(a_q), told(b), told(a_scale), type(a), type(w), type(aq))
    try:
        key = (
            a.dtype, a.shape, a.stride(), w.dtype, w.shape, w.stride(), aq.dtype, aq.shape, aq.stride(),
            w.get_device(), None if out is None else (type(out), out.dtype, out.shape, out.stride()),
            out_dtype, kernel, arch, stream, allow_untested, kinds, said,
        )  # fmt: skip
        plan = _plans.get(key)
    except (AttributeError, RuntimeError, TypeError):
        key = None  # no tensor, a sparse one, or something unhashable, which the checks below refuse by name
    if plan is None:
        if stream is not None:
            raise ArgumentError(f"stream is {stream!r}: torch tensors go on torch's current stream; leave it out")
        if view_of("B", w).device == HOST:
            return _on_cpu(a_q, b, a_scale, out, out_dtype, kernel, arch, allow_untested)
        with torch.cuda.device(w.get_device()):  # a kernel makes itself ready for the device that is current
            plan = _make(a_q, b, a_scale, out, out_dtype, kernel, arch, allow_untested)
        _plans.add(key, plan)
    if plan.run is None:
        return (_empty_like(plan.like) if out is None else out).zero_()
    a_at, aq_at, b_at = a.data_ptr(), aq.data_ptr(), w.data_ptr()
    if out is None:
        c = _empty_like(plan.like)
        c_at = c.data_ptr()
    else:
        c = out
        c_at = c.data_ptr()
        c_end = c_at + plan.c_span
        if (
            (a_at < c_end and c_at < a_at + plan.a_span)
            or (b_at < c_end and c_at < b_at + plan.b_span)
            or (aq_at < c_end and c_at < aq_at + plan.aq_span)
        ):
            for label, x in (("A", a_q), ("B", b), ("AQ", a_scale)):
                check_apart(label, operand_view(label, x), view_of("out", out))
    index = plan.index
    if _current_device() != index:
        with torch.cuda.device(index):
            return _launch(plan, a_at, aq_at, b_at, c_at, aq, c)
    if plan.sizes is None:
        return _launch(plan, a_at, aq_at, b_at, c_at, aq, c)
    code = plan.run(a_at, aq_at, b_at, c_at, *plan.sizes, _raw_stream(index))
    if code:
        plan.plan.kernel.library.check(code)  # type: ignore[union-attr]
    return c


def _launch(plan: TorchPlan, a_at: int, aq_at: int, b_at: int, c_at: int, aq: Any, c: Any) -> Any:
    """Make the C call with all that it may need; the plan's device is the current one."""
    if plan.prepare:
        aq = plan.prepare(aq)
        aq_at = aq.data_ptr()
    # torch's allocator gives both back to this stream alone, so they may go before the kernel is done.
    size = plan.plan.workspace
    workspace = torch.empty(size, dtype=torch.uint8, device=c.device) if size else None
    at = None if workspace is None else workspace.data_ptr()
    code = plan.run(a_at, aq_at, b_at, c_at, *plan.plan.sizes, at, size, _raw_stream(plan.index))
    if code:
        plan.plan.kernel.library.check(code)  # type: ignore[union-attr]
    return c


def _make(
    a_q: Any, b: Any, a_scale: Any, out: Any, out_dtype: Any, kernel: Any, arch: Any, allow_untested: bool
) -> TorchPlan:
    if out is not None and type(out) not in (torch.Tensor, torch.nn.Parameter):
        raise ArgumentError(
            f"out is a {type(out).__module__}.{type(out).__qualname__}: needed a torch.Tensor, as B is one"
        )
    for label, x in (("A", a_q), ("AQ", a_scale)):
        data = x.data if type(x) in _WRAPPERS else x
        if not isinstance(data, torch.Tensor):
            kind = f"{type(data).__module__}.{type(data).__qualname__}"
            raise ArgumentError(f"{label} is a {kind}: needed a torch.Tensor, as B is one")
    made = make_plan(a_q, b, a_scale, out, out_dtype, kernel, arch, allow_untested)
    views = (operand_view("A", a_q), operand_view("AQ", a_scale), operand_view("B", b))
    return TorchPlan(made, *views, None if out is None else view_of("out", out))


def _preparation(plan: Plan) -> Callable[[Any], Any] | None:
    if plan.prepare_aq == "C":
        return lambda aq: aq.detach().clone(memory_format=torch.contiguous_format)
    if plan.prepare_aq == "F":
        return lambda aq: aq.detach().t().clone(memory_format=torch.contiguous_format)
    return (lambda aq: shuffled_tensor(aq, plan.groups)) if plan.prepare_aq else None


def shuffled_tensor(a_scale: Any, b: int) -> Any:
    """Return AQ [M, QK] as [T, M, b], groups beyond QK zero."""
    m, groups = a_scale.shape
    tiles = -(-groups // b)
    # As bytes, since torch's fp8 types have few operations; all bits zero is +0.
    codes = a_scale.detach()
    codes = codes.view(torch.uint8) if codes.element_size() == 1 else codes
    padded = torch.zeros((m, tiles * b), dtype=codes.dtype, device=codes.device)
    padded[:, :groups] = codes
    return padded.view(m, tiles, b).permute(1, 0, 2).contiguous().view(a_scale.dtype)


def preshuffle_tensor(a_scale: Any, tile_k: int) -> PreshuffledScale:
    """Do what `gemmill.preshuffle_scale` does, on a tensor's own device."""
    return PreshuffledScale(shuffled_tensor(a_scale, groups_a_tile(tile_k)), a_scale.shape[1], tile_k)


def _on_cpu(
    a_q: Any, b: Any, a_scale: Any, out: Any, out_dtype: Any, kernel: Any, arch: Any, allow_untested: bool
) -> Any:
    a_q, b, a_scale = (_host_operand(label, x) for label, x in (("A", a_q), ("B", b), ("AQ", a_scale)))
    into = None if out is None else _host_operand("out", out)
    c = api.gemm_aquant(a_q, b, a_scale, into, out_dtype, kernel, arch, allow_untested=allow_untested)
    if out is not None:
        return out
    dtype = getattr(torch, c.dtype.name)
    return torch.from_numpy(c.view("int16") if dtype is torch.bfloat16 else c).view(dtype)


def _host_operand(label: str, x: Any) -> Any:
    """Return an operand over the same memory, as numpy has it."""
    if isinstance(x, Int4Matrix):
        return Int4Matrix(_host_operand(label, x.data), x.shape, x.order)
    if isinstance(x, PreshuffledScale):
        return PreshuffledScale(_host_operand(label, x.data), x.groups, x.tile_k)
    if isinstance(x, Fp8Matrix):
        return Fp8Matrix(_host_operand(label, x.data), x.dtype)
    view = view_of(label, x)
    if view.device != HOST:
        raise ArgumentError(f"{label} lies on {view.device}, B in host memory: needed all on one device")
    if not isinstance(x, torch.Tensor):
        raise ArgumentError(
            f"{label} is a {type(x).__module__}.{type(x).__qualname__}: needed a torch.Tensor, as B is one"
        )
    bits = {1: torch.uint8, 2: torch.int16}.get(view.itemsize, x.dtype)
    return x.detach().view(bits).numpy().view(named_dtype(view.dtype))
