"""How much of this machine a build may use."""

from __future__ import annotations

import os
from pathlib import Path

# Peak of one compiler on the largest kernel, with room to spare; measured with GNU time, see docs/performance.md.
BYTES_A_JOB = 512 * 2**20


def default_jobs() -> int:
    """Return how many compilers to run at a time: one a core, fewer where memory is short."""
    memory = available_memory()
    by_memory = memory // BYTES_A_JOB if memory is not None else available_cores()
    return max(1, min(available_cores(), by_memory))


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores this process may use: by its affinity, and by its control group's share of time."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    for line in _lines(cgroup / "cpu.max"):
        quota, period = line.split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that may still be taken, by the machine and by the control group; None where unknown."""
    found = []
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    limit, used = _lines(cgroup / "memory.max"), _lines(cgroup / "memory.current")
    if limit and used and limit[0].isdigit():
        found.append(max(0, int(limit[0]) - int(used[0])))
    return min(found, default=None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []
