"""compute-sanitizer on one kernel of each family, tile, layout and kind of A.

    python3 tests/gpu/sanitize.py --cache DIR
        --tool memcheck,racecheck     which of its tools
        --lineinfo                    compile again with source lines, which hazards then have (needs nvcc and jinja2)
        --report hazard               racecheck's other form of report, with threads and addresses
        --program PATH                another compute-sanitizer than the one on PATH

Each kernel, in a process of its own, multiplies small problems through both entries, with k split and not, and must
still be right. What the tools report is summed up by kernel and by the two places that a hazard is about.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from run import find_modules

if TYPE_CHECKING:
    from operands import Case

_RING = 16  # stages, at most (native/cuda/traits.h)
_DEEP = (_RING + 1) * 128 + 44  # k
_MARK = "@@ kernel "
_MOST = 20  # lines of a list
_HAZARD = re.compile(r"Race reported between (.+)")
_AND = re.compile(r"=========\s+and (\w+) access at (.+?)(?: \[(\d+) hazards?\])?$")
_PROBLEM = re.compile(
    r"=========\s+(Invalid|Program hit|Target|Error:|Warning:|Uninitialized|Potential|Barrier error)(.*)"
)
_SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: ")


@dataclass
class Opened:
    """What the workbench needs of a kernel, whether it lies in a cache or was just compiled."""

    name: str
    arch: str
    config: dict[str, Any]
    preshuffle: bool
    library: Any


def classes(entry: Any) -> Any:
    """Tell kernels apart that differ in how operands reach the matrix instruction."""
    config = entry.config
    return config["family"], tuple(config["tile"]), config["layout"], "i4" in config["variant"]


def cases(tile: list[int]) -> list[Case]:
    """Return small problems in which every block goes around its ring of stages."""
    from operands import Case

    tm, tn, _ = tile
    return [
        Case(tm + 1, tn + 3, 300, "aligned"),  # four tiles, C an element a store
        Case(tm, tn, _DEEP, "aligned"),  # C by the copy engine; k split in two where the kernel can
        Case(min(tm, 16), tn, 2 * _DEEP, "aligned"),  # both parts of a split k go around
        Case(17, tn + 1, _DEEP, "odd", 1),  # the other entry
    ]


def copied(library: Any) -> list[Case]:
    """Return the problem of fewest rows whose operands the kernel copies into a workspace; none where it never does."""
    from operands import Case

    # What takes one for few rows splits k.
    problems = (Case(65, 517, 2 * _DEEP, "aligned"), Case(545, 517, _DEEP, "aligned"))
    return [case for case in problems if library.workspace_bytes(case.m, case.n, case.k)][:1]


# ---- The child: multiplies under the tool ----


def child(job: Path) -> int:
    """Multiply with one kernel; print which case is next, and what came out wrong."""
    from driver import Gpu
    from gemmill.cache import Cache
    from gemmill.library import Library
    from workbench import Workbench, Wrong

    one = json.loads(job.read_text())
    bench = Workbench(Gpu(), Cache(job), [])
    library = Library(Path(one["library"]), one["arch"], one["name"])
    kernel = Opened(one["name"], one["arch"], one["config"], "_preshufflequant" in one["name"], library)
    for case in (*cases(one["config"]["tile"]), *copied(library)):
        print(f"{_MARK}{one['name']} {case}", flush=True)
        try:
            bench.check(kernel, bench.operands(kernel, case), str(case))  # type: ignore[arg-type]
        except Wrong as error:
            print(f"========= Error: wrong result: {error}", flush=True)
    return 0


# ---- The parent: chooses kernels, runs the tool, sums up ----


def with_lines(entries: list[Any], folder: Path) -> dict[str, Path]:
    """Compile kernels with source lines; return the libraries by name."""
    from kernels.backends import cuda
    from kernels.catalogue import load_catalogue
    from kernels.codegen import Codegen
    from kernels.paths import CHECKOUT, Paths

    toolchain = cuda.find_toolchain()
    codegen = Codegen(Paths.of(CHECKOUT.root, build=folder))
    configs = {config.name: config for config in load_catalogue().configs("sm_90a", out=None)}

    def build(name: str) -> Path:
        work = folder / name
        work.mkdir()
        library = work / "kernel.so"
        device, host = cuda.commands(
            configs[name], codegen.generate(configs[name]), CHECKOUT.native, library, toolchain
        )
        for command in ([device[0], "-lineinfo", *device[1:]], host):
            subprocess.run(command, cwd=work, check=True, capture_output=True)
        return library

    names = [entry.name for entry in entries]
    with ThreadPoolExecutor(16) as pool:
        return dict(zip(names, pool.map(build, names), strict=True))


def run_tool(command: list[str], seconds: float) -> str:
    """Return what a command prints; after that time, end it and all that it started."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        late = ""
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            late = f"\n========= Error: not finished after {seconds:.0f} s\n"
        output.seek(0)
        return output.read() + late


def tool_command(program: str, tool: str, report: str, number: int, job: Path) -> list[str]:
    """Return the command that runs a tool on a job; those that run at once differ in number."""
    command = [program, "--tool", tool, "--print-limit", "400", "--port", str(49152 + 16 * number)]
    if tool in ("racecheck", "synccheck"):
        command += ["--num-cuda-barriers", "64"]  # the compiler's own count misses those made in PTX
    if tool == "racecheck":
        command += ["--racecheck-report", report, "--racecheck-num-workers", "1"]
    return [*command, sys.executable, __file__, "--child", str(job)]


def place(text: str) -> str:
    """Return a hazard's place: file and line where the tool knows it, else the instruction."""
    found = re.search(r"(\w+\.\w+:\d+)", text)
    return found[1] if found else text.split(" in ")[0].strip()


def findings(printed: str) -> dict[str, Counter[str]]:
    """Return what was reported, by kernel and text, from a tool's output; that it broke off is a finding, too."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    kernel, first = "?", ""
    for line in printed.splitlines():
        if line.startswith(_MARK):
            kernel = line.removeprefix(_MARK).split()[0]
            found[kernel].update()
        elif hazard := _HAZARD.search(line):
            first = hazard[1]
        elif first and (second := _AND.search(line)):
            kind, _, at = first.partition(" access at ")
            found[kernel][f"{kind} {place(at)} / {second[1]} {place(second[2])}"] += int(second[3] or 1)
        elif problem := _PROBLEM.match(line):
            found[kernel][(problem[1] + problem[2]).strip()] += 1
    if not found[kernel] and not _SUMMARY.search(printed):
        found[kernel]["the tool came to no end"] += 1
    return found


def main() -> int:
    """Run the tools and print what they found; return 1 where that is anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(__file__).parents[2] / "cache")
    parser.add_argument("--match", default="*")
    parser.add_argument("--tool", default="memcheck,racecheck")
    parser.add_argument("--report", default="analysis", choices=("analysis", "hazard", "all"))
    parser.add_argument("--lineinfo", action="store_true")
    parser.add_argument("--program", default="compute-sanitizer", help="compute-sanitizer, by name or path")
    parser.add_argument("--jobs", type=int, default=8, help="kernels at once")
    parser.add_argument("--seconds", type=float, default=60, help="for one kernel under one tool")
    parser.add_argument("--keep", type=Path, help="a folder for the tools' whole output")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    find_modules()
    if options.child:
        return child(options.child)
    if not shutil.which(options.program):
        print(f"nothing was run: there is no program {options.program}")
        return 2

    from gemmill.cache import Cache, object_path
    from workbench import ARCH, representatives

    cache = Cache(options.cache)
    entries = representatives(cache.entries(ARCH, options.match), classes)
    if not entries:
        print(f"nothing was run: no kernel in {options.cache} matches {options.match}")
        return 2
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        libraries = with_lines(entries, folder) if options.lineinfo else {}
        jobs = []
        for i, e in enumerate(entries):
            library = libraries.get(e.name, object_path(cache.root, e.key) / "kernel.so")
            jobs.append(folder / f"job{i}")
            jobs[-1].write_text(
                json.dumps({"name": e.name, "arch": e.arch, "config": e.config, "library": str(library)})
            )
        print(run_tool([options.program, "--version"], options.seconds).strip().splitlines()[-1])
        for tool in options.tool.split(","):
            commands = [tool_command(options.program, tool, options.report, i, job) for i, job in enumerate(jobs)]
            with ThreadPoolExecutor(options.jobs) as pool:
                outputs = list(pool.map(lambda command: run_tool(command, options.seconds), commands))
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{tool}.txt").write_text("\n".join(outputs))
            bad += report(tool, outputs, len(entries))
    return 1 if bad else 0


def report(tool: str, outputs: list[str], count: int) -> int:
    """Print a tool's findings; return for how many kernels there are any."""
    found = {kernel: texts for printed in outputs for kernel, texts in findings(printed).items()}
    dirty = {kernel: texts for kernel, texts in found.items() if texts}
    seen = len(found.keys() - {"?"})
    print(f"{tool}: {seen} of {count} kernels run, {seen - len(dirty.keys() - {'?'})} clean")
    kernels_of: dict[str, list[str]] = defaultdict(list)
    for kernel, texts in dirty.items():
        for text in texts:
            kernels_of[text].append(kernel)
    lines = sorted(kernels_of.items(), key=lambda item: -len(item[1]))
    for text, kernels in lines[:_MOST]:
        print(f"  {len(kernels):3} kernels: {text}; {sum(dirty[k][text] for k in kernels)} times; e.g. {kernels[0]}")
    if len(lines) > _MOST:
        print(f"  ... and {len(lines) - _MOST} more places")
    return len(dirty) + (count - seen)


if __name__ == "__main__":
    sys.exit(main())
