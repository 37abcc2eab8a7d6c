"""The HIP backend: device code by clang alone, no ROCm; the code object is embedded in a host library.

    kernel.cpp --clang--> kernel.s --as--> kernel.o --lld--> kernel.co --incbin--> image.o
    kernel.cpp + image.o --host compiler--> kernel.so

One source serves both sides (templates/hip.cpp.j2). The `ziglang` package brings clang, lld and a C library; a clang
of its own with lld does as well.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from gemmill.errors import UnsupportedError

from kernels import toolchain as cxx
from kernels.code_object import read_kernels
from kernels.config import KernelConfig
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

# First releases that do: of clang, and of zig, whose releases carry one clang each. clang 17 to 19 know gfx90a and
# gfx942, but not the gfx950 builtins that native/hip names whatever it is compiled for.
_FIRST_CLANG = {"gfx90a": (20,), "gfx942": (20,), "gfx950": (20,)}
_FIRST_ZIG = {"gfx90a": (0, 12), "gfx942": (0, 12), "gfx950": (0, 15)}

_INSTALL = "`pip install ziglang` brings one (anywhere); so does `apt install clang lld`, where it is new enough"


def find_toolchain(wanted: str | None, memo: Path | None) -> Toolchain:
    """Return zig or clang.

    Raises
    ------
    UnsupportedError
        Where neither is there, or `wanted` is another compiler.
    """
    if wanted:
        found = cxx.find_toolchain(wanted, memo)
        if found.kind not in ("zig", "clang"):
            raise UnsupportedError(f"toolchain={wanted} is {found.kind}, which has no AMD GPU targets; {_INSTALL}")
        return found
    for name in ("zig", "clang++"):
        try:
            return cxx.find_toolchain(name, memo)
        except UnsupportedError:
            continue
    raise UnsupportedError(
        f"no compiler for AMD GPUs: looked for zig, the Python package ziglang and clang++; {_INSTALL}"
    )


def flags(config: KernelConfig, toolchain: Toolchain) -> dict[str, Any]:
    """Return every flag that can change the artefact, by step."""
    _check_version(config.arch, toolchain)
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
    program, *rest = toolchain.command
    clang, lld = (
        ([program, "clang"], [program, "ld.lld"]) if toolchain.kind == "zig" else ([program, *rest], ["ld.lld"])
    )
    include = ["-I", str(native)]
    return [
        [*clang, *step["device"], *include, str(source), "-o", "kernel.s"],
        [*clang, *step["assemble"], "kernel.s", "-o", "kernel.o"],
        [*lld, *step["link"], "kernel.o", "-o", CODE_OBJECT],
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


def _check_version(arch: str, toolchain: Toolchain) -> None:
    first = (_FIRST_ZIG if toolchain.kind == "zig" else _FIRST_CLANG)[arch]
    said = str(toolchain.identity.get("version", ""))
    found = re.search(r"\d+(?:\.\d+)*", said)
    have = tuple(int(x) for x in found[0].split(".")) if found else ()
    if have < first:
        needed = ".".join(map(str, first))
        raise UnsupportedError(f"{arch} needs {toolchain.kind} {needed} or later, this is {said!r}; {_INSTALL}")
