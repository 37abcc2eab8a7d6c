"""Which kernels and tasks a command line means."""

import pytest
from gemmill.arch import ARCHS, host_archs, why_not_host
from gemmill.errors import ArgumentError

from kernels.arguments import UsageError, parse
from kernels.catalogue import DEFAULT, load_catalogue
from kernels.selection import STAGES, Selection

HOST = host_archs()[0].name
FP8_RCR_942 = "gemm_aquant_fp8_rcr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x32_qg1x1x128"


def select(*args):
    return Selection(parse(args), load_catalogue())


def tasks(*args):
    found = select(*args)
    return {f"{stage}:{config.id}" for stage in STAGES for config in found.tasks[stage]}


def test_default_is_the_whole_chain_of_every_kernel_of_this_machine():
    selected = select().tasks
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
    assert len(select(pattern).tasks[stage]) == kernels


def test_wildcards_stay_within_the_filters():
    assert len(select("compile:*", "variant=fp8", "family=decode").tasks["compile"]) == 4
    with pytest.raises(UsageError, match="nothing matches"):
        select("compile:*bf8*", "variant=fp8")


def test_a_pattern_may_name_another_arch_but_not_against_the_filter():
    assert tasks(f"codegen:gfx942/{FP8_RCR_942}") == {f"codegen:gfx942/{FP8_RCR_942}"}
    assert len(select("codegen:gfx9*/*").tasks["codegen"]) == 3 * 42
    with pytest.raises(UsageError, match="nothing matches"):
        select(f"codegen:gfx942/{FP8_RCR_942}", "arch=generic")


def test_a_catalogue_may_lack_the_arch_of_this_machine():
    large = load_catalogue(DEFAULT.with_name("large_tiles.toml"))
    found = Selection(parse(["compile:gfx90a/*_fp8_rcr_mem*"]), large).tasks["compile"]
    assert [(config.arch, config.tile) for config in found] == [("gfx90a", (64, 128, 128))]
    with pytest.raises(UsageError, match=r"nothing matches 'gfx90a/nothing' among .* gfx90a, gfx942, gfx950"):
        Selection(parse(["gfx90a/nothing"]), large)
    for words in ([], ["*_fp8_rcr_mem*"]):
        with pytest.raises(ArgumentError, match=f"has no kernels for {HOST}: it has some for gfx90a, gfx942, gfx950"):
            Selection(parse(words), large)


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
        select(word)
    assert f"nothing matches {word!r}" in str(caught.value)
    assert said in str(caught.value)


def test_filters_without_a_kernel_say_why():
    with pytest.raises(UsageError, match=r"family=preshufflequant layout=ccr.*preshufflequant: rcr, rrr, crr"):
        select("family=preshufflequant", "layout=ccr")


def test_an_output_type_without_a_kernel_says_which_there_are():
    with pytest.raises(UsageError, match=r"arch=generic out=bf16;.* output types in the catalogue are f16, .*geometry"):
        select("arch=generic", "out=bf16")


def test_selftests_that_cannot_run_here_are_left_out_with_a_reason(monkeypatch):
    monkeypatch.setattr("kernels.selection.why_arch_not_here", lambda arch: f"{arch.name} needs what is not here")
    found = select("arch=generic")
    assert (len(found.tasks["compile"]), len(found.tasks["selftest"])) == (42, 0)
    assert found.skipped == {"generic": "generic needs what is not here"}
    # Asked for by name, it is not left out: it fails.
    assert len(select("arch=generic", "selftest:*fp8_rcr_mem*").tasks["selftest"]) == 1


@pytest.mark.parametrize("arch", [name for name, row in ARCHS.items() if row.backend == "cpu"])
def test_every_cpu_arch_has_its_42(arch):
    found = select(f"arch={arch}")
    assert len(found.tasks["compile"]) == 42
    assert bool(found.tasks["selftest"]) == (why_not_host(ARCHS[arch]) is None)


def test_find_gives_every_kernel_or_those_named():
    found = select("list")
    assert len(found.find([])) == 42
    assert len(found.find(["*_fp8_rcr_mem*", "*_fp8_*mem*"])) == 4
