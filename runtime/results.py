"""Selftest records away from their cache: a small file that is brought back from the machine that has the device.

{"schema": 1, "selftests": [record, ...]}       records as in gemmill.verdict, by key
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmill.cache import Cache, object_path
from gemmill.errors import ArgumentError, CorruptObject, GemmillError
from gemmill.files import write_atomically
from gemmill.tree import translating
from gemmill.verdict import save, where, why_malformed

RESULTS_SCHEMA = 1


@dataclass(frozen=True)
class Merged:
    """What became of one record.

    Attributes
    ----------
    what : str
        ``merged``, ``same``, ``kept`` (the object's own record counts more) or ``refused``.
    label : str
        The kernel as ARCH/NAME, its key where no cache has it.
    text : str
        Outcomes, or the reason.
    """

    what: str
    label: str
    text: str


def write_results(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records to a file, whole or not at all; StoreError where that fails."""
    ordered = sorted(records, key=lambda record: str(record["key"]))
    text = json.dumps({"schema": RESULTS_SCHEMA, "selftests": ordered}, indent=1, sort_keys=True)
    with translating("write", path):
        write_atomically(path.absolute(), (text + "\n").encode(), durable=True)


def read_results(path: Path) -> list[Any]:
    """Return the records in a file that `write_results` wrote, or in the objects of a cache directory, unchecked.

    Raises
    ------
    ArgumentError
        If it is neither.
    """
    if path.is_dir():
        return list(recorded([Cache(path)]))
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} holds no selftest results: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("selftests"), list):
        raise ArgumentError(f"{path} holds no selftest results: needed a file of `gemmill selftest --results`")
    if data.get("schema") != RESULTS_SCHEMA:
        raise ArgumentError(f"{path} has schema {data.get('schema')!r}; this gemmill reads {RESULTS_SCHEMA}")
    return list(data["selftests"])


def recorded(caches: Iterable[Cache]) -> Iterator[dict[str, Any]]:
    """Yield the records of every whole object."""
    for cache in caches:
        for key in cache.keys():  # noqa: SIM118 (not a dict)
            try:
                record = cache.read(key).selftest
            except CorruptObject:
                continue
            if record is not None:
                yield record


def merge(records: Iterable[Any], caches: Sequence[Cache]) -> Iterator[Merged]:
    """Enter records into the objects they are about, one by one, and tell what became of each.

    Parameters
    ----------
    records : iterable
        As `read_results` gives them; each is checked.
    caches : sequence of Cache
        A record enters every one that holds its object.
    """
    for record in records:
        if reason := why_malformed(record):
            key = str(record.get("key"))[:12] if isinstance(record, dict) else "?"
            yield Merged("refused", key, reason)
            continue
        holders = [cache for cache in caches if object_path(cache.root, record["key"]).is_dir()]
        if not holders:
            said = "no object of this key here: the kernel was built from other sources, or by another compiler"
            yield Merged("refused", record["key"][:12], said)
        for cache in holders:
            yield _merge(record, cache)


def _merge(record: dict[str, Any], cache: Cache) -> Merged:
    label = record["key"][:12]
    try:
        obj = cache.read(record["key"])
        label = f"{obj.arch}/{obj.name}"
        change = save(cache, record)
    except GemmillError as error:
        return Merged("refused", label, str(error))
    if change.same:
        return Merged("same", label, change.before)
    if change.kept:
        return Merged("kept", label, f"{change.before}, not {record['outcome']} ({where(record)}): {change.kept}")
    return Merged("merged", label, f"{change.before} -> {record['outcome']} ({where(record)})")
