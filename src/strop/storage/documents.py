"""The catalog's documents: taken in all or none, updated, removed, and which still wait."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from strop.errors import BadInput
from strop.io.files import checked_string
from strop.storage.database import Database, sensible
from strop.storage.ledger import DERIVED, DOCUMENTS, VectorFile, VectorLedger
from strop.storage.settings import Settings
from strop.storage.vectors import Sums
from strop.types import Changes, Document

_BATCH_CHARACTERS = 16_000_000


def digest_of(document: Document) -> bytes:
    """Return a hash of what is embedded of a document: a change of it means embedding anew."""
    joined = json.dumps([document.title, document.text], ensure_ascii=False)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Documents:
    """The documents of a catalog."""

    def __init__(self, database: Database, settings: Settings, vectors: VectorLedger) -> None:
        self._database = database
        self._settings = settings
        self._vectors = vectors

    def add(self, documents: Iterable[tuple[Document, str]], keep_queries: bool = False) -> Changes:
        """Take in documents with the places they came from, all or none.

        With ``keep_queries``, queries that were given for an older text count for this one too.
        """
        new = changed = same = empty = 0
        moved: list[int] = []  # documents whose given queries count no more, or again
        with self._database.writing() as connection:
            sets = self._sources(connection)
            derived = [set_id for set_id, source in sets.items() if source in DERIVED]
            # On disk, so that telling duplicates costs no memory.
            connection.execute("DROP TABLE IF EXISTS temp.seen")
            connection.execute(
                "CREATE TEMP TABLE seen (id TEXT PRIMARY KEY, place TEXT) WITHOUT ROWID"
            )
            for document, place in documents:
                for what in ("id", "title", "text"):
                    checked_string(getattr(document, what), what, place, "give it as text")
                try:
                    connection.execute("INSERT INTO seen VALUES (?, ?)", (document.id, place))
                except sqlite3.IntegrityError:
                    (earlier,) = connection.execute(
                        "SELECT place FROM seen WHERE id = ?", (document.id,)
                    ).fetchone()
                    raise BadInput(
                        f"{place}: document id {document.id!r} stands already at {earlier}. Ids "
                        "must be unique: remove one, or name another field with --id-field"
                    ) from None
                digest = digest_of(document)
                metadata = _metadata(document, place)
                known = connection.execute(
                    "SELECT number, digest, metadata FROM documents WHERE id = ?", (document.id,)
                ).fetchone()
                bare = not document.content
                empty += bare
                if known is None:
                    new += 1
                    number = connection.execute(
                        "INSERT INTO documents (id, title, text, metadata, digest, empty)"
                        " VALUES (?, ?, ?, ?, ?, ?)",
                        (document.id, document.title, document.text, metadata, digest, bare),
                    ).lastrowid
                    for set_id in (DOCUMENTS, *derived):
                        connection.execute(
                            "INSERT INTO waiting (set_id, number) VALUES (?, ?)", (set_id, number)
                        )
                elif known[1:] != (digest, metadata):
                    changed += 1
                    connection.execute(
                        "UPDATE documents SET title = ?, text = ?, metadata = ?, digest = ?,"
                        " empty = ? WHERE number = ?",
                        (document.title, document.text, metadata, digest, bare, known[0]),
                    )
                    if known[1] != digest:
                        self._text_changed(connection, known[0], digest, derived)
                        if len(derived) < len(sets):
                            moved.append(known[0])
                else:
                    same += 1
                if keep_queries and known is not None:
                    self._keep_queries(connection, known[0], digest, sets, moved)
            self._vectors.log(connection, moved)
            connection.execute("DROP TABLE temp.seen")
            self._count_documents(connection, new)
        return Changes(new, changed, same, empty)

    def _sources(self, connection: sqlite3.Connection) -> dict[int, str]:
        """Return the source of each query set."""
        found = connection.execute("SELECT set_id, settings FROM sets").fetchall()
        with sensible(self._database.path, "query sets"):
            return {set_id: json.loads(about)["source"] for set_id, about in found}

    @staticmethod
    def _keep_queries(
        connection: sqlite3.Connection,
        number: int,
        digest: bytes,
        sets: Mapping[int, str],
        moved: list[int],
    ) -> None:
        """Take a document's given queries, also those that wait, as made for its text of now.

        If some count again, it is ``moved``, and its text expanded with them waits to be made anew.
        """
        renewed = 0
        for set_id in (id_ for id_, source in sets.items() if source not in DERIVED):
            renewed += connection.execute(
                "UPDATE spans SET older = 0, digest = ? WHERE set_id = ? AND number = ? AND older",
                (digest, set_id, number),
            ).rowcount
            connection.execute(
                "UPDATE waiting SET digest = ? WHERE set_id = ? AND number = ?",
                (digest, set_id, number),
            )
        if renewed:
            for set_id in (id_ for id_, source in sets.items() if source == "expanded"):
                make_anew(connection, set_id, [number])
            moved.append(number)

    @staticmethod
    def _text_changed(
        connection: sqlite3.Connection, number: int, digest: bytes, derived: Iterable[int]
    ) -> None:
        """Let vectors be made anew, unless there are some of just this text."""
        connection.execute(
            "UPDATE spans SET older = digest IS NOT ? WHERE number = ? AND set_id IN"
            " (SELECT set_id FROM files)",
            (digest, number),
        )
        for set_id in (DOCUMENTS, *derived):
            made = connection.execute(
                "SELECT 1 FROM spans WHERE set_id = ? AND number = ? AND digest = ?",
                (set_id, number, digest),
            ).fetchone()
            connection.execute(
                "DELETE FROM waiting WHERE set_id = ? AND number = ?"
                if made
                else "INSERT OR REPLACE INTO waiting (set_id, number) VALUES (?, ?)",
                (set_id, number),
            )

    @staticmethod
    def _count_documents(connection: sqlite3.Connection, more: int) -> None:
        connection.execute(
            "UPDATE meta SET value = CAST(value AS INTEGER) + ? WHERE key = 'documents'", (more,)
        )

    def remove(self, ids: Sequence[str]) -> None:
        """Remove documents with all that hangs on them; an unknown id removes nothing at all."""
        if isinstance(ids, str):
            raise BadInput(f"remove takes a list of ids, not {ids!r}: write [{ids!r}]")
        with self._database.writing() as connection:
            numbers = sorted({self.number_of(id_) for id_ in ids})
            for set_id in (DOCUMENTS, *self._sources(connection)):
                self._vectors.unplace(connection, set_id, numbers)
                for table in ("queries", "waiting"):
                    connection.executemany(
                        f"DELETE FROM {table} WHERE set_id = ? AND number = ?",
                        [(set_id, number) for number in numbers],
                    )
            for table in ("documents", "selections"):
                connection.executemany(
                    f"DELETE FROM {table} WHERE number = ?", [(number,) for number in numbers]
                )
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
            found = find_document(connection, id_)
        if found is None:
            raise BadInput(f"{self._database.path.parent} has no document {id_!r}")
        return found[0]

    def all(self, at_a_time: int = 1) -> Iterator[tuple[int, Document, bytes]]:
        """Yield (number, document, digest) in order, read when wanted, so many at a time."""
        number = -1
        while True:
            with self._database.reading() as connection:
                found = connection.execute(
                    "SELECT number, id, title, text, digest FROM documents WHERE number > ?"
                    " ORDER BY number LIMIT ?",
                    (number, at_a_time),
                ).fetchall()
            if not found:
                return
            for number, id_, title, text, digest in found:
                yield number, Document(id_, text, title), digest

    def ids(self) -> list[str]:
        """Return the id of every document, in order of number."""
        with self._database.reading() as connection:
            found = connection.execute("SELECT id FROM documents ORDER BY number").fetchall()
        return [id_ for (id_,) in found]

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are not in the catalog."""
        with self._database.reading() as connection:
            return {id_ for id_ in ids if find_document(connection, id_) is None}

    def get(self, number: int) -> Document:
        """Return one document by number."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT id, title, text, metadata FROM documents WHERE number = ?", (number,)
            ).fetchone()
        with sensible(self._database.path, "documents"):
            id_, title, text, metadata = row
            return Document(id_ + "", text + "", title + "", dict(json.loads(metadata)))

    def ids_of(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the ids of documents by number, of those that are there."""
        with self._database.reading() as connection:
            return dict(
                connection.execute(
                    "SELECT number, id FROM documents"
                    " WHERE number IN (SELECT value FROM json_each(?))",
                    (json.dumps(list(numbers)),),
                )
            )

    def waiting(self, limit: int) -> list[tuple[int, Document, bytes]]:
        """Return documents that still need a vector, in order: (number, document, digest)."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT number, id, title, text, documents.digest FROM waiting"
                " JOIN documents USING (number) WHERE set_id = ? AND refused IS NULL"
                " ORDER BY number LIMIT ?",
                (DOCUMENTS, limit),
            )
            return [
                (number, Document(id_, text, title), digest)
                for number, id_, title, text, digest in bounded(found, 3)
            ]

    def count(self) -> int:
        """Return the number of documents."""
        return self._settings.number("documents")

    def embedded(self, file: VectorFile, done: Sequence[tuple[int, bytes]], sums: Sums) -> None:
        """Record that the next rows of ``file`` are the vectors of ``done``: (number, digest)."""
        with self._database.writing():
            self._vectors.place(file, [(number, 1, digest) for number, digest in done], sums)
            self._vectors.waits_no_more(DOCUMENTS, [number for number, _ in done])


def make_anew(connection: sqlite3.Connection, set_id: int, numbers: Iterable[int]) -> None:
    """Let what a derived set has of documents wait to be made anew."""
    which = [(set_id, number) for number in numbers]
    connection.executemany(
        "UPDATE spans SET digest = x'', older = 1 WHERE set_id = ? AND number = ?", which
    )
    connection.executemany("INSERT OR IGNORE INTO waiting (set_id, number) VALUES (?, ?)", which)


def bounded(rows: Iterable[tuple[Any, ...]], text: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows until their texts, in column ``text``, are as much as memory should hold."""
    total = 0
    for row in rows:
        yield row
        total += len(row[text])
        if total > _BATCH_CHARACTERS:
            return


def _metadata(document: Document, place: str) -> str:
    try:
        text = json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{place}: the metadata cannot be stored as JSON: {error}") from error
    return checked_string(text, "the metadata", place, "use JSON values")


def find_document(connection: sqlite3.Connection, id_: str) -> tuple[int, bytes] | None:
    """Return a document's number and digest."""
    try:
        found: tuple[int, bytes] | None = connection.execute(
            "SELECT number, digest FROM documents WHERE id = ?", (id_,)
        ).fetchone()
    except UnicodeEncodeError:  # a lone surrogate; no stored id has one
        return None
    return found
