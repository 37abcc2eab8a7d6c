"""What the task graph costs: with nothing to do, after an edit, from nothing, and with a thousand kernels.

    .venv/bin/python bench/graph.py [--runs N] [--json FILE] [--only cold,idle,edit,thousand]

Everything but the first two figures runs in a copy of the checkout, whose files it edits. "Bare doit" is `doit` itself
on a dodo.py with as many empty tasks, with the same backend and Python; the runs alternate, and medians are given.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gemmill.cache import SELFTEST_SCHEMA  # noqa: E402

from kernels.resources import available_cores  # noqa: E402

BARE = """
DOIT_CONFIG = {{"backend": "sqlite3", "dep_file": "bare.sqlite3", "reporter": "zero"}}
def task_empty():
    for i in range({count}):
        yield {{"name": str(i), "actions": [], "uptodate": [True]}}
"""

# Copies one library for every kernel: only the graph is measured.
COPYING_COMPILER = """#!/bin/sh
source= out= previous=
for word; do
    case $word in *kernel.cpp) source=$word ;; esac
    [ "$previous" != -o ] || out=$word
    previous=$word
done
[ -z "$source" ] || exec cp '{library}' "$out"
exec g++ "$@"
"""


@dataclass(frozen=True)
class Run:
    """One finished command: wall and CPU seconds, and the peak of its memory in MiB."""

    seconds: float
    cpu: float
    mebibytes: float


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    value: float
    unit: str
    goal: str
    note: str = ""


def run(argv: Sequence[str | Path], cwd: Path, **env: str) -> Run:
    """Run a command that must succeed."""
    # A user's Python keeps its bytecode.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            list(map(str, argv)), cwd=cwd, env=environment | env, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(f"{argv} ended with {process.returncode}:\n{output.read().decode()[-3000:]}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def alternate(first: Callable[[], Run], second: Callable[[], Run], runs: int) -> tuple[list[Run], list[Run]]:
    """Run both in turn, once unmeasured."""
    first(), second()
    pairs = [(first(), second()) for _ in range(runs)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def median(runs: Sequence[Run]) -> float:
    """Return the median wall time."""
    return statistics.median(r.seconds for r in runs)


def busy(runs: Sequence[Run]) -> str:
    """Return the median CPU time: what wall time would be on a machine with nothing else to do."""
    return f"{statistics.median(r.cpu for r in runs):.3f} s CPU"


def bare(folder: Path, count: int) -> Callable[[], Run]:
    """Return a run of doit with empty tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dodo.py").write_text(BARE.format(count=count))
    return lambda: run([Path(sys.executable).with_name("doit")], folder)


def copy_checkout(folder: Path) -> Path:
    """Return a copy of what the graph reads."""
    root = folder / "checkout"
    for name in ("kernels", "native", "templates"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dodo.py", root)
    return root


def count_tasks(folder: Path) -> tuple[int, int]:
    """Return (kernels, tasks) of a plain `./mill`."""
    out = subprocess.run([ROOT / "mill", "list"], capture_output=True, text=True, check=True, cwd=folder).stdout
    kernels = len(out.splitlines()) - 1
    return kernels, 3 * kernels


def measure_cold(folder: Path, runs: int) -> list[Figure]:
    """Build every kernel of this machine from nothing."""
    run([ROOT / "mill", "clean"], folder)
    took = run([ROOT / "mill", f"cache={folder / 'cache'}"], folder)
    kernels, _ = count_tasks(folder)
    return [Figure(f"cold build and selftest of {kernels} kernels", took.seconds, "s", "< 90 s on 2 cores")]


def measure_idle(folder: Path, runs: int) -> list[Figure]:
    """Run `./mill` with nothing to do beside bare doit."""
    kernels, tasks = count_tasks(folder)
    command = [ROOT / "mill", f"cache={folder / 'cache'}"]
    run(command, folder)
    ours, theirs = alternate(lambda: run(command, folder), bare(folder / "bare", tasks), runs)
    ratio = median(ours) / median(theirs)
    return [
        Figure(f"nothing to do, {kernels} kernels", median(ours), "s", "< 0.6 s", busy(ours)),
        Figure(f"bare doit, {tasks} empty tasks", median(theirs), "s", "", busy(theirs)),
        Figure("ratio of the two", ratio, "x", "<= 2"),
    ]


def measure_edit(folder: Path, runs: int) -> list[Figure]:
    """Edit the header that a kernel is made from, and wait for its selftest."""
    root = copy_checkout(folder)
    command = [sys.executable, "-m", "kernels", "variant=fp8", "layout=rcr", "family=decode"]
    run(command, root)
    figures = []
    for name, path, text in (
        ("header", root / "native" / "abi.h", "\nstruct gemmill_edit_{i};\n"),
        ("template", root / "templates" / "cpu.cpp.j2", "\nstruct gemmill_edit_{i};\n"),
    ):
        original, took = path.read_text(), []
        for i in range(max(3, runs // 5)):
            path.write_text(original + text.format(i=i))
            took.append(run(command, root))
        path.write_text(original)
        figures.append(Figure(f"{name} edit to finished selftest, one kernel", median(took), "s", "< 4 s"))
    return figures


def measure_thousand(folder: Path, runs: int) -> list[Figure]:
    """Run a catalogue of a thousand kernels with nothing to do."""
    root = copy_checkout(folder / "thousand")
    arch = "generic"
    run([sys.executable, "-m", "kernels", f"arch={arch}", "variant=fp8", "layout=rcr", "compile"], root)
    library = folder / "kernel.so"
    shutil.copy(next(root.glob("cache/objects/??/*/kernel.so")), library)
    shutil.rmtree(root / "cache")
    compiler = folder / "bin" / "g++"
    compiler.parent.mkdir(exist_ok=True)
    compiler.write_text(COPYING_COMPILER.format(library=library))
    compiler.chmod(0o755)

    catalogue = root / "kernels" / "catalogue" / "gemm_aquant.toml"
    text = catalogue.read_text()
    head = text[: text.index("[[geometry]]")]
    per_tile = 6 * 7  # variants, layouts of both families
    tiles = -(-1000 // per_tile)
    rows = [
        f'[[geometry]]\narchs = ["{arch}"]\nfamilies = ["decode", "preshufflequant"]\n'
        f"tile = [{16 * (i + 1)}, 256, 256]\nwarps = [4, 8, 1]\nwarp_tile = [4, 8]\n"
        for i in range(tiles)
    ]
    catalogue.write_text(head + "\n".join(rows))
    command = [sys.executable, "-m", "kernels", f"arch={arch}"]
    run([*command, "compile"], root, CXX=str(compiler))
    for path in root.glob("cache/objects/??/*"):
        digest = hashlib.sha256((path / "kernel.so").read_bytes()).hexdigest()
        record = {"schema": SELFTEST_SCHEMA, "key": path.name, "library_sha256": digest, "outcome": "passed"}
        (path / "selftest.json").write_text(json.dumps(record))
    kernels = tiles * per_tile

    def ours() -> Run:
        return run(command, root, CXX=str(compiler))

    mine, theirs = alternate(ours, bare(folder / "bare3", 3 * kernels), max(5, runs // 2))
    return [
        Figure(f"nothing to do, {kernels} synthetic kernels", median(mine), "s", "< 1.2 s", busy(mine)),
        Figure("its memory", max(r.mebibytes for r in mine), "MiB", "< 150 MB"),
        Figure(f"bare doit, {3 * kernels} empty tasks", median(theirs), "s", "", busy(theirs)),
    ]


MEASURES = {
    "cold": measure_cold,
    "idle": measure_idle,
    "edit": measure_edit,
    "thousand": measure_thousand,
}


def machine() -> str:
    """Return what was measured on."""
    try:
        names = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    cpu = names[0] if names else platform.machine()
    return f"{cpu}, {available_cores()} cores, Python {platform.python_version()}"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=21, help="runs of the short measurements (default: 21)")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--only", default=",".join(MEASURES), help=f"some of {','.join(MEASURES)}")
    options = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(","):
            if name not in MEASURES:
                parser.error(f"unknown measurement {name}: known are {', '.join(MEASURES)}")
            figures += MEASURES[name](Path(folder), options.runs)
            print(f"{name} measured", file=sys.stderr)
    print(f"{machine()}; {time.strftime('%Y-%m-%d')}\n")
    for figure in figures:
        print(f"{figure.name:<50} {figure.value:>8.3f} {figure.unit:<4} {figure.goal:<20} {figure.note}".rstrip())
    if options.json:
        found = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "figures": [vars(f) for f in figures]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
