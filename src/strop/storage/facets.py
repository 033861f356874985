"""The values of the documents' metadata, in a table that filters read.

It is written in the transaction that writes the documents, so it never disagrees with them, and a
filter reads only the rows of the values that it names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import Any, Protocol

import numpy as np

from strop.common.arrays import Ints
from strop.filters import Filter, Ids, Kind, Test, Value, facts, fields_of
from strop.storage.database import DECODING_ERRORS, Database

_KINDS: dict[Kind, int] = {
    "exists": 0, "null": 1, "bool": 2, "number": 3, "string": 4, "instant": 5,
}  # fmt: skip
_OPS = {"in": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_Rows = set[tuple[bytes, int, Any]]
"""A field's name, the kind of a value and the value."""
_LONGEST = 200
"""Bytes of a text that are stored as they are; a longer one ends in a digest of the whole."""


class Values(Protocol):
    """Where a store has the values of metadata: which documents pass a test, by number."""

    def every(self) -> Ints:
        """Return the numbers of all documents, ascending."""

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids, ascending."""

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass, ascending."""


def select(filter_: Filter, values: Values) -> Ints:
    """Return the numbers of the documents of any store that match a filter, ascending."""
    if isinstance(filter_, Test):
        return values.passing(filter_)
    if isinstance(filter_, Ids):
        return values.with_ids(filter_.ids)
    parts = [select(part, values) for part in filter_.parts]
    if filter_.op == "and":
        both = partial(np.intersect1d, assume_unique=True)
        return reduce(both, parts) if parts else values.every()
    either: Ints = reduce(np.union1d, parts, np.empty(0, np.int64))
    return either if filter_.op == "or" else np.setdiff1d(values.every(), either, True)


def write_facets(database: Database, number: int, old: str | None, new: str | None) -> None:
    """Within a transaction: a document's metadata changes; None is that of no document."""
    if old != new:
        _change(database, number, _rows(old), _rows(new))


def _change(database: Database, number: int, before: _Rows, after: _Rows) -> None:
    database.executemany(
        "DELETE FROM facets WHERE field = (SELECT field FROM fields WHERE name = ?)"
        " AND kind = ? AND value = ? AND number = ?",
        [(*row, number) for row in before - after],
    )
    added = after - before
    database.executemany(
        "INSERT OR IGNORE INTO fields (name) VALUES (?)", {(name,) for name, _, _ in added}
    )
    database.executemany(
        "INSERT OR IGNORE INTO facets SELECT field, ?2, ?3, ?4 FROM fields WHERE name = ?1",
        [(*row, number) for row in added],
    )


class Facets:
    """What filters read of the documents' metadata."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def select(self, filter_: Filter) -> Ints:
        """Return the numbers of the documents that match, in order."""
        with self._database.reading():
            return select(filter_, self)

    def every(self) -> Ints:
        """Return the numbers of all documents (``Values``)."""
        return _ascending(self._database.column("SELECT number FROM documents"))

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids."""
        numbers: list[int] = []
        for id_ in set(ids):
            numbers += self._database.column(
                "SELECT number FROM documents WHERE id = ?1 UNION ALL"
                " SELECT number FROM chunks JOIN wholes USING (whole) WHERE id = ?1",
                (id_,),
            )
        return _ascending(numbers)

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test."""
        row = self._database.row(
            "SELECT field FROM fields WHERE name = ?", (stored_text(test.field),)
        )
        if row is None:
            return np.empty(0, np.int64)
        if test.kind == "exists":  # any value tells
            sql = "SELECT number FROM facets WHERE field = ?"
            return _ascending(self._database.column(sql, row))
        sql = f"SELECT number FROM facets WHERE field = ? AND kind = ? AND value {_OPS[test.op]} ?"
        numbers: list[int] = []
        for value in set(test.values):
            stored = _stored(test.kind, value)
            numbers += self._database.column(sql, (row[0], _KINDS[test.kind], stored))
        return _ascending(numbers)

    def problem(self) -> str:
        """Say whether filters read other values than the metadata has; "" if not."""
        with self._database.reading():
            stored = self._database.execute(
                "SELECT name, kind, value, number FROM facets LEFT JOIN fields USING (field)"
            )
            # Sums of hashes: the order of rows does not matter, and no row is held in memory.
            if sum(map(_hash, stored)) == sum(
                _hash((*row, number)) for number, rows in self._everything() for row in rows
            ):
                return ""
        return "the values that filters read are not those of the metadata"

    def rebuild(self) -> None:
        """Write what filters read from the metadata of all documents."""
        with self._database.writing():
            self._database.execute("DELETE FROM facets")
            self._database.execute("DELETE FROM fields")
            for number, rows in self._everything():
                _change(self._database, number, set(), rows)

    def _everything(self) -> Iterator[tuple[int, _Rows]]:
        """Yield each document's number and rows; none if its metadata cannot be read."""
        for number, metadata in self._database.execute("SELECT number, metadata FROM documents"):
            try:
                rows = _rows(metadata)
            except DECODING_ERRORS:
                rows = set()
            yield number, rows

    def unknown(self, filter_: Filter) -> list[str]:
        """Return the fields of a filter that no document has."""
        return [field for field in sorted(fields_of(filter_)) if not self._kinds_of(field)]

    def other_kinds(self, filter_: Filter) -> dict[str, tuple[list[Kind], list[Kind]]]:
        """Return the fields that have values, but none of a kind that the filter compares.

        With each the kinds of the filter and those that documents have.
        """
        found = {}
        for field, kinds in fields_of(filter_).items():
            there = self._kinds_of(field)
            if not kinds & {"exists", "null", *there} and {*there} - {"exists", "null"}:
                found[field] = sorted(kinds), there
        return found

    def _kinds_of(self, field: str) -> list[Kind]:
        """Return the kinds of values that documents have in a field."""
        there = self._database.column(
            "SELECT known.value FROM json_each(?) known WHERE EXISTS (SELECT 1 FROM facets"
            " WHERE kind = known.value AND field = (SELECT field FROM fields WHERE name = ?))",
            (json.dumps([*_KINDS.values()]), stored_text(field)),
        )
        return [kind for kind in _KINDS if _KINDS[kind] in there]

    def field_names(self) -> list[str]:
        """Return the fields that documents have, for messages; very long ones are cut."""
        names = self._database.column(
            "SELECT name FROM fields WHERE EXISTS"
            " (SELECT 1 FROM facets WHERE facets.field = fields.field) ORDER BY name"
        )
        return [bytes(name[:_LONGEST]).decode("utf-8", "replace") for name in names]


def _hash(row: tuple[bytes | None, int, Any, int]) -> int:
    """Return a hash of a row; of its text, because Python's hashes of -1 and -2 are equal.

    Numbers that SQLite takes for equal are written alike: 1, 1.0 and true; 0.0 and -0.0.
    """
    name, kind, value, number = row
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    return hash(repr((name, kind, value, number)))


def _ascending(numbers: list[int]) -> Ints:
    return np.unique(np.array(numbers, np.int64))


def _rows(metadata: str | None) -> _Rows:
    """Return what the table holds of a document: a field of its own row only if it has no value."""
    found = facts(json.loads(metadata)) if metadata is not None else set()
    valued = {field for field, kind, _ in found if kind != "exists"}
    return {
        (stored_text(field), _KINDS[kind], _stored(kind, value))
        for field, kind, value in found
        if kind != "exists" or field not in valued
    }


def _stored(kind: Kind, value: Value) -> Any:
    """Return a value as the table holds it; text as bytes, whose order is that of characters."""
    if value is None:
        return 0
    return stored_text(str(value)) if kind == "string" else value


def stored_text(value: str) -> bytes:
    """Return a text as filters compare it: its bytes, a long one's beginning and a digest."""
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) <= _LONGEST:
        return raw
    return raw[:_LONGEST] + hashlib.blake2b(raw, digest_size=16).digest()
