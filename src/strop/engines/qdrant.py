"""A copy in Qdrant: a document is one point of ``NAME``, its rows are points of ``NAME-rows``.

Rows only refer to documents. A document is scored from its own point, which is written in one step,
so it is stored completely or not at all. Words are in ``NAME-pieces``. The API key comes from
QDRANT_API_KEY or from the URL's password.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_client
from qdrant_client import models
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

from strop.common.arrays import Ints
from strop.engines.base import (
    Address,
    Cached,
    Engine,
    EngineError,
    PackedVectors,
    Record,
    StoredDocument,
    as_numbers,
    encoded_test,
    engine_errors,
    locked,
)
from strop.engines.lease import LEASE, Lease
from strop.errors import BadInput
from strop.filters import Test
from strop.types import Document, Vectors

EF = {"own": 200, "row": 800}
"""HNSW's ef by name of the vectors. int8 graphs at 800 take half the time of float16 graphs at 600,
and find 0.003 less (docs/log.md). Twice the links with half the ef: no faster, and found less."""
_ROW_SHARE, _MIN_ROWS = 0.5, 100
"""The share of the requested rows that is searched for, and its minimum: fetching the documents of
the rows takes most of the time, and with more rows a search finds hardly more."""
_AT_ONCE = 200
"""Documents written at a time."""
_ROW_BITS = 20
"""A row's id is its document's number, followed by this number of bits for its place there."""
_SCORED = ["id", "packed"]
"""The fields that scoring needs."""
_SPACE = uuid.UUID("5f0f6a0c-2f0b-4d57-9a8b-2c1a52b1c9aa")


class Qdrant(Engine):
    """A copy in three collections, at ``qdrant://host:6333/name`` or ``qdrant:///folder/name``."""

    def __init__(self, address: Address) -> None:
        self.address = address
        path, _, name = address.parts.path.rpartition("/")
        if not name:
            raise BadInput(f"{address.shown} names no collection: qdrant://host:6333/NAME")
        if not path and not address.parts.hostname:
            raise BadInput(f"{address.shown} names no folder: qdrant:///FOLDER/NAME")
        self._folder, self._name = path, name
        self._rows, self._pieces = f"{name}-rows", f"{name}-pieces"
        self._opened: Any = None
        self._local = not address.parts.hostname
        # The client of a server serves several threads, the local mode does not.
        self._lock: Any = (
            _locks.setdefault(path, threading.RLock()) if self._local else nullcontext()
        )
        self._lease = Lease(
            address.shown,
            lambda: self.read([LEASE]).get(LEASE),
            lambda claim: self._write({LEASE: claim}),
            lambda: self.forget([], [LEASE]),
        )

    # -- connections ----------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._opened is None:
                parts = self.address.parts
                if self._local:  # for trials: one process at a time, which shares one client
                    if not os.path.isdir(self._folder):  # the client would create it
                        raise _NoCollection
                    if self._folder not in _shared:
                        _shared[self._folder] = [0, qdrant_client.QdrantClient(path=self._folder)]
                    _shared[self._folder][0] += 1
                    self._opened = _shared[self._folder][1]
                else:
                    self._opened = qdrant_client.QdrantClient(
                        host=parts.hostname, port=parts.port or 6333, timeout=60,
                        https=self.address.scheme == "qdrant+https",
                        api_key=parts.password or os.environ.get("QDRANT_API_KEY"),
                        check_compatibility=False,
                    )  # fmt: skip
            return self._opened

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._local and self._opened is not None:
                _shared[self._folder][0] -= 1
                if _shared[self._folder][0]:
                    self._opened = None
                else:
                    del _shared[self._folder]
            if self._opened is not None:
                self._opened.close()
            self._opened = None

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        with engine_errors(self.address, ApiException, OSError, RuntimeError):
            try:
                yield
            except UnexpectedResponse as error:
                if error.status_code == 404:  # no such collection
                    raise _NoCollection from None
                raise EngineError(f"{self.address.shown}: {error.reason_phrase}") from None
            except ValueError as error:  # raised by the local mode
                if "not found" in str(error):
                    raise _NoCollection from None
                raise

    # -- reading --------------------------------------------------------------------------

    def _points(self, collection: str, ids: Sequence[Any], fields: Any) -> list[Any]:
        """Return points by id, without missing ones."""
        points: list[Any] = []
        try:
            with self._lock, self._translated_errors():
                for at in range(0, len(ids), 1000):
                    points += self._client.retrieve(
                        collection, list(ids[at : at + 1000]), with_payload=fields
                    )
        except _NoCollection:
            return []
        return points

    def _scroll(self, filter_: Any, fields: Any = False) -> Iterator[Any]:
        """Yield the points that match a filter."""
        offset: Any = None
        while True:
            try:
                with self._lock, self._translated_errors():
                    points, offset = self._client.scroll(
                        self._name, filter_, limit=5000, offset=offset, with_payload=fields
                    )
            except _NoCollection:
                return
            yield from points
            if offset is None:
                return

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return pieces by name, without missing ones."""
        name_of = {_key(name): name for name in names}
        points = self._points(self._pieces, list(name_of), ["content"])
        return {name_of[str(point.id)]: b64decode(point.payload["content"]) for point in points}

    def nearest(
        self, query: Vectors, rows: int, own: bool, among: Ints | None, extra: Ints, cached: Cached
    ) -> dict[int, PackedVectors | None]:
        """Return the documents of the nearest rows."""
        filter_ = None if among is None else _among(among, own)
        near, proposed = dict[int, PackedVectors | None](), {*extra.tolist()}
        if own:
            near |= _packed_vectors(self._query(self._name, "own", query, rows, filter_, _SCORED))
        else:
            limit = max(_MIN_ROWS, int(_ROW_SHARE * rows))
            points = self._query(self._rows, "row", query, limit, filter_, False)
            proposed |= {point.id >> _ROW_BITS for point in points}
        near |= {number: None for number in proposed - near.keys() if number in cached}
        if missing := sorted(proposed - near.keys()):
            near |= self.packed_vectors(np.array(missing))
        return near

    def _query(
        self,
        collection: str,
        vectors: str,
        near: Vectors,
        limit: int,
        only: Any,
        fields: Any,
    ) -> list[Any]:
        """Return the points nearest to a vector."""
        params = models.SearchParams(hnsw_ef=max(EF[vectors], limit))  # the local mode compares all
        try:
            with self._lock, self._translated_errors():
                answer = self._client.query_points(
                    collection, query=near.tolist(), using=vectors, limit=limit, query_filter=only,
                    search_params=None if self._local else params, with_payload=fields,
                )  # fmt: skip
        except _NoCollection:
            raise EngineError(f"{self.address.shown} has no {collection}: publish again") from None
        return list(answer.points)

    def packed_vectors(self, numbers: Ints) -> dict[int, PackedVectors]:
        """Return the ids and vectors of documents."""
        return _packed_vectors(self._points(self._name, numbers.tolist(), _SCORED))

    def documents(self, numbers: Ints) -> dict[int, StoredDocument]:
        """Return documents with the texts of their queries."""
        stored = {}
        for number, id_, text, title, other in self.values(numbers, "id", "text", "title", "json"):
            metadata, queries = json.loads(other)
            stored[number] = StoredDocument(Document(id_, text, title, metadata), queries)
        return stored

    def values(self, numbers: Ints, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the number and some fields of documents."""
        for point in self._points(self._name, numbers.tolist(), list(columns)):
            fields = {"stamp": "", **point.payload}
            yield point.id, *(fields[column] for column in columns)

    def every(self) -> Ints:
        """Return the numbers of all documents."""
        return as_numbers(one.id for one in self._scroll(None))

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids."""
        if not ids:
            return np.empty(0, np.int64)
        condition = models.FieldCondition(key="id", match=models.MatchAny(any=list(ids)))
        return as_numbers(one.id for one in self._scroll(models.Filter(must=[condition])))

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test; strop compares ranges itself."""
        field, kind, values = encoded_test(test)
        prefix = f"{field.hex()}.{kind}."
        if test.op == "in":
            facts, key = [prefix + value.hex() for value in values], "facts"
        else:
            facts, key = [prefix], "kinds"
        condition = models.FieldCondition(key=key, match=models.MatchAny(any=facts))
        points = self._scroll(models.Filter(must=[condition]), ["facts"])
        if test.op == "in":
            return as_numbers(point.id for point in points)
        bound = prefix + values[0].hex()
        meets = {
            "gt": bound.__lt__, "gte": bound.__le__, "lt": bound.__gt__, "lte": bound.__ge__,
        }[test.op]  # fmt: skip
        return as_numbers(
            point.id
            for point in points
            if any(meets(fact) for fact in point.payload["facts"] if fact.startswith(prefix))
        )

    def size(self) -> int:
        """Return the bytes of vectors and payloads; Qdrant does not report the size of graphs."""
        payloads = (point.payload for point in self._scroll(None, ["packed", "text", "json"]))
        # For each int8 value of the folder, Qdrant stores it and a float16.
        return sum(
            sum(map(len, payload.values())) + 3 * len(b64decode(payload["packed"]))
            for payload in payloads
        )

    # -- writing --------------------------------------------------------------------------

    def refuse_foreign(self, dim: int) -> None:
        """Refuse a collection without pieces: those of a copy are created first."""
        with suppress(_NoCollection), self._lock, self._translated_errors():
            if self._client.collection_exists(self._pieces):
                return
            if self._client.collection_exists(self._name):
                raise BadInput(f"{self.address.shown} is no copy: publish to a new name")

    @contextmanager
    def publishing(self, dim: int) -> Iterator[None]:
        """Hold a lease that is renewed while this publisher writes; in the local mode a lock."""
        if self._local:
            with locked(Path(self._folder) / f"{self._name}.publisher.lock", self.address):
                self._make(dim)
                yield
        else:
            self._make(dim)
            with self._lease.held():
                yield

    def _make(self, dim: int) -> None:
        """Create the collections; payload indexes before the graph, so that filters can use it."""
        with self._lock, self._translated_errors():
            self.refuse_foreign(dim)
            if not self._client.collection_exists(self._pieces):
                self._client.create_collection(self._pieces, vectors_config={})
            # Graphs of int8 are searched in less than half the time; scores come from records.
            int8: Any = {"scalar": {"type": "int8", "quantile": 0.99, "always_ram": True}}
            vectors = models.VectorParams(
                size=dim, distance=models.Distance.DOT, datatype=models.Datatype.FLOAT16,
                quantization_config=int8,
            )  # fmt: skip
            collections = {
                self._rows: ("row", {"number": "integer"}),
                self._name: ("own", dict.fromkeys(("id", "facts", "kinds"), "keyword")),
            }
            for collection, (name, indexes) in collections.items():
                if not self._client.collection_exists(collection):
                    self._client.create_collection(collection, {name: vectors})
                with warnings.catch_warnings():  # the local mode has no indexes, and warns
                    warnings.simplefilter("ignore", UserWarning)
                    for key, kind in indexes.items():
                        self._client.create_payload_index(collection, key, kind)

    def put(self, records: Sequence[Record]) -> None:
        """Store records: rows first, because rows without a document do no harm."""
        for at in range(0, len(records), _AT_ONCE):
            self._lease.check()
            rows, points = list[Any](), list[Any]()
            for record in records[at : at + _AT_ONCE]:
                number = {"number": record.number}
                ids = _row_ids(record.number, len(record.rows))
                for id_, row in zip(ids, record.rows, strict=False):
                    vector = {"row": row.tolist()}
                    rows.append(models.PointStruct(id=id_, payload=number, vector=vector))
                own: Any = {"own": record.rows[0].tolist()} if record.has_own_row else {}
                points.append(
                    models.PointStruct(id=record.number, payload=_payload(record), vector=own)
                )
            obsolete = self._row_ids_of([point.id for point in points]) - {row.id for row in rows}
            for first in range(0, len(rows), 1000):  # a server limits the size of requests
                self._upsert(self._rows, rows[first : first + 1000])
            self._delete(self._rows, sorted(obsolete))
            self._upsert(self._name, points)

    def remove(self, numbers: Ints) -> None:
        """Remove documents: rows first, because only the documents contain the number of rows."""
        for at in range(0, len(numbers), 1000):
            self._lease.check()
            removed = numbers[at : at + 1000].tolist()
            self._delete(self._rows, sorted(self._row_ids_of(removed)))
            self._delete(self._name, removed)

    def _row_ids_of(self, numbers: Sequence[int]) -> set[int]:
        """Return the ids of the stored rows of documents."""
        points = self._points(self._name, numbers, ["rows"])
        return {id_ for point in points for id_ in _row_ids(point.id, int(point.payload["rows"]))}

    def prepare(self) -> None:
        """Do nothing: Qdrant builds its graphs by itself."""

    def write(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces in their order: ``META`` is the last."""
        self._lease.check()
        self._write(pieces)

    def _write(self, pieces: Mapping[str, bytes]) -> None:
        points = list[Any]()
        for name, content in pieces.items():
            payload = {"name": name, "content": b64encode(content).decode()}
            points.append(models.PointStruct(id=_key(name), vector={}, payload=payload))
        for at in range(0, len(points), 1000):
            self._upsert(self._pieces, points[at : at + 1000])

    def forget(self, prefixes: Sequence[str], names: Sequence[str]) -> None:
        """Remove pieces."""
        removed: list[Any] = [_key(name) for name in (*names, *prefixes)]
        starts, offset = tuple(f"{prefix}." for prefix in prefixes), None
        with self._lock, self._translated_errors():
            while starts:
                points, offset = self._client.scroll(
                    self._pieces, limit=5000, offset=offset, with_payload=["name"]
                )
                removed += [
                    str(point.id) for point in points if point.payload["name"].startswith(starts)
                ]
                if offset is None:
                    break
        self._delete(self._pieces, removed)

    def _upsert(self, collection: str, points: Sequence[Any]) -> None:
        if points:
            with self._lock, self._translated_errors():
                self._client.upsert(collection, points, wait=True)

    def _delete(self, collection: str, ids: list[Any]) -> None:
        if ids:
            with self._lock, self._translated_errors():
                self._client.delete(collection, models.PointIdsList(points=ids), wait=True)


_shared: dict[str, list[Any]] = {}
"""By folder: how many users the client of the local mode has, and the client."""
_locks: dict[str, threading.RLock] = {}


class _NoCollection(Exception):
    """The collection does not exist."""


def _payload(record: Record) -> dict[str, Any]:
    one = record.document
    facts = [f"{field.hex()}.{kind}.{value.hex()}" for field, kind, value in record.facts]
    return {
        "id": one.id, "stamp": record.stamp, "title": one.title, "text": one.text, "facts": facts,
        "kinds": sorted({fact.rpartition(".")[0] + "." for fact in facts}),
        "json": json.dumps([dict(one.metadata), record.queries]), "rows": len(record.rows),
        "packed": b64encode(record.packed).decode(),
    }  # fmt: skip


def _row_ids(number: int, rows: int) -> range:
    first = number << _ROW_BITS
    return range(first, first + min(rows, 1 << _ROW_BITS))


def _among(numbers: Ints, own: bool) -> Any:
    """Return a filter that limits a search to some documents (``own``), or to their rows."""
    if own:
        return models.Filter(must=[models.HasIdCondition(has_id=numbers.tolist())])
    condition = models.FieldCondition(key="number", match=models.MatchAny(any=numbers.tolist()))
    return models.Filter(must=[condition])


def _key(name: str) -> str:
    return str(uuid.uuid5(_SPACE, name))


def _packed_vectors(points: Sequence[Any]) -> dict[int, PackedVectors]:
    return {
        point.id: PackedVectors(point.payload["id"], b64decode(point.payload["packed"]))
        for point in points
    }
