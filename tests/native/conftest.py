"""Kernel libraries, each compiled once a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from native_build import compile_kernel
from problems import Library

from kernels.config import KernelConfig
from kernels.toolchain import Toolchain, find_toolchain


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """Return the compiler that the factory would take."""
    return find_toolchain()


@pytest.fixture(scope="session")
def libraries(
    tmp_path_factory: pytest.TempPathFactory, toolchain: Toolchain
) -> Callable[[list[KernelConfig]], list[Library]]:
    """Return a function that compiles and opens several kernels at once."""
    folder = tmp_path_factory.mktemp("native")
    made: dict[KernelConfig, Path] = {}

    def get(configs: list[KernelConfig]) -> list[Library]:
        new = [config for config in configs if config not in made]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            paths = pool.map(lambda config: compile_kernel(config, folder, toolchain), new)
            made.update(zip(new, paths, strict=True))
        return [Library(made[config], config) for config in configs]

    return get
