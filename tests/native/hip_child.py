"""Runs a HIP kernel library on a simulated device; a child process, since a process has one HIP driver.

    hip_child.py SCENARIO KERNEL.so DEVICE.so CONFIG-ID

prints one JSON value.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gemmill.library import call_pointers, call_rest
from problems import Library, Problem, check, random_problem

from kernels.catalogue import load_catalogue
from kernels.config import KernelConfig

FUNCTIONS = (
    *("hipGetDevice", "hipGetDevicePropertiesR0600", "hipModuleLoadData", "hipModuleGetFunction", "hipModuleUnload"),
    *("hipModuleLaunchKernel", "hipMalloc", "hipFree", "hipMemcpy", "hipStreamSynchronize"),
    *("hipEventCreate", "hipEventDestroy", "hipEventRecord", "hipEventSynchronize", "hipEventElapsedTime"),
)
SHAPE = (17, 80, 300)


class Simulated:
    """The library under test, and the device that it finds."""

    def __init__(self, library: str, device: str, config: KernelConfig) -> None:
        self.device = ctypes.CDLL(device) if device else None
        self.config = config
        self.library = Library(Path(library), config)
        self.time = (ctypes.c_float * 1)()

    def problem(self, shape: tuple[int, int, int] = SHAPE) -> Problem:
        return random_problem(self.config, shape)

    def host(self, p: Problem) -> tuple[int, np.ndarray]:
        """Call the host-pointer entry; return its code and C."""
        m, n, k = p.shape
        c = self.library.poisoned(m, n)
        code = self.library.c.dispatcher_run_aquant_gemm(
            p.a.pointer, p.aq.pointer, p.b.pointer, c.ctypes.data + n * c.itemsize,
            m, n, k, p.a.stride, p.aq.stride, p.b.stride, n, -(-k // 128), 1, self.time,
        )  # fmt: skip
        assert np.isnan(c[0]).all() and np.isnan(c[-1]).all(), "wrote outside C"
        return code, c[1:-1]

    def cleanup(self) -> None:
        self.library.c.dispatcher_cleanup()

    @property
    def live(self) -> int:
        return int(self.device.gemmill_sim_live())

    def calls(self) -> dict[str, int]:
        return {name: self.device.gemmill_sim_calls(name.encode()) for name in FUNCTIONS}

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        self.device.gemmill_sim_reset_calls()
        os.environ["GEMMILL_SIM_FAIL"] = what
        try:
            yield
        finally:
            del os.environ["GEMMILL_SIM_FAIL"]


def good(s: Simulated) -> dict[str, Any]:
    """One call: right, nothing left behind but the module, and that until the clean-up."""
    p = s.problem()
    code, c = s.host(p)
    check(s.config, p, c)
    calls, live = s.calls(), s.live
    s.cleanup()
    return {"code": code, "time": s.time[0], "calls": calls, "live": live, "after": s.live}


def failures(s: Simulated) -> list[dict[str, Any]]:
    """Let every call of every function fail once."""
    p = s.problem()
    s.device.gemmill_sim_reset_calls()
    s.host(p)
    s.cleanup()
    counts, found = s.calls(), []
    for name, count in counts.items():
        for turn in range(1, count + 1):
            before = s.live
            with s.failing(f"{name}:{turn}"):
                code, _ = s.host(p)
                text = s.library.error if code else ""
                s.cleanup()
            lost = s.live - before
            again, c = s.host(p)
            check(s.config, p, c)
            s.cleanup()
            found.append({"name": name, "turn": turn, "code": code, "text": text, "lost": lost, "again": again})
    return found


def arch(s: Simulated) -> dict[str, Any]:
    """Call on devices of several names."""
    said = {}
    for name in ("gfx942", "gfx942:sramecc+:xnack-", "gfx90a:sramecc+:xnack-", "gfx9420", "gfx94", "gfx950", "x" * 255):
        os.environ["GEMMILL_SIM_DEVICE"] = name
        s.cleanup()
        code = s.library.c.dispatcher_initialize()
        said[name] = [code, s.library.error if code else ""]
    return said


def threads(s: Simulated) -> dict[str, Any]:
    """Let eight threads meet an uninitialised library."""
    problems = [s.problem((8 + i, 64, 256)) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for p, (code, c) in zip(problems, pool.map(s.host, problems), strict=True):
            assert code == 0
            check(s.config, p, c)
    return {"loads": s.calls()["hipModuleLoadData"], "live": s.live}


def limits(s: Simulated) -> list[Any]:
    """Ask for more than the indices of a kernel of layout rcr hold, with sizes whose products are small."""
    call = s.library.c.gemmill_gemm_aquant
    one = ctypes.create_string_buffer(64)
    at = ctypes.addressof(one)
    said = []
    for m, n, k in ((2**30, 1, 0), (1, 2**30 + 1, 0), (1, 1, 2**30 + 1)):
        code = call(at, at, at, at, m, n, k, k, -(-k // 128), k, n, None, 0, None)
        said.append([code, s.library.error])
    return said


def strided(s: Simulated) -> list[Any]:
    """Use the device-pointer entry with spare columns everywhere, and let its calls fail."""
    p = random_problem(s.config, SHAPE, shuffled=s.config.family_row.preshuffle, pads=(16, 4, 16))
    m, n, k = SHAPE
    pointers = []
    c = np.full((m, n + 3), np.nan, np.float16)
    for array in (p.a.storage, p.aq.storage, p.b.storage, c):
        pointer = ctypes.c_void_p()
        assert s.device.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(array.nbytes)) == 0
        s.device.hipMemcpy(pointer, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes), 1)
        pointers.append(pointer.value)

    def call() -> int:
        return s.library.c.gemmill_gemm_aquant(
            *pointers, m, n, k, p.a.stride, p.aq.stride, p.b.stride, n + 3, None, 0, None
        )

    def launch(device: int) -> int:
        sizes = (m, n, k, p.a.stride, p.aq.stride, p.b.stride, n + 3)
        return s.library.c.gemmill_launch(call_pointers(*pointers) + call_rest(sizes, device=device))

    launched = [launch(1), s.library.error, launch(0)]
    s.device.hipMemcpy(c.ctypes.data_as(ctypes.c_void_p), ctypes.c_void_p(pointers[3]), ctypes.c_size_t(c.nbytes), 2)
    check(s.config, p, c[:, :n])
    c.fill(np.nan)
    s.device.hipMemcpy(ctypes.c_void_p(pointers[3]), c.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(c.nbytes), 1)
    assert call() == 0, s.library.error
    s.device.hipMemcpy(c.ctypes.data_as(ctypes.c_void_p), ctypes.c_void_p(pointers[3]), ctypes.c_size_t(c.nbytes), 2)
    assert np.isnan(c[:, n:]).all(), "wrote between the rows of C"
    check(s.config, p, c[:, :n])
    s.device.gemmill_sim_reset_calls()
    assert call() == 0
    warm = {name: count for name, count in s.calls().items() if count}
    failed = []
    for name in warm:
        with s.failing(f"{name}:1"):
            failed.append([name, call(), s.library.error])
    for pointer in pointers:
        s.device.hipFree(ctypes.c_void_p(pointer))
    return [warm, failed, launched]


def alone(s: Simulated) -> dict[str, Any]:
    """Say what the library says on a machine without a driver."""
    code = s.library.c.dispatcher_initialize()
    p = s.problem()
    return {
        "code": code,
        "text": s.library.error,
        "run": s.host(p)[0],
        "name": s.library.c.dispatcher_get_kernel_name().decode(),
        "manifest": json.loads(s.library.c.gemmill_manifest()),
    }


SCENARIOS: dict[str, Callable[[Simulated], Any]] = {
    one.__name__: one for one in (good, failures, arch, threads, limits, strided, alone)
}

if __name__ == "__main__":
    scenario, library, device, wanted = sys.argv[1:]
    configs = {config.id: config for config in load_catalogue().configs(wanted.partition("/")[0])}
    print(json.dumps(SCENARIOS[scenario](Simulated(library, device, configs[wanted]))))
