"""`./mill list`, `explain`, `verify`, `gc`, `clean` and `help`, and the exit status of each mistake."""

import re

import pytest

from tests.checkout import ARCH, DECODE, PRESHUFFLE, TWO, Mill


@pytest.fixture(scope="module")
def mill(tmp_path_factory):
    """Return a checkout whose two kernels are built; tests leave them so."""
    mill = Mill(tmp_path_factory.mktemp("commands"))
    mill.good(*TWO)
    return mill


@pytest.fixture
def edited(mill):
    """Edit a header that both kernels reach, and take the edit back afterwards."""
    header = mill.root / "native" / "abi.h"
    text = header.read_text()
    header.write_text(text + "\nstruct gemmill_edited;\n")
    yield mill
    header.write_text(text)
    mill.good(*TWO)


def table(mill, *args):
    """Return the rows of `./mill list`."""
    return [line.split() for line in mill.good("list", *args).splitlines()[1:]]


def test_list_shows_every_kernel_selected(mill):
    rows = table(mill, f"arch={ARCH}")
    assert len(rows) == 42
    assert sorted(row[0] for row in rows if len(row) == 3 and "_fp8_rcr_" in row[2]) == ["passed", "passed"]
    assert sum(row[0] == "missing" for row in rows) == 40
    assert all(re.fullmatch("[0-9a-f]{12}", row[1]) for row in rows)


def test_list_takes_patterns_and_reports_archs_without_a_backend(mill):
    assert [row[2].startswith(f"{ARCH}/{DECODE}") for row in table(mill, *TWO, "*_mem_*")] == [True]
    rows = [row for row in table(mill, "arch=gfx942", "variant=fp8", "layout=rcr") if row[0] != "mill:"]
    assert len(rows) == 2
    assert all(row[-1].startswith("gfx942/gemm_aquant_fp8_rcr_") for row in rows)


def test_list_says_once_why_nothing_can_be_built(mill):
    lines = mill.good("list", *TWO, CXX="/no/such/compiler").splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["no", "backend"]] * 2
    assert [line.startswith("mill: CXX=/no/such/compiler: there is no such compiler") for line in lines[3:]] == [True]


def test_list_says_stale_after_an_edit(edited):
    assert [row[0] for row in table(edited, *TWO)] == ["stale", "stale"]


def test_list_knows_objects_without_generated_sources(mill):
    mill.good("clean")
    assert not (mill.root / "build" / "generated").exists()
    assert [row[0] for row in table(mill, *TWO)] == ["passed", "passed"]
    mill.forget()
    assert "up to date" in mill.good(*TWO)
    assert not mill.compiled()


def test_explain_prints_every_input(mill):
    out = mill.good("explain", *TWO, f"*{DECODE}*")
    (key,) = re.findall("^key ([0-9a-f]{64})$", out, re.MULTILINE)
    assert key in mill.objects()
    for word in ("abi = ", "arch = ", "config.layout = ", "flags.compile = ", "headers.abi.h = ", "toolchain."):
        assert f"\n  {word}" in out
    assert "another key" not in out


def test_explain_says_why_a_kernel_would_be_compiled_again(edited):
    edited.forget()
    out = edited.good("explain", *TWO, f"*{DECODE}*")
    why = out[out.index("The index names another key") :]
    assert "headers.abi.h:" in why
    assert "config." not in why
    assert not edited.compiled()


def test_explain_compares_names_and_keys(mill):
    out = mill.good("explain", *TWO, f"*{DECODE}*", f"*{PRESHUFFLE}*")
    assert "config.family:" in out
    assert '- "decode"' in out
    first, second = sorted(mill.objects())[:2]
    assert mill.good("explain", first, second[:12]).startswith(f"- {first} ")


def test_explain_needs_one_kernel(mill):
    status, out = mill.run("explain", *TWO, "*")
    assert status == 2
    assert "explain needs one" in out
    assert out.count(f"{ARCH}/gemm_aquant") == 2
    assert mill.run("explain")[0] == 2
    status, out = mill.run("explain", "abcdef012345")
    assert status == 1
    assert "0 objects whose key starts with" in out


def test_gc_keeps_what_the_index_names(edited):
    before = edited.objects()
    edited.good(*TWO)
    assert len(edited.objects()) == 2 + len(before)
    out = edited.good("gc", "max_size=1G")
    assert out.startswith("0 objects removed")
    out = edited.good("gc")
    assert out.startswith("2 objects removed")
    assert not before & edited.objects()
    assert "the index names all of it" in edited.good("gc", "max_size=1K")
    assert "up to date" in edited.good(*TWO)


def test_another_cache_may_be_named(mill, tmp_path):
    out = mill.good(*TWO, "compile:*_mem_*", "cache=elsewhere", MILL_CWD=str(tmp_path))
    assert "1 built" in out
    assert len(list(tmp_path.glob("elsewhere/objects/??/*"))) == 1
    assert mill.good("verify", f"cache={tmp_path}/elsewhere").startswith("1 objects checked")


def test_two_checkouts_share_objects(mill, tmp_path):
    other = Mill(tmp_path)
    out = other.good(*TWO, f"cache={mill.root}/cache", f"toolchain={mill.compiler}")
    assert out == mill.up_to_date
    assert not other.compiled()


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["variant=fp9"], 2, "accepted are fp8, bf8"),
        (["varient=fp8"], 2, "did you mean variant?"),
        (["complie"], 2, "nothing matches 'complie'"),
        (["--verbose"], 2, "accepted are --always"),
        (["toolchain=/no/such/compiler", *TWO], 1, "/no/such/compiler"),
        (["help"], 0, "usage: ./mill"),
    ],
)
def test_exit_status(mill, args, status, said):
    found, out = mill.run(*args)
    assert found == status, out
    assert said in out
    assert "Traceback" not in out


def test_always_runs_what_is_up_to_date(mill):
    mill.forget()
    out = mill.good(*TWO, "--always")
    assert out.splitlines()[-1].startswith(f"2 kernels ({ARCH}): 2 passed;")
    assert not mill.compiled(), "an object that is there is used"
