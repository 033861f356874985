"""The values of the documents' metadata, in a table that filters read.

The table is written in the transaction that writes the documents, so it always agrees with them. A
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
"""The stored number of each kind of value. "exists" is a field that has no value."""
_OPS = {"in": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_Rows = set[tuple[bytes, int, Any]]
"""A field's name, the kind of a value and the value."""
_MAX_BYTES = 200
"""Bytes of a text that are stored; of a longer one these and a digest of all its bytes."""


class Values(Protocol):
    """The metadata of any store, as filters need it: which documents pass a test, by number."""

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
    selections = [select(part, values) for part in filter_.parts]
    if filter_.op == "and":
        intersect = partial(np.intersect1d, assume_unique=True)
        return reduce(intersect, selections) if selections else values.every()
    union: Ints = reduce(np.union1d, selections, np.empty(0, np.int64))
    return union if filter_.op == "or" else np.setdiff1d(values.every(), union, True)


def write_facets(database: Database, number: int, old: str | None, new: str | None) -> None:
    """Within a transaction: record a change of a document's metadata (None: no document)."""
    if old != new:
        _replace_rows(database, number, _rows(old), _rows(new))


def _replace_rows(database: Database, number: int, old: _Rows, new: _Rows) -> None:
    database.executemany(
        "DELETE FROM facets WHERE field = (SELECT field FROM fields WHERE name = ?)"
        " AND kind = ? AND value = ? AND number = ?",
        [(*row, number) for row in old - new],
    )
    added = new - old
    database.executemany(
        "INSERT OR IGNORE INTO fields (name) VALUES (?)", {(name,) for name, _, _ in added}
    )
    database.executemany(
        "INSERT OR IGNORE INTO facets SELECT field, ?2, ?3, ?4 FROM fields WHERE name = ?1",
        [(*row, number) for row in added],
    )


class Facets:
    """The values of the documents' metadata that filters read."""

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
        if test.kind == "exists":  # a row of any kind shows that the field exists
            sql = "SELECT number FROM facets WHERE field = ?"
            return _ascending(self._database.column(sql, row))
        sql = f"SELECT number FROM facets WHERE field = ? AND kind = ? AND value {_OPS[test.op]} ?"
        numbers: list[int] = []
        for value in set(test.values):
            stored = _stored(test.kind, value)
            numbers += self._database.column(sql, (row[0], _KINDS[test.kind], stored))
        return _ascending(numbers)

    def problems(self) -> list[str]:
        """Describe the problem if the stored values are not those of the metadata."""
        with self._database.reading():
            stored = self._database.execute(
                "SELECT name, kind, value, number FROM facets LEFT JOIN fields USING (field)"
            )
            # Sums of hashes: the order of rows does not matter, and no row is held in memory.
            if sum(map(_hash, stored)) == sum(
                _hash((*row, number)) for number, rows in self._expected_rows() for row in rows
            ):
                return []
        return ["the values that filters read are not those of the metadata"]

    def rebuild(self) -> None:
        """Rewrite all values that filters read from the metadata of the documents."""
        with self._database.writing():
            self._database.execute("DELETE FROM facets")
            self._database.execute("DELETE FROM fields")
            for number, rows in self._expected_rows():
                _replace_rows(self._database, number, set(), rows)

    def _expected_rows(self) -> Iterator[tuple[int, _Rows]]:
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

        For each field: the kinds of the filter, and the kinds that documents have.
        """
        mismatches = {}
        for field, kinds in fields_of(filter_).items():
            stored = self._kinds_of(field)
            if not kinds & {"exists", "null", *stored} and {*stored} - {"exists", "null"}:
                mismatches[field] = sorted(kinds), stored
        return mismatches

    def _kinds_of(self, field: str) -> list[Kind]:
        """Return the kinds of values that documents have in a field."""
        stored = self._database.column(
            "SELECT known.value FROM json_each(?) known WHERE EXISTS (SELECT 1 FROM facets"
            " WHERE kind = known.value AND field = (SELECT field FROM fields WHERE name = ?))",
            (json.dumps([*_KINDS.values()]), stored_text(field)),
        )
        return [kind for kind in _KINDS if _KINDS[kind] in stored]

    def field_names(self) -> list[str]:
        """Return the fields that documents have, for messages; very long ones are cut."""
        names = self._database.column(
            "SELECT name FROM fields WHERE EXISTS"
            " (SELECT 1 FROM facets WHERE facets.field = fields.field) ORDER BY name"
        )
        return [bytes(name[:_MAX_BYTES]).decode("utf-8", "replace") for name in names]


def _hash(row: tuple[bytes | None, int, Any, int]) -> int:
    """Return a hash of a row as text: as numbers, -1 and -2 have equal hashes in Python.

    Numbers that are equal for SQLite become the same text: 1, 1.0 and true; 0.0 and -0.0.
    """
    name, kind, value, number = row
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    return hash(repr((name, kind, value, number)))


def _ascending(numbers: list[int]) -> Ints:
    return np.unique(np.array(numbers, np.int64))


def _rows(metadata: str | None) -> _Rows:
    """Return the rows of a document's metadata; a field has an "exists" row if it has no value."""
    values = facts(json.loads(metadata)) if metadata is not None else set()
    valued = {field for field, kind, _ in values if kind != "exists"}
    return {
        (stored_text(field), _KINDS[kind], _stored(kind, value))
        for field, kind, value in values
        if kind != "exists" or field not in valued
    }


def _stored(kind: Kind, value: Value) -> Any:
    """Return a value as the table stores it; text as bytes, whose order is that of characters."""
    if value is None:
        return 0
    return stored_text(str(value)) if kind == "string" else value


def stored_text(value: str) -> bytes:
    """Return a text as filters compare it: its bytes, or if they are many, some and a digest."""
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) <= _MAX_BYTES:
        return raw
    return raw[:_MAX_BYTES] + hashlib.blake2b(raw, digest_size=16).digest()
