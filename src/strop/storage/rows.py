"""Writes and removes rows of the table ``documents``: whole documents, or the chunks of them.

A row is what is embedded, sharpened and searched. It works within the transaction of its caller.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from strop.storage.ledger import DOCUMENTS, VectorLedger
from strop.storage.query_sets import QuerySet
from strop.storage.texts import (
    digest_of,
    find_document,
    remove_documents,
    remove_queries,
    write_document,
)
from strop.storage.waiting import WaitingList
from strop.types import Document


class RowWriter:
    """Writes rows of one transaction; call ``finish`` at its end.

    With ``keep_queries``, queries that were given for an older text of a row count for the new one.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        vectors: VectorLedger,
        waiting: WaitingList,
        sets: Sequence[QuerySet],
        keep_queries: bool = False,
    ) -> None:
        self.connection = connection
        self._vectors, self._waiting, self._sets = vectors, waiting, sets
        self._derived = [set_.set_id for set_ in sets if set_.derived]
        self._keep = keep_queries
        self._moved: list[int] = []  # rows that readers know by another text, metadata or queries
        self._more = 0

    def put(self, document: Document, metadata: str) -> tuple[int, str]:
        """Write a row; return its number and whether it was ``new``, ``changed``, ``unchanged``."""
        digest, known = digest_of(document), find_document(self.connection, document.id)
        outcome = "new" if known is None else "changed"
        if known is not None and known[1:] == (digest, metadata):
            number, outcome = known[0], "unchanged"
        else:
            old = None if known is None else known[2]
            number = write_document(self.connection, document, metadata, digest, old)
            if known is None:
                self._more += 1
                for set_id in (DOCUMENTS, *self._derived):
                    self._waiting.add(self.connection, set_id, [number])
            else:
                self._moved.append(number)
                if known[1] != digest:
                    self._waiting.text_changed(self.connection, number, digest, self._derived)
        if self._keep and known is not None:
            self._keep_queries(number, digest)
        return number, outcome

    def _keep_queries(self, number: int, digest: bytes) -> None:
        """Take a row's given queries, also those that wait, as written for its present text.

        If some count again, its text augmented with them waits again.
        """
        renewed = 0
        for set_ in self._sets:
            if not set_.derived:
                renewed += self.connection.execute(
                    "UPDATE spans SET older = 0, digest = ?"
                    " WHERE set_id = ? AND number = ? AND older",
                    (digest, set_.set_id, number),
                ).rowcount
                self.connection.execute(
                    "UPDATE waiting SET digest = ? WHERE set_id = ? AND number = ?",
                    (digest, set_.set_id, number),
                )
        for set_ in self._sets:
            if renewed and set_.augmented:
                self._waiting.embed_again(self.connection, set_.set_id, [number])
        self._moved += [number] if renewed else []

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove rows with all that belongs to them."""
        for set_id in (DOCUMENTS, *(set_.set_id for set_ in self._sets)):
            self._vectors.unplace(self.connection, set_id, numbers)
            self._waiting.remove(self.connection, set_id, numbers)
            remove_queries(self.connection, set_id, numbers)
        remove_documents(self.connection, numbers)
        self._more -= len(numbers)

    def finish(self) -> None:
        """Log what changed and count the rows."""
        self._vectors.log(self.connection, self._moved)
        self.connection.execute(
            "UPDATE meta SET value = CAST(value AS INTEGER) + ? WHERE key = 'documents'",
            (self._more,),
        )
