"""gemm_aquant on CUDA arrays of any library with ``__cuda_array_interface__`` or ``__dlpack__``: CuPy, JAX, others."""

from __future__ import annotations

from typing import Any

from gemmill.arrays import HOST, LEGACY_STREAM, View, stream_handle, view_of
from gemmill.driver import clear, let_wait, on_device
from gemmill.errors import ArgumentError
from gemmill.operands import Int4Matrix, PreshuffledScale, told
from gemmill.plan import Plan, PlanCache, check_apart, make_plan, operand_view

_plans: PlanCache[Plan] = PlanCache()


def gemm_aquant_on_cuda(
    a_q: Any, b: Any, a_scale: Any, out: Any, out_dtype: Any, kernel: Any, arch: Any, stream: Any, allow_untested: bool
) -> Any:
    """Multiply CUDA arrays; arguments and errors are those of `gemmill.gemm_aquant`."""
    if stream is not None and (not isinstance(stream, int) or stream < 0):
        raise ArgumentError(f"stream is {stream!r}: needed a CUstream as an integer, 0 for the legacy default stream")
    wait_on = LEGACY_STREAM if stream is None else stream_handle(stream)
    operands = {label: _read(label, x, wait_on) for label, x in (("A", a_q), ("B", b), ("AQ", a_scale))}
    views = {label: operand_view(label, x) for label, x in operands.items()}
    for label, view in views.items():
        if view.device == HOST:
            kind = f"{type(b).__module__}.{type(b).__qualname__}"
            raise ArgumentError(
                f"{label} lies in host memory: needed CUDA memory, as B is a {kind}; all in host memory go as numpy "
                "arrays, e.g. numpy.from_dlpack(x)"
            )
    if out is None:
        raise ArgumentError(
            "out is None: C is allocated for numpy arrays and torch tensors alone; needed an array [M, N] on the device"
        )
    c = view_of("out", out, wait_on)
    if c.read_only:
        raise ArgumentError("out is read-only: needed a writable array")
    signature: tuple[Any, ...] | None = (
        *((views[label].signature, told(x)) for label, x in operands.items()),
        c.signature, out_dtype, kernel, arch, allow_untested,
    )  # fmt: skip
    try:
        plan = _plans.get(signature)
    except TypeError:  # something unhashable, which the checks below refuse by name
        plan = signature = None
    for label, view in views.items():
        check_apart(label, view, c)
    with on_device(int(views["B"].device.partition(":")[2])):
        if plan is None:  # inside, since a kernel makes itself ready for the device that is current
            plan = make_plan(operands["A"], operands["B"], operands["AQ"], c, out_dtype, kernel, arch, allow_untested)
            _check_plan(plan)
            _plans.add(signature, plan)
        _launch(plan, [*views.values(), c], None if stream is None else wait_on)
    return out


def _read(label: str, x: Any, stream: int) -> Any:
    """Return the operand over a View of its array, so that a producer is asked once."""
    view = operand_view(label, x, stream)
    if isinstance(x, Int4Matrix):
        return Int4Matrix(view, x.shape, x.order)
    return PreshuffledScale(view, x.groups, x.tile_k) if isinstance(x, PreshuffledScale) else view


def _check_plan(plan: Plan) -> None:
    if plan.prepare_aq:
        order = {"C": "row-major", "F": "column-major"}.get(plan.prepare_aq, "preshuffled (gemmill.PreshuffledScale)")
        raise ArgumentError(
            f"{plan.kernel!r} takes AQ {order}: it is copied to that for numpy arrays and torch tensors alone"
        )


def _launch(plan: Plan, views: list[View], stream: int | None) -> None:
    """Launch on `stream`, or else on the one that the arrays name, after what their producers have under way."""
    named = [view.stream for view in views if view.stream is not None]
    if stream is None:
        # One that was named outright goes before the default, which a DLPack producer was told.
        stream = next((handle for handle in named if handle != LEGACY_STREAM), LEGACY_STREAM)
    for producer in dict.fromkeys(named):
        if producer != stream:
            let_wait(stream, producer)
    a, b, aq, c = views
    if plan.kernel is None:
        clear(c, stream)
        return
    library = plan.kernel.library
    # No library to ask for a workspace: kernels that would take one go without.
    library.check(library.run(a.pointer, aq.pointer, b.pointer, c.pointer, *plan.sizes, None, 0, stream))
