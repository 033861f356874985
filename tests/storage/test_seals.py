"""Seals: checksums that stay the same in all versions of strop."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from strop.storage.seals import Seals

ROWS = [
    (1, "text", b"blob", 0.1 + 0.2, 2.5),
    (-(2**63), "", b"", -0.0, -7),
    (2**63 - 1, "nul\0 and \u00e9", b"\0\xff", 1e20, "text"),
    (None, None, None, None, None),
]
SUM = 848161463266548910
"""The sum that earlier versions stored for these rows."""


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE kinds (whole INTEGER, t TEXT, b BLOB, r REAL, any_)")
        yield connection


def insert(connection: sqlite3.Connection) -> None:
    connection.executemany("INSERT INTO kinds VALUES (?, ?, ?, ?, ?)", ROWS)
    # Text that is not UTF-8, as damage or another program may leave it.
    connection.execute("INSERT INTO kinds (t) VALUES (CAST(x'ff41' AS TEXT))")


def test_sum_of_rows_of_every_type(connection: sqlite3.Connection) -> None:
    insert(connection)
    assert Seals(connection).of_everything() == {"kinds": SUM}


@pytest.mark.parametrize(
    "change",
    [
        "whole = 2 WHERE whole = 1",
        "whole = 1.5 WHERE whole = 1",
        "t = CAST(t AS BLOB) WHERE t = 'text'",
        "t = CAST(x'fe41' AS TEXT) WHERE b IS NULL AND t IS NOT NULL",
        "b = CAST(b AS TEXT) WHERE t = 'text'",
        "r = 0.3 WHERE t = 'text'",  # differs in the seventeenth digit
        "any_ = 2.5000000000000004 WHERE any_ = 2.5",
        "any_ = '-7' WHERE any_ = -7",
        "whole = 0 WHERE t IS NULL",
    ],
)
def test_any_change_of_a_cell_changes_the_sum(connection: sqlite3.Connection, change: str) -> None:
    insert(connection)
    assert connection.execute(f"UPDATE kinds SET {change}").rowcount == 1
    assert Seals(connection).of_everything() != {"kinds": SUM}
