"""A factory in miniature: a source tree whose kernels compile in a tenth of a second, and compilers that misbehave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.build import Build, Outcome
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT, Paths

# For Python processes of our own: they import kernels from this checkout, whatever else is on the path.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT.root), os.environ.get("PYTHONPATH")])),
}

TEMPLATE = """\
// {{ name }}
#include "abi.h"
#include "tiny/{{ "alpha" if variant.b == "fp8" else "beta" }}.h"

extern "C" {
const char* gemmill_manifest(void) { return {{ manifest | c_string }}; }
const char* dispatcher_get_kernel_name(void) { return {{ name | c_string }}; }
int dispatcher_get_kernel_count(void) { return GEMMILL_TINY_COUNT; }
}
"""

COMMON = """\
// Everything of the ABI that no test looks at.
#ifndef TINY_COMMON_H
#define TINY_COMMON_H
#include "abi.h"
extern "C" {
int dispatcher_initialize(void) { return GEMMILL_OK; }
int dispatcher_run_aquant_gemm(const void*, const void*, const void*, void*, int64_t, int64_t, int64_t, int64_t,
                               int64_t, int64_t, int64_t, int64_t, int, float*) { return GEMMILL_UNSUPPORTED; }
void dispatcher_cleanup(void) {}
int gemmill_abi_version(void) { return GEMMILL_ABI_VERSION; }
const char* gemmill_last_error(void) { return __FILE__; }
int64_t gemmill_workspace_bytes(int64_t, int64_t, int64_t) { return 0; }
int gemmill_gemm_aquant(const void*, const void*, const void*, void*, int64_t, int64_t, int64_t, int64_t, int64_t,
                        int64_t, int64_t, void*, int64_t, void*) { return GEMMILL_UNSUPPORTED; }
int gemmill_launch(const GemmillCall*) { return GEMMILL_UNSUPPORTED; }
}
#endif
"""

HEADER = """\
#include "common.h"  // beside this file
#define GEMMILL_TINY_COUNT 1
"""


def make_tree(root: Path, cache: Path | None = None) -> Paths:
    """Write a checkout with one template and three headers: common.h, and alpha.h (fp8) and beta.h (bf8)."""
    paths = Paths.of(root, cache=cache)
    (paths.native / "tiny").mkdir(parents=True)
    paths.templates.mkdir()
    shutil.copy(CHECKOUT.native / "abi.h", paths.native)
    (paths.native / "tiny" / "common.h").write_text(COMMON)
    for name in ("alpha", "beta"):
        (paths.native / "tiny" / f"{name}.h").write_text(HEADER)
    (paths.templates / "cpu.cpp.j2").write_text(TEMPLATE)
    return paths


def config(variant: str = "fp8", layout: str = "rcr", family: str = "decode", **fields: Any) -> KernelConfig:
    """Return a small config for the generic arch."""
    values: dict[str, Any] = {"arch": "generic", "tile": (8, 8, 128), "warps": (1, 1, 1), "warp_tile": (4, 8, 1)}
    return KernelConfig(variant=variant, layout=layout, family=family, **(values | fields))


SIX = tuple(config(variant, layout) for variant in ("fp8", "bf8") for layout in ("rcr", "rrr", "crr"))


@dataclass(frozen=True)
class Compiler:
    """A wrapper of g++ that counts how often it compiles.

    Attributes
    ----------
    path : Path
    log : Path
        One line a compilation.
    """

    path: Path
    log: Path

    @property
    def runs(self) -> int:
        """How often it has compiled so far; probes do not count."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


def make_compiler(folder: Path, before: str = "", after: str = "", name: str = "g++", real: str = "g++") -> Compiler:
    """Write a compiler that runs shell text around each compilation; ``$out`` there is the library's path."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = Compiler(folder / name, folder / f"{name}.log")
    compiler.path.write_text(
        f"""#!/bin/sh
case "$*" in *kernel.cpp*) ;; *) exec {real} "$@" ;; esac
for out in "$@"; do :; done
echo run >> '{compiler.log}'
{before}
{real} "$@"
status=$?
{after}
exit $status
"""
    )
    compiler.path.chmod(0o755)
    return compiler


def make_copier(folder: Path, prebuilt: Path) -> Compiler:
    """Write a compiler that takes no time: it hands out a library that was compiled before."""
    return make_compiler(folder, before=f"exec cp '{prebuilt}' \"$out\"")


def objects(paths: Paths) -> list[str]:
    """Return the keys of everything under objects/, verified: a half object fails the test."""
    build = Build(paths)
    return [build.store.cache.read(key).key for key in build.store.cache.keys()]  # noqa: SIM118


def litter(paths: Paths) -> list[Path]:
    """Return what interrupted writers left in the cache."""
    return sorted([*paths.cache.glob("tmp/*"), *paths.cache.glob("index/*/.*"), *paths.cache.glob("objects/*/*/.*")])


def compile_all(build: Build, configs: tuple[KernelConfig, ...] = SIX) -> list[Outcome]:
    """Compile kernels one after the other; all must succeed."""
    outcomes = [build.compile(one) for one in configs]
    for outcome in outcomes:
        assert outcome.ok, outcome.message
    return outcomes


_DRIVER = """
import json, os, signal, sys
from dataclasses import replace
from kernels.build import Build
from kernels.paths import Paths
sys.path.insert(0, {tests!r})
from factory import SIX
given = json.loads(sys.argv[1])
build = Build(Paths.of(given["root"], cache=given["cache"]), toolchain=given["toolchain"], notice=print)
{prelude}
outcomes = [build.compile(one) for one in SIX[: given["count"]]]
for outcome in outcomes:
    print(outcome.status, outcome.message)
sys.exit(not all(outcome.ok for outcome in outcomes))
"""


def start_builder(
    paths: Paths, compiler: Compiler | None = None, count: int = len(SIX), prelude: str = "", **options: Any
) -> subprocess.Popen[str]:
    """Start a process that compiles the first `count` of SIX; `prelude` is Python that runs just before."""
    given = {"root": str(paths.root), "cache": str(paths.cache), "count": count}
    given["toolchain"] = str(compiler.path) if compiler else "g++"
    text = _DRIVER.format(tests=str(Path(__file__).parent), prelude=prelude)
    return subprocess.Popen(
        [sys.executable, "-c", text, json.dumps(given)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
