"""Find a C++ compiler, and say what it is.

The identity that enters the key describes the compiler wherever it lies: its version text, its target, the digest of
the program that compiles (cc1plus, clang or zig, not the driver in front of it), the options that the driver or a
wrapper adds on its own, and the versions of assembler, linker and C library. Asking for all this starts a handful of
processes, so the answer is kept in a memo, beside size, times and inode of every file that it came from.

Variables through which a compiler would take options or headers that the key does not see are taken out of its
environment (`compiler_environment`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmill.cache import canonical_json
from gemmill.errors import UnsupportedError
from gemmill.files import signature, write_atomically

from kernels import process

NAMES = ("g++", "clang++", "zig")

_INSTALL = (
    "install one with `apt install g++` (Debian, Ubuntu), `dnf install gcc-c++` (Fedora), "
    "`xcode-select --install` (macOS) or `.venv/bin/pip install ziglang` (anywhere)"
)

_HIDDEN_INPUTS = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_RUN_PATH", "COMPILER_PATH"),
    *("GCC_EXEC_PREFIX", "GCC_COMPARE_DEBUG", "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "SOURCE_DATE_EPOCH"),
    *("CCC_OVERRIDE_OPTIONS", "CCC_ADD_ARGS", "COLLECT_GCC_OPTIONS", "LANG", "LANGUAGE", "TMPDIR"),
)

_PROBE_SECONDS = 120  # zig unpacks and builds things on its first start


@dataclass(frozen=True)
class Toolchain:
    """A compiler: how to call it, and what it is.

    Attributes
    ----------
    kind : str
        ``gcc``, ``clang`` or ``zig``.
    command : tuple of str
        How its argv begins.
    identity : dict
        What it is, wherever it lies; enters the key.
    """

    kind: str
    command: tuple[str, ...]
    identity: dict[str, Any]

    def __str__(self) -> str:
        """One line for people: version and how it is called."""
        return f"{self.identity.get('version', self.kind)} ({shlex.join(self.command)})"


def find_toolchain(wanted: str | None = None, memo: Path | None = None) -> Toolchain:
    """Return the C++ compiler to use.

    Parameters
    ----------
    wanted : str, optional
        A name (``g++``, ``clang++``, ``zig``, ``hipcc``), a path, or a command with arguments. Default: ``CXX``, then
        g++, clang++, zig, and the zig of the PyPI package ziglang. Where there is no g++ or clang++ of that name, the
        newest with a number (``clang++-19``) is meant; hipcc means the clang that it starts.
    memo : Path, optional
        A file that keeps what was learnt about a compiler, so that asking again costs a few stat calls.

    Raises
    ------
    UnsupportedError
        When there is none, with what to install; or when what was asked for is not a compiler we know.
    """
    asked = f"toolchain={wanted}" if wanted else f"CXX={os.environ['CXX']}" if os.environ.get("CXX") else ""
    if asked:
        command = _parse(asked.partition("=")[2])
        if command is None:
            raise UnsupportedError(
                f"{asked}: there is no such compiler; accepted are {', '.join(NAMES)}, hipcc, a path, or a command "
                f"line; {_INSTALL}"
            )
        return recall(command, memo, probe_cxx)
    for name in NAMES:
        command = _parse(name)
        if command is not None:
            return recall(command, memo, probe_cxx)
    raise UnsupportedError(f"no C++ compiler: looked for {', '.join(NAMES)} and the Python package ziglang; {_INSTALL}")


def compiler_environment(scratch: Path | None = None) -> dict[str, str]:
    """Return the environment that compilers run in.

    Parameters
    ----------
    scratch : Path, optional
        Where they put temporary files.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _HIDDEN_INPUTS}
    environment["LC_ALL"] = "C"
    if scratch is not None:
        environment["TMPDIR"] = str(scratch)
    return environment


@dataclass(frozen=True)
class Probe:
    """What asking a compiler gave: kind and identity, and the files that the answer came from."""

    kind: str
    identity: dict[str, Any]
    files: tuple[str, ...]


def recall(command: tuple[str, ...], memo: Path | None, probe: Callable[[tuple[str, ...]], Probe]) -> Toolchain:
    """Return the toolchain of a command: from the memo while its files are the same, else by asking it."""
    # PATH, because a driver finds its assembler there, and a wrapper its compiler.
    name = canonical_json([probe.__name__, *command, os.environ.get("PATH", "")])
    entries = _load(memo)
    known = entries.get(name)
    if isinstance(known, dict) and known.get("files") == _signatures(path for path, *_ in known.get("files", ())):
        return Toolchain(known["kind"], command, known["identity"])
    answer = probe(command)
    entries.pop(name, None)
    entries[name] = {"kind": answer.kind, "identity": answer.identity, "files": _signatures(answer.files)}
    _save(memo, entries)
    return Toolchain(answer.kind, command, answer.identity)


def probe_cxx(command: tuple[str, ...]) -> Probe:
    """Ask a C++ compiler what it is."""
    version = ask(command, "--version")
    folder = re.search(r"^InstalledDir: (.*)$", version, re.MULTILINE)
    if folder:
        return (
            _probe_zig(command, zig) if (zig := _zig_in(Path(folder[1]), command)) else _probe_driver("clang", command)
        )
    if "Free Software Foundation" in version:
        return _probe_driver("gcc", command)
    raise UnsupportedError(
        f"{shlex.join(command)} --version names neither gcc nor clang nor zig; it says: {version[:200]!r}"
    )


def _zig_in(folder: Path, command: tuple[str, ...]) -> Path | None:
    """Return the zig that said it is clang, installed in `folder`; None where that is clang, perhaps beside a zig."""
    if _is_zig(command[0]):  # before 0.14 it says that it is installed in /usr/bin
        return Path(command[0])
    zig = folder / "zig"
    if not zig.is_file():
        return None
    is_itself = Path(command[0]).resolve() == zig.resolve()
    return zig if is_itself or not any(folder.glob("clang*")) else None


def _probe_zig(command: tuple[str, ...], zig: Path) -> Probe:
    # The release carries its own compiler library and linker; for this machine it builds against the libc it finds.
    version = ask((str(zig),), "version").strip()
    library, headers = _probe_library(command)
    identity = {
        "kind": "zig",
        "version": f"zig {version}",
        "compiler": _digest(zig),
        "options": list(command[command.index("c++") + 1 :]) if "c++" in command else [],
        "library": library,
    }
    return Probe("zig", identity, (command[0], str(zig), *headers))


def _probe_driver(kind: str, command: tuple[str, ...]) -> Probe:
    """Probe gcc or clang through the commands that its driver would run to make a shared library."""
    dry = ask(command, "-###", "-shared", "-fPIC", "-x", "c++", os.devnull, "-o", "kernel.so")
    version = re.search(r"^.*\bversion \d.*$", dry, re.MULTILINE)
    target = re.search(r"^Target: (\S+)", dry, re.MULTILINE)
    steps = [shlex.split(line) for line in dry.splitlines() if line.startswith(" ") and "cc1" in line]
    if version is None or target is None or not steps:
        raise UnsupportedError(f"{shlex.join(command)} -### does not read as {kind}'s does; it says: {dry[:400]!r}")
    compiler = steps[0][0]
    if Path(compiler).name == "zig":  # behind a wrapper, and installed beside a clang
        return _probe_zig(command, Path(compiler))
    programs = {name: shutil.which(ask(command, f"-print-prog-name={name}").strip()) for name in ("as", "ld")}
    library, headers = _probe_library(command)
    driver = re.search(r"^COLLECT_GCC=(.*)$", dry, re.MULTILINE)
    identity = {
        "kind": kind,
        "version": version[0].strip(),
        "target": target[1],
        "compiler": _digest(Path(compiler)),
        "options": _own_options(steps[0]),
        "library": library,
        **{name: _describe_program(path) for name, path in programs.items() if path},
    }
    files = (command[0], compiler, driver and shutil.which(driver[1]), *programs.values(), *headers)
    return Probe(kind, identity, tuple(dict.fromkeys(path for path in files if path)))


def _probe_library(command: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Return the macros by which libstdc++, libc++ and glibc say which they are, and the headers that were read."""
    text = ask(command, "-x", "c++", "-E", "-dD", "-include", "cstddef", os.devnull)
    macros = r"^#define (__GLIBCXX__|_LIBCPP_VERSION|__GLIBC__|__GLIBC_MINOR__) (\S+)"
    headers = dict.fromkeys(re.findall(r'^# \d+ "(/[^"]+)"', text, re.MULTILINE))
    return dict(re.findall(macros, text, re.MULTILINE)), [path for path in headers if path != os.devnull]


def _describe_program(path: str) -> str:
    try:
        return ask((path,), "--version").partition("\n")[0]
    except UnsupportedError:  # Apple's linker has no such option
        return _digest(Path(path))


def _own_options(step: list[str]) -> list[str]:
    # What is left of the compile step without the places it names: the options that nobody asked for.
    return [word for word in step[1:] if "/" not in word]


def ask(command: Iterable[str], *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Return what a compiler prints when called with `arguments`; UnsupportedError where it fails."""
    argv = [*command, *arguments]
    try:
        code, out, err = process.run(argv, _PROBE_SECONDS, env={**compiler_environment(), **(environment or {})})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"failed to ask the compiler what it is: {error}") from None
    if code:
        raise UnsupportedError(f"{shlex.join(argv)} failed with status {code}: {(err or out).strip()[:400]}")
    return out + err


def _parse(text: str) -> tuple[str, ...] | None:
    """Return the argv prefix that a name, path or command line means, None where there is no such program."""
    whole = _program(text)  # first, because a path may contain spaces
    if whole:
        return _with_mode(text, (whole,))
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if words and (first := _program(words[0])):
        return _with_mode(words[0], (first, *words[1:]))
    if text in ("g++", "clang++") and (names := numbered(text)):
        return _parse(names[0])
    if text == "zig" and (spec := importlib.util.find_spec("ziglang")) and spec.submodule_search_locations:
        packaged = _program(str(Path(spec.submodule_search_locations[0]) / "zig"))
        return (packaged, "c++") if packaged else None
    return None


def numbered(name: str) -> list[str]:
    """Return the programs in PATH that are `name` with a release behind it (``clang++-19``), the newest first."""
    found: set[tuple[int, str]] = set()
    for folder in os.get_exec_path():
        with contextlib.suppress(OSError):
            matches = (re.fullmatch(rf"{re.escape(name)}-(\d+)", entry.name) for entry in Path(folder).iterdir())
            found |= {(int(match[1]), match[0]) for match in matches if match}
    return [program for _, program in sorted(found, reverse=True) if shutil.which(program)]


def _program(name: str) -> str | None:
    found = shutil.which(name)
    return str(Path(found).absolute()) if found else None


def _with_mode(name: str, command: tuple[str, ...]) -> tuple[str, ...]:
    if Path(name).name == "hipcc":
        return (_clang_of_hipcc(command[0]), *command[1:])
    return (command[0], "c++", *command[1:]) if _is_zig(name) and "c++" not in command else command


def _is_zig(program: str) -> bool:
    return re.fullmatch(r"zig([-.]?\d.*|\.exe)?", Path(program).name) is not None


def _clang_of_hipcc(program: str) -> str:
    """Return the clang that hipcc starts, without the options, headers and libraries that it adds to every call."""
    # Where it also finds nvcc, hipcc would answer for that.
    said = ask((program,), "--version", environment={"HIP_PLATFORM": "amd"})
    folder = re.search(r"^InstalledDir: (.*)$", said, re.MULTILINE)
    release = re.search(r"clang version (\d+)", said)
    if folder and release:
        for name in (f"clang++-{release[1]}", "clang++"):
            clang = _program(str(Path(folder[1]) / name))
            if clang and release[0] in ask((clang,), "--version"):
                return clang
    raise UnsupportedError(f"{program} --version does not say which clang it starts; it says: {said[:400]!r}")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise UnsupportedError(f"failed to read the compiler {path}: {error.strerror}") from None
    return digest.hexdigest()


def _signatures(files: Iterable[str]) -> list[list[Any]]:
    return [[path, *(signature(path) or ())] for path in files]


_MEMO_SCHEMA = 1
_MEMO_LIMIT = 32


def _load(memo: Path | None) -> dict[str, Any]:
    if memo is None:
        return {}
    try:
        data = json.loads(memo.read_bytes())
        if data["schema"] == _MEMO_SCHEMA:
            return dict(data["toolchains"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {}


def _save(memo: Path | None, entries: dict[str, Any]) -> None:
    if memo is None:
        return
    newest = dict(list(entries.items())[-_MEMO_LIMIT:])
    try:
        write_atomically(memo, json.dumps({"schema": _MEMO_SCHEMA, "toolchains": newest}).encode())
    except OSError:
        return  # costs only time
