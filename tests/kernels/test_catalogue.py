"""The catalogue: the required matrix on every arch, and what a wrong file is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from gemmill.arch import ARCHS
from gemmill.errors import ArgumentError
from test_name import KNOWN, KNOWN_GFX950

from kernels.catalogue import DEFAULT, CatalogueError, load_catalogue

FOUR = ("fp8", "bf8", "fp8i4", "bf8i4")
FLOAT_SCALES = ("fp8i4f32", "bf8i4f32")


@pytest.mark.parametrize("arch", ARCHS)
def test_required_matrix(arch: str) -> None:
    configs = load_catalogue().configs(arch)
    required = {
        (variant, layout, family)
        for variant in FOUR + FLOAT_SCALES
        for family, layouts in (("decode", ("rcr", "rrr", "crr", "ccr")), ("preshufflequant", ("rcr", "rrr", "crr")))
        for layout in layouts
    }
    found = [(c.variant, c.layout, c.family) for c in configs]
    assert required <= set(found)
    assert len({c.id for c in configs}) == len(configs)
    if arch == "sm_90a":  # several tiles, and prefill
        assert {family for _, _, family in found} == {"decode", "preshufflequant", "prefill"}
    else:
        assert sorted(found) == sorted(required)
        assert len([c for c in configs if c.variant in FOUR]) == 28
        assert len([c for c in configs if c.variant in FLOAT_SCALES]) == 14
    assert all(c.arch == arch and c.out == "f16" for c in configs)


def test_known_names_are_there() -> None:
    catalogue = load_catalogue()
    gfx942 = {c.name for c in catalogue.configs("gfx942")}
    assert set(KNOWN[:2]) <= gfx942
    assert set(KNOWN_GFX950) <= {c.name for c in catalogue.configs("gfx950")}


def test_gpu_tiles() -> None:
    for arch in ("gfx90a", "gfx942", "gfx950"):
        for c in load_catalogue().configs(arch):
            assert (c.tile, c.warps, c.warp_tile[:2]) == ((16, 64, 256), (1, 4, 1), (16, 16))


def test_selection() -> None:
    catalogue = load_catalogue()
    assert len(catalogue.configs("generic", variant="fp8")) == 7
    assert len(catalogue.configs("generic", variant=["fp8", "bf8"], family="decode")) == 8
    assert [c.layout for c in catalogue.configs("generic", "fp8", "decode", "ccr")] == ["ccr"]
    assert catalogue.configs("generic", family="preshufflequant", layout="ccr") == []
    assert {c.arch for c in catalogue.configs("gfx942:sramecc+:xnack-")} == {"gfx942"}


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"variant": "fp9"}, "unknown variant 'fp9': known are fp8, "),
        ({"family": ["decode", "encode"]}, "unknown family 'encode'"),
        ({"layout": "r"}, "unknown layout 'r'"),
        ({"out": "f8"}, "unknown out 'f8'"),
    ],
)
def test_unknown_selection(selection: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load_catalogue().configs("generic", **selection)


def test_unknown_arch() -> None:
    with pytest.raises(ArgumentError, match="known archs are"):
        load_catalogue().configs("sm_90")


GOOD = """\
operator = "gemm_aquant"
variants = ["fp8", "bf8"]
[layouts]
decode = ["rcr", "ccr"]
preshufflequant = ["rcr"]
[[geometry]]
archs = ["generic", "gfx942"]
families = ["decode", "preshufflequant"]
tile = [16, 16, 256]
warps = [1, 1, 1]
warp_tile = [16, 16]
"""


def load(folder: Path, text: str) -> object:
    path = folder / "some.toml"
    path.write_text(text)
    return load_catalogue(path)


def test_several_geometries_and_outputs(tmp_path: Path) -> None:
    more = GOOD.split("[[geometry]]")[1].replace("16, 16, 256", "32, 16, 256") + 'out = ["f16", "bf16"]\n'
    path = tmp_path / "two.toml"
    path.write_text(GOOD + "[[geometry]]" + more)
    catalogue = load_catalogue(path)
    assert len(catalogue.configs("generic")) == 2 * 2 * 3
    assert len(catalogue.configs("generic", out=None)) == 3 * 2 * 3
    assert len(catalogue.configs("generic", out="bf16")) == 2 * 3
    with pytest.raises(ArgumentError, match="has no kernels for gfx950: it has some for generic, gfx942"):
        catalogue.configs("gfx950")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('operator = "gemm_aquant"', 'operator = "gemm"', "operator = 'gemm': accepted is gemm_aquant"),
        ('operator = "gemm_aquant"', "", "key 'operator' is missing"),
        ('operator = "gemm_aquant"', "operator = ", "is not TOML: Invalid value .at line 1, column"),
        ('variants = ["fp8", "bf8"]', "variants = []", r"variants = \[\]: accepted is a list of one or more of fp8"),
        ('variants = ["fp8", "bf8"]', 'variants = "fp8"', "variants = 'fp8': accepted is a list"),
        ('["fp8", "bf8"]', '["fp8", "fp16"]', r"variants\[1\] = 'fp16': accepted is fp8, "),
        ('["fp8", "bf8"]', '["fp8", "fp8"]', "variants names 'fp8' twice"),
        ('["fp8", "bf8"]', "[1]", r"variants\[0\] = 1: accepted"),
        ("variants", "varaints", r"unknown key 'varaints' \(did you mean variants\?\); accepted are operator, "),
        ("decode = ", "encode = ", r"unknown key 'layouts.encode' \(did you mean decode\?\)"),
        ('["rcr", "ccr"]', '["rcr", "rcc"]', r"layouts.decode\[1\] = 'rcc': accepted is rcr, rrr, crr, ccr"),
        ('quant = ["rcr"]', 'quant = ["ccr"]', r"layouts.preshufflequant\[0\] = 'ccr': accepted is rcr, rrr, crr$"),
        ("tile = [16, 16, 256]", "", r"key 'geometry\[0\].tile' is missing"),
        ("tile = [16, 16, 256]", "tile = [16, 16]", r"geometry\[0\].tile = \[16, 16\]: accepted is a list of 3 pos"),
        ("tile = [16, 16, 256]", "tile = [16, 16, 2.5]", "accepted is a list of 3 positive integers"),
        ("tile = [16, 16, 256]", "tile = [16, 16, -1]", "accepted is a list of 3 positive integers"),
        ("tile = [16, 16, 256]", "tile = [8, 16, 256]", r"geometry\[0\], generic, decode: tile m = 8: must be a mult"),
        ("warp_tile = [16, 16]", "warp_tile = [16, 16, 32]", "warp_tile = .16, 16, 32.: accepted is a list of 2"),
        ("warps = [1, 1, 1]", "wraps = [1, 1, 1]", r"unknown key 'geometry\[0\].wraps' \(did you mean warps\?\)"),
        ('"generic", "gfx942"', '"generic", "gfx9"', r"geometry\[0\].archs\[1\] = 'gfx9': accepted is generic, "),
        ('families = ["decode", "preshufflequant"]', 'families = ["decode"]', "no .* has generic with preshuffle"),
        ("[[geometry]]", "[geometry]", "accepted is one or more .* tables"),
        ("warp_tile = [16, 16]", 'warp_tile = [16, 16]\nout = ["f8"]', r"geometry\[0\].out\[0\] = 'f8': accepted"),
        ('families = ["decode", "preshufflequant"]', 'families = ["decode", "prefill"]', "families.1. = 'prefill'"),
    ],
)
def test_wrong_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(CatalogueError, match=message) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert str(tmp_path / "some.toml") in str(caught.value)


def test_repeated_geometry(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"geometry\[1\], generic, decode: repeats geometry\[0\]: gemm_aquant_fp8"):
        load(tmp_path, GOOD + "[[geometry]]" + GOOD.split("[[geometry]]")[1])


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"failed to read catalogue .*gone.toml: No such file"):
        load_catalogue(tmp_path / "gone.toml")


def test_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CatalogueError, match="is not TOML"):
        load_catalogue(tmp_path / "some.toml")


def test_large_tiles():
    large = load_catalogue(DEFAULT.with_name("large_tiles.toml"))
    assert large.archs == ("gfx90a", "gfx942", "gfx950")
    for arch in large.archs:
        # Tiles: one; on gfx942 two of eight warps besides; on gfx950 also one that takes more than 64 KiB of LDS.
        assert len(large.configs(arch)) == 42 * {"gfx90a": 1, "gfx942": 3, "gfx950": 4}[arch]
    # The known right name of a larger tile.
    name = "gemm_aquant_fp8_rcr_compv3_cshuffle_intrawave_128x128x128_1x4x1_16x16x32_qg1x1x128_preshufflequant"
    assert name in {config.name for config in large.configs("gfx942")}
    default = {config.id for arch in large.archs for config in load_catalogue().configs(arch)}
    assert not default & {config.id for arch in large.archs for config in large.configs(arch)}
