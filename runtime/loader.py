"""From a name or a key to a kernel that may be called.

A library runs with the caller's rights from the moment it is opened, so everything that can be known without
opening it is checked first, and in this order:

1. trust    nobody but trusted users could have written it (gemmill.trust)
2. whole    manifest, size and hash agree; the index and the manifest mean the same kernel
3. host     this machine, system and CPU can run it (gemmill.arch), and it is of this gemmill's ABI
4. selftest it passed on record, or the caller takes it untested

Each candidate carries its refusal as data, so that an error and ``gemmill env`` can say why. A corrupt object is a
miss: it is warned about, and the next candidate is tried.
"""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemmill.arch import ARCHS, find_arch, host_archs
from gemmill.cache import NATIVE, Cache, CacheObject, IndexEntry, is_key, object_path
from gemmill.device import why_arch_not_here
from gemmill.errors import (
    ArgumentError,
    CorruptObject,
    CorruptObjectWarning,
    GemmillError,
    KernelNotFound,
    Refused,
)
from gemmill.layout import find_layout
from gemmill.library import ABI_VERSION, Library
from gemmill.search import CacheArgument, Place, SearchPath
from gemmill.variant import OUTPUTS, find_variant


@dataclass(frozen=True)
class Candidate:
    """One object that was looked at.

    Attributes
    ----------
    root : Path
        The cache that holds it.
    arch, name, key : str
        What the index, or else its manifest, calls it.
    outcome : str
        Of its selftest; ``unknown`` where the object was refused before that was read.
    refusal : str or None
        Why it is not loaded; None where it may be.
    corrupt : bool
        The refusal is that it does not verify.
    object : CacheObject or None
        What was read.
    provider : str
        Whose code it is.
    """

    root: Path
    arch: str
    name: str
    key: str
    outcome: str = "unknown"
    refusal: str | None = None
    corrupt: bool = False
    object: CacheObject | None = field(default=None, repr=False)
    provider: str = NATIVE

    def __str__(self) -> str:
        of_provider = "" if self.provider == NATIVE else f"{self.provider}, "
        return f"{self.arch}/{self.name} ({of_provider}{self.key[:12]} in {self.root}): {self.refusal or 'accepted'}"


class Kernel:
    """One kernel, opened and ready to be called.

    Attributes
    ----------
    name, arch, key : str
    provider : str
        Whose code it is (gemmill.cache).
    notes : tuple of str
        What a user must know of it.
    config : dict
        Its configuration: variant, layout, family, tile, warps, warp_tile, out, operator, group.
    path : Path
        Its shared library.
    outcome : str
        Of its selftest.
    """

    def __init__(self, obj: CacheObject) -> None:
        _check_config(obj)
        self.name = obj.name
        self.arch = obj.arch
        self.key = obj.key
        self.provider = obj.provider
        self.notes = obj.notes
        self.config: dict[str, Any] = dict(obj.manifest["config"])
        self.path = obj.library
        self.outcome = obj.outcome
        self.encoding = find_arch(obj.arch).encoding
        # The name's segment, not the family, says that AQ is stored shuffled.
        self.preshuffle = "_preshufflequant" in obj.name
        self.library = Library(obj.library, obj.arch, obj.name)
        self.library.initialize()

    def __repr__(self) -> str:
        return f"<Kernel {self.arch}/{self.name} {self.key[:12]} {self.outcome}>"

    def __call__(
        self,
        a_q: Any,
        b: Any,
        a_scale: Any,
        out: Any = None,
    ) -> Any:
        """Multiply with this kernel; see `gemmill.gemm_aquant`."""
        from gemmill.api import gemm_aquant

        return gemm_aquant(a_q, b, a_scale, out, kernel=self)


def load(
    name_or_key: str,
    cache: CacheArgument = None,
    arch: str | None = None,
    allow_untested: bool = False,
    provider: str = NATIVE,
) -> Kernel:
    """Load one kernel.

    Parameters
    ----------
    name_or_key : str
        A kernel's name, ``ARCH/NAME``, or the first 6 or more hex digits of a key.
    cache : path-like, Cache or sequence of them, optional
        Look here and nowhere else; else the search path (gemmill.search).
    arch : str, optional
        Only this arch; else the best one that this host runs.
    allow_untested : bool
        Take an object without a passed selftest. One that failed is never taken.
    provider : str
        Whose kernel of that name: ``native`` or ``ck_tile``. A key says that by itself.

    Returns
    -------
    Kernel

    Raises
    ------
    KernelNotFound
        If no cache on the path has it; the text lists where it was looked for and how to build it.
    Refused
        If it was found but must not be loaded; the text gives the reason for each candidate.
    ArgumentError
        If the arch is unknown.
    """
    if not isinstance(name_or_key, str):
        raise ArgumentError(f"name_or_key is a {type(name_or_key).__qualname__}: needed a name or a key")
    places = SearchPath(cache)
    head, slash, tail = name_or_key.partition("/")
    if slash:
        name_or_key, arch = tail, arch or head
    if not re.fullmatch("[A-Za-z0-9_.-]+", name_or_key):
        raise ArgumentError(f"{name_or_key!r} is neither a kernel's name nor a key")
    row = find_arch(arch) if arch else None
    if set(name_or_key) <= set("0123456789abcdef") and len(name_or_key) >= 6:
        found = by_key(places, name_or_key, allow_untested)
        wanted = f"key {name_or_key}"
    else:
        # Archs that this host can't run come last: they are there only to say why.
        order = [row.name] if row else _arch_order()
        found = by_pattern(places, order, name_or_key, allow_untested, provider=provider)
        wanted = f"{order[0]}/{name_or_key}"
    kernel, refused = first_usable(c for c in found if row is None or c.arch == row.name)
    if kernel is not None:
        return kernel
    if row is None and refused and refused[0].name == name_or_key:
        wanted = f"{refused[0].arch}/{name_or_key}"  # tiles, and so names, differ from arch to arch
    text = explain_miss(wanted, places, refused, provider)
    raise (Refused if any(not c.corrupt for c in refused) else KernelNotFound)(text)


def _arch_order() -> list[str]:
    best = [row.name for row in host_archs()]
    return best + [name for name in ARCHS if name not in best]


def by_key(places: Iterable[Place], prefix: str, allow_untested: bool = False) -> Iterator[Candidate]:
    """Yield what the places hold under a key, or the start of one."""
    for cache in _caches(places):
        matches = [prefix] if is_key(prefix) else [key for key in sorted(cache.keys()) if key.startswith(prefix)]
        if len(matches) > 1:
            raise ArgumentError(
                f"{cache.root} has {len(matches)} objects whose key starts with {prefix}: give more of it"
            )
        for key in matches:
            if object_path(cache.root, key).is_dir():
                yield examine(cache, key, allow_untested=allow_untested)


def by_pattern(
    places: Iterable[Place],
    archs: Iterable[str],
    pattern: str,
    allow_untested: bool = False,
    suits: Callable[[IndexEntry], bool] = lambda entry: True,
    provider: str = NATIVE,
) -> Iterator[Candidate]:
    """Yield indexed kernels whose names match a glob: arch by arch, within one place by place, then by name."""
    for arch in archs:
        for cache in _caches(places):
            for entry in cache.entries(arch, pattern, provider):
                if suits(entry):
                    yield examine(cache, entry.key, entry, allow_untested)


def _caches(places: Iterable[Place]) -> Iterator[Cache]:
    return (Cache(place.root) for place in places if place.root is not None)


def examine(
    cache: Cache,
    key: str,
    entry: IndexEntry | None = None,
    allow_untested: bool = False,
    any_outcome: bool = False,
    any_device: bool = False,
) -> Candidate:
    """Decide on one object, without opening its library.

    Parameters
    ----------
    cache : Cache
    key : str
    entry : IndexEntry, optional
        The index entry that led here; the manifest must mean the same kernel.
    allow_untested : bool
        Accept an object without a passed selftest.
    any_outcome : bool
        Accept even one that failed; only a selftest asks for that.
    any_device : bool
        Accept one whose GPU is not here; only a selftest on a simulated device asks for that.
    """
    label = (cache.root, entry.arch if entry else "?", entry.name if entry else "?", key)
    provider = entry.provider if entry else NATIVE
    try:
        reason = cache.why_untrusted(key)
        if reason:
            return Candidate(*label, provider=provider, refusal=reason)
        obj = cache.read(key)
    except KernelNotFound as error:
        # The index may name what gc removed, or a concurrent removal may have been quicker.
        return Candidate(*label, provider=provider, refusal=str(error), corrupt=True)
    except (CorruptObject, OSError) as error:
        return Candidate(*label, provider=provider, refusal=str(error), corrupt=True)
    if entry and (obj.arch, obj.name, obj.provider) != (entry.arch, entry.name, entry.provider):
        text = (
            f"the index calls it {entry.provider} {entry.arch}/{entry.name}, "
            f"its manifest {obj.provider} {obj.arch}/{obj.name}"
        )
        return Candidate(*label, provider=provider, refusal=text, corrupt=True)
    refusal = why_not_here(obj, any_device) or (None if any_outcome else _why_not_tested(obj, allow_untested))
    return Candidate(cache.root, obj.arch, obj.name, key, obj.outcome, refusal, object=obj, provider=obj.provider)


# Fields of a config, as they come from JSON.
_CONFIG: dict[str, type] = {
    **dict.fromkeys(("arch", "variant", "layout", "family", "out", "operator"), str),
    **dict.fromkeys(("tile", "warps", "warp_tile", "group"), list),
}


def _check_config(obj: CacheObject) -> None:
    """Refuse a manifest whose config is not that of its kernel, before anything is derived from it."""
    config = obj.manifest["config"]
    fits = all(isinstance(config.get(name), kind) for name, kind in _CONFIG.items())
    triples = fits and all(
        len(x) == 3 and all(type(i) is int and i > 0 for i in x) for x in config.values() if isinstance(x, list)
    )
    if not triples or config["out"] not in OUTPUTS:
        raise CorruptObject(f"{obj.path}: the manifest's config is not one of a kernel of {obj.arch}: {config}")
    find_variant(config["variant"])
    find_layout(config["layout"])


def why_not_here(obj: CacheObject, any_device: bool = False) -> str | None:
    """Say why this machine can't run an object; None where it can, or could if it had the GPU (`any_device`)."""
    target = obj.manifest["target"]
    built = (target.get("machine"), target.get("system"))
    here = (platform.machine(), platform.system())
    if built != here:
        return f"built for {built[0]} {built[1]}, this machine is {here[0]} {here[1]}"
    abi = obj.manifest["inputs"].get("abi", ABI_VERSION)
    if abi != ABI_VERSION:
        return f"built for ABI version {abi}, this gemmill takes {ABI_VERSION}"
    row = ARCHS.get(obj.arch)
    if row is None:
        return f"unknown arch {obj.arch}: this gemmill knows {', '.join(ARCHS)}"
    return None if any_device and row.backend != "cpu" else why_arch_not_here(row)


def _why_not_tested(obj: CacheObject, allow_untested: bool) -> str | None:
    if obj.outcome == "passed":
        return None
    if obj.outcome in ("untested", "simulated"):
        if allow_untested:
            return None
        return (
            f"its selftest outcome is {obj.outcome}: run `gemmill selftest {obj.key[:12]}`, or pass allow_untested=True"
        )
    reason = (obj.selftest or {}).get("reason") or "no reason on record"
    return f"its selftest {obj.outcome}: {reason}"


def first_usable(candidates: Iterable[Candidate]) -> tuple[Kernel | None, list[Candidate]]:
    """Open the first candidate that is accepted and opens; return it with those passed over before it."""
    refused: list[Candidate] = []
    for candidate in candidates:
        if candidate.refusal is None and candidate.object is not None:
            try:
                return Kernel(candidate.object), refused
            except GemmillError as error:
                corrupt = isinstance(error, CorruptObject)
                candidate = replace(candidate, refusal=str(error), corrupt=corrupt, object=None)
        if candidate.corrupt:
            warnings.warn(f"passed over {candidate}", CorruptObjectWarning, stacklevel=1)
        refused.append(candidate)
    return None, refused


def explain_miss(wanted: str, places: Iterable[Place], refused: Iterable[Candidate], provider: str = NATIVE) -> str:
    """Return the text of an error: what was wanted, where it was looked for, what was refused, what to do."""
    of_provider = "" if provider == NATIVE else f" of provider {provider}"
    lines = [f"no usable kernel for {wanted}{of_provider}", "caches searched:"]
    lines += [f"  {place}{'' if place.root is None or place.root.is_dir() else ', absent'}" for place in places]
    refused = list(refused)
    if refused:
        lines += ["refused:", *(f"  {candidate}" for candidate in refused)]
    row = ARCHS.get(wanted.partition("/")[0])
    if row is not None:
        option = "" if provider == NATIVE else f"provider={provider} "
        command = f"./mill {option}'selftest:{wanted}'"
        how = f"build it in the gemmill repository with {command}, and name its cache in GEMMILL_CACHE"
        lines.append(why_arch_not_here(row) or how)
    return "\n".join(lines)


def resolve(kernel: Kernel | str, arch: str | None, allow_untested: bool) -> Kernel:
    """Return the kernel that an API argument means: a Kernel, a name or a key."""
    if isinstance(kernel, Kernel):
        if arch is not None and find_arch(arch).name != kernel.arch:
            raise ArgumentError(f"arch {arch!r} with a kernel of arch {kernel.arch!r}: leave one of them out")
        return kernel
    if not isinstance(kernel, str):
        raise ArgumentError(f"kernel is a {type(kernel).__qualname__}: needed a gemmill.Kernel, a name or a key")
    return load(kernel, arch=arch, allow_untested=allow_untested)
