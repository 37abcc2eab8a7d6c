"""doit's sqlite3 backend, where losing it costs nothing: the cache decides what is up to date.

So no trouble with the file may stop a build: a corrupt one is deleted, and what a busy or read-only one does not take
is dropped. Nor may it hold up another run: stock doit keeps a write lock from a task's failure to the run's end.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

from doit.dependency import DatabaseException, SqliteDB  # type: ignore[import-untyped]


class Database(SqliteDB):  # type: ignore[misc]
    """A SqliteDB that never fails."""

    desc = "sqlite3, tolerant of trouble"

    def __init__(self, name: str, codec: Any, *, module_name: str | None = None) -> None:
        self._saved: dict[str, str] = {}
        try:
            super().__init__(name, codec)
            self._saved = self._load()
        except (DatabaseException, sqlite3.Error) as error:
            # doit wraps what sqlite3 says. Busy or unreadable is an OperationalError; corrupt is the plain class.
            cause = error if isinstance(error, sqlite3.Error) else error.__context__
            if type(cause) is sqlite3.DatabaseError:
                print(f"mill: {name} was corrupt and is deleted; nothing is rebuilt for that", file=sys.stderr)
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                super().__init__(name, codec)
            else:
                print(f"mill: {name} is not used: {cause}", file=sys.stderr)
                super().__init__(":memory:", codec)

    def _load(self) -> dict[str, str]:
        # All rows at once: a question a task would double what doit costs with nothing to do.
        cursor = self._conn.cursor()
        cursor.row_factory = None
        return dict(cursor.execute("select task_id, cast(task_data as text) from doit").fetchall())

    def _get_task_data(self, task_id: str) -> dict[str, Any]:
        try:
            data = json.loads(self._saved[task_id])
        except (KeyError, TypeError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def remove(self, task_id: str) -> None:
        """Forget a task when the run ends, not before: an open transaction locks other runs out."""
        self._cache[task_id] = {}
        self._dirty.add(task_id)

    def dump(self) -> None:
        """Save and close; what can't be saved is dropped."""
        with contextlib.suppress(sqlite3.Error):
            super().dump()
