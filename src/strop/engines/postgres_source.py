"""Texts and metadata that stay in a user's tables of PostgreSQL: a query selects them.

The query has the columns ``id`` and ``text`` (or ``body``) and may have ``title``; all others are
metadata. An index is built from its rows, and a copy in the same database shows them: its publisher
creates a view of the query, and readers read that view.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from strop.engines.base import Address, engine_errors
from strop.engines.sql import SqlEngine
from strop.errors import BadInput, MissingExtra
from strop.types import Document

_AT_ONCE = 1000
_QUOTED = re.compile(r"'(?:[^']|'')*'" + r'|"(?:[^"]|"")*"')


def read_source(url: str, source: str) -> Iterator[Document]:
    """Yield the documents that a query selects, in a transaction that can only read."""
    try:
        import psycopg
    except ImportError:
        raise MissingExtra("PostgreSQL", "postgres") from None
    address = Address.read(url)
    if not address.scheme.startswith("postgres"):
        raise BadInput(f"--source needs a database of PostgreSQL, not {address.shown}")
    statement = f"SELECT to_jsonb(one)::text FROM ({checked_source(source)}\n) AS one"
    with (
        engine_errors(address, psycopg.Error),
        psycopg.connect(address.server, connect_timeout=10) as connection,
    ):
        connection.read_only = True
        with connection.cursor(name="strop_source") as cursor:
            cursor.itersize = _AT_ONCE
            for (row,) in cursor.execute(statement.encode()):
                yield as_document(json.loads(row))


def checked_source(source: str) -> str:
    """Return a query without its last semicolon; refuse anything but a single SELECT."""
    query = source.strip().removesuffix(";").strip()
    first = query.split(None, 1)[0].upper() if query else ""
    if first not in ("SELECT", "WITH") or ";" in _QUOTED.sub("", query):
        raise BadInput(f"--source takes one SELECT, not {source!r:.80}")
    return query


def as_document(row: dict[str, Any]) -> Document:
    """Return the document of a row, given as JSON."""
    fields = dict(row)
    id_, title = fields.pop("id", None), fields.pop("title", None)
    text = fields.pop("text" if "text" in fields else "body", None)
    if id_ is None or not {"text", "body"} & row.keys():
        have = ", ".join(row)
        raise BadInput(f"--source needs the columns id and text (or body); it has: {have:.200}")
    return Document(str(id_), str(text or ""), str(title or ""), fields)


def sync_source(index: Any, url: str, source: str, progress: Any = None) -> Any:
    """Bring an index up to date with a query: add, update, remove; return the changes."""
    seen = set[str]()

    def documents() -> Iterator[Document]:
        for one in read_source(url, source):
            seen.add(one.id)
            yield one
        if not seen:  # a wrong condition must not remove all documents and their queries
            raise BadInput(f"--source selects no row, so nothing was changed: {source!r:.80}")

    changes = index.add(documents(), progress)
    if gone := [id_ for id_ in index.ids() if id_ not in seen]:
        index.remove(gone)
    return replace(changes, removed=len(gone))


def rows_of_source(postgres: SqlEngine, ids: list[str]) -> dict[str, Document]:
    """Return documents of the view by id, without those removed from the user's table."""
    if not ids:
        return {}
    # Ids are compared in the type of the column, so that its index is used.
    types = postgres.rows(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attname = 'id'",
        postgres.names["source"],
    )
    if not types:
        return {}
    rows = postgres.rows(
        "SELECT to_jsonb(one)::text FROM {source} AS one"
        f" WHERE id = ANY(%s::text[]::{types[0][0]}[])",
        ids,
    )
    documents = (as_document(json.loads(row)) for (row,) in rows)
    return {document.id: document for document in documents}
