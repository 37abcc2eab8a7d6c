"""Atomic writes."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from gemmill.files import make_directory, signature, write_atomically


def test_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two", durable=True)
    assert path.read_bytes() == b"two" and list(path.parent.iterdir()) == [path]


def test_failure_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one")

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"two", durable=True)
    assert path.read_bytes() == b"one" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a" / "b" / "file", b"", 0o664)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "b" / "file").stat().st_mode) == 0o664
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755 & ~umask


def test_make_directory_is_content_with_what_is_there(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        make_directory(tmp_path / "file")


def test_a_very_long_name(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("n" * 255), b"x")
    assert [len(p.name) for p in tmp_path.iterdir()] == [255]


def test_signature_sees_an_edit_that_puts_the_times_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    before, times = signature(str(path)), path.stat()
    assert before == signature(str(path)) and before is not None
    time.sleep(0.02)  # more than a tick of the file system's clock
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = signature(str(path))
    assert after is not None and after[:2] == before[:2] and after != before
    path.unlink()
    assert signature(str(path)) is None
