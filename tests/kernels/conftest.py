"""A miniature factory for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from factory import config, make_copier, make_tree
from gemmill.cache import Cache

from kernels.build import Build
from kernels.paths import Paths


@pytest.fixture(autouse=True)
def _default_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    # A test that wants a certain compiler names it.
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Return a new miniature checkout."""
    return make_tree(tmp_path / "checkout")


@pytest.fixture
def notices() -> list[str]:
    """Return the list that `build` puts its notices into."""
    return []


@pytest.fixture
def build(paths: Paths, notices: list[str]) -> Build:
    """Return a Build of the miniature checkout."""
    return Build(paths, notice=notices.append)


@pytest.fixture(scope="session")
def prebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library of the miniature factory, for compilers that only copy it."""
    paths = make_tree(tmp_path_factory.mktemp("prebuilt") / "checkout")
    outcome = Build(paths, "g++").compile(config())
    assert outcome.ok, outcome.message
    return Cache(paths.cache).read(outcome.key).library


@pytest.fixture
def fast(tmp_path: Path, paths: Paths, prebuilt: Path) -> Build:
    """Return a Build of the miniature checkout whose compiler takes no time, for tests of what is built when."""
    return Build(paths, str(make_copier(tmp_path / "fast", prebuilt).path))
