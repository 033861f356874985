"""A copy in one DuckDB file. A search compares the signs of all rows, then the nearest vectors.

A publisher changes a second file in the same folder, and then replaces the first file with it. So
readers of any process never wait and never see a half-published file.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from strop.common.arrays import Ints
from strop.engines.base import (
    Address,
    Cached,
    EngineError,
    PackedVectors,
    Record,
    engine_errors,
    fact_rows,
    locked,
    packed_by_number,
    searched_rows,
)
from strop.engines.sql import Row, SqlEngine
from strop.errors import BadInput
from strop.types import Vectors

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
"""The macro computes lines (1) to (4g) of search/formula.py, for programs without strop."""
_TABLE_NAMES = {"documents", "rows", "own", "facts", "pieces"}
_LISTS = {"numbers": "BIGINT", "texts": "VARCHAR", "blobs": "BLOB"}
_NAMES = {
    "value": "?",
    **{name: name for name in _TABLE_NAMES},
    **{name: f"(SELECT unnest(?::{type_}[]))" for name, type_ in _LISTS.items()},
}
_MIN_COMPARED, _COMPARED_DIVISOR = 3000, 20
"""Rows with the nearest signs whose vectors are compared: at least 3000, and one in 20 of all."""


class DuckDB(SqlEngine):
    """A copy in a file, at ``duckdb:///folder/copy.duckdb``."""

    by_number = ("documents", "rows", "own", "facts")
    names = _NAMES

    def __init__(self, address: Address) -> None:
        self.address = address
        self._path = Path(address.path)
        self._new = self._sibling(".new")
        self._lock = threading.RLock()
        self._reader: Any = None
        self._writer: Any = None
        self._opened: object = None
        self._counted: tuple[object, int] = None, 0
        self._changed = False

    def _sibling(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = self._opened = None

    # -- connections ----------------------------------------------------------------------

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """Return the rows of a statement, from the current file; none without a copy."""
        with self._lock, self._translated_errors():
            connection = self._writer or self._current()
            if connection is None:
                return []
            statement = sql.format_map(self.names)
            result: list[Row] = connection.execute(statement, values).fetchall()
            return result

    def _current(self) -> Any:
        """Return a connection to the current file: a publisher may have replaced it."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        if self._opened != (status.st_ino, status.st_mtime_ns):
            self.close()
            self._reader = _open(self._path, "READ_ONLY")
            self._opened = status.st_ino, status.st_mtime_ns
        return self._reader

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        with engine_errors(self.address, duckdb.Error):
            try:
                yield
            except (duckdb.CatalogException, duckdb.BinderException):
                raise EngineError(
                    f"{self._path} holds no copy but other tables: strop publish INDEX URL makes"
                    " one in a new file"
                ) from None

    @contextmanager
    def publishing(self, dim: int) -> Iterator[None]:
        """Be the only publisher; the file is replaced at the end."""
        with locked(self._sibling(".lock"), self.address):
            try:
                self._begin(dim)
                yield
                with self._translated_errors():
                    self._writer.execute("CHECKPOINT")
                    self._writer.close()
                if self._changed:
                    os.replace(self._new, self._path)
            finally:
                with suppress(Exception):
                    self._writer.close()
                self._writer = None
                if not self._changed:  # nothing that the next publisher could continue
                    self._new.unlink(missing_ok=True)

    def _begin(self, dim: int) -> None:
        """Open the file that a stopped publisher left, or a copy of the current one."""
        self._changed = self._new.exists()
        self.refuse_foreign(dim)
        with self._translated_errors():
            if not self._changed:
                unfinished = self._sibling(".new.begun")
                unfinished.unlink(missing_ok=True)
                if self._path.exists() and self._has_current_tables():
                    shutil.copyfile(self._path, unfinished)
                else:
                    codes = ", ".join(f"c{at} UBIGINT" for at in range(-(-dim // 64)))
                    new = _open(unfinished, "READ_WRITE")
                    new.execute(_TABLES.format(dim=dim, codes=codes))
                    new.close()
                os.replace(unfinished, self._new)
            self._writer = _open(self._new, "READ_WRITE")

    def refuse_foreign(self, dim: int) -> None:
        """Refuse a file with tables of another program: it would be replaced."""
        names = {name for (name,) in self.rows("SELECT table_name FROM information_schema.tables")}
        is_copy = {"documents", "pieces"} <= names and (
            names <= _TABLE_NAMES or self._has_current_tables()
        )
        if names and not is_copy:
            shown = ", ".join(sorted(names)[:5])
            raise BadInput(f"{self._path} is no copy (its tables: {shown}): publish to a new file")

    def _has_current_tables(self) -> bool:
        """Return whether the file has the tables of this version; others are replaced."""
        sql = "SELECT 1 FROM duckdb_columns() WHERE table_name = 'rows' AND column_name = 'own'"
        return bool(self.rows(sql))

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield the publisher's connection in a transaction."""
        with self._lock, self._translated_errors():
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

    def nearest(
        self, query: Vectors, rows: int, own: bool, among: Ints | None, extra: Ints, cached: Cached
    ) -> dict[int, PackedVectors]:
        """Return the documents of the nearest rows."""
        where, parameters = "", list[Any]()
        if among is not None:
            where, parameters = "WHERE number = ANY {numbers}", [among.tolist()]
        elif not own:
            (code,) = _codes(query[None]).tolist()
            differing = " + ".join(
                f"bit_count(xor(c{word}, ?::UBIGINT))::USMALLINT" for word in range(len(code))
            )
            # A join by rowid reads the vectors of these rows only.
            where = f"WHERE rowid IN (SELECT rowid FROM rows ORDER BY {differing} LIMIT ?)"
            parameters = [*code, max(_MIN_COMPARED, 4 * rows, self._total() // _COMPARED_DIVISOR)]
        sql = (
            "SELECT number, id, packed FROM documents WHERE number IN"
            f" (SELECT number FROM {'own' if own else 'rows'} {where}"
            f" ORDER BY array_inner_product(vector, ?::FLOAT[{len(query)}]) DESC"
            " LIMIT ?) OR number = ANY {numbers}"
        )
        return packed_by_number(self.rows(sql, *parameters, query, rows, extra.tolist()))

    def _total(self) -> int:
        """Return the number of rows, counted once for each file."""
        with self._lock:
            self._current()
            if self._counted[0] != self._opened:
                counts = self.rows("SELECT count(*) FROM rows")
                self._counted = self._opened, counts[0][0] if counts else 0
            return self._counted[1]

    def size(self) -> int:
        """Return the bytes of the file."""
        return self._path.stat().st_size

    # -- writing --------------------------------------------------------------------------

    def put(self, records: Sequence[Record]) -> None:
        """Store records in one transaction."""
        columns = searched_rows(records)
        numbers, is_own, vectors = columns["number"], columns["own"], columns["vector"]
        with self.transaction() as connection:
            self.delete(connection, [record.number for record in records])
            rows = [tuple(record.columns.values()) for record in records]
            self.insert(connection, "documents", rows)
            _insert(connection, "rows", [numbers, is_own, *_codes(vectors).T, vectors])
            _insert(connection, "own", [numbers[is_own], vectors[is_own]])
            self.insert(connection, "facts", fact_rows(records))

    def insert(self, connection: Any, table: str, rows: Sequence[Row]) -> None:
        """Insert rows into a table."""
        _insert(connection, table, list(zip(*rows, strict=True)))


def _codes(vectors: Vectors) -> Any:
    """Return the signs of vectors (n, dim) as integers (n, words)."""
    bits = np.packbits(vectors > 0, axis=1)
    return np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))).view(np.uint64)


def _open(path: Path, mode: str) -> Any:
    """Return a new connection: DuckDB caches by name, so it could return a replaced file."""
    connection = duckdb.connect(":memory:")
    quoted = str(path).replace("'", "''")
    connection.execute(f"ATTACH '{quoted}' AS copy ({mode}); USE copy;")
    # The file may come from somebody else: a view in it must read no other file and no URL.
    connection.execute("SET enable_external_access=false; SET lock_configuration=true;")
    return connection


def _insert(connection: Any, table: str, columns: Sequence[Any]) -> None:
    """Insert columns by Arrow: row by row takes a hundred times as long."""
    import pyarrow as pa

    if not columns or not len(columns[0]):
        return
    arrays = []
    for values in columns:
        is_matrix = isinstance(values, np.ndarray) and values.ndim == 2
        array = pa.array(values.ravel() if is_matrix else values)
        arrays.append(
            pa.FixedSizeListArray.from_arrays(array, values.shape[1]) if is_matrix else array
        )
    connection.register("arriving", pa.table(arrays, names=[*map(str, range(len(arrays)))]))
    connection.execute(f"INSERT INTO {table} SELECT * FROM arriving")
    connection.unregister("arriving")
