"""gemm_aquant: numpy arrays here, CUDA arrays by way of gemmill.on_torch and gemmill.on_cuda.

Everything that depends only on types, shapes, strides and options is decided once (gemmill.plan) and kept, so that a
repeated call costs a dictionary look-up beside the C call. Kernels stay loaded for the life of the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from gemmill.arrays import is_torch, view_of
from gemmill.errors import ArgumentError
from gemmill.layout import find_layout, groups, packed_strides
from gemmill.library import call_pointers, call_rest
from gemmill.loader import Kernel
from gemmill.operands import Array, Fp8Matrix, Int4Matrix, PreshuffledScale, shuffled
from gemmill.plan import Plan, PlanCache, check_apart, make_plan
from gemmill.search import VARIABLE

_WORKSPACE_ALIGN = 256  # native/abi.h

_plans: PlanCache[Plan] = PlanCache()
_local = threading.local()

# What multiplies, by the type of B.
_paths: dict[type, Callable[..., Any]] = {}


def gemm_aquant(
    a_q: Any,
    b: Any,
    a_scale: Any,
    out: Any = None,
    out_dtype: Any = None,
    kernel: Kernel | str | None = None,
    arch: str | None = None,
    *,
    stream: int | None = None,
    allow_untested: bool = False,
) -> Any:
    """Multiply a block-scaled A by B: ``C[m,n] = sum_g AQ[m,g] * sum_{k in g} A[m,k] * B[k,n]``.

    A group g is 128 consecutive k; the last one may be short. Layouts are read from the strides: ``w.T`` of an
    [N, K] weight is a column-major B.

    The operands are numpy arrays, torch tensors, or CUDA arrays with ``__cuda_array_interface__`` or ``__dlpack__``,
    all of them on one device. CUDA arrays are not copied, and the call returns before the product is done: it is
    ordered on the current stream, as every operation of their library is.

    Parameters
    ----------
    a_q : array, Fp8Matrix or Int4Matrix
        A [M, K]: float8_e4m3fn or float8_e5m2 (the FNUZ types on archs that use them), row- or column-major,
        rows (columns) may lie further apart than packed; or packed int4.
    b : array or Fp8Matrix
        B [K, N], fp8, row- or column-major likewise.
    a_scale : array or PreshuffledScale
        AQ [M, ceil(K / 128)], float32, or B's type with an int4 A. Any strides: where the kernel wants another
        order than it has, it is copied (numpy, torch) or refused. A PreshuffledScale selects a preshufflequant kernel
        of its tile_k.
    out : array, optional
        C [M, N], written in place and returned: row-major, rows may lie further apart than packed; must not overlap
        an input. CUDA arrays other than torch's need it.
    out_dtype : dtype, optional
        float16 (default), bfloat16 or float32.
    kernel : Kernel or str, optional
        A loaded kernel, a kernel's name or a key; else on CPUs the first that the search path has, best arch first,
        and on a GPU the fastest that it has (``gemmill explain-choice``).
    arch : str, optional
        Only this arch; else whichever the host runs, or the device that the arrays lie on. numpy arrays go to a GPU
        and back where it is a GPU's.
    stream : int, optional
        The CUDA stream (a CUstream as an integer) for CUDA arrays other than torch's; else the one that their
        ``__cuda_array_interface__`` names, else the legacy default stream. torch tensors go on torch's current stream.
    allow_untested : bool
        Take kernels without a passed selftest.

    Returns
    -------
    array
        C [M, N], of the operands' library, or `out`; empty where M or N is 0, zeros where K is 0. No gradients are
        recorded.

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
    path = _paths.get(type(b)) or _find_path(b)
    return path(a_q, b, a_scale, out, out_dtype, kernel, arch, stream, allow_untested)


def _find_path(b: Any) -> Callable[..., Any]:
    """Return what multiplies by arrays of B's kind; gemmill.on_torch and gemmill.on_cuda are imported here."""
    if isinstance(b, Fp8Matrix):  # any array may be inside
        return _find_path(b.data) if not isinstance(b.data, np.ndarray) else _on_host
    path: Callable[..., Any] = _on_host
    if is_torch(b):
        from gemmill.on_torch import gemm_aquant_on_torch

        path = gemm_aquant_on_torch
    elif not isinstance(b, np.ndarray) and (hasattr(b, "__cuda_array_interface__") or hasattr(b, "__dlpack__")):
        from gemmill.on_cuda import gemm_aquant_on_cuda

        path = gemm_aquant_on_cuda
    _paths[type(b)] = path
    return path


def _on_host(
    a_q: Any, b: Any, a_scale: Any, out: Any, out_dtype: Any, kernel: Any, arch: Any, stream: Any, allow_untested: bool
) -> Array:
    signature: tuple[Any, ...] | None = (
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
    if stream is not None:
        raise ArgumentError(f"stream is {stream!r}: numpy arrays have none; leave it out")
    try:
        plan = _plans.get(signature)
    except TypeError:  # something unhashable, which the checks below refuse by name
        plan = signature = None
    if plan is None:
        plan = make_plan(a_q, b, a_scale, out, out_dtype, kernel, arch, allow_untested)
        _plans.add(signature, plan)
    a = a_q if type(a_q) is np.ndarray else _data(a_q)
    b = b if type(b) is np.ndarray else _data(b)
    aq = a_scale if type(a_scale) is np.ndarray else _data(a_scale)
    if out is None:
        c = np.empty(plan.shape, plan.out_dtype)
    else:
        _check_out(out, a, b, aq)
        c = out
    if plan.kernel is None:
        c[...] = 0
        return c
    if plan.through_host:
        return _through_host(plan, a, b, a_scale, c)
    if plan.prepare_aq:
        aq = shuffled(aq, plan.groups) if plan.prepare_aq == "shuffle" else np.array(aq, order=plan.prepare_aq)  # type: ignore[call-overload]
    rest = call_rest(plan.sizes, _workspace(plan.workspace), plan.workspace) if plan.workspace else plan.on_host
    library = plan.kernel.library
    code = library.launch(call_pointers(a.ctypes.data, aq.ctypes.data, b.ctypes.data, c.ctypes.data) + rest)
    if code:
        library.check(code)
    return c


def _data(x: Any) -> Array:
    data: Array = x.data if isinstance(x, (Int4Matrix, PreshuffledScale, Fp8Matrix)) else x
    return data


def _through_host(plan: Plan, a: Array, b: Array, a_scale: Any, c: Array) -> Array:
    """Multiply host arrays on a GPU: through the entry that moves packed operands there and C back."""
    assert plan.kernel is not None
    library, layout = plan.kernel.library, find_layout(plan.kernel.config["layout"])
    m, n = plan.shape
    k = b.shape[0]
    if a.ndim == 2:  # packed int4 is packed
        a = _packed(a, layout.a_col)
    b = _packed(b, layout.b_col)
    aq = a_scale.unshuffled() if isinstance(a_scale, PreshuffledScale) else a_scale  # the entry shuffles by itself
    aq = _packed(aq, layout.aq_col)
    whole = c if c.flags.c_contiguous else np.empty_like(c, order="C")
    ld = packed_strides(layout, m, n, k)
    library.check(
        library.run_host(
            a.ctypes.data, aq.ctypes.data, b.ctypes.data, whole.ctypes.data,
            m, n, k, ld.a, ld.aq, ld.b, ld.c, groups(k), 1, None,
        )
    )  # fmt: skip
    if whole is not c:
        c[...] = whole
    return c


def _packed(x: Array, column_major: bool) -> Array:
    return np.asarray(x, order="F" if column_major else "C")


def _signature(x: Any) -> tuple[Any, ...]:
    if type(x) is np.ndarray:
        return (x.dtype, x.shape, x.strides)
    if isinstance(x, Int4Matrix) and isinstance(x.data, np.ndarray):
        return (Int4Matrix, x.shape, x.order)
    if isinstance(x, PreshuffledScale) and isinstance(x.data, np.ndarray):
        return (PreshuffledScale, x.data.dtype, x.data.shape, x.groups, x.tile_k)
    if isinstance(x, Fp8Matrix) and isinstance(x.data, np.ndarray):
        return (x.dtype, x.data.shape, x.data.strides)
    if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        return (x.dtype, x.shape, x.strides)
    kind = type(x) if not isinstance(x, (Int4Matrix, PreshuffledScale, Fp8Matrix)) else type(x.data)
    raise ArgumentError(
        f"an operand is a {kind.__module__}.{kind.__qualname__}: needed a numpy.ndarray without mask, as B is one "
        "(A may be an Int4Matrix, AQ a PreshuffledScale)"
    )


def _check_out(out: Array, *inputs: Array) -> None:
    if not out.flags.writeable:
        raise ArgumentError("out is read-only: needed a writable array")
    for label, x in zip(("A", "B", "AQ"), inputs, strict=True):
        if np.may_share_memory(out, x):
            check_apart(label, view_of(label, x), view_of("out", out))


def _workspace(size: int) -> int:
    """Return the address of this thread's workspace, at least `size` bytes."""
    buffer = getattr(_local, "workspace", None)
    if buffer is None or buffer.size < size + _WORKSPACE_ALIGN:
        buffer = _local.workspace = np.empty(size + _WORKSPACE_ALIGN, np.uint8)
    return -(-buffer.ctypes.data // _WORKSPACE_ALIGN) * _WORKSPACE_ALIGN
