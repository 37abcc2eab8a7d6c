"""Read from an ELF shared library what it exports and what it needs; just enough of the format for that."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemmill.errors import GemmillError

_SHT_DYNAMIC, _SHT_DYNSYM = 6, 11
_DT_NEEDED = 1
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ENTRY = struct.Struct("<qQ")


class ElfError(GemmillError):
    """The file is not a 64-bit little-endian ELF file, or its tables point outside of it."""


@dataclass(frozen=True)
class Elf:
    """What a library exports, and the sonames that it needs."""

    exports: frozenset[str]
    needed: tuple[str, ...]


def read_elf(path: Path) -> Elf:
    """Return exports and needs of a shared library."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ElfError(
            f"{path} is not a 64-bit little-endian ELF file; it starts with {data[:6].hex(' ') or 'nothing'}"
        )
    exports: set[str] = set()
    needed: list[str] = []
    try:
        sections = list(_sections(data))
        for kind, offset, size, link in sections:
            strings = data[sections[link][1] : sections[link][1] + sections[link][2]]
            if kind == _SHT_DYNSYM:
                for name, info, other, section, *_ in _SYMBOL.iter_unpack(data[offset : offset + size]):
                    # Global or weak, default visibility, defined.
                    if info >> 4 in (1, 2) and other & 3 == 0 and section:
                        exports.add(_string(strings, name))
            elif kind == _SHT_DYNAMIC:
                needed += [
                    _string(strings, value)
                    for tag, value in _ENTRY.iter_unpack(data[offset : offset + size])
                    if tag == _DT_NEEDED
                ]
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ElfError(f"{path} is a damaged ELF file: {error}") from None
    return Elf(frozenset(exports), tuple(needed))


def _sections(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield (type, offset, size, link) of each section."""
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    for i in range(count):
        _, kind, _, _, offset, length, link, *_ = _SECTION.unpack_from(data, start + i * size)
        yield kind, offset, length, link


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()
