"""A copy in LanceDB: rows in a graph with one byte per value, all else in plain tables.

It is a folder, or a place in an object store (``lancedb+s3://bucket/path``, gs, az). Keys and
address of the store come from the environment, as LanceDB reads them.

Each change of a table is a new version of it, so readers see the tables as some publisher's batch
left them. Rows and facts are written before the records they lead to (base.py).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from strop.common.arrays import Ints
from strop.engines.base import Address, EngineError, Found, Record, Stored, tested
from strop.engines.lease import LEASE, Lease
from strop.errors import BadInput, IndexBusy, MissingExtra
from strop.filters import Test
from strop.types import Document, Vectors

EF = 400
_GRAPH_FROM = 5000
"""Rows from which a graph is made; fewer are read in milliseconds."""
_OPS = {"in": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_TABLES = ("documents", "rows", "facts", "pieces")
_MANY = 1000


def connect(address: Address) -> LanceDB:
    """Return the engine of a URL such as ``lancedb:///folder``."""
    try:
        import lancedb  # noqa: F401
    except ImportError:
        raise MissingExtra("LanceDB", "lancedb") from None
    return LanceDB(address)


class LanceDB:
    """A copy in a folder or an object store (``base.Engine``)."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._store = address.scheme.partition("+")[2]
        if self._store and not address.parts.netloc:
            raise BadInput(f"{address.shown} names no bucket: lancedb+{self._store}://BUCKET/PATH")
        self._folder = Path(address.path)
        self._place = f"{self._store}://{address.path}" if self._store else str(self._folder)
        self._lease = Lease(address.shown, self._read_lease, self._write_lease, self._drop_lease)
        self._tables: dict[str, Any] = {}
        self._opening = threading.RLock()

    def close(self) -> None:
        """Release the tables."""
        self._tables = {}

    # -- tables ---------------------------------------------------------------------------

    def _table(self, name: str) -> Any:
        """Return a table, None if there is no copy."""
        import lancedb

        with self._opening:
            if name not in self._tables:
                if not self._store and not (self._folder / f"{name}.lance").exists():
                    return None  # before the folder is made
                with self._explained():
                    database = lancedb.connect(self._place, read_consistency_interval=timedelta(0))
                    try:
                        self._tables[name] = database.open_table(name)
                    except ValueError as error:
                        if "not found" in str(error):
                            return None
                        raise
            return self._tables[name]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            if len(reason) > 200:  # what a store answered stands at the end
                reason = f"{reason[:80]} … {reason[-120:]}"
            raise EngineError(f"{self.address.shown}: {reason}") from error

    def _rows(self, name: str, where: str | None, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows of a table that meet a condition."""
        table = self._table(name)
        if table is None:
            return []
        with self._explained():
            query = table.search().select(list(columns)).limit(2**31)
            found: list[dict[str, Any]] = (query.where(where) if where else query).to_list()
            return found

    @contextmanager
    def publishing(self, dim: int) -> Iterator[None]:
        """Be the only publisher: by a lock on a file system, by a lease in an object store."""
        with self._lease.held() if self._store else self._locked():
            self._make(dim)
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._folder / "publisher.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise IndexBusy(f"another process is publishing to {self.address.shown}") from None
        try:
            yield
        finally:
            lock.release()

    # A table of its own: dropping it leaves no versions behind, and it is written by a thread.

    def _read_lease(self) -> bytes | None:
        with self._opening:
            self._tables.pop(LEASE, None)  # another publisher may have made it anew
            table = self._table(LEASE)
        with self._explained():
            rows = [] if table is None else table.to_arrow().to_pylist()
        return rows[0]["content"] if rows else None

    def _write_lease(self, claim: bytes) -> None:
        import lancedb
        import pyarrow as pa

        with self._explained():
            rows = pa.table({"content": pa.array([claim], pa.binary())})
            lancedb.connect(self._place).create_table(LEASE, rows, mode="overwrite")

    def _drop_lease(self) -> None:
        import lancedb

        with self._explained():
            lancedb.connect(self._place).drop_table(LEASE)

    def _make(self, dim: int) -> None:
        """Make the tables that are not there."""
        import lancedb
        from lancedb.index import BTree

        with self._explained():
            database = lancedb.connect(self._place)
            for name, schema in _schemas(dim).items():
                there = self._table(name)
                if there is not None and not {*schema.names} <= {*there.schema.names}:
                    raise BadInput(
                        f"{self.address.shown} has a table {name!r} of something else: publish to"
                        " a new folder"
                    )
                table = database.create_table(name, schema=schema, exist_ok=True)
                key = {"pieces": "name", "facts": "field"}.get(name, "number")
                if not table.list_indices():
                    table.create_index(key, config=BTree())

    # -- reading --------------------------------------------------------------------------

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return those of some pieces that are there."""
        found: dict[str, bytes] = {}
        for at in range(0, len(names), _MANY):
            where = f"name IN ({', '.join(map(_quoted, names[at : at + _MANY]))})"
            rows = self._rows("pieces", where, ["name", "content"])
            found |= {row["name"]: row["content"] for row in rows}
        return found

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
        table = self._table("rows")
        if table is None or not table.count_rows():
            return [{} for _ in query_vectors]
        conditions = ["own"] if own else []
        if among is not None:
            conditions.append(_within("number", among))
        found = []
        with self._explained():
            for at, vector in enumerate(query_vectors):
                query = table.search(vector).distance_type("dot").select(["number", "_distance"])
                query = query.limit(rows)
                query = query.ef(max(EF, rows)).nprobes(1)
                if conditions:
                    query = query.where(" AND ".join(conditions), prefilter=True)
                numbers = query.to_arrow()["number"].to_numpy()
                more = np.empty(0, np.int64) if also is None else also[at]
                found.append(self.found(np.union1d(numbers.astype(np.int64), more)))
        return found

    def found(self, numbers: Ints) -> dict[int, Found]:
        """Return the ids and vectors of documents."""
        rows = self._of(numbers, "id", "packed")
        return {row["number"]: Found(row["id"], row["packed"]) for row in rows}

    def documents(self, numbers: Ints) -> dict[int, Stored]:
        """Return documents with the texts of their queries."""
        found = {}
        for row in self._of(numbers, "id", "title", "text", "metadata", "queries"):
            metadata, queries = json.loads(row["metadata"]), json.loads(row["queries"])
            document = Document(row["id"], row["text"], row["title"], metadata)
            found[row["number"]] = Stored(document, queries)
        return found

    def ids(self, numbers: Ints) -> dict[int, str]:
        """Return the ids of documents."""
        return {row["number"]: row["id"] for row in self._of(numbers, "id")}

    def stamps(self, numbers: Ints) -> dict[int, str]:
        """Return the stamps of records."""
        return {row["number"]: row["stamp"] for row in self._of(numbers, "stamp")}

    def _of(self, numbers: Ints, *columns: str) -> list[dict[str, Any]]:
        if not len(numbers):
            return []
        return self._rows("documents", _within("number", numbers), ["number", *columns])

    def every(self) -> Ints:
        """Return the numbers of all documents."""
        return _numbers(self._rows("documents", None, ["number"]))

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids."""
        parts = [
            self._rows("documents", f"id IN ({', '.join(map(_quoted, some))})", ["number"])
            for some in (ids[at : at + _MANY] for at in range(0, len(ids), _MANY))
        ]
        return _numbers([row for part in parts for row in part])

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test."""
        field, kind, values = tested(test)
        rows = [
            row
            for value in values
            for row in self._rows(
                "facts",
                f"field = '{field.hex()}' AND kind = {kind}"
                f" AND value {_OPS[test.op]} '{value.hex()}'",
                ["number"],
            )
        ]
        return _numbers(rows)

    def size(self) -> int:
        """Return the bytes of the folder; in an object store, those of the newest version."""
        if self._store:
            tables = filter(None, map(self._table, _TABLES))
            return sum(int(table.stats()["total_bytes"]) for table in tables)
        return sum(one.stat().st_size for one in self._folder.rglob("*") if one.is_file())

    # -- writing --------------------------------------------------------------------------

    def put(self, records: Sequence[Record]) -> None:
        """Store records; a record last, once what leads to it is there."""
        self._lease.check()
        numbers = np.array([one.number for one in records], np.int64)
        vectors = np.concatenate([one.rows for one in records])
        rows = {
            "number": np.repeat(numbers, [len(one.rows) for one in records]),
            "own": np.concatenate([np.arange(len(one.rows)) < one.own for one in records]),
            "vector": list(vectors),
        }
        facts = [
            {"field": field.hex(), "kind": kind, "value": value.hex(), "number": one.number}
            for one in records
            for field, kind, value in sorted(one.facts)
        ]
        with self._explained():
            for name, new in (("rows", rows if len(vectors) else None), ("facts", facts)):
                table = self._table(name)
                table.delete(_within("number", numbers))
                if new:
                    table.add(_arrow(new, table.schema))
            table = self._table("documents")
            new = _arrow([_row(one) for one in records], table.schema)
            merge = table.merge_insert("number").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(new)

    def remove(self, numbers: Ints) -> None:
        """Remove documents."""
        self._lease.check()
        with self._explained():
            for name in ("rows", "facts", "documents"):
                self._table(name).delete(_within("number", numbers))

    def prepare(self) -> None:
        """Make or extend the graph, join small files and drop old versions."""
        from lancedb.index import HnswSq

        with self._explained():
            rows = self._table("rows")
            known = {column for index in rows.list_indices() for column in index.columns}
            if rows.count_rows() >= _GRAPH_FROM and "vector" not in known:
                graph = HnswSq("dot", num_partitions=1, ef_construction=200)
                rows.create_index("vector", config=graph)
            for name in _TABLES:
                self._table(name).optimize(cleanup_older_than=timedelta(minutes=10))

    def write(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces."""
        self._lease.check()
        with self._explained():
            table = self._table("pieces")
            rows = [{"name": name, "content": content} for name, content in pieces.items()]
            merge = table.merge_insert("name").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(_arrow(rows, table.schema))

    def forget(self, prefixes: Sequence[str], names: Sequence[str]) -> None:
        """Remove pieces."""
        conditions = [f"name = {_quoted(name)}" for name in (*names, *prefixes)]
        conditions += [f"starts_with(name, {_quoted(prefix + '.')})" for prefix in prefixes]
        with self._explained():
            for at in range(0, len(conditions), _MANY):
                self._table("pieces").delete(" OR ".join(conditions[at : at + _MANY]))


def _schemas(dim: int) -> dict[str, Any]:
    import pyarrow as pa

    number, text = ("number", pa.int64()), pa.string()
    names = ("id", "stamp", "title", "text", "metadata", "queries")
    columns = [number, *((name, text) for name in names), ("packed", pa.binary())]
    vector = ("vector", pa.list_(pa.float32(), dim))
    return {
        "documents": pa.schema(columns),
        "rows": pa.schema([number, ("own", pa.bool_()), vector]),
        "facts": pa.schema([("field", text), ("kind", pa.int32()), ("value", text), number]),
        "pieces": pa.schema([("name", text), ("content", pa.binary())]),
    }


def _arrow(rows: Any, schema: Any) -> Any:
    import pyarrow as pa

    make = pa.table if isinstance(rows, dict) else pa.Table.from_pylist
    return make(rows, schema=schema)


def _row(record: Record) -> dict[str, Any]:
    one = record.document
    return {
        "number": record.number, "id": one.id, "stamp": record.stamp, "title": one.title,
        "text": one.text, "metadata": json.dumps(dict(one.metadata)),
        "queries": json.dumps(record.queries), "packed": record.packed,
    }  # fmt: skip


def _within(column: str, numbers: Ints) -> str:
    return f"{column} IN ({', '.join(map(str, numbers.tolist()))})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _numbers(rows: list[dict[str, Any]]) -> Ints:
    return np.unique(np.array([row["number"] for row in rows], np.int64))
