"""Names: byte-exact, and format and parse invert each other."""

from __future__ import annotations

import pytest
from gemmill.errors import ArgumentError
from hypothesis import given
from hypothesis import strategies as st
from strategies import configs, neighbours

from kernels.config import KernelConfig
from kernels.name import format_name, parse_name

KNOWN = [
    "gemm_aquant_fp8_rcr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x32_qg1x1x128",
    "gemm_aquant_bf8_rcr_compv3_cshuffle_intrawave_16x64x256_1x4x1_16x16x64_qg1x1x128_preshufflequant",
    "gemm_aquant_fp8_rcr_compv3_cshuffle_intrawave_128x128x128_1x4x1_16x16x32_qg1x1x128_preshufflequant",
]
KNOWN_GFX950 = ["gemm_aquant_bf8i4_ccr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x128_qg1x1x128"]


@pytest.mark.parametrize(("arch", "name"), [*(("gfx942", n) for n in KNOWN), *(("gfx950", n) for n in KNOWN_GFX950)])
def test_known_names(arch: str, name: str) -> None:
    assert parse_name(arch, name).name == name


@given(configs())
def test_parse_inverts_format(config: KernelConfig) -> None:
    assert parse_name(config.arch, format_name(config)) == config


@given(configs())
def test_a_change_of_any_field_changes_the_id(config: KernelConfig) -> None:
    assert all(other.id != config.id for other in neighbours(config))


@given(configs(), configs())
def test_ids_are_equal_only_for_equal_configs(one: KernelConfig, other: KernelConfig) -> None:
    assert (one.id == other.id) == (one == other)


@given(configs(), st.data())
def test_a_mutilated_name_is_refused_or_means_what_it_says(config: KernelConfig, data: st.DataObject) -> None:
    name = config.name
    at = data.draw(st.integers(0, len(name) - 1))
    changed = name[:at] + data.draw(st.sampled_from(["", "_", "0", "x", "c", "٣", " "])) + name[at + 1 :]
    try:
        parsed = parse_name(config.arch, changed)
    except ArgumentError:
        return
    assert parsed.name == changed


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gemm_aquant",
        KNOWN[0] + "_",
        KNOWN[0] + "\n",
        KNOWN[0].replace("16x64", "016x64"),
        KNOWN[0] + "_outf16",
        KNOWN[0].replace("interwave", "intrawave"),
        KNOWN[0].replace("rcr", "rcc"),
        KNOWN[0].replace("fp8", "fp9"),
        KNOWN[0] + "_preshufflequant",
    ],
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ArgumentError):
        parse_name("gfx942", name)
