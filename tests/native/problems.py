"""Generators of the C-ABI tests: operands as bytes, the float64 product, and calls through ctypes.

Independent of the runtime on purpose: these tests hold the C ABI to the design, whatever the Python side does.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from gemmill.layout import groups, preshuffled_tiles
from gemmill.variant import INT4, dtype_name

from kernels.config import KernelConfig

DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}
OUT_DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}

# (M, N, K): single elements, tails of every register tile, K short of a group, of a pair and of a tile, several tiles.
SHAPES = [
    (1, 1, 1),
    (1, 1, 128),
    (1, 33, 127),
    (1, 70, 515),
    (2, 5, 129),
    (3, 64, 256),
    (5, 31, 300),
    (6, 16, 64),
    (7, 65, 513),
    (8, 32, 128),
    (9, 47, 255),
    (13, 17, 640),
    (16, 100, 384),
    (33, 97, 257),
    (65, 130, 700),
    (130, 70, 31),
    (300, 20, 260),
    (20, 600, 260),
]


@dataclass
class Matrix:
    """One operand: logical float64 values, and its storage as the C ABI takes it."""

    values: np.ndarray
    storage: np.ndarray
    stride: int

    @property
    def pointer(self) -> int:
        return self.storage.ctypes.data


def dense(values: np.ndarray, dtype: type, column: bool, pad: int = 0) -> Matrix:
    """Store [rows, cols] values row- or column-major with `pad` spare elements a line."""
    typed = np.asarray(values).astype(dtype)
    lines = typed.T if column else typed
    storage = np.zeros((lines.shape[0], lines.shape[1] + pad), dtype)
    storage[:, : lines.shape[1]] = lines
    return Matrix(typed.astype(np.float64), storage, storage.shape[1])


def int4(codes: np.ndarray, column: bool, pad: int = 0, filler: int = 15) -> Matrix:
    """Pack codes 0..15: two a byte in memory order, the even element in the high nibble, value = code - 8."""
    lines = codes.T if column else codes
    padded = np.full((lines.shape[0], lines.shape[1] + pad), filler, np.uint8)
    padded[:, : lines.shape[1]] = lines
    flat = padded.reshape(-1)
    flat = np.append(flat, np.uint8(filler)) if flat.size % 2 else flat
    return Matrix(codes.astype(np.float64) - 8, (flat[::2] << 4 | flat[1::2]).astype(np.uint8), padded.shape[1])


def scales(values: np.ndarray, config: KernelConfig, dtype: type, shuffled: bool, pad: int = 0) -> Matrix:
    """Store AQ [M, QK]; `shuffled` gives (T, M, b) with `pad` spare values a tile."""
    if not shuffled:
        return dense(values, dtype, config.layout_row.aq_col, pad)
    typed = np.asarray(values).astype(dtype)
    m, qk = typed.shape
    tiles, b = preshuffled_tiles(qk * 128, config.tile[2])
    storage = np.zeros((tiles, m * b + pad), dtype)
    for t in range(tiles):
        part = typed[:, t * b : (t + 1) * b]
        block = np.zeros((m, b), dtype)
        block[:, : part.shape[1]] = part
        storage[t, : m * b] = block.reshape(-1)
    return Matrix(typed.astype(np.float64), storage, m * b + pad)


def operand_dtype(config: KernelConfig, kind: str) -> type:
    return DTYPES[dtype_name(kind, config.arch_row.encoding)]


@dataclass
class Problem:
    """Operands of one call."""

    a: Matrix
    aq: Matrix
    b: Matrix
    shape: tuple[int, int, int]

    def product(self) -> np.ndarray:
        """C in float64, group by group as the formula says."""
        return self.partials()[0]

    def partials(self) -> tuple[np.ndarray, np.ndarray]:
        """(C, sum of magnitudes of its terms)."""
        m, n, k = self.shape
        total, magnitude = np.zeros((m, n)), np.zeros((m, n))
        with np.errstate(all="ignore"):
            for g in range(groups(k)):
                part = slice(128 * g, 128 * g + 128)
                scale = self.aq.values[:, g : g + 1]
                total += scale * (self.a.values[:, part] @ self.b.values[part])
                magnitude += abs(scale) * (abs(self.a.values[:, part]) @ abs(self.b.values[part]))
        return total, magnitude


def random_problem(
    config: KernelConfig,
    shape: tuple[int, int, int],
    seed: int = 0,
    shuffled: bool = False,
    pads: tuple[int, int, int] = (0, 0, 0),
) -> Problem:
    """Normal A and B, positive scales; `pads` are spare elements a line of A, AQ and B."""
    m, n, k = shape
    rng = np.random.default_rng([seed, m, n, k])
    variant, layout = config.variant_row, config.layout_row
    if variant.a == INT4:
        a = int4(rng.integers(0, 16, (m, k), np.uint8), layout.a_col, pads[0])
    else:
        a = dense(rng.standard_normal((m, k)), operand_dtype(config, variant.a), layout.a_col, pads[0])
    b = dense(rng.standard_normal((k, n)), operand_dtype(config, variant.b), layout.b_col, pads[2])
    values = rng.uniform(0.25, 1.0, (m, groups(k))) / max(1, k) ** 0.5
    aq = scales(values, config, operand_dtype(config, variant.aq), shuffled, pads[1])
    return Problem(a, aq, b, shape)


class Library:
    """A kernel library, called by the C ABI's own names."""

    def __init__(self, path: Path, config: KernelConfig) -> None:
        self.path, self.config = path, config
        self.c = ctypes.CDLL(str(path))
        i64, pointer = ctypes.c_int64, ctypes.c_void_p
        self.c.dispatcher_run_aquant_gemm.argtypes = [pointer] * 4 + [i64] * 8 + [ctypes.c_int, pointer]
        self.c.gemmill_gemm_aquant.argtypes = [pointer] * 4 + [i64] * 7 + [pointer, i64, pointer]
        self.c.gemmill_workspace_bytes.argtypes = [i64] * 3
        self.c.gemmill_workspace_bytes.restype = i64
        for name in ("dispatcher_get_kernel_name", "gemmill_manifest", "gemmill_last_error"):
            getattr(self.c, name).restype = ctypes.c_char_p

    @property
    def error(self) -> str:
        return self.c.gemmill_last_error().decode()

    def poisoned(self, m: int, n: int, pad: int = 0) -> np.ndarray:
        """C full of NaN, with a guard row above and below."""
        return np.full((m + 2, n + pad), np.nan, OUT_DTYPES[self.config.out])

    def run_packed(self, p: Problem, time_ms: ctypes.Array | None = None) -> np.ndarray:
        """Run dispatcher_run_aquant_gemm; return C."""
        m, n, k = p.shape
        c = self.poisoned(m, n)
        code = self.c.dispatcher_run_aquant_gemm(
            p.a.pointer, p.aq.pointer, p.b.pointer, c.ctypes.data + n * c.itemsize,
            m, n, k, p.a.stride, p.aq.stride, p.b.stride, n, groups(k), 1, time_ms,
        )  # fmt: skip
        assert code == 0, self.error
        assert np.isnan(c[0]).all() and np.isnan(c[-1]).all(), "wrote outside C"
        return c[1:-1]

    def run_strided(self, p: Problem, pad: int = 0) -> np.ndarray:
        """Run gemmill_gemm_aquant with `pad` spare columns in C; return C."""
        m, n, k = p.shape
        c = self.poisoned(m, n, pad)
        code = self.c.gemmill_gemm_aquant(
            p.a.pointer, p.aq.pointer, p.b.pointer, c.ctypes.data + (n + pad) * c.itemsize,
            m, n, k, p.a.stride, p.aq.stride, p.b.stride, n + pad, None, 0, None,
        )  # fmt: skip
        assert code == 0, self.error
        assert np.isnan(c[0]).all() and np.isnan(c[-1]).all() and np.isnan(c[:, n:]).all(), "wrote outside C"
        return c[1:-1, :n]


# Units in the last place of a result, and the smallest step near zero.
_OUT_EPS = {"f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 2.0**-134), "f32": (2.0**-24, 2.0**-150)}


def tolerance(config: KernelConfig, p: Problem) -> np.ndarray:
    """Bound of |C - exact|: float32 sums over a group and over groups, then one rounding to C's type."""
    total, magnitude = p.partials()
    eps, tiny = _OUT_EPS[config.out]
    terms = min(p.shape[2], 128) + 2 + groups(p.shape[2])
    return magnitude * terms * 2.0**-24 + (abs(total) + magnitude * terms * 2.0**-24) * eps + tiny


def check(config: KernelConfig, p: Problem, c: np.ndarray) -> None:
    """Compare with float64; name the worst element."""
    exact, got = p.product(), c.astype(np.float64)
    excess = np.abs(got - exact) - tolerance(config, p)
    excess[np.isnan(got)] = np.inf
    if excess.size and excess.max() > 0:
        m, n = np.unravel_index(excess.argmax(), excess.shape)
        count = int((excess > 0).sum())
        raise AssertionError(
            f"{config.id} {p.shape}: {count} of {excess.size} wrong; C[{m},{n}] = {got[m, n]!r}, exact {exact[m, n]!r}"
        )
