"""Simulated selftests in the graph, and what the runtime makes of their outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gemmill import device
from gemmill.arch import ARCHS
from gemmill.cache import Cache
from gemmill.errors import DeviceError, Refused
from gemmill.loader import load
from gemmill.selftest import run_selftest

from kernels import process
from kernels.arguments import parse
from kernels.catalogue import load_catalogue
from kernels.codegen import Codegen
from kernels.graph import Graph, KernelFailed
from kernels.paths import CHECKOUT, Paths
from kernels.simulator import Simulator, SimulatorError, is_simulated
from kernels.toolchain import find_toolchain

(CONFIG,) = load_catalogue().configs("gfx942", variant="bf8i4f32", layout="rrr", family="decode")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Return a graph whose kernel is compiled and tested."""
    paths = Paths.of(CHECKOUT.root, cache=tmp_path_factory.mktemp("cache"), build=CHECKOUT.build / "test")
    graph = Graph(parse([f"selftest:{CONFIG.id}"], Path.cwd()), paths)
    assert graph.build.compile(CONFIG).ok
    assert not graph.is_tested(CONFIG)
    said = graph.run_selftest(CONFIG)
    assert not isinstance(said, KernelFailed), said
    assert said["outcome"] == "simulated" and 0 < said["error"] <= 1
    return graph


def test_which_archs_are_simulated() -> None:
    assert [arch for arch in ARCHS if is_simulated(arch)] == ["gfx90a", "gfx942", "gfx950"]


def test_the_record_says_simulated(graph: Graph) -> None:
    record = graph.build.state(CONFIG).object.selftest
    assert record["outcome"] == "simulated"
    assert record["device"]["simulated"] is True and record["device"]["arch"] == "gfx942"
    assert record["time_ms"] is None, "the time of a simulation means nothing"
    assert len(record["shapes"]) >= 8


def test_a_simulated_kernel_is_up_to_date_until_a_device_is_there(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Graph(graph.options, graph.paths)
    assert again.is_tested(CONFIG)
    monkeypatch.setattr(device, "hip_archs", lambda: ["gfx942"])
    assert not again.is_tested(CONFIG)


def test_loading_a_simulated_kernel(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = graph.paths.cache
    with pytest.raises(Refused, match="no gfx942 device here"):
        load(CONFIG.id, cache, allow_untested=True)
    monkeypatch.setattr(device, "hip_archs", lambda: ["gfx942"])
    with pytest.raises(Refused, match=r"outcome is simulated: run `gemmill selftest .*allow_untested=True"):
        load(CONFIG.id, cache)
    # Accepted; now it is the driver that is missing.
    with pytest.raises((Refused, DeviceError), match="no HIP driver"):
        load(CONFIG.id, cache, allow_untested=True)


def test_without_simulation_the_selftest_is_left_out(graph: Graph) -> None:
    record = run_selftest(Cache(graph.paths.cache), graph.build.state(CONFIG).key, record=False)
    assert record["outcome"] == "untested" and "no gfx942 device here" in record["reason"]


def test_a_simulated_kernel_compiles_without_standard_headers(tmp_path: Path) -> None:
    """They would cost more than the kernel, 126 times in a cold build."""
    paths = Paths.of(CHECKOUT.root, build=CHECKOUT.build / "test")
    source = Codegen(paths).generate(CONFIG)
    native = CHECKOUT.native
    includes = ["-I", str(native / "hip/sim/override"), "-I", str(native)]
    command = find_toolchain(None, paths.build / "memo" / "toolchain.json").command
    argv = [*command, "-std=c++17", "-Wno-psabi", "-nostdinc", *includes, "-c", "-x", "c++", str(source)]
    code, _, err = process.run([*argv, "-o", str(tmp_path / "kernel.o")], 120)
    assert code == 0, err


def test_a_source_that_does_not_compile(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cpp"
    source.write_text("not C++\n")
    with (
        pytest.raises(SimulatorError, match=r"does not compile:\n.*kernel\.cpp:1"),
        Simulator(Paths.of(CHECKOUT.root, build=CHECKOUT.build / "test")).device(source),
    ):
        pass


@pytest.mark.parametrize(
    ("version", "arch"), [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (100300, "gfx1030"), (0, None)]
)
def test_archs_that_the_kernel_driver_shows(version: int, arch: str | None, tmp_path: Path) -> None:
    for node, text in enumerate(("gfx_target_version 0\n", f"simd_count 4\ngfx_target_version {version}\nx\n", "")):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(text)
    assert device.hip_archs(str(tmp_path)) == ([arch] if arch else [])
    assert device.hip_archs(str(tmp_path / "absent")) == []


def test_mill_runs_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "kernels", f"cache={tmp_path}", f"selftest:{CONFIG.id}"]
    done = subprocess.run(argv, cwd=CHECKOUT.root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kernel (gfx942): 1 simulated" in done.stdout
    (path,) = tmp_path.glob("objects/*/*/selftest.json")
    assert json.loads(path.read_text())["outcome"] == "simulated"
