"""What a selftest found: the record on disk, which of two counts, and how one enters an object.

selftest.json:

    schema          gemmill.cache.SELFTEST_SCHEMA, which changes with what is checked: what passed an older selftest is
                    untested, what failed it has failed
    key             the object
    library_sha256  the exact library that was tested; a record about another one counts for nothing
    outcome         "passed" or "failed" ("simulated" from backends that emulate their device)
    reason          why it failed, null when it passed
    device          cpu, machine, system, arch; gpu: its name, where one ran it; simulated: true where a simulation took
                    the place of the arch's device
    shapes          [[M, N, K], ...] that were multiplied
    entries         the ways of calling the kernel that were checked, as gemmill.harness names them
    errors          {check: largest error relative to its bound}; exact checks have 0
    seconds         wall time of the child
    time_ms         the kernel's own mean time for time_shape
    time_shape      [M, N, K]
    gemmill, date   version, and UTC time in ISO 8601

Of two records about one library the one of a real device counts, whatever a simulation said, before or after. Of two
of the same kind the later one counts, so a failure gives way to a later pass, never to an earlier one; at the same time
the failure counts.
"""

from __future__ import annotations

import datetime
import json
import stat
from dataclasses import dataclass
from typing import Any

from gemmill.cache import LIBRARY, MANIFEST, SELFTEST, SELFTEST_SCHEMA, Cache, is_key, object_path
from gemmill.errors import Refused
from gemmill.files import write_atomically
from gemmill.tree import Tree, translating

OUTCOMES = ("passed", "failed", "simulated")

_FIELDS: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "key": (str,),
    "library_sha256": (str,),
    "outcome": (str,),
    "reason": (str, type(None)),
    "device": (dict,),
    "shapes": (list,),
    "entries": (list,),
    "errors": (dict,),
    "seconds": (int, float),
    "time_ms": (int, float, type(None)),
    "time_shape": (list, type(None)),
    "gemmill": (str,),
    "date": (str,),
}
_CLOCKS_DIFFER = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Change:
    """What became of a record that was to enter an object.

    Attributes
    ----------
    before : str
        The object's outcome until then.
    kept : str or None
        Why the record in place stays; None where the new one replaced it.
    same : bool
        The very record was there already.
    """

    before: str
    kept: str | None = None
    same: bool = False


def is_simulated(record: dict[str, Any]) -> bool:
    """Tell whether a record is of a simulated device."""
    device = record.get("device")
    return record.get("outcome") == "simulated" or bool(isinstance(device, dict) and device.get("simulated"))


def where(record: dict[str, Any]) -> str:
    """Return on what and when a record was made, for texts."""
    device = record.get("device") or {}
    name = "a simulation" if is_simulated(record) else device.get("gpu") or device.get("cpu") or "an unknown device"
    return f"{name}, {record.get('date', 'at an unknown time')}"


def why_kept(old: dict[str, Any] | None, new: dict[str, Any]) -> str | None:
    """Say why `old` stays where `new` comes; None where the new record counts."""
    if old is None:
        return None
    if is_simulated(old) != is_simulated(new):
        return None if is_simulated(old) else f"{old['outcome']} on a real device counts more: {where(old)}"
    before, after = _date(old), _date(new)
    if after < before:
        return f"{old['outcome']} later: {where(old)}"
    if after == before and old["outcome"] == "failed" and new["outcome"] != "failed":
        return f"failed at the same time: {where(old)}"
    return None


def why_malformed(record: Any) -> str | None:
    """Say what is wrong with a record that came from elsewhere; None where it is one of this schema."""
    if not isinstance(record, dict):
        return f"a record is an object, not a {type(record).__name__}"
    if record.get("schema") != SELFTEST_SCHEMA:
        return f"its schema is {record.get('schema')!r}; this gemmill takes {SELFTEST_SCHEMA}: test the kernel with it"
    if record.keys() != _FIELDS.keys():
        odd = sorted(map(str, record.keys() ^ _FIELDS.keys()))
        return f"fields are missing or unknown: {', '.join(odd)}"
    for name, kinds in _FIELDS.items():
        if not isinstance(record[name], kinds) or isinstance(record[name], bool):
            return f"{name} is {record[name]!r}"
    outcome, reason = record["outcome"], record["reason"]
    if not is_key(record["key"]) or not is_key(record["library_sha256"]):
        return "key or library_sha256 is no sha256"
    if outcome not in OUTCOMES:
        return f"its outcome is {outcome!r}; known are {', '.join(OUTCOMES)}"
    if (outcome == "failed") != (reason is not None):
        return f"its outcome is {outcome}, its reason {reason!r}"
    if outcome == "passed" and is_simulated(record):
        return "it passed on a simulated device, which is simulated, not passed"
    if not all(isinstance(value, (int, float)) for value in record["errors"].values()):
        return "its errors are no numbers"
    if outcome != "failed" and not (record["shapes"] and all(value <= 1 for value in record["errors"].values())):
        return f"its outcome is {outcome}, and it multiplied nothing or was beyond a bound"
    if outcome != "failed" and not all(entry in record["entries"] for entry in ("host", "device")):
        return f"its outcome is {outcome}, and of the entries only {record['entries']} were checked"
    try:
        date = datetime.datetime.fromisoformat(record["date"])
    except ValueError:
        return f"its date is {record['date']!r}"
    if date.tzinfo is None or date > datetime.datetime.now(datetime.timezone.utc) + _CLOCKS_DIFFER:
        return f"its date {record['date']} has no time zone or lies in the future"
    return None


def save(cache: Cache, record: dict[str, Any], *, fresh: bool = False) -> Change:
    """Write a record into its object, unless the one in place counts more.

    Parameters
    ----------
    cache : Cache
    record : dict
        Of the schema above.
    fresh : bool
        It was made just now: of two of the same kind it counts, whatever the clocks say.

    Raises
    ------
    KernelNotFound, CorruptObject
        If the cache does not hold the object, or it does not verify.
    Refused
        If the record is about another library or arch.
    StoreError
        If it could not be written.
    """
    key = record["key"]
    path = object_path(cache.root, key) / SELFTEST
    with Tree(cache.root).lock(key):
        obj = cache.read(key)
        tested = record["library_sha256"]
        if tested != obj.manifest["files"][LIBRARY]["sha256"]:
            raise Refused(f"it is about a library of sha256 {tested[:12]}..., which the object's is not")
        if record["device"].get("arch") != obj.arch:
            raise Refused(f"it was tested as {record['device'].get('arch')}, and is a kernel of {obj.arch}")
        old = obj.selftest
        if old == record:
            return Change(obj.outcome, "it is there already", same=True)
        kept = why_kept(old, record)
        if kept and not (fresh and old and is_simulated(old) == is_simulated(record)):
            return Change(obj.outcome, kept)
        with translating("write", path):
            # Whoever may read the manifest may read the record, whatever the umask: in a shared cache the kernel would
            # otherwise be untested for the others.
            mode = stat.S_IMODE(path.with_name(MANIFEST).stat().st_mode)
            write_atomically(path, (json.dumps(record, indent=1) + "\n").encode(), mode, durable=True)
        return Change(obj.outcome)


def _date(record: dict[str, Any]) -> datetime.datetime:
    """Return when a record was made; the beginning of time where it does not say."""
    try:
        date = datetime.datetime.fromisoformat(str(record.get("date")))
        return date if date.tzinfo else date.replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
