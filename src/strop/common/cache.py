"""Values by key in a SQLite file of the user's cache folder, so that nothing is computed twice."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

BUSY_SECONDS = 10.0
"""How long to wait for a file that another process has locked."""


def cache_file(name: str) -> Path | None:
    """Return a file in the cache folder; None when STROP_CACHE is "off".

    The folder is STROP_CACHE, else the user's cache folder on this system.
    """
    setting = os.environ.get("STROP_CACHE")
    if setting == "off":
        return None
    if setting:
        folder = Path(setting).expanduser()
    elif sys.platform == "win32" and "LOCALAPPDATA" in os.environ:
        folder = Path(os.environ["LOCALAPPDATA"]) / "strop"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strop"
    return folder / name


class Cache:
    """Byte strings by key in one table of a SQLite file; ``path`` None stores nothing.

    Several threads and processes may use one file. If the file cannot be read or written,
    there is one warning and nothing is cached; the work continues.
    """

    def __init__(self, path: Path | None, table: str) -> None:
        self.path = path
        self._table = table
        self._unusable = path is None
        self._lock = threading.Lock()

    def get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values that are stored, by key."""
        values: dict[bytes, bytes] = {}
        if self._unusable:
            return values
        statement = f"SELECT value FROM {self._table} WHERE key = ?"
        try:
            with closing(self.connect()) as connection:
                for key in keys:
                    if row := connection.execute(statement, (key,)).fetchone():
                        values[key] = bytes(row[0])
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            self.give_up(error)
            return {}
        return values

    def put(self, values: Mapping[bytes, bytes]) -> None:
        """Store values; they are committed when this returns."""
        if self._unusable:
            return
        try:
            with closing(self.connect()) as connection, connection:
                statement = f"INSERT OR IGNORE INTO {self._table} VALUES (?, ?)"
                connection.executemany(statement, values.items())
        except (sqlite3.Error, OSError) as error:
            self.give_up(error)

    def connect(self) -> sqlite3.Connection:
        """Return a connection for one use: opening it is cheap, and no thread owns it."""
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._table}"
                    " (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
                )
                return connection
            except sqlite3.Error as error:
                connection.close()
                # If two processes create the file at once, SQLite refuses one without waiting.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def give_up(self, error: Exception, stacklevel: int = 4) -> None:
        """Warn once, and cache nothing from now on."""
        with self._lock:
            if self._unusable:
                return
            self._unusable = True
        warnings.warn(
            f"continuing without the cache {self.path}: {error} "
            "(delete the file, or set STROP_CACHE=off)",
            stacklevel=stacklevel,
        )
