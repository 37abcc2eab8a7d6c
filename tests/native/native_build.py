"""Compile kernel libraries straight from the template: no cache, no selftest, no loader."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from gemmill.arch import ARCHS, why_not_host

from kernels.backends import cpu
from kernels.catalogue import load_catalogue
from kernels.codegen import Codegen
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths
from kernels.toolchain import Toolchain

HOST_CPUS = [row.name for row in ARCHS.values() if row.backend == "cpu" and why_not_host(row) is None]


def generate(config: KernelConfig, folder: Path) -> Path:
    """Render a kernel's source below `folder`."""
    return Codegen(Paths.of(CHECKOUT.root, build=folder)).generate(config)


def compile_kernel(config: KernelConfig, folder: Path, toolchain: Toolchain, extra: Sequence[str] = ()) -> Path:
    """Compile one kernel with `extra` flags; return the library. Warnings are failures."""
    library = folder / f"{config.arch}-{config.name}.so"
    (command,) = cpu.commands(config, generate(config, folder), CHECKOUT.native, library, toolchain)
    done = subprocess.run([*command, *extra], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, f"{config.id}: {done.stderr}"
    return library


def compile_program(source: Path, program: Path, toolchain: Toolchain, flags: Sequence[str]) -> Path:
    """Compile a C++ test program against the native headers."""
    command = [*toolchain.command, "-std=c++17", "-I", str(CHECKOUT.native), *flags, str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def one(arch: str, variant: str = "fp8", layout: str = "rcr", family: str = "decode") -> KernelConfig:
    """Return one kernel of the catalogue."""
    return load_catalogue().configs(arch, variant=variant, layout=layout, family=family)[0]


def sample(arch: str) -> list[KernelConfig]:
    """Return kernels that between them have every variant, layout and family."""
    picks = [
        *(("fp8", "rcr", "decode"), ("bf8", "rrr", "decode"), ("fp8i4", "crr", "decode"), ("bf8i4", "ccr", "decode")),
        *(("bf8", "ccr", "decode"), ("fp8i4f32", "rcr", "decode"), ("bf8i4f32", "rrr", "preshufflequant")),
        *(("fp8", "crr", "preshufflequant"), ("fp8i4", "rcr", "preshufflequant")),
    ]
    return [one(arch, *pick) for pick in picks]
