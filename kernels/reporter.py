"""What a run prints: progress while it goes, a table of kernels at the end, and what failed, last.

doit calls the methods of `Reporter`. Those of tasks that start come from worker threads, all others from the main one.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TextIO

from kernels.config import KernelConfig
from kernels.interrupt import reader_gone
from kernels.progress import Progress, duration, is_terminal

_COLOURS = {"red": "31", "green": "32", "yellow": "33"}


@dataclass
class Row:
    """One kernel's line of the table.

    Attributes
    ----------
    config : KernelConfig
    outcome : str
        Of the last stage that ran or failed; empty while all were up to date.
    seconds : float
        Of the stages that ran.
    error : float or None
        The worst error of the selftest relative to its bound: 1 is the bound.
    """

    config: KernelConfig
    outcome: str = ""
    ok: bool = True
    seconds: float = 0.0
    error: float | None = None


@dataclass
class Failure:
    """What is said about a failed task."""

    task: str
    message: str
    repeat: list[str] = field(default_factory=list)


class Reporter:
    """doit's reporter for kernels.

    Parameters
    ----------
    outstream : text file
    options : dict
        doit's; not used.
    """

    desc = "progress line, table of kernels, failures last"

    def __init__(self, outstream: TextIO, options: dict[str, Any] | None = None) -> None:
        self.stream = outstream
        self.live = is_terminal(outstream)
        self.colour = outstream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.rows: dict[str, Row] = {}
        self.failures: list[Failure] = []
        self.warnings: list[Failure] = []
        self.errors: list[str] = []
        self.graph: Any = None
        self.progress = Progress(outstream, {}, 1, live=False)

    def initialize(self, tasks: dict[str, Any], selected_tasks: list[str]) -> None:
        """Learn what there is to do."""
        totals: Counter[str] = Counter()
        for task in tasks.values():
            if task.meta:
                totals[task.meta["stage"]] += 1
                self.graph = task.meta["graph"]
                self.rows.setdefault(task.meta["config"].id, Row(task.meta["config"]))
        if self.graph:
            self.progress = Progress(self.stream, totals, self.graph.jobs, self.live)
            self.graph.notice = self.progress.say

    def get_status(self, task: Any) -> None:
        """Doit is about to ask whether a task is up to date."""

    def execute_task(self, task: Any) -> None:
        """Note that a task starts."""
        if task.meta:
            self.progress.start(task.meta["stage"], task.meta["config"].id)

    def add_success(self, task: Any) -> None:
        """Note that a task has done its work."""
        if not task.meta:
            return
        stage, row = task.meta["stage"], self.rows[task.meta["config"].id]
        said = task.values
        took = self.progress.finish(stage, row.config.id, ok=True)
        row.seconds += took
        row.outcome = said["outcome"]
        row.error = said.get("error", row.error)
        if said.get("message"):
            self.warnings.append(Failure(task.name, said["message"]))
        if stage != "codegen":  # milliseconds each: not worth a line
            self._tell(task.name, row.outcome, took)

    def add_failure(self, task: Any, fail: Any) -> None:
        """Note that a task failed, or can't run because one before it did."""
        if not task.meta:
            return
        stage, row = task.meta["stage"], self.rows[task.meta["config"].id]
        if not task.executed:
            self.progress.skip(stage)
            if not row.outcome:  # its dependency was left out, which doit calls a failure too
                row.outcome, row.ok = "not run", False
            return
        took = self.progress.finish(stage, row.config.id, ok=False)
        row.seconds += took
        row.ok = False
        row.outcome = getattr(fail, "outcome", f"{stage} failed")
        # An exception that no task expects is a defect of ours: show where it was raised.
        message = fail.message if hasattr(fail, "outcome") else fail.get_msg()
        repeat = [fail.repeat] if getattr(fail, "repeat", "") else []
        self.failures.append(Failure(task.name, message, [*repeat, self.graph.command(task.name)]))
        self._tell(task.name, row.outcome, took, "red")

    def skip_uptodate(self, task: Any) -> None:
        """Count a task with nothing to do."""
        if task.meta:
            self.progress.skip(task.meta["stage"])
            row = self.rows[task.meta["config"].id]
            if row.outcome == "generated":  # from what was known: the kernel itself has not changed
                row.outcome = ""

    def skip_ignore(self, task: Any) -> None:
        """Count a task that doit was told to ignore."""
        self.skip_uptodate(task)

    def cleanup_error(self, exception: Any) -> None:
        """Keep an error of doit's own for the end."""
        self.errors.append(exception.get_msg())

    def runtime_error(self, msg: str) -> None:
        """Keep an error of doit's own for the end."""
        self.errors.append(msg)

    def teardown_task(self, task: Any) -> None:
        """No task has a teardown."""

    def complete_run(self) -> None:
        """Print the table, then what failed, then one line that sums up."""
        # doit comes here while the exception of a signal passes through it, too.
        stopped = sys.exc_info()[0] is not None
        self.progress.close()
        changed = [row for row in self.rows.values() if row.outcome]
        if changed:
            self._print(*self._table(changed), "")
        for said, title in ((self.warnings, "warnings"), (self.failures, "FAILED")):
            for one in said:
                self._print(self._paint(f"{title} {one.task}", "red" if title == "FAILED" else "yellow"))
                self._print(*(f"    {line}" for line in one.message.splitlines()))
                self._print(*(f"    repeat: {command}" for command in one.repeat), "")
        self._print(*self.errors)
        if self.graph:
            self._print(*(f"selftest left out: {reason}" for reason in self.graph.selection.skipped.values()))
            self._print(*(f"refused, {_count(n, 'kernel')}: {reason}" for reason, n in self.graph.refused.items()))
            notes = dict.fromkeys(note for row in self.rows.values() for note in self.graph.build.notes(row.config))
            self._print(*(f"note: {note}" for note in notes))
        self._print(self._summary(stopped))
        if self.graph:
            self.graph.unwritten = self.progress.lost

    def _table(self, rows: list[Row]) -> list[str]:
        lines = [f"{'outcome':<15} {'seconds':>8} {'error':>7}  kernel"]
        for row in rows:
            error = "" if row.error is None else f"{row.error:.3f}"
            outcome = self._paint(f"{row.outcome:<15}", "" if row.ok else "red")
            lines.append(f"{outcome} {row.seconds:>8.2f} {error:>7}  {row.config.id}")
        return lines

    def _summary(self, stopped: bool) -> str:
        counts = Counter(row.outcome or "up to date" for row in self.rows.values())
        kernels = _count(len(self.rows), "kernel")
        archs = ", ".join(dict.fromkeys(row.config.arch for row in self.rows.values()))
        took = duration(self.progress.clock() - self.progress.begin)
        if stopped:
            left = self.progress.total - self.progress.done
            return self._paint(f"stopped after {took}: {_count(left, 'task')} of {self.progress.total} left", "yellow")
        where = self._where()
        if list(counts) == ["up to date"]:
            return f"{kernels} up to date ({archs}){where}"
        bad = any(not row.ok for row in self.rows.values()) or bool(self.errors)
        said = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        return self._paint(f"{kernels} ({archs}): {said}; {took}{where}", "red" if bad else "green")

    def _where(self) -> str:
        # What a user exports as GEMMILL_CACHE, ready for a shell.
        if not self.graph or not self.graph.selected["compile"]:
            return ""
        return f"; cache: {shlex.quote(str(self.graph.paths.cache))}"

    def _tell(self, task: str, outcome: str, took: float, colour: str = "") -> None:
        # On a terminal the line shows it; only failures stay above it.
        if not self.live or colour:
            done = f"[{self.progress.done}/{self.progress.total}]"
            self.progress.say(f"{done} {task} {self._paint(outcome, colour)} {duration(took)}")
        if self.progress.broken:
            raise reader_gone()

    def _print(self, *lines: str) -> None:
        self.progress.write("".join(line + "\n" for line in lines))

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colour and colour else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
