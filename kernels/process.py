"""Child processes that end when we end. Full text follows; the interface is what stands here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def run(
    argv: Sequence[str],
    timeout: float | None = None,
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    """Run a command in a process group of its own and return (returncode, stdout, stderr).

    A negative return code is a signal's number. At the time limit the whole group is killed and TimeoutExpired
    (of the subprocess module) is raised with what was written so far. After `stop`, raises Stopped.
    """
    raise NotImplementedError


def stop() -> None:
    """Kill the groups of all running children and let no new one start. Safe in a signal handler."""
    raise NotImplementedError
