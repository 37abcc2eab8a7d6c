"""Reading a cache: the grammar, verification, and what broken or vanished files come to."""

from __future__ import annotations

import json
import shutil

import pytest
from gemmill.cache import LIBRARY, SELFTEST, SELFTEST_SCHEMA, Cache, canonical_json, is_key, sha256_text
from gemmill.errors import CorruptObject, KernelNotFound, Refused
from generators import DAMAGES, object_directory
from hypothesis import given
from hypothesis import strategies as st
from support import add_fake, add_index, add_object, fake_config, fake_library

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_canonical_json_is_one_text(value):
    text = canonical_json(value)
    assert text.isascii()
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_canonical_json_does_not_depend_on_insertion_order(value):
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


def test_canonical_json_refuses_nan():
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json({"x": float("nan")})


def test_keys():
    assert is_key(sha256_text("x"))
    assert not is_key(sha256_text("x")[:-1])
    assert not is_key(sha256_text("x").upper())
    assert not is_key(sha256_text("x") + "\n")


def test_a_whole_object_reads(cache):
    config = fake_config()
    key = add_fake(cache.root, config)
    obj = cache.read(key)
    assert (obj.arch, obj.name, obj.key, obj.outcome) == ("generic", config.name, key, "passed")
    assert obj.library.read_bytes() == fake_library(config).read_bytes()
    assert cache.keys() == [key]
    assert cache.find_key(key[:8]) == key
    (entry,) = cache.entries()
    assert (entry.arch, entry.name, entry.key) == ("generic", config.name, key)
    assert entry.config["tile"] == list(config.tile)


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(cache, name):
    damage, text = DAMAGES[name]
    key = add_fake(cache.root)
    cache.read(key)
    damage(object_directory(cache, key))
    with pytest.raises(CorruptObject, match=text) as caught:
        cache.read(key)
    assert str(cache.root) in str(caught.value)


def test_an_absent_cache_is_an_empty_one(tmp_path):
    cache = Cache(tmp_path / "nothing")
    assert list(cache.entries()) == []
    assert cache.keys() == []
    with pytest.raises(KernelNotFound, match="has no kernel generic/x"):
        cache.entry("generic", "x")
    with pytest.raises(KernelNotFound, match="has no object"):
        cache.read("0" * 64)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "record",
    [
        None,
        "{",
        "[]",
        '{"schema": SCHEMA, "outcome": "passed"}',
        '{"schema": SCHEMA, "key": "KEY", "outcome": "passed"}',
        '{"schema": SCHEMA, "key": "KEY", "library_sha256": "0", "outcome": "passed"}',
        '{"schema": SCHEMA, "key": "KEY", "library_sha256": "SHA", "outcome": true}',
        '{"schema": SCHEMA, "key": "other", "library_sha256": "SHA", "outcome": "passed"}',
        '{"key": "KEY", "library_sha256": "SHA", "outcome": "passed"}',
        '{"schema": 1, "key": "KEY", "library_sha256": "SHA", "outcome": "passed"}',
        '{"schema": 1, "key": "KEY", "library_sha256": "SHA", "outcome": "simulated"}',
    ],
)
def test_a_record_of_another_library_or_of_older_checks_counts_for_nothing(cache, record):
    key = add_fake(cache.root, outcome=None)
    sha = cache.read(key).manifest["files"][LIBRARY]["sha256"]
    if record is not None:
        text = record.replace("KEY", key).replace("SHA", sha).replace("SCHEMA", str(SELFTEST_SCHEMA))
        (object_directory(cache, key) / SELFTEST).write_text(text)
    assert cache.read(key).outcome == "untested"


def test_what_older_checks_failed_stays_failed(cache):
    key = add_fake(cache.root, outcome="failed")
    path = object_directory(cache, key) / SELFTEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 1}))
    assert cache.read(key).outcome == "failed"


@pytest.mark.parametrize(
    "change",
    [{"schema": 2}, {"arch": "x86-64-v3"}, {"name": "other"}, {"key": "123"}, {"config": None}],
    ids=lambda change: next(iter(change)),
)
def test_broken_index_entries_are_left_out_and_named(cache, change):
    config = fake_config()
    key = add_fake(cache.root, config)
    path = add_index(cache.root, config, key)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert list(cache.entries()) == []
    with pytest.raises(CorruptObject, match="is not an index entry of schema 1 for generic/"):
        cache.entry("generic", config.name)
    path.write_text("{")
    assert list(cache.entries()) == []


def test_entries_filter_by_arch_and_pattern(cache):
    for variant, arch in (("fp8", "generic"), ("bf8", "generic"), ("fp8", "x86-64-v3")):
        config = fake_config(variant, arch=arch)
        add_object(cache.root, fake_library(fake_config()), config)
    assert len(list(cache.entries())) == 3
    assert [e.config["variant"] for e in cache.entries("generic")] == ["bf8", "fp8"]
    assert [e.arch for e in cache.entries(pattern="gemm_aquant_fp8_*")] == ["generic", "x86-64-v3"]


def test_find_key_wants_one_match(cache):
    key = add_fake(cache.root)
    with pytest.raises(KernelNotFound, match="6 or more"):
        cache.find_key(key[:5])
    with pytest.raises(KernelNotFound, match="0 objects"):
        cache.find_key("0" * 10 if key[0] != "0" else "1" * 10)


def test_a_copied_cache_reads_the_same(cache, tmp_path):
    key = add_fake(cache.root)
    shutil.copytree(cache.root, tmp_path / "elsewhere")
    shutil.rmtree(cache.root)
    assert Cache(tmp_path / "elsewhere").read(key).outcome == "passed"
    with pytest.raises(KernelNotFound):
        cache.read(key)


def test_check_trust_raises_with_the_reason(cache):
    key = add_fake(cache.root)
    obj = cache.read(key)
    cache.check_trust(obj)
    obj.library.chmod(0o666)
    with pytest.raises(Refused, match="can be written by everybody"):
        cache.check_trust(obj)
