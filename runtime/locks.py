"""A lock file that is never unlinked.

flock is released by the kernel when its holder dies, however that happens, and it is between open files, so it works
between threads too. The file must stay: who unlinks it while another waits lets a third one lock a new file of
the same name. filelock does the same for plain files, but can lock no directory (a stage is locked by its own) and
does not see that the whole cache was removed and made anew while it waited.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def hold(path: Path, mode: int = 0o644, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the exclusive lock of `path`, whose directory must exist.

    Parameters
    ----------
    path : Path
    mode : int
        Permissions of the file, whatever the umask.
    check : callable
        Called while waiting; an exception from it ends the wait.
    """
    pause = 0.002
    while (handle := try_lock(path, mode)) is None:
        check()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    try:
        yield
    finally:
        os.close(handle)


def try_lock(path: Path, mode: int = 0o644, directory: bool = False) -> int | None:
    """Lock a file, or an existing directory, and return its descriptor; None where another holds it."""
    flags = os.O_RDONLY | (os.O_DIRECTORY if directory else os.O_CREAT)
    handle = os.open(path, flags, mode)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        info = os.fstat(handle)
        if not directory and info.st_uid == os.geteuid() and stat.S_IMODE(info.st_mode) != mode:
            os.fchmod(handle, mode)  # the umask took something off
        # The whole cache may have been deleted and made anew since the open.
        if info.st_ino == path.stat().st_ino:
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None
