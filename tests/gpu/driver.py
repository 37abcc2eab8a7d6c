"""As much of the CUDA driver as the tests need: memory, streams, graphs; through ctypes, without a toolkit."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_NON_BLOCKING = 1
_CAPTURE_RELAXED = 2
_VOID = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_ADDRESS = ctypes.c_uint64


class DriverError(Exception):
    """A driver call failed; the text has its name and error."""


class Gpu:
    """One device and its primary context, current in the thread that made this object.

    Attributes
    ----------
    ordinal : int
        Of the device.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.ordinal = ordinal
        self.call("cuInit", 0)
        self._device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self._device), ordinal)
        self._context = _VOID()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.enter()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; raise DriverError where it fails."""
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'error').decode()} ({code})")

    # ---- contexts ----

    def enter(self) -> None:
        """Make the primary context current in this thread."""
        self.call("cuCtxSetCurrent", self._context)

    def leave(self) -> None:
        """Leave this thread without a context."""
        self.call("cuCtxSetCurrent", None)

    def current(self) -> int | None:
        """Return this thread's context as an address."""
        context = _VOID()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value

    def count(self) -> int:
        """Return how many devices there are."""
        value = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(value))
        return value.value

    def synchronize(self) -> None:
        """Wait for everything in the context; a fault of a kernel shows here."""
        self.call("cuCtxSynchronize")

    # ---- memory ----

    def allocate(self, size: int) -> int:
        """Return the address of `size` new bytes."""
        address = _ADDRESS()
        self.call("cuMemAlloc_v2", ctypes.byref(address), _SIZE(size))
        return address.value

    def free(self, address: int) -> None:
        """Give memory back."""
        self.call("cuMemFree_v2", _ADDRESS(address))

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set `size` bytes."""
        self.call("cuMemsetD8_v2", _ADDRESS(address), ctypes.c_ubyte(byte), _SIZE(size))

    def upload(self, address: int, data: Bytes) -> None:
        """Copy bytes to the device."""
        if data.size:
            self.call("cuMemcpyHtoD_v2", _ADDRESS(address), _VOID(data.ctypes.data), _SIZE(data.size))

    def download(self, address: int, size: int) -> Bytes:
        """Copy bytes from the device, after what the default stream holds."""
        data = np.empty(size, np.uint8)
        if size:
            self.call("cuMemcpyDtoH_v2", _VOID(data.ctypes.data), _ADDRESS(address), _SIZE(size))
        return data

    def copy(self, to: int, source: int, size: int, stream: int | None = None) -> None:
        """Copy between device memory, in a stream's order."""
        self.call("cuMemcpyDtoDAsync_v2", _ADDRESS(to), _ADDRESS(source), _SIZE(size), _VOID(stream))

    def free_bytes(self) -> int:
        """Return how much memory the device has left."""
        free, total = _SIZE(), _SIZE()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    # ---- streams and graphs ----

    @contextmanager
    def stream(self) -> Iterator[int]:
        """Make a stream that does not wait for the default one; it is empty again at the end."""
        handle = _VOID()
        self.call("cuStreamCreate", ctypes.byref(handle), _NON_BLOCKING)
        assert handle.value is not None
        try:
            yield handle.value
            self.wait(handle.value)
        finally:
            self.call("cuStreamDestroy_v2", handle)

    def wait(self, stream: int | None) -> None:
        """Wait for a stream."""
        self.call("cuStreamSynchronize", _VOID(stream))

    @contextmanager
    def captured(self, stream: int) -> Iterator[Graph]:
        """Capture what the body puts into a stream; the graph can be launched after the body."""
        graph = Graph(self)
        self.call("cuStreamBeginCapture_v2", _VOID(stream), _CAPTURE_RELAXED)
        try:
            yield graph
        finally:
            template = _VOID()
            self.call("cuStreamEndCapture", _VOID(stream), ctypes.byref(template))
        graph.instantiate(template)


class Graph:
    """A captured graph."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._template = _VOID()
        self._executable = _VOID()

    def instantiate(self, template: Any) -> None:
        """Make a captured template executable."""
        self._template = template
        self._gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), template, ctypes.c_uint64(0))

    def launch(self, stream: int) -> None:
        """Replay the graph in a stream."""
        self._gpu.call("cuGraphLaunch", self._executable, _VOID(stream))

    def close(self) -> None:
        """Give the graph back."""
        self._gpu.call("cuGraphExecDestroy", self._executable)
        self._gpu.call("cuGraphDestroy", self._template)
