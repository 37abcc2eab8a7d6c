"""doit's database may be lost, broken, busy or read-only; no run minds."""

import sqlite3
from pathlib import Path

import pytest
from doit.dependency import JSONCodec

from kernels.database import Database


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "doit.sqlite3")


def open_(path):
    return Database(path, JSONCodec())


def write(path, task="t", value=1):
    database = open_(path)
    database.set(task, "result:", value)
    database.dump()


def read(path, task="t"):
    database = open_(path)
    try:
        return database.get(task, "result:")
    finally:
        database._conn.close()


def test_keeps_what_is_saved(path):
    write(path)
    assert read(path) == 1


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_corrupt_file_is_deleted_with_a_note(path, content, capsys):
    Path(path).write_bytes(content)
    write(path)
    assert read(path) == 1
    assert "corrupt and is deleted" in capsys.readouterr().err


def test_damage_inside_is_survived(path):
    database = open_(path)
    for i in range(500):
        database.set(f"task{i}", "result:", "x" * 200)
    database.dump()
    with Path(path).open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(size // 2)
        file.write(b"\xa5" * (size - size // 2))
    database = open_(path)
    for i in range(500):
        database.get(f"task{i}", "result:")
    database.dump()
    write(path)
    assert read(path) == 1


def test_a_value_that_is_no_json_counts_as_absent(path):
    write(path)
    with sqlite3.connect(path) as connection:
        connection.execute("update doit set task_data = '{oops'")
    connection.close()
    assert read(path) is None


def test_zero_length_file_is_a_new_database(path, capsys):
    Path(path).touch()
    write(path)
    assert read(path) == 1
    assert capsys.readouterr().err == ""


def test_unwritable_place_is_done_without(tmp_path, capsys):
    write(str(tmp_path / "no" / "such" / "folder" / "doit.sqlite3"))
    assert "is not used" in capsys.readouterr().err


def test_a_failed_task_takes_no_lock_until_the_end(path):
    write(path)
    first, second = open_(path), open_(path)
    first.remove("t")
    second.set("u", "result:", 2)
    second._conn.execute("pragma busy_timeout = 0")
    second.dump()
    assert read(path, "u") == 2
    first.dump()
    assert read(path, "t") is None


def test_a_busy_file_drops_what_it_does_not_take(path):
    write(path)
    database = open_(path)
    database._conn.execute("pragma busy_timeout = 0")
    other = sqlite3.connect(path)
    other.execute("begin exclusive")
    database.set("t", "result:", 3)
    database.dump()
    other.rollback()
    other.close()
    assert read(path) == 1
