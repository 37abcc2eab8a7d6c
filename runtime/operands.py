"""Operands: packed int4, fp8 told by name, preshuffled scales; reading a storage order from strides."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gemmill.arrays import LEGACY_STREAM, View, is_torch, view_of
from gemmill.errors import ArgumentError
from gemmill.layout import GROUP_K, int4_bytes
from gemmill.variant import FP8_TYPES

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


def _is_array(x: Any) -> bool:
    """Tell whether x is an array by itself, not a buffer or a list to be made one."""
    return isinstance(x, (np.ndarray, View)) or any(
        hasattr(x, name) for name in ("__cuda_array_interface__", "__dlpack__", "data_ptr")
    )


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
    data : array or bytes-like
        uint8, ceil(M * K / 2) of them, contiguous; in host memory, or on a CUDA device. Not copied.
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
        if isinstance(data, np.ndarray):
            data = plain_array("data", data)
        elif not _is_array(data):
            try:
                data = np.frombuffer(data, np.uint8)
            except TypeError:
                kind = type(data).__qualname__
                raise ArgumentError(f"data is a {kind}: needed a uint8 array or a bytes-like object") from None
        view = view_of("packed int4 data", data)
        if order not in ("C", "F"):
            raise ArgumentError(f"order {order!r}: accepted are 'C' (row-major) and 'F' (column-major)")
        try:
            rows, cols = (operator.index(x) for x in shape)
        except (TypeError, ValueError):
            raise ArgumentError(f"shape {shape!r}: needed (M, K)") from None
        if rows < 0 or cols < 0:
            raise ArgumentError(f"shape {shape!r}: M and K must not be negative")
        if view.dtype != "uint8" or not view.contiguous:
            raise ArgumentError(f"packed int4 data must be contiguous uint8, not {view}")
        needed = int4_bytes(rows, cols)
        if view.size != needed:
            raise ArgumentError(
                f"packed int4 [{rows}, {cols}] takes {needed} bytes, two elements each; {view.size} bytes came"
            )
        self.data: Any = data.reshape(-1) if isinstance(data, np.ndarray) else data
        self.shape = (rows, cols)
        self.order = order

    def __repr__(self) -> str:
        rows, cols = self.shape
        return f"Int4Matrix({rows}x{cols}, order={self.order!r}, {int4_bytes(rows, cols)} bytes)"

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
        """Return the values, int8 [M, K], in the matrix's own storage order; its bytes must be a numpy array."""
        rows, cols = self.shape
        if not isinstance(self.data, np.ndarray):
            raise ArgumentError(f"the bytes are a {type(self.data).__qualname__}: values() needs them as a numpy array")
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


class Fp8Matrix:
    """A matrix of bytes that are fp8 codes, for libraries that have no name for the type.

    Parameters
    ----------
    data : array
        uint8 [rows, columns], any strides that `gemmill.gemm_aquant` takes. Not copied.
    dtype : str or dtype
        What the bytes are: ``float8_e4m3fn``, ``float8_e5m2``, ``float8_e4m3fnuz`` or ``float8_e5m2fnuz``.

    Raises
    ------
    ArgumentError
        If the data is not of bytes, or the type no fp8 type.
    """

    __slots__ = ("data", "dtype")

    def __init__(self, data: Any, dtype: Any) -> None:
        name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
        if name not in FP8_TYPES:
            raise ArgumentError(f"dtype {dtype!r}: accepted are {', '.join(FP8_TYPES)}")
        view = view_of("fp8 data", data)
        if view.itemsize != 1:
            raise ArgumentError(f"fp8 data must be uint8, not {view}")
        self.data = data
        self.dtype = name

    def __repr__(self) -> str:
        return f"Fp8Matrix({self.view('fp8 data')})"

    def view(self, label: str, stream: int = LEGACY_STREAM) -> View:
        """Return the View of the array under its own type; arguments as for `gemmill.arrays.view_of`."""
        return replace(view_of(label, self.data, stream), dtype=self.dtype)


class PreshuffledScale:
    """Scales in the order a preshufflequant kernel reads them; `preshuffle_scale` makes one.

    Parameters
    ----------
    data : array
        [T, M, b], C-contiguous, in host memory or on a CUDA device: T tiles of b = tile_k / 128 groups; groups beyond
        QK are zero.
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

    def __init__(self, data: Any, groups: int, tile_k: int) -> None:
        data = data if _is_array(data) else plain_array("preshuffled AQ", data)
        view = view_of("preshuffled AQ", data)
        b = groups_a_tile(tile_k)
        tiles = -(-groups // b)
        if len(view.shape) != 3 or view.shape[0] != tiles or view.shape[2] != b or not view.contiguous:
            raise ArgumentError(
                f"preshuffled AQ of {groups} groups with tile_k = {tile_k} is C-contiguous [{tiles}, M, {b}], "
                f"not {view}"
            )
        self.data: Any = data
        self.groups = groups
        self.tile_k = tile_k

    def __repr__(self) -> str:
        tiles, m, b = self.data.shape
        return f"PreshuffledScale({tiles}x{m}x{b} {self.data.dtype}, {self.groups} groups, tile_k={self.tile_k})"

    def unshuffled(self) -> Array:
        """Return AQ [M, QK], row-major; its data must be a numpy array."""
        if not isinstance(self.data, np.ndarray):
            raise ArgumentError(f"the data is a {type(self.data).__qualname__}: unshuffled() needs a numpy array")
        tiles, m, b = self.data.shape
        return np.ascontiguousarray(self.data.transpose(1, 0, 2).reshape(m, tiles * b)[:, : self.groups])


def preshuffle_scale(a_scale: Any, tile_k: int) -> PreshuffledScale:
    """Put scales into the order that preshufflequant kernels read.

    Parameters
    ----------
    a_scale : numpy.ndarray or torch.Tensor
        AQ [M, QK], any strides; a tensor is shuffled on its own device.
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
    if is_torch(a_scale):
        from gemmill.on_torch import preshuffle_tensor

        return preshuffle_tensor(a_scale, tile_k)
    a_scale = plain_array("AQ", a_scale)
    if a_scale.ndim != 2:
        raise ArgumentError(f"AQ has shape {a_scale.shape}: needed (M, QK)")
    return PreshuffledScale(shuffled(a_scale, groups_a_tile(tile_k)), a_scale.shape[1], tile_k)


def shuffled(a_scale: Array, b: int) -> Array:
    """Return AQ [M, QK] as [T, M, b], groups beyond QK zero."""
    m, groups = a_scale.shape
    tiles = -(-groups // b)
    padded = np.zeros((m, tiles * b), a_scale.dtype)
    padded[:, :groups] = a_scale
    return np.ascontiguousarray(padded.reshape(m, tiles, b).transpose(1, 0, 2))


def groups_a_tile(tile_k: int) -> int:
    """Return b = tile_k / 128, the groups of AQ that lie side by side in a preshuffled one."""
    if not isinstance(tile_k, (int, np.integer)) or tile_k <= 0 or tile_k % GROUP_K:
        raise ArgumentError(f"tile_k {tile_k!r}: must be a positive multiple of {GROUP_K}")
    return int(tile_k) // GROUP_K


def told(x: Any) -> tuple[Any, ...] | None:
    """Return what an operand says beside its array, None for an array itself."""
    if isinstance(x, Int4Matrix):
        return (Int4Matrix, x.shape, x.order)
    if isinstance(x, PreshuffledScale):
        return (PreshuffledScale, x.groups, x.tile_k)
    return (Fp8Matrix, x.dtype) if isinstance(x, Fp8Matrix) else None
