"""The progress line, with a clock of our own."""

import io

import pytest

from kernels.progress import Progress, duration, is_terminal


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


def make(clock, live=False, jobs=2, **totals):
    return Progress(io.StringIO(), totals, jobs, live, clock)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (3.14, "3.1 s"), (9.99, "10.0 s"), (59.4, "59 s"), (59.6, "1:00"), (65, "1:05"), (3723, "1:02:03")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_counts_failures_and_rate(clock):
    progress = make(clock, compile=10)
    progress.skip("compile")
    for name, ok in (("a", True), ("b", False)):
        progress.start("compile", name)
        clock.now += 1
        assert progress.finish("compile", name, ok) == pytest.approx(1)
    assert progress.line(80).startswith("[3/10]  1 failed  1.0/s  ")
    clock.now += 6
    assert "15/min" in progress.line(80)


def test_time_left_weighs_stages_by_their_own_means(clock):
    progress = make(clock, jobs=2, compile=3, selftest=3)
    assert progress.seconds_left() is None
    progress.start("compile", "a")
    clock.now += 10
    progress.finish("compile", "a", True)
    assert progress.seconds_left() is None, "no selftest has ended yet"
    progress.start("selftest", "a")
    clock.now += 2
    progress.finish("selftest", "a", True)
    # Two compiles of 10 s and two selftests of 2 s, by two jobs.
    assert progress.seconds_left() == pytest.approx((2 * 10 + 2 * 2) / 2)


def test_last_task_is_not_divided_by_idle_jobs(clock):
    progress = make(clock, jobs=8, compile=2)
    progress.start("compile", "a")
    clock.now += 10
    progress.finish("compile", "a", True)
    assert progress.seconds_left() == pytest.approx(10)


@pytest.mark.parametrize("width", [0, 1, 10, 40, 80, 200])
def test_line_fits(clock, width):
    progress = make(clock, compile=1000)
    for i in range(3):
        progress.start("compile", f"{i}" * 100)
    clock.now += 1
    assert len(progress.line(width)) < max(width, 1)
    if width >= 80:
        assert "..." in progress.line(width) or width > 130
        assert progress.line(width).endswith(" +2")


def test_live_line_is_redrawn_in_place_and_removed(clock):
    progress = make(clock, live=True, compile=2)
    progress.start("compile", "kernel")
    progress.say("a line that stays")
    progress.finish("compile", "kernel", True)
    progress.close()
    text = progress.stream.getvalue()
    assert "\n".join(part for part in text.split("\r\x1b[K") if part.endswith("\n")) == "a line that stays\n"
    assert text.endswith("\r\x1b[K")
    progress.draw()
    assert progress.stream.getvalue() == text, "nothing is drawn after the end"


def test_without_a_terminal_only_said_lines_appear(clock):
    progress = make(clock, compile=1)
    progress.start("compile", "kernel")
    progress.say("text")
    progress.finish("compile", "kernel", True)
    progress.close()
    assert progress.stream.getvalue() == "text\n"


def test_is_terminal():
    assert is_terminal(Terminal(), {"TERM": "xterm"})
    assert not is_terminal(Terminal(), {"TERM": "dumb"})
    assert not is_terminal(Terminal(), {})
    assert not is_terminal(io.StringIO(), {"TERM": "xterm"})
