"""One opened kernel library: the ctypes view of native/abi.h, and its return codes as exceptions.

Opening a library runs code, so the caller has verified the file and the host before. The first thing asked of
an opened library is what it is: a file under the wrong name, or of another ABI, is refused before any other call.
Libraries stay mapped for the life of the process (ctypes never closes them), so a call can't lose its code.
"""

from __future__ import annotations

import ctypes
import json
import struct
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

from gemmill.errors import ArgumentError, CorruptObject, DeviceError, Refused, UnsupportedError

ABI_VERSION = 2

_ERRORS: dict[int, type[Exception]] = {-1: ArgumentError, -2: UnsupportedError, -3: DeviceError}

# name: (result, arguments), in the order of native/abi.h.
_FUNCTIONS: dict[str, tuple[Any, list[Any] | None]] = {
    "dispatcher_initialize": (c_int, []),
    "dispatcher_run_aquant_gemm": (
        c_int,
        [*[c_void_p] * 4, *[c_int64] * 8, c_int, POINTER(c_float)],
    ),
    "dispatcher_get_kernel_name": (c_char_p, []),
    "dispatcher_get_kernel_count": (c_int, []),
    "dispatcher_cleanup": (None, []),
    "gemmill_abi_version": (c_int, []),
    "gemmill_manifest": (c_char_p, []),
    "gemmill_last_error": (c_char_p, []),
    "gemmill_workspace_bytes": (c_int64, [c_int64] * 3),
    "gemmill_gemm_aquant": (
        c_int,
        [*[c_void_p] * 4, *[c_int64] * 7, c_void_p, c_int64, c_void_p],
    ),
    "gemmill_launch": (c_int, None),
}

# struct GemmillCall in two parts: what changes from call to call, and what does not.
call_pointers = struct.Struct("4P").pack
_REST = struct.Struct("7q P q P q")


def call_rest(
    sizes: tuple[int, ...], workspace: int = 0, workspace_bytes: int = 0, stream: int = 0, device: int = 0
) -> bytes:
    """Return what follows the pointers in `Library.launch`'s argument; sizes are M N K lda ldaq ldb ldc."""
    return _REST.pack(*sizes, workspace, workspace_bytes, stream, device)


class Library:
    """A kernel library, opened and asked who it is.

    Parameters
    ----------
    path : Path
        The verified ``.so``.
    arch, name : str
        What the cache object's manifest says it is.

    Attributes
    ----------
    run : callable
        ``gemmill_gemm_aquant`` as ctypes has it; hand its result to `check`.
    launch : callable
        ``gemmill_launch``, which takes a third of the time: its argument is what `call_pointers` made of the addresses
        of A, AQ, B and C, plus what `call_rest` made. It believes that they are memory of that device.
    run_host : callable
        ``dispatcher_run_aquant_gemm`` likewise.

    Raises
    ------
    CorruptObject
        If it can't be opened, lacks a function of the ABI, or says that it is another kernel.
    Refused
        If it was built for another version of the ABI.
    """

    def __init__(self, path: Path, arch: str, name: str) -> None:
        self.path = path
        try:
            self._dll = ctypes.CDLL(str(path))
            version = self._dll.gemmill_abi_version()  # first, since another version may lack a function
            if version != ABI_VERSION:
                raise Refused(f"{path} has ABI version {version}; this gemmill takes {ABI_VERSION}: rebuild the kernel")
            for function, (result, arguments) in _FUNCTIONS.items():
                entry = getattr(self._dll, function)
                entry.restype, entry.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise CorruptObject(f"{path} is no kernel library: {error}") from None
        self.manifest = self._read_manifest()
        said = (self.manifest.get("arch"), self.manifest.get("name"), self.kernel_name)
        if said != (arch, name, name):
            raise CorruptObject(
                f"{path} should be {arch}/{name}; it says that it is {said[0]}/{said[1]}, kernel name {said[2]!r}"
            )
        self.run = self._dll.gemmill_gemm_aquant
        self.launch = self._dll.gemmill_launch  # without argtypes, since bytes are passed as they are
        self.run_host = self._dll.dispatcher_run_aquant_gemm

    def __repr__(self) -> str:
        return f"Library({str(self.path)!r})"

    def _read_manifest(self) -> dict[str, Any]:
        text = self._dll.gemmill_manifest()
        try:
            manifest = json.loads(text or b"")
        except ValueError as error:
            raise CorruptObject(f"{self.path} embeds a manifest that is not JSON: {error}") from None
        if not isinstance(manifest, dict):
            raise CorruptObject(f"{self.path} embeds a manifest that is no JSON object")
        return manifest

    @property
    def kernel_name(self) -> str:
        """What the dispatcher ABI says the kernel is called."""
        return (self._dll.dispatcher_get_kernel_name() or b"").decode("utf-8", "replace")

    @property
    def kernel_count(self) -> int:
        return int(self._dll.dispatcher_get_kernel_count())

    @property
    def last_error(self) -> str:
        """What this thread's last failing call had to say."""
        return (self._dll.gemmill_last_error() or b"").decode("utf-8", "replace")

    def initialize(self) -> None:
        """Let the library check the machine and make itself ready; calling it again costs nothing."""
        self.check(self._dll.dispatcher_initialize())

    def cleanup(self) -> None:
        """Give back what the library holds; it initialises itself again when needed."""
        self._dll.dispatcher_cleanup()

    def workspace_bytes(self, m: int, n: int, k: int) -> int:
        """Return the bytes of workspace that `run` needs for this problem."""
        size = int(self._dll.gemmill_workspace_bytes(m, n, k))
        if size < 0:
            self.check(size)
        return size

    def check(self, code: int) -> None:
        """Raise the exception that a return code stands for, with the library's own text; 0 is success."""
        if code:
            kind = _ERRORS.get(code, DeviceError)
            raise kind(self.last_error or f"{self.path} returned {code} and no text")
