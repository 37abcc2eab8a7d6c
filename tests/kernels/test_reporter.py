"""What a run prints, from the calls that doit makes."""

import io
import re
import shlex
from types import SimpleNamespace

import pytest
from doit.exceptions import TaskError

from kernels.arguments import parse
from kernels.graph import Graph, KernelFailed
from kernels.paths import CHECKOUT
from kernels.reporter import Reporter, Row
from kernels.selection import STAGES

UP_TO_DATE = f"2 kernels up to date (generic); cache: {shlex.quote(str(CHECKOUT.cache))}"


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Run:
    """A reporter with the tasks of two kernels."""

    def __init__(self, stream=None, args=()):
        self.graph = Graph(parse(["arch=generic", "variant=fp8", "layout=rcr", *args]))
        self.first, self.second = self.graph.selected["codegen"]
        self.tasks = {
            f"{stage}:{config.id}": SimpleNamespace(
                name=f"{stage}:{config.id}",
                meta={"stage": stage, "config": config, "graph": self.graph},
                values={},
                executed=False,
            )
            for stage in STAGES
            for config in self.graph.selected[stage]
        }
        self.stream = stream or io.StringIO()
        self.reporter = Reporter(self.stream)
        self.reporter.initialize(self.tasks, list(self.tasks))

    def task(self, stage, config):
        return self.tasks[f"{stage}:{config.id}"]

    def succeed(self, stage, config, outcome, **values):
        task = self.task(stage, config)
        task.executed = True
        task.values = {"outcome": outcome, **values}
        self.reporter.execute_task(task)
        self.reporter.add_success(task)

    def fail(self, stage, config, failure):
        task = self.task(stage, config)
        task.executed = True
        self.reporter.execute_task(task)
        self.reporter.add_failure(task, failure)

    def skip(self, *stages, config):
        for stage in stages:
            self.reporter.skip_uptodate(self.task(stage, config))

    def end(self):
        self.reporter.complete_run()
        return self.stream.getvalue().splitlines()


@pytest.fixture
def run():
    return Run()


def test_nothing_to_do_is_one_line(run):
    for config in (run.first, run.second):
        run.skip(*STAGES, config=config)
    assert run.end() == [UP_TO_DATE]


@pytest.mark.parametrize("args", [["codegen"], []])
def test_the_cache_is_named_as_a_shell_takes_it(args, tmp_path):
    run = Run(args=[*args, f"cache={tmp_path}/my kernels"])
    run.succeed("codegen", run.first, "generated")
    end = "" if args else f"; cache: '{tmp_path}/my kernels'"  # codegen alone puts nothing there
    assert re.fullmatch(rf"2 kernels \(generic\): 1 generated, 1 up to date; [0-9.]+ s{re.escape(end)}", run.end()[-1])


def test_plain_lines_then_a_table_then_the_sum(run):
    run.skip(*STAGES, config=run.second)
    run.succeed("codegen", run.first, "generated")
    run.succeed("compile", run.first, "built", message="")
    run.succeed("selftest", run.first, "passed", error=0.4321)
    lines = run.end()
    assert lines[0].startswith(f"[5/6] compile:{run.first.id} built ")
    assert lines[1].startswith(f"[6/6] selftest:{run.first.id} passed ")
    assert lines[2].split() == ["outcome", "seconds", "error", "kernel"]
    assert lines[3].split()[0] == "passed"
    assert lines[3].split()[2:] == ["0.432", run.first.id]
    assert lines[4] == ""
    assert lines[5].startswith("2 kernels (generic): 1 passed, 1 up to date; ")
    assert len(lines) == 6, "kernels with nothing to do are not in the table"
    assert "\x1b" not in "".join(lines)


def test_failures_come_last_with_message_and_commands(run, monkeypatch):
    monkeypatch.setenv("MILL_CWD", str(CHECKOUT.root))
    monkeypatch.delenv("CXX", raising=False)
    run.fail("compile", run.first, KernelFailed("a.h:1: error: x\n  note", "compile failed", "g++ 'a b'"))
    run.reporter.add_failure(run.task("selftest", run.first), TaskError("unmet"))
    run.succeed("selftest", run.second, "passed", error=0.1)
    lines = run.end()
    begin = lines.index(f"FAILED compile:{run.first.id}")
    assert lines[begin + 1 : begin + 6] == [
        "    a.h:1: error: x",
        "      note",
        "    repeat: g++ 'a b'",
        f"    repeat: ./mill compile:{run.first.id}",
        "",
    ]
    assert lines[begin + 6].startswith("2 kernels (generic): ")
    assert "1 compile failed" in lines[-1]
    assert sum(line.startswith("compile failed ") for line in lines) == 1


def test_dependents_of_an_earlier_failure_are_not_run_and_said_so(run):
    run.reporter.add_failure(run.task("selftest", run.first), TaskError("unmet"))
    run.skip(*STAGES, config=run.second)
    lines = run.end()
    assert any(line.startswith("not run ") for line in lines)
    assert not any(line.startswith("FAILED") for line in lines)


def test_an_exception_in_a_task_shows_where_it_came_from(run):
    try:
        raise ZeroDivisionError("ours")
    except ZeroDivisionError as error:
        run.fail("compile", run.first, TaskError("PythonAction Error", error))
    text = "\n".join(run.end())
    assert "ZeroDivisionError: ours" in text
    assert "test_reporter.py" in text
    assert "compile failed" in text


def test_warnings_are_shown_apart_from_failures(run):
    run.succeed("compile", run.first, "built", message="x.h:3: warning: unused")
    lines = run.end()
    assert f"warnings compile:{run.first.id}" in lines
    assert "    x.h:3: warning: unused" in lines


def test_a_stopped_run_says_what_is_left(run):
    run.succeed("codegen", run.first, "generated")
    with pytest.raises(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt
        finally:
            run.end()
    assert run.stream.getvalue().splitlines()[-1].endswith(": 5 tasks of 6 left")


def test_selftests_left_out_are_said(run):
    run.graph.selection.skipped["generic"] = "generic needs luck"
    for config in (run.first, run.second):
        run.skip(*STAGES, config=config)
    assert run.end() == ["selftest left out: generic needs luck", UP_TO_DATE]


def test_terminal_has_a_line_that_goes_away(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    run = Run(Terminal())
    run.succeed("compile", run.first, "built")
    run.fail("selftest", run.first, KernelFailed("wrong", "selftest failed"))
    run.end()
    text = run.stream.getvalue()
    assert "[1/6]" in text
    assert "\r\x1b[K" in text
    assert "\x1b[31m" in text
    # What stays when every redrawn part is taken away.
    kept = [part for part in text.split("\r\x1b[K") if part.endswith("\n")]
    assert kept[0].startswith("[2/6] selftest:")
    assert kept[1].splitlines()[0].startswith("outcome")


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    run = Run(Terminal())
    run.fail("compile", run.first, KernelFailed("wrong", "compile failed"))
    run.end()
    assert "\x1b[3" not in run.stream.getvalue()


def test_nothing_to_do_draws_nothing_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    run = Run(Terminal())
    for config in (run.first, run.second):
        run.skip(*STAGES, config=config)
    assert run.end() == [UP_TO_DATE]


def test_kernels_of_two_archs_with_one_name_are_timed_apart(run):
    """As one, the second would end before it had started."""
    configs = Graph(parse(["arch=gfx90a,gfx942", "variant=fp8", "layout=rcr", "family=decode"])).selected["compile"]
    assert len(configs) == 2 and configs[0].name == configs[1].name
    ticks = iter(range(1, 100))
    run.reporter.progress.clock = lambda: next(ticks)
    tasks = [
        SimpleNamespace(name=c.id, meta={"stage": "compile", "config": c}, values={"outcome": "built"}) for c in configs
    ]
    for config in configs:
        run.reporter.rows[config.id] = Row(config)
    for task in tasks:
        run.reporter.execute_task(task)
    for task in tasks:
        run.reporter.add_success(task)
    assert all(run.reporter.rows[config.id].seconds > 1 for config in configs)
