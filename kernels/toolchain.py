"""Find a compiler and say what it is. Full text follows; the interface is what stands here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
        """One line for people: kind, version, how it is called."""
        return f"{self.identity.get('version', self.kind)} ({' '.join(self.command)})"


def find_toolchain(wanted: str | None = None, memo: Path | None = None) -> Toolchain:
    """Return the C++ compiler to use.

    Parameters
    ----------
    wanted : str, optional
        A name (``g++``, ``clang++``, ``zig``) or a path. Default: ``CXX``, then g++, clang++, and the zig of the
        PyPI package ziglang.
    memo : Path, optional
        A file that keeps what was learnt about a compiler, so that asking again costs a few stat calls.

    Raises
    ------
    UnsupportedError
        When there is none, with what to install.
    """
    raise NotImplementedError
