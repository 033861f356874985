"""A copy in Qdrant: a document is one point, its rows a multivector, compared by the best of them.

A point is written as one, so a document is there whole or not at all. Words are in a second
collection, ``NAME-pieces``. A key comes from QDRANT_API_KEY or the URL's password.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from strop.common.arrays import Ints
from strop.engines.base import Address, EngineError, Found, Record, Stored, tested
from strop.engines.lease import LEASE, Lease
from strop.errors import BadInput, IndexBusy, MissingExtra
from strop.filters import Test
from strop.types import Document, Vectors

EF_OWN, EF_ROWS = 200, 2000
"""How wide graphs are searched: one of multivectors finds less at the same width. With 260 it held
0.976 of the best ten of SciFact, with 1,000 0.995; NFCorpus wants more."""
_DOCUMENTS_PER_ROW = 0.4
"""Documents to ask for in place of rows: a point stands for all rows of its document. With 0.65
searches take a third longer and find no more."""
_AT_ONCE = 200
_SPACE = uuid.UUID("5f0f6a0c-2f0b-4d57-9a8b-2c1a52b1c9aa")


def connect(address: Address) -> Qdrant:
    """Return the engine of ``qdrant://host:6333/name``, or of a folder ``qdrant:///folder/name``."""
    try:
        import qdrant_client  # noqa: F401
    except ImportError:
        raise MissingExtra("Qdrant", "qdrant") from None
    return Qdrant(address)


class Qdrant:
    """A copy in two collections (``base.Engine``)."""

    def __init__(self, address: Address) -> None:
        self.address = address
        path, _, name = address.parts.path.rpartition("/")
        if not name:
            raise BadInput(f"{address.shown} names no collection: qdrant://host:6333/NAME")
        self._folder, self._name, self._pieces = path, name, f"{name}-pieces"
        self._opened: Any = None
        self._local = not address.parts.hostname
        # The client of a server serves several threads, the local mode does not.
        self._lock: Any = (
            _locks.setdefault(path, threading.RLock()) if self._local else nullcontext()
        )
        self._lease = Lease(
            address.shown,
            lambda: self.read([LEASE]).get(LEASE),
            lambda claim: self._upsert({LEASE: claim}),
            lambda: self.forget([], [LEASE]),
        )

    # -- connections ----------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        from qdrant_client import QdrantClient

        with self._lock:
            if self._opened is None:
                parts = self.address.parts
                if self._local:  # for trials: one process at a time, which shares one client
                    if self._folder not in _shared:
                        _shared[self._folder] = [0, QdrantClient(path=self._folder)]
                    _shared[self._folder][0] += 1
                    self._opened = _shared[self._folder][1]
                else:
                    self._opened = QdrantClient(
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
    def _explained(self) -> Iterator[None]:
        from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

        try:
            yield
        except UnexpectedResponse as error:
            if error.status_code == 404:  # no such collection
                raise _NothingThere from None
            raise EngineError(f"{self.address.shown}: {error.reason_phrase}") from None
        except (ApiException, OSError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise EngineError(f"{self.address.shown}: {reason:.200}") from None
        except ValueError as error:  # of the local mode
            if "not found" in str(error):
                raise _NothingThere from None
            raise

    # -- reading --------------------------------------------------------------------------

    def _points(self, collection: str, ids: Sequence[Any], fields: Any) -> list[Any]:
        """Return points by id, of those that are there."""
        found: list[Any] = []
        try:
            with self._lock, self._explained():
                for at in range(0, len(ids), 1000):
                    found += self._client.retrieve(
                        collection, list(ids[at : at + 1000]), with_payload=fields
                    )
        except _NothingThere:
            return []
        return found

    def _scroll(self, filter_: Any, fields: Any = False) -> Iterator[Any]:
        """Yield the points that meet a condition."""
        offset: Any = None
        while True:
            try:
                with self._lock, self._explained():
                    points, offset = self._client.scroll(
                        self._name, filter_, limit=5000, offset=offset, with_payload=fields
                    )
            except _NothingThere:
                return
            yield from points
            if offset is None:
                return

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return those of some pieces that are there."""
        wanted = {_key(name): name for name in names}
        found = self._points(self._pieces, list(wanted), ["content"])
        return {wanted[str(one.id)]: _decoded(one.payload["content"]) for one in found}

    def nearest(
        self,
        query_vectors: Vectors,
        rows: int,
        own: bool,
        among: Ints | None,
        also: Sequence[Ints] | None = None,
    ) -> list[dict[int, Found]]:
        """Return for each query the documents whose best row is nearest, in one round trip."""
        from qdrant_client import models

        only = None
        if among is not None:
            only = models.Filter(must=[models.HasIdCondition(has_id=among.tolist())])
        limit = rows if own else max(100, int(_DOCUMENTS_PER_ROW * rows))
        width = max(EF_OWN if own else EF_ROWS, limit)
        params = models.SearchParams(hnsw_ef=width)  # the local mode compares all
        found = []
        for at, vector in enumerate(query_vectors):
            try:
                with self._lock, self._explained():
                    answer = self._client.query_points(
                        self._name, query=vector.tolist() if own else [vector.tolist()],
                        using="own" if own else "rows", limit=limit, query_filter=only,
                        search_params=None if self._local else params,
                        with_payload=["id", "packed"],
                    )  # fmt: skip
                near = _found(answer.points)
            except _NothingThere:
                near = {}
            missing = [] if also is None else [one for one in also[at].tolist() if one not in near]
            found.append(near | (self.found(np.array(missing)) if missing else {}))
        return found

    def found(self, numbers: Ints) -> dict[int, Found]:
        """Return the ids and vectors of documents."""
        return _found(self._points(self._name, numbers.tolist(), ["id", "packed"]))

    def documents(self, numbers: Ints) -> dict[int, Stored]:
        """Return documents with the texts of their queries."""
        fields = ["id", "title", "text", "json"]
        found = {}
        for one in self._points(self._name, numbers.tolist(), fields):
            metadata, queries = json.loads(one.payload["json"])
            given = one.payload["id"], one.payload["text"], one.payload["title"]
            found[one.id] = Stored(Document(*given, metadata), queries)
        return found

    def ids(self, numbers: Ints) -> dict[int, str]:
        """Return the ids of documents."""
        found = self._points(self._name, numbers.tolist(), ["id"])
        return {one.id: one.payload["id"] for one in found}

    def stamps(self, numbers: Ints) -> dict[int, str]:
        """Return the stamps of records."""
        found = self._points(self._name, numbers.tolist(), ["stamp"])
        return {one.id: one.payload["stamp"] for one in found}

    def every(self) -> Ints:
        """Return the numbers of all documents."""
        return _numbers(self._scroll(None))

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids."""
        from qdrant_client import models

        if not ids:
            return np.empty(0, np.int64)
        same = models.FieldCondition(key="id", match=models.MatchAny(any=list(ids)))
        return _numbers(self._scroll(models.Filter(must=[same])))

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test; ranges are compared here."""
        from qdrant_client import models

        field, kind, values = tested(test)
        prefix = f"{field.hex()}.{kind}."
        if test.op == "in":
            facts, key = [prefix + value.hex() for value in values], "facts"
        else:
            facts, key = [prefix], "kinds"
        has = models.FieldCondition(key=key, match=models.MatchAny(any=facts))
        points = self._scroll(models.Filter(must=[has]), ["facts"])
        if test.op == "in":
            return _numbers(points)
        least = prefix + values[0].hex()
        meets = {
            "gt": least.__lt__, "gte": least.__le__, "lt": least.__gt__, "lte": least.__ge__,
        }[test.op]  # fmt: skip
        return _numbers(
            one
            for one in points
            if any(meets(fact) for fact in one.payload["facts"] if fact.startswith(prefix))
        )

    def size(self) -> int:
        """Return the bytes that vectors and payloads take; Qdrant does not tell those of graphs."""
        total = 0
        for one in self._scroll(None, ["packed", "text", "json"]):
            rows = len(_decoded(one.payload["packed"]))
            total += 5 * rows + sum(map(len, one.payload.values()))
        return total

    # -- writing --------------------------------------------------------------------------

    @contextmanager
    def publishing(self, dim: int) -> Iterator[None]:
        """Hold a lease, which is renewed while this publisher writes."""
        self._make(dim)
        if self._local:
            with self._publishing_here():
                yield
            return
        with self._lease.held():
            yield

    @contextmanager
    def _publishing_here(self) -> Iterator[None]:
        """Be the only publisher of this process: in the local mode there is no other."""
        key = self._folder, self._name
        with self._lock:
            if key in _published:
                raise IndexBusy(f"this process is publishing to {self.address.shown} already")
            _published.add(key)
        try:
            yield
        finally:
            _published.discard(key)

    def _make(self, dim: int) -> None:
        """Make the collections; payload indexes before the graph, so that filters can use it."""
        from qdrant_client import models

        with self._lock, self._explained():
            if not self._client.collection_exists(self._pieces):
                self._client.create_collection(self._pieces, vectors_config={})
            if self._client.collection_exists(self._name):
                return
            many = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
            rows = models.VectorParams(
                size=dim, distance=models.Distance.DOT, multivector_config=many,
                datatype=models.Datatype.FLOAT16,
            )  # fmt: skip
            own = models.VectorParams(
                size=dim, distance=models.Distance.DOT, datatype=models.Datatype.FLOAT16
            )
            self._client.create_collection(self._name, {"own": own, "rows": rows})
            with warnings.catch_warnings():  # the local mode has no indexes, and says so
                warnings.simplefilter("ignore", UserWarning)
                for key in ("id", "facts", "kinds"):
                    self._client.create_payload_index(
                        self._name, key, models.PayloadSchemaType.KEYWORD
                    )

    def put(self, records: Sequence[Record]) -> None:
        """Store records; each is one point."""
        from qdrant_client import models

        for at in range(0, len(records), _AT_ONCE):
            self._lease.check()
            points = [
                models.PointStruct(id=one.number, payload=_payload(one), vector=_vectors(one))
                for one in records[at : at + _AT_ONCE]
            ]
            with self._lock, self._explained():
                self._client.upsert(self._name, points, wait=True)

    def remove(self, numbers: Ints) -> None:
        """Remove documents."""
        from qdrant_client import models

        self._lease.check()
        with self._lock, self._explained():
            self._client.delete(self._name, models.PointIdsList(points=numbers.tolist()), wait=True)

    def prepare(self) -> None:
        """Nothing: Qdrant makes its graphs by itself."""

    def write(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces; what says what the copy is comes last."""
        self._lease.check()
        self._upsert(pieces)

    def _upsert(self, pieces: Mapping[str, bytes]) -> None:
        from qdrant_client import models

        items = list(pieces.items())
        for at in range(0, len(items), 1000):
            points = [
                models.PointStruct(
                    id=_key(name), vector={}, payload={"name": name, "content": _encoded(content)}
                )
                for name, content in items[at : at + 1000]
            ]
            with self._lock, self._explained():
                self._client.upsert(self._pieces, points, wait=True)

    def forget(self, prefixes: Sequence[str], names: Sequence[str]) -> None:
        """Remove pieces."""
        from qdrant_client import models

        gone: list[Any] = [_key(name) for name in (*names, *prefixes)]
        offset: Any = None
        with self._lock, self._explained():
            while prefixes:
                points, offset = self._client.scroll(
                    self._pieces, limit=5000, offset=offset, with_payload=["name"]
                )
                starts = tuple(f"{prefix}." for prefix in prefixes)
                gone += [str(one.id) for one in points if one.payload["name"].startswith(starts)]
                if offset is None:
                    break
            if gone:
                self._client.delete(self._pieces, models.PointIdsList(points=gone), wait=True)


_shared: dict[str, list[Any]] = {}
"""The clients of the local mode by folder, with how many use each."""
_locks: dict[str, threading.RLock] = {}
_published: set[tuple[str, str]] = set()


class _NothingThere(Exception):
    """The collection does not exist."""


def _payload(record: Record) -> dict[str, Any]:
    one = record.document
    facts = [f"{field.hex()}.{kind}.{value.hex()}" for field, kind, value in sorted(record.facts)]
    return {
        "id": one.id, "stamp": record.stamp, "title": one.title, "text": one.text, "facts": facts,
        "kinds": sorted({fact.rpartition(".")[0] + "." for fact in facts}),
        "json": json.dumps([dict(one.metadata), record.queries]), "packed": _encoded(record.packed),
    }  # fmt: skip


def _vectors(record: Record) -> dict[str, Any]:
    vectors = {"rows": record.rows.tolist()} if len(record.rows) else {}
    return vectors | ({"own": record.rows[0].tolist()} if record.own else {})


def _key(name: str) -> str:
    return str(uuid.uuid5(_SPACE, name))


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decoded(content: str) -> bytes:
    return base64.b64decode(content)


def _found(points: Sequence[Any]) -> dict[int, Found]:
    return {one.id: Found(one.payload["id"], _decoded(one.payload["packed"])) for one in points}


def _numbers(points: Any) -> Ints:
    return np.unique(np.array([one.id for one in points], np.int64))
