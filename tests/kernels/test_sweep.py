"""Upkeep: verify finds what is wrong, gc removes only what nobody needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from factory import ENVIRONMENT
from gemmill.cache import LIBRARY, object_path
from hypothesis import given, settings
from hypothesis import strategies as st
from test_store import manifest, put

from kernels import sweep
from kernels.store import Store
from kernels.sweep import gc, verify


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def used(store: Store, key: str, when: float) -> None:
    """Let an object's library have been used last at a time."""
    os.utime(object_path(store.root, key) / LIBRARY, (when, when))


def test_gc_of_nothing(store: Store) -> None:
    assert gc(store) == sweep.Swept(0, 0, 0, 0, 0, 0)
    assert not store.root.exists()


def test_gc_keeps_what_the_index_names(store: Store) -> None:
    kept, gone = put(store, 1), put(store, 2, indexed=False)
    swept = gc(store, max_size=0)
    assert (swept.objects, swept.kept) == (1, 1)
    assert store.cache.keys() == [kept] and not store.has(gone)
    assert swept.freed > 0 and swept.kept_bytes > 0


def test_gc_removes_the_longest_unused_first(store: Store) -> None:
    keys = [put(store, i, b"x" * 10000, indexed=False) for i in range(5)]
    for age, key in zip((3, 5, 1, 4, 2), keys, strict=True):
        used(store, key, time.time() - age * 1000)
    size = sum(p.stat().st_size for p in object_path(store.root, keys[0]).iterdir())
    gc(store, max_size=3 * size + 100)
    assert set(store.cache.keys()) == {keys[0], keys[2], keys[4]}
    gc(store, max_size=10 * size)
    assert len(store.cache.keys()) == 3
    gc(store)
    assert store.cache.keys() == []


def test_gc_may_find_the_limit_out_of_reach(store: Store) -> None:
    put(store, 1, b"x" * 10000)
    assert gc(store, max_size=10).kept_bytes > 10000


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_gc_against_a_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    store = Store(tmp_path_factory.mktemp("gc"))
    objects = data.draw(st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.integers(1, 9)), max_size=5))
    ages, sizes, named = {}, {}, set()
    for number, (size, indexed, age) in enumerate(objects):
        key = put(store, number, b"x" * size, indexed)
        used(store, key, time.time() - age * 100)
        ages[key], sizes[key] = age, sum(p.stat().st_size for p in object_path(store.root, key).iterdir())
        named |= {key} if indexed else set()
    limit = data.draw(st.none() | st.integers(0, 20000))
    swept = gc(store, limit)
    left = set(store.cache.keys())
    total = sum(sizes[key] for key in left)
    assert named <= left and swept.kept_bytes == total and swept.freed == sum(sizes.values()) - total
    if limit is None:
        assert left == named
    else:
        assert total <= limit or left == named
        removed = set(sizes) - left
        assert not removed or all(ages[a] >= ages[b] for a in removed for b in left - named)
        last = sorted(removed, key=lambda key: (-ages[key], key))[-1:]
        assert all(total + sizes[key] > limit for key in last), "one more was removed than needed"
    assert all(store.cache.read(key) for key in left)


def test_gc_leaves_an_object_that_is_being_built(store: Store) -> None:
    key = put(store, 1, indexed=False)
    with store.lock(key):
        assert gc(store).objects == 0
    assert gc(store).objects == 1


def test_gc_looks_at_the_index_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that came into use between the look at the index and its turn stays."""
    key = put(store, 1)
    monkeypatch.setattr(sweep, "keys_in_index", lambda root: set())
    assert gc(store).objects == 0 and store.cache.keys() == [key]


def test_gc_removes_broken_objects_that_nobody_names(store: Store) -> None:
    key = put(store, 1, indexed=False)
    (object_path(store.root, key) / LIBRARY).unlink()
    assert gc(store).objects == 1


def test_gc_leaves_lock_files(store: Store) -> None:
    key = put(store, 1, indexed=False)
    gc(store)
    assert (store.root / "locks" / f"{key}.lock").exists()


def test_gc_sweeps_what_the_dead_left_and_not_what_the_living_use(store: Store) -> None:
    put(store, 1)
    text = (
        "import os, sys\nfrom kernels.store import Store\n"
        "with Store(sys.argv[1]).staging() as stage:\n    (stage / 'x').write_text('x'); os.kill(os.getpid(), 9)\n"
    )
    argv = [sys.executable, "-c", text, str(store.root)]
    subprocess.run(argv, env=ENVIRONMENT, check=False)
    (dead,) = store.root.glob("tmp/*")
    with store.staging() as alive:
        assert gc(store).leftovers == 1
        assert alive.exists() and not dead.exists()


def test_gc_sweeps_old_temporary_files_only(store: Store) -> None:
    key = put(store, 1)
    old, new = store.root / "index" / "generic" / ".old", object_path(store.root, key) / ".new"
    for path in (old, new):
        path.write_text("")
    os.utime(old, (1, 1))
    assert gc(store).leftovers == 1
    assert new.exists() and not old.exists()


def test_gc_sweeps_old_quarantine_only(store: Store) -> None:
    old, new = put(store, 1), put(store, 2)
    moved = store.quarantine(old, "test")
    kept = store.quarantine(new, "test")
    week = int(sweep.QUARANTINE_SECONDS * 1e9) + 10**9
    moved.rename(moved.with_name(f"{old}-{time.time_ns() - week}-1"))
    (store.root / "quarantine" / "somebody's notes").mkdir()
    assert gc(store).quarantined == 1
    assert sorted(p.name for p in (store.root / "quarantine").iterdir()) == sorted([kept.name, "somebody's notes"])


def test_gc_beside_builders(store: Store) -> None:
    done = threading.Event()

    def sweep_all_the_time() -> None:
        while not done.is_set():
            gc(store, max_size=0)

    sweeper = threading.Thread(target=sweep_all_the_time)
    sweeper.start()
    try:
        keys = []
        for number in range(25):
            with store.lock(manifest(number)["key"]):
                keys.append(put(store, number))
    finally:
        done.set()
        sweeper.join()
    assert sorted(keys) == store.cache.keys()
    assert all(store.cache.read(key) for key in keys)


def test_verify_whole_cache(store: Store) -> None:
    for number in range(3):
        put(store, number)
    found = verify(store)
    assert found.ok and found.checked == 3


def test_verify_finds_and_repairs(tmp_path: Path) -> None:
    notices: list[str] = []
    store = Store(tmp_path / "cache", notices.append)
    good, bad, lost = (put(store, number) for number in range(3))
    (object_path(store.root, bad) / LIBRARY).write_bytes(b"bad")
    shutil.rmtree(object_path(store.root, lost))
    (store.root / "index" / "generic" / "broken.json").write_text("{")
    found = verify(store, repair=False)
    assert [key for key, _ in found.broken] == [bad] and store.has(bad) and not notices
    assert "the manifest says" in found.broken[0][1]
    assert [name for name, _ in found.dangling] == ["generic/broken", "generic/kernel1", "generic/kernel2"]
    verify(store)
    assert not store.has(bad) and len(notices) == 1 and store.cache.keys() == [good]
    assert not verify(store).broken


def test_verify_of_nothing(store: Store) -> None:
    assert verify(store) == sweep.Verified(0, (), ()) and not store.root.exists()
