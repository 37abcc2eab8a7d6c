"""From a config to a published object: the one class that the graph talks to.

`Build.state` says whether a kernel is up to date, `Build.compile` makes it so. Both may be called from several
threads; compilers are child processes. Several processes may share a cache: a key is built by one of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmill.arch import find_arch
from gemmill.cache import LIBRARY, MANIFEST_SCHEMA, NATIVE, CacheObject
from gemmill.errors import CorruptObject, GemmillError, KernelNotFound, UnsupportedError
from gemmill.files import signature
from gemmill.tree import translating

from kernels import process
from kernels.backends import Backend, find_backend, notes, why_not
from kernels.catalogue import Catalogue
from kernels.codegen import Codegen, Source
from kernels.config import KernelConfig
from kernels.describe import describe_config, read_abi_version
from kernels.elf import check_library
from kernels.headers import Headers, Scan, ScanMemo
from kernels.key import key_inputs, key_of
from kernels.paths import CHECKOUT, Paths
from kernels.store import InputsChanged, Store
from kernels.toolchain import Toolchain, compiler_environment

COMPILE_SECONDS = 900.0
ATTEMPTS = 3  # at a kernel whose inputs are edited while they are compiled

# Fields that tell a kernel from the others of a call: of several, the runtime takes any.
_IDENTITY = tuple(
    field.name
    for field in dataclasses.fields(KernelConfig)
    if field.name not in ("arch", "tile", "warps", "warp_tile", "group")
)

# What the commands call the source and the headers' root, in the directory that they run in.
SOURCE, HEADERS = "kernel.cpp", "native"


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
        What the compiler or the failing step said; on success its warnings.
    commands : tuple of tuple of str
        argv of each command that ran, to repeat by hand: the source is the generated file.
    """

    config: KernelConfig
    status: str
    key: str
    seconds: float = 0.0
    message: str = ""
    commands: tuple[tuple[str, ...], ...] = ()

    @property
    def ok(self) -> bool:
        """True unless it failed."""
        return self.status != "failed"


class CompileError(GemmillError):
    """A command failed, or what it made is not a kernel library."""

    def __init__(self, message: str, seconds: float = 0.0, commands: tuple[tuple[str, ...], ...] = ()) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.commands = commands


@dataclass(frozen=True)
class _Plan:
    """All that a compilation needs, and the key that it will have."""

    config: KernelConfig
    source: Source
    toolchain: Toolchain
    backend: Backend
    inputs: dict[str, Any]
    key: str


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
    children : Children, optional
        Runs the commands.
    catalogue : Catalogue, optional
        Whose kernels the index is to name: a kernel takes the place of those that differ from it in geometry alone
        and that the catalogue no longer has. Without it, all stay.
    provider : str
        Whose kernels.

    Attributes
    ----------
    codegen : Codegen
    store : Store
    """

    def __init__(
        self,
        paths: Paths = CHECKOUT,
        toolchain: str | None = None,
        notice: Callable[[str], None] = lambda text: None,
        children: process.Children = process.CHILDREN,
        catalogue: Catalogue | None = None,
        provider: str = NATIVE,
    ) -> None:
        self.paths = paths
        self.provider = provider
        self.codegen = Codegen(paths, provider)
        self.store = Store(paths.cache, notice)
        self._wanted = toolchain
        self._notice = notice
        self._children = children
        self._catalogue = catalogue
        self._memo = ScanMemo(paths.build / "memo" / "headers.json")
        self._headers = self._read_headers()
        self._toolchains: dict[str, Toolchain] = {}
        self._abi: int | None = None
        # By arch and identity, the names in the index that the catalogue lacks.
        self._orphans: dict[str, dict[tuple[str, ...], list[str]]] = {}
        # Whole objects and the signatures of the files that said so, so that they are hashed once a run.
        self._states: dict[KernelConfig, tuple[list[str], list[Any], State]] = {}

    def toolchain(self, arch: str) -> Toolchain:
        """Return the toolchain that builds for `arch`; UnsupportedError where its backend or compiler is missing."""
        backend = find_arch(arch).backend
        known = self._toolchains.get(backend)
        if known is None:
            known = self._toolchains[backend] = self._find_toolchain(self._backend(arch))
        return known

    def inputs(self, config: KernelConfig) -> dict[str, Any]:
        """Return the key's inputs, as manifests record them; generates the source if it is not current."""
        return self._inputs(config, self._source(config).scan, self._headers, self.toolchain(config.arch))

    def state(self, config: KernelConfig) -> State:
        """Say whether a kernel is current. Writes nothing to the cache.

        Templates, headers and compiler are read once for all kernels of this Build; `compile` looks at headers and
        compiler again.

        Raises
        ------
        GemmillError
            If no key can be computed: no backend, no compiler, a missing header.
        """
        toolchain = self.toolchain(config.arch)
        if (known := self._states.get(config)) and known[1] == [signature(path) for path in known[0]]:
            return known[2]
        scanned = self.codegen.current_scan(config)
        if scanned is None:
            return State(config, "", None, "its source is not generated, or not from what is there now")
        key = key_of(self._inputs(config, scanned, self._headers, toolchain))
        files = [str(self.codegen.path(config)), *self.store.files(config.arch, config.name, key, self.provider)]
        before = [signature(path) for path in files]
        state = self._stored(config, key)
        if state.current:
            self._states[config] = (files, before, state)
        return state

    def compile(self, config: KernelConfig) -> Outcome:
        """Make a kernel current. A failure is an outcome, not an exception; only a stop is raised."""
        key = ""
        try:
            for _ in range(ATTEMPTS):
                plan = self._plan(config)
                key = plan.key
                try:
                    return self._make_current(plan)
                except InputsChanged as error:
                    self._notice(str(error))
            raise InputsChanged(f"{config.id}: its inputs changed {ATTEMPTS} times while they were compiled; try again")
        except CompileError as error:
            return Outcome(config, "failed", key, error.seconds, str(error), error.commands)
        except GemmillError as error:
            return Outcome(config, "failed", key, message=str(error))
        except OSError as error:
            return Outcome(config, "failed", key, message=f"failed to build {config.id}: {error}")

    def why_not(self, config: KernelConfig) -> str | None:
        """Say why the provider can't build a kernel; None where it can, as far as is known before compiling."""
        return why_not(self._backend(config.arch), config)

    def notes(self, config: KernelConfig) -> list[str]:
        """Return what a user of a kernel must know of it."""
        return notes(self._backend(config.arch), config)

    # ---- the key ---------------------------------------------------------------------------------------------

    def _backend(self, arch: str) -> Backend:
        return find_backend(arch, self.provider)

    def _find_toolchain(self, backend: Backend) -> Toolchain:
        return backend.find_toolchain(self._wanted, self.paths.build / "memo" / "toolchain.json")

    def _read_headers(self) -> Headers:
        return Headers(self.paths.native, self._memo)

    def _source(self, config: KernelConfig) -> Source:
        self.codegen.generate(config)
        source = self.codegen.source(config)
        if source is None:
            raise GemmillError(f"{self.codegen.path(config)} was changed by somebody while it was read")
        return source

    def _inputs(self, config: KernelConfig, scanned: Scan, headers: Headers, toolchain: Toolchain) -> dict[str, Any]:
        if self._abi is None:
            self._abi = read_abi_version(self.paths.native)
        return key_inputs(
            config,
            self._abi,
            scanned,
            headers.reached(scanned.includes, f"the source of {config.id}"),
            self._backend(config.arch).flags(config, toolchain),
            toolchain,
            self.provider,
        )

    def _plan(self, config: KernelConfig) -> _Plan:
        backend = self._backend(config.arch)
        if reason := why_not(backend, config):
            raise UnsupportedError(f"{config.id}: {reason}")
        source = self._source(config)
        toolchain = self._find_toolchain(backend)
        inputs = self._inputs(config, source.scan, self._read_headers(), toolchain)
        return _Plan(config, source, toolchain, backend, inputs, key_of(inputs))

    def _check_inputs(self, plan: _Plan) -> None:
        """Raise InputsChanged unless headers and compiler are still what the plan's key says."""
        toolchain = self._find_toolchain(plan.backend)
        if key_of(self._inputs(plan.config, plan.source.scan, self._read_headers(), toolchain)) != plan.key:
            raise InputsChanged(f"{plan.config.id}: an input was edited while it was compiled; compiling it again")

    # ---- the object ------------------------------------------------------------------------------------------

    def _stored(self, config: KernelConfig, key: str) -> State:
        try:
            found = self.store.cache.read(key)
        except KernelNotFound:
            return State(config, key, None, "the cache has no object of its key")
        except CorruptObject as error:
            return State(config, key, None, f"its object is broken: {error}")
        if found.name != config.name:
            return State(config, key, None, f"its object is broken: the manifest calls it {found.name}")
        try:
            entry = self.store.cache.entry(config.arch, config.name, self.provider)
        except (KernelNotFound, CorruptObject) as error:
            return State(config, key, found, str(error))
        reason = "" if entry.key == key else f"the index names another key, {entry.key[:12]}"
        if not reason and (old := self._replaced(config)):
            reason = f"the index still names what it replaces: {', '.join(old)}"
        return State(config, key, found, reason)

    def _drop_replaced(self, config: KernelConfig) -> None:
        names = self._replaced(config)
        for name in names:
            self.store.unset_index(config.arch, name, self.provider)
            self._notice(f"the index drops {config.arch}/{name}: the catalogue has {config.name} in its place")
        names.clear()

    def _replaced(self, config: KernelConfig) -> list[str]:
        """Return the names in the index that `config` takes the place of; the index is listed once an arch.

        Such a kernel was built from older sources, and the runtime could choose it.
        """
        arch = config.arch
        if arch not in self._orphans:
            found: dict[tuple[str, ...], list[str]] = {}
            for name in self._lost_names(arch):
                with contextlib.suppress(KernelNotFound, CorruptObject):
                    identity = _identity(self.store.cache.entry(arch, name, self.provider).config)
                    found.setdefault(identity, []).append(name)
            self._orphans[arch] = found
        return self._orphans[arch].get(_identity(vars(config)), [])

    def _lost_names(self, arch: str) -> list[str]:
        if self._catalogue is None or arch not in self._catalogue.archs:
            return []
        known = {config.name for config in self._catalogue.configs(arch, out=None)}
        return [name for name in self.store.cache.names(arch, self.provider) if name not in known]

    def _make_current(self, plan: _Plan) -> Outcome:
        if self._stored(plan.config, plan.key).current:
            return Outcome(plan.config, "reused", plan.key)
        with self.store.lock(plan.key, self._raise_if_stopped):
            state = self._stored(plan.config, plan.key)
            outcome = Outcome(plan.config, "reused", plan.key)
            if state.object is None:
                if self.store.has(plan.key):
                    self.store.quarantine(plan.key, state.reason)
                outcome = self._build(plan)
            if not state.current:
                config = plan.config
                self.store.set_index(config.arch, config.name, plan.key, describe_config(config), self.provider)
                self._drop_replaced(config)
            return outcome

    def _build(self, plan: _Plan) -> Outcome:
        with self.store.staging() as stage:
            work, result, scratch = (stage / name for name in ("work", "object", "scratch"))
            with translating("write to", stage):
                for folder in (work, result, scratch):
                    folder.mkdir()
                # The commands see relative names only, so nothing of where we are can get into what they make.
                (work / SOURCE).write_bytes(plan.source.content)
                (work / HEADERS).symlink_to(self.paths.native, target_is_directory=True)
            commands = plan.backend.commands(plan.config, Path(SOURCE), Path(HEADERS), Path(LIBRARY), plan.toolchain)
            seconds, output = self._run(plan, commands, work, scratch)
            shown = self._shown(plan, commands)
            try:
                check_library(work / LIBRARY, self.paths.native)
                resources, output = plan.backend.resources(plan.config, output, work)
            except (GemmillError, OSError) as error:
                raise CompileError(str(error), seconds, shown) from None
            (work / LIBRARY).rename(result / LIBRARY)
            manifest = self._manifest(plan, seconds, commands, resources)
            self.store.publish(result, plan.key, manifest, lambda: self._check_inputs(plan))
        return Outcome(plan.config, "built", plan.key, seconds, output, shown)

    def _run(self, plan: _Plan, commands: list[list[str]], work: Path, scratch: Path) -> tuple[float, str]:
        """Run the commands in `work`; return wall time and what they said, or raise CompileError."""
        start, output = time.monotonic(), ""
        source = self._relative(self.codegen.path(plan.config))
        for i, argv in enumerate(commands):
            try:
                code, out, err = self._children.run(argv, COMPILE_SECONDS, cwd=work, env=compiler_environment(scratch))
            except subprocess.TimeoutExpired:
                code, out, err = 1, "", f"no end within {COMPILE_SECONDS:.0f} s"
            output += (err + out).replace(f"{SOURCE}:", f"{source}:")
            if code:
                ending = f"status {code}" if code > 0 else signal.Signals(-code).name
                said = f"{output.strip()}\n{argv[0]} ended with {ending}".strip()
                raise CompileError(said, time.monotonic() - start, self._shown(plan, commands[: i + 1]))
        return time.monotonic() - start, output.strip()

    def _shown(self, plan: _Plan, commands: list[list[str]]) -> tuple[tuple[str, ...], ...]:
        """Return the commands as a person can repeat them anywhere: from the generated file, into /tmp."""
        places = {
            SOURCE: str(self.codegen.path(plan.config)),
            HEADERS: str(self.paths.native),
            LIBRARY: f"/tmp/{LIBRARY}",
        }
        return tuple(tuple(places.get(word, word) for word in argv) for argv in commands)

    def _relative(self, path: Path) -> Path:
        return path.relative_to(self.paths.root) if path.is_relative_to(self.paths.root) else path

    def _manifest(
        self, plan: _Plan, seconds: float, commands: list[list[str]], resources: dict[str, Any]
    ) -> dict[str, Any]:
        config = plan.config
        return {
            "schema": MANIFEST_SCHEMA,
            "key": plan.key,
            "inputs": plan.inputs,
            "arch": config.arch,
            "name": config.name,
            "provider": self.provider,
            "notes": notes(plan.backend, config),
            "config": describe_config(config),
            "target": {"machine": config.arch_row.machine or platform.machine(), "system": platform.system()},
            "build": {
                "seconds": round(seconds, 3),
                "commands": commands,
                "compiler": str(plan.toolchain),
                "resources": resources,
            },
            "source": plan.source.text,
        }

    def _raise_if_stopped(self) -> None:
        if self._children.stopped:
            raise process.Stopped("stopped")


def _identity(config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(config.get(name)) for name in _IDENTITY)  # what the index holds may be anything
