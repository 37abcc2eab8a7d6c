"""Where kernels stand, for people: the words of ``./mill list``, the manifests that ``./mill explain`` compares."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from gemmill.cache import NATIVE, Cache, canonical_json, sha256_text
from gemmill.errors import CorruptObject, KernelNotFound, UnsupportedError

from kernels.arguments import UsageError
from kernels.build import Build
from kernels.config import KernelConfig

if TYPE_CHECKING:
    from kernels.graph import Graph


def describe(build: Build, config: KernelConfig) -> tuple[str, str]:
    """Return one word for a kernel's state, and its key.

    The word is what the selftest said (``passed``, ``failed``, ``untested``) of the object that is current, else
    ``stale`` (the index has an older one), ``missing``, ``refused`` where the provider can't build it, or
    ``no backend`` where nothing here can.
    """
    try:
        if build.why_not(config):
            return "refused", ""
        build.toolchain(config.arch)
        build.codegen.generate(config)  # the key needs the source
    except UnsupportedError:
        return "no backend", ""
    state = build.state(config)
    if state.current and state.object is not None:
        return state.object.outcome, state.key
    try:
        Cache(build.paths.cache).entry(config.arch, config.name, build.provider)
    except (KernelNotFound, CorruptObject):
        return "missing", state.key
    return "stale", state.key


def remarks(build: Build, configs: list[KernelConfig]) -> list[str]:
    """Return what must be said of these kernels, each thing once: why some are refused, what to know of the others."""
    said: dict[str, None] = {}
    for config in configs:
        with contextlib.suppress(UnsupportedError):  # no backend: nothing is known of its kernels
            reason = build.why_not(config)
            said |= dict.fromkeys([f"refused: {reason}"] if reason else [f"note: {n}" for n in build.notes(config)])
    return list(said)


def find_manifest(graph: Graph, word: str) -> dict[str, Any]:
    """Return the manifest of the object whose key starts with `word`, or what a kernel's would be now."""
    if re.fullmatch("[0-9a-f]{6,64}", word):
        cache = Cache(graph.paths.cache)
        return cache.read(cache.find_key(word)).manifest
    configs = graph.selection.find([word])
    if len(configs) > 1:
        raise UsageError(
            f"{word!r} means {len(configs)} kernels; explain needs one:\n  " + "\n  ".join(c.id for c in configs)
        )
    config = configs[0]
    source = graph.build.codegen.generate(config)
    inputs = graph.build.inputs(config)
    return {
        "key": sha256_text(canonical_json(inputs)),
        "arch": config.arch,
        "name": config.name,
        "provider": graph.build.provider,
        "inputs": inputs,
        "source": source.read_text(encoding="utf-8").partition("\n")[2],  # without codegen's stamp
    }


def published_manifest(graph: Graph, manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of the object that the index names for the same kernel, None where there is none."""
    cache = Cache(graph.paths.cache)
    try:
        return cache.read(
            cache.entry(manifest["arch"], manifest["name"], manifest.get("provider", NATIVE)).key
        ).manifest
    except (KernelNotFound, CorruptObject):
        return None
