"""What each task of the graph does, and what it says when it fails."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from factory import make_copier
from gemmill.cache import Cache
from gemmill.errors import GemmillError, UnsupportedError
from support import add_object

from kernels.arguments import parse
from kernels.build import Outcome, State
from kernels.describe import describe_config
from kernels.graph import Graph, KernelFailed
from kernels.paths import CHECKOUT, Paths


def graph(*args):
    return Graph(parse(args))


def test_kernels_go_one_by_one_not_stage_by_stage():
    names = graph("variant=fp8", "family=decode").doit_config()["default_tasks"]
    assert len(names) == 4
    assert all(name.startswith("selftest:") for name in names)


@pytest.mark.parametrize(("jobs", "threads"), [("1", 1), ("3", 3), ("9999", 4)])
def test_no_more_threads_than_kernels(jobs, threads):
    assert graph("variant=fp8", "family=decode", f"jobs={jobs}").doit_config()["num_process"] == threads


def test_missing_compiler_is_said_once_before_anything_runs():
    found, asked = graph("arch=generic,x86-64-v3"), []

    def refuse(arch):
        asked.append(arch)
        raise UnsupportedError(f"no compiler for {arch}")

    found.build = SimpleNamespace(toolchain=refuse)
    with pytest.raises(UnsupportedError, match="no compiler for generic"):
        found.check_backends()
    assert asked == ["generic"]


def test_generating_needs_no_compiler():
    found = graph("codegen:generic/*", "arch=generic", "toolchain=/no/such/compiler")
    found.check_backends()
    (task, *_) = (found.codegen_task(config) for config in found.selected["codegen"])
    assert found.run_codegen(found.selected["codegen"][0]) == {"outcome": "generated"}
    assert task["uptodate"][0]() is True


def test_the_index_follows_the_catalogue(tmp_path, prebuilt):
    compiler = make_copier(tmp_path / "bin", prebuilt)
    arguments = f"cache={tmp_path / 'cache'}", f"toolchain={compiler.path}"
    found = graph("arch=generic", "variant=fp8", "layout=rcr", "family=decode", *arguments)
    (config,) = found.selected["compile"]
    old = replace(config, tile=(2 * config.tile[0], *config.tile[1:]))
    found.build.store.set_index("generic", old.name, "0" * 64, describe_config(old))
    notices = []
    found.notice = notices.append
    assert found.run_compile(config)["outcome"] == "built"
    assert found.build.store.cache.names("generic") == [config.name]
    assert len(notices) == 1 and old.name in notices[0]


class FakeBuild:
    """Answers as told."""

    def __init__(self, state=None, outcome=None, error=None):
        self._state, self._outcome, self._error = state, outcome, error
        self.codegen = SimpleNamespace(is_current=self.state, generate=self.state)

    def state(self, config):
        if self._error:
            raise self._error
        return self._state

    def compile(self, config):
        return self._outcome


@pytest.fixture
def one():
    found = graph("*_fp8_rcr_mem*")
    return found, found.selected["compile"][0]


def test_an_error_while_asking_leaves_it_to_the_task(one):
    found, config = one
    found.build = FakeBuild(error=GemmillError("no header"))
    for task in (found.codegen_task(config), found.compile_task(config), found.selftest_task(config)):
        assert task["uptodate"][0]() is False
    failed = found.run_codegen(config)
    assert isinstance(failed, KernelFailed)
    assert (failed.message, failed.outcome) == ("no header", "codegen failed")


@pytest.mark.parametrize(
    ("reason", "outcome", "compiled", "tested"),
    [
        ("", "passed", True, True),
        ("", "simulated", True, False),  # the device is here
        ("", "failed", True, False),
        ("", "untested", True, False),
        ("the index names another key", "passed", False, False),
    ],
)
def test_up_to_date_is_what_the_cache_says(one, reason, outcome, compiled, tested):
    found, config = one
    found.build = FakeBuild(State(config, "k", SimpleNamespace(outcome=outcome), reason))
    assert found.compile_task(config)["uptodate"][0]() is compiled
    assert found.selftest_task(config)["uptodate"][0]() is tested


@pytest.mark.parametrize("arch", ["sm_90a", "gfx942"])
@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_what_a_device_elsewhere_said_stands(monkeypatch, tmp_path, arch, outcome):
    """After `gemmill merge`: a kernel that passed is not tested again, and no simulation covers a failure."""
    monkeypatch.setattr("kernels.graph.why_arch_not_here", lambda row: f"no {row.name} device")
    found = graph(f"arch={arch}", "variant=fp8", "layout=rcr", "family=decode", f"cache={tmp_path}")
    config = found.selected["compile"][0]
    library = tmp_path / "kernel.so"
    library.write_bytes(b"code")
    key = add_object(tmp_path, library, config, outcome=outcome, reason="wrong at C[0, 0]")
    found.build = FakeBuild(State(config, key, Cache(tmp_path).read(key), ""))
    assert found.selftest_task(config)["uptodate"][0]() is (outcome == "passed")
    if outcome == "failed":
        failed = found.run_selftest(config)
        assert isinstance(failed, KernelFailed)
        assert failed.outcome == "selftest failed"
        assert failed.message.startswith("wrong at C[0, 0] (on ")


def test_failed_compilation_can_be_repeated_in_a_shell(one):
    found, config = one
    found.build = FakeBuild(outcome=Outcome(config, "failed", "k", 1.0, "error: x", (("g++", "-c", "a b"), ("ld",))))
    failed = found.run_compile(config)
    assert (failed.message, failed.outcome, failed.repeat) == ("error: x", "compile failed", "g++ -c 'a b' && ld")


@pytest.mark.parametrize(
    ("args", "cxx", "said"),
    [
        ((), "", "./mill"),
        (("out=f16", "jobs=3", "timeout=120"), "", "./mill"),
        (("toolchain=g++", "cache=/a b"), "clang++", "./mill toolchain=g++ 'cache=/a b'"),
        (("out=f32,f16", "timeout=0.5"), "ccache g++", "CXX='ccache g++' ./mill out=f32,f16 timeout=0.5"),
    ],
)
def test_the_command_to_repeat_keeps_what_matters(monkeypatch, args, cxx, said):
    monkeypatch.setenv("MILL_CWD", str(CHECKOUT.root))
    monkeypatch.setenv("CXX", cxx)
    assert graph(*args).command("compile:x/y") == f"{said} compile:x/y"


def test_the_command_to_repeat_is_for_where_the_caller_stands(monkeypatch, tmp_path):
    monkeypatch.setenv("MILL_CWD", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = Graph(parse(()), Paths.of(tmp_path / "check out"))
    assert found.command("compile:x/y") == f"'{tmp_path}/check out/mill' compile:x/y"
