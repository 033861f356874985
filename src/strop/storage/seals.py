"""Seals: a checksum of the rows of each table, which shows changes that strop did not make.

SQLite stores no checksums of its rows, so a flipped bit may become another number, name or text.
Each transaction therefore stores the sum of the hashes of all rows, by table. The sum does not
depend on the order of rows, so a change costs only as much as the rows that it touches. Temporary
triggers report these rows; they are not part of the file. ``check`` recomputes the sums and
compares them.

Seals detect accidents. Somebody who edits a catalog on purpose can compute them too.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Any

KEY = "seals"
"""The key of the seals in the table ``meta``; this row is not sealed."""
_MODULUS = 1 << 64
_UNSEALED = {"word_postings"}
"""Tables with other checksums (words.py), because too many of their rows change in a commit."""


class Seals:
    """Sums the hashes of the rows that one connection adds and removes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._sums: Counter[str] = Counter()
        connection.create_function("seal_row", -1, self._add)

    def watch(self) -> None:
        """Follow every change by this connection from now on; call it outside of a transaction."""
        script = ["PRAGMA recursive_triggers = ON"]  # else REPLACE would hide the replaced row
        for table, columns in self._tables():
            for event, rows in (
                ("INSERT", {"NEW": 1}), ("DELETE", {"OLD": -1}), ("UPDATE", {"OLD": -1, "NEW": 1}),
            ):  # fmt: skip
                calls = "; ".join(
                    f"SELECT {_call(table, columns, sign, row)}" for row, sign in rows.items()
                )
                script.append(
                    f"CREATE TEMP TRIGGER IF NOT EXISTS seal_{table}_{event} AFTER {event}"
                    f" ON main.{table} BEGIN {calls}; END"
                )
        self._connection.executescript(";\n".join(script))

    def forget(self) -> None:
        """Drop the sums of a transaction that is rolled back."""
        self._sums.clear()

    def store(self) -> None:
        """Within a transaction: update the stored seals.

        One that cannot be read stays so: ``broken`` names its table until ``seal``.
        """
        if not self._sums:
            return
        seals = self._stored()
        for table, change in self._sums.items():
            if isinstance(seals.get(table), int):
                seals[table] = (seals[table] + change) % _MODULUS
        self._put(seals)

    def seal(self) -> None:
        """Within a transaction: seal all rows as they are now."""
        self._put(self.of_everything())

    def _put(self, seals: dict[str, int]) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", (KEY, json.dumps(seals))
        )
        self._sums.clear()

    def broken(self) -> tuple[list[str], bool]:
        """Return the tables whose rows do not match their seal, and whether any seal is readable.

        If none is readable, these are all tables.
        """
        stored, sums = self._stored(), self.of_everything()
        return [table for table, sum_ in sums.items() if stored.get(table) != sum_], bool(stored)

    def of_everything(self) -> dict[str, int]:
        """Return the seal of each table, computed from its rows."""
        self._sums.clear()
        for table, columns in self._tables():
            for _ in self._connection.execute(
                f"SELECT {_call(table, columns, 1, table)} FROM {table}"
            ):
                pass
        sums = {table: self._sums[table] % _MODULUS for table, _ in self._tables()}
        self._sums.clear()
        return sums

    def _stored(self) -> dict[str, Any]:
        """Return the stored seals; none if they cannot be read."""
        row = self._connection.execute(
            "SELECT CAST(value AS BLOB) FROM meta WHERE key = ?", (KEY,)
        ).fetchone()
        try:
            stored = json.loads(row[0])
        except (ValueError, TypeError, RecursionError):
            return {}
        return stored if isinstance(stored, dict) else {}

    def _tables(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the sealed tables, each with the declared types of its columns."""
        names = self._connection.execute(
            "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
        ).fetchall()
        for name in sorted({name for (name,) in names} - _UNSEALED):
            columns = self._connection.execute(f"PRAGMA main.table_info({name})").fetchall()
            yield name, {column[1]: column[2] for column in columns}

    def _add(self, table: str, sign: int, types: str, *cells: Any) -> None:
        if table == "meta" and cells[0] == KEY.encode():
            return
        raw = [cell if isinstance(cell, bytes) else repr(cell).encode() for cell in cells]
        hashed = hashlib.blake2b(types.encode() + b"\0".join([*raw, b""]), digest_size=8)
        self._sums[table] += sign * int.from_bytes(hashed.digest(), "little")


def _call(table: str, columns: dict[str, str], sign: int, row: str) -> str:
    """Return the SQL that adds a row. Texts are passed as bytes: they may not be valid UTF-8.

    Whole numbers are passed as their digits, without a test of each value's type: that is faster to
    set up and to run. This would round fractions, so columns that may have them are tested.
    """
    types = " || ".join(f"typeof({row}.{name})" for name in columns)
    cells = ", ".join(
        f"CAST({row}.{name} AS BLOB)"
        if declared in ("INTEGER", "TEXT", "BLOB")
        else f"iif(typeof({row}.{name}) = 'text', CAST({row}.{name} AS BLOB), {row}.{name})"
        for name, declared in columns.items()
    )
    return f"seal_row('{table}', {sign}, {types}, {cells})"
