"""The consumer's way: the wheel, numpy, ml_dtypes and a prebuilt cache, and nothing of the factory."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kernels.paths import CHECKOUT
from tests.conftest import BuiltKernels

# Everything that the wheel says it needs. What is not named here can't be imported by the consumer below.
NEEDED = ("numpy", "numpy.libs", "ml_dtypes")

CONSUMER = """
import sys, json
sys.path[:] = [p for p in sys.path if "site-packages" not in p] + sys.argv[1:3]
import numpy as np, gemmill
x = np.random.default_rng(7).standard_normal((5, 200), dtype=np.float32)
w = np.random.default_rng(8).standard_normal((9, 200), dtype=np.float32)
import ml_dtypes
b = w.astype(ml_dtypes.float8_e4m3fn).T
a_q, a_scale = gemmill.quantize_a(x, "fp8")
c = gemmill.gemm_aquant(a_q, b, a_scale)
wanted = x @ b.astype(np.float32)
print(json.dumps({
    "file": gemmill.__file__,
    "error": float(np.linalg.norm(c - wanted) / np.linalg.norm(wanted)),
    "modules": [m for m in ("doit", "jinja2", "filelock", "kernels") if m in sys.modules],
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that nothing lands in the checkout."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT.root / name, copy)
    shutil.copytree(CHECKOUT.root / "runtime", copy / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    place = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), str(copy)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (found,) = place.glob("*.whl")
    return found


def test_wheel_is_the_runtime_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(n).decode() for n in names if n.endswith(".dist-info/METADATA"))
    modules = {n for n in names if ".dist-info/" not in n}
    runtime = CHECKOUT.root / "runtime"
    files = (path for path in runtime.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert modules == {f"gemmill/{path.relative_to(runtime)}" for path in files}
    assert "gemmill/tables/sm_90a.json" in modules
    assert any(n.endswith("licenses/LICENSE") for n in names)
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert sorted(line.split()[1].split(">")[0] for line in required) == ["ml_dtypes", "numpy"]


def test_consumer_multiplies_with_the_wheel_alone(wheel: Path, tmp_path: Path, built_kernels: BuiltKernels) -> None:
    built_kernels.need(variant="fp8", family="decode", layout="rcr")
    package, needed, cache = tmp_path / "package", tmp_path / "needed", tmp_path / "cache"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(package)
    needed.mkdir()
    spec = importlib.util.find_spec("numpy")
    assert spec is not None and spec.origin is not None
    packages = Path(spec.origin).parent.parent
    for name in NEEDED:
        if (packages / name).exists():
            (needed / name).symlink_to(packages / name)
    # Built elsewhere, used from here: only what a person would copy.
    for part in ("objects", "index"):
        shutil.copytree(built_kernels.root / part, cache / part)
    before = sorted((p, p.stat().st_mtime_ns) for p in cache.rglob("*"))

    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GEMMILL"))}
    environment |= {"GEMMILL_CACHE": str(cache), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-I", "-B", "-c", CONSUMER, str(package), str(needed)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert Path(said["file"]).is_relative_to(package)
    assert said["modules"] == []
    # e4m3 keeps 4 significant bits: each activation is off by at most 2^-4 of itself.
    assert 0 < said["error"] < 2**-4
    assert sorted((p, p.stat().st_mtime_ns) for p in cache.rglob("*")) == before
