"""Whom the loader believes: each place where somebody else could plant code is refused with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gemmill.trust import why_untrusted

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners takes root")
STRANGER, OWNER, GROUP = 4242, 4243, 4244


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    (path / "objects" / "ab").mkdir(parents=True)
    (path / "objects" / "ab" / "kernel.so").write_bytes(b"x")
    return path


def library(root: Path) -> Path:
    return root / "objects" / "ab" / "kernel.so"


def test_own_files_are_trusted(root):
    assert why_untrusted(root, library(root)) is None


@pytest.mark.parametrize("place", ["", "objects", "objects/ab", "objects/ab/kernel.so"])
def test_nothing_from_the_root_down_may_be_writable_for_everybody(root, place):
    (root / place).chmod(0o777)
    reason = why_untrusted(root, library(root))
    assert reason == f"{root / place} can be written by everybody (mode 0777): run chmod o-w on it".replace("/ ", " ")


@pytest.mark.parametrize("place", ["objects", "objects/ab", "objects/ab/kernel.so"])
def test_groups_may_write_only_where_the_root_is_shared(root, place):
    (root / place).chmod(0o775)
    assert "can be written by group" in why_untrusted(root, library(root))
    root.chmod(0o775)
    assert why_untrusted(root, library(root)) is None


def test_a_sticky_bit_does_not_help_inside(root):
    (root / "objects").chmod(0o1777)
    assert "can be written by everybody" in why_untrusted(root, library(root))


@pytest.mark.parametrize("place", ["objects", "objects/ab", "objects/ab/kernel.so"])
def test_links_inside_are_refused(root, tmp_path, place):
    target = tmp_path / "target"
    (root / place).rename(target)
    (root / place).symlink_to(target)
    assert "is a symbolic link" in why_untrusted(root, library(root))


def test_what_blocks_its_reader_is_refused(root):
    library(root).unlink()
    os.mkfifo(library(root))
    assert "is neither a file nor a directory" in why_untrusted(root, library(root))


def test_the_root_may_be_a_link(root, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(root)
    assert why_untrusted(link, library(link)) is None


def test_a_directory_above_must_be_sticky_if_everybody_may_write_it(root, tmp_path):
    tmp_path.chmod(0o777)
    assert "above the cache, can be written by everybody and is not sticky" in why_untrusted(root, library(root))
    tmp_path.chmod(0o1777)
    assert why_untrusted(root, library(root)) is None


def test_above_means_above_the_real_directory(root, tmp_path):
    tmp_path.chmod(0o777)
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(root)
    try:
        assert "is not sticky" in why_untrusted(link, library(link))
    finally:
        link.unlink()
        tmp_path.chmod(0o700)


@as_root
@pytest.mark.parametrize("place", ["objects", "objects/ab", "objects/ab/kernel.so"])
def test_a_strangers_file_is_refused(root, place):
    os.chown(root / place, STRANGER, -1)
    assert f"belongs to user {STRANGER}, the cache to user 0" in why_untrusted(root, library(root))


@as_root
def test_the_owner_of_the_root_is_trusted(root):
    for place in (root, root / "objects", library(root)):
        os.chown(place, OWNER, -1)
    assert why_untrusted(root, library(root)) is None


@as_root
def test_a_group_directory_is_shared_on_purpose(root, monkeypatch):
    os.chown(root, OWNER, GROUP)
    root.chmod(0o2775)
    os.chown(library(root), STRANGER, GROUP)
    assert "belongs to user" in why_untrusted(root, library(root))  # not a group of ours
    monkeypatch.setattr(os, "getgroups", lambda: [GROUP])
    assert why_untrusted(root, library(root)) is None
    library(root).chmod(0o666)
    assert "can be written by everybody" in why_untrusted(root, library(root))


@as_root
def test_group_members_are_not_trusted_where_the_group_may_not_write(root, monkeypatch):
    os.chown(root, OWNER, GROUP)
    root.chmod(0o755)
    os.chown(library(root), STRANGER, GROUP)
    monkeypatch.setattr(os, "getgroups", lambda: [GROUP])
    assert "belongs to user" in why_untrusted(root, library(root))
