"""A copy in PostgreSQL with pgvector: rows as halfvec in HNSW graphs, all else in plain tables.

The URL is libpq's; passwords and TLS come from it, from PGPASSWORD, a service or a password file.
``?schema=`` and ``?table=`` name where the tables stand (public, strop).
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
from strop.engines.base import Address, Record, Stored, explained, fact_rows, searched_rows
from strop.engines.postgres_source import checked_source, rows_of_source
from strop.engines.sql import Row, SqlEngine, storable
from strop.errors import BadInput, IndexBusy
from strop.types import Document, Vectors

ELSEWHERE = ""
"""In the column ``raw``: title, text and metadata are in the user's own table."""
EF = 400
"""Rows that a graph search looks at; at 200 two hundredths of NFCorpus's best ten are missed."""
_TABLES = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    "CREATE SCHEMA IF NOT EXISTS {schema}",
    "CREATE TABLE IF NOT EXISTS {documents} (number bigint PRIMARY KEY, id text NOT NULL UNIQUE,"
    " stamp text NOT NULL, title text NOT NULL, text text NOT NULL, raw text,"
    " metadata json NOT NULL, queries json NOT NULL, packed bytea NOT NULL)",
    "ALTER TABLE {documents} ALTER packed SET STORAGE MAIN",
    "CREATE TABLE IF NOT EXISTS {rows} (number bigint NOT NULL, own boolean NOT NULL,"
    " vector halfvec(DIM) NOT NULL)",
    "CREATE INDEX IF NOT EXISTS {numbers_index} ON {rows} (number)",
    "CREATE TABLE IF NOT EXISTS {facts} (field bytea NOT NULL, kind smallint NOT NULL,"
    " value bytea NOT NULL, number bigint NOT NULL,"
    " PRIMARY KEY (field, kind, value, number))",
    "CREATE INDEX IF NOT EXISTS {facts_index} ON {facts} (number)",
    'CREATE TABLE IF NOT EXISTS {pieces} (name text COLLATE "C" PRIMARY KEY,'
    " content bytea NOT NULL)",
)
_FUNCTION = """
CREATE OR REPLACE FUNCTION {search}(query halfvec, k integer DEFAULT 10,
    alpha double precision DEFAULT 1, temperature double precision DEFAULT 0.1,
    nearest integer DEFAULT 150)
RETURNS TABLE (id text, score double precision, title text, text text, metadata json)
LANGUAGE sql STABLE AS $$
    WITH proposed AS (
        SELECT DISTINCT number FROM (
            SELECT number FROM {rows} ORDER BY vector <#> $1 LIMIT $5) AS near
    ), fetched AS (
        SELECT number, own, vector, -(vector <#> $1) AS similarity,
            max(-(vector <#> $1)) FILTER (WHERE NOT own) OVER (PARTITION BY number) AS peak
        FROM {rows} JOIN proposed USING (number)
    ), weighted AS (
        SELECT number, own, vector,
            CASE WHEN NOT own THEN exp((similarity - peak) / $4) ELSE 0 END AS weight
        FROM fetched
    ), built AS (
        SELECT number, sum(vector::vector * array_fill((CASE WHEN own THEN 1
            ELSE $3 * weight / total END)::real, ARRAY[vector_dims(vector)])::vector) AS sharpened
        FROM (SELECT *, sum(weight) OVER (PARTITION BY number) AS total FROM weighted) AS one
        GROUP BY number
    )
    SELECT d.id, -(sharpened <#> $1::vector) / vector_norm(sharpened), d.title, d.text, d.metadata
    FROM built JOIN {documents} AS d USING (number)
    WHERE vector_norm(sharpened) > 0
    ORDER BY 2 DESC, number LIMIT $2
$$
"""
"""Lines (1) to (4) of search/formula.py in one query, for programs that have no strop."""
_PREPARE = (
    "SET LOCAL maintenance_work_mem = '256MB'",
    "CREATE INDEX IF NOT EXISTS {rows_index} ON {rows} USING hnsw (vector halfvec_ip_ops)",
    "CREATE INDEX IF NOT EXISTS {own_index} ON {rows} USING hnsw (vector halfvec_ip_ops) WHERE own",
    _FUNCTION,
    "ANALYZE {documents}",
    "ANALYZE {rows}",
)


class Postgres(SqlEngine):
    """A copy in tables of a database, at ``postgresql://user@host/database?table=papers``."""

    by_number = ("documents", "rows", "facts")

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool: Any = None
        self._opening = threading.Lock()
        # Names need no more than quotes: ``Address`` lets no others pass.
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

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.address, psycopg.Error, PoolTimeout)

    def _connect(self) -> Any:
        """Open one connection, so that an error is said at once and not after a pool's waiting."""
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
            # A plan for any query reads the query's vector from text again for each comparison;
            # compiling one takes longer than it saves.
            connection.execute("SET plan_cache_mode = force_custom_plan")
            connection.execute("SET jit = off")

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """Return the rows of a statement; none if there are no tables yet."""
        with self._explained():
            try:
                with self._connections().connection() as connection:
                    statement = sql.format_map(self.names)
                    found = connection.execute(statement, values, prepare=True, binary=True)
                    rows: list[Row] = found.fetchall()
                    return rows
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return []

    def refuse_foreign(self, dim: int) -> None:
        """Do nothing: tables of something else have not the columns, and stay as they are."""

    @contextmanager
    def publishing(self, dim: int) -> Iterator[None]:
        """Hold an advisory lock, which the server releases however the publisher ends."""
        if dim > 4000:
            raise BadInput(f"pgvector searches up to 4,000 dimensions of halfvec, not {dim:,}")
        with self._explained():
            self.writer = self._connect()
        try:
            key = crc32(repr(sorted(self.address.options.items())).encode())
            locked = self.writer.execute("SELECT pg_try_advisory_lock(%s::bigint)", (key,))
            if not locked.fetchone()[0]:
                raise IndexBusy(f"another process is publishing to {self.address.shown}")
            with self._explained():
                for statement in _TABLES:
                    self.execute(statement.replace("DIM", str(int(dim))))
            yield
        finally:
            self.writer.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do all or nothing."""
        with self._explained(), self.writer.transaction():
            yield

    # -- reading --------------------------------------------------------------------------

    def nearest(self, query: Vectors, rows: int, own: bool, among: Ints | None) -> Ints:
        """Return the documents of the nearest rows."""
        conditions = ["own"] if own else []
        if among is not None:
            conditions.append("number = ANY {numbers}")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = f"SELECT number FROM {{rows}} {where} ORDER BY vector <#> %s::text::halfvec LIMIT %s"
        given = [] if among is None else [among.tolist()]
        return self.numbers(sql, *given, _text(query), rows)

    def documents(self, numbers: Ints) -> dict[int, Stored]:
        """Return documents with the texts of their queries."""
        columns = "id", "title", "text", "raw", "metadata", "queries", "stamp"
        found, rows = {}, self.values(numbers, *columns)
        elsewhere = rows_of_source(self, [row[1] for row in rows if row[4] == ELSEWHERE])
        for number, id_, title, text, raw, metadata, queries, stamp in rows:
            if raw == ELSEWHERE:
                document = elsewhere.get(id_) or Document(id_, "")
            else:
                title, text = json.loads(raw) if raw is not None else (title, text)
                document = Document(id_, text, title, metadata)
            found[number] = Stored(document, queries, stamp)
        return found

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
        """Make the view that has the texts and metadata of records that are elsewhere."""
        with self.transaction():
            self.execute("DROP VIEW IF EXISTS {source}")
            self.writer.execute(f"CREATE VIEW {self.names['source']} AS {checked_source(source)}")

    def put(self, records: Sequence[Record]) -> None:
        """Store records in one transaction."""
        for one in records:
            if not storable(one.document.id):
                raise BadInput(f"PostgreSQL cannot store the id {one.document.id!r}")
        numbers, own, vectors = searched_rows(records).values()
        rows = zip(numbers.tolist(), own.tolist(), map(_text, vectors), strict=True)
        with self.transaction():
            self.delete([one.number for one in records])
            self.insert("documents", [*map(_row, records)])
            self.insert("rows", list(rows))
            self.insert("facts", fact_rows(records))

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Insert rows into a table."""
        with self.writer.cursor().copy(f"COPY {self.names[table]} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def prepare(self) -> None:
        """Make the graphs, once there are rows; PostgreSQL keeps them up to date then."""
        with self.transaction():
            for statement in _PREPARE:
                self.execute(statement)


def _row(record: Record) -> Row:
    """Return what is stored of a document, in the order of the table's columns."""
    columns, one = record.columns, record.document
    raw = None if storable(one.title + one.text) else json.dumps([one.title, one.text])
    if record.elsewhere:
        columns |= {"title": "", "text": "", "metadata": "{}"}
        raw = ELSEWHERE
    texts = [columns[name].replace("\0", "") for name in ("title", "text")]
    return (
        *(columns[name] for name in ("number", "id", "stamp")), *texts, raw,
        *(columns[name] for name in ("metadata", "queries", "packed")),
    )  # fmt: skip


def _text(vector: Vectors) -> str:
    return "[" + ",".join(map(repr, vector.tolist())) + "]"
