"""Child processes: results, limits, and that none outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from factory import ENVIRONMENT

from kernels import process
from kernels.process import Children, Stopped


def sh(text: str) -> list[str]:
    return ["sh", "-c", text]


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("argv", "result"),
    [
        (["true"], (0, "", "")),
        (sh("echo out; echo err >&2; exit 3"), (3, "out\n", "err\n")),
        (sh("kill -SEGV $$"), (-signal.SIGSEGV, "", "")),
        (sh("printf 'a\\377b'"), (0, "a�b", "")),
        (sh("cat"), (0, "", "")),  # no terminal to wait for
        (["printf", "%s", "a b'\"$c"], (0, "a b'\"$c", "")),
        (sh("exec >&- 2>&-; sleep 0.05; exit 4"), (4, "", "")),
    ],
)
def test_results(argv: list[str], result: tuple[int, str, str]) -> None:
    assert Children().run(argv, 10) == result


def test_directory_and_environment(tmp_path: Path) -> None:
    code, out, _ = Children().run(sh("pwd; echo $X"), cwd=tmp_path, env={"X": "given", "PATH": os.environ["PATH"]})
    assert (code, out) == (0, f"{tmp_path}\ngiven\n")


def test_long_output_keeps_head_and_tail() -> None:
    _, out, _ = Children().run(sh("echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last"), 30)
    assert out.startswith("first\nxxx") and out.endswith("xxx\nlast\n")
    assert "bytes left out" in out and len(out) < process.OUTPUT_LIMIT + 100


def test_both_pipes_are_read_at_once() -> None:
    text = "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"
    _, out, err = Children().run(sh(text), 30)
    assert (len(out), len(err)) == (300000, 600000)


def test_missing_command() -> None:
    with pytest.raises(FileNotFoundError, match="failed to run no-such-thing: no such command"):
        Children().run(["no-such-thing"])
    with pytest.raises(FileNotFoundError, match="failed to run /no/such/thing"):
        Children().run(["/no/such/thing"])


def test_time_limit_kills_the_whole_group(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        Children().run(sh(f"echo started; sleep 60 & echo $! > '{tmp_path}/pid'; sleep 60"), 0.3)
    assert time.monotonic() - start < 5
    assert caught.value.stdout == b"started\n" and caught.value.cmd[0] == "sh"
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_time_limit_of_one_that_closed_its_pipes() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        Children().run(sh("exec >&- 2>&-; sleep 60"), 0.2)


def test_background_children_do_not_keep_us_waiting(tmp_path: Path) -> None:
    start = time.monotonic()
    assert Children().run(sh(f"sleep 60 & echo $! > '{tmp_path}/pid'; echo done"), 30) == (0, "done\n", "")
    assert time.monotonic() - start < 5
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_stop_kills_all_and_starts_none(tmp_path: Path) -> None:
    children, ended = Children(), []

    def work(i: int) -> None:
        try:
            children.run(sh(f"echo $$ > '{tmp_path}/{i}'; sleep 60"))
        except Stopped:
            ended.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: all((tmp_path / str(i)).exists() and (tmp_path / str(i)).read_text() for i in range(4)))
    children.stop()
    for thread in threads:
        thread.join(5)
    assert sorted(ended) == [0, 1, 2, 3] and children.stopped
    assert not any(alive(int((tmp_path / str(i)).read_text())) for i in range(4))
    with pytest.raises(Stopped):
        children.run(["true"])


def test_stop_in_a_signal_handler_while_running(tmp_path: Path) -> None:
    text = (
        "import signal, sys\nfrom kernels import process\n"
        "signal.signal(signal.SIGTERM, lambda *_: process.stop())\n"
        "print('ready', flush=True)\n"
        "try: process.run(['sleep', '60'])\nexcept process.Stopped: print('stopped')\n"
    )
    with subprocess.Popen([sys.executable, "-c", text], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None and ours.stdout.readline() == "ready\n"
        time.sleep(0.2)
        ours.send_signal(signal.SIGTERM)
        assert ours.communicate(timeout=10)[0] == "stopped\n"


@pytest.mark.skipif(not process._die_with_parent(), reason="needs setpriv of util-linux")
def test_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    text = f"from kernels import process; process.run(['sh', '-c', 'echo $$ > {tmp_path}/pid; exec sleep 60'])"
    with subprocess.Popen([sys.executable, "-c", text], env=ENVIRONMENT) as ours:
        wait_for(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
        ours.kill()
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_runs_without_setpriv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_die_with_parent", lambda: ())
    assert Children().run(sh("echo fine")) == (0, "fine\n", "")


def test_ctrl_c_in_the_main_thread_leaves_no_child(tmp_path: Path) -> None:
    text = f"from kernels import process; process.run(['sh', '-c', 'echo $$ > {tmp_path}/pid; sleep 60'])"
    argv = [sys.executable, "-c", text]
    with subprocess.Popen(argv, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as ours:
        wait_for(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
        ours.send_signal(signal.SIGINT)
        assert ours.wait(10) != 0
    assert not alive(int((tmp_path / "pid").read_text()))
