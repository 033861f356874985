"""What was sent to batch services or written to files of requests, and what is still out there.

A request that is out in a batch is not asked again until the batch has been collected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from strop.catalog import Catalog
from strop.reply_store import Provenance

FILE = "file"
"""In place of a batch's id for requests that were written to a file."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS batches (id TEXT PRIMARY KEY, provenance TEXT NOT NULL,"
    " requests INTEGER NOT NULL, submitted TEXT NOT NULL, collected TEXT) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS sent (name TEXT PRIMARY KEY, key TEXT NOT NULL,"
    " number INTEGER NOT NULL, batch TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS sent_keys ON sent (key)",
)


@dataclass(frozen=True)
class OpenBatch:
    """A batch that has not been collected: how many requests, when it was submitted."""

    id: str
    requests: int
    submitted: str


def record_sent(
    catalog: Catalog, batch: str, sent: Mapping[str, tuple[str, int]], provenance: Provenance
) -> None:
    """Keep what a batch holds: {name of the request there: (key, number of its document)}."""
    with catalog.writing(searchable=False) as connection:
        for table in _TABLES:
            connection.execute(table)
        connection.execute(
            "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, NULL)",
            (batch, json.dumps([provenance.lm, provenance.settings]), len(sent), _now()),
        )
        connection.executemany(
            "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?)",
            [(name, key, number, batch) for name, (key, number) in sent.items()],
        )


def open_batches_of(catalog: Catalog, lm: str) -> list[OpenBatch]:
    """Return the batches of a model that have not been collected, the oldest first."""
    with catalog.reading() as connection:
        if not _there(catalog):
            return []
        found = connection.execute(
            "SELECT id, requests, submitted, provenance FROM batches"
            " WHERE collected IS NULL AND id <> ? ORDER BY submitted, id",
            (FILE,),
        ).fetchall()
    return [OpenBatch(*row) for *row, told in found if json.loads(told)[0] == lm]


def names_in(catalog: Catalog, batch: str) -> list[str]:
    """Return the names of the requests in a batch."""
    with catalog.reading() as connection:
        found = connection.execute("SELECT name FROM sent WHERE batch = ?", (batch,)).fetchall()
    return [name for (name,) in found]


def meant_by(catalog: Catalog, names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return (key, number of its document) of those names that were sent from here."""
    with catalog.reading() as connection:
        if not _there(catalog):
            return {}
        found = {
            name: connection.execute(
                "SELECT key, number FROM sent WHERE name = ?", (name,)
            ).fetchone()
            for name in names
        }
    return {name: row for name, row in found.items() if row is not None}


def still_out(catalog: Catalog, keys: Iterable[str]) -> set[str]:
    """Return those keys whose request is out in a batch that has not been collected."""
    with catalog.reading() as connection:
        if not _there(catalog):
            return set()
        return {
            key
            for key in keys
            if connection.execute(
                "SELECT 1 FROM sent JOIN batches ON batches.id = sent.batch"
                " WHERE key = ? AND collected IS NULL AND batch <> ?",
                (key, FILE),
            ).fetchone()
        }


def collected(catalog: Catalog, batch: str) -> None:
    """Note that all that came of a batch is kept."""
    with catalog.writing(searchable=False) as connection:
        connection.execute("UPDATE batches SET collected = ? WHERE id = ?", (_now(), batch))


def mark_sending(catalog: Catalog, lm: str | None) -> None:
    """Note that a batch is being sent, or (None) that it has arrived."""
    with catalog.writing(searchable=False) as connection:
        told = json.dumps({"lm": lm, "since": _now()} if lm else None)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('sending', ?)", (told,))


def cut_off_since(catalog: Catalog) -> str | None:
    """Return since when a batch has been on its way that nobody saw arrive."""
    told = catalog.meta("sending")
    return told["since"] if told else None


def _there(catalog: Catalog) -> bool:
    with catalog.reading() as connection:
        sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sent'"
        return connection.execute(sql).fetchone() is not None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
