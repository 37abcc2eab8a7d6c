"""Every AMD kernel, simulated: shapes of all kinds, in every order of waves.

A kernel takes a part of the shapes, another part each seed; together the kernels of an arch cover all of them.
`--simulate=all` runs the full product.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from problems import check, random_problem
from simulated import GFX, ORDERS, Device, GemmArgs, Mutation, Prefetched, simulated

from kernels.catalogue import DEFAULT, load_catalogue
from kernels.config import KernelConfig

SHAPES = list(itertools.product((1, 7, 16, 17, 64), (1, 64, 80, 128), (128, 256, 384, 512, 1024, 130)))
# Beside those: K short of a chunk, odd everything, a single element.
ODD = [(1, 1, 1), (3, 5, 7), (17, 33, 77), (33, 65, 257), (16, 16, 31), (5, 130, 900), (5, 80, 400)]
PART = 6

CONFIGS = [config for arch in GFX for config in load_catalogue().configs(arch)]


def config_id(config: KernelConfig) -> str:
    return config.id.replace("gemm_aquant_", "").replace("_cshuffle", "").replace("_qg1x1x128", "")


def shapes_of(number: int, everything: bool) -> list[tuple[int, int, int]]:
    if everything:
        return SHAPES + ODD
    start = number * PART % len(SHAPES)
    return [*(SHAPES + SHAPES)[start : start + PART], ODD[number % len(ODD)]]


def multiply_all(device: Device, config: KernelConfig, shapes: list[tuple[int, int, int]]) -> None:
    for turn, shape in enumerate(shapes):
        p = random_problem(config, shape, shuffled=config.family_row.preshuffle)
        check(config, p, device.multiply(config, p, ORDERS[turn % 3]))


def run(config: KernelConfig, shapes: list[tuple[int, int, int]]) -> None:
    with simulated(config) as device:
        multiply_all(device, config, shapes)


@pytest.fixture(scope="module")
def devices(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefetched]:
    """Give the devices of the kernels whose tests were selected."""
    numbers = [item.callspec.params.get("number") for item in request.session.items if hasattr(item, "callspec")]
    wanted = [CONFIGS[number] for number in numbers if isinstance(number, int)]
    prefetched = Prefetched(wanted, tmp_path_factory.mktemp("devices"))
    yield prefetched
    prefetched.close()


@pytest.mark.parametrize("number", range(len(CONFIGS)), ids=lambda number: config_id(CONFIGS[number]))
def test_kernel(number: int, devices: Prefetched, request: pytest.FixtureRequest) -> None:
    everything = request.config.getoption("--simulate") == "all"
    with devices.device(CONFIGS[number]) as device:
        multiply_all(device, CONFIGS[number], shapes_of(number, everything))


def pick(arch: str, variant: str, layout: str, family: str = "decode") -> KernelConfig:
    (config,) = load_catalogue().configs(arch, variant=variant, layout=layout, family=family)
    return config


def with_tile(config: KernelConfig, tile: tuple[int, int, int], warps: tuple[int, int, int]) -> KernelConfig:
    # One instruction a step where the tile is one group.
    k = config.arch_row.warp_tile_k if tile[2] == 128 else config.warp_tile[2]
    return replace(config, tile=tile, warps=warps, warp_tile=(16, 16, k))


# Larger tiles: several warp tiles a wave, both arrangements of waves, one group a tile.
LARGE = [
    with_tile(pick(arch, variant, layout, "preshufflequant"), tile, warps)
    for arch, tile, warps in [
        ("gfx90a", (64, 128, 128), (1, 4, 1)),
        ("gfx90a", (32, 64, 256), (2, 2, 1)),
        ("gfx942", (128, 128, 128), (1, 4, 1)),
        ("gfx942", (64, 128, 128), (2, 2, 1)),
        ("gfx950", (128, 128, 128), (2, 2, 1)),
        ("gfx950", (32, 64, 256), (1, 4, 1)),
    ]
    for variant, layout in [("fp8", "rcr"), ("bf8i4", "rrr"), ("fp8i4f32", "crr")]
]  # fmt: skip


@pytest.mark.parametrize("config", LARGE, ids=config_id)
def test_larger_tiles(config: KernelConfig) -> None:
    run(config, [(128, 128, 256), (1, 64, 384), (130, 135, 130), (150, 300, 512)])


@pytest.mark.parametrize("arch", GFX)
def test_large_tiles_of_the_catalogue(arch: str, request: pytest.FixtureRequest) -> None:
    """A few, or all with `--simulate=all`: tiles in the inside and at every edge, one tile of K and several."""
    configs = load_catalogue(DEFAULT.with_name("large_tiles.toml")).configs(arch)
    everything = request.config.getoption("--simulate") == "all"
    for config in configs if everything else configs[::27]:
        tm, tn, tk = config.tile
        run(config, [(tm + 2, tn + 16, 3 * tk), (tm, tn, tk), (3, tn - 1, tk + 130)])


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("arch", GFX)
def test_other_outputs(arch: str, out: str) -> None:
    run(replace(pick(arch, "fp8", "rcr"), out=out), [(17, 80, 384), (3, 5, 7), (16, 64, 256)])


@pytest.mark.parametrize("layout", ["rcr", "rrr", "crr", "ccr"])
@pytest.mark.parametrize("variant", ["fp8", "fp8i4"])
def test_leading_dimensions_beyond_the_packed_ones(variant: str, layout: str) -> None:
    for pads in ((3, 5, 7), (4, 4, 16), (32, 0, 1)):
        config = pick("gfx942", variant, layout)
        with simulated(config) as device:
            for shape in ((17, 80, 384), (5, 7, 130)):
                p = random_problem(config, shape, pads=pads)
                check(config, p, device.multiply(config, p, pad=3))


def test_offsets_have_64_bits() -> None:
    """Rows of A lie more than 2^31 elements apart; the memory between them is never touched, and takes no room."""
    config = pick("gfx942", "fp8", "rcr")
    p = random_problem(config, (3, 16, 256))
    m, n, k = p.shape
    stride = 2**31 + 64
    a = np.zeros((m - 1) * stride + k, p.a.storage.dtype)
    for row in range(m):
        a[row * stride : row * stride + k] = p.a.storage[row]
    with simulated(config) as device:
        device.hip.gemmill_sim_add_memory(ctypes.c_void_p(a.ctypes.data), ctypes.c_size_t(a.nbytes))
        with device.memory(p.aq.storage) as aq, device.memory(p.b.storage) as b, device.memory(m * n * 2) as c:
            args = GemmArgs(a.ctypes.data, aq, b, c, stride, p.aq.stride, p.b.stride, n, m, n, k)
            device.launch(args, (1, 1), 256)
            got = np.frombuffer(device.read(c, m * n * 2), np.float16).reshape(m, n)
    check(config, p, got)


def test_blocks_stride_over_columns_beyond_the_grid(tmp_path: Path) -> None:
    """Block y takes tiles y, y + the largest grid, ...; here with a largest grid of 2."""
    config = pick("gfx942", "bf8", "rcr")
    small = Mutation("small grid", "hip/args.h", "kMaxGridY = 65535", "kMaxGridY = 2").apply(tmp_path)
    p = random_problem(config, (17, 300, 300))
    with simulated(config, small) as device:
        check(config, p, device.multiply(config, p, grid_y=2))


@pytest.mark.parametrize("arch", GFX)
def test_results_do_not_depend_on_the_order(arch: str) -> None:
    config = pick(arch, "fp8i4", "crr", "preshufflequant")
    p = random_problem(config, (33, 130, 900), shuffled=True)
    with simulated(config) as device:
        results = [device.multiply(config, p, order) for order in ("forward", "reverse", "1", "2", "3")]
    assert all(np.array_equal(results[0], other) for other in results[1:])
