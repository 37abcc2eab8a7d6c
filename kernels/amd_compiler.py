"""Find what compiles for AMD GPUs: a clang and the lld that links its code objects. zig has both.

Each backend says which releases do for an arch (`Releases`), and in which order names are tried. Of what is there, the
first that does for every arch is taken, else the first that does for one.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gemmill.errors import UnsupportedError

from kernels import toolchain as cxx
from kernels.toolchain import Toolchain

# arch: kind of compiler: the first release of it that does.
Releases = Mapping[str, Mapping[str, tuple[int, ...]]]

INSTALL = (
    "`.venv/bin/pip install ziglang` brings one (anywhere), ROCm brings one, and so does `apt install clang-N lld-N`, "
    "where N is new enough"
)


def find_compiler(wanted: str | None, memo: Path | None, first: Releases, order: Sequence[str]) -> Toolchain:
    """Return a clang or zig; lld is part of its identity.

    Parameters
    ----------
    wanted : str, optional
        As for `kernels.toolchain.find_toolchain`; taken whatever its release, which `require` looks at.
    memo : Path, optional
        As for `kernels.toolchain.find_toolchain`.
    first : Releases
        What does for which arch.
    order : sequence of str
        Names or paths to try where nothing is wanted; after ``clang++`` come those with a number, newest first.

    Raises
    ------
    UnsupportedError
        Where there is none, with what was found and what to install; or `wanted` is another compiler, or has no lld.
    """
    if wanted:
        found = cxx.find_toolchain(wanted, memo)
        if found.kind not in ("zig", "clang"):
            raise UnsupportedError(f"toolchain={wanted} is {found.kind}, which has no AMD GPU targets; {INSTALL}")
        return _with_lld(found)
    able: list[Toolchain] = []
    looked = []
    for name in _names(order):
        try:
            found = _with_lld(cxx.find_toolchain(name, memo))
        except UnsupportedError as error:
            if shutil.which(name):
                looked.append(str(error))
            continue
        archs = [arch for arch in first if does_for(found, arch, first)]
        if len(archs) == len(first):
            return found
        looked.append(str(found))
        able += [found] if archs else []
    if able:
        return able[0]
    needs = [f"{arch} needs {_needed(first, arch)}" for arch in first]
    raise UnsupportedError(
        f"no compiler for AMD GPUs: looked for {', '.join(order)} and the Python package ziglang, found "
        f"{'; '.join(looked) or 'none'}; {'; '.join(needs)}; {INSTALL}"
    )


def require(toolchain: Toolchain, arch: str, first: Releases) -> None:
    """Refuse a compiler that is too old for an arch.

    Raises
    ------
    UnsupportedError
        With the release that is needed, and what this one says of itself.
    """
    if not does_for(toolchain, arch, first):
        said = str(toolchain.identity.get("version", ""))
        raise UnsupportedError(f"{arch} needs {_needed(first, arch)}, this is {said!r}; {INSTALL}")


def does_for(toolchain: Toolchain, arch: str, first: Releases) -> bool:
    """Tell whether a compiler is one that compiles for `arch`, and new enough."""
    needed = first[arch].get(toolchain.kind)
    return needed is not None and version(toolchain) >= needed


def version(toolchain: Toolchain) -> tuple[int, ...]:
    """Return the release: (19, 1, 7), or of zig (0, 15, 2)."""
    found = re.search(r"\d+(?:\.\d+)*", str(toolchain.identity.get("version", "")))
    return tuple(map(int, found[0].split("."))) if found else ()


def clang(toolchain: Toolchain) -> list[str]:
    """Return how the argv of clang itself begins."""
    return [toolchain.command[0], "clang"] if toolchain.kind == "zig" else list(toolchain.command)


def lld(toolchain: Toolchain) -> list[str]:
    """Return how the argv of lld begins: zig's, or beside clang, or with clang's number in PATH, or any there.

    Raises
    ------
    UnsupportedError
        If there is none.
    """
    if toolchain.kind == "zig":
        return [toolchain.command[0], "ld.lld"]
    for name in _lld_names(toolchain):
        found = shutil.which(name)
        if found:
            return [found, *(["ld.lld"] if Path(name).name == "zig" else [])]
    number = version(toolchain)[:1] or ("N",)
    raise UnsupportedError(f"no ld.lld for {toolchain}: `apt install lld-{number[0]}` brings one, so does ziglang")


def _with_lld(toolchain: Toolchain) -> Toolchain:
    if toolchain.kind != "clang":
        return toolchain
    linker = cxx.ask(lld(toolchain), "--version").strip()
    return dataclasses.replace(toolchain, identity={**toolchain.identity, "lld": linker})


def _names(order: Sequence[str]) -> Iterator[str]:
    for name in order:
        yield name
        if name == "clang++":
            yield from cxx.numbered(name)


def _lld_names(toolchain: Toolchain) -> Iterator[str]:
    folder = Path(toolchain.command[0]).resolve().parent
    yield str(folder / "ld.lld")
    yield from (f"ld.lld-{number}" for number in version(toolchain)[:1])
    yield "ld.lld"
    yield "zig"
    spec = importlib.util.find_spec("ziglang")
    yield from (f"{folder}/zig" for folder in (spec and spec.submodule_search_locations) or ())


def _needed(first: Releases, arch: str) -> str:
    return " or ".join(f"{kind} {'.'.join(map(str, release))}" for kind, release in first[arch].items()) + ", or later"
