"""Runs of the graph that are killed, stopped, raced or broken: nothing is lost, done twice or half-done."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.checkout import DECODE, PRESHUFFLE, TWO, Mill, kill, wait_until


@pytest.fixture
def mill(tmp_path):
    return Mill(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a checkout whose two kernels are built; tests leave them so."""
    mill = Mill(tmp_path_factory.mktemp("built"))
    mill.good(*TWO)
    assert sum(mill.compiled().values()) == 2
    return mill


# Nothing to do


def test_second_run_does_nothing_and_says_so_in_a_line(built):
    built.forget()
    assert built.good(*TWO) == built.up_to_date
    assert not built.compiled()


@pytest.mark.parametrize("damage", ["deleted", "corrupt", "folder gone"])
def test_losing_doits_database_costs_nothing(built, damage):
    database = built.root / "build" / "doit.sqlite3"
    built.forget()
    if damage == "corrupt":
        database.write_bytes(b"\xff" * 5000)
    elif damage == "deleted":
        database.unlink()
    else:
        database.unlink()
        database.parent.rename(database.parent.with_name("build.away"))
    out = built.good(*TWO)
    assert not built.compiled()
    assert ("corrupt and is deleted" in out) == (damage == "corrupt")
    assert built.good(*TWO) == built.up_to_date


def test_edits_that_change_nothing_compile_nothing(built):
    built.forget()
    header = built.root / "native" / "host" / "base.h"
    text = header.read_text()
    header.touch()
    assert "up to date" in built.good(*TWO)
    header.write_text(f"// a comment\n\n{text}")
    built.good(*TWO)
    header.write_text(text)
    built.good(*TWO)
    assert not built.compiled()


# Killed


@pytest.mark.parametrize("published", [0, 1])
def test_kill_9_loses_only_what_was_not_published(mill, published):
    mill.slow.write_text("0.5")
    process = mill.start(*TWO, "jobs=1")
    wait_until(lambda: len(mill.objects()) == published and sum(mill.compiled().values()) > published)
    kill(process)
    wait_until(lambda: not mill.processes(), 5)
    before = mill.objects()
    assert len(before) == published
    mill.slow.unlink()
    mill.forget()
    mill.good(*TWO)
    assert sum(mill.compiled().values()) == 2 - published
    assert before <= mill.objects()
    assert mill.good(*TWO) == mill.up_to_date


def test_kill_9_at_random_moments_ends_in_a_whole_cache(mill):
    mill.slow.write_text("0.1")
    for delay in (0.1, 0.2, 0.35, 0.5, 0.9, 1.3):
        process = mill.start(*TWO)
        time.sleep(delay)
        kill(process)
        _, out = mill.run("verify")
        assert "0 broken" in out, out
    mill.good(*TWO)
    assert mill.run("verify") == (0, f"2 objects checked in {mill.root / 'cache'}: 0 broken\n")


def test_killed_compiler_fails_its_kernel_alone(mill):
    mill.slow.write_text("30")
    process = mill.start(*TWO, "jobs=1")
    wait_until(lambda: mill.compiled())
    mill.slow.write_text("0")
    pid = int(mill.log.read_text().split()[1])
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert len(mill.objects()) == 1
    assert not mill.residue()
    mill.forget()
    mill.good(*TWO)
    assert sum(mill.compiled().values()) == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signals_stop_everything_at_once(mill, number, status):
    mill.slow.write_text("30")
    process = mill.start(*TWO, "jobs=2")
    wait_until(lambda: sum(mill.compiled().values()) == 2)
    begin = time.monotonic()
    out = kill(process, number)
    assert time.monotonic() - begin < 2
    assert process.returncode == status
    assert "stopped after" in out
    assert "Traceback" not in out
    assert not mill.processes()
    assert not mill.objects()
    assert not mill.residue()


def test_signal_while_selftests_run(mill):
    mill.good(*TWO, "compile")
    process = mill.start(*TWO)
    wait_until(lambda: any("_selftest-child" in line for line in mill.processes()))
    kill(process, signal.SIGTERM)
    assert process.returncode == 143
    assert not mill.processes()
    assert mill.run(*TWO)[0] == 0
    assert mill.good(*TWO) == mill.up_to_date


def test_ctrl_c_on_a_terminal_leaves_a_clean_line(mill):
    """The terminal's own Ctrl-C; children are in sessions of their own, so it reaches only us."""
    mill.slow.write_text("30")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(mill.root)
        environment = {**os.environ, "CXX": str(mill.compiler), "TERM": "xterm"}
        environment.pop("NO_COLOR", None)
        os.execve(sys.executable, [sys.executable, "-m", "kernels", *TWO], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    wait_until(lambda: sum(mill.compiled().values()) == 2)
    time.sleep(0.7)  # a tick of the progress line
    os.write(terminal, b"\x03")
    shown = b""
    with contextlib.suppress(OSError):  # EIO is how a terminal ends
        while data := os.read(terminal, 4096):
            shown += data
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert not mill.processes()
    text = shown.decode().replace("^C", "")
    drawn = text.split("\r\x1b[K")
    progress = [part for part in drawn if part.startswith("[2/6]")]
    assert progress, text
    assert max(map(len, progress)) < 60
    last = drawn[-1]
    assert "tasks of 6 left" in last
    assert last.endswith("\r\n")


def test_a_reader_that_goes_away_stops_the_run(mill):
    """As in `./mill | head -1`."""
    process = mill.start(*TWO, "jobs=1")
    assert process.stdout.readline().startswith("[2/6] compile:")
    process.stdout.close()
    assert process.wait(30) == 141
    assert not mill.processes()
    assert not mill.residue()


def test_output_that_cannot_be_written_stops_nothing_but_is_an_error(mill):
    """As in `./mill >log` where the disk with the log is full."""
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "kernels", *TWO],
            cwd=mill.root,
            env={**os.environ, "CXX": str(mill.compiler)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=300,
        )
    assert process.returncode == 1
    assert process.stderr == "mill: [Errno 28] No space left on device\n"
    assert mill.good(*TWO) == mill.up_to_date


# Raced


def test_eight_at_once_compile_each_key_once(mill):
    started = [mill.start(*TWO, "compile") for _ in range(8)]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 8, outputs
    assert sorted(mill.compiled().values()) == [1, 1]
    assert all("2 kernels" in out for out in outputs)
    assert not any("sqlite" in out for out in outputs), outputs
    assert not mill.residue()


# Failing


def test_a_kernel_that_does_not_compile_stops_no_other(mill):
    mill.broken.write_text(PRESHUFFLE)
    status, out = mill.run(*TWO)
    assert status == 1
    lines = out.splitlines()
    assert any(line.startswith("passed") and DECODE in line for line in lines)
    assert any(line.startswith("compile failed") and PRESHUFFLE in line for line in lines)
    failed = lines[lines.index(next(line for line in lines if line.startswith("FAILED compile:"))) :]
    assert failed[1].endswith(":7:1: error: broken on purpose")
    repeats = [line.strip() for line in failed if line.startswith("    repeat: ")]
    assert repeats[0].startswith(f"repeat: {mill.compiler}")
    assert repeats[1].startswith(f"repeat: CXX={mill.compiler} ./mill compile:generic/{PRESHUFFLE}")
    assert lines[-1].startswith("2 kernels (generic): 1 passed, 1 compile failed;")
    assert "selftest:" not in "".join(line for line in lines if PRESHUFFLE in line)
    assert len(mill.objects()) == 1
    assert not mill.residue()
    mill.broken.unlink()
    mill.forget()
    mill.good(*TWO)
    assert [name.startswith(PRESHUFFLE) for name in mill.compiled()] == [True]


def test_no_continue_starts_nothing_after_a_failure(mill):
    mill.broken.write_text("gemm_aquant")
    status, _ = mill.run(*TWO, "jobs=1", "--no-continue")
    assert status == 1
    assert sum(mill.compiled().values()) == 1


def test_a_broken_template_names_its_place(built):
    template = built.root / "templates" / "cpu.cpp.j2"
    text = template.read_text()
    built.forget()
    template.write_text("{{ no_such_name }}\n" + text)
    status, out = built.run(*TWO)
    template.write_text(text)
    assert status == 1
    assert out.count("cpu.cpp.j2:1: 'no_such_name' is undefined") == 2
    assert built.good(*TWO).endswith(built.up_to_date)
    assert not built.compiled()


def test_a_failed_selftest_is_run_again_when_asked(built):
    for path in built.root.glob("cache/objects/??/*/selftest.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "outcome": "failed", "reason": "wrong"}))
    assert built.good("list", *TWO).count("\nfailed ") == 2
    built.forget()
    out = built.good(*TWO)
    assert out.splitlines()[-1].startswith("2 kernels (generic): 2 passed;")
    assert not built.compiled()
    assert built.good("list", *TWO).count("\npassed ") == 2


def test_broken_objects_are_quarantined_and_made_again(built):
    first, second = sorted(built.root.glob("cache/objects/??/*/kernel.so"))
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 1
    first.write_bytes(content)
    built.forget()
    out = built.good(*TWO)
    assert out.count("quarantined ") == 1, out
    assert sum(built.compiled().values()) == 1
    assert len(list(built.root.glob("cache/quarantine/*"))) == 1
    second.write_bytes(b"")
    status, out = built.run("verify")
    assert status == 1
    assert "1 broken" in out
    built.good(*TWO)
    assert sum(built.compiled().values()) == 2
    assert built.run("verify")[0] == 0
