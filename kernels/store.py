"""The cache, write side. The grammar on disk stands in `gemmill.cache`.

Everything enters the cache by a rename: an object is put together in a directory of its own under tmp/, is made durable
and is checked there, and only then gets its name. So a crash or a full disk leaves the whole object or none. What it
leaves in tmp/ is swept up by the next writer, which can tell: an owner that lives holds a lock on its directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmill.cache import (
    INDEX_SCHEMA,
    LIBRARY,
    MANIFEST,
    NATIVE,
    SELFTEST,
    Cache,
    CacheObject,
    describe_file,
    is_key,
    object_path,
)
from gemmill.errors import CorruptObject, GemmillError, KernelNotFound
from gemmill.files import sync_directory, write_atomically
from gemmill.locks import try_lock
from gemmill.tree import StoreError, Tree, translating


class InputsChanged(GemmillError):
    """An input changed while the object was being made from it; nothing was published."""


@dataclass(frozen=True)
class Published:
    """A verified object, and whether this call put it there."""

    object: CacheObject
    ours: bool


class Store(Tree):
    """A cache directory, for writing.

    Parameters
    ----------
    root : path-like
        Created when first written to.
    notice : callable, optional
        Receives one line for each object that is moved to quarantine.
    """

    def __init__(self, root: str | Path, notice: Callable[[str], None] = lambda text: None) -> None:
        self.cache = Cache(root)
        super().__init__(self.cache.root)
        self._notice = notice
        self._swept = False

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Give a new directory in tmp/, removed at the end unless it was renamed into place."""
        with translating("create a directory in", self.root / "tmp"):
            path, handle = self._locked_directory()
        if not self._swept:
            self._swept = True
            self.sweep_staging()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)

    def sweep_staging(self) -> int:
        """Remove what killed processes left in tmp/, and return how many directories that were."""
        removed = 0
        for path in self.root.glob("tmp/*"):
            with contextlib.suppress(OSError):
                handle = try_lock(path, directory=True)
                if handle is not None:  # an owner that lives would hold it
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(handle)
                    removed += 1
        return removed

    def publish(
        self, folder: Path, key: str, manifest: Mapping[str, Any], check_inputs: Callable[[], None] = lambda: None
    ) -> Published:
        """Make the directory `folder`, which holds a kernel.so, the object of `key`.

        Parameters
        ----------
        folder : Path
            On the cache's file system, as `staging` gives it; nothing but the library may be in it.
        key : str
        manifest : mapping
            Without `files`, which is added here.
        check_inputs : callable
            Called last before the object gets its name; raises InputsChanged to call it off.

        Raises
        ------
        StoreError
            If anything could not be written; nothing is left behind.
        """
        library, path = folder / LIBRARY, object_path(self.root, key)
        with translating("publish", path):
            built = describe_file(library)
            if built is None or not built["size"]:
                raise StoreError(f"failed to publish {path}: the build left no {LIBRARY}")
            text = json.dumps({**manifest, "files": {LIBRARY: built}}, indent=1, ensure_ascii=False)
            library.chmod(self.file_mode | 0o111)
            write_atomically(folder / MANIFEST, text.encode(), self.file_mode, durable=True)
            with library.open("rb") as file:
                os.fsync(file.fileno())
            folder.chmod(self.folder_mode)
            sync_directory(folder)
            if describe_file(library) != built or (folder / MANIFEST).read_bytes() != text.encode():
                raise StoreError(f"failed to publish {path}: its files read back differently than they were written")
            check_inputs()
            return Published(*self._name(folder, key))

    def _name(self, folder: Path, key: str) -> tuple[CacheObject, bool]:
        path = object_path(self.root, key)
        for _ in range(3):
            self.folder("objects", key[:2])
            try:
                folder.rename(path)
            except FileNotFoundError:
                if not folder.exists():
                    raise
                continue  # the cache was removed under us between the two calls
            except OSError:
                # Somebody else's object has the name: use it, unless it is broken.
                if not path.exists():
                    raise
                try:
                    return self.cache.read(key), False
                except CorruptObject as error:
                    self.quarantine(key, str(error))
                except KernelNotFound:
                    pass
                continue
            sync_directory(path.parent)
            return self.cache.read(key), True
        raise StoreError(f"failed to publish {path}: the directory is removed or taken again and again")

    def set_index(self, arch: str, name: str, key: str, config: Mapping[str, Any], provider: str = NATIVE) -> None:
        """Let the index name `key` as the current one of a provider's kernel."""
        entry = {"schema": INDEX_SCHEMA, "arch": arch, "name": name, "key": key, "config": config}
        if provider != NATIVE:
            entry["provider"] = provider
        path = self.cache.index_path(arch, name, provider)
        with translating("write", path):
            self.folder(*path.parent.relative_to(self.root).parts)
            write_atomically(path, json.dumps(entry, indent=1).encode(), self.file_mode, durable=True)

    def unset_index(self, arch: str, name: str, provider: str = NATIVE) -> None:
        """Let the index name a kernel no more; its objects stay until gc."""
        path = self.cache.index_path(arch, name, provider)
        with translating("remove", path):
            path.unlink(missing_ok=True)

    def files(self, arch: str, name: str, key: str, provider: str = NATIVE) -> tuple[str, ...]:
        """Return the files that say whether a kernel's object is whole, current and tested."""
        path = object_path(self.root, key)
        index = self.cache.index_path(arch, name, provider)
        return (*(f"{path}/{file}" for file in (LIBRARY, MANIFEST, SELFTEST)), str(index))

    def has(self, key: str) -> bool:
        """Tell whether there is anything under the key's name, whole or not."""
        return object_path(self.root, key).exists()

    def quarantine(self, key: str, reason: str) -> Path:
        """Move a broken object out of the way, tell so, and return where it went."""
        target = self.root / "quarantine" / f"{key}-{time.time_ns()}-{os.getpid()}"
        with translating("quarantine", object_path(self.root, key)):
            self.folder("quarantine")
            try:
                object_path(self.root, key).rename(target)
            except FileNotFoundError:
                return target  # another process was faster, and has told it
        self._notice(f"quarantined {target}: {reason}")
        return target

    def _locked_directory(self) -> tuple[Path, int]:
        while True:
            self.folder("tmp")
            try:
                path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self.root / "tmp"))
                self.share(path)
                handle = try_lock(path, directory=True)
            except FileNotFoundError:
                continue  # removed between two calls, with the whole cache or by a gc that came first
            if handle is not None:
                return path, handle


def keys_in_index(root: Path) -> set[str]:
    """Return every key that some index entry names, whether or not the rest of the entry is right."""
    keys = set()
    for path in root.glob("index/**/*.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            key = json.loads(path.read_bytes()).get("key")
            if isinstance(key, str) and is_key(key):
                keys.add(key)
    return keys
