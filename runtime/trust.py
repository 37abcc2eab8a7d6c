"""Whether a place on disk may hold code that we load.

A kernel library runs with the caller's rights, so every path component that somebody else could write is a
way in. The rule, from the cache's root down: nothing is writable for everybody, and every owner is root, the
caller, or whoever owns the root itself (the root was named by the caller, so its owner is trusted). Groups may write
only where they may write the root, a deliberately shared directory; if the caller belongs to its group, the other
members' files are trusted too. Above the root, a directory that everybody may write must be sticky.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_untrusted(root: Path, path: Path) -> str | None:
    """Say why code at `path`, inside the cache at `root`, must not be loaded; None where it may.

    Parameters
    ----------
    root : Path
        The cache directory, as the caller named it.
    path : Path
        A file in it. Each component from `root` down to `path` is checked.
    """
    root_stat = root.stat()
    group_writable = bool(root_stat.st_mode & stat.S_IWGRP)
    shared = group_writable and root_stat.st_gid in _my_groups()
    owners = {0, os.geteuid(), root_stat.st_uid}
    for place in _components(root, path):
        info = place.lstat()
        if stat.S_ISLNK(info.st_mode):
            return f"{place} is a symbolic link: a cache holds files and directories only"
        if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
            return f"{place} is neither a file nor a directory"
        if info.st_mode & stat.S_IWOTH:
            return f"{place} can be written by everybody (mode {stat.S_IMODE(info.st_mode):04o}): run chmod o-w on it"
        if info.st_mode & stat.S_IWGRP and not group_writable:
            return f"{place} can be written by group {info.st_gid}, and the cache's root can not: run chmod g-w on it"
        if info.st_uid not in owners and not shared:
            return (
                f"{place} belongs to user {info.st_uid}, the cache to user {root_stat.st_uid}: "
                "accepted are root, the cache's owner, you, or anybody in a group-writable cache of a group of yours"
            )
    for parent in root.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"{parent}, above the cache, can be written by everybody and is not sticky: chmod o-w or +t it"
    return None


def _components(root: Path, path: Path) -> list[Path]:
    # The root itself may be reached through a link: the caller chose it.
    places = [root.resolve()]
    for part in path.relative_to(root).parts:
        places.append(places[-1] / part)
    return places


def _my_groups() -> set[int]:
    return {os.getegid(), *os.getgroups()}
