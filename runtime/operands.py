"""Operands: packed int4, preshuffled scales, and reading an array's storage order from its strides."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gemmill.errors import ArgumentError
from gemmill.layout import GROUP_K, int4_bytes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Leading:
    """The leading dimensions an array may be read with, in elements; None where that order does not fit.

    Both fit when a dimension is 0 or 1.
    """

    row: int | None
    col: int | None


def leading_dimensions(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Leading:
    """Read the storage order of a matrix [R, C] from its strides in bytes.

    Row-major wants neighbours of a row beside each other and rows at least C apart; column-major the reverse.
    Overlapping rows (broadcasts), negative strides and gaps in both dimensions fit neither.
    """
    rows, cols = shape
    row = _leading(rows, cols, strides[0], strides[1], itemsize)
    col = _leading(cols, rows, strides[1], strides[0], itemsize)
    return Leading(row, col)


def _leading(outer: int, inner: int, outer_stride: int, inner_stride: int, itemsize: int) -> int | None:
    if outer == 0 or inner == 0:
        return inner
    if inner > 1 and inner_stride != itemsize:
        return None
    if outer == 1:
        return inner
    leading, rest = divmod(outer_stride, itemsize)
    return leading if rest == 0 and leading >= inner else None


def describe_array(x: Array) -> str:
    """Return dtype, shape and strides of an array, for error texts."""
    return f"{x.dtype} {x.shape}, strides {x.strides} bytes"


def plain_array(label: str, x: Any) -> Array:
    """Return x as a numpy array; refuse one with a mask, which would be lost, and what has no shape."""
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentError(f"{label} is a masked array: needed one without mask, e.g. x.filled(0)")
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ArgumentError(f"{label} is no array: {error}") from None


class Int4Matrix:
    """A packed int4 matrix [M, K]: two elements a byte, value = code - 8.

    Elements lie in storage order, the even one in the high nibble; of an odd number the last low nibble is unused.

    Parameters
    ----------
    data : numpy.ndarray or bytes-like
        uint8, ceil(M * K / 2) of them, contiguous. Not copied.
    shape : (int, int)
        (M, K).
    order : {"C", "F"}
        Row-major, or column-major, where consecutive rows share a byte.

    Raises
    ------
    ArgumentError
        If type, size, shape or order do not fit.
    """

    __slots__ = ("data", "order", "shape")

    def __init__(self, data: Any, shape: tuple[int, int], order: str = "C") -> None:
        try:
            array = plain_array("data", data) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        except TypeError:
            raise ArgumentError(f"data is a {type(data).__qualname__}: needed uint8 or a bytes-like object") from None
        if order not in ("C", "F"):
            raise ArgumentError(f"order {order!r}: accepted are 'C' (row-major) and 'F' (column-major)")
        try:
            rows, cols = (operator.index(x) for x in shape)
        except (TypeError, ValueError):
            raise ArgumentError(f"shape {shape!r}: needed (M, K)") from None
        if rows < 0 or cols < 0:
            raise ArgumentError(f"shape {shape!r}: M and K must not be negative")
        if array.dtype != np.uint8 or not array.flags.c_contiguous:
            raise ArgumentError(f"packed int4 data must be contiguous uint8, not {describe_array(array)}")
        needed = int4_bytes(rows, cols)
        if array.size != needed:
            raise ArgumentError(
                f"packed int4 [{rows}, {cols}] takes {needed} bytes, two elements each; {array.size} bytes came"
            )
        self.data: Array = array.reshape(-1)
        self.shape = (rows, cols)
        self.order = order

    def __repr__(self) -> str:
        return f"Int4Matrix({self.shape[0]}x{self.shape[1]}, order={self.order!r}, {self.data.size} bytes)"

    @classmethod
    def from_values(cls, values: Any, order: str = "C") -> Int4Matrix:
        """Pack an integer array [M, K] of values -8 to 7.

        Raises
        ------
        ArgumentError
            If it is not 2-D, not of integers, or has a value outside -8..7.
        """
        values = plain_array("values", values)
        if values.ndim != 2 or values.dtype.kind not in "iu":
            raise ArgumentError(f"int4 values must be a 2-D integer array, not {describe_array(values)}")
        if values.size and (values.min() < -8 or values.max() > 7):
            raise ArgumentError(f"int4 values must lie in -8..7; found {values.min()} to {values.max()}")
        if order not in ("C", "F"):
            raise ArgumentError(f"order {order!r}: accepted are 'C' (row-major) and 'F' (column-major)")
        codes = (values.ravel(order=order).astype(np.int8) + 8).astype(np.uint8)
        return cls(pack_codes(codes), values.shape, order)

    def values(self) -> Array:
        """Return the values, int8 [M, K], in the matrix's own storage order."""
        rows, cols = self.shape
        flat = unpack_codes(self.data, rows * cols).view(np.int8)
        flat -= 8
        return flat.reshape((rows, cols), order=self.order)  # type: ignore[call-overload,no-any-return]


def pack_codes(codes: Array) -> Array:
    """Pack uint8 codes 0..15, in storage order, two a byte: the even one in the high nibble."""
    packed = np.zeros((codes.size + 1) // 2, np.uint8)
    np.left_shift(codes[0::2], 4, out=packed)
    packed[: codes.size // 2] |= codes[1::2]
    return packed


def unpack_codes(packed: Array, count: int) -> Array:
    """Return the first `count` codes of packed bytes, uint8."""
    codes = np.empty(2 * packed.size, np.uint8)
    np.right_shift(packed, 4, out=codes[0::2])
    np.bitwise_and(packed, 15, out=codes[1::2])
    return codes[:count]


class PreshuffledScale:
    """Scales in the order a preshufflequant kernel reads them; `preshuffle_scale` makes one.

    Parameters
    ----------
    data : numpy.ndarray
        [T, M, b], C-contiguous: T tiles of b = tile_k / 128 groups; groups beyond QK are zero.
    groups : int
        QK = ceil(K / 128).
    tile_k : int
        K of the kernel's tile, a multiple of 128.

    Raises
    ------
    ArgumentError
        If they do not fit each other.
    """

    __slots__ = ("data", "groups", "tile_k")

    def __init__(self, data: Array, groups: int, tile_k: int) -> None:
        data = plain_array("preshuffled AQ", data)
        b = _groups_a_tile(tile_k)
        tiles = -(-groups // b)
        if data.ndim != 3 or data.shape[0] != tiles or data.shape[2] != b or not data.flags.c_contiguous:
            raise ArgumentError(
                f"preshuffled AQ of {groups} groups with tile_k = {tile_k} is C-contiguous [{tiles}, M, {b}], "
                f"not {describe_array(data)}"
            )
        self.data = data
        self.groups = groups
        self.tile_k = tile_k

    def __repr__(self) -> str:
        tiles, m, b = self.data.shape
        return f"PreshuffledScale({tiles}x{m}x{b} {self.data.dtype}, {self.groups} groups, tile_k={self.tile_k})"

    def unshuffled(self) -> Array:
        """Return AQ [M, QK], row-major."""
        tiles, m, b = self.data.shape
        return np.ascontiguousarray(self.data.transpose(1, 0, 2).reshape(m, tiles * b)[:, : self.groups])


def preshuffle_scale(a_scale: Array, tile_k: int) -> PreshuffledScale:
    """Put scales into the order that preshufflequant kernels read.

    Parameters
    ----------
    a_scale : numpy.ndarray
        AQ [M, QK], any strides.
    tile_k : int
        K of the kernel's tile, ``kernel.config["tile"][2]``.

    Returns
    -------
    PreshuffledScale
        [T, M, b] with b = tile_k / 128 and T = ceil(QK / b), of the same dtype; groups beyond QK are zero.

    Raises
    ------
    ArgumentError
        If AQ is not 2-D, or tile_k no multiple of 128.
    """
    a_scale = plain_array("AQ", a_scale)
    if a_scale.ndim != 2:
        raise ArgumentError(f"AQ has shape {a_scale.shape}: needed (M, QK)")
    return PreshuffledScale(shuffled(a_scale, _groups_a_tile(tile_k)), a_scale.shape[1], tile_k)


def shuffled(a_scale: Array, b: int) -> Array:
    """Return AQ [M, QK] as [T, M, b], groups beyond QK zero."""
    m, groups = a_scale.shape
    tiles = -(-groups // b)
    padded = np.zeros((m, tiles * b), a_scale.dtype)
    padded[:, :groups] = a_scale
    return np.ascontiguousarray(padded.reshape(m, tiles, b).transpose(1, 0, 2))


def _groups_a_tile(tile_k: int) -> int:
    if not isinstance(tile_k, (int, np.integer)) or tile_k <= 0 or tile_k % GROUP_K:
        raise ArgumentError(f"tile_k {tile_k!r}: must be a positive multiple of {GROUP_K}")
    return int(tile_k) // GROUP_K
