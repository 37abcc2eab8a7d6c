"""The cuda backend, as far as it can be seen without a GPU: discovery, commands, resource figures, a built library."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from factory import ENVIRONMENT
from gemmill.errors import GemmillError, UnsupportedError
from support import find_compiler

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


LAUNCHES = """
__attribute__((section(".gemmill.launch"), used)) static const unsigned launches[2][2] = {{384, 200000}, {384, 100000}};
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a library that says what its launches take."""
    folder = tmp_path_factory.mktemp("work")
    argv = [find_compiler(), "-shared", "-fPIC", "-s", "-x", "c++", "-", "-o", folder / "kernel.so"]
    subprocess.run(argv, input=LAUNCHES, text=True, check=True)
    return folder


def test_resources_go_into_the_manifest_and_warnings_to_people(work: Path) -> None:
    found, rest = cuda.resources(CONFIGS[0], REPORT.format(stack=0, spill=0), work)
    assert found == {
        "gemmill_fast": {
            **{"stack": 0, "spill_stores": 0, "spill_loads": 0, "registers": 168, "static_shared_memory": 0},
            **{"threads": 384, "dynamic_shared_memory": 200000},
        },
        "gemmill_scalar": {"threads": 384, "dynamic_shared_memory": 100000},
    }
    assert rest == "kernel.cpp(3): warning: something to look at"


def test_static_shared_memory_is_what_ptxas_says(work: Path) -> None:
    report = REPORT.format(stack=0, spill=0).replace("used 16 barriers", "used 16 barriers, 1024 bytes smem")
    assert cuda.resources(CONFIGS[0], report, work)[0]["gemmill_fast"]["static_shared_memory"] == 1024


def test_a_spill_fails_the_build() -> None:
    with pytest.raises(GemmillError, match="gemmill_fast spills registers \\(8 bytes stored\\)"):
        cuda.resources(CONFIGS[0], REPORT.format(stack=8, spill=8), Path())


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


def test_a_script_on_path_is_followed_to_its_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "toolkit 13" / "bin"
    for program, text in (
        (home / "nvcc", f"#!/bin/sh\necho '#$ _SPACE_= '\necho '#$ _HERE_={home}' >&2\n"),
        (tmp_path / "bin" / "nvcc", f"#!/bin/sh\nexec '{home}/nvcc' \"$@\"\n"),
    ):
        program.parent.mkdir(parents=True)
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert cuda.find_nvcc() == home / "nvcc"


PARTS = {
    "bin/ptxas": "nvidia-cuda-nvcc",
    "nvvm/bin/cicc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda.h": "nvidia-cuda-runtime",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
    "include/nv/target": "nvidia-cuda-cccl",
}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder laid out as the PyPI packages of CUDA are, and leave no other nvcc to be found."""
    for root in ("cu13", "cu12"):
        for name in ("bin/nvcc", *PARTS):
            path = tmp_path / "nvidia" / root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia"), "/nowhere/nvidia"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec if name == "nvidia" else None)
    return tmp_path / "nvidia" / "cu13"


def test_nvcc_out_of_packages(packages: Path) -> None:
    assert cuda.find_nvcc() == packages / "bin" / "nvcc"
    assert cuda._include(packages / "bin" / "nvcc") == packages / "include"


@pytest.mark.parametrize("part", PARTS)
def test_a_package_that_is_missing_is_named(packages: Path, part: str) -> None:
    (packages / part).unlink()
    with pytest.raises(UnsupportedError, match=f"comes without {part}: `.*pip install {PARTS[part]}` brings it"):
        cuda.find_nvcc()


def test_without_any_nvcc_the_error_says_what_to_install(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/usr/local/cuda/bin/nvcc").exists():
        monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"no CUDA compiler: .*pip install -e '\.\[cuda\]'"):
        cuda.find_nvcc()


@pytest.mark.parametrize(
    ("variant", "layout", "family", "ahead"),
    [("fp8", "rcr", "decode", False), ("bf8i4f32", "rcr", "prefill", True)],
)
def test_a_built_library_answers_without_a_gpu(
    tmp_path: Path, variant: str, layout: str, family: str, ahead: bool
) -> None:
    try:
        cuda.find_toolchain()
    except UnsupportedError as error:
        pytest.skip(str(error))
    config = next(c for c in CONFIGS if (c.variant, c.layout, c.family) == (variant, layout, family))
    build = Build(Paths.of(CHECKOUT.root, build=tmp_path / "build", cache=tmp_path / "cache"))
    done = build.compile(config)
    assert done.ok, done.message
    assert not done.message
    found = build.store.cache.read(done.key)
    resources = found.manifest["build"]["resources"]
    assert all(r["registers"] for r in resources.values())
    if ahead:
        conversion = resources.pop("gemmill_convert")
        assert conversion["threads"] == 128 and not conversion["dynamic_shared_memory"]
    assert set(resources) == {"gemmill_fast", "gemmill_scalar", *(["gemmill_plain"] if ahead else [])}
    for entry in resources.values():
        assert entry["threads"] % 128 == 0 and 16 * 1024 < entry["dynamic_shared_memory"] <= 227 * 1024
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
