"""The command ``gemmill``: what is in the caches, whether it is sound, and why it is or is not used."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemmill import __version__
from gemmill.arch import ARCHS
from gemmill.cache import NATIVE, Cache, CacheObject, object_path
from gemmill.carry import add_commands
from gemmill.device import cpu_model, why_arch_not_here
from gemmill.errors import ArgumentError, CorruptObject, GemmillError, KernelNotFound, UnsupportedError
from gemmill.explain import explain_difference, explain_key, resource_lines
from gemmill.layout import LAYOUTS
from gemmill.loader import Candidate, examine
from gemmill.results import write_results
from gemmill.search import Place, SearchPath
from gemmill.selftest import run_selftest
from gemmill.streams import prepare_streams
from gemmill.variant import OUTPUTS, VARIANTS
from gemmill.verdict import OUTCOMES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 where what it looked at is not well, or 2 on a wrong request."""
    prepare_streams()
    options = _parser().parse_args(arguments)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has seen enough; keep Python's own flush at exit from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130
    except (GemmillError, OSError) as error:
        print(f"gemmill: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gemmill", description="Kernels in gemmill caches.")
    parser.add_argument("--version", action="version", version=f"gemmill {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--cache", action="append", metavar="DIR", help="look here and nowhere else (repeatable); default: search path"
    )
    common.add_argument("--arch", choices=ARCHS, help="only this arch")
    common.add_argument(
        "--provider", metavar="NAME", help="only kernels of this provider; a kernel's name alone means the native one"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=[common], help=text, description=text)
        command.set_defaults(run=run)
        return command

    add("list", _list, "list the kernels and their selftest outcomes").add_argument("--json", action="store_true")
    show = add("show", _show, "print what one kernel is and how it was made")
    show.add_argument("kernel", metavar="NAME|KEY")
    show.add_argument("--json", action="store_true")
    add("verify", _verify, "check every object's files against its manifest")
    test = add("selftest", _selftest, "run selftests in child processes and record the outcomes")
    test.add_argument("kernels", metavar="NAME|KEY", nargs="*")
    test.add_argument("--all", action="store_true", help="every kernel, also those that passed already")
    test.add_argument("--timeout", type=_seconds, default=60.0, help="seconds a kernel may take (default: 60)")
    test.add_argument("--results", type=Path, metavar="FILE", help="write the outcomes here, too: for gemmill merge")
    add_commands(lambda name, run, text: add(name, lambda options: run(options, list(_caches(options))), text))
    explain = add("explain", _explain, "print what a key was made of; with two, what differs")
    explain.add_argument("kernels", metavar="NAME|KEY", nargs="+")
    choice = add("explain-choice", _explain_choice, "print which kernel a product gets on a GPU, and why")
    for side in "MNK":
        choice.add_argument(side.lower(), metavar=side, type=_extent)
    choice.add_argument("--variant", choices=VARIANTS, default="fp8", help="operand types (default: fp8)")
    choice.add_argument("--layout", choices=LAYOUTS, default="rcr", help="of A, B and C (default: rcr)")
    choice.add_argument("--out", choices=OUTPUTS, default="f16", help="output type (default: f16)")
    choice.add_argument("--tile-k", type=_extent, metavar="K", help="AQ is preshuffled for tiles of this K")
    add("env", _env, "print archs, devices, caches searched, and why each kernel is accepted or refused")
    bench = add("bench", _bench, "quantise the matrices of a .npy or .safetensors file and time the kernels on them")
    bench.add_argument("file", type=Path)
    bench.add_argument("--rows", type=int, default=32, metavar="M", help="rows of A (default: 32)")
    bench.add_argument("--tensor", metavar="NAME", help="only tensors with NAME in their names")
    bench.add_argument("--limit", type=int, default=8, metavar="COUNT", help="tensors of a file (default: 8)")
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return value


def _extent(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is no integer above 0")
    return int(text)


def _places(options: argparse.Namespace) -> list[Place]:
    for folder in options.cache or ():
        if not Path(folder).is_dir():
            raise ArgumentError(f"--cache {folder}: there is no such directory")
    return list(SearchPath(options.cache))


def _caches(options: argparse.Namespace) -> Iterator[Cache]:
    return (Cache(place.root) for place in _places(options) if place.root is not None)


def _candidates(options: argparse.Namespace) -> Iterator[Candidate]:
    for cache in _caches(options):
        for entry in cache.entries(options.arch, provider=options.provider):
            yield examine(cache, entry.key, entry)


def _find(options: argparse.Namespace, wanted: str) -> Iterator[tuple[Cache, str]]:
    """Yield (cache, key) of what a name, ARCH/NAME or the start of a key means on the search path."""
    arch, _, name = wanted.rpartition("/")
    arch = arch or options.arch
    looks_like_key = len(wanted) >= 6 and set(wanted) <= set("0123456789abcdef")
    for cache in _caches(options):
        if looks_like_key:
            matches = [key for key in sorted(cache.keys()) if key.startswith(wanted)]
            if len(matches) > 1:
                raise ArgumentError(f"{cache.root} has {len(matches)} keys that start with {wanted}: give more of it")
            yield from ((cache, key) for key in matches)
        else:
            entries = cache.entries(arch or None, provider=options.provider or NATIVE)
            yield from ((cache, entry.key) for entry in entries if entry.name == name)


def _find_one(options: argparse.Namespace, wanted: str) -> CacheObject:
    found = list(_find(options, wanted))
    if not found:
        searched = ", ".join(map(str, _places(options)))
        raise KernelNotFound(f"no kernel or key {wanted!r} in {searched}; `gemmill list` prints what is there")
    archs = {key: cache.read(key).arch for cache, key in found} if len(found) > 1 else {}
    if len(set(archs.values())) > 1:
        raise ArgumentError(f"{wanted!r} exists for several archs: say --arch {' or '.join(sorted(archs.values()))}")
    cache, key = found[0]
    return cache.read(key)


def _table(rows: list[list[str]], header: list[str]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _list(options: argparse.Namespace) -> int:
    candidates = list(_candidates(options))
    if options.json:
        fields = ("arch", "name", "provider", "key", "outcome", "refusal")
        print(json.dumps([{"cache": str(c.root), **{name: getattr(c, name) for name in fields}} for c in candidates]))
        return 0
    rows = [[c.arch, c.name, c.provider, c.key[:12], "corrupt" if c.corrupt else c.outcome] for c in candidates]
    if rows:
        _table(rows, ["ARCH", "KERNEL", "PROVIDER", "KEY", "SELFTEST"])
        notes = dict.fromkeys(note for c in candidates if c.object for note in c.object.notes)
        print(*(f"note: {note}" for note in notes), sep="\n", end="\n" if notes else "")
    else:
        print("no kernels in", ", ".join(map(str, _places(options))))
    return 0


def _show(options: argparse.Namespace) -> int:
    obj = _find_one(options, options.kernel)
    if options.json:
        print(json.dumps({"root": str(obj.root), "manifest": obj.manifest, "selftest": obj.selftest}, indent=1))
        return 0
    manifest, selftest = obj.manifest, obj.selftest
    print(f"{obj.arch}/{obj.name}")
    print(f"  provider   {obj.provider}")
    for note in obj.notes:
        print(f"  note       {note}")
    print(f"  key        {obj.key}")
    print(f"  library    {obj.library}")
    size = manifest["files"]["kernel.so"]
    print(f"  file       {size['size']:,} bytes, sha256 {size['sha256']}")
    print(f"  target     {manifest['target'].get('machine')} {manifest['target'].get('system')}")
    for name, value in manifest["config"].items():
        print(f"  {name:10} {'x'.join(map(str, value)) if isinstance(value, list) else value}")
    build = manifest.get("build")
    for name, value in build.items() if isinstance(build, dict) else ():
        if name == "resources":
            continue
        print(f"  {name:10} {' '.join(map(str, value)) if isinstance(value, list) else value}")
    for line in resource_lines(manifest):
        print(f"  takes      {line}")
    print(f"  selftest   {obj.outcome}")
    for name in ("reason", "device", "entries", "date", "seconds", "time_ms", "time_shape"):
        value = (selftest or {}).get(name)
        if value is not None:
            several = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            print(f"    {name:10} {', '.join(map(str, several))}")
    for name, value in ((selftest or {}).get("errors") or {}).items():
        print(f"    {name:30} {value:.4f} of the bound")
    return 0


def _verify(options: argparse.Namespace) -> int:
    sound = broken = 0
    for cache in _caches(options):
        for key in sorted(cache.keys()):
            try:
                obj = cache.read(key)
                cache.check_trust(obj)
                sound += 1
            except GemmillError as error:
                broken += 1
                print(f"{key[:12]}: {error}")
        for arch in [options.arch] if options.arch else cache.archs():
            for provider in [options.provider] if options.provider else cache.providers(arch):
                for name in cache.names(arch, provider):
                    try:
                        entry = cache.entry(arch, name, provider)
                    except GemmillError as error:
                        broken += 1
                        print(error)
                        continue
                    if not object_path(cache.root, entry.key).is_dir():
                        broken += 1
                        print(f"{cache.root}: the index names {arch}/{name} with absent key {entry.key}")
    print(f"{sound} objects verified, {broken} broken")
    return 1 if broken else 0


def _selftest(options: argparse.Namespace) -> int:
    work = list(_selftest_work(options))
    counts: Counter[str] = Counter()
    records: dict[str, dict[str, Any]] = {}
    if options.results:
        write_results(options.results, [])  # what can't be written is told before the tests, not after
    for cache, key, label in work:
        try:
            record = run_selftest(cache, key, timeout=options.timeout)
        except CorruptObject as error:
            record = {"outcome": "corrupt", "reason": str(error), "seconds": 0.0, "saved": True}
        counts[record["outcome"]] += 1
        if options.results and record["outcome"] in OUTCOMES:
            records[key] = {name: value for name, value in record.items() if name not in ("saved", "not_saved")}
            write_results(options.results, records.values())  # each time: a test may take the machine with it
        note = f": {record['reason']}" if record["reason"] else ""
        print(f"{record['outcome']:8} {record['seconds']:6.2f} s  {label}{note}", flush=True)
        if not record["saved"] and record["outcome"] != "untested" and not options.results:
            print(f"         not recorded: {record['not_saved']}")
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "nothing to test")
    # What this machine can't run is no failure, unless it was asked for by name.
    good = {"passed"} if options.kernels else {"passed", "untested"}
    return 0 if counts.keys() <= good else 1


def _selftest_work(options: argparse.Namespace) -> Iterator[tuple[Cache, str, str]]:
    if options.kernels:
        for wanted in options.kernels:
            obj = _find_one(options, wanted)
            yield Cache(obj.root), obj.key, f"{obj.arch}/{obj.name}"
        return
    for cache in _caches(options):
        for entry in cache.entries(options.arch, provider=options.provider):
            candidate = examine(cache, entry.key, entry, allow_untested=True)
            # Without --all: those whose selftest is still to be done.
            if options.all or (candidate.refusal is None and candidate.outcome in ("untested", "simulated")):
                yield cache, entry.key, f"{entry.arch}/{entry.name}"


def _explain(options: argparse.Namespace) -> int:
    if len(options.kernels) > 2:
        raise ArgumentError(f"explain takes one or two kernels or keys, not {len(options.kernels)}")
    objects = [_find_one(options, wanted) for wanted in options.kernels]
    if len(objects) == 1:
        print(explain_key(objects[0].manifest))
    else:
        print(explain_difference(objects[0].manifest, objects[1].manifest))
    return 0


def _explain_choice(options: argparse.Namespace) -> int:
    from gemmill.choice import Wanted, explain_choice

    arch = options.arch or _device_arch()
    wanted = Wanted(options.variant, (options.layout,), options.out, options.tile_k)
    print(explain_choice(wanted, (options.m, options.n, options.k), arch, options.cache))
    return 0


def _device_arch() -> str:
    """Return the arch of the first CUDA device."""
    from gemmill.cuda import arch_of_device

    try:
        return arch_of_device(0)
    except UnsupportedError as error:
        raise ArgumentError(f"{error}; say --arch, one of {', '.join(ARCHS)}") from None


def _env(options: argparse.Namespace) -> int:
    print(f"gemmill {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print(f"cpu: {cpu_model()}")
    print("archs:")
    for row in ARCHS.values():
        print(f"  {row.name:16} {row.encoding:5} {why_arch_not_here(row) or 'runs here'}")
    print("caches:")
    for place in _places(options):
        there = "" if place.root is None else f": {_count(Cache(place.root))}" if place.root.is_dir() else ": absent"
        print(f"  {place}{there}")
    print("kernels:")
    for candidate in _candidates(options):
        print(f"  {candidate}")
    return 0


def _count(cache: Cache) -> str:
    return f"{sum(1 for _ in cache.entries())} kernels, {len(cache.keys())} objects"


def _bench(options: argparse.Namespace) -> int:
    from gemmill.bench import bench_file

    return bench_file(options.file, options.rows, options.tensor, options.limit, options.cache, options.arch)
