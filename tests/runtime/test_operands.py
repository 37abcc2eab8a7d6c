"""Packed int4, shuffled scales, and storage orders read from strides."""

from __future__ import annotations

import numpy as np
import pytest
from gemmill.errors import ArgumentError
from gemmill.operands import Int4Matrix, Leading, PreshuffledScale, leading_dimensions, preshuffle_scale
from generators import bad_forms, forms, int4_matrix
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(0, 9)


@given(sizes, sizes, st.sampled_from("CF"), st.integers(0, 2**32 - 1))
def test_int4_round_trip(m, k, order, seed):
    packed, values = int4_matrix(m, k, order, seed)
    assert packed.data.nbytes == (m * k + 1) // 2
    assert np.array_equal(packed.values(), values)


def test_int4_even_element_is_in_the_high_nibble():
    values = np.array([[-8, 7, 0], [1, -1, 2]])
    assert Int4Matrix.from_values(values).data.tolist() == [0x0F, 0x89, 0x7A]
    # Column-major: consecutive rows share a byte.
    assert Int4Matrix.from_values(values, "F").data.tolist() == [0x09, 0xF7, 0x8A]


def test_int4_of_an_odd_count_ignores_the_last_nibble():
    assert Int4Matrix(bytes([0x9F]), (1, 1)).values().tolist() == [[1]]


def test_int4_is_not_copied():
    data = np.zeros(6, np.uint8)
    assert np.shares_memory(Int4Matrix(data, (3, 4)).data, data)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Int4Matrix(b"12", (3, 2)), "takes 3 bytes, two elements each; 2 bytes came"),
        (lambda: Int4Matrix(b"12", (2, 2), "A"), "order 'A': accepted are 'C'"),
        (lambda: Int4Matrix(b"12", (2,)), r"shape \(2,\): needed \(M, K\)"),
        (lambda: Int4Matrix(b"", (-1, 2)), "must not be negative"),
        (lambda: Int4Matrix(np.zeros(2, np.int8), (2, 2)), "contiguous uint8, not int8"),
        (lambda: Int4Matrix(np.zeros(4, np.uint8)[::2], (2, 2)), "contiguous uint8"),
        (lambda: Int4Matrix(b"123", (2.5, 2)), r"shape \(2.5, 2\): needed"),
        (lambda: Int4Matrix(b"", (float("inf"), 2)), r"shape \(inf, 2\): needed"),
        (lambda: Int4Matrix([1, 2], (2, 2)), "data is a list: needed a uint8 array or a bytes-like object"),
        (lambda: Int4Matrix(np.ma.zeros(2, np.uint8), (2, 2)), "data is a masked array"),
        (lambda: Int4Matrix.from_values(np.ma.zeros((2, 2), int)), "values is a masked array"),
        (lambda: Int4Matrix.from_values([[1], [2, 3]]), "values is no array"),
        (lambda: Int4Matrix.from_values([[8]]), "-8..7; found 8 to 8"),
        (lambda: Int4Matrix.from_values([[-9]]), "-8..7; found -9"),
        (lambda: Int4Matrix.from_values([[0.5]]), "2-D integer array, not float64"),
        (lambda: Int4Matrix.from_values([1]), "2-D integer array"),
        (lambda: Int4Matrix.from_values([[1]], "K"), "order 'K'"),
    ],
)
def test_int4_refuses(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()


def test_int4_prints_itself():
    assert repr(int4_matrix(3, 5, "F")[0]) == "Int4Matrix(3x5, order='F', 8 bytes)"


@given(st.integers(0, 5), st.integers(0, 9), st.integers(1, 4))
def test_preshuffle_puts_each_group_in_its_tile(m, groups, b):
    aq = np.arange(1, m * groups + 1, dtype=np.float32).reshape(m, groups)
    shuffled = preshuffle_scale(aq, 128 * b)
    tiles = -(-groups // b)
    assert shuffled.data.shape == (tiles, m, b)
    for row in range(m):
        for g in range(tiles * b):
            assert shuffled.data[g // b, row, g % b] == (aq[row, g] if g < groups else 0)
    assert np.array_equal(shuffled.unshuffled(), aq)


@pytest.mark.parametrize("order", ["C", "F"])
def test_preshuffle_takes_any_order(order):
    aq = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(preshuffle_scale(np.array(aq, order=order), 256).data, preshuffle_scale(aq, 256).data)


def test_preshuffle_refuses():
    aq = np.ones((2, 3), np.float32)
    with pytest.raises(ArgumentError, match="tile_k 100: must be a positive multiple of 128"):
        preshuffle_scale(aq, 100)
    for tile_k in ("256", 256.0, None, 0, -128):
        with pytest.raises(ArgumentError, match="must be a positive multiple of 128"):
            preshuffle_scale(aq, tile_k)
    with pytest.raises(ArgumentError, match="AQ is a masked array"):
        preshuffle_scale(np.ma.array(aq), 128)
    with pytest.raises(ArgumentError, match=r"needed \(M, QK\)"):
        preshuffle_scale(aq[0], 128)
    with pytest.raises(ArgumentError, match=r"C-contiguous \[2, M, 2\], not float32 \(3, 2, 1\)"):
        PreshuffledScale(np.ones((3, 2, 1), np.float32), 3, 256)
    assert "2x2x2 float32, 3 groups, tile_k=256" in repr(preshuffle_scale(aq, 256))


def leading(x: np.ndarray) -> Leading:
    return leading_dimensions(x.shape, x.strides, x.itemsize)


def test_storage_orders_are_read_from_strides():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = {name: leading(view) for name, view in forms(x).items()}
    assert found == {
        "C": Leading(4, None),
        "F": Leading(None, 3),
        "C gaps": Leading(7, None),
        "F gaps": Leading(None, 8),
        "unaligned": Leading(4, None),
    }


@pytest.mark.parametrize("name", list(bad_forms(np.ones((3, 4), np.float32))))
def test_other_strides_are_neither(name):
    assert leading(bad_forms(np.ones((3, 4), np.float32))[name]) == Leading(None, None)


def test_a_stride_of_broken_elements_is_neither():
    assert leading_dimensions((2, 2), (10, 4), 4) == Leading(None, None)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.booleans(), st.integers(1, 4))
def test_leading_dimensions_address_the_same_elements(rows, cols, gap, column_major, itemsize):
    """What the two numbers say must be where numpy finds the elements."""
    outer, inner = (cols, rows) if column_major else (rows, cols)
    base = np.zeros((outer, inner + gap), f"V{itemsize}")[:, :inner]
    x = base.T if column_major else base
    found = leading(x)
    assert (found.col if column_major else found.row) is not None
    for order, ld in (("row", found.row), ("col", found.col)):
        if ld is None:
            continue
        assert ld >= (cols if order == "row" else rows)
        for i in range(rows):
            for j in range(cols):
                at = (i * ld + j if order == "row" else j * ld + i) * itemsize
                assert at == i * x.strides[0] + j * x.strides[1]
