"""What tests of several parts need: fake kernel libraries, and valid cache objects made from a library."""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from gemmill.cache import (
    INDEX_SCHEMA,
    LIBRARY,
    MANIFEST,
    MANIFEST_SCHEMA,
    SELFTEST,
    SELFTEST_SCHEMA,
    canonical_json,
    describe_file,
    object_path,
    sha256_text,
)
from gemmill.layout import GROUP_K, find_layout
from gemmill.variant import find_variant

from kernels.config import KernelConfig

REPOSITORY = Path(__file__).resolve().parent.parent
FAKE_SOURCE = REPOSITORY / "tests" / "runtime" / "fake_kernel.cpp"

_KIND = {"fp8": "E4M3", "bf8": "E5M2", "int4": "INT4", "f32": "F32"}


def fake_config(
    variant: str = "fp8",
    layout: str = "rcr",
    family: str = "decode",
    arch: str = "generic",
    out: str = "f16",
    tile: tuple[int, int, int] = (4, 8, 256),
) -> KernelConfig:
    """Return the config of a fake kernel: a small tile, so that selftests are quick."""
    return KernelConfig(arch, variant, layout, family, tile, (1, 1, 1), (1, 1, _warp_tile_k(arch)), out)


def _warp_tile_k(arch: str) -> int:
    from gemmill.arch import find_arch

    return find_arch(arch).warp_tile_k


def find_compiler() -> str:
    """Return a C++ compiler's path, or fail: tests of the loader need one."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        path = name and shutil.which(name)
        if path:
            return path
    raise RuntimeError("no C++ compiler found: install g++ or clang++, or set CXX")


@functools.cache
def fake_library(config: KernelConfig, *defines: str, name: str | None = None) -> Path:
    """Compile tests/runtime/fake_kernel.cpp for a config; return the .so, which later runs use again.

    Parameters
    ----------
    config : KernelConfig
    defines : str
        Macros to define beside the config's, such as ``FAULT_ZEROS``.
    name : str, optional
        What the library says it is called, if not the config's name.
    """
    variant, layout = find_variant(config.variant), find_layout(config.layout)
    macros = {
        "NAME": name or config.name,
        "ARCH": f'"{config.arch}"',
        "KIND_A": _KIND[variant.a],
        "KIND_B": _KIND[variant.b],
        "KIND_AQ": _KIND[variant.aq],
        "A_COL": int(layout.a_col),
        "B_COL": int(layout.b_col),
        "AQ_COL": int(layout.aq_col),
        "PER_TILE": config.tile[2] // GROUP_K if config.family_row.preshuffle else 0,
        "OUT": config.out.upper(),
    }
    flags = [f"-D{macro}={value}" for macro, value in macros.items()] + [f"-D{define}" for define in defines]
    argv = [find_compiler(), "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{REPOSITORY / 'native'}", *flags]
    text = FAKE_SOURCE.read_text() + (REPOSITORY / "native" / "abi.h").read_text() + canonical_json(argv)
    target = REPOSITORY / "build" / "test" / "fake" / f"{sha256_text(text)[:24]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        subprocess.run([*argv, str(FAKE_SOURCE), "-o", str(temporary)], check=True)
        temporary.replace(target)
    return target


def add_object(
    root: Path,
    library: Path,
    config: KernelConfig,
    *,
    outcome: str | None = "passed",
    reason: str | None = None,
    inputs: dict[str, Any] | None = None,
    source: str = "// source\n",
    target: dict[str, str] | None = None,
    index: bool = True,
) -> str:
    """Put a valid object into a cache and return its key.

    Parameters
    ----------
    root : Path
        The cache; made where absent.
    library : Path
        The .so; copied.
    config : KernelConfig
        What index and manifest say it is.
    outcome : str or None
        What its selftest.json says; None leaves it untested.
    inputs : dict, optional
        More key inputs, to get another key for the same library.
    target : dict, optional
        machine and system, if not this machine's.
    index : bool
        Name it in the index.
    """
    fields = config_json(config)
    library_file = describe_file(library)
    key_inputs = {"schema": 1, "config": fields, "source": source, "library": library_file, **(inputs or {})}
    key = sha256_text(canonical_json(key_inputs))
    path = object_path(root, key)
    path.mkdir(parents=True, exist_ok=True)
    # By a rename: what an earlier load has mapped must not change under it, or the process crashes at its exit.
    shutil.copyfile(library, path / f".{LIBRARY}")
    (path / f".{LIBRARY}").replace(path / LIBRARY)
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "key": key,
        "inputs": key_inputs,
        "arch": config.arch,
        "name": config.name,
        "config": fields,
        "target": target or {"machine": platform.machine(), "system": platform.system()},
        "files": {LIBRARY: library_file},
        "build": {"seconds": 0.1, "command": ["c++"], "compiler": "test"},
        "source": source,
    }
    (path / MANIFEST).write_text(json.dumps(manifest))
    if outcome is not None:
        assert library_file is not None
        record = {"schema": SELFTEST_SCHEMA, "key": key, "library_sha256": library_file["sha256"], "outcome": outcome}
        (path / SELFTEST).write_text(json.dumps({**record, "reason": reason}))
    if index:
        add_index(root, config, key)
    return key


def add_index(root: Path, config: KernelConfig, key: str) -> Path:
    """Let a cache's index name a key for a config; return the entry's path."""
    path = root / "index" / config.arch / f"{config.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = {"schema": INDEX_SCHEMA, "arch": config.arch, "name": config.name, "key": key}
    path.write_text(json.dumps({**entry, "config": config_json(config)}))
    return path


def add_fake(root: Path, config: KernelConfig | None = None, *defines: str, **options: Any) -> str:
    """Compile a fake kernel and put it into a cache; options as for `add_object`. Return its key."""
    config = config or fake_config()
    return add_object(root, fake_library(config, *defines), config, **options)


def config_json(config: KernelConfig) -> dict[str, Any]:
    """Return a config as manifests have it: its fields, triples as lists."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in ((name, getattr(config, name)) for name in config.__dataclass_fields__)
    }
