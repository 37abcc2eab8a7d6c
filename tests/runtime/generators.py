"""What the runtime's tests run over: configs, problems, storage forms, faults and damages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gemmill
import ml_dtypes
import numpy as np
from gemmill.cache import LIBRARY, MANIFEST, SELFTEST_SCHEMA, Cache
from gemmill.layout import LAYOUTS, groups
from gemmill.operands import Int4Matrix
from gemmill.variant import INT4, VARIANTS, find_variant
from support import fake_config

from kernels.config import FAMILIES, KernelConfig

SHAPES = [(1, 1, 1), (1, 7, 128), (5, 1, 130), (3, 9, 257), (9, 4, 640), (2, 3, 127)]

B_TYPES = {"fp8": ml_dtypes.float8_e4m3fn, "bf8": ml_dtypes.float8_e5m2}


def configs() -> Iterator[KernelConfig]:
    """Yield every variant, layout and family that goes together, float16 output."""
    for variant, layout, family in itertools.product(
        VARIANTS, LAYOUTS, filter(lambda f: f.required, FAMILIES.values())
    ):
        if not (family.preshuffle and LAYOUTS[layout].aq_col):
            yield fake_config(variant, layout, family.name)


@dataclass
class Problem:
    """Operands for gemm_aquant, and what they come to."""

    a: Any
    b: np.ndarray
    aq: np.ndarray
    expected: np.ndarray
    bound: np.ndarray


def problem(variant: str, m: int, n: int, k: int, layout: str = "rcr", out: str = "f16", seed: int = 0) -> Problem:
    """Return random operands in the storage order of a layout."""
    rng = np.random.default_rng(seed)
    row, place = find_variant(variant), LAYOUTS[layout]
    x = rng.standard_normal((m, k), np.float32)
    a, aq = gemmill.quantize_a(x, variant, layout=layout)
    w = rng.standard_normal((n, k), np.float32).astype(B_TYPES[row.b])
    b = w.T if place.b_col else np.ascontiguousarray(w.T)
    expected = gemmill.reference_gemm_aquant(a, b, aq)
    return Problem(a, b, aq, expected, gemmill.error_bound(a, b, aq, expected, out))


def check(c: np.ndarray, p: Problem) -> None:
    """Compare C with a problem's expectation; print the first element that is off."""
    off = ~(np.abs(c.astype(np.float64) - p.expected) <= p.bound)
    if off.any():
        i, j = np.argwhere(off)[0]
        raise AssertionError(f"C[{i},{j}] = {c[i, j]}, expected {p.expected[i, j]} within {p.bound[i, j]}")


def forms(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return one matrix in storage forms that are accepted: name to view."""
    rows, cols = x.shape
    wide = np.zeros((rows, cols + 3), x.dtype)
    wide[:, :cols] = x
    tall = np.zeros((cols, rows + 5), x.dtype)
    tall[:, :rows] = x.T
    odd = np.zeros(x.nbytes + 1, np.uint8)
    unaligned = odd[1:].view(x.dtype).reshape(x.shape)
    unaligned[...] = x
    return {
        "C": np.ascontiguousarray(x),
        "F": np.asfortranarray(x),
        "C gaps": wide[:, :cols],
        "F gaps": tall[:, :rows].T,
        "unaligned": unaligned,
    }


def bad_forms(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return views of a matrix (2x2 at least) that are neither row- nor column-major."""
    both = np.zeros((2 * x.shape[0], 2 * x.shape[1]), x.dtype)[::2, ::2]
    return {
        "reversed rows": x[::-1],
        "reversed columns": x[:, ::-1],
        "broadcast rows": np.broadcast_to(x[:1], x.shape),
        "broadcast columns": np.broadcast_to(x[:, :1], x.shape),
        "gaps in both": both,
        "overlapping": np.lib.stride_tricks.as_strided(x, x.shape, (x.itemsize, x.itemsize)),
    }


# Macros of fake_kernel.cpp, and what the selftest must say.
FAULTS = {
    "FAULT_ZEROS": "C is all zeros",
    "FAULT_IGNORES_AQ": r"exact .*: C\[.*\] is .*, expected",
    "FAULT_UNSIGNED_AQ": r"C\[.*\] is .*, expected",
    "FAULT_SHORT_AQ": r"codes of AQ .*: C\[.*\] is .*, expected",
    "FAULT_SWAPS_GROUPS": r"exact .*: C\[.*\] is .*, expected",
    "FAULT_WRITES_PAST_C": "SIGSEGV during exact",
    "FAULT_WRITES_BEFORE_C": "wrote outside C",
    "FAULT_WRITES_IN_GAP": "wrote between the rows of C",
    "FAULT_TAIL_UNWRITTEN": r"C\[2,0\] is nan",
    "FAULT_READS_PAST_A": "SIGSEGV during exact",
    "FAULT_CHANGES_B": "changed B",
    "FAULT_TRUNCATES": r"C\[.*\] is .*, expected",
    "FAULT_COARSE": r"C\[.*\] is .*, expected",
    "FAULT_LOSES_NAN": "expected nan",
    "FAULT_SEGFAULTS": "killed by SIGSEGV",
    "FAULT_ABORTS": "killed by SIGABRT",
    "FAULT_EXITS": "exited with status 0 without a report during exact",
    "FAULT_PRINTS": r"wrote \d+ bytes to stdout",
    "FAULT_UNCHECKED": "faults, host entry: A = None",
    "FAULT_UNCHECKED_DEVICE": "SIGSEGV during faults, device entry",
    "FAULT_NO_TEXT": "faults, host entry: A = None left a text that does not name it",
    "FAULT_NO_DEVICE": "no device here",
    "FAULT_RUN_FAILS": "faults, device entry: A = None returned -3, not -1",
    "FAULT_ALWAYS_UNSUPPORTED": "exact 1x1x1, host entry: returned -2 for valid arguments: not today",
    "FAULT_OTHER_ABI": "ABI version 99",
    "FAULT_BAD_MANIFEST": "not JSON",
}


def _edit_manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        manifest = json.loads((path / MANIFEST).read_text())
        change(manifest)
        (path / MANIFEST).write_text(json.dumps(manifest))

    return damage


def _flip_bit(path: Path) -> None:
    content = bytearray((path / LIBRARY).read_bytes())
    content[len(content) // 2] ^= 1
    (path / LIBRARY).write_bytes(content)


# What may befall an object's directory, and what reading it then says.
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated library": (lambda p: (p / LIBRARY).write_bytes((p / LIBRARY).read_bytes()[:100]), "found 100 bytes"),
    "empty library": (lambda p: (p / LIBRARY).write_bytes(b""), "found 0 bytes"),
    "flipped bit": (_flip_bit, "the manifest says .* sha256"),
    "foreign library": (lambda p: (p / LIBRARY).write_bytes(b"#!/bin/sh\n"), "found 10 bytes"),
    "no library": (lambda p: (p / LIBRARY).unlink(), "found no file"),
    "no manifest": (lambda p: (p / MANIFEST).unlink(), "has no manifest.json"),
    "broken manifest": (lambda p: (p / MANIFEST).write_text("{"), "not readable JSON"),
    "manifest is a list": (lambda p: (p / MANIFEST).write_text("[]"), "holds a JSON list"),
    "manifest is not UTF-8": (lambda p: (p / MANIFEST).write_bytes(b'{"a": "\xff"}'), "not readable JSON"),
    "other schema": (_edit_manifest(lambda m: m.update(schema=99)), "schema 99"),
    "other key": (_edit_manifest(lambda m: m.update(key="0" * 64)), "is about key"),
    "edited inputs": (_edit_manifest(lambda m: m["inputs"].update(extra=1)), "do not hash to its key"),
    "edited config": (
        _edit_manifest(lambda m: m["config"].update(out="f32")),
        "its config is not the one of its inputs",
    ),
    "other arch": (_edit_manifest(lambda m: m.update(arch="gfx942")), "its arch is not the one of its config"),
    "endless nesting": (lambda p: (p / MANIFEST).write_text("[" * 100_000), "not readable JSON"),
    "no files": (_edit_manifest(lambda m: m.pop("files")), "does not say size and sha256"),
    "no target": (_edit_manifest(lambda m: m.pop("target")), "'target' is missing"),
    "config is text": (_edit_manifest(lambda m: m.update(config="x")), "'config' is missing or not a dict"),
}


def int4_matrix(m: int, k: int, order: str, seed: int = 0) -> tuple[Int4Matrix, np.ndarray]:
    """Return a packed random matrix and its values."""
    values = np.random.default_rng(seed).integers(-8, 8, (m, k)).astype(np.int8)
    return Int4Matrix.from_values(values, order), values


def powers_of_two(m: int, k: int) -> np.ndarray:
    """Return AQ [m, groups(k)] of distinct powers of two."""
    count = m * groups(k)
    return np.exp2(np.arange(count, dtype=np.float32) % 20 - 10).reshape(m, groups(k))


def object_directory(cache: Cache, key: str) -> Path:
    """Return where a cache keeps an object."""
    return cache.root / "objects" / key[:2] / key


IS_INT4 = {name: row.a == INT4 for name, row in VARIANTS.items()}


def selftest_record(
    key: str,
    library_sha256: str,
    outcome: str,
    *,
    arch: str = "generic",
    date: str = "2026-01-01T00:00:00+00:00",
    simulated: bool | None = None,
) -> dict[str, Any]:
    """Return a whole selftest record, such as another machine would send."""
    device = {"cpu": "a processor", "machine": "x86_64", "system": "Linux", "arch": arch}
    return {
        "schema": SELFTEST_SCHEMA,
        "key": key,
        "library_sha256": library_sha256,
        "outcome": outcome,
        "reason": "wrong at C[0, 0]" if outcome == "failed" else None,
        "device": {**device, "simulated": True} if simulated or outcome == "simulated" else device,
        "shapes": [[1, 1, 1]],
        "entries": ["host", "device", "gaps"],
        "errors": {"random 1x1x1": 0.5},
        "seconds": 1.0,
        "time_ms": None,
        "time_shape": None,
        "gemmill": "0.1.0",
        "date": date,
    }
