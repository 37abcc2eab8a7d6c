"""What runs before, or without, a CPU that has the kernel's instructions must not contain any of them."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess

import pytest
from native_build import generate, one

from kernels.backends import cpu
from kernels.paths import CHECKOUT

BASELINE = re.compile(
    r"dispatcher_\w+|gemmill_\w+|.*(check_cpu|missing_cpu_feature|close_at_unload|7MessageC|7Messagels|Pool5close).*"
)
BEYOND = re.compile(r"[yz]mm|%k[0-7]|\tv[a-z]|\t(shlx|shrx|sarx|rorx|andn|bzhi|mulx|lzcnt|tzcnt|movbe|popcnt)")


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("objdump"), reason="disassembles x86-64 code")
@pytest.mark.parametrize("arch", ["x86-64-v3", "x86-64-v4", "x86-64-v4-bf16"])
def test_entries_need_the_baseline_alone(arch, toolchain, tmp_path):
    config = one(arch, "fp8", "rcr", "preshufflequant")
    library = tmp_path / "kernel.so"
    (command,) = cpu.commands(config, generate(config, tmp_path), CHECKOUT.native, library, toolchain)
    subprocess.run([word for word in command if word != "-s"], check=True)
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True
    )
    seen, wrong, function = set(), [], ""
    for line in listing.stdout.splitlines():
        head = re.match(r"[0-9a-f]+ <(.*)>:", line)
        if head:
            function = head[1]
        elif BASELINE.fullmatch(function):
            seen.add(function)
            if BEYOND.search(line):
                wrong.append(f"{function}: {line.strip()}")
    assert {"dispatcher_initialize", "gemmill_gemm_aquant", "dispatcher_cleanup"} <= seen
    assert not wrong
