"""Kernels of sm_90a on the fake driver: the real host side, and numpy in place of the device code."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import wgmma
from gemmill.dtypes import kind_dtype, output_dtype
from gemmill.layout import GROUP_K, groups
from gemmill.library import Library
from gemmill.operands import unpack_codes
from gemmill.variant import INT4

from kernels.backends import cuda
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT

Array = np.ndarray[Any, Any]

_EXACT = 8  # integers up to this are what the matrix instruction sums without loss, so it need not be modelled


class Params(ctypes.Structure):
    """native/cuda/traits.h's parameters of a launch."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "y", "aq", "c")),
        *((name, ctypes.c_int64) for name in ("ldx", "ldy", "ldaq", "ldc")),
        *((name, ctypes.c_int) for name in ("m", "n", "k", "tiles_x", "tiles_y", "k_blocks")),
        ("early", ctypes.c_int * 5),
        *((name, ctypes.c_int) for name in ("store_c", "vector_aq")),
    )


class Conversion(ctypes.Structure):
    """native/cuda/traits.h's copy of one operand."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("source", "to")),
        *((name, ctypes.c_int64) for name in ("pitch", "to_pitch")),
        ("rows", ctypes.c_int),
    )


class Conversions(ctypes.Structure):
    """native/cuda/traits.h's parameters of gemmill_convert."""

    _fields_ = (("a", Conversion), ("b", Conversion), ("k", ctypes.c_int), ("a_blocks", ctypes.c_int))


_COMPUTING = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)


def compile_driver(folder: Path, toolchain: cuda.CudaToolchain) -> Path:
    """Compile the fake driver; once it is loaded, whoever opens libcuda.so.1 gets it."""
    driver = folder / "libcuda.so"
    source = Path(__file__).with_name("fake_cuda.cpp")
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    include = ["-I", str(CHECKOUT.native), "-isystem", str(toolchain.include)]
    command = [*toolchain.host.command, *flags, *include, "-Wl,-soname,libcuda.so.1", str(source), "-o", str(driver)]
    subprocess.run(command, check=True)
    return driver


def compile_host(config: KernelConfig, source: Path, folder: Path, toolchain: cuda.CudaToolchain) -> Path:
    """Compile a kernel's host side around device code that nobody looks at."""
    library = folder / f"{config.name}.so"
    (folder / cuda.CUBIN).write_bytes(b"no device code")
    command = cuda.commands(config, source, CHECKOUT.native, library, toolchain)[1]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return library


class Driver:
    """The fake driver, loaded into this process."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.keep: list[Any] = []

    def fail(self, name: str, turn: int = 1, code: int = 719) -> None:
        """Let the turn-th call of a function from now on fail; an empty name means none."""
        self.c.fake_fail(name.encode(), turn, code)

    def calls(self, name: str) -> int:
        return int(self.c.fake_calls(name.encode()))

    @property
    def live(self) -> int:
        """Allocations and objects that were not given back."""
        return int(self.c.fake_live())

    @property
    def contexts(self) -> int:
        """How many contexts this thread's stack holds."""
        return int(self.c.fake_stack())

    def compute(self, function: Callable[[str, Any], None]) -> None:
        """Let a function do what launches ask for; it gets Params, or Conversions for gemmill_convert."""

        def called(entry: bytes, params: int) -> None:
            kind = Conversions if entry == b"gemmill_convert" else Params
            function(entry.decode(), kind.from_address(params))

        self.keep.append(_COMPUTING(called))
        self.c.fake_compute(self.keep[-1])


class SimulatedKernel:
    """What the device tests know of a kernel, and its arithmetic in numpy.

    `fault` names a mistake that the arithmetic makes, for tests of the tests.
    """

    def __init__(self, config: KernelConfig, library: Path, source: Path, fault: str = "") -> None:
        self.name, self.arch, self.key = config.name, config.arch, config.name
        self.config = {
            **{name: getattr(config, name) for name in ("variant", "layout", "family", "out")},
            "tile": list(config.tile),
        }
        self.preshuffle = config.family_row.preshuffle
        self.library = Library(library, config.arch, config.name)
        self.fault = fault
        self._config = config
        self._swap = "bool swap = true" in re.sub(r"\s+", " ", source.read_text())
        self._launches = 0
        self._first: dict[tuple[int, ...], Array] = {}
        self._last: Params | None = None  # of gemmill_plain

    def run(self, entry: str, p: Any) -> None:
        """Do what one launch asks for."""
        if entry == "gemmill_convert":
            self._convert(p)
            if self.fault == "early copies" and self._last:  # the product in front still reads
                self.multiply("gemmill_plain", self._last)
            return
        self.multiply(entry, p)
        if entry == "gemmill_plain":
            self._last = Params.from_buffer_copy(p)

    def _convert(self, p: Conversions) -> None:
        variant, layout = self._config.variant_row, self._config.layout_row
        for one, kind, column in ((p.a, variant.a, layout.a_col), (p.b, variant.b, not layout.b_col)):
            if not one.to:
                continue
            leading = one.pitch * (2 if kind == INT4 else 1)
            values = matrix(one.source, one.rows, p.k, column, leading, kind)
            copy = np.zeros((one.rows, one.to_pitch), np.uint8)
            copy[:, : p.k] = values.astype(kind_dtype("fp8" if kind == INT4 else kind, "ocp")).view(np.uint8)
            if self.fault == "an uncopied row":
                copy = copy[:-1]
            ctypes.memmove(one.to, copy.ctypes.data, copy.nbytes)
            if self.fault == "writes beyond the workspace":
                ctypes.memset(one.to + -(-copy.nbytes // 256) * 256, 0, 1)

    def multiply(self, entry: str, p: Params) -> None:
        """Do what a launch of a product asks for."""
        self._launches += 1
        if not p.m or not p.n:
            return
        variant, layout = self._config.variant_row, self._config.layout_row
        plain = entry == "gemmill_plain"  # of K-major copies
        a_at, lda, b_at, ldb = (p.y, p.ldy, p.x, p.ldx) if self._swap and not plain else (p.x, p.ldx, p.y, p.ldy)
        a_col, b_col = layout.a_col and not plain, layout.b_col or plain
        a_kind = "fp8" if plain and variant.a == INT4 else variant.a
        k = p.k + 1 if self.fault == "reads beyond K" and p.k % 128 == 11 else p.k
        c = np.zeros((p.m, p.n))
        if p.k:
            if self.fault == "ignores lda":
                lda = p.m if a_col else k
            a = matrix(a_at, p.m, k, a_col, lda, a_kind)
            b = matrix(b_at, k, p.n, b_col, ldb, variant.b)
            aq = self._scales(p)
            if self.fault == "half of a long k" and plain and k > 1024:
                a = np.where(np.arange(k) < k // 2, a, 0)
            if self.fault == "stale inputs":
                a = self._first.setdefault(a.shape, a)
            c = self._product(a, b, aq)
        if self.fault == "no last row" and p.m % 16 == 1:
            c[-1] = 0
        if self.fault == "wrong without" and entry == "gemmill_fast" and p.m > 300:
            c[-1] = 0
        rounded = c.astype(np.float32).astype(output_dtype(self._config.out))
        if self.fault == "changing bits" and self._launches % 7 == 0:
            rounded.reshape(-1).view(np.uint16)[-1] ^= 1
        for i in range(p.m):
            at = p.c + i * (p.n if self.fault == "ignores ldc" else p.ldc) * rounded.itemsize
            ctypes.memmove(at, rounded[i].ctypes.data, rounded[i].nbytes)
            if self.fault == "writes between rows" and p.ldc > p.n:
                ctypes.memset(at + rounded[i].nbytes, 0, 2)
            if self.fault == "writes whole 16 bytes" and p.ldc * rounded.itemsize % 16 == 0 and i + 1 < p.m:
                ctypes.memset(at + rounded[i].nbytes, 0, -rounded[i].nbytes % 16)
        if self.fault == "writes before C" and p.ldc > p.n:
            ctypes.memset(p.c - 2, 0, 2)
        if self.fault == "writes beyond C":
            ctypes.memset(p.c + ((p.m - 1) * p.ldc + p.n) * rounded.itemsize, 0, 2)
        if self.fault == "changes A" and p.k:
            ctypes.memset(a_at, 0, 1)

    def _product(self, a: Array, b: Array, aq: Array) -> Array:
        c = np.zeros((a.shape[0], b.shape[1]))
        variant = self._config.variant_row
        a_type = kind_dtype("fp8" if variant.a == INT4 else variant.a, "ocp")
        finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
        modelled = finite and self.fault != "float32 sums" and not (_is_exact(a) and _is_exact(b))
        with np.errstate(invalid="ignore"):
            for g in range(groups(a.shape[1])):
                part = slice(g * GROUP_K, (g + 1) * GROUP_K)
                if modelled:
                    x, y = a[:, part].astype(np.float64), b[part].astype(np.float64)
                    term = wgmma.group_sum(x, y, a_type, kind_dtype(variant.b, "ocp"))
                else:
                    term = a[:, part] @ b[part]
                c += aq[:, 0 if self.fault == "first scale" else min(g, aq.shape[1] - 1), None] * term
        return c

    def _scales(self, p: Params) -> Array:
        qk, kind = groups(p.k), self._config.variant_row.aq
        if not self.preshuffle:
            return matrix(p.aq, p.m, qk, self._config.layout_row.aq_col, p.ldaq, kind)
        b = self._config.tile[2] // GROUP_K
        tiles = -(-qk // b)
        stored = matrix(p.aq, tiles, p.m * b, False, p.ldaq, kind)
        return stored.reshape(tiles, p.m, b).transpose(1, 0, 2).reshape(p.m, tiles * b)[:, :qk]


def _is_exact(x: Array) -> bool:
    return bool((np.abs(x) <= _EXACT).all() and (x == np.rint(x)).all())


def matrix(address: int, rows: int, columns: int, column: bool, leading: int, kind: str) -> Array:
    """Return the values of a stored operand [rows, columns], float32."""
    lines, length = (columns, rows) if column else (rows, columns)
    count = (lines - 1) * leading + length
    dtype = kind_dtype(kind, "ocp")
    size = (count + 1) // 2 if kind == INT4 else count * dtype.itemsize
    raw = np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
    flat = np.zeros(lines * leading, np.float32)  # which holds every value
    flat[:count] = unpack_codes(raw, count).astype(np.float32) - 8 if kind == INT4 else raw.view(dtype)
    values = flat.reshape(lines, leading)[:, :length]
    return values.T if column else values
