"""`python -m kernels` under callers that close its streams or can't show its paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from factory import ENVIRONMENT

from kernels.paths import CHECKOUT

COMMAND = [sys.executable, "-m", "kernels"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(tmp_path: Path, closed: str) -> None:
    argv = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "verify", f"cache={tmp_path}"]
    done = subprocess.run(argv, cwd=CHECKOUT.root, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", [b"caf\xc3\xa9", b"not \xff utf-8"])
def test_paths_that_the_terminal_cannot_show(tmp_path: Path, name: bytes) -> None:
    argv = [*COMMAND, "verify", b"cache=" + os.fsencode(tmp_path) + b"/" + name]
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(argv, cwd=CHECKOUT.root, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0 objects checked in ")
