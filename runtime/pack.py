"""A part of a cache as one file, to be carried to another machine, and back into a directory.

FILE.tar or FILE.tar.gz:

    objects/<key[:2]>/<key>/kernel.so, manifest.json, selftest.json     as in the cache; the record where there is one
    index/<arch>/[<provider>/]<name>.json
    gemmill-pack.json   {"schema": 1, "members": {name: {"size", "sha256"}}} of all that came before

The last member tells that the file is whole. The bytes follow from the objects alone: members are sorted, and have no
times and no owners. (Compressed ones follow from zlib's version, too.)
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gemmill.cache import (
    INDEX_SCHEMA,
    LIBRARY,
    MANIFEST,
    NATIVE,
    SELFTEST,
    Cache,
    CacheObject,
    IndexEntry,
    canonical_json,
    object_path,
    sha256_bytes,
)
from gemmill.errors import ArgumentError, CorruptObject
from gemmill.files import make_directory, sync_directory
from gemmill.tree import translating

PACK_SCHEMA = 1
CONTENTS = "gemmill-pack.json"
SUFFIXES = (".tar", ".tar.gz", ".tgz")

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_MEMBER = re.compile(
    rf"index/(?P<arch>{_WORD})/((?P<provider>{_WORD})/)?(?P<name>{_WORD})\.json"
    rf"|objects/(?P<part>[0-9a-f]{{2}})/(?P<key>(?P=part)[0-9a-f]{{62}})/({LIBRARY}|{MANIFEST}|{SELFTEST})"
)
_CHUNK = 1 << 20
_LEVEL = 6


@dataclass(frozen=True)
class Packed:
    """How much is in a pack: kernels, bytes of their files, bytes of the pack."""

    kernels: int
    content: int
    size: int


Told = Callable[[str, int], None]


def pack(path: Path, chosen: Sequence[tuple[Cache, IndexEntry]], told: Told = lambda label, size: None) -> Packed:
    """Write kernels of caches to one file, verified on the way; the file appears when it is whole.

    Parameters
    ----------
    path : Path
        Ends in .tar, .tar.gz or .tgz.
    chosen : sequence of (Cache, IndexEntry)
    told : callable
        Gets each kernel's ARCH/NAME and the bytes of its files.

    Raises
    ------
    ArgumentError
        If the path has another ending, or nothing was chosen.
    CorruptObject, Refused
        If an object does not verify, or somebody else could have written it.
    StoreError
        If the file could not be written.
    """
    if not path.name.endswith(SUFFIXES):
        raise ArgumentError(f"{path}: a pack's name ends in {', '.join(SUFFIXES)}")
    if not chosen:
        raise ArgumentError(f"{path} would be empty: no kernel was chosen")
    path = path.absolute()
    with translating("write", path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}-", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                content = _write(file, path.suffix != ".tar", chosen, told)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
        return Packed(len(chosen), content, path.stat().st_size)


def _write(file: IO[bytes], compressed: bool, chosen: Sequence[tuple[Cache, IndexEntry]], told: Told) -> int:
    members: dict[str, dict[str, Any]] = {}
    stream: Any = gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) if compressed else file
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:

        def add(name: str, data: bytes, mode: int = 0o644) -> None:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
            members[name] = {"size": len(data), "sha256": sha256_bytes(data)}

        for cache, entry in sorted(chosen, key=lambda pair: _index_name(pair[1])):
            before = sum(member["size"] for member in members.values())
            for name, data, mode in _files(cache, entry):
                add(name, data, mode)
            told(f"{entry.arch}/{entry.name}", sum(member["size"] for member in members.values()) - before)
        content: int = sum(member["size"] for member in members.values())
        add(CONTENTS, canonical_json({"schema": PACK_SCHEMA, "members": dict(members)}).encode())
    if compressed:
        stream.close()
    return content


def _files(cache: Cache, entry: IndexEntry) -> Iterator[tuple[str, bytes, int]]:
    """Yield name, content and mode of the files that make up a kernel: what was verified, not what lies there now."""
    obj = cache.read(entry.key)
    cache.check_trust(obj)
    if (obj.arch, obj.name, obj.provider) != (entry.arch, entry.name, entry.provider):
        raise CorruptObject(f"{obj.path} is {obj.arch}/{obj.name}; the index calls it {entry.arch}/{entry.name}")
    library = obj.library.read_bytes()
    if sha256_bytes(library) != obj.manifest["files"][LIBRARY]["sha256"]:
        raise CorruptObject(f"{obj.library} changed while it was packed")
    folder = object_path(Path(), entry.key).as_posix()
    yield f"{folder}/{LIBRARY}", library, 0o755
    yield f"{folder}/{MANIFEST}", _json(obj.manifest), 0o644
    if obj.selftest is not None:
        yield f"{folder}/{SELFTEST}", _json(obj.selftest), 0o644
    fields = {"schema": INDEX_SCHEMA, "arch": entry.arch, "name": entry.name, "key": entry.key, "config": entry.config}
    if entry.provider != NATIVE:
        fields["provider"] = entry.provider
    yield _index_name(entry), _json(fields), 0o644


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _index_name(entry: IndexEntry) -> str:
    return Cache("/").index_path(entry.arch, entry.name, entry.provider).relative_to("/").as_posix()


def unpack(path: Path, folder: Path, told: Told = lambda label, size: None) -> Packed:
    """Make a cache of a packed file; it appears when every object in it has been verified.

    Parameters
    ----------
    path : Path
    folder : Path
        The new cache: absent, or an empty directory.
    told : callable
        Gets each kernel's ARCH/NAME and the bytes of its library.

    Raises
    ------
    ArgumentError
        If there is something at `folder`.
    CorruptObject
        If the file is cut, changed, or holds anything but a part of a cache.
    StoreError
        If the system failed to read or write; nothing is left behind.
    """
    folder = folder.absolute()
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise ArgumentError(
            f"{folder} exists: name a directory that does not; GEMMILL_CACHE takes several caches, one beside the other"
        )
    with translating("unpack to", folder):
        make_directory(folder.parent)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name[:40]}-", dir=folder.parent))
        try:
            members = _extract(path, staging)
            kernels = _verify(path, Cache(staging), members, told)
            for place in (staging, *staging.rglob("*/")):
                if place.is_dir():  # before Python 3.11 the pattern gives files, too
                    place.chmod(0o755)
                    sync_directory(place)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_directory(folder.parent)
    return Packed(kernels, sum(member["size"] for member in members.values()), path.stat().st_size)


def _extract(path: Path, staging: Path) -> dict[str, dict[str, Any]]:
    """Write the members of a pack below `staging` and return what its list of contents says of them."""
    found: dict[str, dict[str, Any]] = {}
    contents: bytes | None = None
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if compressed else raw
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    source = archive.extractfile(member) if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) else None
                    if source is None or contents is not None or member.name in found:
                        raise CorruptObject(f"{path}: {member.name!r} is no plain file, or one too many")
                    if member.name == CONTENTS:
                        contents = source.read()
                    elif _MEMBER.fullmatch(member.name):
                        found[member.name] = _copy(source, staging / member.name)
                    else:
                        raise CorruptObject(f"{path}: {member.name!r} has no place in a cache")
            while stream.read(_CHUNK):  # to the end, where gzip has its checksum
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorruptObject(f"{path} is not a whole pack: {error}") from None
    try:
        listed = json.loads(contents or b"")
    except ValueError:
        raise CorruptObject(f"{path} is not a whole pack: it ends without {CONTENTS}") from None
    if not isinstance(listed, dict) or listed.get("schema") != PACK_SCHEMA:
        raise CorruptObject(f"{path}: its {CONTENTS} is not of schema {PACK_SCHEMA}")
    if listed.get("members") != found:
        raise CorruptObject(f"{path}: its files are not those that its {CONTENTS} lists")
    return found


def _copy(source: IO[bytes], target: Path) -> dict[str, Any]:
    """Write a new file, durably, and return its size and hash."""
    make_directory(target.parent)
    size, digest = 0, hashlib.sha256()
    with target.open("xb") as file:
        while block := source.read(_CHUNK):
            file.write(block)
            digest.update(block)
            size += len(block)
        file.flush()
        os.fchmod(file.fileno(), 0o755 if target.name == LIBRARY else 0o644)
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def _verify(path: Path, cache: Cache, members: dict[str, Any], told: Told) -> int:
    """Read every object and every index entry of a new cache, and return how many kernels it has."""
    keys, named, kernels = set(), set(), 0
    for name in members:
        match = _MEMBER.fullmatch(name)
        assert match
        if match["key"]:
            keys.add(match["key"])
            continue
        entry = cache.entry(match["arch"], match["name"], match["provider"] or NATIVE)
        if f"{object_path(Path(), entry.key).as_posix()}/{LIBRARY}" not in members:
            raise CorruptObject(f"{path}: {name} names an object that is not in it")
        obj: CacheObject = cache.read(entry.key)
        named.add(entry.key)
        told(f"{obj.arch}/{obj.name}", obj.manifest["files"][LIBRARY]["size"])
        kernels += 1
    if keys != named:
        raise CorruptObject(f"{path}: {len(keys - named)} of its objects are in no index")
    return kernels
