"""The generic kernels on another processor: built for AArch64 by zig, run by qemu."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from gemmill.layout import groups
from native_build import compile_program, generate, one
from problems import OUT_DTYPES, SHAPES, check, random_problem

from kernels.backends.cpu import COMPILE_FLAGS
from kernels.toolchain import find_toolchain

SYSTEM = Path("/usr/aarch64-linux-gnu/lib")  # where Debian and Ubuntu put the libraries of that processor

pytestmark = [
    pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="needs qemu-aarch64 (package qemu-user)"),
    pytest.mark.skipif(not SYSTEM.is_dir(), reason=f"needs {SYSTEM} (package libc6-arm64-cross)"),
    pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="needs the package ziglang"),
]

# An old C library, which zig has to build stubs of alone; nothing of the C++ library is needed.
TARGET = ("-target", "aarch64-linux-gnu.2.31", "-nostdlib++")


@pytest.mark.parametrize(
    ("variant", "layout", "family"),
    [("fp8", "rcr", "decode"), ("bf8i4", "ccr", "decode"), ("fp8i4f32", "crr", "preshufflequant")],
)
def test_product(variant, layout, family, tmp_path):
    config = one("generic", variant, layout, family)
    flags = [*(flag for flag in COMPILE_FLAGS if flag != "-O3"), "-O2", f'-DKERNEL="{generate(config, tmp_path)}"']
    program = compile_program(
        Path(__file__).parent / "call.cpp", tmp_path / "call", find_toolchain("zig"), [*flags, *TARGET]
    )
    problems = [random_problem(config, shape) for shape in SHAPES]
    itemsize = np.dtype(OUT_DTYPES[config.out]).itemsize
    sent = b""
    for p in problems:
        m, n, k = p.shape
        operands = [np.ascontiguousarray(x.storage).tobytes() for x in (p.a, p.aq, p.b)]
        sizes = (*map(len, operands), m * n * itemsize)
        sent += struct.pack("<11q", m, n, k, p.a.stride, p.aq.stride, p.b.stride, groups(k), *sizes)
        sent += b"".join(operands)
    command = ["qemu-aarch64", "-L", SYSTEM.parent, program]
    done = subprocess.run(command, input=sent, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    at = 0
    for p in problems:
        m, n, _ = p.shape
        c = np.frombuffer(done.stdout, OUT_DTYPES[config.out], m * n, at).reshape(m, n)
        check(config, p, c)
        at += c.nbytes
    assert at == len(done.stdout)
