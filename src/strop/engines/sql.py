"""The common part of PostgreSQL and DuckDB: the same tables, and statements for them.

In a statement ``{documents}`` stands for the name of a table, ``{value}`` for a parameter, and
``{numbers}``, ``{texts}`` or ``{blobs}`` for a parameter that is a list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from strop.common.arrays import Ints
from strop.engines.base import OPERATORS, Engine, as_numbers, encoded_test
from strop.filters import Test

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
Row = tuple[Any, ...]


class SqlEngine(Engine, Protocol):
    """A copy in tables: documents, rows, facts, pieces."""

    names: Mapping[str, str]
    """The values of the names in braces in statements."""
    by_number: Sequence[str]
    """The tables with rows of documents."""

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """Return the rows of a statement; none if there is no copy."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Yield the publisher's connection; its changes are committed together at the end."""

    # -- reading --------------------------------------------------------------------------

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return pieces by name, without missing ones."""
        sql = "SELECT name, content FROM {pieces} WHERE name = ANY {texts}"
        return dict(self.rows(sql, list(names)))

    def values(self, numbers: Ints, *columns: str) -> list[Row]:
        """Return the number and some columns of documents."""
        quoted = ", ".join(f'"{column}"' for column in ("number", *columns))
        sql = f"SELECT {quoted} FROM {{documents}} WHERE number = ANY {{numbers}}"
        return self.rows(sql, numbers.tolist())

    def every(self) -> Ints:
        """Return the numbers of all documents."""
        return self._numbers("SELECT number FROM {documents}")

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids."""
        sql = "SELECT number FROM {documents} WHERE id = ANY {texts}"
        return self._numbers(sql, [*filter(storable, ids)])

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test."""
        sql = (
            "SELECT DISTINCT number FROM {facts} WHERE field = {value} AND kind = {value}"
            f" AND value {OPERATORS[test.op]} ANY {{blobs}}"
        )
        return self._numbers(sql, *encoded_test(test))

    def _numbers(self, sql: str, *values: Any) -> Ints:
        return as_numbers(number for (number,) in self.rows(sql, *values))

    # -- writing --------------------------------------------------------------------------

    def execute(self, connection: Any, sql: str, *values: Any) -> None:
        """Execute a statement of a publisher."""
        connection.execute(sql.format_map(self.names), values or None)

    def insert(self, connection: Any, table: str, rows: Sequence[Row]) -> None:
        """Insert rows into a table."""

    def delete(self, connection: Any, numbers: Sequence[int]) -> None:
        """Delete the rows of documents."""
        for table in self.by_number:
            sql = f"DELETE FROM {{{table}}} WHERE number = ANY {{numbers}}"
            self.execute(connection, sql, numbers)

    def remove(self, numbers: Ints) -> None:
        """Remove documents."""
        with self.transaction() as connection:
            self.delete(connection, numbers.tolist())

    def write(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces in one transaction."""
        with self.transaction() as connection:
            sql = "DELETE FROM {pieces} WHERE name = ANY {texts}"
            self.execute(connection, sql, list(pieces))
            self.insert(connection, "pieces", list(pieces.items()))

    def forget(self, prefixes: Sequence[str], names: Sequence[str]) -> None:
        """Remove pieces."""
        sql = (
            "DELETE FROM {pieces} WHERE name = ANY {texts} OR EXISTS (SELECT 1"
            " FROM (SELECT unnest({value}::text[]) AS prefix) AS one"
            " WHERE name = prefix OR starts_with(name, prefix || '.'))"
        )
        with self.transaction() as connection:
            self.execute(connection, sql, list(names), list(prefixes))


def storable(text: str) -> bool:
    """Return whether PostgreSQL can store a text: it has no NUL and no unpaired surrogate."""
    return _UNSTORABLE.search(text) is None
