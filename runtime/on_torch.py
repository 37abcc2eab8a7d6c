"""gemm_aquant on torch tensors: on their CUDA device and torch's current stream, or on the CPU.

The way of a repeated call is short, because a decode step goes it hundreds of times. A plan holds what the C call
takes. It is looked up by B's address first, since weights stay where they are, and taken if torch says that all tensors
are like those of the plan (gemmill.guards); otherwise it is looked up by the tensors' attributes. Both tell on which
device each tensor lies. So the C call need not ask the driver; it makes that device the current one where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gemmill import api
from gemmill.arrays import HOST, View, view_of
from gemmill.dtypes import named_dtype
from gemmill.errors import ArgumentError
from gemmill.guards import guard_of
from gemmill.library import call_pointers, call_rest
from gemmill.operands import Fp8Matrix, Int4Matrix, PreshuffledScale, groups_a_tile, told
from gemmill.plan import Plan, PlanCache, check_apart, make_plan, operand_view

# What torch.cuda.current_stream asks, without the object that it makes.
_raw_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
_empty_like = torch.empty_like

_WRAPPERS = frozenset((Int4Matrix, Fp8Matrix, PreshuffledScale))
_MOST_STREAMS = 64  # remembered of a plan


class TorchPlan:
    """A plan as calls on tensors use it.

    Attributes
    ----------
    plan : Plan
    index : int
        The device.
    like : torch.Tensor
        One element, expanded to C's shape: the quickest way to say what to allocate.
    launch : callable or None
        The C call; None where there is nothing to multiply.
    plain : bool
        Whether there is a C call to make, which takes AQ as it is, and no workspace.
    by_stream : dict
        What follows the pointers in the call, for streams that it was made on.
    prepare : callable or None
        What brings AQ into the kernel's order.
    alike : callable or None
        Tells whether A, B, AQ, and C where it was given, are like those of the plan; None if torch can't.
    spans : tuple of int
        Bytes that A, AQ and B stretch over, and minus those of C where it was given: C at c overlaps A at a where
        ``-C < c - a < A``.
    """

    __slots__ = ("alike", "by_stream", "index", "launch", "like", "plain", "plan", "prepare", "spans")

    def __init__(self, plan: Plan, a: View, aq: View, b: View, out: View | None) -> None:
        self.plan = plan
        self.index = int(b.device.partition(":")[2])
        self.like = torch.empty(1, dtype=getattr(torch, plan.out_dtype.name), device=b.device).expand(plan.shape)
        self.launch: Any = plan.kernel.library.launch if plan.kernel else None
        self.prepare = _preparation(plan)
        self.plain = bool(plan.kernel) and not self.prepare and not plan.workspace
        self.alike: Callable[..., bool] | None = None
        self.spans = (a.span, aq.span, b.span, -out.span if out else 0)
        self.by_stream: dict[int, bytes] = {}

    def remember(self, stream: int) -> bytes:
        """Make what follows the pointers in calls on a stream."""
        if len(self.by_stream) >= _MOST_STREAMS:
            self.by_stream.clear()
        made = self.by_stream[stream] = call_rest(self.plan.sizes, 0, 0, stream, self.index)
        return made


_plans: PlanCache[TorchPlan] = PlanCache()  # by attributes
_placed: PlanCache[TorchPlan] = PlanCache()  # by B's address, for tensors that are alike


def gemm_aquant_on_torch(
    a_q: Any, b: Any, a_scale: Any, out: Any, out_dtype: Any, kernel: Any, arch: Any, stream: Any, allow_untested: bool
) -> Any:
    """Multiply torch tensors; arguments and errors are those of `gemmill.gemm_aquant`."""
    plan: TorchPlan | None = None
    a, aq = a_q, a_scale
    if out_dtype is kernel is arch is stream is None and not allow_untested:
        try:
            b_at = b.data_ptr()
            plan = _placed.get(b_at if out is None else ~b_at)  # an int is found in a third of a tuple's time
            if plan and not (plan.alike(a, b, aq) if out is None else plan.alike(a, b, aq, out)):  # type: ignore[misc]
                plan = None
        except (AttributeError, RuntimeError):
            plan = None  # B has no address: it is in a wrapper, or the checks below refuse it by name
    if plan is None:
        plan, a, w, aq = _search(a_q, b, a_scale, out, out_dtype, kernel, arch, stream, allow_untested)
        if plan is None:
            return _on_cpu(a_q, b, a_scale, out, out_dtype, kernel, arch, allow_untested)
        b_at = w.data_ptr()
    a_at, aq_at = a.data_ptr(), aq.data_ptr()
    if out is None:
        c = _empty_like(plan.like)
        c_at = c.data_ptr()
    else:
        c = out
        c_at = c.data_ptr()
        a_span, aq_span, b_span, before = plan.spans
        if before < c_at - a_at < a_span or before < c_at - b_at < b_span or before < c_at - aq_at < aq_span:
            for label, x in (("A", a_q), ("B", b), ("AQ", a_scale)):
                check_apart(label, operand_view(label, x), view_of("out", out))
    if not plan.plain:
        return _launch(plan, a_at, aq_at, b_at, c_at, aq, c)
    handle = _raw_stream(plan.index)
    code = plan.launch(call_pointers(a_at, aq_at, b_at, c_at) + (plan.by_stream.get(handle) or plan.remember(handle)))
    if code:
        plan.plan.kernel.library.check(code)  # type: ignore[union-attr]
    return c


def _search(
    a_q: Any, b: Any, a_scale: Any, out: Any, out_dtype: Any, kernel: Any, arch: Any, stream: Any, allow_untested: bool
) -> tuple[TorchPlan | None, Any, Any, Any]:
    """Return the plan, None if the operands lie in host memory, and the tensors of A, B and AQ."""
    if stream is not None:
        raise ArgumentError(f"stream is {stream!r}: torch tensors go on torch's current stream; leave it out")
    a, w, aq, said = a_q, b, a_scale, None
    if type(a) in _WRAPPERS or type(w) in _WRAPPERS or type(aq) in _WRAPPERS:
        a, w, aq = (x.data if type(x) in _WRAPPERS else x for x in (a, w, aq))
        said = (told(a_q), told(b), told(a_scale))
    plan: TorchPlan | None = None
    place: Any = None
    try:
        b_at = w.data_ptr()
        place = b_at if out is None else ~b_at
        if not (said is out_dtype is kernel is arch is None) or allow_untested:
            place = (place, said, out_dtype, kernel, arch, allow_untested)
            plan = _placed.get(place)
            if plan and not (plan.alike(a, w, aq) if out is None else plan.alike(a, w, aq, out)):  # type: ignore[misc]
                plan = None
    except (AttributeError, RuntimeError, TypeError):
        plan = place = None  # B has no address, or something is unhashable, which the checks below refuse by name
    if plan is None:
        plan = _find_plan(a_q, b, a_scale, out, (out_dtype, kernel, arch, allow_untested), (a, w, aq), said)
        if plan and plan.alike:
            _placed.add(place, plan)
    return plan, a, w, aq


def _find_plan(
    a_q: Any, b: Any, a_scale: Any, out: Any, options: tuple[Any, ...], tensors: tuple[Any, Any, Any], said: Any
) -> TorchPlan | None:
    """Return the plan by the operands' attributes, made where there is none; None if they lie in host memory."""
    a, w, aq = tensors
    plan = key = None
    try:
        key = (
            *((type(x), x.dtype, x.shape, x.stride(), x.get_device()) for x in (a, w, aq)),
            None if out is None else (type(out), out.dtype, out.shape, out.stride(), out.get_device()), said, options,
        )  # fmt: skip
        plan = _plans.get(key)
    except (AttributeError, RuntimeError, TypeError):
        key = None  # no tensor, a sparse one, or something unhashable, which the checks below refuse by name
    if plan is None:
        if view_of("B", w).device == HOST:
            return None
        with torch.cuda.device(w.get_device()):  # a kernel makes itself ready for the device that is current
            plan = _make(a_q, b, a_scale, out, *options)
        _plans.add(key, plan)
    seen = tensors if out is None else (*tensors, out)
    if plan.alike is None or not plan.alike(*seen):  # made in torch's inference mode, say, and called out of it
        plan.alike = guard_of(*seen) or plan.alike
    return plan


def _launch(plan: TorchPlan, a_at: int, aq_at: int, b_at: int, c_at: int, aq: Any, c: Any) -> Any:
    """Make the C call with all that it may need."""
    if plan.launch is None:
        return c.zero_()
    if plan.prepare:
        aq = plan.prepare(aq)
        aq_at = aq.data_ptr()
    # torch's allocator gives both back to this stream alone, so they may go before the kernel is done.
    at, size = 0, plan.plan.workspace
    if size:
        try:
            workspace = torch.empty(size, dtype=torch.uint8, device=c.device)
            at = workspace.data_ptr()
        except torch.cuda.OutOfMemoryError:
            size = 0  # CUDA kernels do without, and are slower
    rest = call_rest(plan.plan.sizes, at, size, _raw_stream(plan.index), plan.index)
    code = plan.launch(call_pointers(a_at, aq_at, b_at, c_at) + rest)
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
