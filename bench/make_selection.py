"""Make the selection tables of the runtime from measured times.

    .venv/bin/python bench/make_selection.py FILE.json [FILE.json ...] [--into runtime/tables] [--keep]

A file is what bench/sm_90a.py --full writes, or any object with a list `rows` and, in it or in its `machine`, what was
measured on and when (`date`, `card`, ...), or a list of rows alone:

    {"arch": "sm_90a", "variant": "fp8", "layout": "rcr", "m": 16, "n": 4096, "k": 4096, "kernel": NAME, "us": 7.0}

Rows without a kernel of ours (peers) or without a time (failed) are left out, and said so. Of a kernel that comes twice
the later row counts. --keep starts from the table that is there. What a table means: runtime/selection.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gemmill.arch import find_arch  # noqa: E402
from gemmill.errors import ArgumentError  # noqa: E402
from gemmill.selection import SCHEMA, read_table, schedule_of  # noqa: E402

from kernels.name import parse_name  # noqa: E402

ABOUT = ("date", "card", "driver", "driver_version", "cuda", "source")

Place = tuple[str, str, int, int, int]


class Times:
    """Times by arch, place (variant, layout, M, N, K) and schedule, and what was left out."""

    def __init__(self) -> None:
        self.found: dict[str, dict[Place, dict[str, float]]] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self.left_out: Counter[str] = Counter()

    def add(self, rows: Iterable[Mapping[str, Any]], about: Mapping[str, Any], where: str) -> None:
        """Take the rows of one file; ArgumentError names one that contradicts itself."""
        for number, row in enumerate(rows, 1):
            name, time = row.get("kernel"), row.get("us")
            if not isinstance(name, str) or not name.startswith("gemm_aquant_") or row.get("peer"):
                self.left_out["no kernel of ours"] += 1
            elif (
                row.get("error")
                or not isinstance(time, (int, float))
                or isinstance(time, bool)
                or not 0 < time < float("inf")
            ):
                self.left_out["no time"] += 1
            elif min(int(row[side]) for side in "mnk") < 1:
                self.left_out["an empty product"] += 1
            else:
                self._add_row(row, f"{where}, row {number}")
                self.about[row["arch"]] = {key: about[key] for key in ABOUT if about.get(key)}

    def _add_row(self, row: Mapping[str, Any], where: str) -> None:
        try:
            find_arch(row["arch"])
            config = parse_name(row["arch"], row["kernel"])
            place = (config.variant, config.layout, int(row["m"]), int(row["n"]), int(row["k"]))
        except (ArgumentError, KeyError, ValueError) as error:
            raise ArgumentError(f"{where}: {type(error).__name__}: {error}") from None
        for key, value in (("variant", config.variant), ("layout", config.layout)):
            if row.get(key, value) != value:
                raise ArgumentError(f"{where}: {key} {row[key]!r}, but the kernel is of {value!r}: {row['kernel']}")
        if config.out == "f16":
            times = self.found.setdefault(row["arch"], {}).setdefault(place, {})
            times[schedule_of(row["kernel"])] = round(float(row["us"]), 3)
        else:
            self.left_out["another output than float16"] += 1

    def start_from(self, path: Path) -> None:
        """Take what a table has."""
        table = read_table(path.read_text(encoding="utf-8"), str(path))
        self.about[table.arch] = dict(table.measured)
        for row in table.rows:
            self.found.setdefault(table.arch, {})[(row.variant, row.layout, *row.shape)] = dict(row.times)

    def text(self, arch: str) -> str:
        """Return the table of an arch, a line a row."""
        rows = []
        for (variant, layout, m, n, k), times in sorted(self.found[arch].items()):
            fastest_first = dict(sorted(times.items(), key=lambda item: (item[1], item[0])))
            rows.append({"variant": variant, "layout": layout, "m": m, "n": n, "k": k, "us": fastest_first})
        head = json.dumps({"schema": SCHEMA, "arch": arch, "measured": self.about[arch]}, ensure_ascii=False)[:-1]
        lines = ",\n".join("  " + json.dumps(row) for row in rows)
        return f'{head}, "rows": [\n{lines}\n]}}\n'


def main(arguments: list[str] | None = None) -> int:
    """Read the files, write the tables, and say what each shape gets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, default=ROOT / "runtime" / "tables")
    parser.add_argument("--keep", action="store_true", help="start from the tables that are there")
    options = parser.parse_args(arguments)
    times = Times()
    try:
        for path in sorted(options.into.glob("*.json")) if options.keep else ():
            times.start_from(path)
        for path in options.files:
            content = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(content, list):
                content = {"rows": content}
            times.add(content["rows"], {**content.get("machine", {}), **content}, str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"make_selection: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    for reason, count in times.left_out.items():
        print(f"left out {count} rows: {reason}")
    if not times.found:
        print("make_selection: no row has a time of a kernel: nothing was written", file=sys.stderr)
        return 1
    for arch in times.found:
        text = times.text(arch)
        table = read_table(text, arch)
        options.into.mkdir(parents=True, exist_ok=True)
        (options.into / f"{arch}.json").write_text(text, encoding="utf-8")
        for row in table.rows:
            (best, time), *others = row.times.items()
            second = f"; next {others[0][1] / time - 1:.0%} slower" if others else ""
            print(f"{row}: {best} {time:.1f} µs of {len(row.times)}{second}")
        print(f"{len(table.rows)} rows in {options.into / f'{arch}.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
