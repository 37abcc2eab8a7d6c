"""The provider ck_tile: the same kernels out of AMD's Composable Kernel, for those who have its headers and HIP's.

    kernel.cpp --clang, device--> kernel.s --as--> kernel.o --lld--> kernel.co --incbin--> image.o
    kernel.cpp --clang, host, with Composable Kernel--> plan.o
    kernel.cpp + image.o + plan.o --clang or zig, host--> kernel.so

The compiler is a clang, or zig, which has one. What a kernel becomes, or why it can't be, says kernels/ck_instance.py;
what is shared with gemmill's own AMD kernels (the driver by dlopen, the C ABI, the embedding) is native/hip. No device
library is linked.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import platform
import re
import shlex
from pathlib import Path
from typing import Any

from gemmill.errors import UnsupportedError

from kernels import amd_compiler, ck_instance
from kernels import toolchain as cxx
from kernels.backends import hip
from kernels.ck_headers import Headers, find_headers
from kernels.code_object import read_kernels
from kernels.config import KernelConfig
from kernels.hip_headers import find_hip, rocm_root
from kernels.toolchain import Toolchain

__all__ = ["TEMPLATE", "commands", "context", "find_toolchain", "flags", "notes", "resources", "why_not"]

TEMPLATE = "ck_tile.cpp.j2"
ASSEMBLY = "kernel.s"

_COMMON = ("-x", "hip", "-std=c++17", "-nogpulib", "-fuse-cuid=none", "-DNDEBUG", "-D__HIP_PLATFORM_AMD__")
# zig's own clang knows no C++ library and no HIP; commands() names both.
_OF_KIND = {"zig": (f"--target={platform.machine()}-linux-gnu", "-nogpuinc", "-nostdinc", "-nostdinc++")}
# Composable Kernel's own build adds -amdgpu-early-inline-all: with clang 19 that takes minutes a kernel.
DEVICE_FLAGS = ("--offload-device-only", "-mcode-object-version=5", "-O3", "-S")
PLAN_FLAGS = ("--offload-host-only", "-O2", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-c")
HOST_FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
    *("-Wall", "-Wextra", "-DGEMMILL_HOST", "-shared", "-pthread", "-s", "-Wl,--gc-sections", "-Wl,--as-needed"),
    "-ldl",
)
# The C++ library goes into ours, out of sight.
_STATIC = {
    "clang": ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,--no-undefined"),
    "zig": ("-mcpu=baseline",),
}
_OF_ARCH = {"gfx950": ("-DCK_GFX950_SUPPORT", "-DCK_TILE_USE_OCP_FP8=1")}

# zig 0.15 has clang 20.
FIRST = {"gfx942": {"clang": (19,), "zig": (0, 15)}, "gfx950": {"clang": (20,), "zig": (0, 15)}}


def find_toolchain(wanted: str | None, memo: Path | None) -> Toolchain:
    """Return clang or zig, and as its identity also lld's, HIP's and Composable Kernel's.

    Raises
    ------
    UnsupportedError
        Where one of them is missing, with what to install; or `wanted` is another compiler.
    """
    order = (str(rocm_root() / "llvm/bin/clang++"), "clang++", "zig", "hipcc")
    found = amd_compiler.find_compiler(wanted, memo, FIRST, order)
    headers = {"hip": find_hip().identity, "composable_kernel": find_headers().digest}
    return dataclasses.replace(found, identity={**found.identity, **headers})


def why_not(config: KernelConfig) -> str | None:
    """Say why the headers at hand can't do a kernel; None where they can."""
    return ck_instance.why_not(config, find_headers())


def notes(config: KernelConfig) -> list[str]:
    """Return what a user of the kernel must know."""
    headers = find_headers()
    said = [
        "ck_tile: an instance of AMD's Composable Kernel; compiled, neither simulated nor tested on hardware by "
        f"gemmill; it takes N in multiples of {_limits(config, headers)['n']} and K in multiples of {config.tile[2]}"
    ]
    if ck_instance.has_race(config, headers):
        k = 2 * config.tile[2]
        said.append(
            f"ck_tile decode: the AQuant memory pipeline of these headers has a race when K is a multiple of {k}: in "
            "its even tail no barrier stands between the LDS reads of one tile and the writes of the next. The library "
            f"refuses such K and has no instance for it, so no selftest, here or anywhere, vouches for one"
        )
    if config.variant_row.a == "int4":
        said.append("ck_tile int4: A is permuted into the workspace by a kernel of its own before every product")
    return said


def context(config: KernelConfig) -> dict[str, Any]:
    """Return what the template instantiates.

    Raises
    ------
    UnsupportedError
        If the headers can't do the kernel.
    """
    headers = find_headers()
    reason = ck_instance.why_not(config, headers)
    if reason:
        raise UnsupportedError(f"{config.id}: {reason}")
    return ck_instance.context(config, headers)


def flags(config: KernelConfig, toolchain: Toolchain) -> dict[str, Any]:
    """Return every flag that can change the artefact, by step."""
    amd_compiler.require(toolchain, config.arch, FIRST)
    common = [*_COMMON, *_OF_KIND.get(toolchain.kind, ()), f"--offload-arch={config.arch}"]
    common += _OF_ARCH.get(config.arch, ())
    native = hip.flags(config, toolchain)
    return {
        "device": [*common, *DEVICE_FLAGS],
        "assemble": native["assemble"],
        # What is not defined here would be looked for when a user loads the module.
        "link": [*native["link"], "--no-undefined"],
        "image": native["image"],
        "plan": [*common, *PLAN_FLAGS],
        "host": [*HOST_FLAGS, *_STATIC[toolchain.kind]],
        "machine": platform.machine(),
    }


def commands(config: KernelConfig, source: Path, native: Path, library: Path, toolchain: Toolchain) -> list[list[str]]:
    """Return the six commands that make `library` from `source`."""
    step = flags(config, toolchain)
    ours = ["-I", str(native)]
    ck = [*ours, *_system_headers(native, toolchain)]
    clang = amd_compiler.clang(toolchain)
    return [
        [*clang, *step["device"], *ck, str(source), "-o", ASSEMBLY],
        [*clang, *step["assemble"], ASSEMBLY, "-o", "kernel.o"],
        [*amd_compiler.lld(toolchain), *step["link"], "kernel.o", "-o", hip.CODE_OBJECT],
        [*clang, *step["image"], *ours, os.devnull, "-o", "image.o"],
        [*clang, *step["plan"], *ck, str(source), "-o", "plan.o"],
        [*toolchain.command, *ours, str(source), "image.o", "plan.o", *step["host"], "-o", str(library)],
    ]


def _system_headers(native: Path, toolchain: Toolchain) -> list[str]:
    """Return the flags that name others' headers: as system headers, so that their warnings are not ours."""
    headers, hip_root = find_headers().root, find_hip().root
    ck = ["-isystem", str(headers), f"-ffile-prefix-map={headers}=ck"]  # none of their paths gets into what is made
    if toolchain.kind != "zig":
        return [*ck, f"--rocm-path={hip_root}"]
    # `zig c++` knows the library and takes no HIP, `zig clang` the other way round: the one says what the other needs.
    said = cxx.ask(toolchain.command, "-###", "-c", "-x", "c++", os.devnull)
    words = [word for line in said.splitlines() if line.lstrip().startswith(('"', "/")) for word in shlex.split(line)]
    pairs = [pair for pair in itertools.pairwise(words) if pair[0] in ("-isystem", "-D")]
    library = [word for pair in pairs if pair[0] == "-D" and "LIBC" in pair[1] for word in pair]
    # It names them from the working directory where it can; the commands run in another one.
    folders = [str(Path(word).absolute()) for flag, word in pairs if flag == "-isystem"]
    library += [word for folder in folders for word in ("-isystem", folder)]
    stubs = native / "hip" / "ck_tile" / "zig"
    return [*library, "-isystem", str(stubs), "-isystem", str(hip_root / "include"), *ck]


def resources(config: KernelConfig, output: str, work: Path) -> tuple[dict[str, Any], str]:
    """Return registers, LDS, matrix instructions and the like of each instance, by its suffix, and the whole output.

    Raises
    ------
    UnsupportedError
        If an instance has no matrix instruction: a warp tile that Composable Kernel has none for compiles to zeros.
    """
    figures = read_kernels(work / hip.CODE_OBJECT)
    assembly = (work / ASSEMBLY).read_text(encoding="utf-8", errors="replace")
    found = {}
    for one in context(config)["instances"]:
        name = f"{config.name}_{one['suffix']}"
        body = re.search(rf"^{name}:(.*?)^\.Lfunc_end", assembly, re.MULTILINE | re.DOTALL)
        count = len(re.findall(r"\bv_mfma_", body[1])) if body else 0
        if not count:
            raise UnsupportedError(f"{name} has no matrix instruction: its results would be zeros")
        found[one["suffix"]] = {**figures[name], "matrix_instructions": count}
    return found, output


def _limits(config: KernelConfig, headers: Headers) -> dict[str, int]:
    limits: dict[str, int] = ck_instance.context(config, headers)["limits"]
    return limits
