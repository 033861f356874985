"""The values of the documents' metadata, in a table that filters read.

It is written in the transaction that writes the documents, so it never disagrees with them, and a
filter reads only the rows of the values that it names.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from functools import reduce
from typing import Any

import numpy as np

from strop.common.arrays import Ints
from strop.filters import Fact, Filter, Ids, Kind, Test, Value, facts
from strop.storage.database import Database

_KINDS: dict[Kind, int] = {
    "exists": 0, "null": 1, "bool": 2, "number": 3, "string": 4, "instant": 5,
}  # fmt: skip
_OPS = {"in": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_LONGEST = 200
"""Bytes of a text that are stored as they are; a longer one ends in a digest of the whole."""


class Facets:
    """What filters need of the documents' metadata."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def replace(
        self, connection: sqlite3.Connection, number: int, old: str | None, new: str | None
    ) -> None:
        """Within ``writing``: a document's metadata changes; None is that of no document."""
        before = facts(json.loads(old)) if old is not None else set()
        after = facts(json.loads(new)) if new is not None else set()
        connection.executemany(
            "DELETE FROM facets WHERE field = (SELECT field FROM fields WHERE name = ?)"
            " AND kind = ? AND value = ? AND number = ?",
            [(*_row(fact), number) for fact in before - after],
        )
        added = [_row(fact) for fact in after - before]
        connection.executemany(
            "INSERT OR IGNORE INTO fields (name) VALUES (?)", {(name,) for name, _, _ in added}
        )
        connection.executemany(
            "INSERT OR IGNORE INTO facets SELECT field, ?2, ?3, ?4 FROM fields WHERE name = ?1",
            [(*row, number) for row in added],
        )

    def select(self, filter_: Filter) -> Ints:
        """Return the numbers of the documents that match, in order."""
        with self._database.reading() as connection:
            return self._select(connection, filter_)

    def _select(self, connection: sqlite3.Connection, node: Filter) -> Ints:
        if isinstance(node, Test):
            return self._test(connection, node)
        if isinstance(node, Ids):
            rows = [
                row
                for id_ in set(node.ids)
                for row in connection.execute("SELECT number FROM documents WHERE id = ?", (id_,))
            ]
            return _numbers(rows)
        if node.op == "and":
            everything = None if node.parts else self._all(connection)
            for part in node.parts:
                matching = self._select(connection, part)
                everything = (
                    matching
                    if everything is None
                    else np.intersect1d(everything, matching, assume_unique=True)
                )
            assert everything is not None
            return everything
        found: Ints = reduce(
            np.union1d,
            (self._select(connection, part) for part in node.parts),
            np.empty(0, np.int64),
        )
        if node.op == "not":
            return np.setdiff1d(self._all(connection), found, assume_unique=True)
        return found

    @staticmethod
    def _all(connection: sqlite3.Connection) -> Ints:
        return _numbers(connection.execute("SELECT number FROM documents").fetchall())

    @staticmethod
    def _test(connection: sqlite3.Connection, test: Test) -> Ints:
        row = connection.execute(
            "SELECT field FROM fields WHERE name = ?", (_text(test.field),)
        ).fetchone()
        if row is None:
            return np.empty(0, np.int64)
        statement = (
            f"SELECT number FROM facets WHERE field = ? AND kind = ? AND value {_OPS[test.op]} ?"
        )
        rows = [
            found
            for value in set(test.values)
            for found in connection.execute(
                statement, (row[0], _KINDS[test.kind], _stored(test.kind, value))
            )
        ]
        return _numbers(rows)

    def field_names(self) -> list[str]:
        """Return the fields that documents have, for messages."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT name FROM fields WHERE EXISTS"
                " (SELECT 1 FROM facets WHERE facets.field = fields.field AND kind = 0)"
                " ORDER BY name"
            ).fetchall()
        return [bytes(name).decode("utf-8", "surrogatepass") for (name,) in rows]


def _numbers(rows: list[tuple[int]]) -> Ints:
    return np.unique(np.fromiter((number for (number,) in rows), np.int64, len(rows)))


def _row(fact: Fact) -> tuple[bytes, int, Any]:
    field, kind, value = fact
    return _text(field), _KINDS[kind], _stored(kind, value)


def _stored(kind: Kind, value: Value) -> Any:
    """Return a value as the table holds it; text as bytes, whose order is that of characters."""
    if value is None:
        return 0
    if kind != "string":
        return value
    return _text(str(value))


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) <= _LONGEST:
        return raw
    return raw[:_LONGEST] + hashlib.blake2b(raw, digest_size=16).digest()
