"""Kernels of this machine, for tests that multiply for real.

They are built on first need, selftested, and kept in build/test: the cache is content-addressed, so what a later run
finds there is what it would build.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gemmill.arch import host_archs
from gemmill.cache import Cache
from gemmill.search import VARIABLE
from gemmill.selftest import run_selftest

from kernels.build import Build
from kernels.catalogue import load_catalogue
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths


class BuiltKernels:
    """Builds kernels of the catalogue into one cache, each at most once a session.

    Attributes
    ----------
    root : Path
        The cache.
    arch : str
        The best arch that this machine runs; `need` takes another one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root / "cache"
        self.arch = host_archs()[0].name
        self._build = Build(Paths.of(CHECKOUT.root, cache=self.root, build=root))
        self._failures: dict[KernelConfig, str] = {}  # of every config tried; empty where it is ready

    def need(self, arch: str | None = None, **selection: Any) -> list[KernelConfig]:
        """Return the selected kernels, built and with a passed selftest; `selection` as Catalogue.configs has it."""
        configs = load_catalogue().configs(arch or self.arch, **selection)
        new = [config for config in configs if config not in self._failures]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self._failures.update(zip(new, pool.map(self._make, new), strict=True))
        failed = [text for config in configs if (text := self._failures[config])]
        if failed:
            pytest.fail(
                f"{len(failed)} of {len(configs)} kernels are not usable; the first: {failed[0]}", pytrace=False
            )
        return configs

    def _make(self, config: KernelConfig) -> str:
        outcome = self._build.compile(config)
        if not outcome.ok:
            return f"{config.id} was not built: {outcome.message}"
        cache = Cache(self.root)
        if cache.read(outcome.key).outcome == "passed":
            return ""
        record = run_selftest(cache, outcome.key)
        return "" if record["outcome"] == "passed" else f"{config.id}: selftest {record['outcome']}: {record['reason']}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --simulate."""
    parser.addoption(
        "--simulate", choices=("part", "all"), default="part", help="simulated shapes of AMD kernels (default: part)"
    )


@pytest.fixture(scope="session")
def built_kernels() -> BuiltKernels:
    """Return the builder of this session's real kernels."""
    return BuiltKernels(CHECKOUT.build / "test")


@pytest.fixture
def rcr_cache(built_kernels: BuiltKernels, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let gemmill find decode kernels of layout rcr, all variants; return the cache."""
    built_kernels.need(family="decode", layout="rcr")
    monkeypatch.setenv(VARIABLE, str(built_kernels.root))
    return built_kernels.root
