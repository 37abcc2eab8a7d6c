"""The CUDA backend: nvcc makes device code of a source, the C++ compiler makes the library that carries it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmill.cache import LIBRARY
from gemmill.errors import GemmillError, UnsupportedError

from kernels.config import KernelConfig
from kernels.elf import read_section
from kernels.toolchain import Probe, Toolchain, ask, recall
from kernels.toolchain import find_toolchain as find_cxx

TEMPLATE = "cuda.cu.j2"

CUBIN = "kernel.cubin"  # native/cuda/host_abi.h names it

# Real code for the exact target: no PTX that a driver would compile.
DEVICE_FLAGS = ("-std=c++17", "-O3", "-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas=-v")

HOST_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-Wall",
    "-Wextra",
)
LINK_FLAGS = ("-shared", "-pthread", "-s", "-Wl,--as-needed")
_LIBRARIES = ("-ldl",)
_RUNTIME_FLAGS = {"gcc": ("-static-libgcc",), "clang": ("-nostdlib++",), "zig": ("-nostdlib++",)}

_INSTALL = (
    "install the CUDA toolkit, 12.3 or newer, and set CUDA_HOME or PATH, or, in a clone, "
    "`.venv/bin/pip install -e '.[cuda]'` (nvidia-cuda-nvcc and nvidia-cuda-cccl, 13 or newer)"
)

# What a toolkit out of PyPI packages must have beside nvcc, and which package brings it: pip can leave any of them out.
_PACKAGED = {
    "bin/ptxas": "nvidia-cuda-nvcc",
    "nvvm/bin/cicc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
    "include/cuda.h": "nvidia-cuda-runtime",
    "include/nv/target": "nvidia-cuda-cccl",
}

# Programs and headers of the toolkit that decide what device code comes out.
_PROGRAMS = ("bin/nvcc", "bin/ptxas", "bin/cudafe++", "nvvm/bin/cicc")
_HEADERS = ("cuda.h", "cuda_runtime.h", "cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.hpp", "cuda_fp8.h", "cuda_fp8.hpp")

# The section of a library that says what its launches take, and which entries these are; the last two are those of
# kernels that copy operands ahead.
_LAUNCHES = ".gemmill.launch"
_ENTRIES = ("gemmill_fast", "gemmill_scalar", "gemmill_plain", "gemmill_convert")

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '\w+'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_STATIC = re.compile(r"(\d+) bytes smem")
_REPORT = re.compile(r"ptxas info    : (?!\(C)|    \d+ bytes stack frame")


@dataclass(frozen=True)
class CudaToolchain(Toolchain):
    """nvcc, the toolkit's headers, and the C++ compiler for the host side."""

    include: Path
    host: Toolchain


def find_toolchain(wanted: str | None = None, memo: Path | None = None) -> CudaToolchain:
    """Return nvcc and a host compiler.

    Parameters
    ----------
    wanted : str, optional
        The host compiler, as `kernels.toolchain.find_toolchain` takes it.
    memo : Path, optional
        A file that keeps what was learnt about the compilers.

    Raises
    ------
    UnsupportedError
        When one of them is missing; the text says what to install.
    """
    nvcc = find_nvcc()
    found = recall((str(nvcc),), memo, probe_nvcc)
    host = find_cxx(wanted, memo)
    include = _include(nvcc)
    identity = {**found.identity, "host": host.identity}
    return CudaToolchain(found.kind, found.command, identity, include, host)


def find_nvcc() -> Path:
    """Return nvcc: of CUDA_HOME, of PATH, of the PyPI package nvidia-cuda-nvcc, of the usual place, in this order."""
    home = os.environ.get("CUDA_HOME")
    if home:
        program = Path(home) / "bin" / "nvcc"
        if not os.access(program, os.X_OK):
            raise UnsupportedError(f"CUDA_HOME={home}: there is no program {program}")
        return program
    on_path = shutil.which("nvcc")
    if on_path:
        return _behind(Path(on_path).absolute())
    if packaged := _packaged_nvcc():
        return packaged
    usual = Path("/usr/local/cuda/bin/nvcc")
    if os.access(usual, os.X_OK):
        return usual
    raise UnsupportedError(
        f"no CUDA compiler: looked for nvcc in CUDA_HOME, PATH, PyPI packages and {usual}; {_INSTALL}"
    )


def _packaged_nvcc() -> Path | None:
    """Return the newest nvcc that a PyPI package put here; UnsupportedError where it lacks what others should bring."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    found = [nvcc for folder in folders for nvcc in folder.glob("*/bin/nvcc") if os.access(nvcc, os.X_OK)]
    if not found:
        return None
    nvcc = max(found, key=lambda nvcc: nvcc.parent.parent.name)
    root = nvcc.parent.parent
    if lacking := {package: name for name, package in _PACKAGED.items() if not (root / name).exists()}:
        names = ", ".join(lacking.values())
        raise UnsupportedError(f"{nvcc} comes without {names}: `.venv/bin/pip install {' '.join(lacking)}` brings it")
    return nvcc


def _behind(program: Path) -> Path:
    """Return the nvcc that `program` is: a script that starts one of a toolkit elsewhere is followed to it."""
    if (program.resolve().parent.parent / "nvvm").is_dir():
        return program
    # It needs no source to say where it lies; the word is its own.
    here = re.search(r"^#\$ _HERE_=(.+)$", ask((str(program),), "--dryrun", "-x", "cu", os.devnull), re.MULTILINE)
    found = Path(here[1]) / "nvcc" if here else program
    return found if os.access(found, os.X_OK) else program


def probe_nvcc(command: tuple[str, ...]) -> Probe:
    """Ask nvcc what it is."""
    root = Path(command[0]).resolve().parent.parent
    version = re.search(r"release .*", ask(command, "--version"))
    include = _include(Path(command[0]))
    programs = [root / name for name in _PROGRAMS if (root / name).is_file()]
    headers = [include / name for name in _HEADERS if (include / name).is_file()]
    identity = {
        "kind": "nvcc",
        "version": f"nvcc {version[0].strip() if version else 'unknown'}",
        "programs": {path.name: _digest(path) for path in programs},
        "headers": {path.name: _digest(path) for path in headers},
    }
    return Probe("nvcc", identity, (command[0], *map(str, programs), *map(str, headers)))


def flags(config: KernelConfig, toolchain: CudaToolchain) -> dict[str, Any]:
    """Return every flag that can change the artefact, by step."""
    return {
        "device": list(DEVICE_FLAGS),
        "compile": list(HOST_FLAGS),
        "link": [*LINK_FLAGS, *_RUNTIME_FLAGS[toolchain.host.kind], *_LIBRARIES],
    }


def commands(
    config: KernelConfig, source: Path, native: Path, library: Path, toolchain: CudaToolchain
) -> list[list[str]]:
    """Return two commands: device code, then the library that carries it."""
    step = flags(config, toolchain)
    # nvcc reads its sources with a host compiler; zig is not one that it knows.
    reader = ["-ccbin", toolchain.host.command[0]] if toolchain.host.kind in ("gcc", "clang") else []
    device = [*toolchain.command, *reader, *step["device"], "-x", "cu", "-I", str(native), str(source), "-o", CUBIN]
    host = [
        *toolchain.host.command,
        *step["compile"],
        "-I",
        str(native),
        "-isystem",
        str(toolchain.include),
        str(source),
        *step["link"],
        "-o",
        str(library),
    ]
    return [device, host]


def resources(config: KernelConfig, output: str, work: Path) -> tuple[dict[str, Any], str]:
    """Return what each entry takes, and the rest of the output.

    Registers, stack, spills and static shared memory as ptxas reports them; threads and dynamic shared memory of a
    launch as the library records them.

    Raises
    ------
    GemmillError
        If an entry spills: a kernel that keeps registers in memory is not shipped.
    """
    found: dict[str, Any] = {}
    name = ""
    for line in output.splitlines():
        if entry := _ENTRY.search(line):
            name = entry[1]
            found[name] = {}
        elif name and (spills := _SPILLS.search(line)):
            found[name].update(stack=int(spills[1]), spill_stores=int(spills[2]), spill_loads=int(spills[3]))
        elif name and (used := _USED.search(line)):
            found[name]["registers"] = int(used[1])
            static = _STATIC.search(line)
            found[name]["static_shared_memory"] = int(static[1]) if static else 0
    for name, entry in found.items():
        if entry.get("spill_stores") or entry.get("spill_loads"):
            raise GemmillError(f"{config.id}: {name} spills registers ({entry['spill_stores']} bytes stored): {entry}")
    for name, launch in _launches(work / LIBRARY).items():
        found.setdefault(name, {}).update(launch)
    return found, "\n".join(line for line in output.splitlines() if not _REPORT.match(line))


def _launches(library: Path) -> dict[str, dict[str, int]]:
    """Return threads and dynamic shared memory of each entry, out of the section that native/cuda/host_abi.h writes."""
    rows = [*struct.iter_unpack("=II", read_section(library, _LAUNCHES))]
    return {
        name: {"threads": threads, "dynamic_shared_memory": size}
        for name, (threads, size) in zip(_ENTRIES[: len(rows)], rows, strict=True)
    }


def _include(nvcc: Path) -> Path:
    root = nvcc.resolve().parent.parent
    for folder in (root / "include", *sorted((root / "targets").glob("*/include"))):
        if (folder / "cuda.h").is_file():
            return folder
    raise UnsupportedError(f"{nvcc} comes without cuda.h: looked in {root / 'include'}; {_INSTALL}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
