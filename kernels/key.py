"""The key of a kernel: the sha256 of everything that can change its artefact, and nothing else.

    schema      KEY_SCHEMA; raised when the same inputs would be built differently
    abi         GEMMILL_ABI_VERSION
    arch        exact target
    provider    whose code it is
    config      every field of the config, and its operands
    source      token digest of the rendered source
    headers     {path below native/: token digest} of all that it reaches
    flags       compiler and linker flags, by step
    toolchain   what the compiler is, not where it lies

Paths of directories never enter, so two checkouts share objects. `gemmill.explain` compares two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmill.cache import NATIVE, canonical_json, sha256_text

from kernels.config import KernelConfig
from kernels.describe import describe_config
from kernels.headers import Scan
from kernels.toolchain import Toolchain

KEY_SCHEMA = 1


def key_inputs(
    config: KernelConfig,
    abi: int,
    source: Scan,
    headers: Mapping[str, str],
    flags: Any,
    toolchain: Toolchain,
    provider: str = NATIVE,
) -> dict[str, Any]:
    """Return the key's inputs, as the manifest records them."""
    return {
        "schema": KEY_SCHEMA,
        "abi": abi,
        "arch": config.arch,
        "provider": provider,
        "config": describe_config(config),
        "source": source.digest,
        "headers": dict(headers),
        "flags": flags,
        "toolchain": toolchain.identity,
    }


def key_of(inputs: Mapping[str, Any]) -> str:
    """Return the key of inputs."""
    return sha256_text(canonical_json(inputs))
