"""Build the simulated device on which a GPU kernel's selftest runs where its real device is not.

A simulated device takes the place of the driver's library: it is the kernel's own source, compiled for the host and
linked with native/hip/sim. The kernel's library opens it as it would open the driver, so the selftest goes through the
very file that is published: its host code, its embedded code object's target, its argument checks. What does not run is
the device's machine code; hence such a selftest's outcome is a word of its own, ``simulated``.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemmill.arch import find_arch
from gemmill.cache import NATIVE, canonical_json, sha256_text
from gemmill.errors import GemmillError

from kernels import process
from kernels.paths import Paths
from kernels.toolchain import Toolchain, compiler_environment, find_toolchain

SONAME = "libamdhip64.so"
UNITS = ("machine", "matrix", "fiber", "driver")

_FLAGS = ("-std=c++17", "-fPIC", "-pthread", "-Wno-psabi", "-Wno-unknown-pragmas")
_SECONDS = 300.0


def is_simulated(arch: str, provider: str = NATIVE) -> bool:
    """Tell whether selftests for `arch` run on a simulated device where the real one is not here."""
    return find_arch(arch).backend == "hip" and provider == NATIVE


class SimulatorError(GemmillError):
    """The simulated device does not build; the text is the compiler's."""


class Simulator:
    """Builds simulated devices of one checkout; its own objects are compiled once.

    Parameters
    ----------
    paths : Paths
    toolchain : Toolchain, optional
        A C++ compiler for the host, with its library; default is the one that CPU kernels are built with.
    children : Children, optional
        Runs the commands.
    """

    def __init__(
        self, paths: Paths, toolchain: Toolchain | None = None, children: process.Children = process.CHILDREN
    ) -> None:
        self.paths = paths
        self._toolchain = toolchain
        self._children = children
        self._lock = threading.Lock()
        self._objects: list[Path] | None = None

    @contextmanager
    def device(self, source: Path, headers: Path | None = None) -> Iterator[Path]:
        """Give the path of a simulated device for a generated source, which lives as long as the context.

        A process that loads it has a HIP driver from then on: kernel libraries find it by its soname.

        Parameters
        ----------
        source : Path
            The kernel's generated source.
        headers : Path, optional
            A native/ directory to take the kernel's headers from, instead of the checkout's.
        """
        with tempfile.TemporaryDirectory(prefix="gemmill-sim-") as folder:
            library = Path(folder) / SONAME
            self.build(source, library, headers)
            yield library

    def build(self, source: Path, library: Path, headers: Path | None = None) -> None:
        """Compile a generated source to the simulated device `library`, whose soname is its file's name."""
        objects = [str(path) for path in self.objects()]
        first = ["-O1", *self._includes(headers), "-shared", f"-Wl,-soname,{library.name}", "-x", "c++", str(source)]
        self._compile(first, ["-x", "none", *objects, "-o", str(library)], library.parent)

    def objects(self) -> list[Path]:
        """Return the simulator's own objects, compiled if they are not there yet."""
        with self._lock:
            if self._objects is None:
                self._objects = self._build_objects()
            return self._objects

    def _build_objects(self) -> list[Path]:
        native = self.paths.native
        texts = {
            str(path.relative_to(native)): path.read_text(encoding="utf-8")
            for path in sorted([*native.glob("hip/*.h"), *native.glob("hip/sim/*.*")])
        }
        digest = sha256_text(canonical_json([texts, _FLAGS, self._compiler().identity]))
        final = self.paths.build / "simulator" / digest[:16]
        if not final.is_dir():
            final.parent.mkdir(parents=True, exist_ok=True)
            stage = Path(tempfile.mkdtemp(prefix=".", dir=final.parent))
            try:
                for unit in UNITS:
                    source = native / "hip" / "sim" / f"{unit}.cpp"
                    self._compile(
                        ["-O2", *self._includes(None), "-c"], [str(source), "-o", str(stage / f"{unit}.o")], stage
                    )
                stage.rename(final)
            except OSError:
                if not final.is_dir():  # else another process was quicker
                    raise
            finally:
                shutil.rmtree(stage, ignore_errors=True)
        return [final / f"{unit}.o" for unit in UNITS]

    def _compiler(self) -> Toolchain:
        if self._toolchain is None:
            self._toolchain = find_toolchain(None, self.paths.build / "memo" / "toolchain.json")
        return self._toolchain

    def _includes(self, headers: Path | None) -> list[str]:
        native = headers or self.paths.native
        # The simulator's device.h goes before the device's.
        return ["-I", str(native / "hip" / "sim" / "override"), "-I", str(native)]

    def _compile(self, first: list[str], last: list[str], scratch: str | Path) -> None:
        argv = [*self._compiler().command, *_FLAGS, *first, *last]
        code, out, err = self._children.run(argv, _SECONDS, env=compiler_environment(Path(scratch)))
        if code:
            raise SimulatorError(f"the simulated device does not compile:\n{(err + out).strip()}")
