"""A miniature factory for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from factory import make_tree

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
