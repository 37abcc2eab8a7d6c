"""Simulated devices for tests: kernels launched directly, without the host shim, or any source of a test's own."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gemmill.cache import sha256_text
from problems import OUT_DTYPES, Problem

from kernels.codegen import Codegen
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths
from kernels.simulator import Simulator

PATHS = Paths.of(CHECKOUT.root, build=CHECKOUT.build / "test")
SIMULATOR = Simulator(PATHS)

GFX = ("gfx90a", "gfx942", "gfx950")
ORDERS = ("forward", "reverse", "7")

H2D, D2H = 1, 2


class Violation(AssertionError):
    """What the simulator stopped a launch for."""


class GemmArgs(ctypes.Structure):
    """native/hip/args.h."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("a", "aq", "b", "c")]
        + [(name, ctypes.c_longlong) for name in ("lda", "ldaq", "ldb", "ldc")]
        + [(name, ctypes.c_int) for name in ("m", "n", "k")]
    )  # fmt: skip


class Device:
    """A simulated device with one kernel, called through the functions that the HIP library has."""

    def __init__(self, library: Path) -> None:
        self.hip = ctypes.CDLL(str(library))
        self.hip.hipGetErrorString.restype = ctypes.c_char_p
        self.kernel = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.hip, "gemmill_simulated_kernel")))

    def check(self, code: int) -> None:
        if code:
            raise Violation(self.hip.hipGetErrorString(code).decode())

    @contextmanager
    def memory(self, content: np.ndarray | int) -> Iterator[int]:
        """Give device memory that ends where the content ends; a number is so many poisoned bytes."""
        data = b"" if isinstance(content, int) else content.tobytes()
        size = content if isinstance(content, int) else len(data)
        pointer = ctypes.c_void_p()
        self.check(self.hip.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)))
        try:
            if data:
                self.check(self.hip.hipMemcpy(pointer, data, ctypes.c_size_t(size), H2D))
            yield pointer.value or 0
        finally:
            self.hip.hipFree(pointer)

    def read(self, pointer: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.check(self.hip.hipMemcpy(buffer, ctypes.c_void_p(pointer), ctypes.c_size_t(size), D2H))
        return buffer.raw

    def launch(self, args: ctypes.Structure, grid: tuple[int, int], threads: int, order: str = "forward") -> None:
        """Launch; raise Violation with the simulator's finding."""
        os.environ["GEMMILL_SIM_ORDER"] = order
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        try:
            self.check(self.hip.hipModuleLaunchKernel(self.kernel, *grid, 1, threads, 1, 1, 0, None, parameters, None))
        finally:
            del os.environ["GEMMILL_SIM_ORDER"]

    def multiply(
        self, config: KernelConfig, p: Problem, order: str = "forward", pad: int = 0, grid_y: int = 65535
    ) -> np.ndarray:
        """Run a kernel on a problem whose AQ is stored as the kernel takes it; return C, `pad` columns checked."""
        m, n, k = p.shape
        dtype = np.dtype(OUT_DTYPES[config.out])
        rows = (m - 1) * (n + pad) + n
        with (
            self.memory(p.a.storage) as a,
            self.memory(p.aq.storage) as aq,
            self.memory(p.b.storage) as b,
            self.memory(rows * dtype.itemsize) as c,
        ):
            args = GemmArgs(a, aq, b, c, p.a.stride, p.aq.stride, p.b.stride, n + pad, m, n, k)
            grid = -(-m // config.tile[0]), min(-(-n // config.tile[1]), grid_y)
            self.launch(args, grid, 64 * config.warps[0] * config.warps[1], order)
            raw = np.frombuffer(self.read(c, rows * dtype.itemsize), dtype)
        whole = np.full(m * (n + pad), np.nan, dtype)
        whole[:rows] = raw
        result = whole.reshape(m, n + pad)
        assert np.isnan(result[:, n:].astype(np.float32)).all(), "wrote between the rows of C"
        return result[:, :n]


@contextmanager
def simulated(config: KernelConfig, headers: Path | None = None) -> Iterator[Device]:
    """Give the simulated device of a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        yield device_of(Codegen(PATHS).generate(config), Path(folder), headers)


def device_of(source: Path, folder: Path, headers: Path | None = None) -> Device:
    """Return the simulated device of a generated source, under a name by which this process has no HIP driver."""
    library = Path(tempfile.mkdtemp(dir=folder)) / "simulated.so"  # a path opened twice is one library
    SIMULATOR.build(source, library, headers)
    return Device(library)


class Prefetched:
    """Simulated devices of many kernels, compiled ahead on all cores while the first are in use."""

    def __init__(self, configs: list[KernelConfig], folder: Path) -> None:
        self._pool = ThreadPoolExecutor(os.cpu_count())
        codegen = Codegen(PATHS)

        def build(config: KernelConfig) -> Path:
            library = folder / f"{sha256_text(config.id)[:16]}.so"
            SIMULATOR.build(codegen.generate(config), library)
            return library

        self._libraries = {config: self._pool.submit(build, config) for config in configs}

    @contextmanager
    def device(self, config: KernelConfig) -> Iterator[Device]:
        """Give a kernel's device; its library is removed afterwards."""
        library = self._libraries[config].result()
        yield Device(library)
        library.unlink()

    def close(self) -> None:
        """Compile no more."""
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def simulated_source(text: str, folder: Path) -> Iterator[Device]:
    """Give the simulated device of a test's own kernel."""
    source = folder / "kernel.cpp"
    source.write_text(text)
    yield device_of(source, folder)


@dataclass(frozen=True)
class Mutation:
    """A fault put into a native header on purpose.

    Attributes
    ----------
    name : str
    file : str
        Below native/.
    old, new : str
        `old` must be there.
    """

    name: str
    file: str
    old: str
    new: str

    def apply(self, folder: Path) -> Path:
        """Return a native directory with the fault."""
        native = folder / "native"
        shutil.copytree(CHECKOUT.native, native)
        path = native / self.file
        text = path.read_text()
        assert self.old in text, f"{self.file} no longer has {self.old!r}: bring this mutation up to date"
        path.write_text(text.replace(self.old, self.new))
        return native
