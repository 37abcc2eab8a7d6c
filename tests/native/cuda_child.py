"""Runs the host side of CUDA kernels on the fake driver; a child process, since a process has one libcuda.

    cuda_child.py SCENARIO DRIVER.so CONFIG-ID KERNEL.so SOURCE [FAULT CHECKS]

prints one JSON value.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import sanitize
from checks import CHECKS
from driver import Gpu
from fake_cuda import Driver, SimulatedKernel
from gemmill.api import gemm_aquant
from gemmill.cache import Cache
from gemmill.device_memory import CudaMemory
from gemmill.errors import DeviceError, GemmillError
from gemmill.harness import CheckFailed
from gemmill.layout import groups
from gemmill.library import call_pointers, call_rest
from gemmill.loader import Kernel
from gemmill.operands import Fp8Matrix
from gemmill.selfcheck import Checker
from operands import Case, expected, problem, store
from workbench import Operands, Workbench, Wrong

from kernels.catalogue import load_catalogue

# What the host side calls, but for the names of errors.
FUNCTIONS = (
    *("cuInit", "cuDeviceGet", "cuDeviceGetCount", "cuDeviceGetAttribute"),
    *("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"),
    *("cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxPushCurrent", "cuCtxPopCurrent"),
    *("cuLibraryLoadData", "cuLibraryUnload", "cuLibraryGetKernel", "cuKernelSetAttribute"),
    *("cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuPointerGetAttributes"),
    *("cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuStreamSynchronize"),
    *("cuEventCreate", "cuEventDestroy", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"),
)
SHAPE = (17, 80, 384)


class Unshuffled:
    """A kernel as its host-pointer entry is called."""

    preshuffle = False

    def __init__(self, kernel: SimulatedKernel) -> None:
        self.config = kernel.config


class Child:
    """One kernel on the fake driver."""

    def __init__(self, driver: str, wanted: str, library: str, source: str, fault: str = "", checks: str = "") -> None:
        self.driver = Driver(Path(driver))
        (config,) = (c for c in load_catalogue().configs(wanted.partition("/")[0], out=None) if c.id == wanted)
        self.checks = checks.split(",") if checks else []
        self.kernel = SimulatedKernel(config, Path(library), Path(source), fault)
        self.driver.compute(self.kernel.run)
        self.library = self.kernel.library

    def host(self, shape: tuple[int, int, int] = SHAPE) -> tuple[int, str, bool]:
        """Call the host-pointer entry with a time; return its code, its text, and whether C is right."""
        p = problem(self.kernel.config["variant"], *shape)
        s = store(Unshuffled(self.kernel), p, "packed")
        m, n, k = shape
        wanted = expected(p.exact, self.kernel.config["out"])
        c, time_ms = np.full((m, n), np.nan, wanted.dtype), np.zeros(1, np.float32)
        code = self.library.run_host(
            *(x.ctypes.data for x in (s.a, s.aq, s.b, c)), m, n, k, s.lda, s.ldaq, s.ldb, s.ldc, groups(k), 1,
            time_ms.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        )  # fmt: skip
        return code, self.library.last_error if code else "", bool((c == wanted).all())

    def counts(self) -> dict[str, int]:
        return {name: count for name in FUNCTIONS if (count := self.driver.calls(name))}


def apart(call: Callable[[], Any]) -> Any:
    """Return what a call returns in a thread of its own: one without a context, and without tensor maps made before."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def good(s: Child) -> Any:
    """One call, in a thread without a context: right, and nothing left but the module and its context."""
    code, text, right = s.host()
    calls, live, contexts = s.counts(), s.driver.live, s.driver.contexts
    s.library.cleanup()
    return {
        "code": code, "text": text, "right": right, "calls": calls, "live": live, "contexts": contexts,
        "after": s.driver.live,
    }  # fmt: skip


def failures(s: Child) -> Any:
    """Let every call of every function fail once; each time a good call and a clean-up follow."""
    s.driver.fail("cuInit")
    first = s.host()[:2]  # the driver starts once a process
    s.host()
    s.library.cleanup()
    s.driver.fail("")
    s.host()
    s.library.cleanup()
    found: list[dict[str, Any]] = []
    for name, count in s.counts().items():
        for turn in range(1, count + 1):
            before = s.driver.live
            s.driver.fail(name, turn)
            (code, text, _), contexts = apart(lambda: (s.host(), s.driver.contexts))
            s.library.cleanup()
            s.driver.fail("")
            lost = s.driver.live - before
            again, _, right = s.host()
            s.library.cleanup()
            found.append(
                {"name": name, "turn": turn, "code": code, "text": text, "lost": lost, "contexts": contexts,
                 "again": again, "right": right}
            )  # fmt: skip
    return {"first": first, "found": found}


def out_of_memory(s: Child) -> Any:
    """Let each allocation find the device full."""
    s.host()
    live, found = s.driver.live, []
    for turn in range(1, 5):
        s.driver.fail("cuMemAlloc", turn, 2)
        code, text, _ = s.host()
        s.driver.fail("")
        found.append([code, text, s.driver.live - live, s.host()[2]])
    return found


def strided(s: Child) -> Any:
    """Call the device-pointer entry: what a warm call asks of the driver, and each of these failing."""
    gpu = Gpu()
    bench = Workbench(gpu, Cache("none"), [s.kernel])
    o = bench.operands(s.kernel, Case(*SHAPE, "aligned"))
    bench.check(s.kernel, o, "strided")
    live = s.driver.live
    pointers, sizes = (o.a, o.aq, o.b, o.c), (*SHAPE, o.stored.lda, o.stored.ldaq, o.stored.ldb, o.stored.ldc)
    told = {}
    for entry, call in (
        ("run", lambda: s.library.run(*pointers, *sizes, None, 0, None)),
        ("launch", lambda: s.library.launch(call_pointers(*pointers) + call_rest(sizes))),
    ):
        s.driver.fail("")
        codes = [call()]
        warm, failed = s.counts(), []

        def in_context(call: Callable[[], int] = call) -> tuple[int, str]:
            gpu.enter()
            code = call()
            return code, s.library.last_error if code else ""

        s.driver.fail("")
        codes.append(apart(in_context)[0])
        first = s.counts()
        for name, count in first.items():
            for turn in range(1, count + 1):
                s.driver.fail(name, turn)
                failed.append([name, *apart(in_context)])
                s.driver.fail("")
        bench.check(s.kernel, o, f"after failures of {entry}")
        told[entry] = {"codes": codes, "warm": warm, "first": first, "failed": failed}
    return {**told, "lost": s.driver.live - live}


def current(s: Child) -> Any:
    """Launch where the current context is none, the device's, or another's, and on devices that are not there."""
    gpu = Gpu()
    bench = Workbench(gpu, Cache("none"), [s.kernel])
    o = bench.operands(s.kernel, Case(*SHAPE, "aligned"))
    sizes = (*SHAPE, o.stored.lda, o.stored.ldaq, o.stored.ldb, o.stored.ldc)
    s.driver.c.fake_devices(2, 9, 0)

    def launch(device: int, inside: bool, failing: str) -> list[Any]:
        if inside:
            gpu.enter()
        before = s.driver.contexts
        s.driver.fail(failing)
        code = s.library.launch(call_pointers(o.a, o.aq, o.b, o.c) + call_rest(sizes, device=device))
        said = [code, s.library.last_error if code else "", s.driver.calls("cuLaunchKernelEx")]
        s.driver.fail("")
        return [*said, int(s.driver.c.fake_launch_device()), s.driver.contexts - before]

    cases = (
        *((0, True, ""), (0, False, ""), (1, True, ""), (0, True, ""), (0, True, "cuCtxGetDevice")),
        *((-1, True, ""), (64, False, ""), (2**32, True, "")),
    )
    return [apart(functools.partial(launch, *case)) for case in cases]


def maps(s: Child) -> Any:
    """Launch problems that differ in one thing and share their memory; return each launch's tensor maps."""
    gpu = Gpu()
    bench = Workbench(gpu, Cache("none"), [s.kernel])
    o = bench.operands(s.kernel, Case(*SHAPE, "aligned"))
    s.driver.compute(lambda entry, params: None)  # some would read beyond the memory
    lds = (o.stored.lda, o.stored.ldaq, o.stored.ldb, o.stored.ldc)

    def launch(m: int, n: int, k: int, a: int, lda: int, ldb: int, ldc: int) -> list[int]:
        gpu.enter()
        sizes = (m, n, k, lds[0] + lda, lds[1], lds[2] + ldb, lds[3] + ldc)
        code = s.library.launch(call_pointers(o.a + a, o.aq, o.b, o.c) + call_rest(sizes))
        assert code == 0, s.library.last_error
        found = (ctypes.c_uint64 * 48)()
        s.driver.c.fake_maps(found)
        return list(found)

    m, n, k = SHAPE
    problems = [
        *((m, n, k, 0, 0, 0, 0), (m - 1, n, k, 0, 0, 0, 0), (m, n - 8, k, 0, 0, 0, 0), (m, n, k - 1, 0, 0, 0, 0)),
        *((m, n, k, 16 * i, 0, 0, 0) for i in range(1, 100)),  # more than a thread keeps
        *((m, n, k, 0, 16, 0, 0), (m, n, k, 0, 0, 16, 0), (m, n, k, 0, 0, 0, 16)),
    ]
    return {
        "new": [apart(functools.partial(launch, *problem)) for problem in problems],
        "kept": [[launch(*problem) for problem in problems] for _ in range(2)],
    }


def devices(s: Child) -> Any:
    """Meet machines without a device, and with one of another capability."""
    said = []
    for count, major, minor in ((0, 9, 0), (1, 8, 9), (1, 10, 0), (2, 9, 1)):
        s.driver.c.fake_devices(count, major, minor)
        code, text, _ = s.host()
        said.append([code, text])
    s.driver.c.fake_devices(1, 9, 0)
    return {"said": said, "after": s.host()[0], "contexts": s.driver.contexts}


def threads(s: Child) -> Any:
    """Let eight threads meet a library that is not initialised."""
    codes: list[int] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        code, _, right = s.host()
        codes.append(code or 0 if right else -99)

    every = [threading.Thread(target=work) for _ in range(8)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()
    return {"codes": codes, "loads": s.driver.calls("cuLibraryLoadData"), "live": s.driver.live}


def launches(s: Child) -> Any:
    """Say how each shape is launched: entry, blocks, whether in clusters."""
    return launched(s, [Case(16, 1024, 4096), Case(16, 1024, 4096, "odd"), Case(16, 64, 4096), Case(5, 70, 0)])


def sanitized(s: Child) -> Any:
    """Say how the shapes that compute-sanitizer sees are launched."""
    return list(launched(s, [*sanitize.cases(s.kernel.config["tile"]), *sanitize.copied(s.library)]).values())


def launched(s: Child, cases: list[Case]) -> dict[str, Any]:
    """Return entry, blocks, and whether in clusters, by case."""
    gpu, said = Gpu(), {}
    bench = Workbench(gpu, Cache("none"), [s.kernel])
    entries: list[str] = []
    s.driver.compute(lambda entry, params: entries.append(entry))
    for case in cases:
        o = bench.operands(s.kernel, case)
        bench.launch(s.kernel, o)
        said[str(case)] = [entries[-1], int(s.driver.c.fake_grid()), bool(s.driver.c.fake_cluster())]
    return said


def converted(s: Child) -> Any:
    """Call a kernel that copies operands ahead, in every way: what is launched, what is refused, and what may fail."""
    bench = Workbench(Gpu(), Cache("none"), [s.kernel])
    launched: list[list[Any]] = []

    def run(entry: str, params: Any) -> None:
        launched.append([entry, int(s.driver.c.fake_grid())])
        s.kernel.run(entry, params)

    s.driver.compute(run)
    said: dict[str, Any] = {}

    def tried(name: str, case: Case, bare: bool = False) -> Operands:
        launched.clear()
        o = bench.operands(s.kernel, case)
        bench.expect(o, bench.multiply(s.kernel, o, bare=bare), name)
        said[name] = list(launched)
        return o

    o = tried("with", Case(544, 608, 288))
    tried("tails", Case(515, 517, 253, "aligned"))
    tried("without", Case(544, 608, 288), bare=True)
    tried("odd", Case(544, 608, 288, "odd"))
    tried("small", Case(544, 500, 288, "aligned"))
    tried("no k", Case(544, 608, 0))

    live = s.driver.live
    bench.launch(s.kernel, o)  # tensor maps of the same memory took the place of this problem's
    s.driver.fail("")
    bench.launch(s.kernel, o)
    said["warm"] = s.counts()
    said["failed"] = []
    for turn in (1, 2):
        s.driver.fail("cuLaunchKernelEx", turn)
        launched.clear()
        try:
            bench.launch(s.kernel, o)
        except Wrong as error:
            said["failed"].append([str(error), [entry for entry, _ in launched]])
        s.driver.fail("")
    bench.check(s.kernel, o, "after failures")
    return {**said, "lost": s.driver.live - live}


def converted_from_host(s: Child) -> Any:
    """Call the host-pointer entry where a workspace is taken, and where the device has no memory for it."""
    launched: list[str] = []

    def run(entry: str, params: Any) -> None:
        launched.append(entry)
        s.kernel.run(entry, params)

    s.driver.compute(run)
    said = []
    for turn in (0, 5):
        s.driver.fail("cuMemAlloc" if turn else "", turn, 2)
        launched.clear()
        code, text, right = s.host((544, 608, 288))
        said.append([code, text, right, sorted(set(launched)), s.driver.live])
    return said


def device_tests(s: Child) -> Any:
    """Run the device tests' checks on the simulated kernel; return what each one says, "" where it passes."""
    bench = Workbench(Gpu(), Cache("none"), [s.kernel], brief=True)
    said = {}
    for check in CHECKS:
        if not check.entries(bench) or (s.checks and check.name not in s.checks):
            continue
        try:
            said[check.name] = "skipped" if check.run(bench, s.kernel) else ""
        except Wrong as error:
            said[check.name] = str(error)
    return said


def selftest(s: Child) -> Any:
    """Run the selftest's checks on the simulated kernel; say what they found, and on which entries."""
    checker = Checker(s.kernel)
    said = ""
    try:
        checker.check_all()
    except CheckFailed as error:
        said = str(error)
    return {"said": said, "entries": checker.used, "contexts": s.driver.contexts}


def selftest_without_memory(s: Child) -> Any:
    """Let the driver fail under a selftest's own calls."""
    said = []
    for name, turn in (("cuMemAlloc", 1), ("cuMemcpyHtoD", 2), ("cuStreamSynchronize", 1), ("cuMemcpyDtoH", 1)):
        checker = Checker(s.kernel)
        s.driver.fail(name, turn)
        try:
            checker.check_exact(3, 5, 130, ("device",))
        except CheckFailed as error:
            said.append(str(error))
        s.driver.fail("")
    return {"said": said, "contexts": s.driver.contexts}


def memory(s: Child) -> Any:
    """Keep bytes on the device; let each call fail once."""
    live = s.driver.live
    one = CudaMemory(0)
    data = np.arange(1000, dtype=np.uint8)
    with one.current():
        inside = s.driver.contexts
        address = one.allocate(1000)
        one.upload(address, data)
        one.synchronize()
        same = bool((one.download(address, 1000) == data).all())
        said = []
        for name, call in (
            ("cuMemAlloc", lambda: one.allocate(10)),
            ("cuMemFree", lambda: one.free(address)),
            ("cuMemcpyHtoD", lambda: one.upload(address, data)),
            ("cuMemcpyDtoH", lambda: one.download(address, 10)),
            ("cuStreamSynchronize", one.synchronize),
        ):
            s.driver.fail(name)
            try:
                call()
            except DeviceError as error:
                said.append(str(error))
            s.driver.fail("")
        one.free(address)
    return {"same": same, "said": said, "inside": inside, "after": s.driver.contexts, "kept": s.driver.live - live}


class OnDevice:
    """An array on the fake device, with ``__cuda_array_interface__``."""

    def __init__(self, gpu: Gpu, data: np.ndarray, shape: tuple[int, ...], strides: Any, stream: int | None) -> None:
        self.gpu, self.size = gpu, data.nbytes
        self.address = gpu.allocate(data.nbytes)
        gpu.upload(self.address, data.view(np.uint8).ravel())
        self.__cuda_array_interface__ = {
            "shape": shape, "strides": strides, "typestr": data.dtype.str, "data": (self.address, False),
            "version": 3, "stream": stream,
        }  # fmt: skip


def arrays(s: Child) -> Any:
    """Multiply by gemm_aquant on arrays by their interface: through the runtime, the real host side and the driver."""
    gpu = Gpu()
    m, n, k = SHAPE
    p = problem(s.kernel.config["variant"], *SHAPE)
    stored = store(s.kernel, p, "packed")
    wanted = expected(p.exact, s.kernel.config["out"])
    kernel = object.__new__(Kernel)
    for name in ("name", "arch", "key", "config", "preshuffle", "library"):
        setattr(kernel, name, getattr(s.kernel, name))
    kernel.encoding = "ocp"
    said = []
    with gpu.stream() as one, gpu.stream() as other:
        for streams, stream in (((one, one), None), ((one, other), None), ((one, one), other)):
            a = OnDevice(gpu, stored.a.view(np.uint8), (m, k), (stored.lda, 1), streams[0])
            b = OnDevice(gpu, stored.b.view(np.uint8), (k, n), (1, stored.ldb), streams[1])
            aq = OnDevice(gpu, stored.aq.view(np.float32), (m, groups(k)), None, streams[0])
            c = OnDevice(gpu, np.full((m, n), np.nan, wanted.dtype), (m, n), None, streams[0])
            operands = (Fp8Matrix(a, "float8_e4m3fn"), Fp8Matrix(b, "float8_e4m3fn"), aq)
            s.driver.fail("")
            gemm_aquant(*operands, c, kernel=kernel, stream=stream)
            calls = {name: s.driver.calls(name) for name in ("cuLaunchKernelEx", "cuStreamWaitEvent", "cuEventDestroy")}
            right = bool((gpu.download(c.address, c.size).view(wanted.dtype).reshape(m, n) == wanted).all())
            said.append([right, list(calls.values())])
    empty = OnDevice(gpu, np.zeros(1, np.uint8), (m, 0), None, None)
    flat = OnDevice(gpu, np.zeros(1, np.uint8), (0, n), None, None)
    none = OnDevice(gpu, np.zeros(1, np.float32), (m, 0), None, None)
    gemm_aquant(Fp8Matrix(empty, "float8_e4m3fn"), Fp8Matrix(flat, "float8_e4m3fn"), none, c)
    cleared = not gpu.download(c.address, c.size).any()
    refused = []
    for name, change in (("host", (operands[0], operands[1], _HostArray(stored.aq))), ("wait", operands)):
        s.driver.fail("cuStreamWaitEvent" if name == "wait" else "")
        try:
            gemm_aquant(*change, c, kernel=kernel, stream=0x77)
        except GemmillError as error:
            refused.append([type(error).__name__, str(error)])
    s.driver.fail("")
    return {"said": said, "cleared": cleared, "refused": refused, "contexts": s.driver.contexts}


class _HostArray:
    """Host memory that says it is a device's."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.__cuda_array_interface__ = {
            "shape": (SHAPE[0], groups(SHAPE[2])), "typestr": "<f4", "data": (data.ctypes.data, False), "version": 3,
        }  # fmt: skip


SCENARIOS: dict[str, Callable[[Child], Any]] = {
    one.__name__: one
    for one in (
        *(
            good,
            failures,
            out_of_memory,
            strided,
            current,
            maps,
            devices,
            threads,
            launches,
            sanitized,
            device_tests,
            arrays,
        ),
        *(selftest, selftest_without_memory, memory, converted, converted_from_host),
    )
}

if __name__ == "__main__":
    scenario, *arguments = sys.argv[1:]
    print(json.dumps(SCENARIOS[scenario](Child(*arguments))))
