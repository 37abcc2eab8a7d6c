"""Running a kernel's selftest in a process of its own, and recording what came of it.

A library under test may crash, hang, exit or print; in a child process with a time limit each of these is a result.
The checks themselves are in gemmill.selfcheck. This module loads no numpy, so that a task graph can run many.

What a record says, and which of two counts, stands in gemmill.verdict.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gemmill import __version__
from gemmill.cache import LIBRARY, NATIVE, SELFTEST_SCHEMA, Cache
from gemmill.device import cpu_model, gpu_name
from gemmill.errors import CorruptObject, GemmillError
from gemmill.loader import examine
from gemmill.verdict import save

# (argv, timeout in seconds) -> (return code, stdout, stderr); a signal is a negative code. Raises TimeoutError or
# subprocess.TimeoutExpired when the time is over and the child is gone.
Runner = Callable[[Sequence[str], float], tuple[int, str, str]]


def run_selftest(
    cache: Cache,
    key: str,
    *,
    timeout: float = 60,
    record: bool = True,
    run: Runner | None = None,
    simulated: Path | None = None,
) -> dict[str, Any]:
    """Test one object in a child process.

    Parameters
    ----------
    cache : Cache
    key : str
        The object's whole key.
    timeout : float
        Seconds before the child is killed and the test has failed.
    record : bool
        Write the result into the object as selftest.json, atomically, unless a verdict there counts more.
    run : callable, optional
        Runs the child: ``(argv, timeout) -> (return code, stdout, stderr)``.
    simulated : Path, optional
        A simulated device: the library to take for the GPU driver's. What passes on it has outcome ``simulated``.

    Returns
    -------
    dict
        The record, as gemmill.verdict has it, and beside it ``saved`` and, where it was not written, ``not_saved``:
        why. Where this machine can't run the kernel, or no child process starts, the outcome is ``untested`` and
        nothing is written.

    Raises
    ------
    CorruptObject
        If the object is not there or does not verify.
    """
    candidate = examine(cache, key, any_outcome=True, any_device=simulated is not None)
    if candidate.corrupt:
        raise CorruptObject(str(candidate.refusal))
    obj = candidate.object
    result: dict[str, Any] = {
        "schema": SELFTEST_SCHEMA,
        "key": key,
        "library_sha256": obj.manifest["files"][LIBRARY]["sha256"] if obj else None,
        "outcome": "untested",
        "reason": candidate.refusal,
        "device": {
            "cpu": cpu_model(),
            "machine": platform.machine(),
            "system": platform.system(),
            "arch": candidate.arch,
        },
        "shapes": [],
        "entries": [],
        "errors": {},
        "seconds": 0.0,
        "time_ms": None,
        "time_shape": None,
        "gemmill": __version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    if simulated and obj is not None and obj.provider != NATIVE:
        # The simulated device runs gemmill's own source: its results would be about another kernel.
        result["reason"] = f"kernels of provider {obj.provider} are not simulated: needed is a {obj.arch} device"
        obj = None
    if obj is None or candidate.refusal:
        return {**result, "saved": False, "not_saved": "nothing was tested"}
    start = time.monotonic()
    arguments = [str(cache.root), key, *([str(simulated)] if simulated else [])]
    result.update(_run_child(arguments, timeout, run or run_child))
    if simulated:
        result["device"]["simulated"] = True
    elif name := gpu_name(obj.arch):
        result["device"]["gpu"] = name
    result["seconds"] = round(time.monotonic() - start, 3)
    if result["outcome"] == "untested":
        return {**result, "saved": False, "not_saved": "nothing was tested"}
    saved: dict[str, Any] = {"saved": False, "not_saved": "not asked to"}
    if record:
        saved = _save(cache, result)
    return {**result, **saved}


def child_argv(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs the checks of gemmill.selfcheck."""
    # A folder named gemmill in the working directory must not be taken for us.
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe_path, "-m", "gemmill", "_selftest-child", *arguments]


def _run_child(arguments: Sequence[str], timeout: float, run: Runner) -> dict[str, Any]:
    try:
        code, stdout, stderr = run(child_argv(arguments), timeout)
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        # subprocess hands over what the child had written by then.
        output = getattr(error, "stdout", None) or b""
        text = output if isinstance(output, str) else output.decode("utf-8", "replace")
        return _failed(f"no end within {timeout:g} s{_last_step(text)}")
    except OSError as error:
        # Nothing is known about the kernel then.
        return {"outcome": "untested", "reason": f"the child process did not start: {error}"}
    if code < 0:
        return _failed(f"killed by {_signal_name(-code)}{_last_step(stdout)}{_tail(stderr)}")
    report = _report(stdout)
    if code != 0 or report is None:
        said = "without a report" if report is None else "after its report"
        return _failed(f"exited with status {code} {said}{_last_step(stdout)}{_tail(stderr)}")
    return report


def _failed(reason: str) -> dict[str, Any]:
    return {"outcome": "failed", "reason": reason}


def _report(stdout: str) -> dict[str, Any] | None:
    """Return the report on the child's last line, None where there is none."""
    lines = stdout.strip().splitlines()
    try:
        report = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    if not isinstance(report, dict) or report.get("outcome") not in ("passed", "failed", "simulated"):
        return None
    return report


def _last_step(stdout: str) -> str:
    steps = [line[6:] for line in stdout.splitlines() if line.startswith("step: ")]
    return f" during {steps[-1]}" if steps else " before its first check"


def _tail(stderr: str) -> str:
    text = stderr.strip()[-400:]
    return f"; it wrote: {text}" if text else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def run_child(argv: Sequence[str], timeout: float) -> tuple[int, str, str]:
    """Run a command in a session of its own; when the time is over, kill all of it and raise TimeoutExpired."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            _kill(process)
            stdout, stderr = process.communicate()
            raise subprocess.TimeoutExpired(argv, timeout, stdout, stderr) from error
        except BaseException:
            _kill(process)
            raise
    return process.returncode, stdout, stderr


def _kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _save(cache: Cache, record: dict[str, Any]) -> dict[str, Any]:
    try:
        kept = save(cache, record, fresh=True).kept
    except GemmillError as error:
        kept = str(error)
    return {"saved": False, "not_saved": kept} if kept else {"saved": True}
