"""The commands that carry kernels to another machine, and what their selftests found there back."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gemmill.cache import Cache, IndexEntry
from gemmill.errors import KernelNotFound
from gemmill.results import merge, read_results, recorded, write_results


def add_commands(add: Any) -> None:
    """Add pack, unpack, results and merge to the command line."""
    command = add("pack", run_pack, "write kernels to one file, to be carried to another machine")
    command.add_argument("file", type=Path, help="a new .tar, .tar.gz or .tgz")
    command.add_argument("patterns", metavar="PATTERN", nargs="*", help="of NAME or ARCH/NAME, as in a shell")
    command = add("unpack", run_unpack, "make a cache of a packed file, every object verified")
    command.add_argument("file", type=Path)
    command.add_argument("folder", type=Path, metavar="DIR", help="the new cache")
    command = add("results", run_results, "write the selftests that caches have on record to one small file")
    command.add_argument("file", type=Path)
    command = add("merge", run_merge, "enter selftest results of another machine into the caches that have the kernels")
    command.add_argument("file", type=Path, nargs="+", metavar="FILE|DIR", help="of results or selftest --results")


def run_pack(options: argparse.Namespace, caches: Sequence[Cache]) -> int:
    """Pack the selected kernels; of one that several caches have, the first is taken."""
    from gemmill.pack import pack  # tarfile and gzip: only who packs pays for them

    chosen: dict[tuple[str, str, str], tuple[Cache, IndexEntry]] = {}
    for cache in caches:
        for entry in cache.entries(options.arch, provider=options.provider):
            names = (entry.name, f"{entry.arch}/{entry.name}")
            if not options.patterns or any(fnmatchcase(name, p) for p in options.patterns for name in names):
                chosen.setdefault((entry.arch, entry.provider, entry.name), (cache, entry))
    if not chosen:
        where = ", ".join(str(cache.root) for cache in caches)
        raise KernelNotFound(f"nothing to pack: no kernel in {where} is of this arch, provider and pattern")
    done = pack(options.file, list(chosen.values()), _progress(len(chosen)))
    archs = ", ".join(dict.fromkeys(arch for arch, *_ in sorted(chosen)))
    print(f"{_kernels(done.kernels)} ({archs}), {_size(done.content)}, in {options.file}, {_size(done.size)}")
    return 0


def run_unpack(options: argparse.Namespace, caches: Sequence[Cache]) -> int:
    """Unpack a file."""
    from gemmill.pack import unpack

    done = unpack(options.file, options.folder, _progress(None))
    print(f"{_kernels(done.kernels)}, {_size(done.content)}, in {options.folder}")
    return 0


def run_results(options: argparse.Namespace, caches: Sequence[Cache]) -> int:
    """Collect the records of whole caches."""
    records = {record["key"]: record for record in recorded(caches)}
    write_results(options.file, records.values())
    print(f"{_outcomes(records.values())} in {options.file}")
    return 0


def run_merge(options: argparse.Namespace, caches: Sequence[Cache]) -> int:
    """Merge results, and tell what became of each; 1 where one was refused."""
    counts: Counter[str] = Counter()
    for file in options.file:
        for merged in merge(read_results(file), caches):
            counts[merged.what] += 1
            print(f"{merged.what:8} {merged.label}: {merged.text}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "no results")
    return 1 if counts["refused"] else 0


def _outcomes(records: Any) -> str:
    counts = Counter(str(record["outcome"]) for record in records)
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no selftests"


def _progress(total: int | None) -> Any:
    done = 0

    def told(label: str, size: int) -> None:
        nonlocal done
        done += 1
        print(f"[{done}{f'/{total}' if total else ''}] {_size(size):>9}  {label}", flush=True)

    return told


def _kernels(count: int) -> str:
    return f"{count} kernel{'s' * (count != 1)}"


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
