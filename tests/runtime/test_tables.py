"""The arch, layout, variant and dtype tables, and detection of the host's features."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gemmill import arch as arch_table
from gemmill.arch import ARCHS, find_arch, host_archs, host_features, why_not_host
from gemmill.device import cpu_model
from gemmill.dtypes import decode_table, encoding_of, kind_dtype, max_finite, output_kind, variant_of
from gemmill.errors import ArgumentError
from gemmill.layout import LAYOUTS, Strides, find_layout, groups, int4_bytes, packed_strides, preshuffled_tiles
from gemmill.variant import VARIANTS, find_variant
from hypothesis import given
from hypothesis import strategies as st

# Flag lines as /proc/cpuinfo has them.
V3 = (
    "fpu sse sse2 cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
    " osxsave rdrand"
)
V4 = V3 + " avx512f avx512bw avx512cd avx512dq avx512vl"
V4_BF16 = V4 + " avx512_bf16 avx512vbmi"


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    monkeypatch.setattr(arch_table.platform, "machine", lambda: "x86_64")

    def write(flags: str, label: str = "flags") -> str:
        path = tmp_path / "cpuinfo"
        path.write_text(f"processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n{label}\t\t: {flags}\n\nprocessor\t: 1\n")
        host_features.cache_clear()
        return str(path)

    yield write
    host_features.cache_clear()


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (V4_BF16, ["x86-64-v4-bf16", "x86-64-v4", "x86-64-v3", "generic"]),
        (V4, ["x86-64-v4", "x86-64-v3", "generic"]),
        (V3, ["x86-64-v3", "generic"]),
        (V3.replace(" avx2 ", " "), ["generic"]),
        ("", ["generic"]),
    ],
)
def test_host_archs_are_those_the_cpu_has_best_first(cpuinfo, flags, names):
    assert [row.name for row in host_archs(cpuinfo(flags))] == names


@pytest.mark.parametrize("row", [row for row in ARCHS.values() if row.cpu_features], ids=lambda row: row.name)
def test_every_feature_is_needed(cpuinfo, row):
    everything = V4_BF16.split()
    assert why_not_host(row, cpuinfo(V4_BF16)) is None
    for bit in row.cpu_features:
        reason = why_not_host(row, cpuinfo(" ".join(x for x in everything if x != bit)))
        assert reason == f"{row.name} needs CPU features this host lacks: {bit}"


def test_a_feature_is_a_whole_word(cpuinfo):
    flags = V4_BF16.replace(" avx2 ", " avx2_but_not_quite ")
    assert "lacks: avx2" in why_not_host(ARCHS["x86-64-v3"], cpuinfo(flags))


def test_another_machine_is_named(cpuinfo, monkeypatch):
    monkeypatch.setattr(arch_table.platform, "machine", lambda: "aarch64")
    path = cpuinfo("fp asimd", "Features")
    assert why_not_host(ARCHS["x86-64-v3"], path) == "x86-64-v3 needs a x86_64 host, this one is aarch64"
    assert [row.name for row in host_archs(path)] == ["generic"]
    assert host_features(path) == {"fp", "asimd"}


def test_no_cpuinfo_means_no_features(tmp_path):
    assert host_features(str(tmp_path / "absent")) == frozenset()
    assert cpu_model(str(tmp_path / "absent"))


def test_cpu_model(cpuinfo):
    assert cpu_model(cpuinfo("")) == "Some CPU @ 2 GHz"


@pytest.mark.parametrize("name", ["sm_90", "gfx9420", "gfx94", "GFX942", "", "generic:x", "sm_90a:y", ":sramecc+"])
def test_unknown_archs_list_the_known(name):
    with pytest.raises(ArgumentError, match="known archs are generic, x86-64-v3"):
        find_arch(name)


def test_driver_suffixes_are_cut_on_amd_only():
    assert find_arch("gfx942:sramecc+:xnack-") is ARCHS["gfx942"]


def test_encodings_of_the_archs():
    assert {name for name, row in ARCHS.items() if row.encoding == "fnuz"} == {"gfx90a", "gfx942"}


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_packed_strides_follow_the_letters(m, n, k):
    for name, layout in LAYOUTS.items():
        assert packed_strides(layout, m, n, k) == Strides(
            a=m if name[0] == "c" else k,
            aq=m if name == "ccr" else -(-k // 128),
            b=k if name[1] == "c" else n,
            c=n,
        )


@given(st.integers(0, 10**12), st.integers(1, 8))
def test_groups_and_tiles_cover_k(k, b):
    tiles, per_tile = preshuffled_tiles(k, 128 * b)
    assert (groups(k) - 1) * 128 < k <= groups(k) * 128
    assert per_tile == b
    assert (tiles - 1) * b < groups(k) <= tiles * b


def test_int4_bytes_is_half_rounded_up():
    assert [int4_bytes(*shape) for shape in [(0, 9), (1, 1), (3, 3), (2, 4)]] == [0, 1, 5, 4]
    assert int4_bytes(2**20, 2**20) == 2**39


def test_unknown_names_list_the_known():
    with pytest.raises(ArgumentError, match="unknown layout 'rcc': known layouts are rcr, rrr, crr, ccr"):
        find_layout("rcc")
    with pytest.raises(ArgumentError, match="unknown variant 'fp9': known variants are fp8, bf8, fp8i4, bf8i4,"):
        find_variant("fp9")


@pytest.mark.parametrize("encoding", ["ocp", "fnuz"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_told_by_their_types(variant, encoding):
    row = VARIANTS[variant]
    names = ["int4" if k == "int4" else kind_dtype(k, encoding).name for k in (row.a, row.b, row.aq)]
    assert variant_of(*names) == (variant, encoding)


def test_encoding_of_types():
    assert encoding_of(np.dtype(ml_dtypes.float8_e5m2)) == "ocp"
    assert encoding_of(np.dtype(ml_dtypes.float8_e4m3fnuz)) == "fnuz"
    assert encoding_of(np.dtype(np.float32)) is None
    assert encoding_of(np.dtype(ml_dtypes.float8_e4m3)) is None


def decode(code: int, exponent_bits: int, bias: int, fnuz: bool) -> float:
    """Return the value of an fp8 code, from the definition of the formats."""
    mantissa_bits = 7 - exponent_bits
    sign = -1 if code & 128 else 1
    exponent = (code & 127) >> mantissa_bits
    mantissa = code & ((1 << mantissa_bits) - 1)
    if fnuz and code == 128:
        return float("nan")
    if not fnuz and exponent_bits == 4 and code & 127 == 127:
        return float("nan")
    if not fnuz and exponent_bits == 5 and exponent == 31:
        return float("nan") if mantissa else sign * float("inf")
    fraction = mantissa / (1 << mantissa_bits)
    return sign * ((1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias))


@pytest.mark.parametrize(
    ("name", "exponent_bits", "bias", "fnuz", "largest"),
    [
        ("float8_e4m3fn", 4, 7, False, 448),
        ("float8_e5m2", 5, 15, False, 57344),
        ("float8_e4m3fnuz", 4, 8, True, 240),
        ("float8_e5m2fnuz", 5, 16, True, 57344),
    ],
)
def test_decode_tables_follow_the_formats(name, exponent_bits, bias, fnuz, largest):
    expected = [decode(code, exponent_bits, bias, fnuz) for code in range(256)]
    assert np.array_equal(decode_table(name), np.array(expected, np.float32), equal_nan=True)
    assert max_finite(np.dtype(getattr(ml_dtypes, name))) == largest
    with pytest.raises(ValueError, match="read-only"):
        decode_table(name)[0] = 1


@pytest.mark.parametrize(
    ("dtype", "kind"), [(np.float16, "f16"), ("float32", "f32"), (ml_dtypes.bfloat16, "bf16"), (np.dtype("f2"), "f16")]
)
def test_output_kinds(dtype, kind):
    assert output_kind(dtype) == kind


@pytest.mark.parametrize("dtype", ["float64", ">f2", np.int8, "nonsense", ["f2"]])
def test_other_outputs_are_refused(dtype):
    with pytest.raises(ArgumentError, match="accepted are float16, bfloat16, float32"):
        output_kind(dtype)
