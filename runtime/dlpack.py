"""Reading a ``__dlpack__`` capsule with ctypes: the structs of DLPack 0.x and 1.x.

The capsule is not consumed. Whoever holds the View holds the capsule, and when that goes, its producer takes the memory
back.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import Any

from gemmill.arrays import HOST, View, protocol_stream, row_major
from gemmill.errors import ArgumentError

_VERSION = (1, 1)  # the newest whose structs and types are known here
_READ_ONLY = 1  # bit of flags

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13

# (code, bits) -> dtype name.
_TYPES = {
    (0, 8): "int8",
    (1, 8): "uint8",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
}


class _Device(ctypes.Structure):
    _fields_ = (("kind", c_int32), ("ordinal", c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("type", _Type),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),  # in elements; NULL: row-major
        ("byte_offset", c_uint64),
    )


class _Versioned(ctypes.Structure):
    """What a capsule of DLPack 1.x holds; one of 0.x starts with the tensor."""

    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = (py_object, c_char_p)
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = (py_object, c_char_p), c_void_p


def read_dlpack(label: str, x: Any, stream: int) -> View:
    """Return the View of an object with ``__dlpack__`` and ``__dlpack_device__``.

    Parameters
    ----------
    label : str
        What errors call it.
    x : object
    stream : int
        The CUstream that the producer is to let wait for its own work.

    Raises
    ------
    ArgumentError
        If the producer refuses, or its device or type is none that a kernel reads.
    """
    kind, ordinal = (int(part) for part in x.__dlpack_device__())
    on_cuda = kind in (_CUDA, _CUDA_MANAGED)
    if not on_cuda and kind not in (_CPU, _CUDA_HOST):
        raise ArgumentError(f"{label} lies on a device of DLPack type {kind}: needed CUDA or host memory")
    capsule = _export(label, x, {"stream": protocol_stream(stream)} if on_cuda else {})
    tensor, read_only = _open(label, capsule)
    key = (tensor.type.code, tensor.type.bits)
    if tensor.type.lanes != 1 or key not in _TYPES:
        raise ArgumentError(
            f"{label} has DLPack type code {key[0]}, {key[1]} bits, {tensor.type.lanes} lanes: accepted are "
            + ", ".join(_TYPES.values())
        )
    itemsize = tensor.type.bits // 8
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        strides = tuple(step * itemsize for step in tensor.strides[: tensor.ndim])
    else:
        strides = row_major(shape, itemsize)
    return View(
        _TYPES[key], shape, strides, itemsize,
        f"cuda:{ordinal}" if on_cuda else HOST,
        (tensor.data or 0) + tensor.byte_offset,
        stream if on_cuda else None, read_only, (capsule, x),
    )  # fmt: skip


def _export(label: str, x: Any, options: dict[str, Any]) -> Any:
    try:
        try:
            return x.__dlpack__(**options, max_version=_VERSION)
        except TypeError:  # a producer of DLPack 0.x
            return x.__dlpack__(**options)
    except Exception as error:
        raise ArgumentError(f"{label}: its __dlpack__ failed: {type(error).__name__}: {error}") from error


def _open(label: str, capsule: Any) -> tuple[_Tensor, bool]:
    """Return the tensor of a capsule, and whether it is read-only."""
    if _is_valid(capsule, b"dltensor_versioned"):
        found = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if found.major != _VERSION[0]:
            raise ArgumentError(f"{label} is of DLPack {found.major}.{found.minor}: accepted are 0.x and 1.x")
        return found.tensor, bool(found.flags & _READ_ONLY)
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_get_pointer(capsule, b"dltensor")), False
    raise ArgumentError(f"{label}: its __dlpack__ returned no DLPack capsule that is still unused, but {capsule!r}")
