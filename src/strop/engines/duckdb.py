"""A copy in one DuckDB file: every search reads all rows, so the nearest ones are exact.

A publisher changes a copy of the file beside it and then puts that in its place. So readers of any
process never wait and never see a half-published file.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from strop.common.arrays import Ints
from strop.engines.base import Address, EngineError, Found, Record, Stored, tested
from strop.errors import IndexBusy, MissingExtra
from strop.filters import Test
from strop.types import Document, Vectors

_OPS = {"in": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_TABLES = """
CREATE TABLE documents (number BIGINT PRIMARY KEY, id VARCHAR UNIQUE, stamp VARCHAR, title VARCHAR,
    "text" VARCHAR, metadata JSON, queries JSON, packed BLOB);
CREATE TABLE rows (number BIGINT, vector FLOAT[{dim}]);
CREATE TABLE own (number BIGINT, vector FLOAT[{dim}]);
CREATE TABLE facts (field BLOB, kind UTINYINT, value BLOB, number BIGINT);
CREATE TABLE pieces (name VARCHAR PRIMARY KEY, content BLOB);
"""


def connect(address: Address) -> DuckDB:
    """Return the engine of a URL such as ``duckdb:///folder/copy.duckdb``."""
    try:
        import duckdb  # noqa: F401
    except ImportError:
        raise MissingExtra("DuckDB", "duckdb") from None
    return DuckDB(address)


class DuckDB:
    """A copy in a file (``base.Engine``)."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._path = Path(address.path)
        self._new = self._path.with_name(self._path.name + ".new")
        self._lock = threading.RLock()
        self._reader: Any = None
        self._writer: Any = None
        self._opened: object = None
        self._changed = False

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = self._opened = None

    # -- connections ----------------------------------------------------------------------

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, from the file as it is now; none without a copy."""
        with self._lock, self._explained():
            connection = self._writer or self._current()
            if connection is None:
                return []
            found: list[tuple[Any, ...]] = connection.execute(sql, list(values)).fetchall()
            return found

    def _current(self) -> Any:
        """Return a connection to the file that has the name now."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        if self._opened != (status.st_ino, status.st_mtime_ns):
            self.close()
            self._reader = _open(self._path, read_only=True)
            self._opened = status.st_ino, status.st_mtime_ns
        return self._reader

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            raise EngineError(f"{self._path}: {str(error).splitlines()[0]:.200}") from error

    @contextmanager
    def publishing(self, dim: int) -> Iterator[None]:
        """Be the only publisher; the file is replaced at the end."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._path.with_name(self._path.name + ".lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise IndexBusy(f"another process is publishing to {self.address.shown}") from None
        try:
            self._begin(dim)
            yield
            with self._explained():
                self._writer.execute("CHECKPOINT")
                self._writer.close()
            if self._changed:
                os.replace(self._new, self._path)
            else:
                self._new.unlink()
        finally:
            with suppress(Exception):
                self._writer.close()
            self._writer = None
            lock.release()

    def _begin(self, dim: int) -> None:
        """Open the file that a stopped publisher left, or a copy of the present one."""
        self._changed = self._new.exists()
        with self._explained():
            if not self._changed:
                begun = self._new.with_name(self._new.name + ".begun")
                begun.unlink(missing_ok=True)
                if self._path.exists():
                    shutil.copyfile(self._path, begun)
                else:
                    _open(begun, read_only=False, script=_TABLES.format(dim=dim)).close()
                os.replace(begun, self._new)
            self._writer = _open(self._new, read_only=False)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._lock, self._explained():
            self._writer.execute("BEGIN")
            self._changed = True
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                with suppress(Exception):
                    self._writer.execute("ROLLBACK")
                raise

    # -- reading --------------------------------------------------------------------------

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return those of some pieces that are there."""
        sql = "SELECT name, content FROM pieces WHERE name IN (SELECT unnest(?::VARCHAR[]))"
        return {name: bytes(content) for name, content in self._rows(sql, list(names))}

    def nearest(
        self, query_vectors: Vectors, rows: int, own: bool, among: Ints | None
    ) -> list[dict[int, Found]]:
        """Return for each query the documents of its nearest rows."""
        where = "" if among is None else "WHERE number IN (SELECT unnest(?::BIGINT[]))"
        sql = (
            "SELECT number, id, packed FROM documents WHERE number IN"
            f" (SELECT number FROM {'own' if own else 'rows'} {where}"
            f" ORDER BY array_inner_product(vector, ?::FLOAT[{query_vectors.shape[1]}]) DESC"
            " LIMIT ?)"
        )
        given = [] if among is None else [among]
        return [_found(self._rows(sql, *given, vector, rows)) for vector in query_vectors]

    def found(self, numbers: Ints) -> dict[int, Found]:
        """Return the ids and vectors of documents."""
        return _found(self._of("number, id, packed", numbers))

    def documents(self, numbers: Ints) -> dict[int, Stored]:
        """Return documents with the texts of their queries."""
        return {
            number: Stored(Document(id_, text, title, json.loads(metadata)), json.loads(queries))
            for number, id_, title, text, metadata, queries in self._of(
                'number, id, title, "text", metadata, queries', numbers
            )
        }

    def ids(self, numbers: Ints) -> dict[int, str]:
        """Return the ids of documents."""
        return dict(self._of("number, id", numbers))

    def stamps(self, numbers: Ints) -> dict[int, str]:
        """Return the stamps of records."""
        return dict(self._of("number, stamp", numbers))

    def _of(self, columns: str, numbers: Ints) -> list[Any]:
        sql = f"SELECT {columns} FROM documents WHERE number IN (SELECT unnest(?::BIGINT[]))"
        return self._rows(sql, numbers)

    def every(self) -> Ints:
        """Return the numbers of all documents."""
        return _numbers(self._rows("SELECT number FROM documents"))

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids."""
        sql = "SELECT number FROM documents WHERE id IN (SELECT unnest(?::VARCHAR[]))"
        return _numbers(self._rows(sql, list(ids)))

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test."""
        field, kind, values = tested(test)
        sql = (
            "SELECT number FROM facts WHERE field = ? AND kind = ?"
            f" AND value {_OPS[test.op]} ANY (SELECT unnest(?::BLOB[]))"
        )
        return _numbers(self._rows(sql, field, kind, values))

    def size(self) -> int:
        """Return the bytes of the file."""
        return self._path.stat().st_size

    # -- writing --------------------------------------------------------------------------

    def put(self, records: Sequence[Record]) -> None:
        """Store records in one transaction."""
        numbers = np.array([one.number for one in records], np.int64)
        facts = [(*fact, one.number) for one in records for fact in sorted(one.facts)]
        rows = {
            "number": np.repeat(numbers, [len(one.rows) for one in records]),
            "vector": np.concatenate([one.rows for one in records]),
        }
        first = np.concatenate([np.arange(len(one.rows)) < one.own for one in records])
        own = {name: values[first] for name, values in rows.items()}
        with self._transaction() as connection:
            self._delete(connection, numbers)
            _insert(connection, "documents", dict(enumerate(zip(*map(_row, records), strict=True))))
            _insert(connection, "rows", rows)
            _insert(connection, "own", own)
            _insert(connection, "facts", dict(enumerate(zip(*facts, strict=True))))

    def remove(self, numbers: Ints) -> None:
        """Remove documents."""
        with self._transaction() as connection:
            self._delete(connection, numbers)

    @staticmethod
    def _delete(connection: Any, numbers: Ints) -> None:
        for table in ("documents", "rows", "own", "facts"):
            connection.execute(
                f"DELETE FROM {table} WHERE number IN (SELECT unnest(?::BIGINT[]))", [numbers]
            )

    def prepare(self) -> None:
        """Nothing: all rows are read."""

    def write(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces."""
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM pieces WHERE name IN (SELECT unnest(?::VARCHAR[]))", [list(pieces)]
            )
            _insert(connection, "pieces", {0: list(pieces), 1: list(pieces.values())})

    def forget(self, prefixes: Sequence[str], names: Sequence[str]) -> None:
        """Remove pieces."""
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM pieces WHERE name IN (SELECT unnest(?::VARCHAR[])) OR EXISTS"
                " (SELECT 1 FROM (SELECT unnest(?::VARCHAR[]) AS prefix)"
                " WHERE name = prefix OR starts_with(name, prefix || '.'))",
                [list(names), list(prefixes)],
            )


def _open(path: Path, read_only: bool, script: str = "") -> Any:
    """Return a connection of its own: by name, DuckDB would give an older file of this name."""
    import duckdb

    connection = duckdb.connect(":memory:")
    quoted = str(path).replace("'", "''")
    mode = "READ_ONLY" if read_only else "READ_WRITE"
    connection.execute(f"ATTACH '{quoted}' AS copy ({mode}); USE copy;")
    connection.execute(script) if script else None
    return connection


def _insert(connection: Any, table: str, columns: Mapping[Any, Any]) -> None:
    """Insert columns, by Arrow: row by row it takes a hundred times as long."""
    import pyarrow as pa

    if not columns or not len(next(iter(columns.values()))):
        return
    arrays = []
    for values in columns.values():
        rows = isinstance(values, np.ndarray) and values.ndim == 2
        array = pa.array(values.ravel() if rows else values)
        arrays.append(pa.FixedSizeListArray.from_arrays(array, values.shape[1]) if rows else array)
    connection.register("arriving", pa.table(arrays, names=[str(name) for name in columns]))
    connection.execute(f"INSERT INTO {table} SELECT * FROM arriving")
    connection.unregister("arriving")


def _row(record: Record) -> list[Any]:
    one = record.document
    texts = json.dumps(dict(one.metadata)), json.dumps(record.queries)
    return [record.number, one.id, record.stamp, one.title, one.text, *texts, record.packed]


def _found(rows: list[tuple[Any, ...]]) -> dict[int, Found]:
    return {number: Found(id_, packed) for number, id_, packed in rows}


def _numbers(rows: list[tuple[Any, ...]]) -> Ints:
    return np.unique(np.array([number for (number,) in rows], np.int64))
