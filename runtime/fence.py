"""Fenced memory for one operand: an access outside of it is a fault, or is seen afterwards."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from gemmill.device_memory import DeviceMemory

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_MARGIN = 256  # bytes before an operand that are checked for writes
_BAND = 1 << 14  # bytes on either side of an operand on a device; a multiple of what its allocations are aligned to


class Fence(Protocol):
    """Memory that holds one operand at a time, with bytes 0xFF around it: NaN in every type that has one."""

    def place(self, content: Bytes, shift: int = 0) -> None:
        """Copy an operand there, `shift` bytes away from an aligned address or from the end."""

    def address(self) -> int:
        """Return where the operand starts."""

    def read(self) -> tuple[Bytes, bool]:
        """Return what the operand holds now, and whether the bytes around it are what `place` made them."""


class Arena:
    """Pages of the host followed by one that can't be touched.

    An operand is placed so that it ends where the pages end. One arena serves one operand at a time.
    """

    def __init__(self, size: int = 1 << 16) -> None:
        self._reserve(size)

    def _reserve(self, size: int) -> None:
        size = -(-(size + _MARGIN) // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, size + _PAGE)
        whole = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(whole.ctypes.data + size), ctypes.c_size_t(_PAGE), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
        self._pages = whole[:size]

    def place(self, content: Bytes, shift: int = 0) -> None:
        """Copy bytes to the end of the pages, `shift` bytes before it for an odd address."""
        if content.size + shift + _MARGIN > self._pages.size:
            self._reserve(content.size + shift)
        self._end = self._pages.size - shift
        self._start = self._end - content.size
        self._pages[self._start - _MARGIN : self._start] = 0xFF
        self._pages[self._end :] = 0xFF
        self._pages[self._start : self._end] = content

    def address(self) -> int:
        """Return where the operand starts."""
        return int(self._pages.ctypes.data) + self._start

    def read(self) -> tuple[Bytes, bool]:
        """Return the operand, a view, and whether the bytes around it still are what `place` made them."""
        before, after = self._pages[self._start - _MARGIN : self._start], self._pages[self._end :]
        return self._pages[self._start : self._end], bool((before == 0xFF).all() and (after == 0xFF).all())


class DeviceArena:
    """An allocation on a device, with a band of bytes on either side of the operand; the process's end frees it.

    An operand without a shift is aligned to 256 bytes, as a device's own allocations are. The device must be current.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._base = self._capacity = 0

    def place(self, content: Bytes, shift: int = 0) -> None:
        """Copy bytes to the device, `shift` bytes beyond an aligned address."""
        whole = np.full(content.size + shift + 2 * _BAND, 0xFF, np.uint8)
        if whole.size > self._capacity:
            if self._base:
                self._memory.free(self._base)
                self._base = self._capacity = 0  # were the next line to fail
            self._base, self._capacity = self._memory.allocate(whole.size), whole.size
        self._start, self._end = _BAND + shift, _BAND + shift + content.size
        whole[self._start : self._end] = content
        self._memory.upload(self._base, whole)

    def address(self) -> int:
        """Return where the operand starts."""
        return self._base + self._start

    def read(self) -> tuple[Bytes, bool]:
        """Return a copy of the operand, and whether the bands still are what `place` made them."""
        whole = self._memory.download(self._base, self._end + _BAND)
        before, after = whole[: self._start], whole[self._end :]
        return whole[self._start : self._end], bool((before == 0xFF).all() and (after == 0xFF).all())
