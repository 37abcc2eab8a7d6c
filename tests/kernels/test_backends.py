"""Backends: one a column value of the arch table, each with everything that the factory calls."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
from factory import config
from gemmill.arch import ARCHS
from gemmill.errors import ArgumentError, UnsupportedError

from kernels import backends
from kernels.backends import Backend, find_backend
from kernels.catalogue import load_catalogue
from kernels.toolchain import Toolchain

BUILT = sorted(p.stem for p in Path(backends.__file__).parent.glob("*.py") if p.stem != "__init__")
MEMBERS = [name for name, member in inspect.getmembers(Backend, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("arch", ARCHS)
def test_every_arch_has_a_backend_or_says_which_is_missing(arch: str) -> None:
    name = ARCHS[arch].backend
    if name in BUILT:
        assert find_backend(arch).TEMPLATE.endswith(".j2")
    else:
        with pytest.raises(UnsupportedError, match=f"cannot build for {arch}: the {name} backend is not built yet"):
            find_backend(arch)


def test_unknown_arch() -> None:
    with pytest.raises(ArgumentError, match="known archs are"):
        find_backend("gfx9")


@pytest.mark.parametrize("name", [name for name in BUILT if name in {row.backend for row in ARCHS.values()}])
def test_backend_has_what_the_protocol_says(name: str) -> None:
    module = importlib.import_module(f"kernels.backends.{name}")
    for member in MEMBERS:
        wanted = list(inspect.signature(getattr(Backend, member)).parameters)[1:]
        assert list(inspect.signature(getattr(module, member)).parameters)[: len(wanted)] == wanted, member


@pytest.mark.parametrize("kind", ["gcc", "clang", "zig"])
@pytest.mark.parametrize("arch", [row.name for row in ARCHS.values() if row.backend == "cpu"])
def test_cpu_commands_stay_within_their_contract(arch: str, kind: str) -> None:
    toolchain = Toolchain(kind, ("/opt/c++",), {})
    for one in load_catalogue().configs(arch)[:2]:
        backend = find_backend(arch)
        flags = backend.flags(one, toolchain)
        commands = backend.commands(one, Path("kernel.cpp"), Path("native"), Path("kernel.so"), toolchain)
        assert "/" not in str(flags), "no path may enter the key"
        words = [word for argv in commands for word in argv]
        assert {"kernel.cpp", "native", "kernel.so"} <= set(words)
        assert commands[0][0] == "/opt/c++"
        used = set(words) - {"kernel.cpp", "native", "kernel.so", "/opt/c++", "-I", "-o"}
        assert used == {*flags["compile"], *flags["link"]}, "what is used must be in the key, and the other way round"


def test_a_broken_backend_is_not_taken_for_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'something_else'", name="something_else")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="something_else"):
        find_backend(config().arch)
