"""The catalog's documents: taken in all or none, updated, removed, and which still wait."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from strop.database import Database
from strop.errors import BadInput
from strop.files import checked_string
from strop.types import Document

_BATCH_CHARACTERS = 16_000_000


def digest_of(document: Document) -> bytes:
    """Return a hash of what is embedded of a document: a change of it means embedding anew."""
    joined = json.dumps([document.title, document.text], ensure_ascii=False)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class DocumentCatalog(Database):
    """The part of a catalog that knows documents."""

    def meta(self, key: str) -> Any:
        """Return one stored value, None if there is none."""
        with self.reading() as connection:
            found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else json.loads(found[0])

    def store(self, documents: Iterable[tuple[Document, str]]) -> tuple[int, int, int, int]:
        """Take in documents with the places they came from, all or none.

        Returns how many are new, changed, unchanged and have no content.
        """
        new = changed = same = empty = 0
        with self.writing() as connection:
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
                    connection.execute(
                        "INSERT INTO documents (id, title, text, metadata, digest, empty)"
                        " VALUES (?, ?, ?, ?, ?, ?)",
                        (document.id, document.title, document.text, metadata, digest, bare),
                    )
                elif known[1:] != (digest, metadata):
                    changed += 1
                    connection.execute(
                        "UPDATE documents SET title = ?, text = ?, metadata = ?, digest = ?,"
                        " empty = ? WHERE number = ?",
                        (document.title, document.text, metadata, digest, bare, known[0]),
                    )
                else:
                    same += 1
            connection.execute("DROP TABLE temp.seen")
        return new, changed, same, empty

    def remove(self, ids: Sequence[str]) -> None:
        """Remove documents with all that hangs on them; an unknown id removes nothing at all."""
        if isinstance(ids, str):
            raise BadInput(f"remove takes a list of ids, not {ids!r}: write [{ids!r}]")
        with self.writing() as connection:
            numbers = [self.number_of(id_) for id_ in ids]
            for table in ("documents", "queries", "waiting_queries", "selections"):
                connection.executemany(
                    f"DELETE FROM {table} WHERE number = ?", [(number,) for number in numbers]
                )

    def number_of(self, id_: str) -> int:
        """Return a document's number in this index."""
        with self.reading() as connection:
            found = find_document(connection, id_)
        if found is None:
            raise BadInput(f"{self.path.parent} has no document {id_!r}")
        return found[0]

    def all_documents(self) -> Iterator[tuple[int, Document, bytes]]:
        """Yield (number, document, digest) in order, each read when it is wanted."""
        number = -1
        while True:
            with self.reading() as connection:
                found = connection.execute(
                    "SELECT number, id, title, text, digest FROM documents WHERE number > ?"
                    " ORDER BY number LIMIT 1",
                    (number,),
                ).fetchone()
            if found is None:
                return
            number, id_, title, text, digest = found
            yield number, Document(id_, text, title), digest

    def all_ids(self) -> list[str]:
        """Return the id of every document, in order of number."""
        with self.reading() as connection:
            found = connection.execute("SELECT id FROM documents ORDER BY number").fetchall()
        return [id_ for (id_,) in found]

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are not in the catalog."""
        with self.reading() as connection:
            return {id_ for id_ in ids if find_document(connection, id_) is None}

    def document(self, number: int) -> Document:
        """Return one document by number."""
        with self.reading() as connection:
            id_, title, text, metadata = connection.execute(
                "SELECT id, title, text, metadata FROM documents WHERE number = ?", (number,)
            ).fetchone()
        return Document(id_, text, title, json.loads(metadata))

    def ids(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the ids of documents by number, of those that are there."""
        with self.reading() as connection:
            found = (
                connection.execute(
                    "SELECT number, id FROM documents WHERE number = ?", (number,)
                ).fetchone()
                for number in set(numbers)
            )
            return dict(pair for pair in found if pair is not None)

    def waiting_documents(self, limit: int) -> list[tuple[int, Document, bytes]]:
        """Return documents that still need a vector, in order: (number, document, digest)."""
        with self.reading() as connection:
            found = connection.execute(
                "SELECT number, id, title, text, digest FROM documents"
                " WHERE embedded IS NOT digest ORDER BY number LIMIT ?",
                (limit,),
            )
            return [
                (number, Document(id_, text, title), digest)
                for number, id_, title, text, digest in bounded(found, 3)
            ]

    def waiting_count(self) -> int:
        """Return how many documents still need a vector."""
        return self._count("SELECT count(*) FROM documents WHERE embedded IS NOT digest")

    def __len__(self) -> int:
        """Return the number of documents."""
        return self._count("SELECT count(*) FROM documents")

    def _count(self, sql: str) -> int:
        with self.reading() as connection:
            return int(connection.execute(sql).fetchone()[0])

    def document_rows(self) -> int:
        """Return how many rows of the documents' vector file are in use."""
        return int(self.meta("rows"))

    def documents_embedded(self, done: Sequence[tuple[int, bytes]], rows: int) -> None:
        """Record that (number, digest) of ``done`` have their vectors from row ``rows`` on."""
        with self.writing() as connection:
            connection.executemany(
                "UPDATE documents SET row = ?, embedded = ? WHERE number = ?",
                [(rows + at, digest, number) for at, (number, digest) in enumerate(done)],
            )
            connection.execute("UPDATE meta SET value = ? WHERE key = 'rows'", (rows + len(done),))


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
        text = json.dumps(dict(document.metadata), ensure_ascii=False)
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
