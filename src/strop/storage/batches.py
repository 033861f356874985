"""What was sent to batch services or written to files of requests, and what is still out there.

A request that is out in a batch is not asked again until the batch has been collected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from strop.errors import BadInput
from strop.storage.database import Database
from strop.storage.replies import Provenance, now
from strop.storage.settings import Settings

_FILE = "file:"
"""How ids begin that stand for requests written to files, for each provenance one."""


@dataclass(frozen=True)
class OpenBatch:
    """A batch that has not been collected: how many requests, when it was submitted."""

    id: str
    requests: int
    submitted: str


class SentBatches:
    """The batches and files of requests that were sent from an index."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def record(
        self, batch: str, sent: Mapping[str, tuple[str, int]], provenance: Provenance
    ) -> None:
        """Keep what a batch holds: {name of the request there: (key, number of its document)}."""
        with self._database.writing(searchable=False) as connection:
            connection.execute(
                "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, NULL)",
                (batch, json.dumps(asdict(provenance)), len(sent), now()),
            )
            connection.executemany(
                "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?)",
                [(name, key, number, batch) for name, (key, number) in sent.items()],
            )

    def record_file(self, sent: Mapping[str, tuple[str, int]], provenance: Provenance) -> None:
        """Keep what was written to a file; nothing of it counts as being out."""
        content = json.dumps(asdict(provenance), sort_keys=True).encode("utf-8", "surrogatepass")
        name = _FILE + hashlib.blake2b(content, digest_size=8).hexdigest()
        self.record(name, sent, provenance)

    def open_for(self, lm: str) -> list[OpenBatch]:
        """Return the batches of a model that have not been collected, the oldest first."""
        rows = self._database.rows(
            "SELECT id, requests, submitted, provenance FROM batches"
            " WHERE collected IS NULL AND id NOT LIKE ? ORDER BY submitted, id",
            (_FILE + "%",),
        )
        return [OpenBatch(*row) for *row, source in rows if json.loads(source)["lm"] == lm]

    def names_in(self, batch: str) -> list[str]:
        """Return the names of the requests in a batch."""
        return self._database.column("SELECT name FROM sent WHERE batch = ?", (batch,))

    def requests(self, names: Iterable[str]) -> dict[str, tuple[str, int, Provenance]]:
        """Return (key, document number, provenance) of those names that were sent from here."""
        rows = self._database.rows(
            "SELECT name, key, number, provenance FROM sent"
            " JOIN batches ON batches.id = sent.batch"
            " WHERE name IN (SELECT value FROM json_each(?))",
            (json.dumps(list(names)),),
        )
        return {
            name: (key, number, Provenance(**json.loads(source)))
            for name, key, number, source in rows
        }

    def outstanding(self, keys: Iterable[str]) -> set[str]:
        """Return those keys whose request is out in a batch that has not been collected."""
        out = self._database.column(
            "SELECT key FROM sent JOIN batches ON batches.id = sent.batch"
            " WHERE key IN (SELECT value FROM json_each(?))"
            " AND collected IS NULL AND batch NOT LIKE ?",
            (json.dumps(list(keys)), _FILE + "%"),
        )
        return set(out)

    def collected(self, batch: str) -> None:
        """Note that all that came of a batch is kept."""
        with self._database.writing(searchable=False) as connection:
            connection.execute("UPDATE batches SET collected = ? WHERE id = ?", (now(), batch))

    def mark_sending(self, lm: str | None) -> None:
        """Note that a batch is being sent, or (None) that it has arrived."""
        self._settings.put(sending={"lm": lm, "since": now()} if lm else None)

    def refuse_cut_off(self, lm: str, remedy: str) -> None:
        """Refuse to go on where a batch for a model is on its way that nobody saw arrive."""
        sending = self._settings.get("sending")
        if sending and sending["lm"] == lm:
            raise BadInput(
                f"the program ended while it submitted a batch ({sending['since']}), which may be "
                "running: look at the service's list. If it is there, download its results when it "
                f"has ended, and give --replies-in FILE. If not: {remedy}"
            )
