"""A checkout of its own for a test, whose files may be edited and whose compiler counts its runs."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from kernels.paths import CHECKOUT

# The arch that compiles fastest, and two kernels of it: one of each family.
ARCH = "generic"
TWO = (f"arch={ARCH}", "variant=fp8", "layout=rcr")
DECODE = "gemm_aquant_fp8_rcr_mem_cshuffle_interwave"
PRESHUFFLE = "gemm_aquant_fp8_rcr_compv3_cshuffle_intrawave"

# Notes every compilation, and fails those whose source has the text in `broken`. Asked what it is, it only answers.
_COMPILER = """#!/bin/sh
last=
for word; do case $word in *kernel.cpp) last=$word ;; esac; done
if [ -n "$last" ]; then
    name=$(grep -m1 -o 'gemm_aquant_[a-z0-9_]*' "$last")
    echo "$name $$" >>'{log}'
    if [ -s '{broken}' ] && grep -q -f '{broken}' "$last"; then
        echo "kernel.cpp:7:1: error: broken on purpose" >&2
        exit 1
    fi
    [ ! -e '{slow}' ] || sleep "$(cat '{slow}')"
fi
exec g++ "$@"
"""


class Mill:
    """`./mill` in a copy of the checkout, without the set-up: it runs with the Python of the tests.

    Attributes
    ----------
    root : Path
        The copy.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        for name in ("kernels", "native", "templates"):
            shutil.copytree(CHECKOUT.root / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(CHECKOUT.root / "dodo.py", self.root)
        self.log, self.broken, self.slow = (folder / name for name in ("compiled", "broken", "slow"))
        self.compiler = folder / "bin" / "g++"
        self.compiler.parent.mkdir()
        self.compiler.write_text(_COMPILER.format(log=self.log, broken=self.broken, slow=self.slow))
        self.compiler.chmod(0o755)

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        """Start `./mill ARGS`; its output can be read from the result's stdout."""
        return subprocess.Popen(
            [sys.executable, "-m", "kernels", *args],
            cwd=self.root,
            env={**os.environ, "CXX": str(self.compiler), "MILL_CWD": str(self.root), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *args: str, **env: str) -> tuple[int, str]:
        """Run `./mill ARGS` and return (exit status, output)."""
        process = self.start(*args, **env)
        out, _ = process.communicate(timeout=300)
        return process.returncode, out

    @property
    def up_to_date(self) -> str:
        """What is printed when the two kernels are."""
        return f"2 kernels up to date ({ARCH}); cache: {shlex.quote(str(self.root / 'cache'))}\n"

    def good(self, *args: str, **env: str) -> str:
        """Run what must succeed and return its output."""
        status, out = self.run(*args, **env)
        assert status == 0, out
        return out

    def compiled(self) -> Counter[str]:
        """Return how often each kernel's compilation was started since the last `forget`."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(line.split()[0] for line in lines)

    def forget(self) -> None:
        """Count compilations from here."""
        self.log.unlink(missing_ok=True)

    def objects(self) -> set[str]:
        """Return the keys in the cache."""
        return {path.name for path in self.root.glob("cache/objects/??/*")}

    def residue(self) -> list[Path]:
        """Return what an interrupted writer left behind in the cache."""
        return list(self.root.glob("cache/tmp/*"))

    def processes(self) -> list[str]:
        """Return the command lines of living processes that work for this checkout."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(self.root.parent) in line and state != "Z":
                found.append(line)
        return found


def wait_until(condition, seconds=30.0):
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


def kill(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> str:
    """Send a signal, wait for the end, and return what was printed."""
    process.send_signal(number)
    return process.communicate(timeout=30)[0]
