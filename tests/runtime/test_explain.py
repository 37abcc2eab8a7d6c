"""What differs between two keys."""

from __future__ import annotations

from gemmill.explain import differences, explain_difference, explain_key, flatten, resource_lines, source_diff
from hypothesis import given
from hypothesis import strategies as st

leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
trees = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.recursive(leaves, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text("de", min_size=1), x, max_size=3)),
    max_size=4,
)


@given(trees, trees)
def test_differences_are_empty_exactly_where_inputs_are_equal(old, new):
    assert (differences(old, new) == []) == (list(flatten(old)) == list(flatten(new)))
    assert differences(old, old) == []
    assert [(path, b, a) for path, a, b in differences(old, new)] == differences(new, old)


@given(trees)
def test_flatten_tells_trees_apart(tree):
    """Adding a leaf anywhere shows."""
    assert differences(tree, {**tree, "new": 1}) == [("new", "(absent)", "1")]


def test_paths_are_dotted():
    old = {"config": {"tile": [1, 2, 3], "out": "f16"}, "flags": ["-O2"], "headers": [{"name": "a", "digest": 1}]}
    new = {"config": {"tile": [1, 2, 4], "out": "f16"}, "flags": ["-O2"], "headers": [{"name": "a", "digest": 2}]}
    assert differences(old, new) == [("config.tile", "[1, 2, 3]", "[1, 2, 4]"), ("headers[0].digest", "1", "2")]
    assert differences({}, {"x": {}}) == [("x", "(absent)", "{}")]


def manifest(key: str, source: str, **inputs) -> dict:
    return {"key": key, "arch": "generic", "name": "k", "source": source, "inputs": {"source": source, **inputs}}


def test_a_difference_reads_well():
    text = explain_difference(manifest("a" * 64, "x\ny\n", abi=1), manifest("b" * 64, "x\nz\n", abi=2))
    lines = text.splitlines()
    assert lines[0] == f"- {'a' * 64} generic/k"
    assert lines[1] == f"+ {'b' * 64} generic/k"
    assert lines[2:5] == ["abi:", "  - 1", "  + 2"]
    assert "source differs: see the source below" in lines
    assert lines[-2:] == ["-y", "+z"]


def test_equal_inputs_say_so():
    assert explain_difference(manifest("a", "x"), manifest("a", "x")).endswith("the inputs are equal")


def test_a_key_reads_well():
    lines = explain_key(manifest("a", "line\n" * 9, abi=1)).splitlines()
    assert lines[:3] == ["key a", "  generic/k", "  abi = 1"]
    assert lines[3].startswith('  source = "line')
    assert lines[3].endswith("… (56 characters)")


def test_equal_sources_have_no_diff():
    assert source_diff("a\n", "a\n") == ""


def test_what_a_kernel_takes_is_told_an_entry_a_line():
    one = manifest("a", "x")
    assert resource_lines(one) == []
    one["build"] = {"resources": {"fast": {"registers": 168, "dynamic_shared_memory": 9}, "scalar": {"registers": 80}}}
    assert resource_lines(one) == ["fast: registers 168, dynamic shared memory 9", "scalar: registers 80"]
    assert explain_key(one).splitlines()[-3:] == [
        "what came out of it takes",
        "  fast: registers 168, dynamic shared memory 9",
        "  scalar: registers 80",
    ]
    one["build"] = {"resources": {"vgprs": 64, "lds": 1024}}
    assert resource_lines(one) == ["vgprs 64, lds 1024"]
