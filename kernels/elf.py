"""Check a kernel library before it is published: read from the ELF file what it exports and what it needs."""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gemmill.errors import GemmillError

_SHT_DYNAMIC, _SHT_DYNSYM = 6, 11
_DT_NEEDED = 1
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ENTRY = struct.Struct("<qQ")

# What every Linux has; anything else would tie a prebuilt cache to the machine that built it.
_SYSTEM_LIBRARIES = r"lib(c|m|pthread|dl|rt)\.so(\.\d+)*|libc\.musl[-\w]*\.so(\.\d+)*|ld-(linux|musl)[-\w]*\.so(\.\d+)*"
_ABI_FUNCTION = r"(?m)^GEMMILL_EXPORT\s[^;(]*?(\w+)\("


class ElfError(GemmillError):
    """The file is not a 64-bit little-endian ELF file, or its tables point outside of it."""


@dataclass(frozen=True)
class Elf:
    """What a library exports, and the sonames that it needs."""

    exports: frozenset[str]
    needed: tuple[str, ...]


def check_library(library: Path, native: Path) -> None:
    """Raise unless a library exports the whole C ABI and needs nothing that every system does not have."""
    if platform.system() != "Linux":
        return  # another object format; the selftest will open it
    found = read_elf(library)
    wanted = set(re.findall(_ABI_FUNCTION, (native / "abi.h").read_text(encoding="utf-8")))
    if missing := sorted(wanted - found.exports):
        raise GemmillError(f"the library does not export {', '.join(missing)}, which native/abi.h declares")
    if foreign := [name for name in found.needed if not re.fullmatch(_SYSTEM_LIBRARIES, name)]:
        raise GemmillError(f"the library needs {', '.join(foreign)}: a kernel may link with libc and libm alone")


def read_elf(path: Path) -> Elf:
    """Return exports and needs of a shared library."""
    data = _read(path)
    exports: set[str] = set()
    needed: list[str] = []
    try:
        sections = list(_sections(data))
        for section in sections:
            strings, content = sections[section.link].content(data), section.content(data)
            if section.kind == _SHT_DYNSYM:
                for name, info, other, home, *_ in _SYMBOL.iter_unpack(content):
                    # Global or weak, default visibility, defined.
                    if info >> 4 in (1, 2) and other & 3 == 0 and home:
                        exports.add(_string(strings, name))
            elif section.kind == _SHT_DYNAMIC:
                needed += [_string(strings, value) for tag, value in _ENTRY.iter_unpack(content) if tag == _DT_NEEDED]
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ElfError(f"{path} is a damaged ELF file: {error}") from None
    return Elf(frozenset(exports), tuple(needed))


def read_section(path: Path, name: str) -> bytes:
    """Return the content of the first section that is called `name`; ElfError where there is none."""
    data = _read(path)
    try:
        sections = list(_sections(data))
        names = sections[struct.unpack_from("<H", data, 0x3E)[0]].content(data)
        for section in sections:
            if _string(names, section.name) == name:
                return section.content(data)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ElfError(f"{path} is a damaged ELF file: {error}") from None
    raise ElfError(f"{path} has no section {name}")


class _Section(NamedTuple):
    """A section's header: where its name, its content and the section that belongs to it are."""

    name: int
    kind: int
    offset: int
    size: int
    link: int

    def content(self, data: bytes) -> bytes:
        return data[self.offset : self.offset + self.size]


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ElfError(
            f"{path} is not a 64-bit little-endian ELF file; it starts with {data[:6].hex(' ') or 'nothing'}"
        )
    return data


def _sections(data: bytes) -> Iterator[_Section]:
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    for i in range(count):
        name, kind, _, _, offset, length, link, *_ = _SECTION.unpack_from(data, start + i * size)
        yield _Section(name, kind, offset, length, link)


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()
