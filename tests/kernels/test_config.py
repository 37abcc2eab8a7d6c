"""Configs: what is refused, and why."""

from __future__ import annotations

import dataclasses

import pytest
from factory import config
from gemmill.arch import ARCHS
from gemmill.errors import ArgumentError

from kernels.config import FAMILIES, derive_warp_tile_k, find_family


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arch": "gfx9420"}, "unknown arch 'gfx9420': known archs are generic, "),
        ({"arch": "sm_90"}, "unknown arch 'sm_90'"),
        ({"arch": "gfx942:sramecc+", "warp_tile": (4, 8, 32)}, "write 'gfx942'"),
        ({"variant": "fp4"}, "unknown variant 'fp4': known variants are fp8, "),
        ({"layout": "rcc"}, "unknown layout 'rcc': known layouts are rcr, "),
        ({"family": "prefil"}, "unknown family 'prefil': known families are decode, "),
        ({"family": "preshufflequant", "layout": "ccr"}, "the shuffle is defined on a row-major AQ"),
        ({"out": "f64"}, "unknown out 'f64': known outputs are f16, "),
        ({"operator": "gemm"}, "unknown operator 'gemm'"),
        ({"group": (1, 1, 64)}, "only .1, 1, 128. is implemented"),
        ({"tile": (8, 8)}, "needed three positive integers"),
        ({"tile": (8, 8, 0)}, "needed three positive integers"),
        ({"tile": (8, True, 128)}, "needed three positive integers"),
        ({"tile": (8, 8, 100)}, "tile k = 100: must be a multiple of the scale group, 128"),
        ({"tile": (6, 8, 128)}, "tile m = 6: must be a multiple of warps x warp tile = 1 x 4"),
        ({"warps": (1, 1, 2)}, "k must be 1"),
        ({"warp_tile": (4, 8, 16)}, "warp tile k = 16: generic has no such instruction for decode; accepted is 1"),
        ({"arch": "gfx942", "warp_tile": (4, 8, 128)}, "gfx942 has no such instruction for decode; accepted is 32"),
    ],
)
def test_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        config(**fields)  # type: ignore[arg-type]


def test_frozen_and_printable() -> None:
    one = config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.arch = "gfx942"  # type: ignore[misc]
    assert "variant='fp8'" in repr(one) and eval(repr(one), {"KernelConfig": type(one)}) == one


@pytest.mark.parametrize(
    ("arch", "decode", "preshuffled"), [("gfx950", 128, 128), ("gfx942", 32, 64), ("gfx90a", 32, 64)]
)
def test_warp_tile_k_follows_from_the_arch(arch: str, decode: int, preshuffled: int) -> None:
    row = ARCHS[arch]
    assert derive_warp_tile_k(row, find_family("decode"), 256) == decode
    assert derive_warp_tile_k(row, find_family("preshufflequant"), 256) == preshuffled
    # One group a tile leaves no second instruction to chain.
    assert derive_warp_tile_k(row, FAMILIES["preshufflequant"], 128) == decode
