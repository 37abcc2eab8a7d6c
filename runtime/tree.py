"""The directories of a cache as a writer needs them: their modes, and the lock of a key.

Permissions: a cache is written by its owner alone, whatever the umask. To share one, make its root group-writable (and
setgid, so that files get the group): what is put into such a root is writable for the group too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from gemmill.errors import GemmillError
from gemmill.files import make_directory
from gemmill.locks import hold


class StoreError(GemmillError):
    """The cache could not be written; the text names the path and the system's reason."""


class Tree:
    """The directories of a cache, for writing.

    Parameters
    ----------
    root : Path
        Created when first written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def lock(self, key: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold a key's lock; `check` is called while waiting, and may raise to give up."""
        path = self.root / "locks" / f"{key}.lock"
        with contextlib.ExitStack() as held:
            with translating("lock", path):
                for last in (False, True):
                    try:
                        self.folder("locks")
                        held.enter_context(hold(path, self.file_mode, check))
                        break
                    except FileNotFoundError:  # the cache was removed while we waited
                        if last:
                            raise
            yield

    def folder(self, *parts: str) -> Path:
        """Return a directory of the cache, made if needed, with the modes that this cache has."""
        path = self.root.joinpath(*parts)
        if not path.is_dir():
            make_directory(self.root)
            place = self.root
            for part in parts:
                place = place / part
                with contextlib.suppress(FileExistsError):
                    place.mkdir(mode=0o755)
                    self.share(place)
        return path

    @property
    def shared(self) -> bool:
        """True where the root's owner made it writable for its group."""
        try:
            return bool(self.root.stat().st_mode & stat.S_IWGRP)
        except OSError:
            return False

    @property
    def file_mode(self) -> int:
        """Permissions of the cache's files."""
        return 0o664 if self.shared else 0o644

    @property
    def folder_mode(self) -> int:
        """Permissions of the cache's directories."""
        return 0o2775 if self.shared else 0o755

    def share(self, path: Path) -> None:
        """Give a new directory of a shared cache to the group."""
        if self.shared:
            with contextlib.suppress(PermissionError):
                os.chown(path, -1, self.root.stat().st_gid)
            path.chmod(self.folder_mode)


@contextlib.contextmanager
def translating(verb: str, path: Path) -> Iterator[None]:
    """Turn the system's errors into a StoreError that reads "failed to VERB PATH: reason"."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"failed to {verb} {path}: {error.strerror or error}") from error
