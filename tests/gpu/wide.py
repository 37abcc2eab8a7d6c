"""Offsets beyond 2^31 elements in every operand: by lines far apart for each kernel, by sheer size for some."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gemmill.dtypes import output_dtype
from gemmill.layout import GROUP_K, packed_strides
from gemmill.loader import Kernel
from gemmill.operands import pack_codes
from gemmill.variant import INT4, find_variant
from operands import Array, Bytes, Problem, expected, layout_of, problem, store
from workbench import Workbench, Wrong, expect_equal


@dataclass(frozen=True)
class Sizes:
    """How large is large.

    Attributes
    ----------
    far : int
        Elements from an operand's first line to its last.
    many, side : int
        Lines of a large A or B, and of both sides of a large C; of int4 too they are whole 16 bytes.
    long : int
        Columns of a C whose rows have more bytes than an int counts.
    """

    far: int
    many: int
    side: int
    long: int


# many times _K, and side squared, are more than 2^31, far more than 2^32; the brief ones only try the checks out.
_FULL = Sizes(far=5 << 30, many=2_100_032, side=46_432, long=(1 << 30) + 64)
_BRIEF = Sizes(far=3 << 14, many=2080, side=1120, long=9056)
_K = 1056
_PERIOD = 1021  # rows after which a large operand repeats: a wrong offset of 2^31 or 2^32 meets another row
_SAMPLES = 2000


def _sizes(bench: Workbench) -> Sizes:
    return _BRIEF if bench.brief else _FULL


# ---- lines far apart ----


def check_far_lines(bench: Workbench, kernel: Kernel) -> None:
    """Multiply a small problem whose lines lie so far apart that the last ones are beyond 2^31 elements."""
    for shift in (0, 1):  # the copy engine takes the first, the second goes through the slow entry
        _check_far_lines(bench, kernel, shift)


def _check_far_lines(bench: Workbench, kernel: Kernel, shift: int) -> None:
    m, n, k = 20, 37, 260
    p = problem(kernel.config["variant"], m, n, k)
    stored = store(kernel, p, "aligned")
    kinds = find_variant(kernel.config["variant"])
    c_type = output_dtype(kernel.config["out"])
    a, lda = _spread(bench, "A", stored.a, stored.lda, 0.5 if kinds.a == INT4 else 1)
    b, ldb = _spread(bench, "B", stored.b, stored.ldb, 1, shift)
    aq, ldaq = _spread(bench, "AQ", stored.aq, stored.ldaq, 4 if kinds.aq == "f32" else 1)
    ldc = _far(bench, m)
    pitch, length = ldc * c_type.itemsize, n * c_type.itemsize
    c = bench.arena("C", m * pitch)
    code = kernel.library.run(a, aq, b, c, m, n, k, lda, ldaq, ldb, ldc, None, 0, None)
    if code:
        raise Wrong(f"far lines+{shift}: returned {code}: {kernel.library.last_error}")
    bench.gpu.synchronize()
    rows = [bench.gpu.download(c + i * pitch, length + 256) for i in range(m)]
    if any((row[length:] != 0xFF).any() for row in rows):
        raise Wrong(f"far lines+{shift}: wrote between the rows of C")
    got = np.stack([row[:length] for row in rows]).view(c_type)
    expect_equal(got, expected(p.exact, kernel.config["out"]), f"far lines+{shift}")


def _far(bench: Workbench, lines: int) -> int:
    return -(-_sizes(bench).far // max(1, lines - 1) // 64) * 64


def _spread(bench: Workbench, name: str, data: Bytes, leading: int, size: float, shift: int = 0) -> tuple[int, int]:
    """Upload stored lines far apart, NaN between them; return address and leading dimension."""
    line = int(leading * size)
    lines = -(-data.size // line)
    far = _far(bench, lines)
    pitch = int(far * size)
    base = bench.arena(name, lines * pitch + shift) + shift
    for i in range(lines):
        bench.gpu.upload(base + i * pitch, data[i * line : (i + 1) * line])
    return base, far


# ---- many elements ----


def check_large_a(bench: Workbench, kernel: Kernel) -> None:
    """Multiply an A of more than 2^31 elements by a few columns."""
    _check_large(bench, kernel, _sizes(bench).many, 16, _K)


def check_large_b(bench: Workbench, kernel: Kernel) -> None:
    """Multiply a few rows by a B of more than 2^31 elements."""
    _check_large(bench, kernel, 32, _sizes(bench).many, _K)


def check_large_c(bench: Workbench, kernel: Kernel) -> None:
    """Make a C of more than 2^31 elements."""
    _check_large(bench, kernel, _sizes(bench).side, _sizes(bench).side, 64)


def check_long_c(bench: Workbench, kernel: Kernel) -> None:
    """Make one row of C of more than 2^31 bytes."""
    _check_large(bench, kernel, 1, _sizes(bench).long, 16)


def _check_large(bench: Workbench, kernel: Kernel, m: int, n: int, k: int) -> None:
    """Multiply operands that repeat, and compare rows of C: the last ones, those around 2^31, and others."""
    gpu, layout, kinds = bench.gpu, layout_of(kernel), find_variant(kernel.config["variant"])
    c_type = output_dtype(kernel.config["out"])
    rows_a, rows_b = min(m, _PERIOD), min(n, _PERIOD)
    p: Problem = problem(kernel.config["variant"], rows_a, rows_b, k)
    packed = packed_strides(layout, m, n, k)
    a = _repeated(bench, "A", p.a, m, layout.a_col, kinds.a == INT4)
    b = _repeated(bench, "B", p.b.T, n, not layout.b_col, False)
    scales, ldaq = p.aq[np.arange(m) % rows_a], packed.aq
    if kernel.preshuffle or layout.aq_col:
        assert not kernel.preshuffle or kernel.config["tile"][2] == GROUP_K, "one group a tile"
        scales, ldaq = np.ascontiguousarray(scales.T), m
    aq = bench.arena("AQ", scales.nbytes)
    gpu.upload(aq, scales.reshape(-1).view(np.uint8))
    size, guard = m * n * c_type.itemsize, 1 << 20
    base = bench.arena("C", size + 2 * guard)
    c = base + guard
    code = kernel.library.run(a, aq, b, c, m, n, k, packed.a, ldaq, packed.b, packed.c, None, 0, None)
    if code:
        raise Wrong(f"{m}x{n}x{k}: returned {code}: {kernel.library.last_error}")
    gpu.synchronize()
    for band in (base, c + size):
        if (gpu.download(band, guard) != 0xFF).any():
            raise Wrong(f"{m}x{n}x{k}: wrote outside C")
    wanted = expected(p.exact, kernel.config["out"])
    windows = [(start, np.arange(start, end) % rows_b) for start, end in _column_windows(n)]
    for i in _sampled_rows(m, n, k):
        for start, columns in windows:
            part = gpu.download(c + (i * n + start) * c_type.itemsize, columns.size * c_type.itemsize).view(c_type)
            what = f"{m}x{n}x{k}, row {i} from column {start}"
            expect_equal(part[None], wanted[i % rows_a][columns][None], what)


def _column_windows(n: int) -> list[tuple[int, int]]:
    """Return all columns, or of very many some: the first and last, and those around a power of two."""
    if n <= 1 << 22:
        return [(0, n)]
    size = 1 << 16
    return [(start, start + size) for start in (0, n // 3, (1 << 29) - size // 2, (1 << 30) - size, n - size)]


def _sampled_rows(m: int, n: int, k: int) -> list[int]:
    count = max(8, min(m, _SAMPLES, (1 << 26) // n))
    rng = np.random.default_rng(1)
    around = [x // y + d for x in (2**31, 2**32) for y in (n, k) for d in (-1, 0, 1)]
    picked = {0, 1, m // 2, m - 2, m - 1, *around, *rng.integers(0, m, min(m, count)).tolist()}
    return sorted(i for i in picked if 0 <= i < m)


def _repeated(bench: Workbench, name: str, codes: Array, rows: int, column: bool, int4: bool) -> int:
    """Store `rows` rows that repeat codes [period, K], packed; return the address."""
    gpu = bench.gpu
    k = codes.shape[1]
    per_byte = 2 if int4 else 1
    assert (rows if column else k) % per_byte == 0, "lines of whole bytes"
    size = rows * k // per_byte
    base = bench.arena(name, size)
    if column:
        for kk in range(k):
            line = np.tile(codes[:, kk], per_byte)  # an odd period of nibbles repeats after twice as many
            line = np.resize(pack_codes(line) if int4 else line, rows // per_byte)
            gpu.upload(base + kk * line.size, line)
    else:
        block = np.ascontiguousarray(codes).reshape(-1)
        block = pack_codes(block) if int4 else block
        done = min(block.size, size)
        gpu.upload(base, block[:done])
        while done < size:  # whole periods, so that what follows continues the pattern
            more = min(done, size - done)
            gpu.copy(base + done, base, more)
            done += more
        gpu.synchronize()
    return base
