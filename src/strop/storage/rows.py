"""Writes and removes rows of the table ``documents``: documents, or their chunks.

A row is what is embedded, sharpened and searched. The values that filters read are written here,
because the old metadata is known here: only the values that differ are changed. Words are counted
just before the commit (word_index.py): which lists of queries count also depends on spans, which
are written later in the transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from strop.storage.database import Database
from strop.storage.facets import write_facets
from strop.storage.ledger import DOCUMENTS, VectorLedger
from strop.storage.query_sets import QuerySets
from strop.storage.waiting import WaitingList
from strop.types import Document


def digest_of(document: Document) -> bytes:
    """Return a hash of the embedded part of a document: if it changes, it is embedded again."""
    joined = json.dumps([document.title, document.text], ensure_ascii=False)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class RowWriter:
    """Writes rows within the transaction of its caller; call ``finish`` at its end.

    With ``keep_queries``, queries that were given for an older text of a row count for the new one.
    """

    def __init__(
        self,
        database: Database,
        vectors: VectorLedger,
        waiting: WaitingList,
        sets: QuerySets,
        keep_queries: bool = False,
    ) -> None:
        self.database, self._vectors, self._waiting, self._sets = database, vectors, waiting, sets
        self._all_sets = list(sets.all().values())
        # The sets whose lists are derived from the text, and the documents' own vectors.
        self._derived = [DOCUMENTS, *(set_.set_id for set_ in self._all_sets if set_.derived)]
        self._keep_queries = keep_queries
        self._existing: list[int] = []  # rows that existed before
        self._changed: list[int] = []  # rows whose text or metadata changed
        self._added = 0

    def find(self, id_: str) -> tuple[int, bytes, str] | None:
        """Return the number, digest and metadata of a row."""
        sql = "SELECT number, digest, metadata FROM documents WHERE id = ?"
        row: tuple[int, bytes, str] | None = self.database.row(sql, (id_,))
        return row

    def put(self, document: Document, metadata: str) -> tuple[int, str]:
        """Write a row; return its number and whether it was ``new``, ``changed``, ``unchanged``."""
        digest, stored = digest_of(document), self.find(document.id)
        if stored is not None:
            if self._keep_queries:
                self._existing.append(stored[0])
            if stored[1:] == (digest, metadata):
                return stored[0], "unchanged"
        (number,) = self.database.execute(
            "INSERT INTO documents (id, title, text, metadata, digest, empty)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET title = excluded.title,"
            " text = excluded.text, metadata = excluded.metadata, digest = excluded.digest,"
            " empty = excluded.empty RETURNING number",
            (document.id, document.title, document.text, metadata, digest, not document.content),
        ).fetchone()
        write_facets(self.database, number, None if stored is None else stored[2], metadata)
        if stored is None:
            self._added += 1
            for set_id in self._derived:
                self._waiting.add(set_id, [number])
            return number, "new"
        self._changed.append(number)
        if stored[1] != digest:
            self._text_changed(number, digest)
        return number, "changed"

    def _text_changed(self, number: int, digest: bytes) -> None:
        """Queue the vectors that are derived from the text, unless those of this text exist."""
        self.database.execute(
            "UPDATE spans SET older = digest IS NOT ? WHERE number = ? AND set_id IN"
            " (SELECT set_id FROM files)",
            (digest, number),
        )
        for set_id in self._derived:
            current = self.database.row(
                "SELECT 1 FROM spans WHERE set_id = ? AND number = ? AND digest = ?",
                (set_id, number, digest),
            )
            self._waiting.remove(set_id, [number])  # texts that were refused included
            if not current:
                self._waiting.add(set_id, [number])

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove rows with all that belongs to them."""
        for set_id in (DOCUMENTS, *(set_.set_id for set_ in self._all_sets)):
            self._waiting.remove(set_id, numbers)
            self._sets.remove_lists(set_id, numbers)
        for number in numbers:
            sql = "SELECT metadata FROM documents WHERE number = ?"
            write_facets(self.database, number, self.database.value(sql, (number,)), None)
        for table in ("documents", "selections"):
            sql = f"DELETE FROM {table} WHERE number = ?"
            self.database.executemany(sql, [(number,) for number in numbers])
        self._added -= len(numbers)

    def finish(self) -> None:
        """Log the changed rows and update the number of rows."""
        self._vectors.log(self._changed)
        if self._keep_queries:
            for set_ in self._all_sets:
                if not set_.derived:
                    self._sets.mark_current(set_, self._existing)
        self.database.execute(
            "UPDATE meta SET value = CAST(value AS INTEGER) + ? WHERE key = 'documents'",
            (self._added,),
        )
