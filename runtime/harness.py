"""One kernel under test: operands in its types, and calls through its entries in fenced memory.

`host` is the host-pointer entry, `device` the device-pointer entry with packed operands, in the memory of the device;
`gaps` is the same with lines a few elements longer than the packed ones, `aligned` with lines longer still, such that a
GPU's copy engine takes them. The gaps hold NaN. `bare` is `aligned` without the workspace that a CUDA kernel may have.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gemmill.arch import find_arch
from gemmill.dtypes import decode_table, kind_dtype, output_dtype
from gemmill.fence import Arena, DeviceArena, Fence
from gemmill.layout import GROUP_K, Strides, find_layout, groups, packed_strides
from gemmill.loader import Kernel
from gemmill.operands import Array, pack_codes, shuffled
from gemmill.variant import INT4, find_variant

_SEED = 20
_WIDE = 32  # elements: 16 bytes of int4, and more of every other type
_WORKSPACE_ALIGNMENT = 256
_FENCES = ("A", "AQ", "B", "C", "workspace")
_MAX_INT = 8  # e5m2, the coarsest type, holds the integers up to 8


class CheckFailed(Exception):
    """A check's finding; its text becomes the record's reason."""


@dataclass(frozen=True)
class Problem:
    """Operands by value and by code.

    Attributes
    ----------
    a, b, aq : numpy.ndarray
        Values, float32: [M, K], [K, N], [M, QK].
    a_codes, b_codes, aq_codes : numpy.ndarray
        What is stored: fp8 codes (uint8), int4 codes 0..15 (uint8), or float32.
    """

    a: Array
    b: Array
    aq: Array
    a_codes: Array
    b_codes: Array
    aq_codes: Array

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]


class Harness:
    """A kernel, the values its types hold, and memory to call it in.

    Attributes
    ----------
    backend : str
        Of its arch; the device-pointer entry of ``cpu`` takes host memory.
    host, device : dict
        Memory for the host-pointer and for the device-pointer entry: A, AQ, B, C and workspace.
    kinds : dict
        Operand kind (gemmill.variant) of ``a``, ``b`` and ``aq``.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.library = kernel.library
        row = find_arch(kernel.arch)
        variant = find_variant(kernel.config["variant"])
        self.backend = row.backend
        self.encoding = row.encoding
        self.product_sum = row.product_sum
        self.layout = find_layout(kernel.config["layout"])
        self.out = str(kernel.config["out"])
        self.kinds = {"a": variant.a, "b": variant.b, "aq": variant.aq}
        self.tile = tuple(int(x) for x in kernel.config["tile"])
        self.limits: dict[str, int] = self.library.manifest.get("limits", {})
        self.rng = np.random.default_rng(_SEED)
        self.host: dict[str, Fence] = {name: Arena() for name in _FENCES}
        self.device = self.host
        self.memory = None
        if self.backend != "cpu":
            from gemmill.device_memory import memory_of  # only who has a GPU needs it

            self.memory = memory_of(row)
            self.device = {name: DeviceArena(self.memory) for name in _FENCES}
        # CUDA kernels take the addresses of these at multiples of their elements alone; all else may lie anywhere.
        aq_bytes = kind_dtype(variant.aq, row.encoding).itemsize
        self.steps = {"AQ": aq_bytes, "C": output_dtype(self.out).itemsize} if self.backend == "cuda" else {}

    def table(self, operand: str) -> Array:
        """Return the values of an operand's codes."""
        kind = self.kinds[operand]
        if kind == INT4:
            return np.arange(-8, 8, dtype=np.float32)
        return decode_table(kind_dtype(kind, self.encoding).name)

    def encode(self, operand: str, values: Array) -> Array:
        """Return the codes of float32 values, rounded to nearest where the type lacks them."""
        kind = self.kinds[operand]
        if kind == INT4:
            return (np.clip(np.rint(values), -8, 7) + 8).astype(np.uint8)
        if kind == "f32":
            return values.astype(np.float32)
        with np.errstate(all="ignore"):
            return values.astype(kind_dtype(kind, self.encoding)).view(np.uint8)

    def typed(self, operand: str, codes: Array) -> Array:
        """Return codes in their own type: fp8 arrays, or float32 values of int4 ones."""
        kind = self.kinds[operand]
        return self.table(operand)[codes] if kind == INT4 else codes.view(kind_dtype(kind, self.encoding))

    def problem(self, a: Array, b: Array, aq: Array) -> Problem:
        """Return a problem with the nearest values that the kernel's types hold."""
        codes = [self.encode(name, x) for name, x in (("a", a), ("b", b), ("aq", aq))]
        return self.coded(*codes)

    def coded(self, a: Array, b: Array, aq: Array) -> Problem:
        """Return the problem with these codes."""
        values = [
            codes if codes.dtype == np.float32 else self.table(name)[codes]
            for name, codes in (("a", a), ("b", b), ("aq", aq))
        ]
        return Problem(values[0], values[1], values[2], a, b, aq)

    def integers(self, *shape: int) -> Array:
        return self.rng.integers(-_MAX_INT, _MAX_INT + 1, shape).astype(np.float32)

    def powers(self, m: int, k: int) -> Array:
        """Return scales 2^e, distinct for each (row, group) until the exponents are used up, never within a row."""
        qk = groups(k)
        low, high = self._exponents()
        cycle = max(1, (high - low + 1) // max(qk, 1))
        rows = np.arange(m)[:, None] % cycle
        # Groups in an order that is not the ascending one.
        offset = (np.arange(qk)[None, :] * 2 + 1) % qk if qk % 2 else np.arange(qk)[None, ::-1]
        return np.exp2((high - rows * qk - offset).astype(np.float32))

    def _exponents(self) -> tuple[int, int]:
        low, high = (-24, 3) if self.out == "f16" else (-60, 60)
        if self.kinds["aq"] != "f32":
            table = self.table("aq")
            exponents = np.log2(table[(table > 0) & np.isfinite(table)])
            low, high = max(low, int(np.ceil(exponents.min()))), min(high, int(exponents.max()))
        return low, high

    def entries(self, m: int, n: int, k: int) -> tuple[str, ...]:
        """Name the ways to multiply this shape, ``host`` and ``device`` first."""
        if self.limits:  # another provider's, which may want operands packed
            return "host", "device"
        if self.backend == "cpu":
            return "host", "device", "gaps"
        optional = self.backend == "cuda" and self.library.workspace_bytes(m, n, k) > 0
        return ("host", "device", "gaps", "aligned", *(["bare"] if optional else []))

    def on_device(self) -> AbstractContextManager[None]:
        """Make the kernel's device current: what `device` and the device-pointer entry need."""
        return self.memory.current() if self.memory else nullcontext()

    def run(self, problem: Problem, entry: str = "host", shift: int = 0) -> Array:
        """Multiply through one entry and return C [M, N], after checking everything around it.

        Parameters
        ----------
        problem : Problem
        entry : str
            One of `entries`.
        shift : int
            Bytes between an aligned address and each operand; elements of AQ and C where the entry wants those aligned.

        Raises
        ------
        CheckFailed
            If the call fails, or changes anything but C.
        DeviceError
            If the device does.
        """
        rows, columns, _ = problem.shape
        problem = self._fitted(problem)
        m, n, k = problem.shape
        aq, aq_col = problem.aq_codes, self.layout.aq_col
        packed = packed_strides(self.layout, m, n, k)
        if self.kernel.preshuffle and entry != "host":
            per_tile = self.tile[2] // GROUP_K
            tiles = shuffled(aq, per_tile)
            aq, aq_col = tiles.reshape(tiles.shape[0], m * per_tile), False
            packed = replace(packed, aq=m * per_tile)
        ld = _leading(packed, entry)
        c_bytes = output_dtype(self.out).itemsize
        stored = {
            "A": self._store("a", problem.a_codes, self.layout.a_col, ld.a),
            "AQ": self._store("aq", aq, aq_col, ld.aq),
            "B": self._store("b", problem.b_codes, self.layout.b_col, ld.b),
            "C": np.full((((m - 1) * ld.c + n) if m and n else 0) * c_bytes, 0xFF, np.uint8),
        }
        fences, size = self.host if entry == "host" else self.device, 0
        with nullcontext() if entry == "host" else self.on_device():
            for name, data in stored.items():
                fences[name].place(data, shift * (1 if entry == "host" else self.steps.get(name, 1)))
            pointers = [fences[name].address() for name in stored]
            if entry == "host":
                code = self.library.run_host(*pointers, m, n, k, ld.a, ld.aq, ld.b, ld.c, groups(k), 1, None)
            else:
                workspace, size = self.workspace(m, n, k) if entry != "bare" else (None, 0)
                code = self.library.run(*pointers, m, n, k, ld.a, ld.aq, ld.b, ld.c, workspace, size, None)
            if code:
                raise CheckFailed(f"returned {code} for valid arguments: {self.library.last_error or 'no text'}")
            if self.memory and entry != "host":
                self.memory.synchronize()
            found = {name: fences[name].read() for name in (*stored, *(["workspace"] if size else []))}
        for name, (held, intact) in found.items():
            if not intact:
                raise CheckFailed(f"wrote outside {name}")
            if name in ("A", "AQ", "B") and not np.array_equal(held, stored[name]):
                raise CheckFailed(f"changed {name}, an input")
        return np.ascontiguousarray(self._read_c(found["C"][0], m, n, ld.c)[:rows, :columns])

    def fit(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """Return the next larger shape that the kernel takes, by the limits in its manifest (kernels.describe)."""
        step = self.limits.get("k", 1)
        n, k = -(-n // self.limits.get("n", 1)) * self.limits.get("n", 1), -(-k // step) * step
        excluded = self.limits.get("not_k")
        return m, n, k + step if excluded and k and k % excluded == 0 else k

    def _fitted(self, problem: Problem) -> Problem:
        """Return the same problem with zeros around it, where the kernel does not take its shape."""
        shape = self.fit(*problem.shape)
        if shape == problem.shape:
            return problem
        m, n, k = shape
        sizes = {"a": (m, k), "b": (k, n), "aq": (m, groups(k))}
        padded = []
        for name, (rows, columns) in sizes.items():
            codes = getattr(problem, f"{name}_codes")
            whole = np.empty((rows, columns), codes.dtype)
            whole[...] = self.encode(name, np.zeros(1, np.float32))
            whole[: codes.shape[0], : codes.shape[1]] = codes
            padded.append(whole)
        return self.coded(*padded)

    def _store(self, operand: str, codes: Array, col: bool, leading: int) -> Array:
        """Return the bytes of an operand in storage order, gaps filled with NaN (code 15 for int4)."""
        matrix = codes.T if col else codes
        outer, inner = matrix.shape
        if not outer or not inner:
            return np.empty(0, np.uint8)
        kind = self.kinds[operand]
        filler: Any = np.nan if kind == "f32" else 15 if kind == INT4 else _nan_code(self.table(operand))
        flat = np.full(outer * leading, filler, codes.dtype)
        flat.reshape(outer, leading)[:, :inner] = matrix
        flat = flat[: (outer - 1) * leading + inner]
        return pack_codes(flat) if kind == INT4 else flat.view(np.uint8)

    def _read_c(self, placed: Array, m: int, n: int, ldc: int) -> Array:
        c_type = output_dtype(self.out)
        if not m or not n:
            return np.empty((m, n), c_type)
        whole = np.full(m * ldc * c_type.itemsize, 0xFF, np.uint8)
        whole[: placed.size] = placed
        rows = whole.reshape(m, ldc * c_type.itemsize)
        if not (rows[:, n * c_type.itemsize :] == 0xFF).all():
            raise CheckFailed("wrote between the rows of C")
        return np.ascontiguousarray(rows[:, : n * c_type.itemsize]).view(c_type)

    def workspace(self, m: int, n: int, k: int) -> tuple[int | None, int]:
        """Return the address and size of fenced memory for the device-pointer entry's workspace, where it wants one."""
        size = self.library.workspace_bytes(m, n, k)
        if not size:
            return None, 0
        whole = -(-size // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
        self.device["workspace"].place(np.full(whole, 0xFF, np.uint8))
        return self.device["workspace"].address(), size


def _leading(packed: Strides, entry: str) -> Strides:
    """Return the leading dimensions that an entry's operands are stored with."""
    if entry == "gaps":
        return Strides(packed.a + 3, packed.aq + 1, packed.b + 5, packed.c + 7)
    if entry in ("aligned", "bare"):
        a, aq, b, c = (-(-(length + 1) // _WIDE) * _WIDE for length in (packed.a, packed.aq, packed.b, packed.c))
        return Strides(a, aq, b, c)
    return packed


def _nan_code(table: Array) -> int:
    return int(np.flatnonzero(np.isnan(table))[0])
