"""Compare CPU kernels with numpy's float32 matmul on the dequantised operands.

    python bench/cpu_vs_numpy.py [--arch A] [--shape 1024x1024x1024] [--threads 1 2] [--cache DIR] [--json OUT]

Each arch meets the OpenBLAS kernel that uses the same instructions: AVX-512 for x86-64-v4 and x86-64-v4-bf16, Haswell
for x86-64-v3, Nehalem (SSE) for generic. Calls alternate, so that both see the same machine; a figure is the median of
the ratios of neighbours. Converting to float32 is not counted for numpy.

One thread is timed by its CPU time, which other programs disturb little; several by the clock, which wants a quiet
machine (or `chrt -f 20`, as root). OpenBLAS threads spin for a while after a call; several-thread runs wait until then.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SPIN_SECONDS = 0.15

ROOT = Path(__file__).resolve().parent.parent
CORE_TYPES = {"generic": "Nehalem", "x86-64-v3": "Haswell", "x86-64-v4": None, "x86-64-v4-bf16": None}


def measure(arch: str, shape: tuple[int, int, int], cache: Path, rounds: int) -> list[dict[str, Any]]:
    """Time every kernel of `arch` in the cache's index beside numpy, in this process."""
    import numpy as np

    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "native")]
    from problems import Library, random_problem

    from kernels.name import parse_name

    m, n, k = shape
    rows: list[dict[str, Any]] = []
    single = os.environ["GEMMILL_NUM_THREADS"] == "1"
    clock = time.thread_time if single else time.perf_counter
    for entry in sorted((cache / "index" / arch).glob("*.json")):
        key = json.loads(entry.read_text())["key"]
        config = parse_name(arch, entry.stem)
        library = Library(cache / "objects" / key[:2] / key / "kernel.so", config)
        p = random_problem(config, shape, 1, config.family_row.preshuffle)
        a, b = p.a.values.astype(np.float32), p.b.values.astype(np.float32)
        a = np.asfortranarray(a) if config.layout_row.a_col else np.ascontiguousarray(a)
        b = np.asfortranarray(b) if config.layout_row.b_col else np.ascontiguousarray(b)
        c, reference = np.empty((m, n), np.float16), np.empty((m, n), np.float32)
        arguments = (
            *(p.a.pointer, p.aq.pointer, p.b.pointer, c.ctypes.data, m, n, k),
            *(p.a.stride, p.aq.stride, p.b.stride, n, None, 0, None),
        )
        run = library.c.gemmill_gemm_aquant
        repeats = max(1, int(2e6 / (2 * m * n * k / 100 + 1e4)))  # about 2 ms a round at 100 Gflop/s

        def kernel(run: Any = run, arguments: Any = arguments) -> None:
            if run(*arguments):
                raise RuntimeError("the kernel refused the problem")

        def blas(a: Any = a, b: Any = b, reference: Any = reference) -> None:
            np.matmul(a, b, out=reference)

        def timed(call: Any, repeats: int = repeats) -> float:
            if not single:
                call()  # wakes the threads
            start = clock()
            for _ in range(repeats):
                call()
            return (clock() - start) / repeats

        def pair(kernel: Any = kernel, blas: Any = blas, timed: Any = timed) -> tuple[float, float]:
            if not single:
                time.sleep(SPIN_SECONDS)
            return timed(kernel), timed(blas)

        try:
            pair()
            pairs = [pair() for _ in range(rounds)]
        except RuntimeError as error:
            rows.append({"kernel": config.id, "error": f"{error}: {library.error}"})
            continue
        finally:
            library.c.dispatcher_cleanup()
        rows.append(
            {
                "kernel": config.id,
                "ms": 1e3 * statistics.median(x for x, _ in pairs),
                "numpy_ms": 1e3 * statistics.median(y for _, y in pairs),
                "ratio": statistics.median(y / x for x, y in pairs),
            }
        )
    return rows


def blas_of_numpy() -> str:
    """Return the core type whose kernels numpy's OpenBLAS uses, "" where it does not say."""
    import numpy as np

    for path in Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*"):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            function = getattr(library, name, None)
            if function is not None:
                function.restype = ctypes.c_char_p
                return str(function().decode())
    return ""


def table(results: list[dict[str, Any]]) -> str:
    """Return one Markdown row a measurement: the ratios of its kernels, and the share that is slower than numpy."""
    lines = [
        "| arch | M x N x K | threads | OpenBLAS | kernels | ms | numpy ms | least | median | most | below 1 |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        rows = [row for row in result["rows"] if "error" not in row]
        if not rows:
            continue
        ratios = sorted(row["ratio"] for row in rows)
        ms, numpy_ms = (statistics.median(row[name] for row in rows) for name in ("ms", "numpy_ms"))
        figures = " | ".join(f"{ratio:.2f}" for ratio in (ratios[0], statistics.median(ratios), ratios[-1]))
        lines.append(
            f"| {result['arch']} | {result['shape'].replace('x', ' x ')} | {result['threads']} | {result['blas']} "
            f"| {len(rows)} | {ms:.2f} | {numpy_ms:.2f} | {figures} | {sum(ratio < 1 for ratio in ratios)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", action="append", choices=list(CORE_TYPES), help="default: all in the cache")
    parser.add_argument("--shape", default="1024x1024x1024", help="MxNxK")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cache", type=Path, default=ROOT / "cache")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    m, n, k = map(int, options.shape.split("x"))
    if options.child:
        rows = measure(options.arch[0], (m, n, k), options.cache, options.rounds)
        print(json.dumps({"blas": blas_of_numpy(), "rows": rows}))
        return

    results: list[dict[str, Any]] = []
    failed = False
    for arch in options.arch or [a for a in CORE_TYPES if (options.cache / "index" / a).is_dir()]:
        for threads in options.threads:
            environment = {name: v for name, v in os.environ.items() if not name.startswith("OPENBLAS_")}
            environment |= {"OPENBLAS_NUM_THREADS": str(threads), "GEMMILL_NUM_THREADS": str(threads)}
            if CORE_TYPES[arch]:
                environment["OPENBLAS_CORETYPE"] = str(CORE_TYPES[arch])
            command = [
                *(sys.executable, __file__, "--child", "--arch", arch, "--shape", options.shape),
                *("--cache", str(options.cache), "--rounds", str(options.rounds)),
            ]
            done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
            if done.returncode:
                print(f"{arch}, {threads} thread(s): failed\n{done.stderr}", file=sys.stderr)
                failed = True
                continue
            answer = json.loads(done.stdout)
            print(f"{arch}, {threads} thread(s), {options.shape}, numpy with OpenBLAS {answer['blas']}")
            for row in answer["rows"]:
                name = row["kernel"].partition("/")[2]
                if "error" in row:
                    print(f"  {row['error']}  {name}")
                    failed = True
                    continue
                print(f"  {row['ms']:9.3f} ms  numpy {row['numpy_ms']:9.3f} ms  {row['ratio']:5.2f}x  {name}")
            results.append({"arch": arch, "threads": threads, "shape": options.shape, **answer})
            if options.json:  # after each part: an interrupted run leaves what it measured
                options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
