"""Read from an AMD GPU code object what each kernel takes of the hardware.

The figures stand in the metadata note that the compiler writes (NT_AMDGPU_METADATA, a MessagePack map): registers,
spills, LDS, private memory (scratch). Only the part of both formats that this needs is read.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from gemmill.errors import GemmillError

_SHT_NOTE = 7
_NT_AMDGPU_METADATA = 32

# Key in the metadata, and what we call it.
_FIGURES = {
    ".vgpr_count": "vgprs",
    ".agpr_count": "agprs",
    ".sgpr_count": "sgprs",
    ".vgpr_spill_count": "vgpr_spills",
    ".sgpr_spill_count": "sgpr_spills",
    ".group_segment_fixed_size": "lds_bytes",
    ".private_segment_fixed_size": "scratch_bytes",
    ".kernarg_segment_size": "argument_bytes",
    ".max_flat_workgroup_size": "threads",
}


def read_kernels(path: Path) -> dict[str, dict[str, int]]:
    """Return {kernel name: its figures} of a code object.

    Raises
    ------
    GemmillError
        If the file is no code object, or has no metadata.
    """
    data = path.read_bytes()
    try:
        metadata = _unpack(_note(data))
        kernels = metadata["amdhsa.kernels"]
        return {
            kernel[".name"]: {ours: kernel[theirs] for theirs, ours in _FIGURES.items() if theirs in kernel}
            for kernel in kernels
        }
    except (struct.error, IndexError, KeyError, TypeError, ValueError) as error:
        raise GemmillError(f"{path} is no AMD GPU code object with metadata: {error!r}") from None


def _note(data: bytes) -> bytes:
    """Return the metadata note's content from an ELF file."""
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    for i in range(count):
        kind, offset, length = struct.unpack_from("<4xI16xQQ", data, sections + i * size)
        at = offset
        while kind == _SHT_NOTE and at < offset + length:
            name_bytes, content_bytes, note = struct.unpack_from("<III", data, at)
            content = at + 12 + -(-name_bytes // 4) * 4
            if note == _NT_AMDGPU_METADATA:
                return data[content : content + content_bytes]
            at = content + -(-content_bytes // 4) * 4
    raise ValueError("no metadata note")


def _unpack(data: bytes) -> Any:
    value, _ = _value(data, 0)
    return value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """Return the MessagePack value at an offset, and the offset behind it."""
    tag = data[at]
    at += 1
    if tag <= 0x7F:
        return tag, at
    if tag <= 0x8F:
        return _map(data, at, tag & 0x0F)
    if tag <= 0x9F:
        return _array(data, at, tag & 0x0F)
    if tag <= 0xBF:
        return _text(data, at, tag & 0x1F)
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    widths = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    widths |= {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
    (number,) = struct.unpack_from(widths[tag], data, at)
    at += struct.calcsize(widths[tag])
    if tag <= 0xD3:
        return number, at
    read = _text if tag <= 0xDB else _array if tag <= 0xDD else _map
    return read(data, at, number)


def _text(data: bytes, at: int, length: int) -> tuple[str, int]:
    return data[at : at + length].decode(), at + length


def _array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(count):
        item, at = _value(data, at)
        items.append(item)
    return items, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    flat, at = _array(data, at, 2 * count)
    return dict(zip(flat[::2], flat[1::2], strict=True)), at
