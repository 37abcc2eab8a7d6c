"""The task graph: what each task of a kernel's chain does, and when it has nothing to do.

Whether a task is up to date, the cache and the generated files say; doit's own database is never asked, so losing it
costs nothing.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from doit.doit_cmd import get_var  # type: ignore[import-untyped]
from doit.exceptions import TaskFailed  # type: ignore[import-untyped]
from gemmill.cache import NATIVE, Cache
from gemmill.device import why_arch_not_here
from gemmill.errors import GemmillError, UnsupportedError
from gemmill.verdict import is_simulated as is_simulation
from gemmill.verdict import where

from kernels.arguments import ARGUMENTS, Options, parse
from kernels.backends import find_backend
from kernels.build import Build, Outcome, State
from kernels.catalogue import DEFAULT, load_catalogue
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths
from kernels.reporter import Reporter
from kernels.resources import default_jobs
from kernels.selection import STAGES, Selection
from kernels.simulator import Simulator, is_simulated

# Outcomes of a selftest that make a kernel trusted, and its task up to date.
GOOD = ("passed", "simulated")


class KernelFailed(TaskFailed):  # type: ignore[misc]
    """Why a task failed.

    Attributes
    ----------
    outcome : str
        One word for the table.
    repeat : str
        A shell command that does the failing step again.
    """

    def __init__(self, message: str, outcome: str = "failed", repeat: str = "") -> None:
        super().__init__(message)
        self.outcome, self.repeat = outcome, repeat


class _Current:
    """An `uptodate` entry: asks when doit does, after the task's dependencies have run."""

    # doit looks at the signature of every entry of every task; computing it costs more than the question.
    __signature__ = inspect.Signature()

    def __init__(self, ask: Callable[[KernelConfig], bool], config: KernelConfig) -> None:
        self.ask, self.config = ask, config

    def __call__(self) -> bool:
        try:
            return self.ask(self.config)
        except (GemmillError, OSError):
            return False  # the task will meet the same error, and report it


class Graph:
    """The tasks of one run.

    Parameters
    ----------
    options : Options
    paths : Paths, optional
        The checkout; `options.cache` replaces its cache.

    Attributes
    ----------
    notice : callable
        Receives one line for each thing worth telling while it happens; the reporter takes it over.
    selection : Selection
    selected : dict of str to list of KernelConfig
        The kernels of each stage's tasks.
    unwritten : OSError or None
        Why the reporter could not print all that it had to.
    refused : Counter of str
        Why kernels that were asked for can't be built by their provider; each reason is counted.
    """

    def __init__(self, options: Options, paths: Paths = CHECKOUT) -> None:
        self.options = options
        self.paths = Paths.of(paths.root, options.cache or paths.cache, paths.build)
        self.notice: Callable[[str], None] = lambda text: print(text, file=sys.stderr)
        catalogue = load_catalogue(options.catalogue or DEFAULT)
        # Kernels of a catalogue that was asked for come beside those of the default one.
        follows = None if options.catalogue else catalogue
        self.build = Build(
            self.paths,
            options.toolchain,
            lambda text: self.notice(text),
            catalogue=follows,
            provider=options.provider,
        )
        self.simulator = Simulator(self.paths)
        self.selection = Selection(options, catalogue)
        self.refused: Counter[str] = Counter()
        self.selected = self._without_refused(self.selection.tasks)
        self._compiled = {config.id for config in self.selected["compile"]}
        self.unwritten: OSError | None = None
        self._state: State | None = None
        self._running = 0
        self._idle = threading.Condition()
        self._keys: dict[KernelConfig, str] = {}

    def check_backends(self) -> None:
        """Raise UnsupportedError, once and not a kernel at a time, where a backend or a compiler is missing."""
        for arch in dict.fromkeys(config.arch for config in self.selected["codegen"]):
            find_backend(arch, self.options.provider)
        for arch in dict.fromkeys(config.arch for config in self.selected["compile"]):
            self.build.toolchain(arch)

    # What dodo.py yields

    def doit_config(self) -> dict[str, Any]:
        """Return doit's configuration."""
        self.paths.build.mkdir(parents=True, exist_ok=True)
        return {
            "backend": "sqlite3",
            "dep_file": str(self.paths.build / "doit.sqlite3"),
            "reporter": Reporter,
            "par_type": "thread",
            # doit starts as many threads at once; a kernel runs one task at a time.
            "num_process": min(self.jobs, len(self.selected["codegen"])),
            "continue": self.options.keep_going,
            "always": self.options.always,
            # Output is the reporter's, and doit captures by swapping sys.stdout, which threads share.
            "verbosity": 0,
            "default_tasks": self._chains(),
        }

    @functools.cached_property
    def jobs(self) -> int:
        """How many tasks to run at a time."""
        return self.options.jobs or default_jobs()

    def codegen_task(self, config: KernelConfig) -> dict[str, Any]:
        """Return the task that renders a kernel's source."""
        return self._task("codegen", config, self.run_codegen, self.is_generated)

    def compile_task(self, config: KernelConfig) -> dict[str, Any]:
        """Return the task that builds and publishes a kernel."""
        return self._task("compile", config, self.run_compile, self.is_compiled)

    def selftest_task(self, config: KernelConfig) -> dict[str, Any]:
        """Return the task that tests a kernel."""
        return self._task("selftest", config, self.run_selftest, self.is_tested)

    def _task(
        self,
        stage: str,
        config: KernelConfig,
        action: Callable[[KernelConfig], Any],
        current: Callable[[KernelConfig], bool],
    ) -> dict[str, Any]:
        before = {"codegen": None, "compile": "codegen", "selftest": "compile"}[stage]
        return {
            "name": config.id,
            "actions": [(self._act, (action, config))],
            "task_dep": [f"{before}:{config.id}"] if before else [],
            "uptodate": [_Current(current, config)],
            "io": {"capture": False},
            "meta": {"stage": stage, "config": config, "graph": self},
        }

    def _act(self, action: Callable[[KernelConfig], Any], config: KernelConfig) -> Any:
        with self._idle:
            self._running += 1
        try:
            return action(config)
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait until no task runs, and tell whether that came in time."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._running, timeout)

    def command(self, task: str) -> str:
        """Return the command that runs one task again, with the arguments of this run that matter to it."""
        options = self.options
        given = [f"out={','.join(options.out)}"] if options.out != Options.out else []
        given += [f"provider={options.provider}"] if options.provider != NATIVE else []
        given += [f"toolchain={options.toolchain}"] if options.toolchain else []
        given += [f"cache={options.cache}"] if options.cache else []
        given += [f"catalogue={options.catalogue}"] if options.catalogue else []
        given += [f"timeout={options.timeout:g}"] if options.timeout != Options.timeout else []
        # As it must be typed where the caller stands, who may have set CXX for one command.
        here = Path(os.environ.get("MILL_CWD") or Path.cwd()).resolve()
        mill = "./mill" if here == self.paths.root.resolve() else str(self.paths.root / "mill")
        compiler = "" if options.toolchain else os.environ.get("CXX", "")
        prefix = f"CXX={shlex.quote(compiler)} " if compiler else ""
        return prefix + shlex.join([mill, *given, task])

    # What the tasks do

    def is_generated(self, config: KernelConfig) -> bool:
        """Tell whether a kernel's source is rendered from what is there now."""
        if config.id in self._compiled:
            return bool(self._ask(config).key)
        return self.build.codegen.is_current(config)  # needs no compiler

    def is_compiled(self, config: KernelConfig) -> bool:
        """Tell whether the cache has a whole object for what the kernel is now."""
        return self._ask(config).current

    def is_tested(self, config: KernelConfig) -> bool:
        """Tell whether that object passed its selftest; a simulated one does only where the device is not here."""
        state = self._ask(config)
        if not state.current or state.object is None or state.object.outcome not in GOOD:
            return False
        return state.object.outcome == "passed" or why_arch_not_here(config.arch_row) is not None

    def _ask(self, config: KernelConfig) -> State:
        # doit asks about the three tasks of a kernel in turn; only what a task has changed is looked at again.
        if self._state is None or self._state.config is not config or not self._state.current:
            self._state = self.build.state(config)
        return self._state

    def run_codegen(self, config: KernelConfig) -> dict[str, Any] | KernelFailed:
        """Render a kernel's source."""
        try:
            self.build.codegen.generate(config)
        except (GemmillError, OSError) as error:
            return KernelFailed(str(error), "codegen failed")
        return {"outcome": "generated"}

    def run_compile(self, config: KernelConfig) -> dict[str, Any] | KernelFailed:
        """Build and publish a kernel."""
        done: Outcome = self.build.compile(config)
        if not done.ok:
            repeat = " && ".join(shlex.join(command) for command in done.commands)
            return KernelFailed(done.message, "compile failed", repeat)
        self._keys[config] = done.key
        return {"outcome": done.status, "message": done.message}

    def run_selftest(self, config: KernelConfig) -> dict[str, Any] | KernelFailed:
        """Test a kernel in a child process."""
        # Imported here, because a run with nothing to do needs none of it.
        from gemmill.selftest import run_selftest

        from kernels import process

        reason = why_arch_not_here(config.arch_row)
        try:
            # The very object that this run made, though a header was edited since.
            key = self._keys.get(config) or self.build.state(config).key
            if reason and (verdict := self._verdict_of_device(key)):
                return KernelFailed(f"{verdict['reason']} (on {where(verdict)})", f"selftest {verdict['outcome']}")
            if reason and not is_simulated(config.arch, self.options.provider):
                return KernelFailed(reason, "not runnable")
            with self.simulator.device(self.build.codegen.path(config)) if reason else nullcontext() as device:
                record = run_selftest(
                    Cache(self.paths.cache), key, timeout=self.options.timeout, run=process.run, simulated=device
                )
        except (GemmillError, OSError) as error:
            return KernelFailed(str(error), "selftest failed")
        if record["outcome"] not in GOOD:
            return KernelFailed(str(record["reason"]), f"selftest {record['outcome']}")
        said: dict[str, Any] = {"outcome": record["outcome"]}
        if record["errors"]:
            said["error"] = max(record["errors"].values())
        return said if record["saved"] else {**said, "message": record["not_saved"]}

    def _verdict_of_device(self, key: str) -> dict[str, Any] | None:
        """Return what a real device elsewhere said of an object, if it failed there: nothing here can say better."""
        record = Cache(self.paths.cache).read(key).selftest
        return record if record and record["outcome"] == "failed" and not is_simulation(record) else None

    def _without_refused(self, tasks: dict[str, list[KernelConfig]]) -> dict[str, list[KernelConfig]]:
        """Leave out the kernels that the provider can't build; raise UnsupportedError where it can build none."""
        asked = tasks["codegen"] if self.options.command == "build" else []
        reasons = {config: reason for config in asked if (reason := self.build.why_not(config))}
        self.refused.update(reasons.values())
        if reasons and len(reasons) == len(asked):
            said = "\n".join(f"  {reason} ({number} kernels)" for reason, number in self.refused.items())
            raise UnsupportedError(f"provider={self.options.provider} can build none of what was asked for:\n{said}")
        return {stage: [config for config in configs if config not in reasons] for stage, configs in tasks.items()}

    def _chains(self) -> list[str]:
        """Return the last task of every chain: doit then goes kernel by kernel, not stage by stage."""
        last = {config.id: stage for stage in STAGES for config in self.selected[stage]}
        return [f"{stage}:{name}" for name, stage in last.items()]


@functools.cache
def graph_of_command_line() -> Graph:
    """Return the graph for the ``name=value`` arguments that doit was given."""
    given: Graph | None = get_var("graph")  # by ./mill
    values = {name: get_var(name) for name in ARGUMENTS}
    return given or Graph(parse([f"{name}={value}" for name, value in values.items() if value is not None]))
