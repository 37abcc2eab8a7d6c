"""``gemmill bench FILE``: a user's own weights through each kernel, beside numpy in float32.

A 2-D tensor is taken as a weight W [N, K], as linear layers store it; activations are M rows of normal data. Both are
quantised, and C is compared with ``x @ W.T`` in float32, so that the error is that of the quantisation.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gemmill.arch import find_arch, host_archs
from gemmill.dtypes import is_wide_float, kind_dtype, max_finite
from gemmill.errors import ArgumentError, KernelNotFound
from gemmill.layout import find_layout, groups
from gemmill.loader import Candidate, Kernel, by_pattern, explain_miss
from gemmill.operands import Array
from gemmill.quantize import quantize_a
from gemmill.search import CacheArgument, SearchPath
from gemmill.variant import INT4, find_variant

_SECONDS, _CALLS = 0.1, 5  # how long and how often one kernel is timed at least


def bench_file(
    path: Path,
    rows: int = 32,
    wanted: str | None = None,
    limit: int = 8,
    cache: CacheArgument = None,
    arch: str | None = None,
) -> int:
    """Print a table of error and time for the 2-D tensors of a file; return 0.

    Parameters
    ----------
    path : Path
        ``.npy`` or ``.safetensors``, tensors of float16, bfloat16, float32 or float64.
    rows : int
        M, rows of A.
    wanted : str, optional
        Only tensors whose name has this in it.
    limit : int
        At most so many tensors.
    cache, arch : as for `gemmill.load`

    Raises
    ------
    ArgumentError
        If the file can't be read, or holds no such tensor.
    KernelNotFound
        If there is no usable kernel.
    """
    if rows < 1:
        raise ArgumentError(f"rows {rows}: needed a positive number")
    kernels = _usable_kernels(cache, arch)
    count = 0
    for name, weight in read_tensors(path):
        if (wanted and wanted not in name) or weight.ndim != 2 or not weight.size:
            continue
        with np.errstate(over="ignore"):
            w = np.ascontiguousarray(weight, np.float32)
        if not np.isfinite(w).all():
            print(f"{name}: left out, it has values that are not finite in float32")
            continue
        _bench_tensor(f"{name}: M={rows} N={w.shape[0]} K={w.shape[1]} {weight.dtype}", w, rows, kernels)
        count += 1
        if count == limit:
            break
    if not count:
        named = f" with {wanted!r} in its name" if wanted else ""
        raise ArgumentError(f"{path} has no 2-D tensor of floats{named}")
    return 0


def read_tensors(path: Path) -> Iterator[tuple[str, Array]]:
    """Yield (name, array) of the float tensors in a file."""
    if not path.is_file():
        raise ArgumentError(f"{path}: no such file")
    readers: dict[str, Callable[[Path], Iterator[tuple[str, Array]]]] = {
        ".npy": _read_npy,
        ".safetensors": _read_safetensors,
    }
    reader = readers.get(path.suffix)
    if reader is None:
        raise ArgumentError(f"{path}: accepted are {' and '.join(readers)} files")
    for name, array in reader(path):
        if array.dtype == np.dtype("V2"):  # how numpy.save stores bfloat16
            array = array.view(ml_dtypes.bfloat16)
        if is_wide_float(array.dtype):
            yield name, array


def _read_npy(path: Path) -> Iterator[tuple[str, Array]]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ArgumentError(f"{path} is no .npy file of plain numbers: {error}") from None
    yield path.stem, array


def _read_safetensors(path: Path) -> Iterator[tuple[str, Array]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ArgumentError(f"{path}: needs the package safetensors, run: pip install safetensors") from None
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                if file.get_slice(name).get_dtype() in ("F16", "BF16", "F32", "F64"):
                    yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise ArgumentError(f"{path} is no readable .safetensors file: {error}") from None


def _usable_kernels(cache: CacheArgument, arch: str | None) -> list[Kernel]:
    """Open the kernels of the given arch, else of the best arch that has any."""
    places = SearchPath(cache)
    archs = [find_arch(arch)] if arch else host_archs()
    refused: list[Candidate] = []
    for row in archs:
        kernels = []
        for candidate in by_pattern(places, [row.name], "gemm_aquant_*"):
            if candidate.object is not None and candidate.refusal is None:
                kernels.append(Kernel(candidate.object))
            else:
                refused.append(candidate)
        if kernels:
            return list({kernel.name: kernel for kernel in reversed(kernels)}.values())[::-1]
    raise KernelNotFound(explain_miss(f"{archs[0].name}/gemm_aquant_*", places, refused))


def _bench_tensor(label: str, w: Array, rows: int, kernels: list[Kernel]) -> None:
    x = np.random.default_rng(0).standard_normal((rows, w.shape[1]), np.float32)
    expected = x @ w.T
    base = _best_time(lambda: np.matmul(x, w.T, out=expected))
    print(f"{label}, numpy float32 {base * 1e3:.3f} ms")
    print(f"  {'VARIANT':9} {'LAYOUT':6} {'FAMILY':16} {'TILE':12} {'OUT':4} {'ERROR':>8} {'ms':>9} {'SPEED-UP':>8}")
    exact = expected.astype(np.float64)
    norm = float(np.linalg.norm(exact)) or 1.0
    operands: dict[tuple[str, str], tuple[Any, Array, Array]] = {}
    for kernel in kernels:
        config = kernel.config
        form = (str(config["variant"]), str(config["layout"]))
        if form not in operands:
            operands[form] = _quantize(x, w, *form, kernel.encoding)
        a_q, b, a_scale = operands[form]
        c = kernel(a_q, b, a_scale)
        error = float(np.linalg.norm(c.astype(np.float64) - exact)) / norm
        tile = "x".join(map(str, config["tile"]))
        seconds = _best_time(functools.partial(kernel, a_q, b, a_scale, c))
        place = f"{form[0]:9} {form[1]:6} {config['family']:16} {tile:12} {config['out']:4}"
        print(f"  {place} {error:8.5f} {seconds * 1e3:9.3f} {base / seconds:7.2f}x", flush=True)


def _quantize(x: Array, w: Array, variant: str, layout: str, encoding: str) -> tuple[Any, Array, Array]:
    """Return A, B, AQ; one power of two brings W into fp8's range, and its inverse goes into AQ."""
    row, place = find_variant(variant), find_layout(layout)
    b_type = kind_dtype(row.b, encoding)
    amax = float(np.abs(w).max()) or 1.0
    exponent = int(np.floor(np.log2(max_finite(b_type) / amax)))
    if row.aq != "f32":
        # An fp8 scale must not fall below the type's normal range.
        aq_type = kind_dtype(row.aq, encoding)
        smallest = float(np.abs(x).max(axis=1).min()) / (7 if row.a == INT4 else max_finite(b_type)) or 1.0
        normal = float(ml_dtypes.finfo(aq_type).smallest_normal)  # type: ignore[no-untyped-call]
        exponent = min(exponent, int(np.floor(np.log2(smallest / normal))))
    b = np.ldexp(w, exponent).astype(b_type).T
    a_q, a_scale = quantize_a(np.ldexp(x, -exponent), variant, encoding=encoding, layout=layout)
    assert a_scale.shape == (x.shape[0], groups(x.shape[1]))
    return a_q, b if place.b_col else np.ascontiguousarray(b), a_scale


def _best_time(call: Callable[[], Any]) -> float:
    """Return the seconds of the quickest of several calls."""
    best = float("inf")
    calls = 0
    end = time.perf_counter() + _SECONDS
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - start)
        calls += 1
        if now > end and calls >= _CALLS:
            return best
