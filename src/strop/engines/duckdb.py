"""A copy in one DuckDB file. A search compares the signs of all rows, then the nearest themselves.

A publisher changes a copy of the file beside it and then puts that in its place. So readers of any
process never wait and never see a half-published file.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from strop.common.arrays import Ints
from strop.engines.base import Address, EngineError, Found, Record, Stored, tested
from strop.errors import BadInput, IndexBusy, MissingExtra
from strop.filters import Test
from strop.types import Document, Vectors

_OPS = {"in": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_TABLES = """
CREATE TABLE documents (number BIGINT PRIMARY KEY, id VARCHAR UNIQUE, stamp VARCHAR, title VARCHAR,
    "text" VARCHAR, metadata JSON, queries JSON, packed BLOB);
CREATE TABLE rows (number BIGINT, own BOOLEAN, {codes}, vector FLOAT[{dim}]);
CREATE TABLE own (number BIGINT, vector FLOAT[{dim}]);
CREATE TABLE facts (field BLOB, kind UTINYINT, value BLOB, number BIGINT);
CREATE TABLE pieces (name VARCHAR PRIMARY KEY, content BLOB);
CREATE MACRO sharp(query, k := 10, alpha := 1.0, temperature := 0.1, nearest := 150) AS TABLE
    WITH proposed AS (
        SELECT DISTINCT number FROM (SELECT number FROM rows
            ORDER BY array_inner_product(vector, query::FLOAT[{dim}]) DESC LIMIT nearest)
    ), fetched AS (
        SELECT number, own, vector,
            array_inner_product(vector, query::FLOAT[{dim}])::DOUBLE AS similarity
        FROM rows WHERE number IN (SELECT number FROM proposed)
    ), weighted AS (
        SELECT number, own, vector, similarity,
            CASE WHEN own THEN 1 ELSE exp((similarity - max(similarity) OVER same)
                / temperature) END AS weight
        FROM fetched WINDOW same AS (PARTITION BY number, own)
    ), mixed AS (
        SELECT number, vector, similarity,
            CASE WHEN own THEN 1 ELSE alpha * weight / sum(weight) OVER same END AS share
        FROM weighted WINDOW same AS (PARTITION BY number, own)
    ), lengths AS (
        SELECT number, sqrt(sum(a.share * b.share * array_inner_product(a.vector, b.vector)))
            AS length
        FROM mixed AS a JOIN mixed AS b USING (number) GROUP BY number
    ), scored AS (
        SELECT number, sum(share * similarity) AS along FROM mixed GROUP BY number
    )
    SELECT id, along / length AS score, title, "text", metadata
    FROM scored JOIN lengths USING (number) JOIN documents USING (number)
    WHERE length > 1e-6 ORDER BY score DESC, number LIMIT k;
"""
"""The macro has lines (1) to (4g) of search/formula.py in one query, for programs without strop."""
_NAMES = {"documents", "rows", "own", "facts", "pieces"}
_LEAST, _SHARE = 3000, 20
"""The rows whose signs are nearest are compared themselves: so many, or one in so many of all."""


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
        self._counted: tuple[object, int] = None, 0
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
        except (duckdb.CatalogException, duckdb.BinderException) as error:
            raise EngineError(
                f"{self._path} holds no copy but other tables: strop publish INDEX URL makes one in"
                " a new file"
            ) from error
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
        finally:
            with suppress(Exception):
                self._writer.close()
            self._writer = None
            if not self._changed:  # nothing to go on with
                self._new.unlink(missing_ok=True)
            lock.release()

    def _begin(self, dim: int) -> None:
        """Open the file that a stopped publisher left, or a copy of the present one."""
        self._changed = self._new.exists()
        self._refuse_foreign()
        with self._explained():
            if not self._changed:
                begun = self._new.with_name(self._new.name + ".begun")
                begun.unlink(missing_ok=True)
                if self._path.exists() and self._present():
                    shutil.copyfile(self._path, begun)
                else:
                    codes = ", ".join(f"c{at} UBIGINT" for at in range(-(-dim // 64)))
                    script = _TABLES.format(dim=dim, codes=codes)
                    _open(begun, read_only=False, script=script).close()
                os.replace(begun, self._new)
            self._writer = _open(self._new, read_only=False)

    def _refuse_foreign(self) -> None:
        """Refuse a file with the tables of something else: it would be replaced."""
        names = {name for (name,) in self._rows("SELECT table_name FROM information_schema.tables")}
        is_copy = {"documents", "pieces"} <= names and (names <= _NAMES or self._present())
        if names and not is_copy:
            shown = ", ".join(sorted(names)[:5])
            raise BadInput(f"{self._path} is no copy (its tables: {shown}): publish to a new file")

    def _present(self) -> bool:
        """Tell whether the file's tables are those of this version; others are made anew."""
        sql = "SELECT 1 FROM duckdb_columns() WHERE table_name = 'rows' AND column_name = 'own'"
        return bool(self._rows(sql))

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
        self,
        query_vectors: Vectors,
        rows: int,
        own: bool,
        among: Ints | None,
        also: Sequence[Ints] | None = None,
        known: Collection[int] = (),
    ) -> list[dict[int, Found]]:
        """Return for each query the documents of its nearest rows."""
        where, given = "", list[list[Any]]([[]])
        if among is not None:
            where, given = "WHERE number IN (SELECT unnest(?::BIGINT[]))", [[among]]
        elif not own:
            codes = _codes(query_vectors)
            # A join by rowid reads the vectors of these rows only.
            where = (
                f"WHERE rowid IN (SELECT rowid FROM rows ORDER BY {_differing(codes.shape[1])}"
                " LIMIT ?)"
            )
            most = max(_LEAST, 4 * rows, self._total() // _SHARE)
            given = [[*one, most] for one in codes.tolist()]
        sql = (
            "SELECT number, id, packed FROM documents WHERE number IN"
            f" (SELECT number FROM {'own' if own else 'rows'} {where}"
            f" ORDER BY array_inner_product(vector, ?::FLOAT[{query_vectors.shape[1]}]) DESC"
            " LIMIT ?) OR number IN (SELECT unnest(?::BIGINT[]))"
        )
        more = [np.empty(0, np.int64)] * len(query_vectors) if also is None else also
        given = given if len(given) == len(query_vectors) else given[:1] * len(query_vectors)
        return [
            _found(self._rows(sql, *before, vector, rows, wanted))
            for before, vector, wanted in zip(given, query_vectors, more, strict=True)
        ]

    def _total(self) -> int:
        """Return the number of rows, counted once for each file."""
        with self._lock:
            self._current()
            if self._counted[0] != self._opened:
                found = self._rows("SELECT count(*) FROM rows")
                self._counted = self._opened, found[0][0] if found else 0
            return self._counted[1]

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
        rows: dict[Any, Any] = {
            "number": np.repeat(numbers, [len(one.rows) for one in records]),
            "own": np.concatenate([np.arange(len(one.rows)) < one.own for one in records]),
        }
        vectors = np.concatenate([one.rows for one in records])
        first = rows["own"]
        own = {"number": rows["number"][first], "vector": vectors[first]}
        rows |= dict(enumerate(_codes(vectors).T)) | {"vector": vectors}
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


def _codes(vectors: Vectors) -> Any:
    """Return the signs of vectors (n, dim) as integers (n, words)."""
    bits = np.packbits(vectors > 0, axis=1)
    return np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))).view(np.uint64)


def _differing(words: int) -> str:
    """Return the number of signs that differ from those given, as an expression."""
    parts = (f"bit_count(xor(c{at}, ?::UBIGINT))::USMALLINT" for at in range(words))
    return " + ".join(parts)


def _open(path: Path, read_only: bool, script: str = "") -> Any:
    """Return a connection of its own: by name, DuckDB would give an older file of this name."""
    import duckdb

    connection = duckdb.connect(":memory:")
    quoted = str(path).replace("'", "''")
    mode = "READ_ONLY" if read_only else "READ_WRITE"
    connection.execute(f"ATTACH '{quoted}' AS copy ({mode}); USE copy;")
    # The file may be somebody else's: a view in it must read no other file and no address.
    connection.execute("SET enable_external_access=false; SET lock_configuration=true;")
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
