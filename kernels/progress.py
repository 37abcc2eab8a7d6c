"""The progress line: counts, rate and time left, on a terminal; nothing elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import TextIO

_TICK = 0.5  # seconds between refreshes while nothing ends
_ERASE = "\r\x1b[K"


def is_terminal(stream: TextIO, env: Mapping[str, str] = os.environ) -> bool:
    """Tell whether `stream` is a terminal that can rewrite a line."""
    return stream.isatty() and env.get("TERM", "dumb") != "dumb"


def duration(seconds: float) -> str:
    """Return a duration for people: 4.2 s, 1:05, 2:03:04."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


class Progress:
    """What is done and what is left, drawn on the last line of a terminal.

    Parameters
    ----------
    stream : text file
    totals : mapping of str to int
        How many tasks each stage has.
    jobs : int
        How many run at a time.
    live : bool
        Draw the line; False only counts.
    clock : callable

    Attributes
    ----------
    broken : bool
        Nobody reads the stream any more.
    lost : OSError or None
        Why something could not be written, as on a full disk.
    """

    def __init__(
        self,
        stream: TextIO,
        totals: Mapping[str, int],
        jobs: int,
        live: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream, self.totals, self.jobs, self.live, self.clock = stream, dict(totals), jobs, live, clock
        self.begin = clock()
        self.failed = 0
        self._done: Counter[str] = Counter()
        self._ran: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._running: dict[tuple[str, str], float] = {}
        # Reentrant: a signal may end a draw in the main thread, and what cleans up draws again.
        self._lock = threading.RLock()
        self._ticker: threading.Thread | None = None
        self._closed = threading.Event()
        self._drawn = False
        self.broken = False
        self.lost: OSError | None = None

    @property
    def total(self) -> int:
        """All tasks."""
        return sum(self.totals.values())

    @property
    def done(self) -> int:
        """Tasks that ended or had nothing to do."""
        return sum(self._done.values())

    def skip(self, stage: str) -> None:
        """Count a task that had nothing to do, or can't run."""
        self._done[stage] += 1

    def start(self, stage: str, name: str) -> None:
        """Note that a task runs now; called from any thread."""
        with self._lock:
            self._running[stage, name] = self.clock()
            if self.live and self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, daemon=True)
                self._ticker.start()
        self.draw()

    def finish(self, stage: str, name: str, ok: bool) -> float:
        """Note that a task has ended, and return the seconds it took."""
        with self._lock:
            seconds = self.clock() - self._running.pop((stage, name), self.clock())
            self._done[stage] += 1
            self._ran[stage] += 1
            self._seconds[stage] += seconds
            self.failed += not ok
        self.draw()
        return seconds

    def seconds_left(self) -> float | None:
        """Return an estimate from each stage's mean, None before there is one."""
        left = 0.0
        for stage, total in self.totals.items():
            rest = total - self._done[stage]
            if rest and not self._ran[stage]:
                return None
            left += rest * self._seconds[stage] / max(self._ran[stage], 1)
        return left / max(1, min(self.jobs, self.total - self.done))

    def line(self, width: int) -> str:
        """Return the progress line, no longer than `width`."""
        elapsed = self.clock() - self.begin
        rate = sum(self._ran.values()) / elapsed if elapsed > 0 else 0.0
        left = self.seconds_left()
        parts = [f"[{self.done}/{self.total}]"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts.append(f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.0f}/min")
        parts.append(f"{duration(left)} left" if left is not None else duration(elapsed))
        text = "  ".join(parts)
        if self._running:
            stage, name = next(iter(self._running))
            more = f" +{len(self._running) - 1}" if len(self._running) > 1 else ""
            room = width - len(text) - len(stage) - len(more) - 4
            if room > 12:
                shown = name if len(name) <= room else name[: room - 3] + "..."
                text += f"  {stage} {shown}{more}"
        # The last column stays free: some terminals wrap when it is filled.
        return text[: max(width - 1, 0)]

    def draw(self) -> None:
        """Rewrite the line."""
        if self.live and not self._closed.is_set():
            with self._lock:
                self.write(_ERASE + self.line(_width(self.stream)))
                self._drawn = True

    def say(self, text: str) -> None:
        """Print lines above the progress line."""
        with self._lock:
            self.write((_ERASE if self.live else "") + text + "\n")
        self.draw()

    def close(self) -> None:
        """Remove the line for good."""
        with self._lock:
            if self._drawn and not self._closed.is_set():
                self.write(_ERASE)
            self._closed.set()

    def write(self, text: str) -> None:
        """Write and flush. What fails is only noted: no exception may end a worker thread or the build."""
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:
            self.broken = True
        except OSError as error:
            self.lost = error

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            self.draw()


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
