"""Locks: exclusive between threads and processes, freed by death, and never unlinked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from gemmill.locks import hold, try_lock


def test_file_stays_with_its_inode(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with hold(path):
        inode = path.stat().st_ino
    with hold(path):
        pass
    assert path.stat().st_ino == inode


def test_exclusive_between_threads(tmp_path: Path) -> None:
    inside, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with hold(tmp_path / "a.lock"):
                with lock:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.001)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_exclusive_between_processes(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    text = (
        "import sys, time\nfrom pathlib import Path\nfrom gemmill.locks import hold\n"
        "folder = Path(sys.argv[1])\n"
        "for _ in range(20):\n"
        "    with hold(folder / 'a.lock'):\n"
        "        n = int((folder / 'counter').read_text()); time.sleep(0.001)\n"
        "        (folder / 'counter').write_text(str(n + 1))\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", text, str(tmp_path)]) for _ in range(4)]
    assert [one.wait(60) for one in running] == [0] * 4
    assert counter.read_text() == "80"


def test_freed_by_kill(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    text = (
        "import sys, time\nfrom pathlib import Path\nfrom gemmill.locks import hold\n"
        "with hold(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", text, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert try_lock(path) is None
        holder.send_signal(signal.SIGKILL)
    with hold(path):
        pass


def test_check_may_end_the_wait(tmp_path: Path) -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise TimeoutError

    path = tmp_path / "a.lock"
    with hold(path):
        with pytest.raises(TimeoutError), hold(path, check=check):
            pass
        assert len(calls) == 3


def test_file_replaced_while_waiting(tmp_path: Path) -> None:
    path, entered = tmp_path / "a.lock", threading.Event()

    def wait() -> None:
        with hold(path):
            entered.set()

    with hold(path):
        waiter = threading.Thread(target=wait)
        waiter.start()
        path.unlink()  # somebody removed the cache; a new lock file is a new lock
        assert entered.wait(5)
    waiter.join()


def test_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), hold(tmp_path / "gone" / "a.lock"):
        pass


def test_directories_can_be_locked(tmp_path: Path) -> None:
    handle = try_lock(tmp_path, directory=True)
    assert handle is not None and try_lock(tmp_path, directory=True) is None
    os.close(handle)
    again = try_lock(tmp_path, directory=True)
    assert again is not None
    os.close(again)


@pytest.mark.parametrize("mode", [0o644, 0o664])
def test_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        with hold(tmp_path / "a.lock", mode):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "a.lock").stat().st_mode & 0o777 == mode


def test_children_do_not_inherit_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with hold(path):
        child = subprocess.Popen(["sleep", "60"])
    try:
        handle = try_lock(path)
        assert handle is not None
        os.close(handle)
    finally:
        child.kill()
        child.wait()
