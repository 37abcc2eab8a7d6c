"""The HIP backend: device code by clang alone, no ROCm; the code object is embedded in a host library.

    kernel.cpp --clang--> kernel.s --as--> kernel.o --lld--> kernel.co --incbin--> image.o
    kernel.cpp + image.o --host compiler--> kernel.so

One source serves both sides (templates/hip.cpp.j2). The `ziglang` package brings clang, lld and a C library; another
clang with lld does as well, see kernels/amd_compiler.py.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from gemmill.errors import UnsupportedError

from kernels import amd_compiler
from kernels.code_object import read_kernels
from kernels.config import KernelConfig
from kernels.hip_headers import rocm_root
from kernels.toolchain import Toolchain

__all__ = ["TEMPLATE", "commands", "find_toolchain", "flags", "resources"]

TEMPLATE = "hip.cpp.j2"
CODE_OBJECT = "kernel.co"  # native/hip/image.S reads it by this name

DEVICE_FLAGS = (
    *("-x", "hip", "--offload-device-only", "-nogpuinc", "-nogpulib", "-mcode-object-version=5"),
    # A compilation-unit id would carry the source's path into the object.
    "-fuse-cuid=none",
    *("-std=c++17", "-O3", "-Wall", "-Wextra", "-S"),
)
LINK_FLAGS = ("-m", "elf64_amdgpu", "-shared")
HOST_FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
    *("-Wall", "-Wextra", "-DGEMMILL_HOST", "-shared", "-pthread", "-s", "-nostdlib++", "-Wl,--as-needed", "-ldl"),
)

# First releases that do: of clang, whose 15 lacks builtins, and of zig, whose releases carry one clang each.
FIRST = {
    "gfx90a": {"clang": (16,), "zig": (0, 12)},
    "gfx942": {"clang": (17,), "zig": (0, 12)},
    "gfx950": {"clang": (20,), "zig": (0, 15)},
}


def find_toolchain(wanted: str | None, memo: Path | None) -> Toolchain:
    """Return zig, else ROCm's or a system's clang, else the clang that hipcc starts.

    Raises
    ------
    UnsupportedError
        Where none is there, or `wanted` is another compiler.
    """
    order = ("zig", str(rocm_root() / "llvm/bin/clang++"), "clang++", "hipcc")
    return amd_compiler.find_compiler(wanted, memo, FIRST, order)


def flags(config: KernelConfig, toolchain: Toolchain) -> dict[str, Any]:
    """Return every flag that can change the artefact, by step."""
    amd_compiler.require(toolchain, config.arch, FIRST)
    host = [*HOST_FLAGS, *(["-mcpu=baseline"] if toolchain.kind == "zig" else [])]
    return {
        "device": [*DEVICE_FLAGS, f"--offload-arch={config.arch}"],
        "assemble": ["--target=amdgcn-amd-amdhsa", f"-mcpu={config.arch}", "-c"],
        "link": list(LINK_FLAGS),
        "image": [
            *(f"--target={platform.machine()}-linux-gnu", "-c"),
            *("-x", "assembler-with-cpp", "-include", "hip/image.S"),
        ],
        "host": host,
        "machine": platform.machine(),
    }


def commands(config: KernelConfig, source: Path, native: Path, library: Path, toolchain: Toolchain) -> list[list[str]]:
    """Return the five commands that make `library` from `source`."""
    step = flags(config, toolchain)
    clang = amd_compiler.clang(toolchain)
    include = ["-I", str(native)]
    return [
        [*clang, *step["device"], *include, str(source), "-o", "kernel.s"],
        [*clang, *step["assemble"], "kernel.s", "-o", "kernel.o"],
        [*amd_compiler.lld(toolchain), *step["link"], "kernel.o", "-o", CODE_OBJECT],
        # Not by the host compiler from C++: zig's cache would not see what .incbin reads.
        [*clang, *step["image"], *include, os.devnull, "-o", "image.o"],
        [*toolchain.command, *step["host"], *include, str(source), "image.o", "-o", str(library)],
    ]


def resources(config: KernelConfig, output: str, work: Path) -> tuple[dict[str, Any], str]:
    """Return registers, LDS and the like from the code object, and the whole output.

    Raises
    ------
    UnsupportedError
        If the kernel spills registers or uses scratch: it would run, at a fraction of its speed.
    """
    figures = read_kernels(work / CODE_OBJECT)[config.name]
    spilled = {name: figures[name] for name in ("vgpr_spills", "sgpr_spills", "scratch_bytes") if figures.get(name)}
    if spilled:
        raise UnsupportedError(
            f"{config.id} spills: {', '.join(f'{name} = {value}' for name, value in spilled.items())}; "
            f"needed are zeros, so take a smaller tile"
        )
    return dict(figures), output
