"""The cache under faults: killed builders and compilers, races, damage, full disks, and inputs that move."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from factory import SIX, compile_all, config, litter, make_compiler, make_copier, objects, start_builder
from gemmill.cache import LIBRARY, MANIFEST, SELFTEST, Cache, object_path
from gemmill.errors import Refused

from kernels import process
from kernels.build import ATTEMPTS, Build
from kernels.config import KernelConfig
from kernels.paths import Paths
from kernels.sweep import gc, verify

# Kills its process with SIGKILL at the n-th time that it touches a file of the cache.
KILL_AT = """
steps = 0
def count(event, args):
    global steps
    if event.startswith(("open", "os.", "subprocess", "shutil", "tempfile")) and any(
        given["cache"] in str(x) or "kernel.so" in str(x) for x in args
    ):
        steps += 1
        if steps == {at}:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
"""


def test_builder_killed_at_every_step(tmp_path: Path, paths: Paths, prebuilt: Path) -> None:
    compiler = make_copier(tmp_path / "bin", prebuilt)
    killed, at = 0, 1
    while True:
        builder = start_builder(paths, compiler, count=1, prelude=KILL_AT.format(at=at))
        said, _ = builder.communicate(timeout=60)
        if builder.returncode == 0:
            break
        assert builder.returncode == -signal.SIGKILL, said
        killed += 1
        whole = objects(paths)  # fails on a half object
        before = compiler.runs
        assert compile_all(Build(paths, str(compiler.path)), SIX[:1])[0].status == ("reused" if whole else "built")
        assert compiler.runs == before + (not whole)
        assert whole or not list(paths.cache.glob("tmp/*"))  # the next writer cleans up
        gc(Build(paths).store)
        assert not [p for p in litter(paths) if p.parent.name == "tmp"]
        shutil.rmtree(paths.cache)
        # Every step early on, where all the writing is; then fewer.
        at += 1 if at < 40 else 7
    assert killed > 20


def test_compiler_killed(tmp_path: Path, paths: Paths) -> None:
    mark = tmp_path / "killed"
    once = f"[ -e '{mark}' ] || {{ : > '{mark}'; echo half > \"$out\"; kill -9 $$; }}"
    build = Build(paths, str(make_compiler(tmp_path / "bin", before=once).path))
    failed = build.compile(config())
    assert not failed.ok and "SIGKILL" in failed.message
    assert not objects(paths) and not litter(paths)
    assert build.compile(config()).status == "built"


def test_kill_builders_at_random_then_only_the_missing_is_built(tmp_path: Path, paths: Paths) -> None:
    compiler = make_compiler(tmp_path / "bin", before="sleep 0.05")
    for runs in (1, 2, 4):  # somewhere in or after the first, second and fourth compilation
        builder = start_builder(paths, compiler)
        _wait_for(lambda: compiler.runs >= runs)  # noqa: B023
        time.sleep(0.01 * runs)
        builder.kill()
        builder.communicate()
    done, before = len(objects(paths)), compiler.runs
    compile_all(Build(paths, str(compiler.path)))
    assert compiler.runs == before + 6 - done


def test_children_die_with_a_killed_builder(tmp_path: Path, paths: Paths) -> None:
    if not process._die_with_parent():
        pytest.skip("setpriv of util-linux is missing")
    compiler = make_compiler(tmp_path / "bin", before=f"echo $$ > '{tmp_path}/pid'; exec sleep 60")
    builder = start_builder(paths, compiler, count=1)
    pid = int(_wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))
    builder.kill()
    builder.communicate()
    _wait_for(lambda: not _alive(pid))


def test_eight_builders_compile_each_key_once(tmp_path: Path, paths: Paths) -> None:
    compiler = make_compiler(tmp_path / "bin")
    builders = [start_builder(paths, compiler) for _ in range(8)]
    for builder in builders:
        said, _ = builder.communicate(timeout=120)
        assert builder.returncode == 0, said
    assert compiler.runs == 6
    assert len(objects(paths)) == 6 and not litter(paths)


def test_eight_threads_compile_each_key_once(tmp_path: Path, paths: Paths, prebuilt: Path) -> None:
    compiler = make_copier(tmp_path / "bin", prebuilt)
    build = Build(paths, str(compiler.path))
    before = compiler.runs
    threads = [threading.Thread(target=compile_all, args=(build,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiler.runs - before == 6


def truncate(folder: Path) -> None:
    os.truncate(folder / LIBRARY, 1000)


def empty(folder: Path) -> None:
    os.truncate(folder / LIBRARY, 0)


def flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / LIBRARY).read_bytes())
    content[len(content) // 2] ^= 4
    (folder / LIBRARY).write_bytes(content)


def replace_by_foreign(folder: Path) -> None:
    shutil.copy(sys.executable, folder / LIBRARY)


def remove_library(folder: Path) -> None:
    (folder / LIBRARY).unlink()


def break_json(folder: Path) -> None:
    (folder / MANIFEST).write_text("{ not json")


def empty_json(folder: Path) -> None:
    (folder / MANIFEST).write_text("")


def json_of_another_kind(folder: Path) -> None:
    (folder / MANIFEST).write_text("[]")


def remove_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def change_inputs(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"abi": 2', '"abi": 3'))


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        empty,
        flip_a_bit,
        replace_by_foreign,
        remove_library,
        break_json,
        empty_json,
        json_of_another_kind,
        remove_manifest,
        change_inputs,
    ],
)
def test_damaged_object_is_quarantined_and_rebuilt(
    tmp_path: Path, paths: Paths, prebuilt: Path, notices: list[str], damage: Callable[[Path], None]
) -> None:
    compiler = make_copier(tmp_path / "bin", prebuilt)
    build = Build(paths, str(compiler.path), notices.append)
    keys = [outcome.key for outcome in compile_all(build, SIX[:3])]
    damage(object_path(paths.cache, keys[1]))
    state = build.state(SIX[1])
    assert not state.current and "broken" in state.reason
    before = compiler.runs
    assert [o.status for o in compile_all(build, SIX[:3])] == ["reused", "built", "reused"]
    assert compiler.runs == before + 1
    assert objects(paths) == sorted(keys)
    (moved,) = paths.cache.glob("quarantine/*")
    assert moved.name.startswith(f"{keys[1]}-")
    compile_all(build, SIX[:3])
    assert len(notices) == 1 and keys[1] in notices[0]


def test_object_of_another_key_is_quarantined(paths: Paths, build: Build) -> None:
    first, second = compile_all(build, SIX[:2])
    shutil.rmtree(object_path(paths.cache, first.key))
    shutil.copytree(object_path(paths.cache, second.key), object_path(paths.cache, first.key))
    assert [o.status for o in compile_all(build, SIX[:2])] == ["built", "reused"]


def test_a_file_in_the_place_of_an_object(paths: Paths, build: Build) -> None:
    key = build.compile(config()).key
    path = object_path(paths.cache, key)
    shutil.rmtree(path)
    path.write_text("not a directory")
    assert build.compile(config()).status == "built"
    assert build.state(config()).current


def test_broken_index_entry_is_written_again(paths: Paths, build: Build) -> None:
    build.compile(config())
    build.store.cache.index_path("generic", config().name).write_text('{"key": ')
    assert not build.state(config()).current
    assert build.compile(config()).status == "reused"
    assert build.state(config()).current


def test_broken_selftest_record_means_untested(paths: Paths, build: Build) -> None:
    key = build.compile(config()).key
    (object_path(paths.cache, key) / SELFTEST).write_text("{")
    state = build.state(config())
    assert state.current and state.object is not None and state.object.outcome == "untested"


@pytest.mark.parametrize("call", ["fsync", "rename", "replace", "mkdir", "write"])
def test_full_disk_leaves_nothing(paths: Paths, build: Build, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    build.codegen.generate(config())
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*args: object, **kwargs: object) -> None:
        raise full

    with monkeypatch.context() as patch:
        if call == "fsync":
            patch.setattr(os, "fsync", fail)
        elif call == "write":
            patch.setattr(Path, "write_bytes", fail)
        else:
            patch.setattr(Path, call, fail)
        failed = build.compile(config())
    assert not failed.ok and failed.message.startswith("failed to ")
    assert failed.message.endswith("No space left on device")
    assert not objects(paths) and not litter(paths)
    assert build.compile(config()).status == "built"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 200 kB, where this user may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=200k,mode=755", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_really_full_disk(paths: Paths, small_disk: Path) -> None:
    build = Build(Paths.of(paths.root, cache=small_disk / "cache"))
    compile_all(build, SIX[:2])
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    failed = build.compile(SIX[2])
    assert not failed.ok and "No space left on device" in failed.message
    assert len(objects(build.paths)) == 2 and not litter(build.paths)
    filler.unlink()
    assert build.compile(SIX[2]).status == "built"


def test_read_only_cache(paths: Paths, small_disk: Path) -> None:
    build = Build(Paths.of(paths.root, cache=small_disk / "cache"))
    keys = [outcome.key for outcome in compile_all(build, SIX[:2])]
    truncate(object_path(build.paths.cache, keys[1]))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert build.state(SIX[0]).current
    assert build.compile(SIX[0]).status == "reused"
    for one in SIX[1:3]:  # a broken one, and one that is not there
        failed = build.compile(one)
        assert not failed.ok and failed.message.startswith("failed to ") and "Read-only" in failed.message
    assert not verify(build.store, repair=False).ok
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert [o.status for o in compile_all(build, SIX[:3])] == ["reused", "built", "built"]


def test_cache_removed_while_the_compiler_runs(tmp_path: Path, paths: Paths) -> None:
    mark = tmp_path / "removed"
    once = f"[ -e '{mark}' ] || {{ : > '{mark}'; rm -rf '{paths.cache}'; }}"
    build = Build(paths, str(make_compiler(tmp_path / "bin", after=once).path))
    failed = build.compile(config())
    assert not failed.ok and failed.message
    assert build.compile(config()).status == "built"
    assert build.state(config()).current


def test_cache_removed_again_and_again(tmp_path: Path, paths: Paths, prebuilt: Path) -> None:
    build = Build(paths, str(make_copier(tmp_path / "bin", prebuilt).path))
    done = threading.Event()

    def remove() -> None:
        while not done.is_set():
            shutil.rmtree(paths.cache, ignore_errors=True)
            time.sleep(0.003)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        outcomes = [build.compile(one) for one in SIX * 3]
    finally:
        done.set()
        remover.join()
    assert all(outcome.ok or "failed to" in outcome.message or outcome.message for outcome in outcomes)
    compile_all(build)
    assert all(build.state(one).current for one in SIX)


def test_input_edited_while_its_compiler_runs(tmp_path: Path, paths: Paths, notices: list[str]) -> None:
    header, mark = paths.native / "tiny" / "alpha.h", tmp_path / "edited"
    once = f"[ -e '{mark}' ] || {{ : > '{mark}'; echo 'int edited;' >> '{header}'; }}"
    compiler = make_compiler(tmp_path / "bin", after=once)
    build = Build(paths, str(compiler.path), notices.append)
    build.codegen.generate(config())
    stale = build.state(config()).key
    outcome = build.compile(config())
    assert outcome.status == "built" and outcome.key != stale
    assert objects(paths) == [outcome.key] and compiler.runs == 2
    assert Build(paths, str(compiler.path)).state(config()).current
    assert any("edited while it was compiled" in text for text in notices)


def test_input_edited_all_the_time(tmp_path: Path, paths: Paths) -> None:
    header = paths.native / "tiny" / "alpha.h"
    compiler = make_compiler(tmp_path / "bin", after=f"echo 'int more'$$';' >> '{header}'")
    failed = Build(paths, str(compiler.path)).compile(config())
    assert not failed.ok and f"changed {ATTEMPTS} times" in failed.message
    assert not objects(paths) and not litter(paths) and compiler.runs == ATTEMPTS


def test_compiler_replaced_while_it_runs(tmp_path: Path, paths: Paths) -> None:
    # It becomes one that defines something on its own.
    compiler = make_compiler(tmp_path / "bin", after='cp "$0" "$0.old"; mv "$0.new" "$0" 2>/dev/null')
    other = make_compiler(tmp_path / "bin", name="g++.new", real="g++ -DMORE")
    outcome = Build(paths, str(compiler.path)).compile(config())
    assert outcome.status == "built" and objects(paths) == [outcome.key] and other.runs == 1
    assert "-DMORE" not in str(outcome.commands)
    options = Cache(paths.cache).read(outcome.key).manifest["inputs"]["toolchain"]["options"]
    assert "MORE" in options


def test_planted_library_in_a_world_writable_cache_is_refused(paths: Paths, build: Build) -> None:
    key = build.compile(config()).key
    cache = Cache(paths.cache)
    cache.check_trust(cache.read(key))
    object_path(paths.cache, key).chmod(0o777)
    with pytest.raises(Refused, match="written by everybody"):
        cache.check_trust(cache.read(key))


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_cache_is_its_owners_alone_whatever_the_umask(paths: Paths, build: Build, umask: int) -> None:
    before = os.umask(umask)
    try:
        key = build.compile(config()).key
    finally:
        os.umask(before)
    for place in [paths.cache, *paths.cache.rglob("*")]:
        assert not stat.S_IMODE(place.stat().st_mode) & 0o022, place
    cache = Cache(paths.cache)
    cache.check_trust(cache.read(key))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as two users")
def test_two_users_share_a_group_directory(tmp_path: Path, paths: Paths, prebuilt: Path) -> None:
    group, users = 54321, (54322, 54323)
    compiler = make_copier(tmp_path / "bin", Path(shutil.copy(prebuilt, tmp_path)))
    for place in [*tmp_path.rglob("*"), tmp_path, *tmp_path.parents[:-2]]:
        place.chmod(place.stat().st_mode | (0o777 if tmp_path in place.parents else 0o011))
    paths.cache.mkdir()
    os.chown(paths.cache, users[0], group)
    paths.cache.chmod(0o2775)

    def build(configs: tuple[KernelConfig, ...]) -> str:
        os.umask(0o077)
        notices: list[str] = []
        private = Paths.of(paths.root, cache=paths.cache, build=paths.root / f"build-{os.geteuid()}")
        outcomes = compile_all(Build(private, str(compiler.path), notices.append), configs)
        return " ".join([*(outcome.status for outcome in outcomes), *notices])

    def trusted() -> str:
        cache = Cache(paths.cache)
        for key in cache.keys():  # noqa: SIM118
            cache.check_trust(cache.read(key))
        return str(len(cache.keys()))

    paths.root.chmod(0o1777)
    assert _as_user(users[0], group, lambda: build(SIX[:3])) == "built built built"
    assert _as_user(users[1], group, lambda: build(SIX)) == "reused reused reused built built built"
    assert [_as_user(user, group, trusted) for user in users] == ["6", "6"]
    # Each may replace what the other put there.
    theirs = Build(paths, str(compiler.path)).compile(SIX[5]).key
    truncate(object_path(paths.cache, theirs))
    assert "built quarantined" in _as_user(users[0], group, lambda: build(SIX))


def _as_user(user: int, group: int, act: Callable[[], str]) -> str:
    """Return what `act` returns in a process of another user; forked, because that user may not read our Python."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            said = act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode()[:60000])
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


def _wait_for(condition: Callable[[], object], seconds: float = 10) -> object:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come true in time")


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
