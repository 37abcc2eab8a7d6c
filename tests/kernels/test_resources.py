"""How many jobs a machine gets."""

import os

import pytest

from kernels import resources
from kernels.resources import BYTES_A_JOB, available_cores, available_memory, default_jobs


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@pytest.fixture
def proc(tmp_path):
    return write(tmp_path / "proc", meminfo="MemTotal:  9999999 kB\nMemAvailable:   1048576 kB\n")


def test_memory_is_what_the_machine_has_left(tmp_path, proc):
    assert available_memory(proc, tmp_path / "none") == 2**30


def test_a_control_group_may_leave_less(tmp_path, proc):
    group = write(tmp_path / "group", memory_max="1000000\n", memory_current="400000\n")
    assert available_memory(proc, group) == 600000
    assert available_memory(proc, write(group, memory_max="max\n")) == 2**30
    assert available_memory(proc, write(group, memory_max="5\n")) == 0


def test_unknown_memory_is_none(tmp_path):
    assert available_memory(tmp_path, tmp_path) is None


@pytest.mark.parametrize(("text", "at_most"), [("max 100000\n", None), ("150000 100000\n", 2), ("10000 100000\n", 1)])
def test_cores_follow_affinity_and_quota(tmp_path, text, at_most):
    affinity = len(os.sched_getaffinity(0))
    group = write(tmp_path / "group", cpu_max=text)
    assert available_cores(group) == min(affinity, at_most or affinity)
    assert available_cores(tmp_path / "none") == affinity


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"), [(8, None, 8), (8, 3 * BYTES_A_JOB, 3), (2, 100 * BYTES_A_JOB, 2), (4, 0, 1)]
)
def test_jobs(monkeypatch, cores, memory, jobs):
    monkeypatch.setattr(resources, "available_cores", lambda: cores)
    monkeypatch.setattr(resources, "available_memory", lambda: memory)
    assert default_jobs() == jobs
