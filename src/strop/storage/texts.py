"""Where texts of documents and of query sets are written, replaced and removed.

Only dropping a whole set is elsewhere (query_sets.py).

The values that filters read are written here, where the old metadata is at hand: only the values
that differ are touched. Words wait until just before the commit (word_index.py): which lists of
queries count also depends on spans, which others write later in the transaction.

Each function works within the transaction of its caller, who also records the change in the log of
the ledger.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strop.storage.facets import write_facets
from strop.types import Document


def digest_of(document: Document) -> bytes:
    """Return a hash of what is embedded of a document: a change of it means embedding anew."""
    joined = json.dumps([document.title, document.text], ensure_ascii=False)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def row_of_id(connection: sqlite3.Connection, select: str, id_: str) -> Any:
    """Return the row that ``select`` finds for an id, None if there is none."""
    try:
        return connection.execute(select, (id_,)).fetchone()
    except UnicodeEncodeError:  # a lone surrogate; no stored id has one
        return None


def find_document(connection: sqlite3.Connection, id_: str) -> tuple[int, bytes, str] | None:
    """Return a document's number, digest and metadata."""
    select = "SELECT number, digest, metadata FROM documents WHERE id = ?"
    row: tuple[int, bytes, str] | None = row_of_id(connection, select, id_)
    return row


def write_document(
    connection: sqlite3.Connection,
    document: Document,
    metadata: str,
    digest: bytes,
    old_metadata: str | None,
) -> int:
    """Insert a document, or replace the one with its id; return its number."""
    row = connection.execute(
        "INSERT INTO documents (id, title, text, metadata, digest, empty)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET title = excluded.title,"
        " text = excluded.text, metadata = excluded.metadata, digest = excluded.digest,"
        " empty = excluded.empty RETURNING number",
        (document.id, document.title, document.text, metadata, digest, not document.content),
    ).fetchone()
    write_facets(connection, row[0], old_metadata, metadata)
    return int(row[0])


def remove_documents(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Remove documents; their queries are removed set by set."""
    for number in numbers:
        (metadata,) = connection.execute(
            "SELECT metadata FROM documents WHERE number = ?", (number,)
        ).fetchone()
        write_facets(connection, number, metadata, None)
    for table in ("documents", "selections"):
        connection.executemany(
            f"DELETE FROM {table} WHERE number = ?", [(number,) for number in numbers]
        )


def write_queries(
    connection: sqlite3.Connection, set_id: int, lists: Mapping[int, list[str]]
) -> None:
    """Store documents' lists of queries of a set, by document number; they replace older ones."""
    connection.executemany(
        "INSERT OR REPLACE INTO queries VALUES (?, ?, ?)",
        [
            (set_id, number, json.dumps(texts, ensure_ascii=False))
            for number, texts in lists.items()
        ],
    )


def remove_queries(connection: sqlite3.Connection, set_id: int, numbers: Iterable[int]) -> None:
    """Remove documents' lists of queries of a set."""
    connection.executemany(
        "DELETE FROM queries WHERE set_id = ? AND number = ?",
        [(set_id, number) for number in numbers],
    )
