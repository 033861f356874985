"""The protocol of engines, and what they store of a document.

An engine keeps *records*, one for each document, and *pieces*, named bytes. A record has everything
that is scored and shown, so a reader never sees half a document. The rows that an engine searches,
and the values that filters read, only refer to records. They are written before the record; a row
without a record does no harm. Pieces contain the words (``storage.word_copies``) and ``META``,
which describes the copy and is written last.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit
from zlib import crc32

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from strop.common.arrays import Ints
from strop.errors import BadIndex, BadInput, IndexBusy
from strop.filters import Kind, Test, Value, facts
from strop.storage.facets import stored_text
from strop.types import Document, Vectors

META = "meta"
"""The name of the piece that describes the copy."""
Cached = Collection[int]
"""Numbers of documents whose vectors the caller has in its cache."""
Fact = tuple[bytes, int, bytes]
"""A field, the kind of a value, and the value (``sortable_bytes``)."""
_KINDS: dict[Kind, int] = {
    "exists": 0, "null": 1, "bool": 2, "number": 3, "string": 4, "instant": 5,
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,47}")


class EngineError(BadIndex):
    """A database cannot be reached, or refuses a request."""


@dataclass(frozen=True)
class Address:
    """The URL of a copy. ``shown`` has no password; only strop reads ``options``."""

    url: str
    scheme: str
    parts: SplitResult
    options: Mapping[str, str]

    @classmethod
    def read(cls, url: str) -> Address:
        """Parse a URL; its query string may contain ``table`` and ``schema``."""
        in_object_store = url.startswith("lancedb+")
        if in_object_store and not set("@?#").isdisjoint(unquote(url)):
            raise BadInput(  # without the URL, which may contain a key
                "the URL of an object store is bucket and path alone, lancedb+s3://BUCKET/PATH: its"
                " keys come from the environment, such as AWS_ACCESS_KEY_ID"
            )
        try:
            parts = urlsplit(url)
            _ = parts.hostname, parts.port  # raises ValueError if they are invalid
        except ValueError as error:
            raise BadInput(f"{_hidden(url)} is not a URL: {error}") from None
        options, others = {}, []
        for key, value in parse_qsl(parts.query, keep_blank_values=True):
            if key not in ("table", "schema"):
                others.append((key, value))
            elif not _NAME.fullmatch(value):
                raise BadInput(f"{key} {value!r:.60} cannot be a name: use letters, digits, _")
            else:
                options[key] = value
        parts = parts._replace(query=urlencode(others))
        return cls(url, parts.scheme, parts, options)

    @property
    def shown(self) -> str:
        """The URL without passwords and keys, for messages."""
        return _hidden(self.url)

    @property
    def server(self) -> str:
        """The URL without strop's options, for the database driver."""
        return urlunsplit(self.parts)

    @property
    def path(self) -> str:
        """The path of a file or folder: ``duckdb:///a/b`` is /a/b, ``duckdb://b`` is ./b."""
        return unquote(self.parts.netloc + self.parts.path)

    @property
    def hint(self) -> str:
        """A suggestion for messages: an absolute path may have been meant as a relative one."""
        if self.scheme not in ("duckdb", "lancedb") or not self.path.startswith("/"):
            return ""
        return f"; did you mean {self.scheme}://{self.path[1:]}?"


def _hidden(url: str) -> str:
    # Up to the last @: a password may contain any character.
    url = re.sub(r"(?<=//)([^/@:]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&](?:password|api_key|sslpassword)=)[^&]*", r"\1***", url)


@dataclass(frozen=True)
class Record:
    """A document as an engine stores it.

    ``queries`` has the texts of its stored queries by set, ``packed`` all its vectors as the folder
    has them. ``rows`` (n, dim) are the vectors to search: those of length one. ``has_own_row``: the
    first of them is the document's own vector, not that of a query. ``text_in_source``: title, text
    and metadata stay in the user's table.
    """

    number: int
    document: Document
    queries: Mapping[str, Sequence[str]]
    packed: bytes
    rows: Vectors
    has_own_row: bool
    text_in_source: bool = False

    @property
    def stamp(self) -> str:
        """A hash of all that is stored: a copy with the same stamp is up to date."""
        document = self.document
        texts: list[Any] = [document.id, document.title, document.text]
        texts += [dict(document.metadata), self.queries]
        texts += ["elsewhere"] if self.text_in_source else []
        digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=12)
        digest.update(self.packed)
        digest.update(self.rows.tobytes())  # included, in case other rows are searched later
        return digest.hexdigest()

    @property
    def facts(self) -> list[Fact]:
        """The values that filters can test."""
        return sorted(
            {
                (stored_text(field), _KINDS[kind], sortable_bytes(kind, value))
                for field, kind, value in facts(self.document.metadata)
            }
        )

    @property
    def columns(self) -> dict[str, Any]:
        """The values to store in a row of a table, by column."""
        document = self.document
        return {
            "number": self.number, "id": document.id, "stamp": self.stamp, "title": document.title,
            "text": document.text, "metadata": json.dumps(dict(document.metadata)),
            "queries": json.dumps(self.queries), "packed": self.packed,
        }  # fmt: skip


def fact_rows(records: Sequence[Record]) -> list[tuple[bytes, int, bytes, int]]:
    """Return the facts of records, each with the number of its record."""
    return [(*fact, record.number) for record in records for fact in record.facts]


def searched_rows(records: Sequence[Record]) -> dict[str, NDArray[Any]]:
    """Return the rows to search as columns: number, own (is it the document's?) and vector."""
    return {
        "number": np.repeat([one.number for one in records], [len(one.rows) for one in records]),
        "own": np.concatenate([np.arange(len(one.rows)) < one.has_own_row for one in records]),
        "vector": np.concatenate([one.rows for one in records]),
    }


class StoredDocument(NamedTuple):
    """A document as an engine returns it, with the texts of its stored queries by set."""

    document: Document
    queries: dict[str, list[str]]


class PackedVectors(NamedTuple):
    """The fields of a record that scoring needs: its id and its vectors (``pack``)."""

    id: str
    packed: bytes


class Engine(Protocol):
    """A database with a copy; engines inherit the methods that have a body.

    Documents are identified by number. Several threads may read.
    """

    address: Address

    # -- reading

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return pieces by name, without missing ones; none if there is no copy."""

    def nearest(
        self, query: Vectors, rows: int, own: bool, among: Ints | None, extra: Ints, cached: Cached
    ) -> Mapping[int, PackedVectors | None]:
        """Return the documents of the ``rows`` rows nearest to a query vector, by number.

        An engine may use fewer rows, down to half of them. ``own``: search only the documents' own
        vectors. ``among``: search only these documents. ``extra`` documents are returned too,
        however far their rows are. For ``cached`` documents, an engine that fetches documents in a
        second step may return None.
        """

    def values(self, numbers: Ints, *columns: str) -> Iterable[tuple[Any, ...]]:
        """Return the number and some columns (``Record.columns``), without missing documents."""

    def packed_vectors(self, numbers: Ints) -> dict[int, PackedVectors]:
        """Return the ids and vectors of documents, without missing ones."""
        return packed_by_number(self.values(numbers, "id", "packed"))

    def documents(self, numbers: Ints) -> dict[int, StoredDocument]:
        """Return documents with the texts of their queries, without missing ones."""
        rows = self.values(numbers, "id", "text", "title", "metadata", "queries")
        return {
            number: StoredDocument(
                Document(id_, text, title, json.loads(metadata)), json.loads(queries)
            )
            for number, id_, text, title, metadata, queries in rows
        }

    def ids(self, numbers: Ints) -> dict[int, str]:
        """Return the ids of documents, without missing ones."""
        return dict(self.values(numbers, "id"))

    def every(self) -> Ints:
        """Return the numbers of all documents, ascending."""

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids, ascending."""

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test of a filter, ascending."""

    def size(self) -> int:
        """Return the size of the copy in bytes."""

    def close(self) -> None:
        """Release files and connections."""

    # -- writing, within ``publishing``

    def refuse_foreign(self, dim: int) -> None:
        """Raise ``BadInput`` if the address contains something other than a copy."""

    def publishing(self, dim: int) -> AbstractContextManager[None]:
        """Be the only publisher, or raise ``IndexBusy``; create missing tables."""

    def stamps(self, numbers: Ints) -> dict[int, str]:
        """Return the stamps of records, without missing ones."""
        return dict(self.values(numbers, "stamp"))

    def put(self, records: Sequence[Record]) -> None:
        """Store records in place of those with the same numbers; each record completely or not."""

    def remove(self, numbers: Ints) -> None:
        """Remove documents."""

    def prepare(self) -> None:
        """Make searches fast after records were put or removed."""

    def write(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces, all or none."""

    def forget(self, prefixes: Sequence[str], names: Sequence[str]) -> None:
        """Remove pieces by name, and those whose names begin with a prefix and a dot."""


@contextmanager
def engine_errors(address: Address, *errors: type[Exception]) -> Iterator[None]:
    """Raise errors of a database as ``EngineError``, by their first line and with the URL."""
    try:
        yield
    except errors as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if len(reason) > 300:  # an object store's answer is at the end
            reason = f"{reason[:150]} … {reason[-150:]}"
        raise EngineError(f"{address.shown}: {reason}") from None


@contextmanager
def locked(path: Path, address: Address) -> Iterator[None]:
    """Be the only publisher to a file or folder, by a lock on the separate file ``path``."""
    lock = FileLock(path, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise IndexBusy(f"another process is publishing to {address.shown}") from None
    except OSError as error:
        reason = f"{path.parent} cannot be written to ({error.strerror or error})"
        raise BadInput(f"{address.shown}: {reason}{address.hint}") from None
    try:
        yield
    finally:
        lock.release()


def as_numbers(numbers: Iterable[int]) -> Ints:
    """Return numbers of documents in ascending order, without duplicates."""
    return np.unique(np.array(list(numbers), np.int64))


def packed_by_number(rows: Iterable[tuple[Any, ...]]) -> dict[int, PackedVectors]:
    """Return rows of number, id and vectors by number."""
    return {number: PackedVectors(id_, packed) for number, id_, packed in rows}


# -- values of filters -------------------------------------------------------------------------


def sortable_bytes(kind: Kind, value: Value) -> bytes:
    """Return a value as bytes whose order is exactly the order of values of this kind."""
    if value is None:
        return b""
    if kind == "string":
        return stored_text(str(value))
    if kind == "bool":
        return bytes([bool(value)])
    rounded = float(value) + 0.0  # no -0
    # Above 2**53 several integers share one float: the remainder distinguishes them.
    remainder = int(value) - int(rounded) if isinstance(value, int) else 0
    (bits,) = struct.unpack(">Q", struct.pack(">d", rounded))
    bits = bits ^ (2**64 - 1 if bits >> 63 else 1 << 63)
    return struct.pack(">QH", bits, remainder + 2**15)


def encoded_test(test: Test) -> tuple[bytes, int, list[bytes]]:
    """Return the field, kind and values of a test, encoded as in ``Record.facts``."""
    values = sorted({sortable_bytes(test.kind, value) for value in test.values})
    return stored_text(test.field), _KINDS[test.kind], values


OPERATORS = {"in": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
"""SQL operators by the operators of tests."""


# -- vectors as bytes --------------------------------------------------------------------------

_HEADER, _SET_HEADER, _CHECKSUM = struct.Struct("<2sH"), struct.Struct("<IBI"), struct.Struct("<I")
_MAGIC = b"S1"
_TYPES = (np.dtype("<f4"), np.dtype("i1"))
Rows = NDArray[Any]


def pack(by_set: Mapping[int, Rows]) -> bytes:
    """Return a document's vectors by set as bytes, in their stored types, with a checksum."""
    headers = [_HEADER.pack(_MAGIC, len(by_set))]
    headers += [
        _SET_HEADER.pack(set_id, _TYPES.index(rows.dtype), len(rows))
        for set_id, rows in by_set.items()
    ]
    data = b"".join([*headers, *(np.ascontiguousarray(rows).tobytes() for rows in by_set.values())])
    return data + _CHECKSUM.pack(crc32(data))


def unpack(data: bytes, dim: int) -> dict[int, Rows]:
    """Return the vectors by set that ``pack`` encoded; raise ``BadIndex`` for other bytes."""
    try:
        magic, count = _HEADER.unpack_from(data)
        (checksum,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
        if magic != _MAGIC or crc32(memoryview(data)[: -_CHECKSUM.size]) != checksum:
            raise ValueError("a wrong checksum")
        offset, by_set = _HEADER.size + count * _SET_HEADER.size, {}
        for place in range(count):
            set_id, kind, rows = _SET_HEADER.unpack_from(
                data, _HEADER.size + place * _SET_HEADER.size
            )
            vectors = np.frombuffer(data, _TYPES[kind], rows * dim, offset)
            by_set[set_id] = vectors.reshape(rows, dim)
            offset += vectors.nbytes
        if offset + _CHECKSUM.size != len(data) or len(by_set.get(0, ())) != 1:
            raise ValueError("a wrong length")
    except (struct.error, ValueError, IndexError) as error:
        raise BadIndex(f"vectors of the copy are damaged ({error}): publish it again") from error
    return by_set
