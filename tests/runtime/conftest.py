"""Every test has its own search path: nothing of the user's is found, nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from gemmill import api, choice, search
from gemmill.cache import Cache


@pytest.fixture(autouse=True)
def _own_search_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(search.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(search, "_installed", lambda: ())
    api._plans.clear()
    choice.forget()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return an empty cache, not on the search path."""
    root = tmp_path / "cache"
    root.mkdir()
    return Cache(root)


@pytest.fixture
def found_cache(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Return an empty cache that is on the search path."""
    monkeypatch.setenv(search.VARIABLE, str(cache.root))
    return cache
