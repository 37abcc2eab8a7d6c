"""The command line: what is accepted, and what a mistake is told."""

from pathlib import Path

import pytest
from gemmill.arch import ARCHS, host_archs
from hypothesis import given
from hypothesis import strategies as st

from kernels.arguments import ARGUMENTS, COMMANDS, FLAGS, Options, UsageError, help_text, parse

HERE = Path("/some/where")


def test_nothing_means_build_for_this_machine():
    assert parse([], HERE) == Options()
    assert Options().command == "build"


def test_lists_are_split_and_kept_in_order_without_repeats():
    options = parse(["variant=bf8,fp8,bf8", "layout=rcr", "out=f16,bf16"], HERE)
    assert (options.variant, options.layout, options.out) == (("bf8", "fp8"), ("rcr",), ("f16", "bf16"))


def test_arch_words():
    runnable = tuple(row.name for row in host_archs())
    assert parse(["arch=host"], HERE).arch == runnable[:1]
    assert parse(["arch=cpu"], HERE).arch == runnable
    assert parse(["arch=host,cpu"], HERE).arch == runnable
    assert parse(["arch=sm_90a,generic"], HERE).arch == ("sm_90a", "generic")


def test_arch_takes_the_suffixes_that_amd_drivers_append():
    assert parse(["arch=gfx942:sramecc+:xnack-"], HERE).arch == ("gfx942",)


@pytest.mark.parametrize("wrong", ["gfx9420", "sm_90", "generic:x", "", "generic,"])
def test_unknown_arch_lists_the_known_ones(wrong):
    with pytest.raises(UsageError) as caught:
        parse([f"arch={wrong}"], HERE)
    for name in ("host", "cpu", *ARCHS):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["arc=generic"], "did you mean arch?"),
        (["variants=fp8"], "did you mean variant?"),
        (["variant=fp9"], "did you mean fp8?"),
        (["layout=crc"], "unknown layout=crc"),
        (["family=training"], "decode, preshufflequant, prefill"),
        (["jobs=0"], "1 to 9999"),
        (["jobs=two"], "1 to 9999"),
        (["timeout=0"], "more than 0"),
        (["max_size=5X"], "500M"),
        (["max_size=-1"], "500M"),
        (["cache="], "needs a directory"),
        (["toolchain="], "needs a value"),
        (["--alway"], "did you mean --always?"),
        (["-x"], "--no-continue"),
        (["jobs=1", "jobs=2"], "given twice"),
    ],
)
def test_mistakes_say_what_is_accepted(args, said):
    with pytest.raises(UsageError) as caught:
        parse(args, HERE)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["gc", "arch=generic"], "gc does not take arch=; it takes cache=, max_size="),
        (["max_size=1G"], "build does not take max_size=; it takes arch=, "),
        (["build", "max_size=1G"], "build does not take max_size="),
        (["gc", "1G"], "gc does not take '1G'"),
        (["verify", "*bf8*"], "verify does not take '*bf8*'; it takes cache="),
        (["clean", "cache=/srv"], "clean does not take cache=; it takes nothing"),
        (["list", "--always"], "list does not take --always"),
        (["list", "jobs=3"], "list does not take jobs=; it takes arch=, "),
    ],
)
def test_what_a_command_does_not_read_is_a_mistake(args, said):
    with pytest.raises(UsageError) as caught:
        parse(args, HERE)
    assert said in str(caught.value)


def test_help_may_be_asked_for_anywhere():
    assert parse(["gc", "arch=generic", "--help"], HERE).command == "help"
    assert parse(["help", "gc"], HERE).command == "help"


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1))
def test_no_unknown_argument_is_silently_accepted(name):
    if name not in ARGUMENTS and not name.startswith("-"):
        with pytest.raises(UsageError):
            parse([f"{name.replace('=', '')}=1" if name.replace("=", "") not in ARGUMENTS else "x=1"], HERE)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500M", 500 * 2**20), ("2g", 2 * 2**30), ("3K", 3072), ("1T", 2**40)]
)
def test_sizes(text, size):
    assert parse(["gc", f"max_size={text}"], HERE).max_size == size


def test_paths_are_relative_to_the_caller():
    options = parse(["cache=some/cache", "toolchain=bin/g++"], HERE)
    assert options.cache == HERE / "some/cache"
    assert options.toolchain == "/some/where/bin/g++"
    assert parse(["cache=/abs", "toolchain=g++"], HERE).cache == Path("/abs")
    assert parse(["toolchain=clang++"], HERE).toolchain == "clang++"


def test_commands_and_tasks():
    options = parse(["list", "variant=bf8", "*ccr*"], HERE)
    assert (options.command, options.words, options.variant) == ("list", ("*ccr*",), ("bf8",))
    # Only the first word names a command.
    assert parse(["compile:*", "list"], HERE).words == ("compile:*", "list")


def test_flags():
    assert parse(["-a", "--no-continue"], HERE) == Options(always=True, keep_going=False)
    assert parse(["compile", "--help"], HERE).command == "help"


def test_help_names_everything():
    text = help_text()
    for name in (*COMMANDS, *ARGUMENTS, *FLAGS):
        assert f"  {name}" in text
    assert max(map(len, text.splitlines())) <= 120
