"""Memory in which an access past an operand's end is a fault, and one before its start is seen."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_MARGIN = 256  # bytes before an operand that are checked for writes


class Arena:
    """Pages followed by one that can't be touched.

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

    def place(self, content: Bytes, shift: int = 0) -> Bytes:
        """Copy bytes to the end of the pages, `shift` bytes before it for an odd address, and return them there."""
        if content.size + shift + _MARGIN > self._pages.size:
            self._reserve(content.size + shift)
        end = self._pages.size - shift
        self._start = end - content.size
        self._pages[self._start - _MARGIN : self._start] = 0xFF
        self._pages[end:] = 0xFF
        self._end = end
        placed = self._pages[self._start : end]
        placed[:] = content
        return placed

    def address(self) -> int:
        """Return where the operand starts."""
        return int(self._pages.ctypes.data) + self._start

    def intact(self) -> bool:
        """Tell whether the bytes around the operand still are what `place` made them."""
        before = self._pages[self._start - _MARGIN : self._start]
        return bool((before == 0xFF).all() and (self._pages[self._end :] == 0xFF).all())
