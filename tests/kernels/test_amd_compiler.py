"""Which compiler AMD kernels are built with, of those that are there; what is said where none does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from gemmill.errors import UnsupportedError

from kernels import amd_compiler
from kernels.backends import ck_tile, hip
from kernels.toolchain import Toolchain

ORDER = ("zig", "/opt/rocm/llvm/bin/clang++", "clang++", "hipcc")
ZIG_OLD, ZIG_NEW = "zig 0.13.0", "zig 0.17.1"
ROCM, OLD, NEW = "AMD clang version 20.0.0git", "Debian clang version 19.1.7", "clang version 22.1.8"
GCC = "gcc version 14.2.0"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the compilers that are installed, by name; a test fills it in."""
    installed: dict[str, str] = {}

    def find(name: str, memo: Path | None) -> Toolchain:
        if name not in installed:
            raise UnsupportedError(f"there is no {name}")
        kind = next(kind for kind in ("zig", "clang", "gcc") if kind in installed[name])
        return Toolchain(kind, (f"/bin/{name}",), {"version": installed[name]})

    monkeypatch.setattr(amd_compiler.cxx, "find_toolchain", find)
    monkeypatch.setattr(amd_compiler.cxx, "numbered", lambda name: [n for n in installed if n.startswith(f"{name}-")])
    monkeypatch.setattr(amd_compiler.cxx, "ask", lambda command, *words: "LLD 1.2\n")
    monkeypatch.setattr(
        amd_compiler.shutil, "which", lambda name: str(Path("/bin") / name) if name in installed else None
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return installed


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        ({"zig": ZIG_NEW, "clang++": NEW}, "zig"),
        ({"zig": ZIG_OLD, "clang++": NEW}, "clang++"),  # the first that knows every arch
        ({"zig": ZIG_OLD, "clang++": OLD}, "zig"),  # else the first that knows one
        ({ORDER[1]: ROCM, "clang++": NEW}, ORDER[1]),
        ({"clang++": OLD, "clang++-22": NEW, "clang++-19": OLD}, "clang++-22"),
        ({"clang++": GCC, "clang++-19": OLD}, "clang++-19"),
        ({"clang++-19": OLD, "hipcc": ROCM}, "hipcc"),
    ],
)
def test_the_order(installed: dict[str, str], chosen: str, here: dict[str, str]) -> None:
    here |= installed | {"ld.lld": ""}
    found = amd_compiler.find_compiler(None, None, hip.FIRST, ORDER)
    assert found.command == (f"/bin/{chosen}",)
    assert ("lld" in found.identity) == (found.kind == "clang"), "zig's release says which lld it has"


def test_what_is_wanted_is_taken(here: dict[str, str]) -> None:
    here |= {"zig": ZIG_NEW, "clang++": OLD, "g++": GCC, "ld.lld": ""}
    found = amd_compiler.find_compiler("clang++", None, hip.FIRST, ORDER)
    assert found.identity == {"version": OLD, "lld": "LLD 1.2"}
    with pytest.raises(UnsupportedError, match=f"gfx950 needs clang 20 or zig 0.15, or later, this is '{OLD}'"):
        amd_compiler.require(found, "gfx950", hip.FIRST)
    with pytest.raises(UnsupportedError, match=r"toolchain=g\+\+ is gcc, which has no AMD GPU targets; .*ziglang"):
        amd_compiler.find_compiler("g++", None, hip.FIRST, ORDER)


def test_lld_is_looked_for_beside_clang_then_by_its_number(here: dict[str, str]) -> None:
    clang = Toolchain("clang", ("/nowhere/llvm/clang++-19",), {"version": OLD})
    with pytest.raises(UnsupportedError, match=r"no ld\.lld for Debian clang .*`apt install lld-19`"):
        amd_compiler.lld(clang)
    for name, argv in (
        ("zig", ["/bin/zig", "ld.lld"]),
        ("ld.lld", ["/bin/ld.lld"]),
        ("ld.lld-19", ["/bin/ld.lld-19"]),
        ("/nowhere/llvm/ld.lld", ["/nowhere/llvm/ld.lld"]),
    ):
        here[name] = ""
        assert amd_compiler.lld(clang) == argv
    assert amd_compiler.lld(Toolchain("zig", ("/bin/zig", "c++"), {})) == ["/bin/zig", "ld.lld"]


@pytest.mark.parametrize(("installed", "said"), [({}, "found none"), ({"clang++": "clang version 12.0"}, "12.0")])
def test_a_missing_compiler_is_said_with_what_to_install(
    installed: dict[str, str], said: str, here: dict[str, str]
) -> None:
    here |= installed | {"ld.lld": ""}
    with pytest.raises(UnsupportedError) as caught:
        hip.find_toolchain(None, None)
    for words in ("looked for zig", said, "gfx942 needs clang 17 or zig 0.12, or later", "pip install ziglang"):
        assert words in str(caught.value)


def test_a_clang_without_lld_is_passed_over(here: dict[str, str]) -> None:
    here |= {"clang++": NEW}
    with pytest.raises(UnsupportedError, match=r"found no ld\.lld for clang version 22"):
        amd_compiler.find_compiler(None, None, hip.FIRST, ORDER)


def test_composable_kernel_needs_newer_ones() -> None:
    old = Toolchain("clang", ("/opt/clang++",), {"version": "clang version 18.1.8"})
    assert amd_compiler.does_for(old, "gfx942", hip.FIRST)
    assert not amd_compiler.does_for(old, "gfx942", ck_tile.FIRST)
