"""The cache, read side: the grammar on disk, and how an object is found and verified.

    objects/<key[:2]>/<key>/kernel.so       one shared library, one kernel
                            manifest.json   what it is, how it was made, its size and hash
                            selftest.json   what its selftest said (absent until one ran)
    index/<arch>/<name>.json                {"schema", "arch", "name", "key", "config"}: the current key of a kernel
    index/<arch>/<provider>/<name>.json     the same, with "provider", of a kernel that is not gemmill's own
    locks/<key>.lock                        held while one process builds a key or records its selftest; never unlinked
    quarantine/<key>-<time>-<pid>/          objects that failed verification, for a person to look at
    tmp/                                    objects on their way in; the publisher renames them

`key` is the sha256, in hex, of the canonical JSON of the key's inputs (`canonical_json`), and that JSON stands in
the manifest, so an object says itself why its key is what it is.

A provider is whose code a kernel is: `native` is gemmill's own, `ck_tile` an instance of AMD's Composable Kernel. Names
are the same for all, so each has an index of its own, and none answers for another: who wants a provider's kernel
asks for it by that provider, or by key.

manifest.json:

    schema      MANIFEST_SCHEMA
    key         the directory's own name
    inputs      the key's inputs; sha256(canonical_json(inputs)) == key
    arch, name  what the index calls it
    provider    whose code it is; absent means `native`
    notes       what a user must know of it, in sentences; absent means nothing
    config      the fields of the kernel's config and nothing else; triples are lists; the same as in inputs
    target      {"machine": ..., "system": ...} as platform.machine() and platform.system() say
    files       {"kernel.so": {"size": bytes, "sha256": hex}}
    build       seconds, commands, compiler, resources (registers, shared memory): facts that do not enter the key
    source      the rendered source, so that two keys can be compared as text

Reading takes no lock and writes nothing, so it works from a read-only or a copied directory. Whatever fails to
verify is an error to the caller, which may treat it as a miss; only the build side moves files to quarantine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from gemmill.errors import CorruptObject, KernelNotFound, Refused
from gemmill.trust import why_untrusted

INDEX_SCHEMA = 1
MANIFEST_SCHEMA = 1
SELFTEST_SCHEMA = 2  # 1: kernels for GPUs were not called with device pointers
NATIVE = "native"
_ENTRY = ".json"
LIBRARY = "kernel.so"
MANIFEST = "manifest.json"
SELFTEST = "selftest.json"

_KEY = re.compile(r"[0-9a-f]{64}")


def canonical_json(value: Any) -> str:
    """Return the one JSON text of `value`: sorted keys, no spaces, ASCII; NaN is refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_text(text: str) -> str:
    """Return the sha256 of a text's UTF-8 bytes, in hex."""
    return sha256_bytes(text.encode())


def sha256_bytes(data: bytes) -> str:
    """Return the sha256 of bytes, in hex."""
    import hashlib  # 3 ms that who only imports the package need not pay

    return hashlib.sha256(data).hexdigest()


def is_key(text: str) -> bool:
    """Tell whether `text` is a whole cache key."""
    return _KEY.fullmatch(text) is not None


@dataclass(frozen=True)
class IndexEntry:
    """One line of the index: the key that a kernel has now."""

    arch: str
    name: str
    key: str
    config: dict[str, Any]
    provider: str = NATIVE


@dataclass(frozen=True)
class CacheObject:
    """One object whose files were read and verified.

    Attributes
    ----------
    root : Path
        The cache that holds it.
    key : str
    manifest : dict
        As in the module's text.
    selftest : dict or None
        What the selftest recorded; None when none ran, or the record is not about this library or is of older checks.
    """

    root: Path
    key: str
    manifest: dict[str, Any]
    selftest: dict[str, Any] | None

    @property
    def path(self) -> Path:
        """The object's directory."""
        return object_path(self.root, self.key)

    @property
    def library(self) -> Path:
        """The kernel's shared library."""
        return self.path / LIBRARY

    @property
    def arch(self) -> str:
        return str(self.manifest["arch"])

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def provider(self) -> str:
        return str(self.manifest.get("provider", NATIVE))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user must know of this kernel."""
        return tuple(map(str, self.manifest.get("notes", ())))

    @cached_property
    def outcome(self) -> str:
        """``passed``, ``failed``, ``untested``, or what else a selftest recorded (``simulated``)."""
        return str(self.selftest["outcome"]) if self.selftest else "untested"


def object_path(root: Path, key: str) -> Path:
    """Return the directory of an object."""
    return root / "objects" / key[:2] / key


class Cache:
    """A cache directory, for reading.

    Parameters
    ----------
    root : path-like
        The directory; it need not exist, an absent cache is an empty one.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"

    def index_path(self, arch: str, name: str, provider: str = NATIVE) -> Path:
        """Return where the index keeps a kernel's current key."""
        folder = self.root / "index" / arch
        return (folder if provider == NATIVE else folder / provider) / f"{name}{_ENTRY}"

    def entries(
        self, arch: str | None = None, pattern: str = "*", provider: str | None = NATIVE
    ) -> Iterator[IndexEntry]:
        """Yield readable index entries whose names match a glob, by arch, provider and name; broken ones are left out.

        A `provider` of None means all of them.
        """
        for folder in self.archs() if arch is None else [arch]:
            for one in self.providers(folder) if provider is None else [provider]:
                for name in self.names(folder, one):
                    if fnmatchcase(name, pattern):
                        try:
                            yield self.entry(folder, name, one)
                        except (CorruptObject, KernelNotFound):
                            continue

    def archs(self) -> list[str]:
        """Return the archs that the index has kernels for, sorted."""
        return _names(self.root / "index")

    def providers(self, arch: str) -> list[str]:
        """Return the providers that the index has kernels of, the native one first."""
        return [NATIVE, *(name for name in _names(self.root / "index" / arch) if not name.endswith(_ENTRY))]

    def names(self, arch: str, provider: str = NATIVE) -> list[str]:
        """Return a provider's names in the index of an arch, sorted, whether or not their entries are readable."""
        folder = self.index_path(arch, "", provider).parent
        return [file.removesuffix(_ENTRY) for file in _names(folder) if file.endswith(_ENTRY)]

    def entry(self, arch: str, name: str, provider: str = NATIVE) -> IndexEntry:
        """Return the index entry of a provider's kernel.

        Raises
        ------
        KernelNotFound
            If the index does not name it.
        CorruptObject
            If its entry is not what the grammar says.
        """
        path = self.index_path(arch, name, provider)
        data = _read_json(path)
        if data is None:
            of_provider = "" if provider == NATIVE else f" of provider {provider}"
            raise KernelNotFound(f"{self.root} has no kernel {arch}/{name}{of_provider}")
        if (
            data.get("schema") != INDEX_SCHEMA
            or data.get("arch") != arch
            or data.get("name") != name
            or data.get("provider", NATIVE) != provider
            or not isinstance(data.get("config"), dict)
            or not is_key(str(data.get("key")))
        ):
            raise CorruptObject(f"{path} is not an index entry of schema {INDEX_SCHEMA} for {arch}/{name}")
        return IndexEntry(arch, name, data["key"], data["config"], provider)

    def keys(self) -> list[str]:
        """Return the keys of all objects, indexed or not, sorted."""
        objects = self.root / "objects"
        return [key for part in _names(objects) for key in _names(objects / part) if is_key(key) and key[:2] == part]

    def find_key(self, prefix: str) -> str:
        """Return the only key that starts with `prefix` (at least 6 hex digits)."""
        if not re.fullmatch("[0-9a-f]{6,64}", prefix):
            raise KernelNotFound(f"not a key: {prefix!r}; a key is 64 hex digits, and 6 or more of them name it")
        matches = [key for key in self.keys() if key.startswith(prefix)]
        if len(matches) != 1:
            raise KernelNotFound(f"{self.root} has {len(matches)} objects whose key starts with {prefix}")
        return matches[0]

    def read(self, key: str) -> CacheObject:
        """Return a verified object: manifest well formed, inputs hash to the key, library has its size and hash.

        Raises
        ------
        KernelNotFound
            If there is no such object.
        CorruptObject
            If it does not verify; the text says which file and how.
        """
        path = object_path(self.root, key)
        manifest = _read_json(path / MANIFEST)
        if manifest is None:
            if path.is_dir():
                raise CorruptObject(f"{path} has no {MANIFEST}")
            raise KernelNotFound(f"{self.root} has no object {key}")
        _check_manifest(path, key, manifest)
        recorded = manifest["files"][LIBRARY]
        found = describe_file(path / LIBRARY)
        if found != recorded:
            came = f"{found['size']} bytes, sha256 {found['sha256']}" if found else "no file"
            said = f"{recorded['size']} bytes, sha256 {recorded['sha256']}"
            raise CorruptObject(f"{path / LIBRARY}: the manifest says {said}; found {came}")
        return CacheObject(self.root, key, manifest, _read_selftest(path, key, recorded["sha256"]))

    def why_untrusted(self, key: str) -> str | None:
        """Say why an object's files must not be believed, whatever they hold; None where they may.

        A file that is not there is left to `read`.
        """
        for name in (LIBRARY, MANIFEST, SELFTEST):
            try:
                reason = why_untrusted(self.root, object_path(self.root, key) / name)
            except FileNotFoundError:
                continue
            if reason:
                return reason
        return None

    def check_trust(self, obj: CacheObject) -> None:
        """Raise Refused unless everything on the way to the object's library is in trusted hands."""
        reason = self.why_untrusted(obj.key)
        if reason:
            raise Refused(f"{obj.arch}/{obj.name} not loaded: {reason}")


def describe_file(path: Path) -> dict[str, Any] | None:
    """Return {"size", "sha256"} of a file, as manifests record it; None where there is none."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    return {"size": len(content), "sha256": sha256_bytes(content)}


def _names(folder: Path) -> list[str]:
    """Return what a directory holds, sorted; nothing where it can't be listed, or has just been removed."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, None where there is no file."""
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptObject(f"{path} is not readable JSON: {error}") from None
    if not isinstance(data, dict):
        raise CorruptObject(f"{path} holds a JSON {type(data).__name__}, not an object")
    return data


def _check_manifest(path: Path, key: str, manifest: dict[str, Any]) -> None:
    if manifest.get("schema") != MANIFEST_SCHEMA:
        raise CorruptObject(
            f"{path / MANIFEST} has schema {manifest.get('schema')!r}; this gemmill reads {MANIFEST_SCHEMA}"
        )
    if manifest.get("key") != key:
        raise CorruptObject(f"{path / MANIFEST} is about key {manifest.get('key')!r}")
    for field, kind in (("inputs", dict), ("config", dict), ("target", dict), ("arch", str), ("name", str)):
        if not isinstance(manifest.get(field), kind):
            raise CorruptObject(f"{path / MANIFEST}: {field!r} is missing or not a {kind.__name__}")
    if sha256_text(canonical_json(manifest["inputs"])) != key:
        raise CorruptObject(f"{path / MANIFEST}: its inputs do not hash to its key")
    # What a caller goes by is what was hashed.
    if manifest["config"] != manifest["inputs"].get("config"):
        raise CorruptObject(f"{path / MANIFEST}: its config is not the one of its inputs")
    if manifest["arch"] != manifest["config"].get("arch"):
        raise CorruptObject(f"{path / MANIFEST}: its arch is not the one of its config")
    recorded = manifest.get("files", {}).get(LIBRARY) if isinstance(manifest.get("files"), dict) else None
    if not isinstance(recorded, dict) or set(recorded) != {"size", "sha256"}:
        raise CorruptObject(f"{path / MANIFEST} does not say size and sha256 of {LIBRARY}")


def _read_selftest(path: Path, key: str, library_sha256: str) -> dict[str, Any] | None:
    # A broken or foreign record proves nothing: the object is then untested, not corrupt.
    try:
        record = _read_json(path / SELFTEST)
    except CorruptObject:
        return None
    if record is None or record.get("key") != key or record.get("library_sha256") != library_sha256:
        return None
    if not isinstance(record.get("outcome"), str):
        return None
    # What passed other checks is untested by these; what failed them is not to be loaded all the same.
    return record if record.get("schema") == SELFTEST_SCHEMA or record["outcome"] == "failed" else None
