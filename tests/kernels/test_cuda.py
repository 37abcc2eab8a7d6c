"""The cuda backend, as far as it can be seen without a GPU: discovery, commands, resource figures, a built library."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest
from factory import ENVIRONMENT
from gemmill.errors import GemmillError, UnsupportedError

from kernels.backends import cuda
from kernels.build import Build
from kernels.catalogue import load_catalogue
from kernels.elf import read_elf
from kernels.paths import CHECKOUT, Paths
from kernels.toolchain import Toolchain

CONFIGS = load_catalogue().configs("sm_90a")

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemmill_fast' for 'sm_90a'
ptxas info    : Function properties for gemmill_fast
    {stack} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers
ptxas info    : Compile time = 1.000 ms
kernel.cpp(3): warning: something to look at
"""

ASK = """
import ctypes, json, sys
kernel = ctypes.CDLL(sys.argv[1])
kernel.gemmill_last_error.restype = kernel.dispatcher_get_kernel_name.restype = ctypes.c_char_p
kernel.gemmill_manifest.restype = ctypes.c_char_p
size, no = ctypes.c_int64, ctypes.c_void_p
def run(m, stride):
    return kernel.dispatcher_run_aquant_gemm(
        no(64), no(64), no(64), no(64), size(m), size(4), size(128), size(stride), size(1), size(128), size(4), size(1),
        1, None)
answers = []
for call in (lambda: run(-1, 128), lambda: run(2, 129), kernel.dispatcher_initialize, lambda: run(2, 128)):
    answers.append([call(), kernel.gemmill_last_error().decode()])
print(json.dumps({
    "name": kernel.dispatcher_get_kernel_name().decode(), "manifest": json.loads(kernel.gemmill_manifest()),
    "count": kernel.dispatcher_get_kernel_count(), "answers": answers,
}))
"""


def toolchain() -> cuda.CudaToolchain:
    return cuda.CudaToolchain("nvcc", ("/opt/nvcc",), {}, Path("/opt/include"), Toolchain("gcc", ("/opt/c++",), {}))


def test_commands_stay_within_their_contract() -> None:
    flags = cuda.flags(CONFIGS[0], toolchain())
    assert "/" not in str(flags), "no path may enter the key"
    device, host = cuda.commands(CONFIGS[0], Path("kernel.cpp"), Path("native"), Path("kernel.so"), toolchain())
    assert device[0] == "/opt/nvcc" and host[0] == "/opt/c++"
    assert {"kernel.cpp", "native", "kernel.cubin"} <= set(device) and {"kernel.cpp", "native", "kernel.so"} <= set(
        host
    )
    assert "-gencode=arch=compute_90a,code=sm_90a" in device


def test_resources_go_into_the_manifest_and_warnings_to_people() -> None:
    found, rest = cuda.resources(CONFIGS[0], REPORT.format(stack=0, spill=0))
    assert found == {"gemmill_fast": {"stack": 0, "spill_stores": 0, "spill_loads": 0, "registers": 168}}
    assert rest == "kernel.cpp(3): warning: something to look at"


def test_a_spill_fails_the_build() -> None:
    with pytest.raises(GemmillError, match="gemmill_fast spills registers \\(8 bytes stored\\)"):
        cuda.resources(CONFIGS[0], REPORT.format(stack=8, spill=8))


def test_cuda_home_without_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"CUDA_HOME=.*: there is no program .*/bin/nvcc"):
        cuda.find_nvcc()


def test_cuda_home_goes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("home/bin", "path"):
        program = tmp_path / folder / "nvcc"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert cuda.find_nvcc() == tmp_path / "path" / "nvcc"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert cuda.find_nvcc() == tmp_path / "home" / "bin" / "nvcc"


def test_a_built_library_answers_without_a_gpu(tmp_path: Path) -> None:
    try:
        cuda.find_toolchain()
    except UnsupportedError as error:
        pytest.skip(str(error))
    config = next(c for c in CONFIGS if (c.variant, c.layout, c.family) == ("fp8", "rcr", "decode"))
    build = Build(Paths.of(CHECKOUT.root, build=tmp_path / "build", cache=tmp_path / "cache"))
    done = build.compile(config)
    assert done.ok, done.message
    assert not done.message
    found = build.store.cache.read(done.key)
    resources = found.manifest["build"]["resources"]
    assert set(resources) == {"gemmill_fast", "gemmill_scalar"} and all(r["registers"] for r in resources.values())
    library = found.path / "kernel.so"
    assert "libcuda.so.1" not in read_elf(library).needed
    said = json.loads(
        subprocess.run(
            [sys.executable, "-c", ASK, str(library)], env=ENVIRONMENT, capture_output=True, text=True, check=True
        ).stdout
    )
    assert (said["name"], said["count"]) == (config.name, 1)
    assert (said["manifest"]["name"], said["manifest"]["backend"]) == (config.name, "cuda")
    (negative, text), (strided, stride), *rest = said["answers"]
    assert negative == -1 and text == "M = -1: expected at least 0"
    assert strided == -1 and stride.startswith("stride_A = 129: expected 128")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        for code, reason in rest:
            assert code == -2 and "libcuda.so.1 cannot be opened" in reason
