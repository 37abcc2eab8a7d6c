"""The checks of a kernel's selftest; they run in the child process that gemmill.selftest starts.

Each product is computed through both entries of the ABI, the one for device pointers in each way that
gemmill.harness has. Operands on the host end where their memory ends, so that a read or write past them is a fault;
those on a device lie between bands of NaN. C is filled with NaN before, and C's surroundings, the gaps between its
rows and all inputs must be unchanged afterwards.

exact      integers of magnitude 8 or less, and scales that are distinct powers of two for each (row, group): every
           partial sum is an integer below 2^24 in units of the row's smallest scale, hence exact in float32 in
           any order, and C is that sum rounded once, to nearest even. Compared for equality. Where the output
           (f16) or AQ's type (fp8) has too few binades for all rows, exponents repeat after some rows; within a
           row they never do.
unaligned  the same with every operand at an odd address (on CUDA devices C and AQ an element from an aligned one).
codes      each of the 256 codes of A and of B, at every position of a group, against the table of its encoding; each
           code of an fp8 AQ, or float32 scales of either sign that put C on, or next to, the middle of two float16.
special    NaN, Inf, overflow of the output, zero scales: where the formula gives NaN or Inf, and nowhere else.
random     normal data against float64, with the bound of gemmill.reference.error_bound.
empty      M = 0, N = 0 and K = 0.
faults     each bad argument of either entry has its return code and a text that names the argument.

On a simulated device, where a product takes as long as its arithmetic, only some of them go through every entry.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gemmill.cache import Cache
from gemmill.dtypes import output_dtype
from gemmill.errors import DeviceError, GemmillError
from gemmill.faults import check_faults
from gemmill.harness import CheckFailed, Harness, Problem
from gemmill.layout import GROUP_K, groups, packed_strides
from gemmill.loader import Kernel, examine
from gemmill.operands import Array
from gemmill.reference import error_bound, reference_gemm_aquant
from gemmill.variant import INT4

_TIME_SHAPE = (16, 256, 512)
_PACKED = ("host", "device")
_SIMULATED_EVERYWHERE = ("exact", "unaligned", "empty")  # the others are about numbers, not about memory


class Checker(Harness):
    """The checks of one kernel.

    Parameters
    ----------
    kernel : Kernel
    step : callable, optional
        Told what is to be done next.
    simulated : bool
        Its device is a simulation.

    Attributes
    ----------
    shapes : list
        [M, N, K] of the products so far.
    errors : dict
        Largest error relative to its bound, by check; exact checks have 0.
    used : list
        The entries that these products went through.
    """

    def __init__(
        self, kernel: Kernel, step: Callable[[str], None] = lambda text: None, simulated: bool = False
    ) -> None:
        super().__init__(kernel)
        self.simulated = simulated
        self.step = step
        self.shapes: list[list[int]] = []
        self.errors: dict[str, float] = {}
        self.used: list[str] = []
        self.time_shape = self.fit(*_TIME_SHAPE)

    def check_all(self) -> None:
        """Run every check; raise CheckFailed on the first finding."""
        self.step("identity")
        if self.library.kernel_count != 1:
            raise CheckFailed(f"dispatcher_get_kernel_count() is {self.library.kernel_count}, not 1")
        self.check_faults()
        for shape in (*self.tail_shapes(), *self.workspace_shapes()):
            self.check_exact(*shape)
        self.check_unaligned()
        self.check_codes()
        self.check_special()
        for shape in self.random_shapes():
            self.check_random(*shape)
        self.check_empty()
        self.step("cleanup")
        self.library.cleanup()
        self.check_exact(2, 3, 5, entries=("host",))

    def tail_shapes(self) -> list[tuple[int, int, int]]:
        """Return shapes around the kernel's tile: M = 1, short groups, tails in each dimension, several tiles."""
        tm, tn, tk = self.tile
        # Only one is large in all dimensions: the float64 reference is most of a selftest's time.
        return [
            (1, 1, 1),
            (1, tn + 1, GROUP_K - 1),
            (tm + 3, tn + 5, tk + 1),
            (5, 2 * tn + 3, 2 * tk - 3),
            (3, tn - 1, GROUP_K),
        ]

    def workspace_shapes(self) -> list[tuple[int, int, int]]:
        """Return shapes that take a workspace, where only large ones do.

        With tails; with packed lines aligned; of as few rows as take one, so that blocks may share a tile's k.
        """
        takes = self.library.workspace_bytes
        if takes(1, 1, 1):
            return []
        tk = self.tile[2]
        sizes = [2**i for i in range(4, 13)]
        for n in sizes:
            if takes(n, n, n):
                m = next(m for m in sizes if takes(m, n, n))
                return [(n + 3, n + 5, 2 * tk - 3), (n + 32, n + 96, tk + 32), (m + 3, n + 5, 16 * tk - 3)]
        return []

    def random_shapes(self) -> list[tuple[int, int, int]]:
        tm, tn, tk = self.tile
        return [(1, tn, tk), (35, tn // 2 + 5, 2 * tk + 37), (tm + 1, 9, 4 * tk)]

    def _products(
        self, label: str, problem: Problem, entries: Sequence[str] = (), shift: int = 0
    ) -> Iterator[tuple[str, Array]]:
        """Yield (step, C) for each entry, and enter the check in the record."""
        m, n, k = problem.shape
        multiplied = [*self.fit(m, n, k)]
        if multiplied not in self.shapes:
            self.shapes.append(multiplied)
        entries = entries or self.entries(*multiplied)
        for entry in entries[:1] if self.simulated and label not in _SIMULATED_EVERYWHERE else entries:
            step = f"{_check_name(label, problem)}, {entry} entry"
            self.step(step)
            try:
                c = self.run(problem, entry, shift)
            except (CheckFailed, DeviceError) as error:
                raise CheckFailed(f"{step}: {error}") from None
            if entry not in self.used:
                self.used.append(entry)
            yield step, c
        self.errors.setdefault(_check_name(label, problem), 0.0)

    def _expect(self, label: str, problem: Problem, entries: Sequence[str] = (), shift: int = 0) -> None:
        """Compare with the one right answer: the exact sum, rounded once."""
        exact = reference_gemm_aquant(problem.a, problem.b, problem.aq)
        with np.errstate(all="ignore"):
            expected = exact.astype(np.float32).astype(output_dtype(self.out)).astype(np.float32)
        for step, c in self._products(label, problem, entries, shift):
            got = c.astype(np.float32)
            wrong = ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
            if wrong.any():
                raise CheckFailed(f"{step}: {_first_wrong(wrong, got, expected)}")

    def check_exact(self, m: int, n: int, k: int, entries: Sequence[str] = ()) -> None:
        """Compare integers scaled by powers of two for equality."""
        problem = self.problem(self.integers(m, k), self.integers(k, n), self.powers(m, k))
        self._expect("exact", problem, entries)

    def check_unaligned(self) -> None:
        """Place every operand at an odd address."""
        m, n, k = 3, self.tile[1] + 1, GROUP_K + 3
        problem = self.problem(self.integers(m, k), self.integers(k, n), self.powers(m, k))
        entries = ("host",) if self.limits else ()  # another provider's may want aligned operands
        self._expect("unaligned", problem, entries, shift=1)

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
        self._expect("codes of A", problem, _PACKED)
        b = np.ascontiguousarray(np.broadcast_to(np.arange(256, dtype=np.uint8), (GROUP_K, 256)))
        ones = np.ones((GROUP_K, 1), np.float32)
        problem = self.coded(self.encode("a", one), b, self.encode("aq", ones))
        self._expect("codes of B", problem, _PACKED)
        # One product a row, so that C is AQ, or what the powers of two in A and B make of a large one.
        factor = np.float32(2.0**-6) if self.kinds["aq"] == "f32" else np.float32(1)
        a, b = np.full((256, 1), factor), np.full((1, 3), factor)
        if self.kinds["a"] == INT4:
            a[:] = 1
        scales = np.arange(256, dtype=np.uint8)[:, None]
        if self.kinds["aq"] == "f32":
            scales = self._near_halves() / (a * factor)
        self._expect("codes of AQ", self.coded(self.encode("a", a), self.encode("b", b), scales), _PACKED)

    def _near_halves(self) -> Array:
        """Return 256 values, float32 [256, 1]: float16 numbers, the middles between two, and their neighbours."""
        # Also the smallest subnormal, the smallest normal and the overflow.
        codes = np.array([0, 0x3FF, 0x7BFF, *self.rng.choice(0x7BFF, 61)], np.uint16)
        low, high = (x.view(np.float16).astype(np.float32) for x in (codes, codes + np.uint16(1)))
        high[np.isinf(high)] = 2.0**16
        middle = (low + high) / 2
        values = np.stack([low, middle, np.nextafter(middle, low), np.nextafter(middle, high)])
        values[:, ::2] *= -1
        return values.reshape(-1, 1)

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
        """Compare normal data with float64, within the bound of the arch's arithmetic."""
        rng = self.rng
        a = rng.standard_normal((m, k), np.float32) * np.float32(3)
        b = rng.standard_normal((k, n), np.float32)
        aq = np.exp(rng.standard_normal((m, groups(k)), np.float32)) / 8
        problem = self.problem(a, b, aq)
        exact = reference_gemm_aquant(problem.a, problem.b, problem.aq)
        a_q, b_q = self.typed("a", problem.a_codes), self.typed("b", problem.b_codes)
        bound = error_bound(a_q, b_q, problem.aq, exact, self.out, self.product_sum)
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
        """Hand each argument of each entry a bad value and expect its code and name."""
        check_faults(self, self.step)

    def measure(self) -> float:
        """Return the kernel's own mean time for `time_shape`, in milliseconds."""
        self.step("timing")
        m, n, k = self.time_shape
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
        checker = Checker(Kernel(candidate.object), progress, bool(simulated))
        checker.check_all()
        if simulated:
            report = {"outcome": "simulated", "reason": None}  # its time would mean nothing
        else:
            report = {"outcome": "passed", "reason": None, "time_ms": checker.measure()}
            report["time_shape"] = [*checker.time_shape]
    except (CheckFailed, GemmillError) as error:
        report = {"outcome": "failed", "reason": str(error)}
    if checker is not None:
        report.update(shapes=checker.shapes, entries=checker.used, errors=checker.errors)
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
