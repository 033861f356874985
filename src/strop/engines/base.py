"""The protocol of engines, and what they store of a document.

An engine keeps *records*, one for each document, and *pieces*, named bytes. A record has everything
that is scored and shown, so a reader never sees half a document. The rows that an engine searches,
and the values that filters read, only lead to records: they are written before the record, and one
that leads nowhere does no harm. Pieces hold the words (``storage.word_copies``) and ``META``, which
says what the copy is and is written last.
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
"""The piece that says what the copy is."""
Known = Collection[int]
Fact = tuple[bytes, int, bytes]
"""A field, the kind of a value, and the value, so that bytes compare as values do."""
_KINDS: dict[Kind, int] = {
    "exists": 0, "null": 1, "bool": 2, "number": 3, "string": 4, "instant": 5,
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,47}")


class EngineError(BadIndex):
    """A database that cannot be reached, or refuses."""


@dataclass(frozen=True)
class Address:
    """The URL of a copy. ``shown`` has no password; ``options`` are what only strop reads."""

    url: str
    scheme: str
    parts: SplitResult
    options: Mapping[str, str]

    @classmethod
    def read(cls, url: str) -> Address:
        """Read a URL; what follows ``?`` may hold ``table`` and ``schema``."""
        in_store = url.startswith("lancedb+")
        if in_store and not set("@?#").isdisjoint(unquote(url)):
            raise BadInput(  # without the URL, which may hold a key
                "the URL of an object store is bucket and path alone, lancedb+s3://BUCKET/PATH: its"
                " keys come from the environment, such as AWS_ACCESS_KEY_ID"
            )
        try:
            parts = urlsplit(url)
            _ = parts.hostname, parts.port  # raises where they make no sense
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
        """The URL as messages may show it."""
        return _hidden(self.url)

    @property
    def server(self) -> str:
        """The URL without strop's own options."""
        return urlunsplit(self.parts)

    @property
    def path(self) -> str:
        """The path of a file or folder: ``duckdb:///a/b`` is /a/b, ``duckdb://b`` is b here."""
        return unquote(self.parts.netloc + self.parts.path)

    @property
    def hint(self) -> str:
        """What a message adds where a path that begins at the root may be meant to begin here."""
        if self.scheme not in ("duckdb", "lancedb") or not self.path.startswith("/"):
            return ""
        return f"; did you mean {self.scheme}://{self.path[1:]}?"


def _hidden(url: str) -> str:
    # Up to the last @: a password may hold any character.
    url = re.sub(r"(?<=//)([^/@:]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&](?:password|api_key|sslpassword)=)[^&]*", r"\1***", url)


@dataclass(frozen=True)
class Record:
    """A document as an engine stores it.

    ``queries`` has the texts of its stored queries by set, ``packed`` all its vectors as the folder
    has them. ``rows`` (n, dim) are the vectors to search: those of length one, ``own`` says whether
    the first is the document's. ``stamp`` is a hash of all that is stored. ``elsewhere``: title,
    text and metadata stay in the user's own table.
    """

    number: int
    document: Document
    queries: Mapping[str, Sequence[str]]
    packed: bytes
    rows: Vectors
    own: bool
    elsewhere: bool = False

    @property
    def stamp(self) -> str:
        """A hash of all that is stored: a copy with the same one is up to date."""
        one = self.document
        texts: list[Any] = [one.id, one.title, one.text, dict(one.metadata), self.queries]
        texts += ["elsewhere"] if self.elsewhere else []
        found = hashlib.blake2b(json.dumps(texts).encode(), digest_size=12)
        found.update(self.packed)
        found.update(self.rows.tobytes())  # also what is searched, should that be chosen anew
        return found.hexdigest()

    @property
    def facts(self) -> list[Fact]:
        """What filters can test."""
        return sorted(
            {
                (stored_text(field), _KINDS[kind], comparable(kind, value))
                for field, kind, value in facts(self.document.metadata)
            }
        )

    @property
    def columns(self) -> dict[str, Any]:
        """What is stored of it as one row of a table, by column."""
        one = self.document
        return {
            "number": self.number, "id": one.id, "stamp": self.stamp, "title": one.title,
            "text": one.text, "metadata": json.dumps(dict(one.metadata)),
            "queries": json.dumps(self.queries), "packed": self.packed,
        }  # fmt: skip


def fact_rows(records: Sequence[Record]) -> list[tuple[bytes, int, bytes, int]]:
    """Return the facts of records, each with the number of its record."""
    return [(*fact, one.number) for one in records for fact in one.facts]


def searched_rows(records: Sequence[Record]) -> dict[str, NDArray[Any]]:
    """Return the rows that are searched as columns: number, own and vector."""
    return {
        "number": np.repeat([one.number for one in records], [len(one.rows) for one in records]),
        "own": np.concatenate([np.arange(len(one.rows)) < one.own for one in records]),
        "vector": np.concatenate([one.rows for one in records]),
    }


class StoredDocument(NamedTuple):
    """A document as an engine returns it, with the texts of its stored queries by set."""

    document: Document
    queries: dict[str, list[str]]


class PackedVectors(NamedTuple):
    """What scoring needs of a record: its vectors, packed; and its id."""

    id: str
    packed: bytes


class Engine(Protocol):
    """A database with a copy; engines inherit what they have in common.

    Documents are known by number. Several threads may read.
    """

    address: Address

    # -- reading

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return those of some pieces that are there; none if there is no copy."""

    def nearest(
        self, query: Vectors, rows: int, own: bool, among: Ints | None, also: Ints, known: Known
    ) -> Mapping[int, PackedVectors | None]:
        """Return the documents of so many rows nearest to a query vector, by number.

        An engine may look at fewer rows, down to half of them.
        ``own``: only of the documents' own vectors. ``among``: only of these documents. ``also``
        are documents that are wanted whatever their rows. Of ``known`` documents an engine that
        fetches them in a second step may return None.
        """

    def values(self, numbers: Ints, *columns: str) -> Iterable[tuple[Any, ...]]:
        """Return the number and some columns (``Record.columns``) of documents that are there."""

    def found(self, numbers: Ints) -> dict[int, PackedVectors]:
        """Return the ids and vectors of documents, of those that are there."""
        return as_found(self.values(numbers, "id", "packed"))

    def documents(self, numbers: Ints) -> dict[int, StoredDocument]:
        """Return documents, of those that are there."""
        rows = self.values(numbers, "id", "text", "title", "metadata", "queries")
        return {
            number: StoredDocument(
                Document(id_, text, title, json.loads(metadata)), json.loads(queries)
            )
            for number, id_, text, title, metadata, queries in rows
        }

    def ids(self, numbers: Ints) -> dict[int, str]:
        """Return the ids of documents, of those that are there."""
        return dict(self.values(numbers, "id"))

    def every(self) -> Ints:
        """Return the numbers of all documents, ascending."""

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids, ascending."""

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test of a filter, ascending."""

    def size(self) -> int:
        """Return the bytes that the copy takes."""

    def close(self) -> None:
        """Release files and connections."""

    # -- writing, within ``publishing``

    def refuse_foreign(self, dim: int) -> None:
        """Raise ``BadInput`` if something else than a copy is at the address."""

    def publishing(self, dim: int) -> AbstractContextManager[None]:
        """Be the only publisher, or raise ``IndexBusy``; tables are made where they are missing."""

    def stamps(self, numbers: Ints) -> dict[int, str]:
        """Return the stamps of records, of those that are there."""
        return dict(self.values(numbers, "stamp"))

    def put(self, records: Sequence[Record]) -> None:
        """Store records in place of those with the same numbers; all of one or nothing."""

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
        if len(reason) > 300:  # what an object store answered stands at the end
            reason = f"{reason[:150]} … {reason[-150:]}"
        raise EngineError(f"{address.shown}: {reason}") from None


@contextmanager
def locked(path: Path, address: Address) -> Iterator[None]:
    """Be the only publisher to a file or folder, by a lock on a file of its own."""
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
    """Return numbers of documents ascending, each once."""
    return np.unique(np.array(list(numbers), np.int64))


def as_found(rows: Iterable[tuple[Any, ...]]) -> dict[int, PackedVectors]:
    """Return rows of number, id and vectors by number."""
    return {number: PackedVectors(id_, packed) for number, id_, packed in rows}


# -- values of filters -------------------------------------------------------------------------


def comparable(kind: Kind, value: Value) -> bytes:
    """Return a value as bytes that compare as values of its kind do, exactly."""
    if value is None:
        return b""
    if kind == "string":
        return stored_text(str(value))
    if kind == "bool":
        return bytes([bool(value)])
    near = float(value) + 0.0  # no -0
    # Whole numbers beyond 2**53 have several values for one float: the rest tells them apart.
    rest = int(value) - int(near) if isinstance(value, int) else 0
    (bits,) = struct.unpack(">Q", struct.pack(">d", near))
    bits = bits ^ (2**64 - 1 if bits >> 63 else 1 << 63)
    return struct.pack(">QH", bits, rest + 2**15)


def tested(test: Test) -> tuple[bytes, int, list[bytes]]:
    """Return the field, the kind and the values of a test, as ``Record.facts`` has them."""
    values = sorted({comparable(test.kind, value) for value in test.values})
    return stored_text(test.field), _KINDS[test.kind], values


OPERATORS = {"in": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
"""The operators of tests in SQL."""


# -- vectors in one piece ----------------------------------------------------------------------

_HEAD, _PART, _SUM = struct.Struct("<2sH"), struct.Struct("<IBI"), struct.Struct("<I")
_MAGIC = b"S1"
_TYPES = (np.dtype("<f4"), np.dtype("i1"))
Rows = NDArray[Any]


def pack(parts: Mapping[int, Rows]) -> bytes:
    """Return a document's vectors by set, as they are stored, in one piece with a checksum."""
    head = [_HEAD.pack(_MAGIC, len(parts))]
    head += [
        _PART.pack(set_id, _TYPES.index(rows.dtype), len(rows)) for set_id, rows in parts.items()
    ]
    data = b"".join([*head, *(np.ascontiguousarray(rows).tobytes() for rows in parts.values())])
    return data + _SUM.pack(crc32(data))


def unpack(data: bytes, dim: int) -> dict[int, Rows]:
    """Return what ``pack`` was given; refuse what it cannot have made."""
    try:
        magic, count = _HEAD.unpack_from(data)
        (sum_,) = _SUM.unpack_from(data, len(data) - _SUM.size)
        if magic != _MAGIC or crc32(memoryview(data)[: -_SUM.size]) != sum_:
            raise ValueError("a wrong checksum")
        at, parts = _HEAD.size + count * _PART.size, {}
        for part in range(count):
            set_id, kind, rows = _PART.unpack_from(data, _HEAD.size + part * _PART.size)
            found = np.frombuffer(data, _TYPES[kind], rows * dim, at)
            parts[set_id] = found.reshape(rows, dim)
            at += found.nbytes
        if at + _SUM.size != len(data) or len(parts.get(0, ())) != 1:
            raise ValueError("a wrong length")
    except (struct.error, ValueError, IndexError) as error:
        raise BadIndex(f"vectors of the copy are damaged ({error}): publish it again") from error
    return parts
