"""Toolchains: which compiler is found, what it is, and when it counts as another one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from factory import compile_all, config, make_compiler
from gemmill.errors import UnsupportedError

from kernels import toolchain
from kernels.build import Build
from kernels.paths import Paths
from kernels.toolchain import compiler_environment, find_toolchain, numbered, probe_cxx


def script(path: Path, text: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def another_version(path: Path, version: str) -> Path:
    """Write a compiler that is g++ in all but its version text."""
    return script(
        path,
        f"""case "$*" in
*-###*) g++ "$@" 2>&1 | sed 's/^gcc version .*/gcc version {version} (test)/' >&2 ;;
*) exec g++ "$@" ;;
esac""",
    )


def test_identity_of_gcc() -> None:
    found = find_toolchain("g++")
    identity = found.identity
    assert (found.kind, found.command) == ("gcc", (shutil.which("g++"),))
    assert identity["version"].startswith("gcc version ") and identity["target"]
    assert len(identity["compiler"]) == 64 and "__GLIBC__" in identity["library"]
    assert identity["as"] and identity["ld"]
    assert str(found) == f"{identity['version']} ({found.command[0]})"
    text = json.dumps(identity)
    assert os.fspath(Path.cwd()) not in text and '"/' not in text, "no path may stand in an identity"


def test_other_ways_to_the_same_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = find_toolchain("g++").identity
    link = tmp_path / "with space" / "c++"
    link.parent.mkdir()
    link.symlink_to(str(shutil.which("g++")))
    wrapper = script(tmp_path / "wrapper", 'exec g++ "$@"')
    launcher = script(tmp_path / "launcher", 'exec "$@"')
    for wanted in (str(link), str(wrapper), f"{launcher} g++", f"'{link}'"):
        assert find_toolchain(wanted).identity == identity, wanted
    monkeypatch.chdir(tmp_path)
    assert find_toolchain("./wrapper").identity == identity
    assert Path(find_toolchain("./wrapper").command[0]).is_absolute()


@pytest.mark.parametrize("options", ["-O1", "-DX=1", "-march=x86-64-v3", "-fno-plt"])
def test_options_that_a_wrapper_adds_are_another_compiler(tmp_path: Path, options: str) -> None:
    plain = find_toolchain("g++").identity
    wrapper = find_toolchain(str(script(tmp_path / "wrapper", f'exec g++ {options} "$@"'))).identity
    assert wrapper != plain
    assert wrapper == find_toolchain(f"g++ {options}").identity


def test_another_version_is_another_compiler(tmp_path: Path) -> None:
    identities = [find_toolchain(str(another_version(tmp_path / v / "g++", v))).identity for v in ("98.1", "98.2")]
    assert identities[0]["version"] == "gcc version 98.1 (test)"
    assert identities[0] != identities[1]


def test_cxx_and_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = another_version(tmp_path / "my c++", "1.0"), another_version(tmp_path / "other", "2.0")
    monkeypatch.setenv("CXX", str(mine))
    assert find_toolchain().command == (str(mine),)
    assert find_toolchain(str(other)).command == (str(other),)
    monkeypatch.setenv("CXX", "")
    assert find_toolchain().command == (shutil.which("g++"),)
    monkeypatch.setenv("CXX", "nothing-of-the-kind")
    with pytest.raises(UnsupportedError, match="CXX=nothing-of-the-kind: there is no such compiler; accepted are g"):
        find_toolchain()


@pytest.mark.parametrize("wanted", ["nothing", "/no/such/c++", "two words", "unclosed 'quote", "/"])
def test_unknown_compiler(wanted: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(f"toolchain={wanted}: there is no such compiler")):
        find_toolchain(wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo some other tool 3.1", "names neither gcc nor clang nor zig; it says: 'some other tool 3.1"),
        ("echo not today >&2; exit 3", "--version failed with status 3: not today"),
        ("echo Free Software Foundation", "-### does not read as gcc's does"),
        ("echo InstalledDir: /somewhere", "-### does not read as clang's does"),
    ],
)
def test_program_that_is_no_compiler(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        find_toolchain(str(script(tmp_path / "tool", text)))


def hide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *left: Path) -> None:
    """Leave only the programs of a directory in PATH, and no ziglang."""
    folder = tmp_path / "only"
    folder.mkdir(exist_ok=True)
    for program in left:
        (folder / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_no_compiler_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        find_toolchain()
    for hint in ("g++, clang++, zig", "apt install g++", "dnf install gcc-c++", "xcode-select", "pip install ziglang"):
        assert hint in str(caught.value)


CLANG = """\
case "$*" in
*--version*) printf 'clang version 18.1.3\\nTarget: x86_64-pc-linux-gnu\\nInstalledDir: {folder}\\n' ;;
*-###*) printf 'clang version 18.1.3\\nTarget: x86_64-pc-linux-gnu\\nInstalledDir: {folder}\\n (in-process)\\n' >&2
        printf ' "{folder}/clang-18" "-cc1" "-triple" "x86_64" "-O0" "-fdebug-compilation-dir=%s"\\n' "$PWD" >&2
        printf ' "/usr/bin/ld" "-shared"\\n' >&2 ;;
*-print-prog-name=*) echo "${{1#*=}}" ;;
*) printf '# 1 "{folder}/version.h" 1\\n#define __GLIBC__ 2\\n#define OTHER 1\\n' ;;
esac"""


def test_clang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identities = []
    for folder in (tmp_path / "usr", tmp_path / "opt"):
        clang = script(folder / "clang++", CLANG.format(folder=folder))
        (folder / "clang-18").write_text("the compiler itself")
        (folder / "version.h").write_text("")
        found = find_toolchain(str(clang))
        assert found.kind == "clang"
        identities.append(found.identity)
    assert identities[0] == identities[1], "where it is installed does not matter"
    assert identities[0]["version"] == "clang version 18.1.3"
    assert identities[0]["options"] == ["-cc1", "-triple", "x86_64", "-O0"]
    assert identities[0]["library"] == {"__GLIBC__": "2"}
    (tmp_path / "opt" / "clang-18").write_text("the compiler, patched")
    assert find_toolchain(str(clang)).identity != identities[0]


def test_clang_is_taken_where_there_is_no_gcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clang = script(tmp_path / "usr" / "clang++", CLANG.format(folder=tmp_path / "usr"))
    (tmp_path / "usr" / "clang-18").write_text("the compiler itself")
    hide(monkeypatch, tmp_path, clang)
    assert find_toolchain().kind == "clang"


@pytest.mark.parametrize("wanted", ["clang++", None])
def test_the_newest_numbered_clang_stands_in_for_a_plain_one(
    wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clang-18").write_text("the compiler itself")
    names = ("clang++-9", "clang++-18", "clang++-17", "clang++-18.bak", "xclang++-99")
    hide(monkeypatch, tmp_path, *(script(tmp_path / "usr" / name, CLANG.format(folder=tmp_path)) for name in names))
    (tmp_path / "only" / "clang++-20").write_text("not a program")
    assert numbered("clang++") == ["clang++-18", "clang++-17", "clang++-9"]
    assert find_toolchain(wanted).command == (str(tmp_path / "only" / "clang++-18"),)
    monkeypatch.setenv("PATH", f"{tmp_path / 'nowhere'}{os.pathsep}{tmp_path / 'only'}")
    assert find_toolchain("clang++-9").command[0].endswith("clang++-9"), "the one that is named"
    script(tmp_path / "only" / "clang++", CLANG.format(folder=tmp_path))
    assert find_toolchain(wanted).command[0].endswith("clang++"), "a plain one goes first"


HIPCC = """\
echo "HIP version: 6.0.1"
[ "$HIP_PLATFORM" = amd ] || {{ echo "nvcc: NVIDIA (R) Cuda compiler driver"; exit; }}
exec '{clang}' --version"""


def test_hipcc_means_the_clang_that_it_starts(tmp_path: Path) -> None:
    folder = tmp_path / "llvm with space"
    script(folder / "clang++", CLANG.format(folder=folder).replace("18.1.3", "9.0.1"))
    clang = script(folder / "clang++-18", CLANG.format(folder=folder))
    (folder / "clang-18").write_text("the compiler itself")
    hipcc = script(tmp_path / "bin" / "hipcc", HIPCC.format(clang=clang))
    found = find_toolchain(str(hipcc))
    assert (found.kind, found.command) == ("clang", (str(clang),))
    assert found.identity == find_toolchain(str(clang)).identity
    assert find_toolchain(f"'{hipcc}' -O1").command == (str(clang), "-O1")
    clang.unlink()
    with pytest.raises(UnsupportedError, match=r"hipcc --version"):
        find_toolchain(str(hipcc))


def test_hipcc_of_another_platform(tmp_path: Path) -> None:
    hipcc = script(tmp_path / "hipcc", "echo HIP version: 5.2; echo nvcc")
    with pytest.raises(UnsupportedError, match=r"does not say which clang it starts; it says: 'HIP version: 5.2"):
        find_toolchain(str(hipcc))


def fake_zig(folder: Path, glibc: int = 36) -> Path:
    """Write something that answers as zig does."""
    return script(
        folder / "zig",
        f"""case "$*" in
version) echo 0.99.1 ;;
"c++ "*--version) printf 'clang version 21.0\\nInstalledDir: {folder}\\n' ;;
"c++ "*-dD*) printf '#define __GLIBC_MINOR__ {glibc}\\n' ;;
*) exit 1 ;;
esac""",
    )


def test_zig_by_name_path_and_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zig = fake_zig(tmp_path / "zig folder")
    wrapper = script(tmp_path / "zig-c++", f"exec '{zig}' c++ \"$@\"")
    by_path, by_wrapper = find_toolchain(str(zig)), find_toolchain(str(wrapper))
    assert by_path.kind == by_wrapper.kind == "zig" and by_path.identity == by_wrapper.identity
    assert by_path.command == (str(zig), "c++") and by_wrapper.command == (str(wrapper),)
    assert by_path.identity["version"] == "zig 0.99.1"
    assert find_toolchain(f"'{zig}' c++").command == (str(zig), "c++")
    assert find_toolchain(f"'{zig}' c++ -O1").identity["options"] == ["-O1"]
    newer = find_toolchain(str(fake_zig(tmp_path / "zig on another system", 41))).identity
    assert (by_path.identity["library"], newer["library"]) == ({"__GLIBC_MINOR__": "36"}, {"__GLIBC_MINOR__": "41"})
    hide(monkeypatch, tmp_path, zig)
    assert find_toolchain().command[1:] == ("c++",)


def test_a_zig_that_says_it_is_installed_elsewhere(tmp_path: Path) -> None:
    """Up to 0.13 it names /usr/bin; asked with -### it would wait for ever."""
    zig = fake_zig(tmp_path)
    zig.write_text(zig.read_text().replace(f"InstalledDir: {tmp_path}", "InstalledDir: /usr/bin"))
    assert "/usr/bin" in zig.read_text()
    found = find_toolchain(str(zig))
    assert (found.kind, found.identity["version"]) == ("zig", "zig 0.99.1")


def test_zig_and_clang_in_one_directory(tmp_path: Path) -> None:
    zig = fake_zig(tmp_path / "bin")
    clang = script(zig.parent / "clang++", CLANG.format(folder=zig.parent))
    (zig.parent / "clang-18").write_text("the compiler itself")
    (zig.parent / "version.h").write_text("")
    assert [find_toolchain(str(path)).kind for path in (zig, clang)] == ["zig", "clang"]
    wrapped = CLANG.format(folder=zig.parent).replace("/clang-18", "/zig")
    assert find_toolchain(str(script(tmp_path / "c++", wrapped))).kind == "zig"


def test_zig_of_the_python_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zig = fake_zig(tmp_path / "site" / "ziglang")
    spec = importlib.util.spec_from_loader("ziglang", None, is_package=True)
    assert spec is not None and spec.submodule_search_locations is not None
    spec.submodule_search_locations.append(str(zig.parent))
    hide(monkeypatch, tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "ziglang" else None)
    assert find_toolchain().command == (str(zig), "c++")


# ---- the memo --------------------------------------------------------------------------------------------------


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the list of the commands that were asked."""
    asked: list[tuple[str, ...]] = []

    def ask(command: tuple[str, ...]) -> Any:
        asked.append(command)
        return probe_cxx(command)

    monkeypatch.setattr(toolchain, "probe_cxx", ask)
    return asked


def test_memo_saves_the_asking(tmp_path: Path, probes: list[Any]) -> None:
    memo = tmp_path / "deep" / "memo.json"
    first, second = find_toolchain("g++", memo), find_toolchain("g++", memo)
    assert first == second and len(probes) == 1


def test_memo_notices_a_replaced_compiler(tmp_path: Path, probes: list[Any]) -> None:
    memo, path = tmp_path / "memo.json", tmp_path / "g++"
    first = find_toolchain(str(another_version(path, "5.1")), memo)
    before = path.stat()
    path.write_text(path.read_text().replace("5.1", "5.2"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size and mtime
    second = find_toolchain(str(path), memo)
    assert len(probes) == 2 and first.identity != second.identity


def test_memo_notices_what_a_wrapper_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = script(tmp_path / "wrapper", 'exec mycc "$@"')
    memo = tmp_path / "memo.json"
    versions = []
    for version in ("7.1", "7.2"):
        another_version(tmp_path / version / "mycc", version)
        monkeypatch.setenv("PATH", f"{tmp_path / version}{os.pathsep}{os.environ['PATH']}")
        versions.append(find_toolchain(str(wrapper), memo).identity["version"])
    assert versions == ["gcc version 7.1 (test)", "gcc version 7.2 (test)"]


def test_memo_notices_that_the_real_compiler_is_gone(tmp_path: Path) -> None:
    clang = script(tmp_path / "clang++", CLANG.format(folder=tmp_path))
    (tmp_path / "clang-18").write_text("the compiler itself")
    memo = tmp_path / "memo.json"
    find_toolchain(str(clang), memo)
    (tmp_path / "clang-18").unlink()
    with pytest.raises(UnsupportedError, match=r"failed to read the compiler .*clang-18: No such file"):
        find_toolchain(str(clang), memo)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 0}', '{"schema": 1, "toolchains": 3}', '{"schema": 1}'])
def test_broken_memo_is_no_error(tmp_path: Path, text: str) -> None:
    memo = tmp_path / "memo.json"
    memo.write_text(text)
    assert find_toolchain("g++", memo).kind == "gcc"
    assert json.loads(memo.read_text())["toolchains"]


# ---- builds ----------------------------------------------------------------------------------------------------


def test_replaced_compiler_rebuilds_and_another_path_does_not(tmp_path: Path, paths: Paths) -> None:
    compiler = another_version(tmp_path / "bin" / "g++", "9.1")
    configs = (config(), config("bf8"))
    first = compile_all(Build(paths, str(compiler)), configs)
    (tmp_path / "moved").mkdir()
    moved = compiler.rename(tmp_path / "moved" / "c++ of mine")
    assert [o.status for o in compile_all(Build(paths, str(moved)), configs)] == ["reused"] * 2
    another_version(moved, "9.2")
    second = compile_all(Build(paths, str(moved)), configs)
    assert [o.status for o in second] == ["built"] * 2
    assert not {o.key for o in first} & {o.key for o in second}


def test_touched_compiler_rebuilds_nothing(tmp_path: Path, paths: Paths) -> None:
    compiler = make_compiler(tmp_path / "bin")
    compile_all(Build(paths, str(compiler.path)), (config(),))
    compiler.path.touch()
    assert Build(paths, str(compiler.path)).state(config()).current


def test_environment_cannot_smuggle_options_in(tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stdint.h").write_text("#error the wrong stdint.h\n")
    plain = Build(paths).compile(config()).key
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    shutil.rmtree(paths.cache)
    outcome = Build(paths).compile(config())
    assert (outcome.status, outcome.key) == ("built", plain)
    environment = compiler_environment(tmp_path)
    assert "CPATH" not in environment and environment["TMPDIR"] == str(tmp_path) and environment["LC_ALL"] == "C"
