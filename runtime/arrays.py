"""An array of any library: where it lies, what its bytes mean, and in which order they are.

numpy arrays and torch tensors are read by their attributes, other arrays by ``__cuda_array_interface__`` (version 2 or
3) or ``__dlpack__`` (gemmill.dlpack). No library is imported for it, and nothing is copied.

Streams: an array may name the CUDA stream on which its producer's work is ordered. ``__cuda_array_interface__`` of
version 3 says it; a DLPack producer is told the stream, and lets that stream wait.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gemmill.errors import ArgumentError

LEGACY_STREAM = 0  # a null CUstream
_LEGACY_NAME = 1  # what both protocols call it: CU_STREAM_LEGACY

HOST = "cpu"


@dataclass(frozen=True)
class View:
    """One array, as the runtime sees it.

    Attributes
    ----------
    dtype : str
        The name that numpy or ml_dtypes gives the type.
    shape, strides : tuple of int
        Strides in bytes.
    itemsize : int
        Bytes an element.
    device : str
        ``cpu``, or ``cuda:0`` and so on.
    pointer : int
        Address of the first element.
    stream : int or None
        The CUDA stream that its producer's work is ordered on; None where it names none.
    read_only : bool
    owner : object
        Keeps the memory alive.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    device: str = HOST
    pointer: int = 0
    stream: int | None = None
    read_only: bool = False
    owner: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        place = "" if self.device == HOST else f" on {self.device}"
        return f"{self.dtype} {self.shape}, strides {self.strides} bytes{place}"

    @property
    def size(self) -> int:
        """The number of elements."""
        product = 1
        for extent in self.shape:
            product *= extent
        return product

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie side by side, the last dimension innermost."""
        step = self.itemsize
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent > 1 and stride != step:
                return self.size == 0
            step *= extent
        return True

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last; strides must not be negative."""
        if 0 in self.shape:
            return 0
        return sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)) + self.itemsize

    @property
    def signature(self) -> tuple[Any, ...]:
        """What a plan depends on."""
        return (self.dtype, self.shape, self.strides, self.device)

    def overlaps(self, other: View) -> bool:
        """Whether the two share a byte; True where that is too hard to find out."""
        try:
            return bool(np.shares_memory(_addresses(self), _addresses(other), max_work=_OVERLAP_WORK))  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return True


_OVERLAP_WORK = 100_000  # steps of numpy's exact overlap search


class _Addresses:
    """What numpy needs to know where an array's elements lie; they are never read."""

    def __init__(self, view: View) -> None:
        self.__array_interface__ = {
            "shape": view.shape,
            "strides": view.strides,
            "typestr": f"|V{view.itemsize}",
            "data": (view.pointer, True),
            "version": 3,
        }


def _addresses(view: View) -> np.ndarray[Any, Any]:
    return np.asarray(_Addresses(view))


def view_of(label: str, x: Any, stream: int = LEGACY_STREAM) -> View:
    """Read an array of any library.

    Parameters
    ----------
    label : str
        What errors call it.
    x : array
        A numpy.ndarray, a torch.Tensor, or an object with ``__cuda_array_interface__`` or ``__dlpack__``.
    stream : int
        The CUDA stream that a DLPack producer lets wait.

    Raises
    ------
    ArgumentError
        If it is none of these, or of a kind that a kernel can't read: masked, sparse, a tensor subclass.
    """
    if isinstance(x, View):
        return x
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise ArgumentError(f"{label} is a masked array: needed one without mask, e.g. x.filled(0)")
        dtype = x.dtype.name if x.dtype.isnative else f"{x.dtype.name} (byte-swapped)"
        return View(
            dtype, x.shape, x.strides, x.itemsize, pointer=x.ctypes.data, read_only=not x.flags.writeable, owner=x
        )
    if is_torch(x):
        return _torch_view(label, x)
    interface = _cuda_array_interface(x)
    has_dlpack = hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")
    if interface is not None and not (has_dlpack and _says_too_little(interface)):
        return _cuda_view(label, interface, x)
    if has_dlpack:
        from gemmill.dlpack import read_dlpack

        return read_dlpack(label, x, stream)
    raise ArgumentError(
        f"{label} is a {type(x).__module__}.{type(x).__qualname__}: needed a numpy.ndarray, a torch.Tensor, or an "
        "array with __cuda_array_interface__ or __dlpack__"
    )


def is_torch(x: Any) -> bool:
    """Tell whether x is a tensor of a torch that the caller has imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _torch_view(label: str, x: Any) -> View:
    torch = sys.modules["torch"]
    # Other subclasses keep their data elsewhere, or have none.
    if type(x) is not torch.Tensor and not isinstance(x, torch.nn.Parameter):
        kind = f"{type(x).__module__}.{type(x).__qualname__}"
        raise ArgumentError(f"{label} is a {kind}, a subclass of torch.Tensor: needed a plain tensor or a Parameter")
    if x.layout is not torch.strided:
        raise ArgumentError(f"{label} has layout {x.layout}: needed a dense tensor, e.g. x.to_dense()")
    if x.device.type not in (HOST, "cuda"):
        raise ArgumentError(f"{label} lies on device {x.device}: needed a CUDA device or the CPU")
    itemsize = x.element_size()
    return View(
        str(x.dtype).removeprefix("torch."),
        tuple(x.shape),
        tuple(step * itemsize for step in x.stride()),
        itemsize,
        HOST if x.device.type == HOST else f"cuda:{x.get_device()}",
        x.data_ptr(),
        owner=x,
    )


def _cuda_array_interface(x: Any) -> dict[str, Any] | None:
    try:
        found = x.__cuda_array_interface__
    except Exception:  # some libraries refuse types or devices here in their own ways; __dlpack__ may still do
        return None
    return found if isinstance(found, dict) else None


def _says_too_little(interface: dict[str, Any]) -> bool:
    """Tell whether DLPack would say more: of types such as fp8, or which stream to wait for."""
    return interface.get("version", 0) < 3 or "V" in str(interface.get("typestr"))


def _cuda_view(label: str, interface: dict[str, Any], owner: Any) -> View:
    try:
        shape = tuple(int(extent) for extent in interface["shape"])
        dtype = np.dtype(interface["typestr"])
        pointer, read_only = interface["data"]
        strides = interface.get("strides")
        stream = interface.get("stream")
        pointer = int(pointer or 0)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{label} has a __cuda_array_interface__ that can't be read: {error!r}") from None
    if interface.get("mask") is not None:
        raise ArgumentError(f"{label} has a mask: needed an array without one")
    if stream == 0:
        raise ArgumentError(
            f"{label}: its __cuda_array_interface__ names stream 0, which could mean either default stream"
        )
    from gemmill.driver import device_of  # only who has a device pays for it

    name = dtype.name if dtype.isnative else f"{dtype.name} (byte-swapped)"
    # An empty array has no address that the driver could know.
    ordinal = device_of(label, pointer) if 0 not in shape else 0
    return View(
        name, shape, tuple(strides) if strides is not None else row_major(shape, dtype.itemsize), dtype.itemsize,
        f"cuda:{ordinal}", pointer, None if stream is None else stream_handle(stream), bool(read_only), owner,
    )  # fmt: skip


def stream_handle(stream: int) -> int:
    """Return the CUstream that a protocol's number means."""
    return LEGACY_STREAM if stream == _LEGACY_NAME else int(stream)


def protocol_stream(handle: int) -> int:
    """Return the number by which a protocol calls a CUstream."""
    return handle or _LEGACY_NAME


def row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a contiguous array."""
    strides, step = [], itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
