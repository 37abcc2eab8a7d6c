"""From a config to a published object: the one class that the graph talks to.

`Build.state` says whether a kernel is up to date, `Build.compile` makes it so. Both may be called from several
threads; compilers are child processes. Several processes may share a cache: a key is built by one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmill.cache import CacheObject

from kernels.codegen import Codegen
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths
from kernels.toolchain import Toolchain


@dataclass(frozen=True)
class State:
    """Where a kernel stands.

    Attributes
    ----------
    config : KernelConfig
    key : str
        Its key now; empty where the generated source is missing or stale.
    object : CacheObject or None
        The verified object of that key.
    reason : str
        Why it must be compiled; empty when it is current.
    """

    config: KernelConfig
    key: str
    object: CacheObject | None
    reason: str

    @property
    def current(self) -> bool:
        """True when a whole object of the key is there and the index names it."""
        return not self.reason


@dataclass(frozen=True)
class Outcome:
    """What `Build.compile` did.

    Attributes
    ----------
    status : str
        ``built``, ``reused`` (it was there, or another process built it meanwhile) or ``failed``.
    key : str
        Empty where no key could be computed.
    seconds : float
        Wall time of the commands; 0 when none ran.
    message : str
        What the compiler or the failing step said; empty on success without warnings.
    commands : tuple of tuple of str
        argv of each command, to repeat by hand.
    """

    config: KernelConfig
    status: str
    key: str
    seconds: float = 0.0
    message: str = ""
    commands: tuple[tuple[str, ...], ...] = ()

    @property
    def ok(self) -> bool:
        return self.status != "failed"


class Build:
    """Builds kernels of one checkout into one cache.

    Parameters
    ----------
    paths : Paths
        Sources, build directory and cache.
    toolchain : str, optional
        Compiler name or path; default is ``CXX``, then what is installed.
    notice : callable, optional
        Receives one line for each thing worth telling (an object quarantined); default drops them.

    Attributes
    ----------
    codegen : Codegen
    """

    def __init__(
        self, paths: Paths = CHECKOUT, toolchain: str | None = None, notice: Callable[[str], None] = lambda text: None
    ) -> None:
        self.paths = paths
        self.codegen = Codegen(paths)

    def toolchain(self, arch: str) -> Toolchain:
        """Return the toolchain that builds for `arch`; UnsupportedError where its backend or compiler is missing."""
        raise NotImplementedError

    def inputs(self, config: KernelConfig) -> dict[str, Any]:
        """Return the key's inputs, as manifests record them; the generated source must be current."""
        raise NotImplementedError

    def state(self, config: KernelConfig) -> State:
        """Say whether a kernel is current. Writes nothing; the answer is remembered until `compile` of it."""
        raise NotImplementedError

    def compile(self, config: KernelConfig) -> Outcome:
        """Make a kernel current. A failure is an outcome, not an exception; only a stop is raised."""
        raise NotImplementedError
