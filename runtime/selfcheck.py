"""The checks of a kernel's selftest; they run in the child process that gemmill.selftest starts.

Each product is computed through both entries of the ABI. Operands end where their memory ends, so that a read or
write past them is a fault; C is filled with NaN before, and C's surroundings, the gaps between its rows and all
inputs must be unchanged afterwards.

exact     integers of magnitude 8 or less, and scales that are distinct powers of two for each (row, group): every
          partial sum is an integer below 2^24 in units of the row's smallest scale, hence exact in float32 in
          any order, and C is that sum rounded once, to nearest even. Compared for equality. Where the output (f16)
          or AQ's type (fp8) has too few binades for all rows, exponents repeat after some rows; within a row they
          never do.
codes     each of the 256 codes of A and of B, at every position of a group, against the table of its encoding.
special   NaN, Inf, overflow of the output, zero scales: where the formula gives NaN or Inf, and nowhere else.
random    normal data against float64, with the bound of gemmill.reference.error_bound.
empty     M = 0, N = 0 and K = 0.
faults    each bad argument has its return code and a text that names the argument.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gemmill.arch import find_arch
from gemmill.cache import Cache
from gemmill.dtypes import decode_table, kind_dtype, output_dtype
from gemmill.errors import GemmillError
from gemmill.fence import Arena
from gemmill.layout import GROUP_K, Strides, find_layout, groups, packed_strides
from gemmill.loader import Kernel, examine
from gemmill.operands import Array, pack_codes, shuffled
from gemmill.reference import error_bound, reference_gemm_aquant
from gemmill.variant import INT4, find_variant

_SEED = 20
_MAX_INT = 8  # e5m2, the coarsest type, holds the integers up to 8
_TIME_SHAPE = (16, 256, 512)


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


class Checker:
    """One kernel under test."""

    def __init__(self, kernel: Kernel, progress: Callable[[str], None] = lambda step: None) -> None:
        self.kernel = kernel
        self.library = kernel.library
        self.progress = progress
        row = find_arch(kernel.arch)
        variant = find_variant(kernel.config["variant"])
        self.is_cpu = row.backend == "cpu"
        self.encoding = row.encoding
        self.layout = find_layout(kernel.config["layout"])
        self.out = str(kernel.config["out"])
        self.kinds = {"a": variant.a, "b": variant.b, "aq": variant.aq}
        self.tile = tuple(int(x) for x in kernel.config["tile"])
        self.rng = np.random.default_rng(_SEED)
        self.arenas = {name: Arena() for name in ("A", "AQ", "B", "C")}
        self.shapes: list[list[int]] = []
        self.errors: dict[str, float] = {}

    # ---- making operands ---------------------------------------------------------------------------------

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

    # ---- running -------------------------------------------------------------------------------------------

    def entries(self) -> Sequence[str]:
        """Name the ways to call: the device-pointer entry takes host memory on the cpu backend only."""
        return ("host", "device", "gaps") if self.is_cpu else ("host",)

    def run(self, problem: Problem, entry: str = "host", shift: int = 0) -> Array:
        """Multiply through one entry and return C [M, N], after checking everything around it.

        ``host`` and ``device`` use packed operands, ``gaps`` the device-pointer entry with leading dimensions
        beyond the packed ones, the gaps holding NaN.
        """
        m, n, k = problem.shape
        packed = packed_strides(self.layout, m, n, k)
        ld = Strides(packed.a + 3, packed.aq + 1, packed.b + 5, packed.c + 7) if entry == "gaps" else packed
        aq, aq_col, ldaq = problem.aq_codes, self.layout.aq_col, ld.aq
        if self.kernel.preshuffle and entry != "host":
            per_tile = self.tile[2] // GROUP_K
            tiles = shuffled(aq, per_tile)
            aq, aq_col, ldaq = (
                tiles.reshape(tiles.shape[0], m * per_tile),
                False,
                m * per_tile + (5 if entry == "gaps" else 0),
            )
        stored = {
            "A": self._store("a", problem.a_codes, self.layout.a_col, ld.a),
            "AQ": self._store("aq", aq, aq_col, ldaq),
            "B": self._store("b", problem.b_codes, self.layout.b_col, ld.b),
        }
        c_type = output_dtype(self.out)
        stored["C"] = np.full((((m - 1) * ld.c + n) if m and n else 0) * c_type.itemsize, 0xFF, np.uint8)
        placed = {name: self.arenas[name].place(data, shift) for name, data in stored.items()}
        pointers = [self.arenas[name].address() for name in ("A", "AQ", "B", "C")]
        if entry == "host":
            code = self.library.run_host(*pointers, m, n, k, ld.a, ld.aq, ld.b, ld.c, groups(k), 1, None)
        else:
            workspace, size = self._workspace(m, n, k)
            code = self.library.run(*pointers, m, n, k, ld.a, ldaq, ld.b, ld.c, workspace, size, None)
        if code:
            raise CheckFailed(f"returned {code} for valid arguments: {self.library.last_error or 'no text'}")
        for name in ("A", "AQ", "B", "C"):
            if not self.arenas[name].intact():
                raise CheckFailed(f"wrote outside {name}")
            if name != "C" and not np.array_equal(placed[name], stored[name]):
                raise CheckFailed(f"changed {name}, an input")
        return self._read_c(placed["C"], m, n, ld.c)

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

    def _workspace(self, m: int, n: int, k: int) -> tuple[int | None, int]:
        size = self.library.workspace_bytes(m, n, k)
        if not size:
            return None, 0
        self._scratch = np.empty(size + 256, np.uint8)
        return -(-self._scratch.ctypes.data // 256) * 256, size

    # ---- the checks ----------------------------------------------------------------------------------------

    def check_all(self) -> None:
        """Run every check; raise CheckFailed on the first finding."""
        self.step("identity")
        if self.library.kernel_count != 1:
            raise CheckFailed(f"dispatcher_get_kernel_count() is {self.library.kernel_count}, not 1")
        self.check_faults()
        for shape in self.tail_shapes():
            self.check_exact(*shape)
        self.check_codes()
        self.check_special()
        for shape in self.random_shapes():
            self.check_random(*shape)
        self.check_empty()
        self.step("cleanup")
        self.library.cleanup()
        self.check_exact(2, 3, 5, entries=("host",))

    def step(self, text: str) -> None:
        self.progress(text)

    def tail_shapes(self) -> list[tuple[int, int, int]]:
        """Return shapes around the kernel's tile: M = 1, short groups, tails in each dimension, several tiles."""
        tm, tn, tk = self.tile
        return [
            (1, 1, 1),
            (1, tn + 1, GROUP_K - 1),
            (tm + 1, 2 * tn + 3, tk + 1),
            (2 * tm + 3, tn // 2 + 1, 2 * tk - 3),
            (3, tn - 1, GROUP_K),
        ]

    def random_shapes(self) -> list[tuple[int, int, int]]:
        tm, tn, tk = self.tile
        return [(1, 2 * tn, tk), (tm + 3, tn + 5, 2 * tk + 37), (5, tn, 4 * tk)]

    def _products(self, label: str, problem: Problem, entries: Sequence[str] = ()) -> Iterator[tuple[str, Array]]:
        """Yield (step, C) for each entry, and enter the check in the record."""
        m, n, k = problem.shape
        if [m, n, k] not in self.shapes:
            self.shapes.append([m, n, k])
        for entry in entries or self.entries():
            step = f"{_check_name(label, problem)}, {entry} entry"
            self.step(step)
            try:
                yield step, self.run(problem, entry)
            except CheckFailed as error:
                raise CheckFailed(f"{step}: {error}") from None
        self.errors.setdefault(_check_name(label, problem), 0.0)

    def _expect(self, label: str, problem: Problem, entries: Sequence[str] = ()) -> None:
        """Compare with the one right answer: the exact sum, rounded once."""
        exact = reference_gemm_aquant(problem.a, problem.b, problem.aq)
        with np.errstate(all="ignore"):
            expected = exact.astype(np.float32).astype(output_dtype(self.out)).astype(np.float32)
        for step, c in self._products(label, problem, entries):
            got = c.astype(np.float32)
            wrong = ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
            if wrong.any():
                raise CheckFailed(f"{step}: {_first_wrong(wrong, got, expected)}")

    def check_exact(self, m: int, n: int, k: int, entries: Sequence[str] = ()) -> None:
        """Compare integers scaled by powers of two for equality."""
        problem = self.problem(self.integers(m, k), self.integers(k, n), self.powers(m, k))
        self._expect("exact", problem, entries)

    def check_codes(self) -> None:
        """Decode every code of A and B at every position of a group."""
        one = np.eye(GROUP_K, dtype=np.float32)
        if self.kinds["a"] == INT4:
            # All pairs (high, low) of a byte, along either storage order.
            pair = np.arange(256)
            high, low = (pair >> 4)[:, None], (pair & 15)[:, None]
            even = np.arange(GROUP_K)[None, :] % 2 == 0
            a = np.where(even, high, low)
            if self.layout.a_col:
                a = np.stack([np.broadcast_to(high, a.shape), np.broadcast_to(low, a.shape)], axis=1).reshape(512, -1)
        else:
            a = np.broadcast_to(np.arange(256)[:, None], (256, GROUP_K))
        ones = np.ones((a.shape[0], 1), np.float32)
        problem = self.coded(a.astype(np.uint8), self.encode("b", one), self.encode("aq", ones))
        self._expect("codes of A", problem, self.entries()[:2])
        b = np.ascontiguousarray(np.broadcast_to(np.arange(256, dtype=np.uint8), (GROUP_K, 256)))
        ones = np.ones((GROUP_K, 1), np.float32)
        problem = self.coded(self.encode("a", one), b, self.encode("aq", ones))
        self._expect("codes of B", problem, self.entries()[:2])

    def check_special(self) -> None:
        """Let NaN, Inf, overflow and zero scales through, as the formula says, and only where it says."""
        m, n, k = 10, self.tile[1] + 3, GROUP_K + 37
        a, b, aq = (np.ones(shape, np.float32) for shape in ((m, k), (k, n), (m, 2)))
        nan, inf = np.float32(np.nan), np.float32(np.inf)
        if self.kinds["a"] != INT4:
            a[1, 2] = nan
            a[2, 130], a[3, 7] = inf, -inf
        b[4, 1], b[150, 2], b[6, n - 1] = nan, inf, -inf
        aq[4, 0] = nan
        aq[5, 1], aq[6, 0] = inf, -inf
        # 165 products of 1 times this are beyond float16.
        aq[7, :] = 1000.0 if self.kinds["aq"] == "f32" else min(1000.0, float(np.nanmax(self.table("aq"))))
        aq[8, :] = 0
        self._expect("special", self.problem(a, b, aq))

    def check_random(self, m: int, n: int, k: int) -> None:
        """Compare normal data with float64, within the bound of float32 arithmetic."""
        rng = self.rng
        a = rng.standard_normal((m, k), np.float32) * np.float32(3)
        b = rng.standard_normal((k, n), np.float32)
        aq = np.exp(rng.standard_normal((m, groups(k)), np.float32)) / 8
        problem = self.problem(a, b, aq)
        exact = reference_gemm_aquant(problem.a, problem.b, problem.aq)
        bound = error_bound(problem.a, problem.b, problem.aq, exact, self.out)
        name = _check_name("random", problem)
        for step, c in self._products("random", problem):
            got = c.astype(np.float64)
            if not got.any():
                raise CheckFailed(f"{step}: C is all zeros")
            ratio = np.abs(got - exact) / bound
            wrong = ~(ratio <= 1)
            if wrong.any():
                raise CheckFailed(f"{step}: beyond the error bound, {_first_wrong(wrong, got, exact)}")
            self.errors[name] = max(self.errors.get(name, 0.0), round(float(ratio.max()), 4))

    def check_empty(self) -> None:
        """K = 0 writes zeros, M = 0 or N = 0 nothing."""
        for m, n, k in ((3, 5, 0), (0, 5, 7), (5, 0, 7), (0, 0, 0)):
            self._expect("empty", self.problem(np.ones((m, k)), np.ones((k, n)), np.ones((m, groups(k)))))

    def check_faults(self) -> None:
        """Hand each argument a bad value and expect its code and name."""
        self.step("faults")
        m, n, k = 3, 5, 130
        s = packed_strides(self.layout, m, n, k)
        size = 4 * 1024
        pointers = [self.arenas[name].place(np.zeros(size, np.uint8)) for name in ("A", "AQ", "B", "C")]
        addresses = [self.arenas[name].address() for name in ("A", "AQ", "B", "C")]
        names = ["A", "AQ", "B", "C", "M", "N", "K", "stride_A", "stride_AQ", "stride_B", "stride_C", "QK_A", "k_batch"]
        good: list[Any] = [*addresses, m, n, k, s.a, s.aq, s.b, s.c, groups(k), 1]
        bad: list[tuple[int, Any, tuple[int, ...]]] = [(i, None, (-1,)) for i in range(4)]
        bad += [(i, -1, (-1,)) for i in range(4, 12)]
        bad += [(i, good[i] + 1, (-1,)) for i in range(7, 12)]
        bad += [(12, 0, (-1, -2)), (12, 2, (-1, -2))]
        for i, value, codes in bad:
            arguments = [*good]
            arguments[i] = value
            code = self.library.run_host(*arguments, None)
            if code not in codes:
                raise CheckFailed(f"faults: {names[i]} = {value} returned {code}, not {' or '.join(map(str, codes))}")
            text = self.library.last_error
            if not re.search(rf"\b{names[i]}\b", text):
                raise CheckFailed(f"faults: {names[i]} = {value} left a text that does not name it: {text!r}")
        if any(x.any() for x in pointers):
            raise CheckFailed("faults: a call that was refused wrote to an operand")

    def measure(self) -> float:
        """Return the kernel's own mean time for _TIME_SHAPE, in milliseconds."""
        self.step("timing")
        m, n, k = _TIME_SHAPE
        problem = self.problem(self.integers(m, k), self.integers(k, n), np.ones((m, groups(k)), np.float32))
        s = packed_strides(self.layout, m, n, k)
        stored = [
            self._store("a", problem.a_codes, self.layout.a_col, s.a),
            self._store("aq", problem.aq_codes, self.layout.aq_col, s.aq),
            self._store("b", problem.b_codes, self.layout.b_col, s.b),
            np.empty(m * n * 4, np.uint8),
        ]
        time_ms = ctypes.c_float(-1)
        pointers = [x.ctypes.data for x in stored]
        code = self.library.run_host(*pointers, m, n, k, s.a, s.aq, s.b, s.c, groups(k), 1, ctypes.byref(time_ms))
        if code or not time_ms.value > 0:
            raise CheckFailed(f"timing: returned {code}, time_ms {time_ms.value}: {self.library.last_error}")
        return round(time_ms.value, 6)


def _check_name(label: str, problem: Problem) -> str:
    m, n, k = problem.shape
    return f"{label} {m}x{n}x{k}"


def _nan_code(table: Array) -> int:
    return int(np.flatnonzero(np.isnan(table))[0])


def _first_wrong(wrong: Array, got: Array, expected: Array) -> str:
    """Return the first differing coordinate, both values, and how many differ."""
    i, j = np.argwhere(wrong)[0]
    zeros = "; C is all zeros" if not got.any() else ""
    return (
        f"C[{i},{j}] is {float(got[i, j])!r}, expected {float(expected[i, j])!r}; "
        f"{int(wrong.sum())} of {wrong.size} elements differ{zeros}"
    )


def check_object(
    root: str, key: str, progress: Callable[[str], None] = lambda step: None, simulated: str = ""
) -> dict[str, Any]:
    """Run all checks on one object and return the report, a part of selftest.json.

    `simulated` names a library to take for the GPU driver's.
    """
    checker = None
    report: dict[str, Any]
    try:
        if simulated:
            # The kernel's library finds this one by its soname when it opens the driver.
            ctypes.CDLL(simulated)
        candidate = examine(Cache(Path(root)), key, any_outcome=True, any_device=bool(simulated))
        if candidate.refusal or candidate.object is None:
            raise CheckFailed(str(candidate.refusal))
        progress("opening the library")
        checker = Checker(Kernel(candidate.object), progress)
        checker.check_all()
        if simulated:
            report = {"outcome": "simulated", "reason": None}  # its time would mean nothing
        else:
            report = {"outcome": "passed", "reason": None, "time_ms": checker.measure(), "time_shape": [*_TIME_SHAPE]}
    except (CheckFailed, GemmillError) as error:
        report = {"outcome": "failed", "reason": str(error)}
    if checker is not None:
        report.update(shapes=checker.shapes, errors=checker.errors)
    return report


def main(root: str, key: str, simulated: str = "") -> int:
    """Be the child process: report on the real stdout, and keep the kernel's own output away from it."""
    _no_core_dump()
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 1)

        def progress(step: str) -> None:
            channel.write(f"step: {step}\n")
            channel.flush()

        report = check_object(root, key, progress, simulated)
        ctypes.CDLL(None).fflush(None)  # what the library's printf still holds
        printed = os.fstat(captured.fileno()).st_size
        if printed and report["outcome"] != "failed":
            head = os.pread(captured.fileno(), 60, 0)
            report.update(outcome="failed", reason=f"the library wrote {printed} bytes to stdout: {head!r}")
    channel.write(json.dumps(report) + "\n")
    channel.flush()
    return 0


def _no_core_dump() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
