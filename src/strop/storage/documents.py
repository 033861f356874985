"""The catalog's documents: stored all or none, updated, removed, read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from strop.errors import BadInput
from strop.io.files import checked_string
from strop.storage.database import Database, sensible
from strop.storage.ledger import DOCUMENTS, VectorLedger
from strop.storage.query_sets import QuerySet, QuerySets
from strop.storage.settings import Settings
from strop.storage.texts import (
    digest_of,
    find_document,
    remove_documents,
    remove_queries,
    write_document,
)
from strop.storage.waiting import WaitingList
from strop.types import Changes, Document


class Documents:
    """The documents of a catalog."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        vectors: VectorLedger,
        waiting: WaitingList,
        sets: QuerySets,
    ) -> None:
        self._database, self._settings = database, settings
        self._vectors, self._waiting, self._sets = vectors, waiting, sets

    def add(self, documents: Iterable[tuple[Document, str]], keep_queries: bool = False) -> Changes:
        """Store documents with the places they came from, all or none.

        With ``keep_queries``, queries that were given for an older text count for this one too.
        """
        new = changed = same = empty = 0
        moved: list[int] = []  # documents that readers know by another text or other queries
        with self._database.writing() as connection:
            sets = list(self._sets.all().values())
            derived = [set_.set_id for set_ in sets if set_.derived]
            # On disk, so that telling duplicates costs no memory.
            connection.execute("DROP TABLE IF EXISTS temp.seen")
            connection.execute(
                "CREATE TEMP TABLE seen (id TEXT PRIMARY KEY, place TEXT) WITHOUT ROWID"
            )
            for document, place in documents:
                metadata = _checked_metadata(document, place)
                _refuse_second(connection, document.id, place)
                digest, known = digest_of(document), find_document(connection, document.id)
                empty += not document.content
                if known is not None and known[1:] == (digest, metadata):
                    number = known[0]
                    same += 1
                else:
                    old = None if known is None else known[2]
                    number = write_document(connection, document, metadata, digest, old)
                    changed += known is not None
                    if known is not None:
                        moved.append(number)
                    if known is None:
                        new += 1
                        for set_id in (DOCUMENTS, *derived):
                            self._waiting.add(connection, set_id, [number])
                    elif known[1] != digest:
                        self._waiting.text_changed(connection, number, digest, derived)
                if keep_queries and known is not None:
                    moved += self._keep_queries(connection, number, digest, sets)
            self._vectors.log(connection, moved)
            connection.execute("DROP TABLE temp.seen")
            self._count_documents(connection, new)
        return Changes(new, changed, same, empty)

    def _keep_queries(
        self, connection: sqlite3.Connection, number: int, digest: bytes, sets: list[QuerySet]
    ) -> list[int]:
        """Take a document's given queries, also those that wait, as written for its present text.

        Returns its number if some count again; its text augmented with them then waits again.
        """
        renewed = 0
        for set_ in sets:
            if not set_.derived:
                renewed += connection.execute(
                    "UPDATE spans SET older = 0, digest = ?"
                    " WHERE set_id = ? AND number = ? AND older",
                    (digest, set_.set_id, number),
                ).rowcount
                connection.execute(
                    "UPDATE waiting SET digest = ? WHERE set_id = ? AND number = ?",
                    (digest, set_.set_id, number),
                )
        for set_ in sets:
            if renewed and set_.augmented:
                self._waiting.embed_again(connection, set_.set_id, [number])
        return [number] if renewed else []

    @staticmethod
    def _count_documents(connection: sqlite3.Connection, more: int) -> None:
        connection.execute(
            "UPDATE meta SET value = CAST(value AS INTEGER) + ? WHERE key = 'documents'", (more,)
        )

    def remove(self, ids: Sequence[str]) -> None:
        """Remove documents with all that belongs to them; an unknown id removes nothing at all."""
        if isinstance(ids, str):
            raise BadInput(f"remove takes a list of ids, not {ids!r}: write [{ids!r}]")
        with self._database.writing() as connection:
            numbers = sorted({self.number_of(id_) for id_ in ids})
            for set_id in (DOCUMENTS, *(set_.set_id for set_ in self._sets.all().values())):
                self._vectors.unplace(connection, set_id, numbers)
                self._waiting.remove(connection, set_id, numbers)
                remove_queries(connection, set_id, numbers)
            remove_documents(connection, numbers)
            self._count_documents(connection, -len(numbers))

    def keep_only(self, ids: Iterable[str]) -> int:
        """Remove every document whose id is not among ``ids``; return how many."""
        if isinstance(ids, str):
            raise BadInput(f"keep_only takes a list of ids, not {ids!r}: write [{ids!r}]")
        kept = set(ids)
        others = [id_ for id_ in self.ids() if id_ not in kept]
        if others:
            self.remove(others)
        return len(others)

    def number_of(self, id_: str) -> int:
        """Return a document's number in this index."""
        with self._database.reading() as connection:
            row = find_document(connection, id_)
        if row is None:
            raise BadInput(f"{self._database.path.parent} has no document {id_!r}")
        return row[0]

    def all(self, at_a_time: int = 1) -> Iterator[tuple[int, Document, bytes]]:
        """Yield (number, document, digest) in order, read when wanted, so many at a time."""
        number = -1
        while True:
            rows = self._database.rows(
                "SELECT number, id, title, text, digest FROM documents WHERE number > ?"
                " ORDER BY number LIMIT ?",
                (number, at_a_time),
            )
            if not rows:
                return
            for number, id_, title, text, digest in rows:
                yield number, Document(id_, text, title), digest

    def ids(self) -> list[str]:
        """Return the id of every document, in order of number."""
        rows = self._database.rows("SELECT id FROM documents ORDER BY number")
        return [id_ for (id_,) in rows]

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are not in the catalog."""
        with self._database.reading() as connection:
            return {id_ for id_ in ids if find_document(connection, id_) is None}

    def get(self, number: int) -> Document:
        """Return one document by number."""
        row = self._database.row(
            "SELECT id, title, text, metadata FROM documents WHERE number = ?", (number,)
        )
        with sensible(self._database.path, "documents"):
            id_, title, text, metadata = row
            return Document(id_ + "", text + "", title + "", dict(json.loads(metadata)))

    def several(self, numbers: Iterable[int]) -> dict[int, Document]:
        """Return documents by number, of those that are there."""
        rows = self._database.rows(
            "SELECT number, id, title, text, metadata FROM documents"
            " WHERE number IN (SELECT value FROM json_each(?))",
            (json.dumps(list(numbers)),),
        )
        with sensible(self._database.path, "documents"):
            return {
                number: Document(id_ + "", text + "", title + "", dict(json.loads(metadata)))
                for number, id_, title, text, metadata in rows
            }

    def ids_of(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the ids of documents by number, of those that are there."""
        return dict(
            self._database.rows(
                "SELECT number, id FROM documents WHERE number IN (SELECT value FROM json_each(?))",
                (json.dumps(list(numbers)),),
            )
        )

    def count(self) -> int:
        """Return the number of documents."""
        return self._settings.number("documents")


def _refuse_second(connection: sqlite3.Connection, id_: str, place: str) -> None:
    """Refuse a document whose id was in the same input already."""
    try:
        connection.execute("INSERT INTO seen VALUES (?, ?)", (id_, place))
    except sqlite3.IntegrityError:
        (earlier,) = connection.execute("SELECT place FROM seen WHERE id = ?", (id_,)).fetchone()
        raise BadInput(
            f"{place}: document id {id_!r} is already used at {earlier}. Ids must be unique: "
            "remove one, or name another field with --id-field"
        ) from None


def _checked_metadata(document: Document, place: str) -> str:
    """Return a document's metadata as JSON; refuse a document that cannot be stored."""
    for field in ("id", "title", "text"):
        checked_string(getattr(document, field), field, place, "give it as text")
    try:
        text = json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{place}: the metadata cannot be stored as JSON: {error}") from error
    return checked_string(text, "the metadata", place, "use JSON values")
