"""Writes and removes rows of the table ``documents``: whole documents, or the chunks of them.

A row is what is embedded, sharpened and searched. The values that filters read are written here,
where the old metadata is at hand: only the values that differ are touched. Words wait until just
before the commit (word_index.py): which lists of queries count also depends on spans, which others
write later in the transaction.
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
    """Return a hash of what is embedded of a document: a change of it means embedding anew."""
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
        self._known_sets = list(sets.all().values())
        # The sets whose lists are derived from the text, and the documents' own vectors.
        self._derived = [DOCUMENTS, *(set_.set_id for set_ in self._known_sets if set_.derived)]
        self._keep_queries = keep_queries
        self._known: list[int] = []  # rows that were there before
        self._moved: list[int] = []  # rows that readers know by another text or metadata
        self._more = 0

    def find(self, id_: str) -> tuple[int, bytes, str] | None:
        """Return the number, digest and metadata of a row."""
        sql = "SELECT number, digest, metadata FROM documents WHERE id = ?"
        row: tuple[int, bytes, str] | None = self.database.row(sql, (id_,))
        return row

    def put(self, document: Document, metadata: str) -> tuple[int, str]:
        """Write a row; return its number and whether it was ``new``, ``changed``, ``unchanged``."""
        digest, known = digest_of(document), self.find(document.id)
        if known is not None:
            if self._keep_queries:
                self._known.append(known[0])
            if known[1:] == (digest, metadata):
                return known[0], "unchanged"
        (number,) = self.database.execute(
            "INSERT INTO documents (id, title, text, metadata, digest, empty)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET title = excluded.title,"
            " text = excluded.text, metadata = excluded.metadata, digest = excluded.digest,"
            " empty = excluded.empty RETURNING number",
            (document.id, document.title, document.text, metadata, digest, not document.content),
        ).fetchone()
        write_facets(self.database, number, None if known is None else known[2], metadata)
        if known is None:
            self._more += 1
            for set_id in self._derived:
                self._waiting.add(set_id, [number])
            return number, "new"
        self._moved.append(number)
        if known[1] != digest:
            self._text_changed(number, digest)
        return number, "changed"

    def _text_changed(self, number: int, digest: bytes) -> None:
        """Let vectors that are derived from the text wait, unless there are some of this text."""
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
            self._waiting.remove(set_id, [number])  # also what was refused before
            if not current:
                self._waiting.add(set_id, [number])

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove rows with all that belongs to them."""
        for set_id in (DOCUMENTS, *(set_.set_id for set_ in self._known_sets)):
            self._waiting.remove(set_id, numbers)
            self._sets.remove_lists(set_id, numbers)
        for number in numbers:
            sql = "SELECT metadata FROM documents WHERE number = ?"
            write_facets(self.database, number, self.database.value(sql, (number,)), None)
        for table in ("documents", "selections"):
            sql = f"DELETE FROM {table} WHERE number = ?"
            self.database.executemany(sql, [(number,) for number in numbers])
        self._more -= len(numbers)

    def finish(self) -> None:
        """Log what changed and count the rows."""
        self._vectors.log(self._moved)
        if self._keep_queries:
            for set_ in self._known_sets:
                if not set_.derived:
                    self._sets.mark_current(set_, self._known)
        self.database.execute(
            "UPDATE meta SET value = CAST(value AS INTEGER) + ? WHERE key = 'documents'",
            (self._more,),
        )
