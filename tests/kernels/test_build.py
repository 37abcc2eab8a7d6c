"""Build: what is rebuilt when, what is published, and what failures say."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from factory import ENVIRONMENT, SIX, compile_all, config, litter, make_compiler, make_copier, make_tree, objects
from gemmill.cache import LIBRARY, MANIFEST, SELFTEST, SELFTEST_SCHEMA, Cache, canonical_json, sha256_text
from gemmill.errors import UnsupportedError

from kernels import process
from kernels.build import Build
from kernels.catalogue import load_catalogue
from kernels.describe import describe_config
from kernels.paths import Paths


def test_first_run_builds_second_reuses(paths: Paths, build: Build) -> None:
    assert [o.status for o in compile_all(build)] == ["built"] * 6
    again = Build(paths)
    assert all(again.state(one).current for one in SIX)
    assert [o.status for o in compile_all(again)] == ["reused"] * 6
    assert len(objects(paths)) == 6 and not litter(paths)


def test_what_is_published(paths: Paths, build: Build) -> None:
    outcome = build.compile(config())
    found = Cache(paths.cache).read(outcome.key)
    assert (found.arch, found.name, found.outcome) == ("generic", config().name, "untested")
    assert found.manifest["config"] == describe_config(config())
    assert sha256_text(canonical_json(found.manifest["inputs"])) == outcome.key
    assert sorted(found.manifest["inputs"]["headers"]) == ["abi.h", "tiny/alpha.h", "tiny/common.h"]
    assert found.manifest["source"].startswith(f"// {config().name}\n")
    assert found.manifest["build"]["seconds"] >= 0
    entry = Cache(paths.cache).entry("generic", config().name)
    assert entry.key == outcome.key and entry.config == describe_config(config())
    library = ctypes.CDLL(str(found.library))
    library.gemmill_manifest.restype = ctypes.c_char_p
    assert json.loads(library.gemmill_manifest())["name"] == config().name


def test_state_says_why(paths: Paths, fast: Build) -> None:
    assert "not generated" in fast.state(config()).reason
    fast.codegen.generate(config())
    assert "no object" in fast.state(config()).reason
    fast.compile(config())
    assert fast.state(config()).current
    fast.store.cache.index_path("generic", config().name).unlink()
    state = fast.state(config())
    assert not state.current and "has no kernel" in state.reason and state.object is not None


def test_state_is_remembered_only_while_the_files_are_the_same(fast: Build) -> None:
    key = fast.compile(config()).key
    first = fast.state(config())
    assert fast.state(config()) is first and first.object is not None and first.object.outcome == "untested"
    recorded = first.object.manifest["files"][LIBRARY]["sha256"]
    record = {"schema": SELFTEST_SCHEMA, "key": key, "library_sha256": recorded, "outcome": "passed"}
    (first.object.path / SELFTEST).write_text(json.dumps(record))
    second = fast.state(config())
    assert second.object is not None and second.object.outcome == "passed"
    content = first.object.library.read_bytes()
    edit(first.object.library, content[:-1] + bytes([content[-1] ^ 1]))
    assert "broken" in fast.state(config()).reason
    edit(first.object.library, content)
    assert fast.state(config()).current
    fast.codegen.path(config()).unlink()
    assert "not generated" in fast.state(config()).reason


def test_state_writes_nothing_to_the_cache(paths: Paths, fast: Build) -> None:
    fast.codegen.generate(config())
    fast.state(config())
    assert not paths.cache.exists()


def test_a_lost_index_entry_costs_no_compilation(tmp_path: Path, paths: Paths) -> None:
    compiler = make_compiler(tmp_path / "bin")
    build = Build(paths, str(compiler.path))
    compile_all(build)
    shutil.rmtree(paths.cache / "index")
    assert [o.status for o in compile_all(build)] == ["reused"] * 6
    assert compiler.runs == 6
    assert all(build.state(one).current for one in SIX)


def test_a_manifest_that_calls_it_another_kernel_is_built_again(fast: Build) -> None:
    found = fast.store.cache.read(fast.compile(config()).key)
    manifest = {**found.manifest, "name": found.name.replace("fp8", "fp9")}
    (found.path / MANIFEST).write_text(json.dumps(manifest))
    assert "fp9" in fast.state(config()).reason
    assert fast.compile(config()).status == "built"
    assert fast.state(config()).current and len(list(fast.paths.cache.glob("quarantine/*"))) == 1


CATALOGUE = """
operator = "gemm_aquant"
variants = ["fp8", "bf8"]
[layouts]
decode = ["rcr"]
preshufflequant = ["rcr"]
[[geometry]]
archs = ["generic"]
families = ["decode", "preshufflequant"]
tile = [8, 8, 128]
warps = [1, 1, 1]
warp_tile = [4, 8]
"""


def test_a_new_tile_takes_the_place_of_the_old_one(
    tmp_path: Path, paths: Paths, prebuilt: Path, notices: list[str]
) -> None:
    compiler = make_copier(tmp_path / "fast", prebuilt)

    def build_with(tile: str) -> Build:
        (tmp_path / "some.toml").write_text(CATALOGUE.replace("[8, 8, 128]", tile))
        catalogue = load_catalogue(tmp_path / "some.toml")
        return Build(paths, str(compiler.path), notices.append, catalogue=catalogue)

    before, old = build_with("[8, 8, 128]"), config()
    others = config("bf8"), config(family="preshufflequant"), config(out="bf16")
    compile_all(before, (old, *others))
    assert before.state(old).current and not notices

    after, new = build_with("[8, 16, 128]"), config(tile=(8, 16, 128))
    reader = build_with("[8, 16, 128]")
    compile_all(after, (new,))
    assert {entry.name for entry in before.store.cache.entries()} == {new.name, *(one.name for one in others)}
    (notice,) = notices
    assert old.name in notice and new.name in notice
    assert after.state(new).current and len(objects(paths)) == 5

    # Another checkout that shares the cache has put its own tile back: found with one look, and dropped.
    compile_all(build_with("[8, 8, 128]"), (old,))
    before.store.set_index("generic", new.name, after.state(new).key, describe_config(new))
    state = reader.state(new)
    assert not state.current and old.name in state.reason
    assert old.name in {entry.name for entry in before.store.cache.entries()}, "asking changes nothing"
    runs = compiler.runs
    assert [o.status for o in compile_all(reader, (new,))] == ["reused"] and compiler.runs == runs
    assert reader.state(new).current
    assert {entry.name for entry in before.store.cache.entries()} == {new.name, *(one.name for one in others)}


def test_two_tiles_of_a_catalogue_stay_side_by_side(tmp_path: Path, paths: Paths, prebuilt: Path) -> None:
    row = CATALOGUE.partition("[[geometry]]")[2].replace("[8, 8, 128]", "[8, 16, 128]")
    (tmp_path / "some.toml").write_text(f"{CATALOGUE}[[geometry]]{row}")
    catalogue = load_catalogue(tmp_path / "some.toml")
    compiler = make_copier(tmp_path / "fast", prebuilt)
    build = Build(paths, str(compiler.path), catalogue=catalogue)
    both = config(), config(tile=(8, 16, 128))
    compile_all(build, both)
    again = Build(paths, str(compiler.path), catalogue=catalogue)
    assert all(again.state(one).current for one in both)


def test_a_broken_entry_of_an_unknown_name_is_let_be(tmp_path: Path, paths: Paths, prebuilt: Path) -> None:
    (tmp_path / "some.toml").write_text(CATALOGUE)
    catalogue = load_catalogue(tmp_path / "some.toml")
    build = Build(paths, str(make_copier(tmp_path / "fast", prebuilt).path), catalogue=catalogue)
    folder = paths.cache / "index" / "generic"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("{")
    odd = {"schema": 1, "arch": "generic", "name": "odd", "key": "0" * 64, "config": {"variant": ["fp8"], "out": {}}}
    (folder / "odd.json").write_text(json.dumps(odd))
    compile_all(build, (config(),))
    assert build.state(config()).current
    assert (folder / "broken.json").exists() and (folder / "odd.json").exists()


def edit(path: Path, content: str | bytes) -> None:
    """Replace a file's content and keep its times, as a careless copy would."""
    before = path.stat()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("header", "change", "rebuilt"),
    [
        ("tiny/alpha.h", "int used;", 3),
        ("tiny/beta.h", "#undef X", 3),
        ("tiny/common.h", 'static const char* text = "a  b";', 6),
        ("abi.h", "#define NEW 1", 6),
        ("tiny/alpha.h", "// a comment", 0),
        ("tiny/common.h", "\n\n\n/* several\n lines */\n", 0),
    ],
)
def test_header_edit_rebuilds_exactly_those_that_include_it(
    paths: Paths, fast: Build, header: str, change: str, rebuilt: int
) -> None:
    compile_all(fast)
    path = paths.native / header
    edit(path, path.read_text() + change + "\n")
    assert [o.status for o in compile_all(fast)].count("built") == rebuilt
    assert sum(not Build(paths).state(one).current for one in SIX) == 0


def test_a_new_header_in_front_of_another_is_seen(paths: Paths, fast: Build) -> None:
    (paths.native / "common.h").write_text("#error not this one\n")
    compile_all(fast, SIX[:1])  # alpha.h includes the one beside itself
    (paths.native / "tiny" / "abi.h").write_text('#include "../abi.h"\nint shadow;\n')
    assert fast.compile(SIX[0]).status == "built"


def test_touching_everything_rebuilds_nothing(paths: Paths, fast: Build) -> None:
    compile_all(fast)
    for path in [*paths.root.rglob("*.h"), *paths.root.rglob("*.j2"), *paths.generated.rglob("*.cpp")]:
        path.touch()
    assert all(Build(paths).state(one).current for one in SIX)


def test_template_comment_rebuilds_nothing_template_code_does(paths: Paths, fast: Build) -> None:
    compile_all(fast)
    template = paths.templates / "cpu.cpp.j2"
    template.write_text("// explained better\n" + template.read_text())
    assert [o.status for o in compile_all(Build(paths, str(fast.toolchain("generic").command[0])))] == ["reused"] * 6
    template.write_text(template.read_text() + "int more;\n")
    assert [o.status for o in compile_all(Build(paths, str(fast.toolchain("generic").command[0])))] == ["built"] * 6


def test_edited_generated_source_is_generated_again(paths: Paths, fast: Build) -> None:
    compile_all(fast)
    path = fast.codegen.path(SIX[0])
    path.write_text(path.read_text() + "int mine;\n")
    assert not Build(paths).state(SIX[0]).current
    assert Build(paths).compile(SIX[0]).status == "reused"
    assert "mine" not in path.read_text()


def test_going_back_reuses_the_old_object(paths: Paths, fast: Build) -> None:
    before = fast.compile(config()).key
    path = paths.native / "tiny" / "alpha.h"
    text = path.read_text()
    path.write_text(text + "int used;\n")
    after = fast.compile(config())
    assert after.status == "built" and after.key != before
    path.write_text(text)
    back = fast.compile(config())
    assert (back.status, back.key) == ("reused", before)
    assert fast.store.cache.entry("generic", config().name).key == before


def test_same_bytes_and_key_from_another_directory(tmp_path: Path, paths: Paths, build: Build) -> None:
    other = make_tree(tmp_path / "another place" / "with ümläuts")
    first, second = build.compile(config()), Build(other).compile(config())
    assert first.key == second.key
    libraries = [Cache(p.cache).read(first.key).library.read_bytes() for p in (paths, other)]
    assert libraries[0] == libraries[1]


def test_copied_cache_is_as_good(tmp_path: Path, paths: Paths, fast: Build) -> None:
    compile_all(fast)
    shutil.copytree(paths.cache, tmp_path / "elsewhere")
    shutil.rmtree(paths.cache)
    moved = Build(Paths.of(paths.root, cache=tmp_path / "elsewhere"))
    assert all(moved.state(one).current for one in SIX)


def test_compiler_error_is_the_message(paths: Paths, build: Build) -> None:
    compile_all(build, SIX[:3])
    (paths.native / "tiny" / "beta.h").write_text("#error this does not work\n")
    failed = build.compile(config("bf8"))
    assert failed.status == "failed" and "this does not work" in failed.message
    assert "beta.h:1" in failed.message and failed.seconds > 0
    assert not litter(paths) and len(objects(paths)) == 3
    repeated = subprocess.run(failed.commands[0], capture_output=True, text=True, check=False)
    assert repeated.returncode and "this does not work" in repeated.stderr


def test_missing_header_names_its_includer(paths: Paths, build: Build) -> None:
    (paths.native / "tiny" / "alpha.h").write_text('#include "gone.h"\n')
    failed = build.compile(config())
    assert not failed.ok and 'native/tiny/alpha.h includes "gone.h"' in failed.message


def test_warnings_are_kept_and_harmless(paths: Paths, build: Build) -> None:
    path = paths.native / "tiny" / "alpha.h"
    path.write_text(path.read_text() + "#warning take care\n")
    outcome = build.compile(config())
    assert outcome.status == "built" and "take care" in outcome.message


def test_incomplete_library_is_refused(paths: Paths, build: Build) -> None:
    path = paths.native / "tiny" / "common.h"
    path.write_text(path.read_text().replace("void dispatcher_cleanup(void) {}", ""))
    failed = build.compile(config())
    assert not failed.ok and "does not export dispatcher_cleanup" in failed.message
    assert failed.commands and not objects(paths)


def test_foreign_library_is_refused(tmp_path: Path, paths: Paths) -> None:
    subprocess.run(
        ["g++", "-shared", "-x", "c++", "-", "-o", tmp_path / "libodd.so"], input=b"int odd() { return 1; }", check=True
    )
    real = f"g++ -L'{tmp_path}' -Wl,--no-as-needed"
    compiler = make_compiler(tmp_path / "bin", real=f"{real} -lodd -Wl,--as-needed")
    failed = Build(paths, str(compiler.path)).compile(config())
    assert not failed.ok and "needs libodd.so" in failed.message and "libc and libm" in failed.message


def test_compiler_that_makes_nothing(tmp_path: Path, paths: Paths) -> None:
    compiler = make_compiler(tmp_path / "bin", before="exit 0")
    failed = Build(paths, str(compiler.path)).compile(config())
    assert not failed.ok and not objects(paths) and not litter(paths)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx90a", "sm_90a"])
def test_archs_without_backend_say_which_is_missing(build: Build, arch: str) -> None:
    one = load_catalogue().configs(arch)[0]
    failed = build.compile(one)
    backend = one.arch_row.backend
    try:
        __import__(f"kernels.backends.{backend}")
    except ModuleNotFoundError:
        assert not failed.ok and f"the {backend} backend is not built yet" in failed.message
        with pytest.raises(UnsupportedError, match=f"{arch}.*{backend} backend"):
            build.state(one)


def test_stop_while_waiting_for_a_lock(build: Build) -> None:
    build.codegen.generate(config())
    key = build.state(config()).key
    children = process.Children()
    waiting = Build(build.paths, children=children)
    with build.store.lock(key):
        children.stop()
        with pytest.raises(process.Stopped):
            waiting.compile(config())


def test_no_jinja_no_numpy_when_there_is_nothing_to_do(paths: Paths, fast: Build) -> None:
    compile_all(fast)
    text = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from kernels.build import Build; from kernels.paths import Paths; from factory import SIX\n"
        "build = Build(Paths.of(sys.argv[1]))\n"
        "assert all(build.codegen.is_current(c) and build.state(c).current for c in SIX)\n"
        "print(*{'jinja2', 'numpy', 'ml_dtypes', 'filelock'} & set(sys.modules))"
    )
    argv = [sys.executable, "-c", text, str(paths.root), str(Path(__file__).parent)]
    ran = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert ran.stdout == "\n"
