"""The command line of ``./mill``: a command, ``name=value`` arguments and tasks.

doit accepts any ``x=y`` in silence; here a name or value that nothing reads is an error that lists what would be.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmill.arch import ARCHS, find_arch, host_archs
from gemmill.cache import NATIVE
from gemmill.errors import ArgumentError
from gemmill.layout import LAYOUTS
from gemmill.variant import OUTPUTS, VARIANTS

from kernels.backends import PROVIDERS
from kernels.config import FAMILIES

COMMANDS = {
    "build": "run tasks (also when no command is named)",
    "list": "show every kernel selected, and where it stands",
    "explain": "say what a kernel's key was made from; with two names or keys, what differs",
    "verify": "check every object in the cache; quarantine what fails",
    "gc": "remove objects that the index does not name; with max_size= the longest unused ones, until that is met",
    "clean": "remove generated sources and memos (build/); the cache stays",
    "help": "print this",
}

ARGUMENTS = {
    "arch": "archs: names, `host` (this machine's best, the default), `cpu` (all it can run)",
    "variant": "variants: " + ", ".join(VARIANTS),
    "family": "families: " + ", ".join(FAMILIES),
    "layout": "layouts: " + ", ".join(LAYOUTS),
    "out": "output types: " + ", ".join(OUTPUTS) + "; default f16",
    "provider": "whose kernels: native (gemmill's own, the default) or ck_tile (AMD's Composable Kernel)",
    "jobs": "tasks at a time; default: what cores and free memory allow",
    "toolchain": "compiler: g++, clang++, zig, hipcc or a path; default: $CXX, then what is installed",
    "cache": "cache directory; default: cache/ of this checkout",
    "catalogue": "TOML file that says which kernels exist; default: kernels/catalogue/gemm_aquant.toml",
    "timeout": "seconds a selftest may take; default 120",
    "max_size": "for gc: what the cache may keep, as 500M or 2G",
}

FLAGS = {
    "--always": "run the tasks named even where they are up to date",
    "--no-continue": "start no further task after a failure",
}

# What each command reads; help, which may be asked for in the middle of a thought, takes anything.
_KERNELS = (*("arch", "variant", "family", "layout", "out"), *("provider", "catalogue", "toolchain", "cache"), "TASK")
_TAKES = {
    "build": (*(name for name in ARGUMENTS if name != "max_size"), *FLAGS, "TASK"),
    "list": _KERNELS,
    "explain": _KERNELS,
    "verify": ("cache",),
    "gc": ("cache", "max_size"),
    "clean": (),
    "help": (*ARGUMENTS, *FLAGS, "TASK"),
}

_OTHER_FLAGS = {"-a": "--always", "-h": "help", "--help": "help"}

_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class UsageError(ArgumentError):
    """The command line is wrong; the text says what would be accepted."""


@dataclass(frozen=True)
class Options:
    """What a command line asks for.

    Attributes
    ----------
    arch, variant, family, layout : tuple of str
        Only these kernels; empty means this machine's best CPU arch, and all of the others.
    out : tuple of str
        Output types.
    provider : str
        Whose kernels.
    jobs : int
        Tasks at a time; 0 chooses by cores and memory.
    toolchain : str or None
        Compiler name or path.
    cache : Path or None
        The cache directory; None is the checkout's own.
    catalogue : Path or None
        The catalogue to take kernels from; None is the default one.
    timeout : float
        Seconds a selftest may take.
    max_size : int or None
        Bytes that gc may leave.
    command : str
    words : tuple of str
        Tasks, patterns, names or keys, as the command takes them.
    always, keep_going : bool
    """

    arch: tuple[str, ...] = ()
    variant: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    out: tuple[str, ...] = ("f16",)
    provider: str = NATIVE
    jobs: int = 0
    toolchain: str | None = None
    cache: Path | None = None
    catalogue: Path | None = None
    timeout: float = 120.0
    max_size: int | None = None
    command: str = "build"
    words: tuple[str, ...] = ()
    always: bool = False
    keep_going: bool = True


def parse(args: Sequence[str], cwd: Path | None = None) -> Options:
    """Return what `args` ask for; paths are relative to `cwd`.

    Raises
    ------
    UsageError
        For an unknown argument, value or flag, and for one that the command does not read.
    """
    cwd = cwd or Path.cwd()
    values: dict[str, Any] = {}
    words: list[str] = []
    given: list[str] = []
    for arg in args:
        if arg.startswith("-"):
            flag = _OTHER_FLAGS.get(arg, arg)
            if flag == "help":
                values["command"] = "help"
            elif flag in FLAGS:
                values.update({"always": True} if flag == "--always" else {"keep_going": False})
                given.append(flag)
            else:
                raise UsageError(f"unknown option {arg}{_near(arg, FLAGS)}: accepted are {', '.join(FLAGS)}, --help")
        elif "=" in arg:
            name, _, text = arg.partition("=")
            if name not in ARGUMENTS:
                raise UsageError(
                    f"unknown argument {name}={_near(name, ARGUMENTS)}: accepted are {'=, '.join(ARGUMENTS)}="
                )
            if name in values:
                raise UsageError(f"{name}= is given twice; several values are separated by commas")
            values[name] = _PARSERS[name](name, text, cwd)
            given.append(name)
        else:
            words.append(arg)
    if words and words[0] in COMMANDS:
        values.setdefault("command", words.pop(0))
    options = Options(**values, words=tuple(words))
    _check_taken(options.command, given, words)
    return options


def help_text() -> str:
    """Return what ``./mill help`` prints."""
    lines = [
        "usage: ./mill [COMMAND] [NAME=VALUE ...] [TASK ...]",
        "       ./mill test [PYTEST ARGUMENTS]",
        "",
        "Makes kernels: codegen, compile and selftest of every kernel for this machine, unless told otherwise.",
        "A TASK is STAGE, STAGE:ARCH/NAME or NAME; * ? [ ] match as in a shell ('compile:*bf8*ccr*').",
        "",
    ]
    for title, table, suffix in (("commands", COMMANDS, ""), ("arguments", ARGUMENTS, "="), ("options", FLAGS, "")):
        lines.append(f"{title}:")
        lines += [f"  {name + suffix:<14}{text}" for name, text in table.items()]
        lines.append("")
    lines += ["exit status: 0 all good, 1 something failed, 2 usage, 130 or 143 stopped by a signal"]
    return "\n".join(lines)


def _check_taken(command: str, given: Iterable[str], words: Sequence[str]) -> None:
    takes = _TAKES[command]
    wrong = [f"{name}=" if name in ARGUMENTS else name for name in given if name not in takes]
    wrong += [repr(word) for word in words if "TASK" not in takes]
    if wrong:
        accepted = ", ".join(f"{name}=" if name in ARGUMENTS else name for name in takes) or "nothing"
        raise UsageError(f"{command} does not take {wrong[0]}; it takes {accepted}")


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _names(table: Iterable[str], suffixed: Iterable[str] = ()) -> Callable[[str, str, Path], tuple[str, ...]]:
    known = tuple(table)

    def parse_names(name: str, text: str, cwd: Path) -> tuple[str, ...]:
        wanted = text.split(",")
        for word in wanted:
            if word not in known and word.partition(":")[0] not in suffixed:
                raise UsageError(f"unknown {name}={word}{_near(word, known)}: accepted are {', '.join(known)}")
        return tuple(dict.fromkeys(wanted))

    return parse_names


def _parse_archs(name: str, text: str, cwd: Path) -> tuple[str, ...]:
    archs: list[str] = []
    hip = [row.name for row in ARCHS.values() if row.backend == "hip"]
    for word in _names(("host", "cpu", *ARCHS), hip)(name, text, cwd):
        runnable = [row.name for row in host_archs()]
        archs += runnable[:1] if word == "host" else runnable if word == "cpu" else [find_arch(word).name]
    return tuple(dict.fromkeys(archs))


def _parse_provider(name: str, text: str, cwd: Path) -> str:
    known = (NATIVE, *PROVIDERS)
    if text not in known:
        raise UsageError(f"unknown {name}={text}{_near(text, known)}: accepted is one of {', '.join(known)}")
    return text


def _parse_jobs(name: str, text: str, cwd: Path) -> int:
    if not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise UsageError(f"{name}={text}: needed a whole number from 1 to 9999")
    return int(text)


def _parse_seconds(name: str, text: str, cwd: Path) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) or float(text) == 0:
        raise UsageError(f"{name}={text}: needed seconds, more than 0")
    return float(text)


def _parse_size(name: str, text: str, cwd: Path) -> int:
    match = re.fullmatch("([0-9]{1,15})([KMGT]?)", text.upper())
    if match is None:
        raise UsageError(f"{name}={text}: needed bytes, or a number with K, M, G or T, as 500M")
    return int(match[1]) * _SIZES[match[2]]


def _parse_path(name: str, text: str, cwd: Path) -> Path:
    if not text:
        raise UsageError(f"{name}= needs a directory")
    return cwd / Path(text).expanduser()


def _parse_text(name: str, text: str, cwd: Path) -> str:
    if not text:
        raise UsageError(f"{name}= needs a value: {ARGUMENTS[name]}")
    # A path is the caller's, not the checkout's.
    return str(cwd / text) if "/" in text else text


_PARSERS: dict[str, Callable[[str, str, Path], Any]] = {
    "arch": _parse_archs,
    "variant": _names(VARIANTS),
    "family": _names(FAMILIES),
    "layout": _names(LAYOUTS),
    "out": _names(OUTPUTS),
    "provider": _parse_provider,
    "jobs": _parse_jobs,
    "toolchain": _parse_text,
    "cache": _parse_path,
    "catalogue": _parse_path,
    "timeout": _parse_seconds,
    "max_size": _parse_size,
}
