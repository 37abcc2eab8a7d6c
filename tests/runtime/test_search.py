"""The search path: what is on it, in which order, and nothing else."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from gemmill import search
from gemmill.cache import Cache
from gemmill.search import Place, SearchPath, user_cache

_real_installed = search._installed


def roots(**options):
    return [place.root for place in SearchPath(**options)]


def test_order_is_variable_then_wheels_then_user(monkeypatch, tmp_path):
    wheel = Place(tmp_path / "wheel", "entry point")
    monkeypatch.setattr(search, "_installed", lambda: (wheel,))
    monkeypatch.setenv(search.VARIABLE, os.pathsep.join([str(tmp_path / "a"), "", str(tmp_path / "b")]))
    assert roots() == [tmp_path / "a", tmp_path / "b", tmp_path / "wheel", tmp_path / "xdg" / "gemmill"]


def test_named_caches_replace_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv(search.VARIABLE, str(tmp_path / "a"))
    assert roots(cache=tmp_path / "x") == [tmp_path / "x"]
    assert roots(cache=str(tmp_path / "x")) == [tmp_path / "x"]
    assert roots(cache=Cache(tmp_path / "x")) == [tmp_path / "x"]
    assert roots(cache=[tmp_path / "x", str(tmp_path / "y")]) == [tmp_path / "x", tmp_path / "y"]
    assert roots(cache=[]) == []


def test_the_same_directory_comes_once(monkeypatch, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    monkeypatch.setenv(search.VARIABLE, os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "link")]))
    assert roots() == [tmp_path / "a", tmp_path / "xdg" / "gemmill"]


def test_relative_directories_are_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(search.VARIABLE, "kernels here")
    assert roots()[0] == tmp_path / "kernels here"


def test_user_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache().root == tmp_path / ".cache" / "gemmill"
    # The specification says that a relative one is to be ignored.
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache().root == tmp_path / ".cache" / "gemmill"


def test_no_home_is_a_place_with_a_problem(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert list(SearchPath()) == [Place(None, "user cache", "Could not determine home directory.")]


def test_installed_wheels(monkeypatch, tmp_path):
    """Entry points may be paths or functions; a broken one is a problem, not an exception."""
    package = tmp_path / "some_kernels.py"
    package.write_text(
        "from pathlib import Path\n"
        "PATH = Path(__file__).parent / 'one'\n"
        "def where(): return str(Path(__file__).parent / 'two')\n"
        "def broken(): raise ValueError('no kernels today')\n"
    )
    info = tmp_path / "some_kernels-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some_kernels\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[gemmill.caches]\na = some_kernels:PATH\nb = some_kernels:where\nc = some_kernels:broken\nd = absent_module\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    _real_installed.cache_clear()
    try:
        places = _real_installed()
    finally:
        _real_installed.cache_clear()
    assert [place.root for place in places] == [tmp_path / "one", tmp_path / "two", None, None]
    assert places[0].origin == "entry point a = some_kernels:PATH"
    assert places[2].problem == "ValueError: no kernels today"
    assert "absent_module" in str(places[3])


def test_wheels_are_not_listed_while_an_earlier_place_is_enough(monkeypatch, tmp_path):
    def never():
        pytest.fail("entry points were listed")

    monkeypatch.setattr(search, "_installed", never)
    monkeypatch.setenv(search.VARIABLE, str(tmp_path))
    assert next(iter(SearchPath())).root == tmp_path
