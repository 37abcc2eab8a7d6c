"""The store: publishing, the index, quarantine, permissions."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gemmill.cache import LIBRARY, MANIFEST_SCHEMA, Cache, canonical_json, object_path, sha256_text
from gemmill.errors import CorruptObject
from gemmill.tree import StoreError

from kernels.store import InputsChanged, Store


def manifest(number: int) -> dict[str, Any]:
    config = {"arch": "generic", "number": number}
    inputs = {"config": config}
    return {
        "schema": MANIFEST_SCHEMA,
        "key": sha256_text(canonical_json(inputs)),
        "inputs": inputs,
        "arch": "generic",
        "name": f"kernel{number}",
        "config": config,
        "target": {"machine": "x", "system": "y"},
    }


def put(store: Store, number: int, content: bytes = b"library", indexed: bool = True) -> str:
    """Publish an object made of nothing, and return its key."""
    said = manifest(number)
    with store.staging() as stage:
        (stage / "object").mkdir()
        (stage / "object" / LIBRARY).write_bytes(content)
        store.publish(stage / "object", said["key"], said)
    if indexed:
        store.set_index(said["arch"], said["name"], said["key"], said["config"])
    return str(said["key"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def test_publish_and_read(store: Store) -> None:
    key = put(store, 1, b"abc")
    found = Cache(store.root).read(key)
    assert found.library.read_bytes() == b"abc" and found.manifest["files"][LIBRARY]["size"] == 3
    assert Cache(store.root).entry("generic", "kernel1").key == key
    assert [p.name for p in store.root.iterdir()] and not list(store.root.glob("tmp/*"))
    assert os.access(found.library, os.X_OK)


def test_second_publisher_gets_the_first_ones_object(store: Store) -> None:
    said = manifest(1)
    results = []
    for content in (b"first", b"second"):
        with store.staging() as stage:
            (stage / LIBRARY).write_bytes(content)
            results.append(store.publish(stage, said["key"], said))
    assert [r.ours for r in results] == [True, False]
    assert results[1].object.library.read_bytes() == b"first"


def test_second_publisher_replaces_a_broken_object(tmp_path: Path) -> None:
    notices: list[str] = []
    store = Store(tmp_path / "cache", notices.append)
    key = put(store, 1)
    (object_path(store.root, key) / LIBRARY).write_bytes(b"broken")
    put(store, 1, b"better")
    assert store.cache.read(key).library.read_bytes() == b"better"
    assert len(notices) == 1 and len(list(store.root.glob("quarantine/*"))) == 1


def test_changed_inputs_call_it_off(store: Store) -> None:
    said = manifest(1)

    def changed() -> None:
        raise InputsChanged("edited")

    with pytest.raises(InputsChanged), store.staging() as stage:
        (stage / LIBRARY).write_bytes(b"x")
        store.publish(stage, said["key"], said, changed)
    assert store.cache.keys() == [] and not list(store.root.glob("tmp/*"))


def test_nothing_to_publish(store: Store) -> None:
    said = manifest(1)
    with pytest.raises(StoreError, match=r"left no kernel\.so"), store.staging() as stage:
        store.publish(stage, said["key"], said)


def test_what_reads_back_differently_is_not_published(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    said = manifest(1)
    with pytest.raises(StoreError, match="read back differently"), store.staging() as stage:
        (stage / LIBRARY).write_bytes(b"good")

        def fsync(handle: int) -> None:
            (stage / LIBRARY).write_bytes(b"evil")

        monkeypatch.setattr(os, "fsync", fsync)
        store.publish(stage, said["key"], said)
    assert store.cache.keys() == []


def test_order_of_events(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and directory are on disk before the object gets its name, and inputs are checked last."""
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def logged_fsync(handle: int) -> None:
        events.append("sync " + ("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"))
        fsync(handle)

    def logged_rename(self: Path, target: Any) -> Path:
        events.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(Path, "rename", logged_rename)
    said = manifest(1)
    with store.staging() as stage:
        (stage / LIBRARY).write_bytes(b"x")
        store.publish(stage, said["key"], said, lambda: events.append("check"))
    assert events == ["sync file", "sync file", "sync folder", "check", "rename", "sync folder"]


def test_staging_is_removed_whatever_happens(store: Store) -> None:
    with pytest.raises(RuntimeError), store.staging() as stage:
        (stage / "deep").mkdir()
        (stage / "deep" / "file").write_text("x")
        raise RuntimeError
    assert not list(store.root.glob("tmp/*"))


def test_errors_say_what_failed_where_and_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "cache")
    with pytest.raises(StoreError, match=r"^failed to create a directory in .*tmp: Not a directory$"), store.staging():
        pass
    with pytest.raises(StoreError, match=r"^failed to lock .*locks/k\.lock: Not a directory$"), store.lock("k"):
        pass
    with pytest.raises(StoreError, match=r"^failed to write .*kernel1\.json: Not a directory$"):
        store.set_index("generic", "kernel1", "k", {})


def test_error_of_the_body_under_a_lock_is_left_alone(store: Store) -> None:
    with pytest.raises(PermissionError), store.lock("k"):
        raise PermissionError(errno.EACCES, "something else")


def test_lock_files_stay(store: Store) -> None:
    with store.lock("k"):
        assert (store.root / "locks" / "k.lock").exists()
    assert (store.root / "locks" / "k.lock").exists()


def test_lock_after_the_cache_was_removed(store: Store) -> None:
    with store.lock("k"):
        shutil.rmtree(store.root)
        with store.lock("k"):  # another file, another lock
            pass


def test_cache_removed_while_waiting_for_a_lock(store: Store) -> None:
    entered = threading.Event()

    def wait() -> None:
        with store.lock("k"):
            entered.set()

    with store.lock("k"):
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.05)
        shutil.rmtree(store.root)
        assert entered.wait(10)
    waiter.join()


def test_quarantine_is_told_once(tmp_path: Path) -> None:
    notices: list[str] = []
    store = Store(tmp_path / "cache", notices.append)
    key = put(store, 1)
    target = store.quarantine(key, "bit rot")
    assert target.is_dir() and target.name.startswith(f"{key}-") and target.name.endswith(f"-{os.getpid()}")
    assert not store.has(key)
    store.quarantine(key, "bit rot")  # by another process
    assert notices == [f"quarantined {target}: bit rot"]


def test_index_entry(store: Store) -> None:
    key = put(store, 1)
    entry = json.loads((store.root / "index" / "generic" / "kernel1.json").read_text())
    config = {"arch": "generic", "number": 1}
    assert entry == {"schema": 1, "arch": "generic", "name": "kernel1", "key": key, "config": config}


def test_publish_never_goes_through_a_half_object(store: Store) -> None:
    """A directory without manifest under the key's name is moved away, not added to."""
    key = manifest(1)["key"]
    half = object_path(store.root, key)
    half.mkdir(parents=True)
    (half / LIBRARY).write_bytes(b"half")
    with pytest.raises(CorruptObject):
        store.cache.read(key)
    put(store, 1, b"whole")
    assert store.cache.read(key).library.read_bytes() == b"whole"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_of_a_private_cache(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = Store(tmp_path / "new" / "cache")
        put(store, 1)
        with store.lock("k"):
            pass
    finally:
        os.umask(before)
    for path in [tmp_path / "new", store.root, *store.root.rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022, path


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_of_a_shared_cache(tmp_path: Path, umask: int) -> None:
    store = Store(tmp_path / "cache")
    store.root.mkdir()
    store.root.chmod(0o2775)
    before = os.umask(umask)
    try:
        key = put(store, 1)
        with store.lock("k"):
            pass
        store.quarantine(key, "test")
    finally:
        os.umask(before)
    for path in store.root.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o060 == 0o060 and not mode & 0o002, (path, oct(mode))
        assert not path.is_dir() or mode & 0o2070 == 0o2070, (path, oct(mode))
