"""Backends: who builds for an arch.

A backend is a module of this package, named as the arch table's `backend` column names it. It has no state, and
offers what `Backend` lists; everything else of the factory (codegen, key, cache, graph) is the same for all.
A backend that compiles in several steps (device code, then the host shim that embeds it) returns several commands.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol, cast

from gemmill.arch import find_arch
from gemmill.errors import UnsupportedError

from kernels.config import KernelConfig
from kernels.toolchain import Toolchain


class Backend(Protocol):
    """What a backend module offers.

    Attributes
    ----------
    TEMPLATE : str
        The template in templates/ that its kernels instantiate.
    """

    TEMPLATE: str

    def find_toolchain(self, wanted: str | None, memo: Path | None) -> Toolchain:
        """Return the compiler, or raise UnsupportedError that says what to install."""
        ...

    def flags(self, config: KernelConfig, toolchain: Toolchain) -> dict[str, Any]:
        """Return every flag that can change the artefact, by step; it enters the key, so no path may stand in it."""
        ...

    def commands(
        self, config: KernelConfig, source: Path, native: Path, library: Path, toolchain: Toolchain
    ) -> list[list[str]]:
        """Return the argv of each step that makes `library` from `source`.

        All three paths are relative to the directory that the commands run in, so that the same source gives the
        same bytes wherever that lies. Each must be a word of its own in argv: to show a command to a person, they are
        replaced by full paths.
        """
        ...

    def resources(self, config: KernelConfig, output: str, work: Path) -> tuple[dict[str, Any], str]:
        """Return registers, spills and the like, as the commands said or left in `work`, and the rest of `output`.

        A GemmillError refuses the kernel: it is a build failure.
        """
        ...


def find_backend(arch: str) -> Backend:
    """Return the backend that builds for `arch`.

    Raises
    ------
    UnsupportedError
        If it does not exist yet; the text names it.
    """
    name = find_arch(arch).backend
    module = f"{__name__}.{name}"
    try:
        return cast(Backend, importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UnsupportedError(
            f"cannot build for {arch}: the {name} backend is not built yet (kernels/backends/{name}.py); "
            f"its kernels have configs and names only"
        ) from None
