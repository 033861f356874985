"""The catalog's SQLite file: connections, two kinds of transaction, errors with their remedy."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from strop.errors import BadIndex, DiskFull, IndexDamaged
from strop.storage.schema import FORMAT, SCHEMA
from strop.storage.seals import Seals

_WORTH_A_VACUUM = 0.05
"""The share of free pages from which ``shrink`` rewrites the file."""
_MARKS = 200
"""The number of versions whose marks are kept."""


class _OwnConnection:
    """A thread's connection, closed when the thread ends or the catalog is dropped.

    ``seals`` sums this thread's changes of rows. ``numbers`` are the settings that the present read
    transaction has read already, None outside of one.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection, self.seals = connection, Seals(connection)
        self.process = os.getpid()
        self.is_watched = self.is_writing = False
        self.numbers: dict[str, int] | None = None

    def __del__(self) -> None:
        self.connection.close()


class Database:
    """One SQLite file, a connection for each thread, and two kinds of transaction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._connections: weakref.WeakSet[_OwnConnection] = weakref.WeakSet()
        self._opening = threading.Lock()
        self._watch: Callable[[sqlite3.Connection], None] = lambda _: None
        self._update: Callable[[sqlite3.Connection], bool] = lambda _: False

    def follow(
        self,
        watch: Callable[[sqlite3.Connection], None],
        update: Callable[[sqlite3.Connection], bool],
    ) -> None:
        """Register functions that follow each change.

        ``watch`` prepares each connection that writes. ``update`` is called before each commit; it
        returns whether it changed what searches read.
        """
        self._watch, self._update = watch, update

    @staticmethod
    def create(path: Path, settings: dict[str, Any]) -> None:
        """Create a catalog; it gets its name only when it is complete."""
        unfinished = path.with_name(path.name + ".new")
        for end in ("", "-wal", "-shm", "-journal"):  # left by a process that was stopped
            unfinished.with_name(unfinished.name + end).unlink(missing_ok=True)
        with sqlite_errors(path):
            connection = sqlite3.connect(unfinished)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.executescript(SCHEMA)
                values = {"format": FORMAT, "version": 0, "documents": 0, "log_from": 0, **settings}
                connection.executemany(
                    "INSERT INTO meta VALUES (?, ?)",
                    [(key, json.dumps(value)) for key, value in values.items()],
                )
                Seals(connection).seal()
                connection.commit()
            finally:
                connection.close()
        unfinished.replace(path)

    def close(self) -> None:
        """Close every thread's connection."""
        with self._opening:
            for own in list(self._connections):
                own.connection.close()
            self._local = threading.local()

    @property
    def _own(self) -> _OwnConnection:
        own: _OwnConnection | None = getattr(self._local, "own", None)
        if own is None or own.process != os.getpid():  # SQLite must not cross a fork
            with sqlite_errors(self.path):
                own = _OwnConnection(self.connect())
            with self._opening:
                self._connections.add(own)
                self._local.own = own
        return own

    def connect(self) -> sqlite3.Connection:
        """Return a new connection with the settings of every thread's connection."""
        for end in ("", "-wal", "-shm", "-journal"):
            if self.path.with_name(self.path.name + end).is_symlink():
                raise BadIndex(
                    f"{self.path}{end} is a link, which may lead out of the index: put the file "
                    "itself there"
                )
        if not self.path.exists():  # sqlite3 would make an empty one
            raise BadIndex(f"{self.path.parent} is not an index: it has no {self.path.name}")
        try:
            return self._opened("mode=rw")
        except sqlite3.OperationalError as error:
            # A folder that cannot be written has no room for the write-ahead log's shared memory.
            # Nobody can be writing there either, so reading it as immutable is safe; not so if
            # a writer has locked it, or there is a log.
            if "locked" in str(error) or _has_log(self.path):
                raise
            try:
                return self._opened("mode=ro&immutable=1")
            except sqlite3.OperationalError:
                raise error from None

    def _opened(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?{mode}",
            uri=True, timeout=30, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA temp_store=FILE")
            connection.execute("PRAGMA journal_size_limit=67108864")
            connection.execute("PRAGMA cache_size=-32768")
            row = connection.execute("SELECT value FROM meta WHERE key='format'").fetchone()
            if row is None or row[0] != str(FORMAT):
                raise BadIndex(
                    f"{self.path.parent} has index format {row[0] if row else 'none'!s:.40}; this "
                    f"strop reads format {FORMAT}. Build the index again in another folder, or "
                    "install the strop that made it"
                )
            if _schema_of(connection) != _expected_schema():
                raise BadIndex(
                    f"{self.path} has other tables, views or triggers than strop makes: it is of "
                    "another program, or was changed. Restore it from a backup"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Give one consistent view of the catalog, whatever a writer does meanwhile."""
        own = self._own
        if own.connection.in_transaction:  # a search calls this many times: it must cost nothing
            return nullcontext(own.connection)
        return self._read_transaction(own)

    @contextmanager
    def _read_transaction(self, own: _OwnConnection) -> Iterator[sqlite3.Connection]:
        with sqlite_errors(self.path):
            own.connection.execute("BEGIN")
            own.numbers = {}
            try:
                yield own.connection
            finally:
                own.numbers = None
                if own.connection.in_transaction:  # an error may have ended it already
                    own.connection.execute("COMMIT")

    def read_anew(self) -> None:
        """Within ``reading``: start a new view, with what was committed since the old one."""
        own = self._own
        if not own.is_writing:
            own.connection.execute("COMMIT")
            own.connection.execute("BEGIN")
            own.numbers = {}

    @property
    def numbers(self) -> dict[str, int]:
        """The settings that this thread's read transaction has read; empty outside of one."""
        numbers = self._own.numbers
        return {} if numbers is None else numbers

    @property
    def is_writing(self) -> bool:
        """Whether this thread is within ``writing``."""
        return self._own.is_writing

    @contextmanager
    def writing(self, searchable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is committed, or nothing. An inner one is part of the outer.

        If nothing ``searchable`` changes, readers need not read the index again.
        """
        own = self._own
        connection, seals = own.connection, own.seals
        if own.is_writing:
            yield connection
            return
        with sqlite_errors(self.path):
            if not own.is_watched:
                seals.watch()
                self._watch(connection)
                own.is_watched = True
            connection.execute("BEGIN IMMEDIATE")
            own.is_writing = True
            try:
                yield connection
                if self._update(connection) or searchable:
                    connection.execute(
                        "UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'version'"
                    )
                    with reporting_damage(self.path, "settings"):
                        _mark_version(connection)
                seals.store()
                connection.execute("COMMIT")
            except BaseException:
                seals.forget()
                if connection.in_transaction:  # a full disk may have rolled it back already
                    connection.execute("ROLLBACK")
                raise
            finally:
                own.is_writing = False

    def tables_changed_by_others(self) -> tuple[list[str], bool]:
        """Return the tables with rows that another program changed (``Seals.broken``)."""
        with self.reading():
            return self._own.seals.broken()

    def seal(self) -> None:
        """Accept all rows as they are now: ``tables_changed_by_others`` names none of them."""
        with self.writing():
            self._own.seals.seal()

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Within ``reading`` or ``writing``: run one statement."""
        return self._own.connection.execute(sql, values)

    def executemany(self, sql: str, values: Iterable[Sequence[object]]) -> None:
        """Within ``writing``: run one statement with each of ``values``."""
        self._own.connection.executemany(sql, values)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one statement, read in the present transaction or in a new one."""
        with self.reading() as connection:
            try:
                return connection.execute(sql, values).fetchall()
            except UnicodeEncodeError:  # a lone surrogate; no stored text has one
                return []

    def column(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Return the first cell of each row of one statement, as ``rows``."""
        return [row[0] for row in self.rows(sql, values)]

    def named_rows(self, sql: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Return the rows of one statement, as ``rows``, with their cells by name."""
        with self.reading() as connection:
            cursor = connection.execute(sql, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def row(self, sql: str, values: Sequence[object] = ()) -> Any:
        """Return the first row of one statement, as ``rows``; None if there is none."""
        rows = self.rows(sql, values)
        return rows[0] if rows else None

    def value(self, sql: str, values: Sequence[object] = ()) -> Any:
        """Return the single value of one statement, as ``rows``."""
        return self.rows(sql, values)[0][0]

    def free_bytes(self) -> int:
        """Return how many bytes of the file ``shrink`` would free; 0 if they are few."""
        with self.reading():
            free, pages, size = (
                int(self.value(f"PRAGMA {name}"))
                for name in ("freelist_count", "page_count", "page_size")
            )
        return free * size if free > _WORTH_A_VACUUM * pages else 0

    def shrink(self) -> None:
        """Return the file's free pages to the system, if they are many, and shorten its log."""
        worth_it = self.free_bytes() > 0
        connection = self._own.connection
        with sqlite_errors(self.path):
            if worth_it:
                connection.execute("VACUUM")
            # A reader in the middle of a search may need the log: then it is not shortened now.
            (timeout,) = connection.execute("PRAGMA busy_timeout").fetchone()
            connection.execute("PRAGMA busy_timeout=0")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute(f"PRAGMA busy_timeout={timeout}")


def damaged(path: Path, problem: str) -> IndexDamaged:
    """Return the error for a catalog with rows that strop cannot have written."""
    return IndexDamaged(
        f"{path}: {problem}. Restore the catalog from a backup, or build the index again in another"
        " folder"
    )


DECODING_ERRORS = (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError)
"""Errors that reading a cell can raise if its type is not the one that strop writes."""


@contextmanager
def reporting_damage(path: Path, what: str) -> Iterator[None]:
    """Turn errors from cells that strop cannot have written into ``IndexDamaged``."""
    try:
        yield
    except DECODING_ERRORS as error:
        raise IndexDamaged(
            f"{path}: the {what} make no sense ({error}). To see what is wrong: strop check "
            f"{path.parent}; restore the catalog from a backup, or build the index again"
        ) from error


def _schema_of(connection: sqlite3.Connection) -> set[str]:
    """Return the statements that create a database's tables, indexes, views and triggers."""
    rows = connection.execute("SELECT sql FROM sqlite_schema WHERE sql NOT NULL").fetchall()
    return {str(sql) for (sql,) in rows}


@cache
def _expected_schema() -> set[str]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return _schema_of(connection)


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into errors of strop, which name the remedy if it is known."""
    try:
        yield
    # A text that is not UTF-8 raises DatabaseError; a name or message that is not, the other one.
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # The error quotes a text of the user's: it must not decide the kind of error, or be shown.
        reason = str(error).partition(" with text ")[0]
        if "full" in reason or "disk I/O error" in reason:
            raise DiskFull(
                f"{path} cannot be read or written ({reason}): the disk is full or failing, or the "
                "network drive is gone. What was committed is safe: free some space, or look at "
                "the disk, then run the command again"
            ) from error
        if "readonly" in reason or "unable to open" in reason:
            message = f"{path.parent} cannot be written ({reason}): check its permissions"
            raise BadIndex(message) from error
        unreadable = "not a database", "malformed", "no such table", "decode"
        if any(phrase in reason for phrase in unreadable):
            raise IndexDamaged(
                f"{path} is not a catalog strop can read ({reason}). Restore it from a backup, or "
                "build the index again in another folder"
            ) from error
        raise BadIndex(f"{path}: {reason}") from error


def _mark_version(connection: sqlite3.Connection) -> None:
    """Give the new version a random mark: a restored backup repeats version numbers."""
    meta = dict(connection.execute("SELECT key, value FROM meta WHERE key IN ('version', 'marks')"))
    marks = read_marks(meta.get("marks"))
    marks[str(meta["version"])] = secrets.token_hex(4)
    newest = json.dumps(dict(list(marks.items())[-_MARKS:]))
    connection.execute("DELETE FROM meta WHERE key = 'marks'")
    connection.execute("INSERT INTO meta VALUES ('marks', ?)", (newest,))


def read_marks(stored: Any) -> dict[str, Any]:
    """Return the marks of the newest versions, by version; none if they cannot be read."""
    try:
        marks = json.loads(stored)
    except (ValueError, TypeError, RecursionError):
        return {}
    return marks if isinstance(marks, dict) else {}
