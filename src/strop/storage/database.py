"""The catalog's SQLite file: making it, connecting, transactions, errors that say what to do."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from strop.errors import BadIndex, IndexDamaged, StropError

D = TypeVar("D", bound="Database")

FORMAT = 2
OLDER = (1,)
"""Formats that upgrade.py makes into this one."""

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL UNIQUE,
    digest   BLOB NOT NULL,
    empty    INTEGER NOT NULL,
    title    TEXT NOT NULL,
    text     TEXT NOT NULL,
    metadata TEXT NOT NULL
);
CREATE INDEX empty_documents ON documents (number) WHERE empty;
CREATE TABLE sets (
    set_id   INTEGER PRIMARY KEY AUTOINCREMENT,
    name     TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL
);
CREATE TABLE queries (
    set_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    texts  TEXT NOT NULL,
    PRIMARY KEY (set_id, number)
) WITHOUT ROWID;
CREATE TABLE waiting (
    set_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    texts  TEXT,
    digest BLOB,
    PRIMARY KEY (set_id, number)
) WITHOUT ROWID;
CREATE TABLE files (
    set_id INTEGER PRIMARY KEY,
    name   TEXT NOT NULL,
    dtype  TEXT NOT NULL,
    rows   INTEGER NOT NULL DEFAULT 0,
    live   INTEGER NOT NULL DEFAULT 0,
    lists  INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE checksums (
    set_id INTEGER NOT NULL,
    block  INTEGER NOT NULL,
    sums   BLOB NOT NULL,
    PRIMARY KEY (set_id, block)
) WITHOUT ROWID;
CREATE TABLE spans (
    set_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    start  INTEGER NOT NULL,
    count  INTEGER NOT NULL,
    made   INTEGER NOT NULL,
    digest BLOB NOT NULL,
    older  INTEGER NOT NULL,
    PRIMARY KEY (set_id, number)
) WITHOUT ROWID;
CREATE INDEX older_spans ON spans (set_id, number) WHERE older;
CREATE TABLE changes (
    version INTEGER NOT NULL,
    first   INTEGER NOT NULL,
    last    INTEGER NOT NULL,
    PRIMARY KEY (version, first)
) WITHOUT ROWID;
CREATE TABLE neighbors (
    number       INTEGER PRIMARY KEY,
    made         INTEGER NOT NULL,
    others       BLOB,
    similarities BLOB
);
CREATE TABLE selections (
    number       INTEGER PRIMARY KEY,
    others       BLOB NOT NULL,
    similarities BLOB NOT NULL,
    sizes        BLOB NOT NULL,
    silhouette   REAL NOT NULL
);
CREATE TABLE replies (
    key           TEXT PRIMARY KEY,
    number        INTEGER NOT NULL,
    lm            TEXT NOT NULL,
    options       TEXT NOT NULL,
    settings      TEXT NOT NULL,
    model         TEXT NOT NULL,
    text          TEXT NOT NULL,
    truncated     INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    seconds       REAL NOT NULL,
    created       TEXT NOT NULL
);
CREATE TABLE failures (
    key     TEXT PRIMARY KEY,
    number  INTEGER NOT NULL,
    error   TEXT NOT NULL,
    final   INTEGER NOT NULL,
    created TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE batches (
    id         TEXT PRIMARY KEY,
    provenance TEXT NOT NULL,
    requests   INTEGER NOT NULL,
    submitted  TEXT NOT NULL,
    collected  TEXT
) WITHOUT ROWID;
CREATE TABLE sent (
    name   TEXT PRIMARY KEY,
    key    TEXT NOT NULL,
    number INTEGER NOT NULL,
    batch  TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX sent_keys ON sent (key);
INSERT INTO files (set_id, name, dtype) VALUES (0, 'documents.f32', 'float32');
"""


class OldFormat(BadIndex):
    """An index of an older strop, which ``upgrade`` can make into one of this."""

    def __init__(self, catalog: Path) -> None:
        super().__init__(
            f"{catalog.parent} was made by an older strop: open it once where it can be written, "
            f"and it is brought to format {FORMAT}"
        )


class _Held:
    """A thread's connection, closed when the thread ends or the catalog is dropped."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


class Database:
    """One SQLite file, a connection for each thread, and two kinds of transaction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._held: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._opening = threading.Lock()

    @classmethod
    def create(cls: type[D], path: Path, meta: dict[str, Any], documents: tuple[str, str]) -> D:
        """Make a new catalog; it appears under its name only when it is complete.

        ``documents`` are the name and type of the file of the documents' own vectors.
        """
        unfinished = path.with_name(path.name + ".new")
        for end in ("", "-wal", "-shm", "-journal"):  # left by one that was stopped
            unfinished.with_name(unfinished.name + end).unlink(missing_ok=True)
        with explained(path):
            connection = sqlite3.connect(unfinished)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.executescript(SCHEMA)
                values = {"format": FORMAT, "version": 0, "documents": 0, "log_from": 0, **meta}
                connection.executemany(
                    "INSERT INTO meta VALUES (?, ?)",
                    [(key, json.dumps(value)) for key, value in values.items()],
                )
                connection.execute(
                    "UPDATE files SET name = ?, dtype = ? WHERE set_id = 0", documents
                )
                connection.commit()
            finally:
                connection.close()
        unfinished.replace(path)
        return cls(path)

    def close(self) -> None:
        """Close every thread's connection."""
        with self._opening:
            for held in list(self._held):
                held.connection.close()
            self._local = threading.local()

    @property
    def _connection(self) -> sqlite3.Connection:
        held: _Held | None = getattr(self._local, "held", None)
        if held is None or self._local.process != os.getpid():  # SQLite must not cross a fork
            with explained(self.path):
                held = _Held(self._connect())
            with self._opening:
                self._held.add(held)
                self._local.held, self._local.process = held, os.getpid()
        return held.connection

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists():  # sqlite3 would make an empty one
            raise BadIndex(f"{self.path.parent} is not an index: it has no {self.path.name}")
        # A folder that cannot be written has no room for the write-ahead log's shared memory;
        # nobody can be writing there either, so reading it as immutable is safe.
        failure: sqlite3.Error | None = None
        for mode in ("mode=rw", "mode=ro&immutable=1"):
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?{mode}",
                uri=True, timeout=30, isolation_level=None, check_same_thread=False,
            )  # fmt: skip
            try:
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("PRAGMA temp_store=FILE")
                connection.execute("PRAGMA journal_size_limit=67108864")
                connection.execute("PRAGMA cache_size=-32768")
                found = connection.execute("SELECT value FROM meta WHERE key='format'").fetchone()
            except sqlite3.OperationalError as error:
                connection.close()
                failure = failure or error
                locked = "locked" in str(error)  # by a writer: not immutable at all
                if mode.startswith("mode=rw") and not locked and not _has_log(self.path):
                    continue
                break
            except sqlite3.DatabaseError:
                connection.close()
                raise
            if found is None or json.loads(found[0]) != FORMAT:
                connection.close()
                said = json.loads(found[0]) if found else "none"
                if said in OLDER:
                    raise OldFormat(self.path)
                raise BadIndex(
                    f"{self.path.parent} has index format {said}; this strop reads format {FORMAT}."
                    " Install the strop that made it, or build it again."
                )
            return connection
        assert failure is not None
        raise failure

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the catalog, whatever a writer does meanwhile."""
        connection = self._connection
        if connection.in_transaction:
            yield connection
            return
        with explained(self.path):
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:  # an error may have ended it already
                    connection.execute("COMMIT")

    def read_anew(self) -> None:
        """Within ``reading``: see what was committed since it began."""
        connection = self._connection
        if not getattr(self._local, "writing", False):
            connection.execute("COMMIT")
            connection.execute("BEGIN")

    @contextmanager
    def outside_transactions(self) -> Iterator[sqlite3.Connection]:
        """For what SQLite does only there."""
        with explained(self.path):
            yield self._connection

    @contextmanager
    def writing(self, searchable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is kept, or none. One inside another is part of it.

        Where nothing ``searchable`` changes, readers need not look at the index anew.
        """
        connection, local = self._connection, self._local
        if getattr(local, "writing", False):
            yield connection
            return
        with explained(self.path):
            connection.execute("BEGIN IMMEDIATE")
            local.writing = True
            try:
                yield connection
                if searchable:
                    connection.execute(
                        "UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'version'"
                    )
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk may have rolled it back already
                    connection.execute("ROLLBACK")
                raise
            finally:
                local.writing = False


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ones that say what to do."""
    try:
        yield
    except StropError:
        raise
    except sqlite3.DatabaseError as error:
        said = str(error)
        if "full" in said:
            raise BadIndex(
                f"the disk of {path.parent} is full. What was committed is safe: free some space"
                " and run the command again"
            ) from error
        if "readonly" in said or "unable to open" in said:
            raise BadIndex(
                f"{path.parent} cannot be written ({said}): check its permissions"
            ) from (error)
        if "not a database" in said or "malformed" in said or "no such table" in said:
            raise IndexDamaged(
                f"{path} is not a catalog strop can read ({said}). Restore it from a backup, or "
                "build the index again in another folder"
            ) from error
        raise BadIndex(f"{path}: {said}") from error
