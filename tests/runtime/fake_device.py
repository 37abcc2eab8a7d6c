"""A CUDA machine without CUDA: a driver that knows some host memory as a device's, and arrays that say they lie there.

Fake kernels (fake_kernel.cpp) read host memory, so what they multiply through a device pointer can be checked.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int64, c_void_p, py_object
from typing import Any

import numpy as np
from gemmill.cuda import Device
from gemmill.dlpack import _TYPES, _Device, _Tensor, _Type, _Versioned

DEVICES = [Device(0, "Fake H200", (9, 0)), Device(1, "Fake A100", (8, 0)), Device(2, "Fake H200", (9, 0))]


class FakeDriver:
    """What gemmill.driver asks of libcuda, by name; `calls` lists what would have an effect."""

    def __init__(self) -> None:
        self.owners: dict[int, tuple[int, int]] = {}  # address -> bytes, device
        self.calls: list[tuple[Any, ...]] = []
        self.context: int | None = 0

    def own(self, x: np.ndarray, device: int) -> None:
        """Make an array's memory a device's."""
        base = x
        while isinstance(base.base, np.ndarray):
            base = base.base
        self.owners[base.ctypes.data] = (max(base.nbytes, 1), device)

    def _owner(self, address: int) -> int | None:
        for start, (size, device) in self.owners.items():
            if start <= address < start + size:
                return device
        return None

    def cuPointerGetAttribute(self, value: Any, attribute: int, address: Any) -> int:  # noqa: N802
        device = self._owner(address.value)
        if device is None:
            return 1
        value._obj.value = {2: 2, 8: 0, 9: device}[attribute]
        return 0

    def cuGetErrorName(self, code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"CUDA_ERROR_OUT_OF_MEMORY" if code == 2 else b"CUDA_ERROR_UNKNOWN"
        return 0

    def cuCtxGetDevice(self, device: Any) -> int:  # noqa: N802
        if self.context is None:
            return 201
        device._obj.value = self.context
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = ordinal
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        context._obj.value = 0x1000 + device.value
        self.calls.append(("retain", device.value))
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:  # noqa: N802
        self.calls.append(("release", device.value))
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.calls.append(("push", context.value - 0x1000))
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.calls.append(("pop",))
        return 0

    def cuEventCreate(self, event: Any, flags: int) -> int:  # noqa: N802
        event._obj.value = 0xE
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:  # noqa: N802
        self.calls.append(("record", stream.value or 0))
        return 0

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> int:  # noqa: N802
        self.calls.append(("wait", stream.value or 0))
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:  # noqa: N802
        self.calls.append(("destroy",))
        return 0

    def cuMemsetD2D8Async(  # noqa: N802
        self, address: Any, pitch: Any, value: Any, width: Any, height: Any, stream: Any
    ) -> int:
        for row in range(height.value):
            ctypes.memset(address.value + row * pitch.value, value.value, width.value)
        self.calls.append(("memset", stream.value or 0))
        return 0


class CaiArray:
    """An array with ``__cuda_array_interface__``, as CuPy and Numba have it."""

    def __init__(self, x: np.ndarray, stream: int | None = None, version: int = 3, read_only: bool = False) -> None:
        self.x = x
        strides = None if x.flags.c_contiguous else x.strides
        self.__cuda_array_interface__ = {
            "shape": x.shape,
            "strides": strides,
            "typestr": x.dtype.str,
            "data": (x.ctypes.data, read_only),
            "version": version,
        }
        if version >= 3:
            self.__cuda_array_interface__["stream"] = stream


_deleter = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = (c_void_p, c_char_p, c_void_p), py_object


class DlpackArray:
    """An array with ``__dlpack__``, as JAX has it; `asked` lists the arguments of every export.

    Parameters
    ----------
    x : numpy.ndarray
    device : (int, int)
        DLPack's device type and ordinal; (2, 0) is CUDA device 0.
    version : (int, int)
        Of the DLPack that the producer speaks; before 1.0 it takes no max_version.
    """

    def __init__(
        self, x: np.ndarray, device: tuple[int, int] = (2, 0), version: tuple[int, int] = (1, 1), flags: int = 0
    ) -> None:
        self.x, self.device, self.version, self.flags = x, device, version, flags
        self.asked: list[dict[str, Any]] = []
        self.code = next((key for key, name in _TYPES.items() if name == x.dtype.name), (3, x.itemsize * 8))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        if self.version < (1, 0) and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append(options)
        shape, steps = (c_int64 * self.x.ndim)(*self.x.shape), (c_int64 * self.x.ndim)()
        steps[:] = [step // self.x.itemsize for step in self.x.strides]
        tensor = _Tensor(
            self.x.ctypes.data - 16, _Device(*self.device), self.x.ndim, _Type(*self.code, 1),
            ctypes.cast(shape, POINTER(c_int64)), ctypes.cast(steps, POINTER(c_int64)), 16,
        )  # fmt: skip
        if self.version < (1, 0):
            held: Any = tensor
            name = b"dltensor"
        else:
            held = _Versioned(*self.version, None, None, self.flags, tensor)
            name = b"dltensor_versioned"
        self._held = (shape, steps, held)
        return _new_capsule(ctypes.addressof(held), name, None)


def workspace_of(kernel: Any) -> int:
    """Return the bytes of workspace that a fake kernel was last given; -1 before its first call."""
    ask = kernel.library._dll.fake_last_workspace
    ask.restype = c_int64
    return int(ask())


def stream_of(kernel: Any) -> int:
    """Return the stream that a fake kernel was last called with."""
    ask = kernel.library._dll.fake_last_stream
    ask.restype = c_void_p
    return int(ask() or 0)


def device_of(kernel: Any) -> int:
    """Return the device that a fake kernel's last launch named."""
    ask = kernel.library._dll.fake_last_device
    ask.restype = c_int64
    return int(ask())
