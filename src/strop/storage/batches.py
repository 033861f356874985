"""What was sent to batch services or written to files of requests, and what is still out there.

A request that is out in a batch is not asked again until the batch has been collected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone

from strop.errors import BadInput
from strop.storage.catalog import Catalog
from strop.storage.replies import Provenance

_FILE = "file:"
"""How ids begin that stand for requests written to files, for each provenance one."""


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
        connection.execute(
            "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, NULL)",
            (batch, json.dumps(asdict(provenance)), len(sent), _now()),
        )
        connection.executemany(
            "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?)",
            [(name, key, number, batch) for name, (key, number) in sent.items()],
        )


def record_file(
    catalog: Catalog, sent: Mapping[str, tuple[str, int]], provenance: Provenance
) -> None:
    """Keep what was written to a file; nothing of it counts as being out."""
    told = json.dumps(asdict(provenance), sort_keys=True).encode("utf-8", "surrogatepass")
    name = _FILE + hashlib.blake2b(told, digest_size=8).hexdigest()
    record_sent(catalog, name, sent, provenance)


def open_batches_of(catalog: Catalog, lm: str) -> list[OpenBatch]:
    """Return the batches of a model that have not been collected, the oldest first."""
    with catalog.reading() as connection:
        found = connection.execute(
            "SELECT id, requests, submitted, provenance FROM batches"
            " WHERE collected IS NULL AND id NOT LIKE ? ORDER BY submitted, id",
            (_FILE + "%",),
        ).fetchall()
    return [OpenBatch(*row) for *row, told in found if json.loads(told)["lm"] == lm]


def names_in(catalog: Catalog, batch: str) -> list[str]:
    """Return the names of the requests in a batch."""
    with catalog.reading() as connection:
        found = connection.execute("SELECT name FROM sent WHERE batch = ?", (batch,)).fetchall()
    return [name for (name,) in found]


def meant_by(catalog: Catalog, names: Iterable[str]) -> dict[str, tuple[str, int, Provenance]]:
    """Return (key, number of its document, provenance) of those names that were sent from here."""
    with catalog.reading() as connection:
        found = {
            name: connection.execute(
                "SELECT key, number, provenance FROM sent JOIN batches ON batches.id = sent.batch"
                " WHERE name = ?",
                (name,),
            ).fetchone()
            for name in names
        }
    return {
        name: (row[0], row[1], Provenance(**json.loads(row[2])))
        for name, row in found.items()
        if row is not None
    }


def still_out(catalog: Catalog, keys: Iterable[str]) -> set[str]:
    """Return those keys whose request is out in a batch that has not been collected."""
    with catalog.reading() as connection:
        found = connection.execute(
            "SELECT key FROM sent JOIN batches ON batches.id = sent.batch"
            " WHERE key IN (SELECT value FROM json_each(?))"
            " AND collected IS NULL AND batch NOT LIKE ?",
            (json.dumps(list(keys)), _FILE + "%"),
        ).fetchall()
    return {key for (key,) in found}


def collected(catalog: Catalog, batch: str) -> None:
    """Note that all that came of a batch is kept."""
    with catalog.writing(searchable=False) as connection:
        connection.execute("UPDATE batches SET collected = ? WHERE id = ?", (_now(), batch))


def mark_sending(catalog: Catalog, lm: str | None) -> None:
    """Note that a batch is being sent, or (None) that it has arrived."""
    with catalog.writing(searchable=False) as connection:
        told = json.dumps({"lm": lm, "since": _now()} if lm else None)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('sending', ?)", (told,))


def refuse_cut_off(catalog: Catalog, lm: str, remedy: str) -> None:
    """Refuse to go on where a batch for a model is on its way that nobody saw arrive."""
    told = catalog.meta("sending")
    if told and told["lm"] == lm:
        raise BadInput(
            f"a batch was on its way when the program ended ({told['since']}), and may be running: "
            "look at the service's list. If it is there: --batch collect --batch-id ID. If "
            f"not: {remedy}"
        )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
