"""Where the runtime looks for caches, in order.

1. the caches the caller names, and then nothing else;
2. ``GEMMILL_CACHE``: one or several directories, separated as in ``PATH``;
3. installed kernel wheels: entry points of the group ``gemmill.caches``, each a path or a function that returns one;
4. the user's cache directory, ``$XDG_CACHE_HOME/gemmill`` or ``~/.cache/gemmill``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gemmill.cache import Cache

VARIABLE = "GEMMILL_CACHE"
ENTRY_POINTS = "gemmill.caches"

CacheLike: TypeAlias = str | os.PathLike[str] | Cache
CacheArgument: TypeAlias = CacheLike | Sequence[CacheLike] | None


@dataclass(frozen=True)
class Place:
    """One cache to look into.

    Attributes
    ----------
    root : Path or None
        The directory, which need not exist; None where `problem` says why there is none.
    origin : str
        What put it on the path.
    problem : str or None
        Why this origin gave no directory.
    """

    root: Path | None
    origin: str
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.root} ({self.origin})" if self.root else f"{self.origin}: {self.problem}"


def search_path(cache: CacheArgument = None) -> Iterator[Place]:
    """Yield the places to search, first to last; a directory named twice comes once.

    Parameters
    ----------
    cache : path-like, Cache, sequence of them, or None
        The caller's own caches. They replace the rest of the path.
    """
    seen = set()
    for place in _named(cache) if cache is not None else _default():
        if place.root is not None:
            real = os.path.realpath(place.root)
            if real in seen:
                continue
            seen.add(real)
        yield place


def _named(cache: CacheArgument) -> Iterator[Place]:
    several = cache if isinstance(cache, Sequence) and not isinstance(cache, str) else [cache]
    for one in several:
        root = one.root if isinstance(one, Cache) else Path(os.fspath(one)).absolute()  # type: ignore[arg-type]
        yield Place(root, "argument")


def _default() -> Iterator[Place]:
    for text in os.environ.get(VARIABLE, "").split(os.pathsep):
        if text:
            yield Place(Path(text).absolute(), VARIABLE)
    # Installed wheels don't change while a process runs, and listing them takes milliseconds.
    yield from _installed()
    yield user_cache()


def user_cache() -> Place:
    """Return the user's own cache directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():  # the XDG specification has relative paths ignored
        return Place(Path(base) / "gemmill", "XDG_CACHE_HOME")
    try:
        return Place(Path.home() / ".cache" / "gemmill", "user cache")
    except RuntimeError as error:
        return Place(None, "user cache", str(error))


@functools.cache
def _installed() -> tuple[Place, ...]:
    from importlib.metadata import entry_points

    places = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda p: (p.name, p.value)):
        origin = f"entry point {point.name} = {point.value}"
        try:
            value = point.load()
            value = value() if callable(value) else value
            places.append(Place(Path(os.fspath(value)).absolute(), origin))
        except Exception as error:  # a broken wheel must not take the others with it
            places.append(Place(None, origin, f"{type(error).__name__}: {error}"))
    return tuple(places)
