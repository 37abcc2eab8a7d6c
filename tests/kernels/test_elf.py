"""The ELF reader: right about real libraries, calm about damaged ones."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from gemmill.errors import GemmillError
from hypothesis import given
from hypothesis import strategies as st

from kernels.elf import ElfError, check_library, read_elf, read_section
from kernels.paths import CHECKOUT

SOURCE = """
extern "C" {
__attribute__((visibility("default"))) int shown() { return 1; }
__attribute__((visibility("default"), weak)) int weak() { return 1; }
__attribute__((visibility("default"))) int data = 3;
int hidden() { return 2; }
__attribute__((section(".x.note"), used)) static const char note[4] = {'f', 'o', 'u', 'r'};
static int local() { return 3; }
__attribute__((visibility("default"))) int calls(int (*f)()) { return f() + local(); }
int printf(const char*, ...);
__attribute__((visibility("default"))) int prints() { return printf("x"); }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elf") / "a.so"
    argv = ["g++", "-shared", "-fPIC", "-fvisibility=hidden", "-s", "-Wl,--as-needed", "-x", "c++", "-", "-o", path]
    subprocess.run(argv, input=SOURCE.encode(), check=True)
    return path


def test_exports_and_needs(library: Path) -> None:
    found = read_elf(library)
    assert {"shown", "weak", "data", "calls", "prints"} <= found.exports
    assert not {"hidden", "local", "printf"} & found.exports
    assert [name for name in found.needed if name.startswith("libc.")]


def test_sections_by_name(library: Path) -> None:
    assert read_section(library, ".x.note") == b"four"
    with pytest.raises(ElfError, match=r"has no section \.absent"):
        read_section(library, ".absent")


def test_other_files(tmp_path: Path) -> None:
    for content in (b"", b"\x7fELF", b"#!/bin/sh\n", b"MZ" + bytes(100)):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(ElfError, match="is not a 64-bit little-endian ELF file; it starts with"):
            read_elf(tmp_path / "x")
        with pytest.raises(ElfError, match="is not a 64-bit little-endian ELF file"):
            read_section(tmp_path / "x", ".x.note")


@given(st.data())
def test_damage_is_an_elf_error_or_harmless(library: Path, data: st.DataObject) -> None:
    content = bytearray(library.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        # Mostly where the structure is.
        at = data.draw(st.integers(0, 64) | st.integers(len(content) - 2000, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    damaged = library.with_name("damaged.so")
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    with contextlib.suppress(ElfError):
        read_elf(damaged)
    with contextlib.suppress(ElfError):
        read_section(damaged, ".x.note")


def test_check_library_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "kernel.so").write_bytes(b"#!/bin/sh\n")
    with pytest.raises(GemmillError, match="not a 64-bit little-endian ELF"):
        check_library(tmp_path / "kernel.so", CHECKOUT.native)
