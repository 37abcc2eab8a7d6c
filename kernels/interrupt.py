"""Stopping a run at once and leaving nothing behind, whether by a signal or because nobody reads its output."""

from __future__ import annotations

import os
import signal
import sys
import threading


class Interrupted(BaseException):
    """The run has to stop; `number` is the signal that says why."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status, as a shell has it."""
        return 128 + self.number


def catch_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP kill all children and raise Interrupted in the main thread."""
    caught: list[int] = []

    def stop(number: int, frame: object) -> None:
        if caught:  # asked twice: no more waiting
            os._exit(128 + number)
        caught.append(number)
        stop_children()
        raise Interrupted(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, stop)


def reader_gone() -> Interrupted:
    """Stop all children, silence our output, and return what to raise when writing it met a closed pipe."""
    stop_children()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Interrupted(signal.SIGPIPE)


def stop_children() -> None:
    """Kill all children and let no new one start."""
    process = sys.modules.get("kernels.process")
    if process is not None:  # else no task has run
        process.stop()
