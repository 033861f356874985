"""A copy in LanceDB: rows in a graph with one byte per value, all else in plain tables.

It is a folder, or a path in an object store (``lancedb+s3://bucket/path``, gs, az). LanceDB reads
the keys and the address of the store from the environment.

Each change of a table is a new version of it, so readers see the tables as they were after some
batch of a publisher. Rows and facts are written before the records they refer to (base.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import BTree, HnswSq

from strop.common.arrays import Ints
from strop.engines.base import (
    OPERATORS,
    Address,
    Cached,
    Engine,
    PackedVectors,
    Record,
    as_numbers,
    encoded_test,
    engine_errors,
    fact_rows,
    locked,
    searched_rows,
)
from strop.engines.lease import LEASE, Lease
from strop.errors import BadInput
from strop.filters import Test
from strop.types import Vectors

EF = 400
"""HNSW's ef, the breadth of the graph search."""
_GRAPH_FROM = 5000
"""Rows from which on a graph is built; fewer are read in milliseconds."""
_TABLES = ("documents", "rows", "facts", "pieces")
_MAX_TERMS = 1000
"""Terms of one condition: a statement has a limited size."""


class LanceDB(Engine):
    """A copy in a folder or an object store, at ``lancedb:///folder``."""

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

    def _database(self) -> Any:
        return lancedb.connect(self._place, read_consistency_interval=timedelta(0))

    def _table(self, name: str) -> Any:
        """Return a table, None if there is no copy."""
        with self._opening:
            if name not in self._tables:
                if not self._store and not (self._folder / f"{name}.lance").exists():
                    return None  # LanceDB would create the folder
                with self._translated_errors():
                    try:
                        self._tables[name] = self._database().open_table(name)
                    except ValueError as error:
                        if "not found" in str(error):
                            return None
                        raise
            return self._tables[name]

    def _translated_errors(self) -> AbstractContextManager[None]:
        return engine_errors(self.address, OSError, RuntimeError, ValueError)

    def _rows(self, name: str, where: str | None, *columns: str) -> list[tuple[Any, ...]]:
        """Return some columns of the rows of a table that match a condition."""
        table = self._table(name)
        if table is None:
            return []
        with self._translated_errors():
            query = table.search().select(list(columns)).limit(2**31)
            matches = (query.where(where) if where else query).to_arrow()
        return list(zip(*(matches[column].to_pylist() for column in columns), strict=True))

    def _rows_with(
        self, texts: Sequence[str], name: str, column: str, other: str
    ) -> Iterator[tuple[Any, ...]]:
        """Yield two columns of a table: of the rows that have one of the texts in the first."""
        for at in range(0, len(texts), _MAX_TERMS):
            where = f"{column} IN ({', '.join(map(_quoted, texts[at : at + _MAX_TERMS]))})"
            yield from self._rows(name, where, column, other)

    @contextmanager
    def publishing(self, dim: int) -> Iterator[None]:
        """Be the only publisher: by a lock on a file system, by a lease in an object store."""
        lock = self._folder / "publisher.lock"
        with self._lease.held() if self._store else locked(lock, self.address):
            self._make(dim)
            yield

    # The lease has a separate table: dropping it leaves no versions, and another thread writes it.

    def _read_lease(self) -> bytes | None:
        with self._opening:
            self._tables.pop(LEASE, None)  # another publisher may have replaced it
            table = self._table(LEASE)
        with self._translated_errors():
            rows = [] if table is None else table.to_arrow().to_pylist()
        return rows[0]["content"] if rows else None

    def _write_lease(self, claim: bytes) -> None:
        with self._translated_errors():
            self._database().create_table(LEASE, [{"content": claim}], mode="overwrite")

    def _drop_lease(self) -> None:
        with self._translated_errors():
            self._database().drop_table(LEASE)

    def refuse_foreign(self, dim: int) -> None:
        """Refuse tables that have other columns."""
        for name, schema in _schemas(dim).items():
            table = self._table(name)
            if table is not None and not {*schema.names} <= {*table.schema.names}:
                raise BadInput(
                    f"{self.address.shown} has a table {name!r} of something else: publish to"
                    " a new folder"
                )

    def _make(self, dim: int) -> None:
        """Create missing tables."""
        self.refuse_foreign(dim)
        with self._translated_errors():
            for name, schema in _schemas(dim).items():
                table = self._database().create_table(name, schema=schema, exist_ok=True)
                key = {"pieces": "name", "facts": "field"}.get(name, "number")
                if not table.list_indices():
                    table.create_index(key, config=BTree())

    # -- reading --------------------------------------------------------------------------

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return pieces by name, without missing ones."""
        return dict(self._rows_with(names, "pieces", "name", "content"))

    def nearest(
        self, query: Vectors, rows: int, own: bool, among: Ints | None, extra: Ints, cached: Cached
    ) -> dict[int, PackedVectors]:
        """Return the documents of the nearest rows."""
        table = self._table("rows")
        if table is None or not table.count_rows():
            return {}
        conditions = ["own"] if own else []
        if among is not None:
            conditions.append(_within(among))
        with self._translated_errors():
            search = table.search(query).distance_type("dot").select(["number", "_distance"])
            search = search.limit(rows).ef(max(EF, rows)).nprobes(1)
            if conditions:
                search = search.where(" AND ".join(conditions), prefilter=True)
            numbers = search.to_arrow()["number"].to_numpy()
            return self.packed_vectors(np.union1d(numbers.astype(np.int64), extra))

    def values(self, numbers: Ints, *columns: str) -> list[tuple[Any, ...]]:
        """Return the number and some columns of documents."""
        return self._rows("documents", _within(numbers), "number", *columns) if len(numbers) else []

    def every(self) -> Ints:
        """Return the numbers of all documents."""
        return as_numbers(number for (number,) in self._rows("documents", None, "number"))

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids."""
        return as_numbers(number for _, number in self._rows_with(ids, "documents", "id", "number"))

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test."""
        field, kind, values = encoded_test(test)
        prefix = f"field = '{field.hex()}' AND kind = {kind} AND value {OPERATORS[test.op]}"
        conditions = [f"{prefix} '{value.hex()}'" for value in values]
        return as_numbers(
            number for where in conditions for (number,) in self._rows("facts", where, "number")
        )

    def size(self) -> int:
        """Return the bytes of the folder; in an object store, those of the newest version."""
        if self._store:
            tables = filter(None, map(self._table, _TABLES))
            return sum(int(table.stats()["total_bytes"]) for table in tables)
        return sum(file.stat().st_size for file in self._folder.rglob("*") if file.is_file())

    # -- writing --------------------------------------------------------------------------

    def put(self, records: Sequence[Record]) -> None:
        """Store records: first the rows and facts that refer to them, then the records."""
        self._lease.check()
        replaced = _within(np.array([record.number for record in records]))
        rows = searched_rows(records)
        facts = [
            {"field": field.hex(), "kind": kind, "value": value.hex(), "number": number}
            for field, kind, value, number in fact_rows(records)
        ]
        with self._translated_errors():
            for name, new in (("rows", {**rows, "vector": list(rows["vector"])}), ("facts", facts)):
                table = self._table(name)
                table.delete(replaced)
                if len(arrow := _arrow(new, table.schema)):
                    table.add(arrow)
        self._merge("documents", "number", [record.columns for record in records])

    def _merge(self, name: str, key: str, rows: list[dict[str, Any]]) -> None:
        """Store rows in place of those with the same keys."""
        with self._translated_errors():
            table = self._table(name)
            merge = table.merge_insert(key).when_matched_update_all()
            merge.when_not_matched_insert_all().execute(_arrow(rows, table.schema))

    def remove(self, numbers: Ints) -> None:
        """Remove documents."""
        self._lease.check()
        with self._translated_errors():
            for name in ("rows", "facts", "documents"):
                self._table(name).delete(_within(numbers))

    def prepare(self) -> None:
        """Build or extend the graph, merge small files and drop old versions."""
        with self._translated_errors():
            rows = self._table("rows")
            indexed = {column for index in rows.list_indices() for column in index.columns}
            if rows.count_rows() >= _GRAPH_FROM and "vector" not in indexed:
                graph = HnswSq("dot", num_partitions=1, ef_construction=200)
                rows.create_index("vector", config=graph)
            for name in _TABLES:
                self._table(name).optimize(cleanup_older_than=timedelta(minutes=10))

    def write(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces."""
        self._lease.check()
        rows = [{"name": name, "content": content} for name, content in pieces.items()]
        self._merge("pieces", "name", rows)

    def forget(self, prefixes: Sequence[str], names: Sequence[str]) -> None:
        """Remove pieces."""
        conditions = [f"name = {_quoted(name)}" for name in (*names, *prefixes)]
        conditions += [f"starts_with(name, {_quoted(prefix + '.')})" for prefix in prefixes]
        with self._translated_errors():
            for at in range(0, len(conditions), _MAX_TERMS):
                self._table("pieces").delete(" OR ".join(conditions[at : at + _MAX_TERMS]))


def _schemas(dim: int) -> dict[str, Any]:
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
    make = pa.table if isinstance(rows, dict) else pa.Table.from_pylist
    return make(rows, schema=schema)


def _within(numbers: Ints) -> str:
    return f"number IN ({', '.join(map(str, numbers.tolist()))})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
