"""The thread pool: same bits for any number of threads, several callers, fork, cleanup, the environment variable."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from native_build import HOST_CPUS, one
from problems import random_problem

BEST = HOST_CPUS[-1]
SHAPES = [(70, 700, 600), (600, 90, 300), (16, 1500, 512)]


@pytest.fixture
def library(libraries):
    (found,) = libraries([one(BEST)])
    yield found
    found.c.dispatcher_cleanup()


def set_threads(monkeypatch, library, text: str) -> int:
    monkeypatch.setenv("GEMMILL_NUM_THREADS", text)
    library.c.dispatcher_cleanup()
    return library.c.dispatcher_initialize()


def thread_count() -> int:
    """Count this process's threads, once their number has settled: a joined one may take a moment to go."""
    counts = [-1]
    while len(counts) < 4 or len(set(counts[-4:])) > 1:
        counts.append(sum(1 for _ in Path("/proc/self/task").iterdir()))
        time.sleep(0.01)
    return counts[-1]


@pytest.mark.parametrize("arch", HOST_CPUS)
def test_same_bits_for_any_number_of_threads(arch, libraries, monkeypatch):
    for library in libraries([one(arch), one(arch, "fp8i4", "crr")]):
        for shape in SHAPES:
            p = random_problem(library.config, shape)
            results = []
            for count in ("1", "2"):
                assert set_threads(monkeypatch, library, count) == 0
                results.append(library.run_packed(p).tobytes())
            assert results[0] == results[1]
        library.c.dispatcher_cleanup()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_threads_start_late_and_end_with_cleanup(library, monkeypatch):
    before = thread_count()
    assert set_threads(monkeypatch, library, "2") == 0
    library.run_packed(random_problem(library.config, (4, 4, 4)))
    assert thread_count() == before
    library.run_packed(random_problem(library.config, SHAPES[0]))
    assert thread_count() == before + 1
    library.c.dispatcher_cleanup()
    assert thread_count() == before


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", " 2", "99999999999999999999"])
def test_bad_variable(library, monkeypatch, text):
    assert set_threads(monkeypatch, library, text) == -1
    assert library.error == f'GEMMILL_NUM_THREADS = "{text}": expected an integer from 1 to 1000000'


@pytest.mark.parametrize("text", ["", "1000000"])
def test_variable_that_changes_nothing(library, monkeypatch, text):
    assert set_threads(monkeypatch, library, text) == 0


def test_several_callers(library):
    """Threads with problems of their own, small and large, and one that keeps closing the pool."""
    problems = [random_problem(library.config, shape, i) for i, shape in enumerate([*SHAPES, (3, 5, 130)])]
    expected = [library.run_packed(p).tobytes() for p in problems]
    wrong, done = [], threading.Event()

    def work(i: int) -> None:
        for _ in range(20):
            if library.run_packed(problems[i]).tobytes() != expected[i]:
                wrong.append(i)

    def close() -> None:
        while not done.wait(0.002):
            library.c.dispatcher_cleanup()

    workers = [threading.Thread(target=work, args=(i % 4,)) for i in range(6)]
    closer = threading.Thread(target=close)
    for thread in (*workers, closer):
        thread.start()
    for thread in workers:
        thread.join(60)
    done.set()
    closer.join(60)
    assert not wrong and not any(thread.is_alive() for thread in (*workers, closer))


def test_fork(library):
    """A child can multiply, in parallel too, whatever the parent's pool was doing; and so can the parent after."""
    p = random_problem(library.config, SHAPES[0])
    expected = library.run_packed(p).tobytes()
    busy = threading.Thread(target=lambda: [library.run_packed(p) for _ in range(30)])
    busy.start()
    children = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            ok = library.run_packed(p).tobytes() == expected
            library.c.dispatcher_cleanup()
            ok = ok and library.run_packed(p).tobytes() == expected
            os._exit(0 if ok else 1)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    busy.join(60)
    assert library.run_packed(p).tobytes() == expected


def test_errors_are_per_thread(library):
    library.c.gemmill_workspace_bytes(-1, 0, 0)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(library.error))
    thread.start()
    thread.join()
    assert seen == [""] and library.error.startswith("M = -1")


def test_unloading_joins_the_threads(library):
    before = thread_count()
    library.run_packed(random_problem(library.config, SHAPES[0]))
    handle = library.c._handle
    library.c.dispatcher_cleanup()
    assert thread_count() == before
    assert ctypes.CDLL(None).dlclose(ctypes.c_void_p(handle)) == 0
    library.c._handle = ctypes.CDLL(str(library.path))._handle
    assert np.isfinite(library.run_packed(random_problem(library.config, SHAPES[2])).astype(np.float32)).all()
