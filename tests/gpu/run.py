"""Run the device tests without pytest: `python3 tests/gpu/run.py --cache DIR`.

Needs numpy, ml_dtypes, an NVIDIA driver and a cache of sm_90a kernels; prints one line a check, and what failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_MOST_LINES = 30  # of failures


def find_modules() -> None:
    """Let the tests' modules and the package be imported from a checkout, whether or not it is installed."""
    root = _HERE.parent.parent
    sys.path[:0] = [str(_HERE), str(_HERE.parent), str(root)]
    if importlib.util.find_spec("gemmill") is None:
        # The package's folder in the repository has another name.
        folder = root / "runtime"
        spec = importlib.util.spec_from_file_location(
            "gemmill", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules["gemmill"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def main() -> int:
    """Run the checks; return 1 where one failed, 2 where nothing could be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=_HERE.parent.parent / "cache", help="cache of sm_90a kernels")
    parser.add_argument("--match", default="*", help="only kernels whose names match this glob")
    parser.add_argument("--check", default="*", help="only checks whose names match one of these globs, by commas")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no check of a kernel after this time")
    parser.add_argument("--list", action="store_true", help="name the checks and their kernels, and run nothing")
    options = parser.parse_args()
    find_modules()

    from checks import CHECKS
    from driver import DriverError, Gpu
    from gemmill.arch import find_arch
    from gemmill.cuda import why_not_cuda
    from gemmill.errors import GemmillError
    from workbench import Workbench, Wrong

    chosen = [c for c in CHECKS if any(fnmatch.fnmatchcase(c.name, glob) for glob in options.check.split(","))]
    reason = None if options.list else why_not_cuda(find_arch("sm_90a"))
    if reason:
        print(f"nothing was run: {reason}")
        return 2
    bench = Workbench.find(None if options.list else Gpu(), options.cache, options.match)  # type: ignore[arg-type]
    if not bench.entries or not chosen:
        print(f"nothing was run: no kernel in {options.cache} matches {options.match}, or no check {options.check}")
        return 2
    if options.list:
        for check in chosen:
            print(f"{check.name:18} {len(check.entries(bench)):4} kernels")
        return 0

    start, failures, left_out = time.monotonic(), [], 0
    print(f"{len(bench.entries)} kernels of {options.cache}, {len(chosen)} checks")
    kernels: dict[str, Any] = {}
    for check in chosen:
        began, passed, failed, skipped = time.monotonic(), 0, 0, ""
        for entry in check.entries(bench):
            if time.monotonic() - start > options.seconds:
                left_out += 1
                continue
            try:
                if entry.key not in kernels:
                    kernels[entry.key] = bench.kernel(entry)
                skipped = check.run(bench, kernels[entry.key]) or skipped
                passed += 1
            except (Wrong, DriverError, GemmillError, AssertionError) as error:
                failed += 1
                failures.append(f"{check.name}: {entry.name}: {error}")
                if "cuCtxSynchronize" in str(error):
                    failures.append("the context is lost: nothing after this was run")
                    _report(failures)
                    return 1
        seconds = time.monotonic() - began
        word = f"skipped: {skipped}" if skipped else f"{passed} passed, {failed} failed"
        print(f"{check.name:18} {word:32} {seconds:7.1f} s", flush=True)
    _report(failures)
    print(f"{'FAILED' if failures else 'passed'}, {left_out} left out, {time.monotonic() - start:.0f} s")
    return 1 if failures else 0


def _report(failures: list[str]) -> None:
    for failure in failures[:_MOST_LINES]:
        print(failure)
    if len(failures) > _MOST_LINES:
        print(f"... and {len(failures) - _MOST_LINES} more")


if __name__ == "__main__":
    sys.exit(main())
