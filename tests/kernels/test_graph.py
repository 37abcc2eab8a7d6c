"""Which tasks a command line selects, and what each says when it fails."""

from types import SimpleNamespace

import pytest
from gemmill.arch import ARCHS, host_archs, why_not_host
from gemmill.errors import GemmillError, UnsupportedError

from kernels.arguments import UsageError, parse
from kernels.build import Outcome, State
from kernels.graph import STAGES, Graph, KernelFailed

HOST = host_archs()[0].name
FP8_RCR_942 = "gemm_aquant_fp8_rcr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x32_qg1x1x128"


def graph(*args):
    return Graph(parse(args))


def tasks(*args):
    found = graph(*args)
    return {f"{stage}:{config.id}" for stage in STAGES for config in found.selected[stage]}


def test_default_is_the_whole_chain_of_every_kernel_of_this_machine():
    selected = graph().selected
    assert {stage: len(configs) for stage, configs in selected.items()} == dict.fromkeys(STAGES, 42)
    assert {config.arch for config in selected["compile"]} == {HOST}


def test_a_task_brings_what_it_needs_and_no_more():
    (name,) = (task.partition("/")[2] for task in tasks("codegen:*_fp8_rcr_mem*"))
    assert tasks(f"compile:{HOST}/{name}") == {f"{stage}:{HOST}/{name}" for stage in ("codegen", "compile")}
    whole = {f"{stage}:{HOST}/{name}" for stage in STAGES}
    assert tasks(f"selftest:{HOST}/{name}") == whole
    assert tasks(name) == whole, "a name alone means its chain"
    assert tasks(f"{HOST}/{name}") == whole


def test_stage_names_are_groups():
    assert len(tasks("codegen")) == 42
    assert len(tasks("compile")) == 84
    assert len(tasks("compile", "variant=fp8", "layout=ccr")) == 2


@pytest.mark.parametrize(
    ("pattern", "kernels"),
    [("compile:*bf8*ccr*", 3), ("compile:*_bf8_*", 7), ("codegen:*preshufflequant", 18), ("compile:*_[fb]f8_rcr*", 2)],
)
def test_wildcards(pattern, kernels):
    stage = pattern.partition(":")[0]
    assert len(graph(pattern).selected[stage]) == kernels


def test_wildcards_stay_within_the_filters():
    assert len(graph("compile:*", "variant=fp8", "family=decode").selected["compile"]) == 4
    with pytest.raises(UsageError, match="nothing matches"):
        graph("compile:*bf8*", "variant=fp8")


def test_a_pattern_may_name_another_arch_but_not_against_the_filter():
    assert tasks(f"codegen:gfx942/{FP8_RCR_942}") == {f"codegen:gfx942/{FP8_RCR_942}"}
    assert len(graph("codegen:gfx9*/*").selected["codegen"]) == 3 * 42
    with pytest.raises(UsageError, match="nothing matches"):
        graph(f"codegen:gfx942/{FP8_RCR_942}", "arch=generic")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("complie", "compile"),
        ("lst", "list"),
        ("compile:*bf8_ccrr*", "compile:*bf8_c"),
        ("compile:*fp9*", "compile:*fp8*"),
        ("zzzzzz", "tasks look like"),
    ],
)
def test_what_matches_nothing_gets_a_hint(word, said):
    with pytest.raises(UsageError) as caught:
        graph(word)
    assert f"nothing matches {word!r}" in str(caught.value)
    assert said in str(caught.value)


def test_filters_without_a_kernel_say_why():
    with pytest.raises(UsageError, match=r"family=preshufflequant layout=ccr.*preshufflequant: rcr, rrr, crr"):
        graph("family=preshufflequant", "layout=ccr")


def test_kernels_go_one_by_one_not_stage_by_stage():
    names = graph("variant=fp8", "family=decode").doit_config()["default_tasks"]
    assert len(names) == 4
    assert all(name.startswith("selftest:") for name in names)


def test_selftests_that_cannot_run_here_are_left_out_with_a_reason(monkeypatch):
    monkeypatch.setattr("kernels.graph.why_not_here", lambda arch: f"{arch} needs what is not here")
    found = graph("arch=generic")
    assert (len(found.selected["compile"]), len(found.selected["selftest"])) == (42, 0)
    assert found.skipped == {"generic": "generic needs what is not here"}
    # Asked for by name, it is not left out: it fails.
    assert len(graph("arch=generic", "selftest:*fp8_rcr_mem*").selected["selftest"]) == 1


@pytest.mark.parametrize("arch", [name for name, row in ARCHS.items() if row.backend == "cpu"])
def test_every_cpu_arch_has_its_42(arch):
    found = graph(f"arch={arch}")
    assert len(found.selected["compile"]) == 42
    assert bool(found.selected["selftest"]) == (why_not_host(ARCHS[arch]) is None)


def test_missing_backend_is_said_once_before_anything_runs():
    found, asked = graph("arch=gfx90a,gfx942"), []

    def refuse(arch):
        asked.append(arch)
        raise UnsupportedError(f"no backend for {arch}")

    found.build = SimpleNamespace(toolchain=refuse)
    with pytest.raises(UnsupportedError, match="no backend for gfx90a"):
        found.check_backends()
    assert asked == ["gfx90a"]


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
        ("", "simulated", True, True),
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


def test_failed_compilation_can_be_repeated_in_a_shell(one):
    found, config = one
    found.build = FakeBuild(outcome=Outcome(config, "failed", "k", 1.0, "error: x", (("g++", "-c", "a b"), ("ld",))))
    failed = found.run_compile(config)
    assert (failed.message, failed.outcome, failed.repeat) == ("error: x", "compile failed", "g++ -c 'a b' && ld")


def test_the_command_to_repeat_keeps_what_matters(tmp_path):
    found = graph(f"cache={tmp_path}/a b", "toolchain=g++", "out=f16", "jobs=3")
    assert found.command("compile:x/y") == f"./mill toolchain=g++ 'cache={tmp_path}/a b' compile:x/y"


def test_find_gives_every_kernel_or_those_named():
    found = graph("list")
    assert len(found.find([])) == 42
    assert len(found.find(["*_fp8_rcr_mem*", "*_fp8_*mem*"])) == 4
