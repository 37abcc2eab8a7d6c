"""The way to a machine with the device and back, by the commands: pack, unpack, selftest, merge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from gemmill.cache import LIBRARY, SELFTEST, Cache
from gemmill.cli import main
from gemmill.errors import ArgumentError, Refused
from gemmill.loader import load
from gemmill.results import merge, read_results, write_results
from generators import object_directory, selftest_record
from support import add_fake, fake_config


def lines(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def untested(cache: Cache) -> list[str]:
    return [add_fake(cache.root, config, outcome=None) for config in (fake_config(), fake_config("bf8"))]


def sent(cache: Cache, key: str, outcome: str, **fields: object) -> dict:
    return selftest_record(key, cache.read(key).manifest["files"][LIBRARY]["sha256"], outcome, **fields)


def test_the_whole_way(cache, untested, tmp_path, capsys):
    there, results = tmp_path / "there", tmp_path / "results.json"
    assert main(["pack", str(tmp_path / "k.tar.gz"), "--cache", str(cache.root)]) == 0
    out = lines(capsys)
    assert out[0].startswith("[1/2] ")
    assert out[-1].startswith("2 kernels (generic), ")
    assert main(["unpack", str(tmp_path / "k.tar.gz"), str(there)]) == 0
    assert lines(capsys)[-1].startswith("2 kernels, ")
    assert main(["selftest", "--cache", str(there), "--results", str(results)]) == 0
    assert lines(capsys)[-1] == "2 passed"
    with pytest.raises(Refused, match="untested"):
        load(untested[0], cache)
    assert main(["merge", str(results), "--cache", str(cache.root)]) == 0
    out = lines(capsys)
    assert out[0].startswith("merged   generic/gemm_aquant_")
    assert "untested -> passed (" in out[0]
    assert out[-1] == "2 merged"
    assert load(untested[0], cache).outcome == "passed"
    assert main(["merge", str(results), "--cache", str(cache.root)]) == 0
    assert lines(capsys)[-1] == "2 same"


def test_results_come_from_a_cache_that_cannot_be_written(cache, untested, tmp_path, capsys, monkeypatch):
    from gemmill import selftest

    monkeypatch.setattr(selftest, "_save", lambda cache, record: {"saved": False, "not_saved": "read-only"})
    assert main(["selftest", "--cache", str(cache.root), "--results", str(tmp_path / "r.json")]) == 0
    assert lines(capsys)[-1] == "2 passed"
    assert {record["key"] for record in read_results(tmp_path / "r.json")} == set(untested)
    assert not list(cache.root.rglob(SELFTEST))


def test_what_is_on_record_can_be_collected_and_merged_from_a_folder(cache, untested, tmp_path, capsys):
    there = tmp_path / "there"
    shutil.copytree(cache.root, there)
    record = sent(cache, untested[0], "passed")
    (object_directory(Cache(there), untested[0]) / SELFTEST).write_text(json.dumps(record))
    assert main(["results", str(tmp_path / "r.json"), "--cache", str(there)]) == 0
    assert lines(capsys) == [f"1 passed in {tmp_path / 'r.json'}"]
    assert read_results(tmp_path / "r.json") == [record]
    assert main(["merge", str(there), "--cache", str(cache.root)]) == 0
    assert lines(capsys)[-1] == "1 merged"


def test_results_that_cannot_be_written_are_told_before_the_tests(cache, untested, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["selftest", "--cache", str(cache.root), "--results", str(tmp_path / "file" / "r.json")]) == 2
    assert "failed to write" in capsys.readouterr().err
    assert cache.read(untested[0]).outcome == "untested"


def test_merge_tells_what_became_of_each(cache, untested, tmp_path, capsys):
    first, second = untested
    write_results(tmp_path / "early.json", [sent(cache, first, "passed", date="2026-01-01T00:00:00+00:00")])
    write_results(
        tmp_path / "late.json",
        [
            sent(cache, first, "failed", date="2026-02-01T00:00:00+00:00"),
            sent(cache, second, "simulated"),
            {**sent(cache, second, "passed"), "library_sha256": "1" * 64},
            {**sent(cache, second, "passed"), "key": "2" * 64},
            {**sent(cache, second, "passed"), "key": "3" * 64, "schema": 9},
        ],
    )
    argv = ["merge", str(tmp_path / "late.json"), str(tmp_path / "early.json"), "--cache", str(cache.root)]
    assert main(argv) == 1
    out = lines(capsys)
    assert out[-1] == "1 kept, 2 merged, 3 refused"
    assert any(line.startswith("kept     generic/") and "failed, not passed (" in line for line in out)
    assert any("222222222222: no object of this key here" in line for line in out)
    assert any("333333333333: its schema is 9" in line for line in out)
    assert any("about a library of sha256 111111111111" in line for line in out)
    assert cache.read(first).outcome == "failed"
    assert cache.read(second).outcome == "simulated"
    with pytest.raises(Refused, match="its selftest failed: wrong at C"):
        load(first, cache, allow_untested=True)


def test_a_record_enters_every_cache_that_has_the_object(cache, untested, tmp_path):
    shutil.copytree(cache.root, tmp_path / "copy")
    copy = Cache(tmp_path / "copy")
    done = list(merge([sent(cache, untested[0], "passed")], [cache, copy]))
    assert [merged.what for merged in done] == ["merged", "merged"]
    assert copy.read(untested[0]).outcome == "passed"


@pytest.mark.parametrize("text", ["", "[]", '{"selftests": 1}', '{"schema": 2, "selftests": []}', "[" * 10**5])
def test_other_files_are_no_results(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ArgumentError, match=r"no selftest results|schema 2"):
        read_results(tmp_path / "r.json")


def test_pack_selects(cache, untested, tmp_path, capsys):
    add_fake(cache.root, fake_config(arch="x86-64-v3"), outcome=None)
    out = tmp_path / "k.tar"

    def packed(*arguments: str) -> str:
        assert main(["pack", str(out), *arguments, "--cache", str(cache.root)]) == 0
        return lines(capsys)[-1]

    assert packed().startswith("3 kernels (generic, x86-64-v3)")
    assert packed("--arch", "generic").startswith("2 kernels (generic)")
    assert packed("*_bf8_*").startswith("1 kernel (generic)")
    assert packed("x86-64-v3/*", "*_bf8_*").startswith("2 kernels (generic, x86-64-v3)")
    assert main(["pack", str(tmp_path / "none.tar"), "nothing*", "--cache", str(cache.root)]) == 2
    assert "nothing to pack: no kernel in" in capsys.readouterr().err
    assert not Path(tmp_path / "none.tar").exists()


def test_of_two_caches_the_first_one_counts(cache, tmp_path, capsys):
    add_fake(cache.root, outcome="passed")
    other = tmp_path / "other"
    add_fake(other, outcome=None, inputs={"flags": ["-O3"]})
    argv = ["pack", str(tmp_path / "k.tar"), "--cache", str(other), "--cache", str(cache.root)]
    assert main(argv) == 0
    assert lines(capsys)[-1].startswith("1 kernel")
    main(["unpack", str(tmp_path / "k.tar"), str(tmp_path / "there")])
    assert Cache(tmp_path / "there").keys() == Cache(other).keys()
