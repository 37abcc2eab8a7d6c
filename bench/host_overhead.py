"""What a call costs the host: gemm_aquant on torch tensors beside an empty launch and the same call of a Triton kernel.

    python3 bench/host_overhead.py [--cache DIR] [--shape MxNxK] [--batches N] [--json FILE]

Needs a Hopper GPU, torch, and a cache with sm_90a kernels; Triton and a C compiler where they are. Times are µs a call
of the host's clock, medians over batches of 200 calls, the device idle before each batch and never so far behind that a
launch has to wait. The empty launch is cuLaunchKernel of a kernel without arguments that returns at once, in a loop in
C where a compiler is there, so that nothing of Python is in it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from hopper import ROOT

CALLS = 200  # a batch; a stream takes about 1000 launches before the next one waits

EMPTY = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry empty()\n{\nret;\n}\n\0"

LOOP = """
#include <time.h>
typedef unsigned u;
typedef int (*launch_t)(void*, u, u, u, u, u, u, u, void*, void**, void**);
double launch_many(launch_t launch, void* kernel, void* stream, int calls) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < calls; ++i)
        if (launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0)) return -1;
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / calls * 1e-3;
}
"""


def median_us(call: Callable[[], Any], batches: int) -> float:
    """Return the median µs of a call."""
    found = []
    for _ in range(batches + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        found.append((time.perf_counter() - begin) / CALLS * 1e6)
    torch.cuda.synchronize()
    return statistics.median(found[2:])


def empty_launch(batches: int) -> dict[str, float]:
    """Return µs of an empty launch, from a loop in C and through ctypes."""
    cuda = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), EMPTY) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"empty") == 0
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    one, block, none = ctypes.c_uint(1), ctypes.c_uint(32), ctypes.c_void_p()
    arguments = (kernel, one, one, one, block, one, one, ctypes.c_uint(0), stream, none, none)
    found = {"empty launch, through ctypes": median_us(lambda: cuda.cuLaunchKernel(*arguments), batches)}
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler:
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "loop.c", Path(folder) / "loop.so"
            source.write_text(LOOP)
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
            loop = ctypes.CDLL(str(library)).launch_many
        loop.restype = ctypes.c_double
        times = []
        for _ in range(batches + 2):
            torch.cuda.synchronize()
            times.append(loop(ctypes.cast(cuda.cuLaunchKernel, ctypes.c_void_p), kernel, stream, CALLS))
        assert min(times) > 0, "a launch failed"
        found["empty launch, in C"] = statistics.median(times[2:])
    return found


def triton_call(a: Any, b: Any, aq: Any, c: Any) -> Callable[[], Any] | None:
    """Return the same product as a call of a Triton kernel; None without Triton."""
    try:
        from hopper.triton_gemm import GROUP_K, multiply
    except ImportError as error:
        print(f"no Triton: {error}")
        return None
    m, n = c.shape
    k = a.shape[1]
    rows, columns = 16, 64
    grid = (-(-m // rows) * -(-n // columns),)
    return lambda: multiply[grid](a, b, aq, c, m, n, k, rows, columns, GROUP_K, 1)


def measure(m: int, n: int, k: int, batches: int) -> dict[str, float]:
    """Return µs by what was called."""
    import gemmill
    from gemmill import on_torch
    from gemmill.library import call_pointers

    a = torch.randn((m, k), device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn((n, k), device="cuda").to(torch.float8_e4m3fn).t()
    aq = torch.rand((m, -(-k // 128)), device="cuda") + 0.5
    out = torch.empty((m, n), dtype=torch.float16, device="cuda")
    found = empty_launch(batches)
    expected = gemmill.gemm_aquant(a, b, aq, out)

    # What the way through Python adds to the kernel library's own call.
    plan = next(iter(reversed(on_torch._plans.values())))
    pointers = (a.data_ptr(), aq.data_ptr(), b.data_ptr(), out.data_ptr())
    stream = torch.cuda.current_stream().cuda_stream
    argument = call_pointers(*pointers) + plan.by_stream[stream]
    found["kernel library's call, through ctypes"] = median_us(lambda: plan.launch(argument), batches)
    found["gemm_aquant, out given"] = median_us(lambda: gemmill.gemm_aquant(a, b, aq, out), batches)
    found["gemm_aquant"] = median_us(lambda: gemmill.gemm_aquant(a, b, aq), batches)
    found["torch.empty of C"] = median_us(lambda: torch.empty((m, n), dtype=torch.float16, device="cuda"), batches)
    import_module("gemmill.torch")  # registers the operator
    operator = torch.ops.gemmill.gemm_aquant
    found["torch.ops.gemmill.gemm_aquant"] = median_us(lambda: operator(a, b, aq), batches)
    theirs = torch.empty_like(out)
    triton = triton_call(a, b, aq, theirs)
    if triton:
        triton()
        error = (theirs.float() - expected.float()).norm() / expected.float().norm()
        assert error < 1e-2, f"Triton's product is another one: {error}"
        found["Triton kernel, out given"] = median_us(triton, batches)
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=ROOT / "cache", help="the cache of kernels (default: cache/)")
    parser.add_argument("--shape", default="16x64x128", help="MxNxK, so small that the device keeps up (16x64x128)")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    os.environ["GEMMILL_CACHE"] = str(options.cache.absolute())
    m, n, k = map(int, options.shape.split("x"))
    found = measure(m, n, k, options.batches)
    base = found.get("empty launch, in C", found["empty launch, through ctypes"])
    print(
        f"{torch.cuda.get_device_name()}, Python {sys.version.split()[0]}, torch {torch.__version__}, {options.shape}\n"
    )
    print(f"{'':<42} {'µs':>7} {'over an empty launch':>22}")
    for name, value in found.items():
        print(f"{name:<42} {value:>7.2f} {value - base:>22.2f}")
    print(f"\ngoal: gemm_aquant, out given, < 4 µs over an empty launch: {found['gemm_aquant, out given'] - base:.2f}")
    if options.json:
        rows = [{"name": name, "us": value, "over_us": value - base} for name, value in found.items()]
        about = {"date": time.strftime("%Y-%m-%d"), "card": torch.cuda.get_device_name(), "shape": options.shape}
        options.json.write_text(json.dumps({**about, "figures": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
