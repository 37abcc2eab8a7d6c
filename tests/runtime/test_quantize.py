"""quantize_a: scales, rounding, saturation, what is not finite, and storage."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gemmill.dtypes import decode_table, kind_dtype, max_finite
from gemmill.errors import ArgumentError
from gemmill.layout import LAYOUTS, groups
from gemmill.operands import Int4Matrix
from gemmill.quantize import quantize_a
from gemmill.reference import decode
from gemmill.variant import INT4, VARIANTS
from hypothesis import given
from hypothesis import strategies as st

SHAPES = [(1, 1), (3, 127), (2, 128), (4, 129), (5, 300), (0, 7), (7, 0), (700, 513)]
ENCODINGS = ["ocp", "fnuz"]


def normal(m: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((m, k), np.float32)


def expand(aq: np.ndarray, k: int) -> np.ndarray:
    """Return AQ [M, QK] as float64 [M, K]."""
    return np.repeat(aq.astype(np.float64), 128, axis=1)[:, :k]


def nearest(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the least distance of each x to a value of the table."""
    table = np.unique(table[np.isfinite(table)].astype(np.float64))
    at = np.clip(np.searchsorted(table, x), 1, table.size - 1)
    return np.minimum(np.abs(x - table[at - 1]), np.abs(x - table[at]))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_element_is_the_nearest_value(variant, encoding, shape):
    x = normal(*shape)
    a, aq = quantize_a(x, variant, encoding=encoding)
    row = VARIANTS[variant]
    assert a.shape == shape
    assert aq.shape == (shape[0], groups(shape[1]))
    assert aq.dtype == kind_dtype(row.aq, encoding)
    if row.a == INT4:
        table = np.arange(-7, 8)
    else:
        assert a.dtype == kind_dtype(row.a, encoding)
        table = decode_table(a.dtype.name)
    if not x.size:
        return
    scaled = x / expand(aq, shape[1])
    # The division is in float32, so a tie may fall either way; the distance is the same.
    assert np.allclose(np.abs(decode(a) - scaled), nearest(scaled, table), rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_largest_magnitude_of_a_group_uses_the_range(variant):
    x = normal(4, 300)
    a, _ = quantize_a(x, variant)
    row = VARIANTS[variant]
    limit = 7 if row.a == INT4 else max_finite(kind_dtype(row.a, "ocp"))
    values = np.abs(decode(a))
    peaks = np.maximum.reduceat(values, np.arange(0, 300, 128), axis=1)
    if row.aq == "f32":
        assert (peaks == limit).all()
    else:
        # Rounding the scale up costs less than one step of its type.
        assert (peaks >= limit * 0.75).all()
        assert (peaks <= limit).all()


@given(st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=1, max_size=300), st.sampled_from(list(VARIANTS)))
def test_error_is_bounded_by_the_type(values, variant):
    x = np.array([values], np.float32)
    a, aq = quantize_a(x, variant)
    scale = expand(aq, x.shape[1])
    error = np.abs(decode(a) * scale - x)
    row = VARIANTS[variant]
    if row.aq != "f32" and (np.abs(x).max() > 400 or np.abs(x).max() < 1):
        assert np.isfinite(error).all()  # beyond what an fp8 scale reaches, it saturates
        return
    step = {"fp8": 2.0**-4, "bf8": 2.0**-3, INT4: 0.0}[row.a]
    spacing = {"fp8": 2.0**-10, "bf8": 2.0**-17, INT4: 0.5}[row.a]
    assert (error <= (np.abs(x) * step + scale * spacing) * 1.001).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_zero_groups_have_scale_one(variant):
    x = normal(2, 256)
    x[0, :128] = 0
    a, aq = quantize_a(x, variant)
    assert aq[0, 0].astype(np.float32) == 1
    assert not decode(a)[0, :128].any()
    assert decode(a)[0, 128:].any()


def test_scales_stay_normal_float32():
    """A kernel may flush subnormal float32 to zero."""
    x = np.full((1, 128), 1e-40, np.float32)
    _, aq = quantize_a(x, "fp8")
    assert aq[0, 0] == np.finfo(np.float32).tiny


@pytest.mark.parametrize("variant", ["fp8i4", "bf8i4"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_fp8_scales_are_rounded_up(variant, encoding):
    x = np.abs(normal(200, 128)) * np.exp2(np.arange(200, dtype=np.float32) % 12 - 4)[:, None]
    a, aq = quantize_a(x, variant, encoding=encoding)
    wanted = x.max(axis=1) / 7
    table = decode_table(aq.dtype.name)
    table = np.sort(table[np.isfinite(table) & (table > 0)])
    assert np.array_equal(aq[:, 0].astype(np.float32), [table[table >= w].min() for w in wanted])
    assert decode(a).max() <= 7


@pytest.mark.parametrize("variant", ["fp8i4", "bf8i4"])
def test_an_fp8_scale_out_of_range_saturates(variant):
    a, aq = quantize_a(np.full((1, 128), 1e30, np.float32), variant)
    assert float(aq[0, 0]) == max_finite(aq.dtype)
    assert (decode(a) == 7).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_infinities_saturate_and_do_not_set_the_scale(variant):
    x = normal(1, 128)
    _, expected = quantize_a(np.where(np.arange(128) == 3, 0, x), variant)
    x[0, 3] = -np.inf
    a, aq = quantize_a(x, variant)
    assert np.array_equal(aq, expected)
    row = VARIANTS[variant]
    assert decode(a)[0, 3] == -(7 if row.a == INT4 else max_finite(kind_dtype(row.a, "ocp")))


@pytest.mark.parametrize("variant", ["fp8", "bf8"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_nan_stays_nan_and_does_not_set_the_scale(variant, encoding):
    x = normal(2, 130)
    x[1, 5] = np.nan
    a, aq = quantize_a(x, variant, encoding=encoding)
    assert np.isfinite(aq).all()
    assert np.argwhere(np.isnan(decode(a))).tolist() == [[1, 5]]


@pytest.mark.parametrize("value", [1e-45, 1e-300, 1e300])
def test_the_callers_error_state_does_not_matter(value):
    with np.errstate(all="raise"):
        a, aq = quantize_a(np.full((1, 3), value))
    assert np.isfinite(decode(a)).all() and np.isfinite(aq).all()


def test_int4_refuses_nan():
    with pytest.raises(ArgumentError, match="x has NaN, which int4 can't hold"):
        quantize_a(np.full((1, 3), np.nan, np.float32), "fp8i4")


def test_ties_go_to_even():
    # Scale 1, since 448 is the group's largest: 17 lies between 16 and 18, 19 between 18 and 20.
    x = np.array([[448, 17, 19, -17, -19]], np.float32)
    assert quantize_a(x)[0].astype(np.float32).tolist() == [[448, 16, 20, -16, -20]]
    x = np.array([[7, 0.5, 1.5, 2.5, -0.5, -1.5]], np.float32)
    assert quantize_a(x, "fp8i4f32")[0].values().tolist() == [[7, 0, 2, 2, 0, -2]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_storage_follows_the_layout(variant, layout):
    place = LAYOUTS[layout]
    x = normal(5, 300)
    a, aq = quantize_a(x, variant, layout=layout)
    plain, plain_aq = quantize_a(x, variant)
    assert np.array_equal(decode(a), decode(plain))
    assert np.array_equal(aq, plain_aq)
    assert aq.flags.f_contiguous == place.aq_col
    if isinstance(a, Int4Matrix):
        assert a.order == ("F" if place.a_col else "C")
    else:
        assert a.flags.f_contiguous == place.a_col


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types_are_taken_by_value(dtype):
    x = normal(3, 200).astype(dtype)
    a, aq = quantize_a(x)
    expected, expected_aq = quantize_a(x.astype(np.float32))
    assert np.array_equal(a.view(np.uint8), expected.view(np.uint8))
    assert np.array_equal(aq, expected_aq)


def test_strides_do_not_matter_and_x_is_untouched():
    x = normal(8, 300)
    before = x.copy()
    for view in (x[::-1], x[:, ::-1], x[::2, ::3], np.asfortranarray(x)):
        a, aq = quantize_a(view)
        expected, expected_aq = quantize_a(np.ascontiguousarray(view))
        assert np.array_equal(a.view(np.uint8), expected.view(np.uint8))
        assert np.array_equal(aq, expected_aq)
    assert np.array_equal(x, before)


def test_encoding_follows_the_arch():
    assert quantize_a(normal(1, 2), arch="gfx942")[0].dtype == ml_dtypes.float8_e4m3fnuz
    assert quantize_a(normal(1, 2), "bf8", arch="gfx950")[0].dtype == ml_dtypes.float8_e5m2


@pytest.mark.parametrize(
    ("x", "options", "text"),
    [
        (np.ones(3), {}, "2-D array of floats, not float64"),
        (np.ones((2, 2), np.int32), {}, "2-D array of floats, not int32"),
        (np.ones((2, 2), ml_dtypes.float8_e5m2), {}, "2-D array of floats, not float8_e5m2"),
        (np.ma.masked_less(np.ones((2, 2)), 2), {}, "x is a masked array"),
        (np.ones((2, 2)), {"variant": "fp4"}, "unknown variant 'fp4': known variants are fp8"),
        (np.ones((2, 2)), {"layout": "ccc"}, "unknown layout 'ccc'"),
        (np.ones((2, 2)), {"arch": "sm_90"}, "unknown arch 'sm_90'"),
        (np.ones((2, 2)), {"encoding": "ieee"}, "unknown encoding 'ieee': known are ocp, fnuz"),
        (np.ones((2, 2)), {"arch": "gfx942", "encoding": "ocp"}, "gfx942 uses the fnuz encoding, not ocp"),
    ],
)
def test_refuses(x, options, text):
    with pytest.raises(ArgumentError, match=text):
        quantize_a(x, **options)
