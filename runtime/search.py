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


class SearchPath:
    """The places to search, first to last; iterable more than once, and each is found when first reached.

    Parameters
    ----------
    cache : path-like, Cache, sequence of them, or None
        The caller's own caches. They replace the rest of the path.
    """

    def __init__(self, cache: CacheArgument = None) -> None:
        self._found: list[Place] = []
        self._rest = _places(cache)

    def __iter__(self) -> Iterator[Place]:
        yield from self._found
        # Listing installed wheels takes milliseconds, which a kernel in an earlier place saves.
        for place in self._rest:
            self._found.append(place)
            yield place


def _places(cache: CacheArgument) -> Iterator[Place]:
    """Yield the places; a directory named twice comes once."""
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


@functools.cache  # wheels don't come and go while a process runs
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
