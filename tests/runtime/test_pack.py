"""Packing a part of a cache and unpacking it: the same objects arrive, or nothing does."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest
from gemmill.cache import LIBRARY, Cache, object_path
from gemmill.errors import ArgumentError, CorruptObject, Refused
from gemmill.loader import load
from gemmill.pack import CONTENTS, pack, unpack
from gemmill.tree import StoreError
from generators import DAMAGES, object_directory
from support import add_fake, fake_config

CONFIGS = [fake_config(), fake_config("bf8"), fake_config("fp8i4", "ccr")]


@pytest.fixture
def keys(cache: Cache) -> list[str]:
    """Return the keys of three kernels in the cache: two passed, one is untested."""
    return [
        add_fake(cache.root, config, outcome=o) for config, o in zip(CONFIGS, ("passed", "passed", None), strict=True)
    ]


def everything(cache: Cache) -> list:
    return [(cache, entry) for entry in cache.entries(provider=None)]


@pytest.fixture(params=[".tar", ".tar.gz"])
def packed(request, cache: Cache, keys: list[str], tmp_path: Path) -> Path:
    path = tmp_path / f"kernels{request.param}"
    pack(path, everything(cache))
    return path


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def rewritten(path: Path, files: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """Return another archive with these members."""
    target = path.with_name("changed" + "".join(path.suffixes))
    with tarfile.open(target, "w:gz" if target.suffix == ".gz" else "w") as archive:
        for info, data in files:
            archive.addfile(info, io.BytesIO(data))
    return target


def info(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    return member, data


def leftovers(tmp_path: Path) -> set[str]:
    return {path.name for path in tmp_path.iterdir()} - {"cache", "xdg"}


def test_what_arrives_is_a_cache_with_the_same_kernels(cache, keys, packed, tmp_path):
    told: list[str] = []
    done = unpack(packed, tmp_path / "there", lambda label, size: told.append(label))
    there = Cache(tmp_path / "there")
    assert there.keys() == sorted(keys)
    assert [e.key for e in there.entries()] == [e.key for e in cache.entries()]
    for key in keys:
        assert there.read(key).manifest == cache.read(key).manifest
        assert there.read(key).selftest == cache.read(key).selftest
        assert there.why_untrusted(key) is None
    assert load(keys[0], there).outcome == "passed"
    assert (done.kernels, len(told)) == (3, 3)
    assert leftovers(tmp_path) == {packed.name, "there"}


def test_an_unpacked_cache_may_be_moved_and_read_only(keys, packed, tmp_path):
    unpack(packed, tmp_path / "there")
    shutil.move(tmp_path / "there", tmp_path / "elsewhere")
    for path in sorted((tmp_path / "elsewhere").rglob("*"), reverse=True):
        path.chmod(path.stat().st_mode & ~0o222)
    assert load(keys[0], tmp_path / "elsewhere").key == keys[0]


def test_bytes_follow_from_the_objects_alone(cache, keys, packed, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(cache.root, copy)
    again = tmp_path / ("again" + "".join(packed.suffixes))
    pack(again, list(reversed(everything(Cache(copy)))))
    assert again.read_bytes() == packed.read_bytes()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(packed, tmp_path, umask):
    old = os.umask(umask)
    try:
        unpack(packed, tmp_path / "there")
    finally:
        os.umask(old)
    for path in [tmp_path / "there", *(tmp_path / "there").rglob("*")]:
        executable = path.is_dir() or path.name == LIBRARY
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if executable else 0o644), path


def test_another_ending_or_nothing_is_refused(cache, keys, tmp_path):
    with pytest.raises(ArgumentError, match=r"ends in \.tar, \.tar\.gz, \.tgz"):
        pack(tmp_path / "kernels.zip", everything(cache))
    with pytest.raises(ArgumentError, match="would be empty"):
        pack(tmp_path / "kernels.tar", [])
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("name", ["flipped bit", "no library", "broken manifest"])
def test_a_broken_object_is_not_packed(cache, keys, tmp_path, name):
    DAMAGES[name][0](object_directory(cache, keys[1]))
    with pytest.raises(CorruptObject):
        pack(tmp_path / "kernels.tar", everything(cache))
    assert not leftovers(tmp_path)


def test_what_others_could_have_written_is_not_packed(cache, keys, tmp_path):
    (object_directory(cache, keys[0]) / LIBRARY).chmod(0o777)
    with pytest.raises(Refused, match="can be written by everybody"):
        pack(tmp_path / "kernels.tar", everything(cache))


def test_a_full_disk_leaves_no_pack(cache, keys, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"failed to write .*kernels\.tar: No space left on device"):
        pack(tmp_path / "kernels.tar", everything(cache))
    assert not leftovers(tmp_path)


def test_a_full_disk_leaves_no_cache(packed, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"failed to unpack to .*there: No space left on device"):
        unpack(packed, tmp_path / "there")
    assert leftovers(tmp_path) == {packed.name}


def test_an_interruption_leaves_no_cache(packed, tmp_path):
    def stop(label, size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(packed, tmp_path / "there", stop)
    assert leftovers(tmp_path) == {packed.name}


def test_nothing_that_exists_is_touched(cache, keys, packed, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for there in (cache.root, tmp_path / "file", tmp_path / "link"):
        with pytest.raises(ArgumentError, match="exists: name a directory that does not"):
            unpack(packed, there)
    (tmp_path / "empty").mkdir()
    unpack(packed, tmp_path / "empty")
    assert Cache(tmp_path / "empty").keys() == sorted(keys)


def test_a_cut_file_is_refused_wherever_it_is_cut(packed, tmp_path):
    whole = packed.read_bytes()
    steps = range(0, len(whole), max(512, len(whole) // 40 // 512 * 512))
    for end in (*steps, len(whole) - 1, len(whole) - 9):
        if packed.suffix == ".tar" and end >= len(whole.rstrip(b"\0")):
            continue  # only the zeros after the last member are missing
        (tmp_path / "cut").write_bytes(whole[:end])
        with pytest.raises(CorruptObject, match="not a whole pack"):
            unpack(tmp_path / "cut", tmp_path / "there")
    assert leftovers(tmp_path) == {packed.name, "cut"}


def test_a_flipped_bit_is_found_wherever_it_is(packed, tmp_path):
    whole = packed.read_bytes()
    good = members(packed)
    for at in range(100, len(whole), max(1, len(whole) // 60)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        (tmp_path / "flipped").write_bytes(flipped)
        try:
            unpack(tmp_path / "flipped", tmp_path / "there")
        except CorruptObject:
            pass
        else:  # padding, or a header field that nothing is made of
            assert members(tmp_path / "flipped") == good
            shutil.rmtree(tmp_path / "there")
    assert leftovers(tmp_path) == {packed.name, "flipped"}


@pytest.mark.parametrize(
    "member",
    [
        info("../outside", b"x"),
        info("/tmp/outside", b"x"),
        info("objects/../../outside", b"x"),
        info("index/../x/y.json", b"{}"),
        info("index/generic/.hidden.json", b"{}"),
        info("objects/00/" + "1" * 64 + "/kernel.so", b"x"),  # under another key's digits
        info("objects/11/" + "1" * 64 + "/extra", b"x"),
        info("kernel.so", b"x"),
        info("locks/x.lock", b""),
        info("index/generic", type=tarfile.DIRTYPE),
        info("index/generic/a.json", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        info("index/generic/a.json", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        info("index/generic/a.json", type=tarfile.CHRTYPE),
        info("index/generic/a.json", type=tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member[0].name[:24]}-{member[0].type.decode()}",
)
def test_nothing_but_a_part_of_a_cache_is_unpacked(packed, tmp_path, member):
    changed = rewritten(packed, [member, *(info(name, data) for name, data in members(packed).items())])
    with pytest.raises(CorruptObject, match=r"no place in a cache|no plain file"):
        unpack(changed, tmp_path / "there")
    assert leftovers(tmp_path) == {packed.name, changed.name}
    assert not (tmp_path.parent / "outside").exists()


def test_members_must_be_those_that_are_listed(packed, tmp_path):
    files = members(packed)
    library = next(name for name in files if name.endswith(LIBRARY))
    for change in ({library: b"x"}, {library: None}, {CONTENTS: None}, {CONTENTS: b"{}"}, {CONTENTS: b"["}):
        merged = {name: data for name, data in {**files, **change}.items() if data is not None}
        changed = rewritten(packed, [info(name, data) for name, data in merged.items()])
        with pytest.raises(CorruptObject):
            unpack(changed, tmp_path / "there")
    twice = [info(name, data) for name, data in files.items()]
    with pytest.raises(CorruptObject, match="one too many"):
        unpack(rewritten(packed, [twice[0], *twice]), tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_objects_are_verified_even_where_the_list_agrees(packed, tmp_path):
    files = members(packed)
    library = next(name for name in files if name.endswith(LIBRARY))
    listed = json.loads(files[CONTENTS])
    index = next(name for name in files if name.startswith("index/"))
    import hashlib

    forged = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    listed["members"][library] = forged
    changed = {**files, library: b"x", CONTENTS: json.dumps(listed).encode()}
    with pytest.raises(CorruptObject, match="the manifest says"):
        unpack(rewritten(packed, [info(name, data) for name, data in changed.items()]), tmp_path / "there")
    listed = json.loads(files[CONTENTS])
    del listed["members"][index]
    changed = {name: data for name, data in files.items() if name != index} | {CONTENTS: json.dumps(listed).encode()}
    with pytest.raises(CorruptObject, match="1 of its objects are in no index"):
        unpack(rewritten(packed, [info(name, data) for name, data in changed.items()]), tmp_path / "there")


@pytest.mark.parametrize("content", [b"", b"text", gzip.compress(b"text"), b"\x1f\x8b", b"\0" * 10240])
def test_other_files_are_no_packs(tmp_path, content):
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(CorruptObject, match="not a whole pack"):
        unpack(tmp_path / "x.tar", tmp_path / "there")
    with pytest.raises(StoreError, match="No such file"):
        unpack(tmp_path / "absent.tar", tmp_path / "there")


def test_kernels_of_a_provider_keep_their_index(cache, tmp_path):
    key = add_fake(cache.root, index=False)
    manifest = object_path(cache.root, key) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "provider": "ck_tile"}))
    config = json.loads(manifest.read_text())["config"]
    path = cache.index_path("generic", fake_config().name, "ck_tile")
    path.parent.mkdir(parents=True)
    fields = {"schema": 1, "arch": "generic", "name": fake_config().name, "key": key, "provider": "ck_tile"}
    path.write_text(json.dumps({**fields, "config": config}))
    pack(tmp_path / "x.tar", everything(cache))
    unpack(tmp_path / "x.tar", tmp_path / "there")
    assert [entry.key for entry in Cache(tmp_path / "there").entries(provider="ck_tile")] == [key]
