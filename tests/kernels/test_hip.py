"""The HIP backend: what its compilers are asked for, and what comes out of them, read from the files themselves."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from gemmill.errors import GemmillError, UnsupportedError

from kernels import amd_compiler, process
from kernels.backends import hip
from kernels.build import Build
from kernels.catalogue import DEFAULT, load_catalogue
from kernels.code_object import read_kernels
from kernels.codegen import Codegen
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths
from kernels.toolchain import Toolchain, compiler_environment, numbered

GFX = ("gfx90a", "gfx942", "gfx950")
LDS_LIMIT = {"gfx90a": 64 * 1024, "gfx942": 64 * 1024, "gfx950": 160 * 1024}
ELF_MACHINE = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx950": 0x4F}

ZIG = Toolchain("zig", ("/opt/zig", "c++"), {"version": "zig 0.15.2"})
CLANG = Toolchain("clang", ("/opt/clang++",), {"version": "Debian clang version 20.1.2"})


def kernel(arch: str, variant: str = "fp8", layout: str = "rcr", family: str = "decode") -> KernelConfig:
    (config,) = load_catalogue().configs(arch, variant=variant, layout=layout, family=family)
    return config


# ---- Toolchains and commands -----------------------------------------------------------------------------


@pytest.mark.parametrize("toolchain", [ZIG, CLANG], ids=["zig", "clang"])
@pytest.mark.parametrize("arch", GFX)
def test_commands_stay_within_their_contract(arch: str, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd_compiler, "lld", lambda toolchain: ["ld.lld"])
    config = kernel(arch)
    flags = hip.flags(config, toolchain)
    commands = hip.commands(config, Path("kernel.cpp"), Path("native"), Path("kernel.so"), toolchain)
    words = [word for argv in commands for word in argv]
    assert {"kernel.cpp", "native", "kernel.so"} <= set(words)
    assert not [word for word in words if "native/" in word], "each path is a word of its own"
    for step, argv in zip(("device", "assemble", "link", "image", "host"), commands, strict=True):
        assert set(flags[step]) <= set(argv), "a flag that is not used"
    assert f"--offload-arch={arch}" in commands[0] and "-mcode-object-version=5" in commands[0]


@pytest.mark.parametrize(
    ("arch", "kind", "version", "needed"),
    [
        ("gfx90a", "clang", "Debian clang version 15.0.6", "clang 16 or zig 0.12"),
        ("gfx942", "clang", "clang version 16.0.6", "clang 17 or zig 0.12"),
        ("gfx950", "clang", "AMD clang version 19.0.0git", "clang 20 or zig 0.15"),
        ("gfx950", "zig", "zig 0.14.1", "clang 20 or zig 0.15"),
        ("gfx90a", "zig", "zig 0.11.0", "clang 16 or zig 0.12"),
    ],
)
def test_an_old_compiler_is_refused_with_what_is_needed(arch: str, kind: str, version: str, needed: str) -> None:
    old = Toolchain(kind, ("/opt/compiler",), {"version": version})
    with pytest.raises(UnsupportedError, match=f"{arch} needs {needed}, or later, this is '{version}'"):
        hip.flags(kernel(arch), old)


# ---- What is built ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return hip.find_toolchain(None, CHECKOUT.build / "test" / "memo" / "toolchain.json")


def compile_device(config: KernelConfig, folder: Path, toolchain: Toolchain) -> tuple[str, Path]:
    """Run the device steps in a directory; return the assembly and the code object."""
    source = Codegen(Paths.of(CHECKOUT.root, build=CHECKOUT.build / "test")).generate(config)
    shutil.copy(source, folder / "kernel.cpp")
    (folder / "native").symlink_to(CHECKOUT.native)
    commands = hip.commands(config, Path("kernel.cpp"), Path("native"), Path("kernel.so"), toolchain)
    for argv in commands[:3]:
        code, out, err = process.run(argv, 120, cwd=folder, env=compiler_environment())
        assert code == 0 and not out and not err, err
    return (folder / "kernel.s").read_text(), folder / hip.CODE_OBJECT


def count(assembly: str, instruction: str) -> int:
    return len(re.findall(rf"^\s+{instruction}", assembly, re.MULTILINE))


MATRIX = {
    ("gfx90a", "fp8"): "v_mfma_f32_16x16x16bf16_1k",
    ("gfx90a", "bf8"): "v_mfma_f32_16x16x16bf16_1k",
    ("gfx942", "fp8"): "v_mfma_f32_16x16x32_fp8_fp8",
    ("gfx942", "bf8"): "v_mfma_f32_16x16x32_bf8_bf8",
    ("gfx950", "fp8"): "v_mfma_scale_f32_16x16x128_f8f6f4",
    ("gfx950", "bf8"): "v_mfma_scale_f32_16x16x128_f8f6f4",
}


@pytest.mark.parametrize("family", ["decode", "preshufflequant"])
@pytest.mark.parametrize(("variant", "layout"), [("fp8", "rcr"), ("bf8", "crr"), ("bf8i4", "rrr")])
@pytest.mark.parametrize("arch", GFX)
def test_machine_code(arch: str, variant: str, layout: str, family: str, tmp_path: Path, toolchain: Toolchain) -> None:
    config = kernel(arch, variant, layout, family)
    assembly, linked = compile_device(config, tmp_path, toolchain)
    # The right matrix instruction, and no other.
    wanted = MATRIX[arch, variant[:3]]
    assert count(assembly, "v_mfma") == count(assembly, re.escape(wanted)) > 0
    if arch == "gfx950":
        formats = set(re.findall(r"^\s+v_mfma_scale.*?(cbsz:\d blgp:\d|$)", assembly, re.MULTILINE))
        assert formats == ({""} if variant.startswith("fp8") else {"cbsz:1 blgp:1"})
    # 16 bytes an access where it counts; nothing goes through flat addresses or scratch.
    assert count(assembly, "global_load_dwordx4") >= 2
    assert count(assembly, "ds_read_b128") >= 4
    assert count(assembly, "global_store_dwordx4") == 1
    assert count(assembly, "(flat|scratch|buffer)_") == 0
    assert count(assembly, "s_barrier") >= 4
    figures = read_kernels(linked)[config.name]
    assert figures["scratch_bytes"] == figures["vgpr_spills"] == figures["sgpr_spills"] == 0
    assert figures["threads"] == 256
    assert figures["argument_bytes"] == 80
    # Two waves a SIMD at least; CDNA2 and 3 have 512 registers a lane and SIMD.
    assert figures["vgprs"] <= 256 and figures["agprs"] == 0
    # One buffer of A, B and scales, or two.
    element = 2 if arch == "gfx90a" else 1
    one = (16 + 64) * 256 * element + 16 * 2 * 4
    two = family == "preshufflequant" and 2 * one <= LDS_LIMIT[arch]
    assert figures["lds_bytes"] == one * (2 if two else 1)
    data = linked.read_bytes()
    assert data[:4] == b"\x7fELF" and data[18] == 224 and data[48] == ELF_MACHINE[arch]


SYSTEM_CLANGS = [name for name in ("clang++", *numbered("clang++")) if shutil.which(name)]


@pytest.mark.parametrize("arch", GFX)
@pytest.mark.parametrize("name", SYSTEM_CLANGS or ["no clang++ is installed"])
def test_a_clang_of_the_system(name: str, arch: str, tmp_path: Path) -> None:
    """Each builds what its release knows, as zig does, and refuses the rest; its kernels have keys of their own."""
    memo = CHECKOUT.build / "test" / "memo" / "toolchain.json"
    try:
        found = hip.find_toolchain(name, memo)
    except UnsupportedError as error:
        pytest.skip(str(error))
    configs = (kernel(arch), kernel(arch, "bf8i4", "crr", "preshufflequant"))
    if not amd_compiler.does_for(found, arch, hip.FIRST):
        with pytest.raises(UnsupportedError, match=f"{arch} needs clang"):
            hip.flags(configs[0], found)
        return
    for number, config in enumerate(configs):
        folder = tmp_path / str(number)
        folder.mkdir()
        assembly, linked = compile_device(config, folder, found)
        assert count(assembly, "v_mfma") == count(assembly, re.escape(MATRIX[arch, config.variant[:3]])) > 0
        figures = read_kernels(linked)[config.name]
        assert figures["scratch_bytes"] == figures["vgpr_spills"] == figures["sgpr_spills"] == 0
        assert figures["vgprs"] <= 256 and figures["lds_bytes"] <= LDS_LIMIT[arch]
    paths = Paths.of(CHECKOUT.root, cache=tmp_path / "cache", build=CHECKOUT.build / "test")
    outcome = Build(paths, name).compile(configs[0])
    assert outcome.ok and not outcome.message, outcome.message
    assert outcome.key != Build(paths, "zig").state(configs[0]).key


WAVE_OPERATIONS = """
#include "hip/device.h"
namespace gemmill::hip {
struct Args { unsigned *in; unsigned long long *out; };
struct Impl {
    static constexpr int kThreads = 64;
    static void run(const Args& args) {
        const u32 x = global_load<u32>(args.in + thread_index());
        const u64 votes = ballot(x > 7) + any(x == 3) + all(x < 5);
        global_store<u64>(args.out + thread_index(), votes + shuffle(x, x) + shuffle_xor(x, 32));
    }
};
GEMMILL_KERNEL(wave_operations, Impl, Args)
}
"""


@pytest.mark.parametrize("arch", GFX)
def test_shuffles_and_votes_in_machine_code(arch: str, tmp_path: Path, toolchain: Toolchain) -> None:
    source = tmp_path / "kernel.cpp"
    source.write_text(WAVE_OPERATIONS)
    commands = hip.commands(kernel(arch), source, CHECKOUT.native, Path("kernel.so"), toolchain)
    code, out, err = process.run(commands[0], 120, cwd=tmp_path, env=compiler_environment())
    assert code == 0 and not out and not err, err
    assembly = (tmp_path / "kernel.s").read_text()
    assert count(assembly, "ds_bpermute_b32") == 2
    assert count(assembly, r"v_cmp_\w+_u32\S* (vcc|s\[)") >= 3, "a vote is a comparison into a scalar pair"


def test_the_same_source_gives_the_same_code_object_anywhere(tmp_path: Path, toolchain: Toolchain) -> None:
    objects = []
    for folder in (tmp_path / "a", tmp_path / "another place ü"):
        folder.mkdir()
        objects.append(compile_device(kernel("gfx942"), folder, toolchain)[1].read_bytes())
    assert objects[0] == objects[1]


def test_every_kernel_of_an_arch_fits(toolchain: Toolchain) -> None:
    """What the catalogue has is within the arch's LDS and divides among its threads; see the static assertions."""
    for arch in GFX:
        for config in load_catalogue().configs(arch):
            assert config.tile[2] % 128 == 0
            assert config.warps[0] * config.warps[1] * 64 <= 1024


@pytest.mark.parametrize(("variant", "layout"), [("fp8", "rcr"), ("fp8i4f32", "crr")])
@pytest.mark.parametrize("family", ["decode", "preshufflequant"])
@pytest.mark.parametrize("arch", GFX)
def test_large_tiles(arch: str, family: str, variant: str, layout: str, tmp_path: Path, toolchain: Toolchain) -> None:
    """No spills, no scratch, as many waves as the block has; gfx950's larger ones use LDS that the others lack."""
    large = load_catalogue(DEFAULT.with_name("large_tiles.toml"))
    sizes = []
    for number, config in enumerate(large.configs(arch, variant=variant, layout=layout, family=family)):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, linked = compile_device(config, folder, toolchain)
        figures = read_kernels(linked)[config.name]
        assert figures["scratch_bytes"] == figures["vgpr_spills"] == figures["sgpr_spills"] == 0
        waves = config.warps[0] * config.warps[1]
        assert figures["threads"] == 64 * waves and figures["vgprs"] <= 512 // max(1, waves // 4)
        assert figures["lds_bytes"] <= LDS_LIMIT[arch]
        sizes.append(figures["lds_bytes"])
    assert (max(sizes) > LDS_LIMIT["gfx942"]) == (arch == "gfx950")


def test_built_library(tmp_path: Path) -> None:
    paths = Paths.of(CHECKOUT.root, cache=tmp_path / "cache", build=CHECKOUT.build / "test")
    build = Build(paths)
    config = kernel("gfx942", "fp8i4")
    outcome = build.compile(config)
    assert outcome.ok and not outcome.message, outcome.message
    found = build.state(config)
    assert found.object is not None
    resources = found.object.manifest["build"]["resources"]
    assert resources["vgprs"] > 0 and resources["lds_bytes"] == 20608 and resources["scratch_bytes"] == 0
    headers = found.object.manifest["inputs"]["headers"]
    assert {"hip/gemm_aquant.h", "hip/host_abi.h", "hip/image.S", "abi.h"} <= set(headers)
    assert not [name for name in headers if "sim/" in name], "the simulator is no part of a kernel"


def test_a_spill_is_a_build_failure(tmp_path: Path) -> None:
    """A tile that needs more registers than there are."""
    large = replace(kernel("gfx950", family="preshufflequant"), tile=(512, 256, 128))
    failed = Build(Paths.of(CHECKOUT.root, cache=tmp_path / "cache", build=tmp_path / "build")).compile(large)
    assert not failed.ok
    assert re.search(r"spills: .*(vgpr_spills|sgpr_spills|scratch_bytes) = \d+.*needed are zeros", failed.message)


def test_a_tile_beyond_lds_does_not_compile(tmp_path: Path) -> None:
    large = replace(kernel("gfx942"), tile=(16, 512, 256))
    failed = Build(Paths.of(CHECKOUT.root, cache=tmp_path / "cache", build=tmp_path / "build")).compile(large)
    assert not failed.ok and "the tile does not fit in LDS" in failed.message


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01" + bytes(58), b"no ELF file at all"])
def test_what_is_no_code_object(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "kernel.co"
    path.write_bytes(content)
    with pytest.raises(GemmillError, match="is no AMD GPU code object with metadata"):
        read_kernels(path)
