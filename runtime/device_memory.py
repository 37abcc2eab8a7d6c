"""Memory of a GPU by its driver's own calls: what testing a device-pointer entry takes, without torch or CuPy."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
from gemmill import driver
from gemmill.arch import Arch
from gemmill.errors import DeviceError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_TO_DEVICE, _TO_HOST = 1, 2  # hipMemcpyKind
# Under the names that the kernels' own host side looks for (native/hip/driver.h).
_HIP = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6")


class DeviceMemory(Protocol):
    """One device's memory. Every call but `current` needs it to be current; each raises DeviceError where it fails."""

    def current(self) -> AbstractContextManager[None]:
        """Make the device current in this thread, for its memory and for kernels; put back what was."""

    def allocate(self, size: int) -> int:
        """Return the address of `size` new bytes, a multiple of 256."""

    def free(self, address: int) -> None:
        """Give memory back."""

    def upload(self, address: int, data: Bytes) -> None:
        """Copy bytes to the device."""

    def download(self, address: int, size: int) -> Bytes:
        """Copy bytes from the device."""

    def synchronize(self) -> None:
        """Wait for the default stream; a kernel's fault shows here."""


class CudaMemory:
    """Memory of a CUDA device, in its primary context.

    Parameters
    ----------
    ordinal : int
        The device's number.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        # Held for good: the memory lives as long as the context, and the context as long as somebody holds it.
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)

    def current(self) -> AbstractContextManager[None]:
        return driver.on_device(self.ordinal)

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def upload(self, address: int, data: Bytes) -> None:
        source = ctypes.c_void_p(data.ctypes.data)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, ctypes.c_size_t(data.size))

    def download(self, address: int, size: int) -> Bytes:
        data = np.empty(size, np.uint8)
        to = ctypes.c_void_p(data.ctypes.data)
        self._call("cuMemcpyDtoH_v2", to, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data

    def synchronize(self) -> None:
        self._call("cuStreamSynchronize", None)

    def _call(self, name: str, *arguments: Any) -> None:
        driver.check(name, getattr(driver.libcuda(), name)(*arguments))


class HipMemory:
    """Memory of the current HIP device, real or simulated: the one that a kernel's library runs on."""

    def __init__(self) -> None:
        self._hip = _open_hip()
        self._hip.hipGetErrorString.restype = ctypes.c_char_p

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def allocate(self, size: int) -> int:
        address = ctypes.c_void_p()
        self._call("hipMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value or 0

    def free(self, address: int) -> None:
        self._call("hipFree", ctypes.c_void_p(address))

    def upload(self, address: int, data: Bytes) -> None:
        self._copy(address, data.ctypes.data, data.size, _TO_DEVICE)

    def download(self, address: int, size: int) -> Bytes:
        data = np.empty(size, np.uint8)
        self._copy(data.ctypes.data, address, size, _TO_HOST)
        return data

    def synchronize(self) -> None:
        self._call("hipStreamSynchronize", None)

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        self._call("hipMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), kind)

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._hip, name)(*arguments):
            text = (self._hip.hipGetErrorString(code) or b"error").decode("utf-8", "replace")
            raise DeviceError(f"{name} failed: {text} ({code})")


def _open_hip() -> Any:
    for name in _HIP:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError(f"no HIP driver: none of {', '.join(_HIP)} can be opened")


def memory_of(row: Arch) -> DeviceMemory:
    """Return the memory of the device here that runs an arch's kernels.

    Raises
    ------
    DeviceError
        If there is no such device, or its driver does not start.
    """
    if row.backend == "hip":
        return HipMemory()
    from gemmill.cuda import NoDriver, find_device

    try:
        device = find_device(row)
    except NoDriver as error:
        raise DeviceError(f"no {row.name} device: {error}") from None
    if device is None:
        raise DeviceError(f"no {row.name} device: the driver shows none that runs its code")
    return CudaMemory(device.ordinal)
