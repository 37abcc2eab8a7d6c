"""The whole C ABI under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer, then under ThreadSanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from native_build import HOST_CPUS, compile_program, generate, one

MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-fsanitize=thread",)

CASES = [
    (HOST_CPUS[-1], "fp8", "rcr", "decode", MEMORY),
    (HOST_CPUS[-2 % len(HOST_CPUS)], "fp8i4", "crr", "preshufflequant", MEMORY),
    (HOST_CPUS[-3 % len(HOST_CPUS)], "bf8", "ccr", "decode", MEMORY),
    (HOST_CPUS[0], "bf8i4f32", "rcr", "decode", MEMORY),
    (HOST_CPUS[-1], "fp8", "rrr", "preshufflequant", THREADS),
]


@pytest.mark.parametrize(("arch", "variant", "layout", "family", "sanitizers"), CASES)
def test_clean(arch, variant, layout, family, sanitizers, toolchain, tmp_path):
    if toolchain.kind == "zig":
        pytest.skip("zig carries no sanitizer libraries")
    config = one(arch, variant, layout, family)
    flags = [
        *("-O1", "-g", "-pthread", "-ffp-contract=fast", f'-DKERNEL="{generate(config, tmp_path)}"'),
        *config.arch_row.flags,
        *sanitizers,
    ]
    program = compile_program(Path(__file__).parent / "sanitized.cpp", tmp_path / "sanitized", toolchain, flags)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run([program], capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
