"""Look after a cache: check every object, and remove what nobody needs.

Neither disturbs a build that runs at the same time: an object is only touched under its key's lock, and it leaves the
cache by a rename, as it came.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from gemmill.cache import LIBRARY, Cache, object_path
from gemmill.errors import CorruptObject, GemmillError, KernelNotFound
from gemmill.locks import try_lock
from gemmill.tree import translating

from kernels.store import Store, keys_in_index

QUARANTINE_SECONDS = 7 * 24 * 3600.0
_LEFTOVER_SECONDS = 3600.0  # no write of a small file takes so long


@dataclass(frozen=True)
class Swept:
    """What `gc` removed, and what is left.

    Attributes
    ----------
    objects, freed : int
        Objects removed, and their bytes.
    kept, kept_bytes : int
        Objects left, and their bytes.
    leftovers : int
        Directories and files that interrupted writers had left.
    quarantined : int
        Old entries of the quarantine.
    """

    objects: int
    freed: int
    kept: int
    kept_bytes: int
    leftovers: int
    quarantined: int


@dataclass(frozen=True)
class Verified:
    """What `verify` found.

    Attributes
    ----------
    checked : int
        Objects looked at.
    broken : tuple of (str, str)
        Key and reason of those that do not verify.
    dangling : tuple of (str, str)
        arch/name and reason of index entries that lead to no whole object.
    """

    checked: int
    broken: tuple[tuple[str, str], ...]
    dangling: tuple[tuple[str, str], ...]

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.broken and not self.dangling


def verify(store: Store, repair: bool = True) -> Verified:
    """Check every object and every index entry of a cache.

    Parameters
    ----------
    store : Store
    repair : bool
        Move broken objects to quarantine; the next build makes them again. Needs a writable cache.
    """
    keys = store.cache.keys()
    broken = []
    for key in keys:
        try:
            store.cache.read(key)
        except KernelNotFound:
            continue  # gone meanwhile
        except CorruptObject as error:
            broken.append((key, str(error)))
            if repair:
                _quarantine(store, key)
    return Verified(len(keys), tuple(broken), tuple(_dangling(store.cache)))


def gc(store: Store, max_size: int | None = None) -> Swept:
    """Remove objects that the index does not name, the longest unused first, and what interrupted writers left.

    Parameters
    ----------
    store : Store
    max_size : int, optional
        Stop as soon as the cache's objects have no more than so many bytes; None removes every unnamed object.
    """
    named = keys_in_index(store.root)
    keys = store.cache.keys()
    sizes = {key: _size(object_path(store.root, key)) for key in keys}
    left, removed = sum(sizes.values()), []
    for key in sorted(sizes.keys() - named, key=lambda key: (_last_use(store.root, key), key)):
        if max_size is not None and left <= max_size:
            break
        if _remove(store, key):
            removed.append(key)
            left -= sizes[key]
    return Swept(
        objects=len(removed),
        freed=sum(sizes[key] for key in removed),
        kept=len(sizes) - len(removed),
        kept_bytes=left,
        leftovers=store.sweep_staging() + _sweep_files(store.root),
        quarantined=_sweep_quarantine(store.root),
    )


def _quarantine(store: Store, key: str) -> None:
    with store.lock(key):
        # A builder may have replaced it by now.
        try:
            store.cache.read(key)
        except CorruptObject as error:
            store.quarantine(key, str(error))
        except KernelNotFound:
            pass


def _dangling(cache: Cache) -> list[tuple[str, str]]:
    found = []
    for path in sorted(cache.root.glob("index/**/*.json")):
        arch, *provider = path.parent.relative_to(cache.root / "index").parts
        try:
            cache.read(cache.entry(arch, path.stem, *provider).key)
        except GemmillError as error:
            found.append(("/".join([arch, *provider, path.stem]), str(error)))
    return found


def _remove(store: Store, key: str) -> bool:
    """Remove an object unless it is being built or has come into use; tell whether it is gone."""
    with translating("remove", object_path(store.root, key)):
        store.folder("locks")
        handle = try_lock(store.root / "locks" / f"{key}.lock", store.file_mode)
    if handle is None:
        return False
    try:
        if _is_named(store, key):
            return False
        path = object_path(store.root, key)
        with translating("remove", path), store.staging() as stage, contextlib.suppress(FileNotFoundError):
            path.rename(stage / "object")
        return True
    finally:
        os.close(handle)


def _is_named(store: Store, key: str) -> bool:
    # Only the entry of the object's own kernel can name it: the key is made from arch and config.
    try:
        found = store.cache.read(key)
        return store.cache.entry(found.arch, found.name, found.provider).key == key
    except KernelNotFound:
        return False
    except CorruptObject:
        return key in keys_in_index(store.root)


def _sweep_files(root: Path) -> int:
    """Remove temporary files that a killed writer left beside the file it was to replace."""
    removed = 0
    for pattern in ("index/*/.*", "index/*/*/.*", "objects/??/*/.*"):
        for path in root.glob(pattern):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                    path.unlink()
                    removed += 1
    return removed


def _sweep_quarantine(root: Path) -> int:
    removed = 0
    for path in root.glob("quarantine/*"):
        try:
            since = int(path.name.split("-")[1]) / 1e9
        except (IndexError, ValueError):
            continue
        if time.time() - since > QUARANTINE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
            removed += 1
    return removed


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _last_use(root: Path, key: str) -> float:
    # Reading writes nothing, so the file system's own access time is all there is to go by.
    try:
        info = (object_path(root, key) / LIBRARY).stat()
    except OSError:
        return 0.0
    return max(info.st_atime, info.st_mtime)
