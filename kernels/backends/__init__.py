"""Backends: who builds for an arch.

A backend is a module of this package, named as the arch table's `backend` column names it. It has no state, and
offers what `Backend` lists; everything else of the factory (codegen, key, cache, graph) is the same for all.
A backend that compiles in several steps (device code, then the host shim that embeds it) returns several commands.

A provider other than gemmill itself (`PROVIDERS`) is a backend module too, under its own name: it builds the same
kernels, with the same names and the same C ABI, out of somebody else's code. Beside what `Backend` lists, a module may
offer, and `why_not`, `notes` and `context` below ask for:

    why_not(config)    why it can't build a kernel, as one sentence; None where it can
    notes(config)      what a user of the kernel must know; goes to the manifest
    context(config)    what else the template gets
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from gemmill.arch import ARCHS, find_arch
from gemmill.cache import NATIVE
from gemmill.errors import UnsupportedError

from kernels.config import KernelConfig
from kernels.toolchain import Toolchain

# Provider: the backend whose archs it builds for.
PROVIDERS = {"ck_tile": "hip"}


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


def find_backend(arch: str, provider: str = NATIVE) -> Backend:
    """Return what builds a provider's kernels for `arch`.

    Raises
    ------
    UnsupportedError
        If it does not exist yet, or the provider has nothing for the arch; the text says which.
    """
    name = find_arch(arch).backend
    if provider != NATIVE:
        archs = [row.name for row in ARCHS.values() if row.backend == PROVIDERS[provider]]
        if arch not in archs:
            raise UnsupportedError(f"provider={provider} has no kernels for {arch}: it has some for {', '.join(archs)}")
        name = provider
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


def why_not(backend: Backend, config: KernelConfig) -> str | None:
    """Say why a backend can't build a kernel; None where it can."""
    ask = getattr(backend, "why_not", None)
    return cast("str | None", ask(config)) if ask else None


def notes(backend: Backend, config: KernelConfig) -> list[str]:
    """Return what a user of the kernel must know of it."""
    ask = getattr(backend, "notes", None)
    return list(ask(config)) if ask else []


def context(backend: Backend, config: KernelConfig) -> Mapping[str, Any]:
    """Return what a backend adds to its template's context: plain data, as JSON has it."""
    ask = getattr(backend, "context", None)
    return cast("Mapping[str, Any]", ask(config)) if ask else {}
