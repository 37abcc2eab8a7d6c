"""The task graph: which kernels a command line selects, and what each task of their chains does.

Whether a task is up to date, the cache and the generated files say; doit's own database is never asked, so losing it
costs nothing. Only what was selected, and what that needs, becomes a task: doit then runs all it is given.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import inspect
import re
import shlex
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from doit.doit_cmd import get_var  # type: ignore[import-untyped]
from doit.exceptions import TaskFailed  # type: ignore[import-untyped]
from gemmill.arch import find_arch, host_archs, why_not_host
from gemmill.device import why_no_hip_device
from gemmill.cache import NATIVE
from gemmill.errors import GemmillError, UnsupportedError

from kernels.arguments import ARGUMENTS, COMMANDS, Options, UsageError, parse
from kernels.build import Build, Outcome, State
from kernels.catalogue import load_catalogue
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths
from kernels.reporter import Reporter
from kernels.resources import default_jobs
from kernels.simulator import SIMULATED_BACKENDS, Simulator

STAGES = ("codegen", "compile", "selftest")

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
    configs : list of KernelConfig
        The kernels of the selected archs, variants, families, layouts and output types.
    selected : dict of str to list of KernelConfig
        The kernels of each stage's tasks.
    skipped : dict of str to str
        Archs whose selftests were left out because this machine can't run them, and why.
    refused : dict of str to int
        Why kernels that were asked for can't be built by this provider, and how many have that reason.
    """

    def __init__(self, options: Options, paths: Paths = CHECKOUT) -> None:
        self.options = options
        self.paths = Paths.of(paths.root, options.cache or paths.cache, paths.build)
        self.notice: Callable[[str], None] = lambda text: print(text, file=sys.stderr)
        self.build = Build(
            self.paths, options.toolchain, lambda text: self.notice(text), provider=options.provider
        )
        self.simulator = Simulator(self.paths)
        self.catalogue = load_catalogue()
        self.configs = self._configs(options.arch or (host_archs()[0].name,))
        self._state: State | None = None
        self._running = 0
        self._idle = threading.Condition()
        self.skipped: dict[str, str] = {}
        self.refused: Counter[str] = Counter()
        self.selected = self._select(options.words if options.command == "build" else ())

    def find(self, words: Iterable[str]) -> list[KernelConfig]:
        """Return the kernels that names or patterns mean; all selected ones when there are none."""
        patterns = list(words)
        found = {config.id: config for word in patterns for _, config in self._match(word)}
        return list(found.values()) if patterns else self.configs

    def check_backends(self) -> None:
        """Raise UnsupportedError, once and not a kernel at a time, where a backend or a compiler is missing."""
        for arch in dict.fromkeys(config.arch for config in self.selected["codegen"]):
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
            "num_process": self.jobs,
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
        return self._task("codegen", config, self.run_codegen, self.build.codegen.is_current)

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
        return shlex.join(["./mill", *given, task])

    # What the tasks do

    def is_compiled(self, config: KernelConfig) -> bool:
        """Tell whether the cache has a whole object for what the kernel is now."""
        state = self.build.state(config)
        # doit asks about the selftest next; what a compile changed is asked anew.
        self._state = state if state.current else None
        return state.current

    def is_tested(self, config: KernelConfig) -> bool:
        """Tell whether that object passed its selftest."""
        state = self._state if self._state and self._state.config == config else self.build.state(config)
        return state.current and state.object is not None and state.object.outcome in GOOD

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
        return {"outcome": done.status, "message": done.message}

    def run_selftest(self, config: KernelConfig) -> dict[str, Any] | KernelFailed:
        """Test a kernel in a child process."""
        # Imported here, because a run with nothing to do needs neither.
        from gemmill.cache import Cache
        from gemmill.selftest import run_selftest

        from kernels import process

        reason = why_not_here(config.arch)
        if reason and not self._is_simulated(config.arch):
            return KernelFailed(reason, "not runnable")
        key = self.build.state(config).key
        try:
            with self.simulator.device(self.build.codegen.path(config)) if reason else nullcontext() as device:
                record = run_selftest(
                    Cache(self.paths.cache), key, timeout=self.options.timeout, run=process.run, simulated=device
                )
        except (GemmillError, OSError) as error:
            return KernelFailed(str(error), "no simulation")
        if record["outcome"] not in GOOD:
            return KernelFailed(str(record["reason"]), f"selftest {record['outcome']}")
        said: dict[str, Any] = {"outcome": record["outcome"]}
        if record["errors"]:
            said["error"] = max(record["errors"].values())
        return said if record["saved"] else {**said, "message": record["not_saved"]}

    # Selection

    def _configs(self, archs: Iterable[str]) -> list[KernelConfig]:
        options = self.options
        configs = [
            config
            for arch in archs
            for config in self.catalogue.configs(
                arch, options.variant or None, options.family or None, options.layout or None, options.out
            )
        ]
        if not configs:
            asked = " ".join(
                f"{name}={','.join(getattr(options, name))}"
                for name in ("arch", "variant", "family", "layout", "out")
                if getattr(options, name)
            )
            rows = "; ".join(f"{family}: {', '.join(names)}" for family, names in self.catalogue.layouts.items())
            raise UsageError(f"no kernel has {asked}; layouts by family are {rows}")
        return configs

    def _select(self, words: Iterable[str]) -> dict[str, list[KernelConfig]]:
        wanted: dict[str, dict[str, KernelConfig]] = {stage: {} for stage in STAGES}
        for word in words:
            for stage, config in self._match(word):
                wanted[stage][config.id] = config
        if not any(wanted.values()):
            everything = {config.id: config for config in self.configs}
            runnable = {i: c for i, c in everything.items() if not self._is_skipped(c.arch)}
            wanted = {"codegen": everything, "compile": everything, "selftest": runnable}
        wanted["compile"] = wanted["compile"] | wanted["selftest"]
        wanted["codegen"] = wanted["codegen"] | wanted["compile"]
        refused = self._refuse(wanted["codegen"].values()) if self.options.command == "build" else set()
        return {stage: [c for c in configs.values() if c not in refused] for stage, configs in wanted.items()}

    def _refuse(self, configs: Iterable[KernelConfig]) -> set[KernelConfig]:
        """Return the kernels that the provider can't build; raise UnsupportedError where it can build none."""
        reasons = {config: reason for config in configs if (reason := self.build.why_not(config))}
        self.refused.update(reasons.values())
        if reasons and len(reasons) == len(list(configs)):
            said = "\n".join(f"  {_kernels(number)}: {reason}" for reason, number in self.refused.items())
            raise UnsupportedError(f"provider={self.options.provider} can build none of what was asked for:\n{said}")
        return set(reasons)

    def _is_simulated(self, arch: str) -> bool:
        """Tell whether selftests for `arch` run on a simulated device where the real one is not here."""
        return find_arch(arch).backend in SIMULATED_BACKENDS and self.options.provider == NATIVE

    def _is_skipped(self, arch: str) -> bool:
        if arch not in self.skipped:
            reason = why_not_here(arch)
            if reason is None or self._is_simulated(arch):
                return False
            self.skipped[arch] = reason
        return True

    def _match(self, word: str) -> list[tuple[str, KernelConfig]]:
        """Return the (stage, kernel) pairs that a task, a name or a pattern means."""
        found = _matches(word, self.configs)
        if not found and not self.options.arch and "/" in word:
            # It names another arch than this machine's.
            found = _matches(word, self._configs(self.catalogue.archs))
        if found:
            return found
        archs = ", ".join(dict.fromkeys(config.arch for config in self.configs))
        near = _near(word, [f"{stage}:{config.id}" for stage in STAGES for config in self.configs])
        hint = "\n  ".join(["near are", *near] if near else ["tasks look like", f"selftest:{self.configs[0].id}"])
        raise UsageError(f"nothing matches {word!r} among {len(self.configs)} kernels of {archs}; {hint}")

    def _chains(self) -> list[str]:
        """Return the last task of every chain: doit then goes kernel by kernel, not stage by stage."""
        last = {config.id: stage for stage in STAGES for config in self.selected[stage]}
        return [f"{stage}:{name}" for name, stage in last.items()]


def _matches(word: str, configs: list[KernelConfig]) -> list[tuple[str, KernelConfig]]:
    if word in STAGES:
        return [(word, config) for config in configs]
    is_match = re.compile(fnmatch.translate(word)).match
    found = [(stage, config) for config in configs for stage in STAGES if is_match(f"{stage}:{config.id}")]
    # Without a stage, the whole chain.
    return found or [("selftest", config) for config in configs if is_match(config.name) or is_match(config.id)]


def _near(word: str, tasks: list[str]) -> list[str]:
    """Return what somebody who typed `word` may have meant: a word of ours, or tasks with parts like its parts."""
    near = difflib.get_close_matches(word, [*COMMANDS, *STAGES, *tasks], 3, 0.75)
    if near:
        return near
    pattern = word
    for part in re.split(r"[*?\[\]:/]+", word):
        if part and not any(part in task for task in tasks):
            # Pieces of task names, as many words long.
            length = part.count("_") + 1
            pieces = {
                "_".join(words[i : i + length])
                for words in (re.split("[:/_]", task) for task in tasks)
                for i in range(len(words) - length + 1)
            }
            closest = difflib.get_close_matches(part, sorted(pieces), 1)
            if not closest:
                return []
            pattern = pattern.replace(part, closest[0])
    return [] if pattern == word else [pattern, *fnmatch.filter(tasks, f"*{pattern}*")[:2]]


def why_not_here(arch: str) -> str | None:
    """Say why this machine can't run kernels for `arch`; None where it can."""
    row = find_arch(arch)
    if row.backend == "cpu":
        return why_not_host(row)
    if row.backend == "hip":
        return why_no_hip_device(row)
    return f"{arch} needs the {row.backend} backend"


def _kernels(number: int) -> str:
    return f"{number} kernel{'' if number == 1 else 's'}"


@functools.cache
def graph_of_command_line() -> Graph:
    """Return the graph for the ``name=value`` arguments that doit was given."""
    given: Graph | None = get_var("graph")  # by ./mill
    values = {name: get_var(name) for name in ARGUMENTS}
    return given or Graph(parse([f"{name}={value}" for name, value in values.items() if value is not None]))
