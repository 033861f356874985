"""A copy in PostgreSQL with pgvector: rows as halfvec in HNSW graphs, all else in plain tables.

The URL is libpq's; passwords and TLS come from it, from PGPASSWORD, a service or a password file.
``?schema=`` and ``?table=`` are the schema and the prefix of the tables (public, strop).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from zlib import crc32

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from strop.common.arrays import Ints
from strop.engines.base import (
    Address,
    Cached,
    PackedVectors,
    Record,
    StoredDocument,
    engine_errors,
    fact_rows,
    packed_by_number,
)
from strop.engines.postgres_source import checked_source, rows_of_source
from strop.engines.postgres_sql import PREPARE, TABLES
from strop.engines.sql import Row, SqlEngine, storable
from strop.errors import BadInput, IndexBusy
from strop.types import Document, Vectors

IN_SOURCE = ""
"""This value of the column ``raw`` means: title, text and metadata are in the user's table."""
EF = 400
"""Rows that a graph search visits (HNSW's ef); at 200, 0.02 of NFCorpus's top ten are missed."""
NOTICED_AFTER = 5
"""Seconds within which the server usually notices that a publisher was killed."""


class Postgres(SqlEngine):
    """A copy in tables of a database, at ``postgresql://user@host/database?table=papers``."""

    by_number = ("documents", "rows", "facts")

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool: Any = None
        self._opening = threading.Lock()
        self._publisher: Any = None
        # Quotes are enough for names: ``Address`` refuses names with special characters.
        self._schema = address.options.get("schema", "public")
        self._table = address.options.get("table", "strop")
        tables = {
            name: f'"{self._schema}"."{self._table}_{name}"'
            for name in ("documents", "rows", "facts", "pieces", "search", "source")
        }
        indexes = {
            f"{name}_index": f'"{self._table}_{name}_index"'
            for name in ("rows", "own", "facts", "numbers")
        }
        lists = dict.fromkeys(("numbers", "texts", "blobs"), "(%s)")
        self.names = {"schema": f'"{self._schema}"', "value": "%s", **tables, **indexes, **lists}

    def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    # -- connections ----------------------------------------------------------------------

    def _translated_errors(self) -> AbstractContextManager[None]:
        return engine_errors(self.address, psycopg.Error, PoolTimeout)

    def _connect(self) -> Any:
        """Open one connection: it reports an error at once, a pool only after its timeout."""
        return psycopg.connect(self.address.server, autocommit=True, connect_timeout=10)

    def _connections(self) -> Any:
        with self._opening:
            if self._pool is None:
                self._connect().close()
                self._pool = ConnectionPool(
                    self.address.server, min_size=1, max_size=8, timeout=30, open=True,
                    kwargs={"autocommit": True}, configure=self._configure,
                )  # fmt: skip
            return self._pool

    @staticmethod
    def _configure(connection: Any) -> None:
        if connection.execute("SELECT 1 FROM pg_type WHERE typname = 'halfvec'").fetchone():
            connection.execute("SELECT NULL::halfvec")  # loads the settings of pgvector
            connection.execute(f"SET hnsw.ef_search = {EF}")
            connection.execute("SET hnsw.iterative_scan = relaxed_order")
            # A generic plan parses the query vector from text again for each comparison.
            # Compiling a plan (jit) takes longer than it saves.
            connection.execute("SET plan_cache_mode = force_custom_plan")
            connection.execute("SET jit = off")

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """Return the rows of a statement; none if the tables do not exist yet."""
        with self._translated_errors():
            try:
                with self._connections().connection() as connection:
                    statement = sql.format_map(self.names)
                    cursor = connection.execute(statement, values, prepare=True, binary=True)
                    rows: list[Row] = cursor.fetchall()
                    return rows
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return []

    def refuse_foreign(self, dim: int) -> None:
        """Do nothing: tables of other programs lack the columns, so they are never changed."""

    @contextmanager
    def publishing(self, dim: int) -> Iterator[None]:
        """Hold an advisory lock, which the server releases however the publisher ends."""
        if dim > 4000:
            raise BadInput(f"pgvector searches up to 4,000 dimensions of halfvec, not {dim:,}")
        with self._translated_errors():
            connection = self._connect()
        try:
            key = crc32(repr(sorted(self.address.options.items())).encode())
            with self._translated_errors():
                try:
                    # The lock belongs to the session and outlives the transaction.
                    with connection.transaction():
                        connection.execute(f"SET LOCAL lock_timeout = '{NOTICED_AFTER}s'")
                        connection.execute("SELECT pg_advisory_lock(%s::bigint)", (key,))
                except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
                    shown = self.address.shown
                    raise IndexBusy(f"another process is publishing to {shown}") from None
            with self._translated_errors():
                for statement in TABLES:
                    self.execute(connection, statement.replace("DIM", str(int(dim))))
            self._publisher = connection
            yield
        finally:
            self._publisher = None
            connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield the publisher's connection in a transaction."""
        with self._translated_errors(), self._publisher.transaction():
            yield self._publisher

    # -- reading --------------------------------------------------------------------------

    def nearest(
        self, query: Vectors, rows: int, own: bool, among: Ints | None, extra: Ints, cached: Cached
    ) -> dict[int, PackedVectors]:
        """Return the documents of the nearest rows, in one round trip."""
        conditions = ["own"] if own else []
        if among is not None:
            conditions.append("number = ANY {numbers}")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = (
            "SELECT number, id, packed FROM (SELECT number FROM (SELECT number FROM {rows} "
            f"{where} ORDER BY vector <#> %s::text::halfvec LIMIT %s) AS nearest"
            " UNION SELECT unnest(%s::bigint[])) AS proposed JOIN {documents} USING (number)"
        )
        parameters = [] if among is None else [among.tolist()]
        return packed_by_number(self.rows(sql, *parameters, _text(query), rows, extra.tolist()))

    def documents(self, numbers: Ints) -> dict[int, StoredDocument]:
        """Return documents with the texts of their queries."""
        columns = "id", "title", "text", "raw", "metadata", "queries"
        stored, rows = {}, self.values(numbers, *columns)
        source_documents = rows_of_source(self, [row[1] for row in rows if row[4] == IN_SOURCE])
        for number, id_, title, text, raw, metadata, queries in rows:
            if raw == IN_SOURCE:
                document = source_documents.get(id_) or Document(id_, "")
            else:
                title, text = json.loads(raw) if raw is not None else (title, text)
                document = Document(id_, text, title, metadata)
            stored[number] = StoredDocument(document, queries)
        return stored

    def size(self) -> int:
        """Return the bytes of the tables with their indexes."""
        sql = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = ANY(%s)"
        )
        names = [f"{self._table}_{name}" for name in (*self.by_number, "pieces")]
        return int(self.rows(sql, self._schema, names)[0][0])

    # -- writing --------------------------------------------------------------------------

    def use_source(self, source: str) -> None:
        """Create the view with the texts and metadata of the user's table."""
        with self.transaction() as connection:
            self.execute(connection, "DROP VIEW IF EXISTS {source}")
            connection.execute(f"CREATE VIEW {self.names['source']} AS {checked_source(source)}")

    def put(self, records: Sequence[Record]) -> None:
        """Store records in one transaction."""
        for record in records:
            if not storable(record.document.id):
                raise BadInput(f"PostgreSQL cannot store the id {record.document.id!r}")
        vectors = [
            (record.number, bool(record.has_own_row and not place), _text(row))
            for record in records
            for place, row in enumerate(record.rows)
        ]
        with self.transaction() as connection:
            self.delete(connection, [record.number for record in records])
            self.insert(connection, "documents", [*map(_row, records)])
            self.insert(connection, "rows", vectors)
            self.insert(connection, "facts", fact_rows(records))

    def insert(self, connection: Any, table: str, rows: Sequence[Row]) -> None:
        """Insert rows into a table."""
        with connection.cursor().copy(f"COPY {self.names[table]} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def prepare(self) -> None:
        """Build the graphs once there are rows; then PostgreSQL keeps them up to date."""
        with self.transaction() as connection:
            for statement in PREPARE:
                self.execute(connection, statement)


def _row(record: Record) -> Row:
    """Return the values to store of a document, in the order of the table's columns."""
    columns, document = record.columns, record.document
    raw = (
        None
        if storable(document.title + document.text)
        else json.dumps([document.title, document.text])
    )
    if record.text_in_source:
        columns |= {"title": "", "text": "", "metadata": "{}"}
        raw = IN_SOURCE
    texts = [columns[name].replace("\0", "") for name in ("title", "text")]
    return (
        *(columns[name] for name in ("number", "id", "stamp")), *texts, raw,
        *(columns[name] for name in ("metadata", "queries", "packed")),
    )  # fmt: skip


def _text(vector: Vectors) -> str:
    return "[" + ",".join(map(repr, vector.tolist())) + "]"
