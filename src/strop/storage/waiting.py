"""The queue of what waits to be embedded: documents, and their lists of query sets.

A text that the embedder refused stays in the queue with the reason, and is skipped until a retry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strop.storage.database import Database, reporting_damage
from strop.storage.ledger import DOCUMENTS
from strop.types import Document

_BATCH_CHARACTERS = 16_000_000
"""The approximate maximum number of characters in one batch of documents, to limit memory."""


@dataclass(frozen=True)
class Waiting:
    """One document that waits for its vectors of a set, with the queries given for it."""

    number: int
    document: Document
    digest: bytes
    queries: list[str]


class WaitingList:
    """The documents of a catalog that wait for vectors, by set; set 0 is their own vectors."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next(self, set_id: int, limit: int) -> list[Waiting]:
        """Return documents that wait for their vectors of a set, in order."""
        waiting, characters = [], 0
        with self._database.reading() as connection, reporting_damage(self._database.path, "texts"):
            for number, id_, title, text, digest, texts in connection.execute(
                "SELECT number, id, title, text, coalesce(w.digest, d.digest), w.texts"
                " FROM waiting w JOIN documents d USING (number)"
                " WHERE set_id = ? AND refused IS NULL ORDER BY number LIMIT ?",
                (set_id, limit),
            ):
                queries = [query + "" for query in json.loads(texts)] if texts else []
                waiting.append(Waiting(number, Document(id_, text, title), digest, queries))
                characters += len(text)
                if characters > _BATCH_CHARACTERS:
                    break
        return waiting

    def count(self, set_id: int = DOCUMENTS, refused: bool = True) -> int:
        """Return how many documents wait for their vectors of a set.

        With ``refused``, those that the embedder refused count too.
        """
        condition = "" if refused else " AND refused IS NULL"
        sql = f"SELECT count(*) FROM waiting WHERE set_id = ?{condition}"
        return int(self._database.value(sql, (set_id,)))

    def unfinished(self) -> int:
        """Return how many documents and query lists ``finish`` would embed.

        Augmented texts are not counted: they are embedded when a method needs them.
        """
        count = self._database.value(
            "SELECT count(*) FROM waiting WHERE refused IS NULL AND set_id NOT IN"
            " (SELECT set_id FROM sets WHERE json_extract(settings, '$.source') = 'augmented')"
        )
        return int(count)

    def refuse(self, set_id: int, reasons: Mapping[int, str]) -> None:
        """Record why the embedder refuses texts, by document number; they wait for a retry."""
        with self._database.writing() as connection:
            connection.executemany(
                "UPDATE waiting SET refused = ? WHERE set_id = ? AND number = ?",
                [(reason, set_id, number) for number, reason in reasons.items()],
            )

    def refused(self) -> list[dict[str, str]]:
        """Return refused texts: document ``id``, ``set`` ("": its own vector) and ``reason``."""
        return self._database.named_rows(
            "SELECT id, coalesce(name, '') AS 'set', CAST(refused AS TEXT) AS reason FROM waiting"
            " JOIN documents USING (number) LEFT JOIN sets USING (set_id)"
            " WHERE refused IS NOT NULL ORDER BY number, set_id"
        )

    def retry_refused(self) -> None:
        """Queue refused texts again."""
        if self.refused():  # else readers need not read the index again
            with self._database.writing() as connection:
                connection.execute("UPDATE waiting SET refused = NULL WHERE refused IS NOT NULL")

    def add(self, set_id: int, numbers: Iterable[int]) -> None:
        """Within a transaction: queue documents for their vectors of a set."""
        self._database.executemany(
            "INSERT OR IGNORE INTO waiting (set_id, number) VALUES (?, ?)",
            [(set_id, number) for number in numbers],
        )

    def remove(self, set_id: int, numbers: Iterable[int]) -> None:
        """Within a transaction: remove documents from the queue of a set."""
        self._database.executemany(
            "DELETE FROM waiting WHERE set_id = ? AND number = ?",
            [(set_id, number) for number in numbers],
        )

    def embed_again(self, set_id: int, numbers: Sequence[int]) -> None:
        """Within a transaction: mark vectors of a derived set as outdated, and queue them again."""
        self._database.executemany(
            "UPDATE spans SET digest = x'', older = 1 WHERE set_id = ? AND number = ?",
            [(set_id, number) for number in numbers],
        )
        self.add(set_id, numbers)
