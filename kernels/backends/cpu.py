"""The CPU backend: one C++ source, one compiler command."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from gemmill.arch import Arch

from kernels.config import KernelConfig
from kernels.toolchain import Toolchain, find_toolchain

__all__ = ["TEMPLATE", "commands", "compile_flags", "find_toolchain", "flags", "resources"]

TEMPLATE = "cpu.cpp.j2"

COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    # The micro-kernel's multiply and add become one FMA where there is one; nothing else of fast-math is wanted.
    "-ffp-contract=fast",
    # Nobody reads errno or the exception flags, and branch-free conversions vectorise without them.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
)

# Only libc (and libpthread, libm where they are apart) may be needed at run time.
LINK_FLAGS = ("-shared", "-pthread", "-s", "-Wl,--as-needed")

# What keeps a compiler's own run-time library out of the result.
_RUNTIME_FLAGS = {"gcc": ("-static-libgcc",), "clang": ("-nostdlib++",), "zig": ("-nostdlib++",)}

# Feature flags as zig names CPUs; without one it would take this machine's.
_ZIG_CPU = {
    "generic": "baseline",
    "x86-64-v3": "x86_64_v3",
    "x86-64-v4": "x86_64_v4",
    "x86-64-v4-bf16": "x86_64_v4+avx512bf16+avx512vbmi",
}


def compile_flags(arch: Arch, kind: str = "gcc") -> list[str]:
    """Return the compile flags of an arch, as a compiler of `kind` (gcc, clang, zig) takes them."""
    target = [f"-mcpu={_ZIG_CPU[arch.name]}"] if kind == "zig" else list(arch.flags)
    return [*COMPILE_FLAGS, *target]


def flags(config: KernelConfig, toolchain: Toolchain) -> dict[str, Any]:
    """Return every flag that can change the artefact, by step."""
    return {
        "compile": compile_flags(config.arch_row, toolchain.kind),
        "link": [*LINK_FLAGS, *_RUNTIME_FLAGS[toolchain.kind]],
        # What `generic` means.
        "machine": platform.machine(),
    }


def commands(config: KernelConfig, source: Path, native: Path, library: Path, toolchain: Toolchain) -> list[list[str]]:
    """Return the one command that makes `library` from `source`."""
    step = flags(config, toolchain)
    return [
        [
            *toolchain.command,
            *step["compile"],
            "-I",
            str(native),
            *step["link"],
            str(source),
            "-o",
            str(library),
        ]
    ]


def resources(config: KernelConfig, output: str, work: Path) -> tuple[dict[str, Any], str]:
    """Return nothing, and the whole output: C++ compilers do not report registers or spills."""
    return {}, output
