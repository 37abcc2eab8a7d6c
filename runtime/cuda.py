"""What the NVIDIA driver says about this machine's devices; no CUDA toolkit is needed."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

from gemmill.arch import Arch
from gemmill.errors import UnsupportedError

# Attributes of cuDeviceGetAttribute.
_MAJOR, _MINOR = 75, 76

# The compute capability that runs an arch's code: an "a" target runs on its own capability alone.
_CAPABILITIES = {"sm_90a": (9, 0)}


@dataclass(frozen=True)
class Device:
    """One CUDA device: its ordinal, name and compute capability."""

    ordinal: int
    name: str
    capability: tuple[int, int]


class NoDriver(Exception):
    """The driver is missing or does not start; the text says which."""


def devices(library: str = "libcuda.so.1") -> list[Device]:
    """Return the devices that the driver shows; NoDriver where there is none to ask."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        raise NoDriver(f"{library} cannot be opened") from None
    code = cuda.cuInit(0)
    if code == 100:  # CUDA_ERROR_NO_DEVICE
        return []
    if code:
        raise NoDriver(f"cuInit failed with error {code}")
    count = ctypes.c_int()
    if code := cuda.cuDeviceGetCount(ctypes.byref(count)):
        raise NoDriver(f"cuDeviceGetCount failed with error {code}")
    return [_device(cuda, ordinal) for ordinal in range(count.value)]


def _device(cuda: ctypes.CDLL, ordinal: int) -> Device:
    handle, value = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    numbers = []
    failed = cuda.cuDeviceGet(ctypes.byref(handle), ordinal) or cuda.cuDeviceGetName(name, len(name), handle)
    for attribute in (_MAJOR, _MINOR):
        failed = failed or cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        numbers.append(value.value)
    if failed:
        raise NoDriver(f"device {ordinal} cannot be asked: error {failed}")
    return Device(ordinal, name.value.decode(errors="replace"), (numbers[0], numbers[1]))


def find_device(row: Arch) -> Device | None:
    """Return the first device that runs `row`'s code; None where there is none. NoDriver as `devices`."""
    wanted = _CAPABILITIES[row.name]
    return next((device for device in devices() if device.capability == wanted), None)


@functools.cache  # a device keeps its number while a process runs
def arch_of_device(ordinal: int) -> str:
    """Return the arch whose code the device of this number runs.

    Raises
    ------
    UnsupportedError
        If there is no arch for it, or no driver to ask; the text names the devices that there are archs for.
    """
    known = ", ".join(f"{name} (compute capability {a}.{b})" for name, (a, b) in _CAPABILITIES.items())
    try:
        device = next((d for d in devices() if d.ordinal == ordinal), None)
    except NoDriver as error:
        raise UnsupportedError(f"device {ordinal}: no NVIDIA driver, {error}; there are kernels for {known}") from None
    for name, capability in _CAPABILITIES.items():
        if device is not None and device.capability == capability:
            return name
    seen = f"{device.name}, compute capability {device.capability[0]}.{device.capability[1]}" if device else "not shown"
    raise UnsupportedError(f"device {ordinal} ({seen}): there are kernels for {known}")


def why_not_cuda(row: Arch) -> str | None:
    """Say why this machine can't run a CUDA arch; None where it can."""
    try:
        found = devices()
    except NoDriver as error:
        return f"no {row.name} device: no NVIDIA driver, {error}"
    wanted = _CAPABILITIES[row.name]
    if any(device.capability == wanted for device in found):
        return None
    seen = ", ".join(f"{d.name} ({d.capability[0]}.{d.capability[1]})" for d in found) or "none"
    return f"no {row.name} device: needed compute capability {wanted[0]}.{wanted[1]}, the driver shows {seen}"
