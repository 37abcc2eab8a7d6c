"""What the runtime costs: importing it, loading a kernel, and a call beside the C call that it makes.

    .venv/bin/python bench/runtime.py [--cache DIR] [--runs N] [--json FILE]

The cache must hold the decode kernels of this machine's arch (`./mill` builds them). Start-up figures come from fresh
processes, with numpy and ml_dtypes imported before the clock starts; medians are given.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gemmill.arch import host_archs

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernels.catalogue import load_catalogue  # noqa: E402

M, N, K = 1, 16, 128  # so small that the kernel itself takes next to nothing

FIRST_CALL = f"""
import sys, time, numpy as np, ml_dtypes
a = np.ones(({M}, {K}), ml_dtypes.float8_e4m3fn)
b = np.ones(({N}, {K}), ml_dtypes.float8_e4m3fn).T
aq = np.ones(({M}, {K // 128}), np.float32)
t0 = time.perf_counter()
import gemmill
t1 = time.perf_counter()
gemmill.load
t2 = time.perf_counter()
kernel = gemmill.load(sys.argv[1])
t3 = time.perf_counter()
gemmill.gemm_aquant(a, b, aq, kernel=kernel)
t4 = time.perf_counter()
print((t2 - t0) * 1e3, (t3 - t2) * 1e3, (t4 - t3) * 1e3)
"""


def kernel_name() -> str:
    """Return the name of the kernel that is measured."""
    arch = host_archs()[0].name
    return load_catalogue().configs(arch, variant="fp8", family="decode", layout="rcr")[0].name


def start_up(name: str, runs: int) -> tuple[float, float, float]:
    """Return median ms of the import, of load, and of the first call."""
    rows = []
    # A user's Python keeps its bytecode.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(runs + 1):
        argv = [sys.executable, "-c", FIRST_CALL, name]
        ran = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        rows.append([float(x) for x in ran.stdout.split()])
    first, second, third = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    return first, second, third


def call_overhead(name: str, batches: int) -> tuple[float, float]:
    """Return median µs of gemm_aquant on prepared arrays, and of the C call alone."""
    import gemmill
    import ml_dtypes
    import numpy as np

    a = np.ones((M, K), ml_dtypes.float8_e4m3fn)
    b = np.ones((N, K), ml_dtypes.float8_e4m3fn).T
    aq = np.ones((M, K // 128), np.float32)
    out = np.empty((M, N), np.float16)
    kernel = gemmill.load(name)
    library: Any = kernel.library
    size = library.workspace_bytes(M, N, K)
    buffer = np.empty(size + 256, np.uint8)
    workspace = -(-buffer.ctypes.data // 256) * 256 if size else None
    pointers = (a.ctypes.data, aq.ctypes.data, b.ctypes.data, out.ctypes.data)
    dims = (M, N, K, K, K // 128, K, N, workspace, size, None)
    ours, theirs = [], []
    for _ in range(batches):
        begin = time.perf_counter()
        for _ in range(200):
            gemmill.gemm_aquant(a, b, aq, out, kernel=kernel)
        middle = time.perf_counter()
        for _ in range(200):
            library.run(*pointers, *dims)
        end = time.perf_counter()
        ours.append((middle - begin) / 200 * 1e6)
        theirs.append((end - middle) / 200 * 1e6)
    return statistics.median(ours), statistics.median(theirs)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=ROOT / "cache")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    os.environ["GEMMILL_CACHE"] = str(options.cache.absolute())
    imported, loaded, called = start_up(kernel_name(), options.runs)
    whole, inner = call_overhead(kernel_name(), 50)
    figures = [
        ("import gemmill, beyond numpy and ml_dtypes", imported, "ms", "< 30 ms"),
        ("gemmill.load", loaded, "ms", ""),
        ("first call", called, "ms", ""),
        ("gemmill.load + first call", loaded + called, "ms", "< 15 ms"),
        ("gemm_aquant on prepared arrays", whole, "us", ""),
        ("the C call alone", inner, "us", ""),
        ("overhead of a call", whole - inner, "us", "< 15 us"),
    ]
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}\n")
    for name, value, unit, goal in figures:
        print(f"{name:<45} {value:>8.2f} {unit:<3} {goal}")
    if options.json:
        rows = [dict(zip(("name", "value", "unit", "goal"), figure, strict=True)) for figure in figures]
        options.json.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "figures": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
