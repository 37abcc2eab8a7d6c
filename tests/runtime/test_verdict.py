"""Which of two selftest records counts, which are no records, and how one enters an object."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from gemmill.cache import LIBRARY, SELFTEST, Cache
from gemmill.errors import CorruptObject, KernelNotFound, Refused
from gemmill.tree import StoreError
from gemmill.verdict import save, why_kept, why_malformed
from generators import DAMAGES, object_directory, selftest_record
from support import add_fake

EARLY, LATE = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


def record(outcome: str, date: str = EARLY, simulated: bool = False) -> dict[str, Any]:
    return selftest_record("0" * 64, "1" * 64, outcome, date=date, simulated=simulated or outcome == "simulated")


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (record("passed"), record("failed", LATE), False),
        (record("failed"), record("passed", LATE), False),
        (record("failed", LATE), record("passed"), True),
        (record("passed", LATE), record("failed"), True),
        (record("failed"), record("passed"), True),  # of the same time
        (record("passed"), record("failed"), False),
        (record("simulated", LATE), record("passed"), False),
        (record("simulated", LATE), record("failed"), False),
        (record("failed", LATE, simulated=True), record("passed"), False),
        (record("passed"), record("simulated", LATE), True),
        (record("failed"), record("simulated", LATE), True),
        (record("passed"), record("failed", LATE, simulated=True), True),
        (record("simulated"), record("failed", LATE, simulated=True), False),
        ({"outcome": "passed"}, record("failed"), False),  # an old record that lacks its date
    ],
)
def test_order(old, new, kept):
    assert bool(why_kept(old, new)) == kept
    assert why_kept(None, new) is None
    if kept:
        assert old["outcome"] in why_kept(old, new)


def test_good_records_are_well_formed():
    for outcome in ("passed", "failed", "simulated"):
        assert why_malformed(record(outcome)) is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"schema": 1}, "its schema is 1; this gemmill takes 2"),
        ({"key": "abc"}, "no sha256"),
        ({"library_sha256": "f" * 63}, "no sha256"),
        ({"outcome": "splendid"}, "known are passed, failed, simulated"),
        ({"outcome": "untested"}, "known are passed"),
        ({"reason": "but"}, "its outcome is passed, its reason 'but'"),
        ({"outcome": "failed"}, "its outcome is failed, its reason None"),
        ({"device": "here"}, "device is 'here'"),
        ({"device": {"arch": "generic", "simulated": True}}, "passed on a simulated device"),
        ({"shapes": []}, "multiplied nothing or was beyond a bound"),
        ({"entries": ["host"]}, "of the entries only ['host'] were checked"),
        ({"errors": {"random": 1.01}}, "beyond a bound"),
        ({"errors": {"random": float("nan")}}, "beyond a bound"),
        ({"errors": {"random": "small"}}, "no numbers"),
        ({"seconds": True}, "seconds is True"),
        ({"date": "yesterday"}, "its date is 'yesterday'"),
        ({"date": "2026-01-01T00:00:00"}, "has no time zone"),
        ({"date": "2999-01-01T00:00:00+00:00"}, "lies in the future"),
        ({"trust": "me"}, "missing or unknown: trust"),
    ],
)
def test_malformed_records(changes, text):
    assert text in why_malformed({**record("passed"), **changes})


def test_missing_fields_and_other_types_are_malformed():
    good = record("passed")
    for name in good:
        assert why_malformed({other: value for other, value in good.items() if other != name})
    assert why_malformed([1]) == "a record is an object, not a list"


@pytest.fixture
def mine(cache: Cache) -> dict[str, Any]:
    """Return a record about an untested kernel of the cache."""
    key = add_fake(cache.root, outcome=None)
    return selftest_record(key, cache.read(key).manifest["files"][LIBRARY]["sha256"], "passed")


def test_a_record_enters_its_object_once(cache, mine):
    assert save(cache, mine).before == "untested"
    assert cache.read(mine["key"]).selftest == mine
    again = save(cache, mine)
    assert (again.same, again.before) == (True, "passed")


def test_records_about_something_else_do_not(cache, mine):
    with pytest.raises(Refused, match="about a library of sha256 222222222222"):
        save(cache, {**mine, "library_sha256": "2" * 64})
    with pytest.raises(Refused, match="was tested as sm_90a, and is a kernel of generic"):
        save(cache, {**mine, "device": {"arch": "sm_90a"}})
    with pytest.raises(KernelNotFound):
        save(cache, {**mine, "key": "3" * 64})
    DAMAGES["flipped bit"][0](object_directory(cache, mine["key"]))
    with pytest.raises(CorruptObject):
        save(cache, mine)
    assert not (object_directory(cache, mine["key"]) / SELFTEST).exists()


def test_a_fresh_result_counts_whatever_the_clocks_say_but_no_simulation(cache, mine):
    save(cache, {**mine, "date": LATE})
    assert save(cache, {**mine, "date": EARLY}).kept
    assert save(cache, {**mine, "date": EARLY}, fresh=True).kept is None
    simulated = selftest_record(mine["key"], mine["library_sha256"], "simulated", date=LATE)
    assert "passed on a real device" in save(cache, simulated, fresh=True).kept


def test_a_cache_that_cannot_be_written_is_an_error(cache, mine, monkeypatch):
    monkeypatch.setattr(Path, "replace", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match=r"failed to write .*selftest.json: No space left"):
        save(cache, mine)
    assert [path.name for path in object_directory(cache, mine["key"]).iterdir() if "selftest" in path.name] == []


def _save_many(root: Path, records: list[dict[str, Any]]) -> None:
    for one in records:
        save(Cache(root), one)


def test_of_many_writers_at_once_the_latest_record_stays(cache, mine):
    """Reading, comparing and writing happen under the key's lock."""
    dates = [f"2026-01-{day:02}T00:00:00+00:00" for day in range(1, 29)]
    records = [{**mine, "date": date} for date in dates]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_save_many, args=(cache.root, records[::step])) for step in (1, -1, 3, -3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert json.loads((object_directory(cache, mine["key"]) / SELFTEST).read_text())["date"] == dates[-1]
