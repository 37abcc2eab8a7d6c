"""The calls of the NVIDIA driver that arrays on a device need: whose pointer it is, which context, which order."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gemmill.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    from gemmill.arrays import View

# Attributes of cuPointerGetAttribute, and a value.
_MEMORY_TYPE, _IS_MANAGED, _DEVICE_ORDINAL = 2, 8, 9
_ON_DEVICE = 2  # CU_MEMORYTYPE_DEVICE
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


@functools.cache
def libcuda() -> Any:
    """Return libcuda, started."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DeviceError("no NVIDIA driver: libcuda.so.1 cannot be opened") from None
    if code := cuda.cuInit(0):
        raise DeviceError(f"cuInit failed with error {code}")
    return cuda


def check(name: str, code: int) -> None:
    """Raise DeviceError where a call of the driver failed; the text has its name and error."""
    if code:
        text = ctypes.c_char_p()
        libcuda().cuGetErrorName(code, ctypes.byref(text))
        raise DeviceError(f"{name} failed: {(text.value or b'error').decode()} ({code})")


def device_of(label: str, pointer: int) -> int:
    """Return the number of the device whose memory a pointer means.

    Raises
    ------
    ArgumentError
        If the driver knows no such memory, or it is the host's.
    """
    kind, managed, device = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_int(-1)
    for attribute, value in ((_MEMORY_TYPE, kind), (_IS_MANAGED, managed), (_DEVICE_ORDINAL, device)):
        if libcuda().cuPointerGetAttribute(ctypes.byref(value), attribute, ctypes.c_uint64(pointer)):
            raise ArgumentError(f"{label} is not device memory: the driver does not know the address {pointer:#x}")
    if kind.value != _ON_DEVICE and not managed.value:
        raise ArgumentError(f"{label} is not device memory: the address {pointer:#x} is the host's")
    return device.value


@contextmanager
def on_device(ordinal: int) -> Iterator[None]:
    """Make sure that the current context is one of this device; put the caller's back afterwards."""
    cuda = libcuda()
    current = ctypes.c_int(-1)
    code = cuda.cuCtxGetDevice(ctypes.byref(current))
    if code not in (0, _NO_CONTEXT):
        check("cuCtxGetDevice", code)
    if code == 0 and current.value == ordinal:
        yield
        return
    device, context, popped = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), ordinal))
    # Its arrays live in this context, so it is there and will stay: the count goes up and down again.
    check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    try:
        check("cuCtxPushCurrent", cuda.cuCtxPushCurrent_v2(context))
        try:
            yield
        finally:
            cuda.cuCtxPopCurrent_v2(ctypes.byref(popped))
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def let_wait(stream: int, producer: int) -> None:
    """Let `stream` wait for what `producer` has been given so far. Both are CUstreams of the current context."""
    cuda = libcuda()
    event = ctypes.c_void_p()
    check("cuEventCreate", cuda.cuEventCreate(ctypes.byref(event), _NO_TIMING))
    try:
        check("cuEventRecord", cuda.cuEventRecord(event, ctypes.c_void_p(producer)))
        check("cuStreamWaitEvent", cuda.cuStreamWaitEvent(ctypes.c_void_p(stream), event, 0))
    finally:
        cuda.cuEventDestroy_v2(event)  # the driver keeps it until the wait is over


def clear(matrix: View, stream: int) -> None:
    """Set a row-major matrix on the device to zeros, on a CUstream of the current context."""
    rows, columns = matrix.shape
    if rows and columns:
        width = columns * matrix.itemsize
        pitch = matrix.strides[0] if rows > 1 else width
        sizes = [ctypes.c_size_t(x) for x in (width, rows)]
        code = libcuda().cuMemsetD2D8Async(
            ctypes.c_uint64(matrix.pointer), ctypes.c_size_t(pitch), ctypes.c_ubyte(0), *sizes, ctypes.c_void_p(stream)
        )
        check("cuMemsetD2D8Async", code)
