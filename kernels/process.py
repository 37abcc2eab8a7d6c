"""Child processes that end when we end.

Each command runs in a session of its own, so that it can be killed with everything it started. Three endings are
covered: its time limit, `stop` (a signal handler calls it), and our own death by SIGKILL, where the kernel sends
SIGKILL to the direct child (PR_SET_PDEATHSIG, set through util-linux's setpriv; where that is missing, a compiler
runs to its end and its output is swept up later). "Our" means the thread that started the child, which is why `run`
waits in that thread. A grandchild such as cc1plus may live on for the seconds that its file takes; it writes to a
directory that nobody will publish.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

OUTPUT_LIMIT = 1 << 20  # bytes kept of each stream; the middle is dropped

_POLL = 0.1  # seconds; only how late we notice an exit whose pipes a grandchild keeps open


class Stopped(Exception):
    """The run was asked to stop: no child is started any more, and the running ones were killed."""


class Children:
    """The running children of one run."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may call stop() in the thread that is starting a child.
        self._lock = threading.RLock()
        self._groups: set[int] = set()
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """True after `stop`."""
        return self._stopped

    def run(
        self,
        argv: Sequence[str],
        timeout: float | None = None,
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> tuple[int, str, str]:
        """Run a command and return (returncode, stdout, stderr).

        Parameters
        ----------
        argv : sequence of str
            The command; its first word is looked up in PATH.
        timeout : float, optional
            Seconds.
        cwd, env : optional
            As subprocess has them.

        Returns
        -------
        tuple
            A negative return code is a signal's number. Text that is not UTF-8 is kept with replacement
            characters, and of very long output the middle is left out.

        Raises
        ------
        subprocess.TimeoutExpired
            At the time limit; everything the command started was killed, and what it had written is attached.
        Stopped
            When `stop` was called, before or meanwhile.
        FileNotFoundError
            If there is no such command.
        """
        child = self._start([*_die_with_parent(), *_resolve(argv, env)], cwd, env)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            in_time, streams = _collect(child, deadline)
        finally:
            self._end(child)
        if self._stopped:
            raise Stopped("stopped")
        out, err = (stream.text() for stream in streams)
        if not in_time:
            assert timeout is not None
            raise subprocess.TimeoutExpired(list(argv), timeout, out.encode(), err.encode())
        return child.returncode, out, err

    def stop(self) -> None:
        """Kill all running children and let no new one start. Safe in a signal handler."""
        self._stopped = True
        with self._lock:
            for group in self._groups:
                _kill_group(group)

    def _start(self, argv: list[str], cwd: str | Path | None, env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise Stopped("stopped")
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
            self._groups.add(child.pid)
            if self._stopped:  # by a signal handler, while Popen ran
                _kill_group(child.pid)
        return child

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        # The group first: once the child is reaped, its number may be given to somebody else.
        with self._lock:
            self._groups.discard(child.pid)
            _kill_group(child.pid)
        child.wait()
        for pipe in (child.stdout, child.stderr):
            assert pipe is not None
            pipe.close()


class _Stream:
    """The head and the tail of what a stream said."""

    def __init__(self) -> None:
        self.head, self.tail, self.dropped = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        room = max(OUTPUT_LIMIT // 2 - len(self.head), 0)
        self.head += data[:room]
        self.tail += data[room:]
        excess = len(self.tail) - OUTPUT_LIMIT // 2
        if excess > 0:
            del self.tail[:excess]
            self.dropped += excess

    def text(self) -> str:
        gap = f"\n... {self.dropped} bytes left out ...\n" if self.dropped else ""
        return self.head.decode(errors="replace") + gap + self.tail.decode(errors="replace")


def _collect(child: subprocess.Popen[bytes], deadline: float | None) -> tuple[bool, tuple[_Stream, _Stream]]:
    """Read both pipes until the child has ended; False when the deadline came first."""
    streams = (_Stream(), _Stream())
    with selectors.DefaultSelector() as selector:
        for pipe, stream in zip((child.stdout, child.stderr), streams, strict=True):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, stream)
        while selector.get_map():
            ended = _has_ended(child)
            left = _POLL if deadline is None else min(deadline - time.monotonic(), _POLL)
            if left <= 0 and not ended:
                return False, streams
            ready = selector.select(0 if ended else left)
            for key, _ in ready:
                with contextlib.suppress(BlockingIOError):
                    data = os.read(key.fd, 1 << 16)
                    key.data.add(data)
                    if not data:
                        selector.unregister(key.fileobj)
            if ended and not ready:  # a grandchild holds the pipe
                break
    while not _has_ended(child):  # it closed its pipes and goes on
        if deadline is not None and time.monotonic() >= deadline:
            return False, streams
        time.sleep(0.001)
    return True, streams


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    # WNOWAIT leaves the zombie, which keeps the group's number ours until _end has killed the group.
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _resolve(argv: Sequence[str], env: Mapping[str, str] | None) -> list[str]:
    path = (os.environ if env is None else env).get("PATH")
    program = argv[0] if os.sep in argv[0] else shutil.which(argv[0], path=path)
    if program is None or not Path(program).exists():
        raise FileNotFoundError(f"failed to run {argv[0]}: no such command")
    return [program, *argv[1:]]


@functools.cache
def _die_with_parent() -> tuple[str, ...]:
    # Not preexec_fn: it runs Python between fork and exec, which may deadlock where other threads hold locks.
    setpriv = shutil.which("setpriv") if os.uname().sysname == "Linux" else None
    if setpriv is None:
        return ()
    probe = [setpriv, "--pdeathsig", "KILL", "--", setpriv, "--version"]
    works = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    return tuple(probe[:4]) if works else ()


CHILDREN = Children()
run = CHILDREN.run
stop = CHILDREN.stop
