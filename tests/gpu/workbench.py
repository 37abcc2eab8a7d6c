"""A kernel and a device: operands in fenced memory, calls through the device-pointer entry, and what came out.

Every operand lies between guard bands of NaN, so that a read outside it shows in C; C and its bands are NaN before a
call, and the bands, and the gaps between C's rows, must be untouched afterwards. So must the bands of a workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from driver import Gpu
from gemmill.cache import Cache
from gemmill.dtypes import output_dtype
from gemmill.loader import Kernel, examine
from operands import Array, Bytes, Case, Problem, Stored, expected, problem, store

ARCH = "sm_90a"
_GUARD = 4096  # bytes; keeps bases aligned


class Wrong(Exception):
    """What a check found."""


@dataclass
class Operands:
    """A problem's operands on the device, and room for C."""

    problem: Problem
    stored: Stored
    a: int
    aq: int
    b: int
    c: int
    c_bytes: int
    memory: list[int] = field(repr=False)
    base_c: int
    whole_c: int
    wanted: Array = field(repr=False)  # C, rounded
    workspace: tuple[int, int] = (0, 0)  # address and size, once a kernel took one


class Workbench:
    """Kernels on one device.

    Parameters
    ----------
    gpu : Gpu
    cache : Cache
    entries : list of IndexEntry
        The kernels, those that store operands alike side by side.
    brief : bool
        Leave out most shapes and repeats, where a device is only simulated.
    """

    def __init__(self, gpu: Gpu, cache: Cache, entries: Iterable[Any], brief: bool = False) -> None:
        self.gpu = gpu
        self.cache = cache
        self.brief = brief
        self.entries = sorted(entries, key=_group)
        self._group: Any = None
        self._placed: dict[tuple[Case, int], Operands] = {}
        self._arenas: dict[str, tuple[int, int]] = {}

    @classmethod
    def find(cls, gpu: Gpu, root: Path, match: str = "*") -> Workbench:
        """Return a workbench for the kernels of a cache whose names match a glob."""
        cache = Cache(root)
        return cls(gpu, cache, cache.entries(ARCH, match))

    def kernel(self, entry: Any) -> Kernel:
        """Open a kernel, whatever its selftest said."""
        candidate = examine(self.cache, entry.key, entry, any_outcome=True)
        if candidate.refusal or candidate.object is None:
            raise Wrong(str(candidate.refusal))
        return Kernel(candidate.object)

    # ---- operands ----

    def operands(self, kernel: Kernel, case: Case, seed: int = 0) -> Operands:
        """Return a case's operands on the device; kernels that store them alike share them."""
        group = _group(kernel)
        if group != self._group:
            self.drop()
            self._group = group
        found = self._placed.get((case, seed))
        if found is None:
            p = problem(kernel.config["variant"], case.m, case.n, case.k, seed)
            found = self._placed[case, seed] = self.place(kernel, p, case)
        return found

    def place(self, kernel: Kernel, p: Problem, case: Case) -> Operands:
        """Put a problem on the device; `release` gives its memory back."""
        stored = store(kernel, p, case.lines)
        memory: list[int] = []
        scale = 4 if p.aq.dtype == np.float32 else 1
        addresses = [
            self._fenced(data, case.shift * size, memory)
            for data, size in ((stored.a, 1), (stored.aq, scale), (stored.b, 1))
        ]
        item = output_dtype(kernel.config["out"]).itemsize
        m, n, _ = p.shape
        c_bytes = ((m - 1) * stored.ldc + n) * item if m and n else 0
        whole = c_bytes + 2 * _GUARD + case.shift * item
        base = self.gpu.allocate(whole)
        memory.append(base)
        c = base + _GUARD + case.shift * item
        wanted = expected(p.exact, kernel.config["out"])
        return Operands(p, stored, *addresses, c, c_bytes, memory, base, whole, wanted)

    def _fenced(self, data: Bytes, shift: int, memory: list[int]) -> int:
        whole = np.full(2 * _GUARD + shift + data.size, 0xFF, np.uint8)
        whole[_GUARD + shift :][: data.size] = data
        base = self.gpu.allocate(whole.size)
        memory.append(base)
        self.gpu.upload(base, whole)
        return base + _GUARD + shift

    def release(self, o: Operands) -> None:
        """Give a problem's memory back."""
        for address in o.memory:
            self.gpu.free(address)

    def drop(self) -> None:
        """Give back the memory of all cases."""
        for o in self._placed.values():
            self.release(o)
        self._placed.clear()

    def arena(self, name: str, size: int) -> int:
        """Return memory of at least `size` bytes, full of NaN: the same for every caller of that name."""
        address, have = self._arenas.pop(name, (0, 0))
        if have < size:
            if have:
                self.gpu.free(address)
            address, have = self.gpu.allocate(size), size
        self._arenas[name] = address, have
        self.gpu.fill(address, 0xFF, size)
        return address

    # ---- calls ----

    def poison(self, o: Operands) -> None:
        """Fill C, the workspace, and what is around them with NaN."""
        self.gpu.fill(o.base_c, 0xFF, o.whole_c)
        address, size = o.workspace
        if size:
            self.gpu.fill(address - _GUARD, 0xFF, size + 2 * _GUARD)

    def workspace(self, kernel: Kernel, o: Operands) -> tuple[int | None, int]:
        """Return address and size of what the kernel takes for this problem; one problem has one workspace."""
        size = kernel.library.workspace_bytes(*o.problem.shape)
        if size > o.workspace[1]:
            base = self.gpu.allocate(size + 2 * _GUARD)
            o.memory.append(base)
            o.workspace = base + _GUARD, size
            self.gpu.fill(base, 0xFF, size + 2 * _GUARD)
        return (o.workspace[0], size) if size else (None, 0)

    def launch(
        self,
        kernel: Kernel,
        o: Operands,
        stream: int | None = None,
        bare: bool = False,
        workspace: tuple[int | None, int] | None = None,
    ) -> None:
        """Start one product; `bare`: without a workspace; `workspace`: with this one, not the problem's own."""
        s = o.stored
        sizes = (*o.problem.shape, s.lda, s.ldaq, s.ldb, s.ldc)
        workspace = (None, 0) if bare else workspace or self.workspace(kernel, o)
        code = kernel.library.run(o.a, o.aq, o.b, o.c, *sizes, *workspace, stream)
        if code:
            raise Wrong(f"returned {code} for valid arguments: {kernel.library.last_error}")

    def result(self, kernel: Kernel, o: Operands) -> Array:
        """Wait, and return C [M, N], after checking that nothing around it was written."""
        self.gpu.synchronize()
        m, n, _ = o.problem.shape
        dtype, ldc = output_dtype(kernel.config["out"]), o.stored.ldc
        whole = self.gpu.download(o.base_c, o.whole_c)
        start = o.c - o.base_c
        if (whole[:start] != 0xFF).any() or (whole[start + o.c_bytes :] != 0xFF).any():
            raise Wrong("wrote outside C")
        address, size = o.workspace
        for band in (address - _GUARD, address + size) if size else ():
            if (self.gpu.download(band, _GUARD) != 0xFF).any():
                raise Wrong("wrote outside the workspace")
        if not m or not n:
            return np.empty((m, n), dtype)
        lines = np.full(m * ldc * dtype.itemsize, 0xFF, np.uint8)
        lines[: o.c_bytes] = whole[start : start + o.c_bytes]
        rows = lines.reshape(m, ldc * dtype.itemsize)
        if (rows[:, n * dtype.itemsize :] != 0xFF).any():
            raise Wrong("wrote between the rows of C")
        return np.ascontiguousarray(rows[:, : n * dtype.itemsize]).view(dtype)

    def multiply(self, kernel: Kernel, o: Operands, stream: int | None = None, bare: bool = False) -> Array:
        """Poison C, multiply, and return C."""
        self.poison(o)
        self.gpu.synchronize()
        self.launch(kernel, o, stream, bare)
        return self.result(kernel, o)

    def expect(self, o: Operands, c: Array, what: str) -> None:
        """Raise Wrong unless C is the exact product, rounded once."""
        expect_equal(c, o.wanted, what)

    def check(self, kernel: Kernel, o: Operands, what: str, stream: int | None = None) -> None:
        """Multiply and compare."""
        try:
            c = self.multiply(kernel, o, stream)
        except Wrong as error:
            raise Wrong(f"{what}: {error}") from None
        self.expect(o, c, what)


def expect_equal(c: Array, wanted: Array, what: str) -> None:
    """Raise Wrong at the first element that differs; -0 equals 0."""
    if np.array_equal(c.view(np.uint8), wanted.view(np.uint8)):
        return
    got, right = c.astype(np.float32), wanted.astype(np.float32)
    wrong = ~((got == right) | (np.isnan(got) & np.isnan(right)))
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise Wrong(f"{what}: C[{i},{j}] is {got[i, j]!r}, not {right[i, j]!r}; {wrong.sum()} of {wrong.size} differ")


def _group(kernel: Any) -> tuple[str, str, bool, str]:
    """Return what decides how operands are stored; bytes of C differ by output type."""
    config = kernel.config
    return config["variant"], config["layout"], "_preshufflequant" in kernel.name, config["out"]


def representatives(entries: Iterable[Any], by: Callable[[Any], Any]) -> list[Any]:
    """Return the first entry of each class; None is no class."""
    found: dict[Any, Any] = {}
    for entry in entries:
        if by(entry) is not None:
            found.setdefault(by(entry), entry)
    return list(found.values())
