"""A copy in PostgreSQL with pgvector: rows as halfvec in HNSW graphs, all else in plain tables.

The URL is libpq's; passwords and TLS come from it, from PGPASSWORD, a service or a password file.
``?schema=`` and ``?table=`` name where the tables stand (public, strop).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import numpy as np

from strop.common.arrays import Ints
from strop.engines.base import Address, EngineError, Found, Record, Stored, tested
from strop.engines.postgres_source import checked_source, rows_of_source
from strop.engines.postgres_sql import FUNCTION, TABLES
from strop.errors import BadInput, IndexBusy, MissingExtra
from strop.filters import Test
from strop.types import Document, Vectors

ELSEWHERE = ""
"""In the column ``raw``: title, text and metadata are in the user's own table."""
EF = 400
"""Rows that a graph search looks at; at 200 two hundredths of NFCorpus's best ten are missed."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_OPS = {"in": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def connect(address: Address) -> Postgres:
    """Return the engine of a URL such as ``postgresql://user@host/database?table=papers``."""
    try:
        import psycopg_pool  # noqa: F401
    except ImportError:
        raise MissingExtra("PostgreSQL", "postgres") from None
    return Postgres(address)


class Postgres:
    """A copy in tables of a database (``base.Engine``)."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool: Any = None
        self._opening = threading.Lock()
        self._publisher: Any = None
        self._statements: dict[str, Any] = {}

    def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    # -- connections ----------------------------------------------------------------------

    def _sql(self, text: str) -> Any:
        """Return a statement with the names of the tables put in, quoted."""
        from psycopg import sql

        if text not in self._statements:
            schema = self.address.options.get("schema", "public")
            table = self.address.options.get("table", "strop")
            names = {
                name: sql.Identifier(schema, f"{table}_{name}")
                for name in ("documents", "rows", "facts", "pieces", "search", "source")
            }
            names |= {
                f"{name}_index": sql.Identifier(f"{table}_{name}_index")
                for name in ("rows", "own", "facts", "numbers")
            }
            self._statements[text] = sql.SQL(text).format(schema=sql.Identifier(schema), **names)
        return self._statements[text]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import psycopg
        from psycopg_pool import PoolTimeout

        try:
            yield
        except (psycopg.Error, PoolTimeout) as error:
            reason = (str(error).splitlines() or ["no connection"])[0]
            raise EngineError(f"{self.address.shown}: {reason:.300}") from None

    def _connect(self) -> Any:
        """Open one connection, so that an error is said at once and not after a pool's waiting."""
        import psycopg

        return psycopg.connect(self.address.server, autocommit=True, connect_timeout=10)

    def _connections(self) -> Any:
        from psycopg_pool import ConnectionPool

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

    def name_of(self, table: str) -> str:
        """Return the name of a table or view, quoted."""
        return str(self._sql("{" + table + "}").as_string(None))

    def rows(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none if there are no tables yet."""
        import psycopg

        statement = self._sql(text)
        with self._explained():
            try:
                with self._connections().connection() as connection:
                    found = connection.execute(statement, values, prepare=True, binary=True)
                    rows: list[tuple[Any, ...]] = found.fetchall()
                    return rows
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return []

    @contextmanager
    def publishing(self, dim: int) -> Iterator[None]:
        """Hold an advisory lock, which the server releases however the publisher ends."""
        if dim > 4000:
            raise BadInput(f"pgvector searches up to 4,000 dimensions of halfvec, not {dim:,}")
        with self._explained():
            connection = self._connect()
        try:
            key = crc32(repr(sorted(self.address.options.items())).encode())
            locked = connection.execute("SELECT pg_try_advisory_lock(%s::bigint)", (key,))
            if not locked.fetchone()[0]:
                raise IndexBusy(f"another process is publishing to {self.address.shown}")
            with self._explained():
                for statement in TABLES:
                    connection.execute(self._sql(statement.replace("DIM", str(int(dim)))))
            self._publisher = connection
            yield
        finally:
            self._publisher = None
            connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._explained(), self._publisher.transaction():
            yield self._publisher

    # -- reading --------------------------------------------------------------------------

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return those of some pieces that are there."""
        sql = "SELECT name, content FROM {pieces} WHERE name = ANY(%s)"
        return dict(self.rows(sql, list(names)))

    def nearest(
        self,
        query_vectors: Vectors,
        rows: int,
        own: bool,
        among: Ints | None,
        also: Sequence[Ints] | None = None,
        known: Collection[int] = (),
    ) -> list[dict[int, Found]]:
        """Return for each query the documents of its nearest rows, in one round trip."""
        conditions = ["own"] if own else []
        if among is not None:
            conditions.append("number = ANY(%s)")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = (
            "SELECT number, id, packed FROM (SELECT number FROM (SELECT number FROM {rows} "
            f"{where} ORDER BY vector <#> %s::text::halfvec LIMIT %s) AS nearest"
            " UNION SELECT unnest(%s::bigint[])) AS proposed JOIN {documents} USING (number)"
        )
        given = [] if among is None else [among.tolist()]
        more = (
            [list[int]()] * len(query_vectors) if also is None else [one.tolist() for one in also]
        )
        return [
            _found(self.rows(sql, *given, _text(vector), rows, wanted))
            for vector, wanted in zip(query_vectors, more, strict=True)
        ]

    def found(self, numbers: Ints) -> dict[int, Found]:
        """Return the ids and vectors of documents."""
        return _found(self._of("number, id, packed", numbers))

    def documents(self, numbers: Ints) -> dict[int, Stored]:
        """Return documents with the texts of their queries."""
        columns = "number, id, title, text, raw, metadata::text, queries::text"
        found, rows = {}, self._of(columns, numbers)
        elsewhere = rows_of_source(self, (row[1] for row in rows if row[4] == ELSEWHERE))
        for number, id_, title, text, raw, metadata, queries in rows:
            if raw == ELSEWHERE:
                document = elsewhere.get(id_) or Document(id_, "")
            else:
                title, text = json.loads(raw) if raw is not None else (title, text)
                document = Document(id_, text, title, json.loads(metadata))
            found[number] = Stored(document, json.loads(queries))
        return found

    def ids(self, numbers: Ints) -> dict[int, str]:
        """Return the ids of documents."""
        return dict(self._of("number, id", numbers))

    def stamps(self, numbers: Ints) -> dict[int, str]:
        """Return the stamps of records."""
        return dict(self._of("number, stamp", numbers))

    def _of(self, columns: str, numbers: Ints) -> list[Any]:
        sql = f"SELECT {columns} " + "FROM {documents} WHERE number = ANY(%s)"
        return self.rows(sql, numbers.tolist())

    def every(self) -> Ints:
        """Return the numbers of all documents."""
        return _numbers(self.rows("SELECT number FROM {documents}"))

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids."""
        known = list(filter(_storable, ids))
        return _numbers(self.rows("SELECT number FROM {documents} WHERE id = ANY(%s)", known))

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test."""
        field, kind, values = tested(test)
        sql = (
            "SELECT DISTINCT number FROM {facts} WHERE field = %s AND kind = %s"
            f" AND value {_OPS[test.op]} ANY(%s)"
        )
        return _numbers(self.rows(sql, field, kind, values))

    def size(self) -> int:
        """Return the bytes of the tables with their indexes."""
        sql = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = ANY(%s)"
        )
        schema = self.address.options.get("schema", "public")
        table = self.address.options.get("table", "strop")
        names = [f"{table}_{name}" for name in ("documents", "rows", "facts", "pieces")]
        return int(self.rows(sql, schema, names)[0][0])

    # -- writing --------------------------------------------------------------------------

    def use_source(self, source: str) -> None:
        """Make the view that has the texts and metadata of records that are elsewhere."""
        from psycopg import sql

        with self._transaction() as connection:
            connection.execute(self._sql("DROP VIEW IF EXISTS {source}"))
            view = self._sql("CREATE VIEW {source} AS ")
            connection.execute(sql.Composed([view, sql.SQL(checked_source(source))]))

    def put(self, records: Sequence[Record]) -> None:
        """Store records in one transaction."""
        for one in records:
            if not _storable(one.document.id):
                raise BadInput(f"PostgreSQL cannot store the id {one.document.id!r}")
        numbers = [one.number for one in records]
        with self._transaction() as connection:
            self._delete(connection, numbers)
            self._copy(connection, "documents", map(_row, records))
            self._copy(
                connection,
                "rows",
                (
                    (one.number, bool(one.own and not at), _text(row))
                    for one in records
                    for at, row in enumerate(one.rows)
                ),
            )
            self._copy(
                connection,
                "facts",
                ((*fact, one.number) for one in records for fact in sorted(one.facts)),
            )

    def _copy(self, connection: Any, table: str, rows: Any) -> None:
        with connection.cursor().copy(self._sql(f"COPY {{{table}}} FROM STDIN")) as copy:
            for row in rows:
                copy.write_row(row)

    def _delete(self, connection: Any, numbers: list[int]) -> None:
        for table in ("documents", "rows", "facts"):
            statement = self._sql(f"DELETE FROM {{{table}}} WHERE number = ANY(%s)")
            connection.execute(statement, (numbers,))

    def remove(self, numbers: Ints) -> None:
        """Remove documents."""
        with self._transaction() as connection:
            self._delete(connection, numbers.tolist())

    def prepare(self) -> None:
        """Make the graphs, once there are rows; PostgreSQL keeps them up to date then."""
        with self._transaction() as connection:
            connection.execute("SET LOCAL maintenance_work_mem = '256MB'")
            for name, where in (("rows", ""), ("own", " WHERE own")):
                connection.execute(
                    self._sql(
                        f"CREATE INDEX IF NOT EXISTS {{{name}_index}} ON {{rows}} USING hnsw"
                        f" (vector halfvec_ip_ops){where}"
                    )
                )
            connection.execute(self._sql(FUNCTION))
            connection.execute(self._sql("ANALYZE {documents}"))
            connection.execute(self._sql("ANALYZE {rows}"))

    def write(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces in one transaction."""
        with self._transaction() as connection:
            connection.execute(
                self._sql("DELETE FROM {pieces} WHERE name = ANY(%s)"), (list(pieces),)
            )
            self._copy(connection, "pieces", pieces.items())

    def forget(self, prefixes: Sequence[str], names: Sequence[str]) -> None:
        """Remove pieces."""
        with self._transaction() as connection:
            connection.execute(
                self._sql(
                    "DELETE FROM {pieces} WHERE name = ANY(%s) OR EXISTS (SELECT 1"
                    " FROM unnest(%s::text[]) prefix"
                    " WHERE name = prefix OR starts_with(name, prefix || '.'))"
                ),
                (list(names), list(prefixes)),
            )


def _row(record: Record) -> tuple[Any, ...]:
    one = record.document
    if record.elsewhere:
        queries = json.dumps(record.queries)
        return record.number, one.id, record.stamp, "", "", ELSEWHERE, "{}", queries, record.packed
    raw = None if _storable(one.title + one.text) else json.dumps([one.title, one.text])
    title, text = one.title.replace("\0", ""), one.text.replace("\0", "")
    metadata, queries = json.dumps(dict(one.metadata)), json.dumps(record.queries)
    return (record.number, one.id, record.stamp, title, text, raw, metadata, queries, record.packed)


def _storable(text: str) -> bool:
    """Tell whether PostgreSQL can hold a text: any but NUL, and no half of a surrogate pair."""
    return _UNSTORABLE.search(text) is None


def _text(vector: Vectors) -> str:
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def _found(rows: list[tuple[Any, ...]]) -> dict[int, Found]:
    return {number: Found(id_, packed) for number, id_, packed in rows}


def _numbers(rows: list[tuple[Any, ...]]) -> Ints:
    return np.unique(np.array([number for (number,) in rows], np.int64))
