"""Write files so that a reader, or a crash, finds the old content or the new one, never a part."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes, mode: int = 0o644, durable: bool = False) -> None:
    """Replace a file's content, making its directory if needed.

    Parameters
    ----------
    path : Path
    content : bytes
    mode : int
        Permissions of the file, whatever the umask.
    durable : bool
        Wait until it is on disk; for what can't be made again at no cost.
    """
    make_directory(path.parent)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(handle, mode)
            if durable:
                os.fsync(handle)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def sync_directory(path: Path) -> None:
    """Wait until a directory's entries are on disk, where the file system can say so."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def signature(path: str) -> tuple[int, int, int, int] | None:
    """Return what changes when a file does: size, mtime, ctime and inode; None where there is no file.

    Nobody can set a ctime, so an edit that puts the mtime back is seen.
    """
    try:
        info = os.stat(path)  # noqa: PTH116 (asked thousands of times a run; a Path costs more than the call)
    except OSError:
        return None
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def make_directory(path: Path) -> None:
    """Make a directory and its parents, none of them writable for others even where the umask would let it."""
    if not path.is_dir():
        make_directory(path.parent)
        try:
            path.mkdir(mode=0o755, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
