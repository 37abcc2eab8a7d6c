"""gemm_aquant on numpy arrays.

Everything that depends only on types, shapes, strides and options is decided once (gemmill.plan) and kept, so that a
repeated call costs a dictionary look-up beside the C call. Kernels stay loaded for the life of the process.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from gemmill.errors import ArgumentError
from gemmill.loader import Kernel
from gemmill.operands import Array, Int4Matrix, PreshuffledScale, shuffled
from gemmill.plan import Plan, make_plan
from gemmill.search import VARIABLE

_MAX_PLANS = 4096
_OVERLAP_WORK = 100_000  # steps of numpy's exact overlap search before it counts as an overlap
_WORKSPACE_ALIGN = 256  # native/abi.h

# Plans and workspaces are caches of pure decisions; dict operations are atomic, so readers take no lock.
_plans: dict[tuple[Any, ...], Plan] = {}
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
        plan = make_plan(a_q, b, a_scale, out, out_dtype, kernel, arch, allow_untested)
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


def _workspace(size: int) -> int:
    """Return the address of this thread's workspace, at least `size` bytes."""
    buffer = getattr(_local, "workspace", None)
    if buffer is None or buffer.size < size + _WORKSPACE_ALIGN:
        buffer = _local.workspace = np.empty(size + _WORKSPACE_ALIGN, np.uint8)
    return -(-buffer.ctypes.data // _WORKSPACE_ALIGN) * _WORKSPACE_ALIGN
