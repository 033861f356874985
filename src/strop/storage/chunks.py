"""Documents cut into chunks: which rows are whose, where they stand, and the whole text again.

In an index with chunks every row of ``documents`` is a chunk: it has its own text, vectors, queries
and words, and its document's metadata. Its title is the document's with the headings it stands
under, so that what it says can be understood. The table ``wholes`` has a row for each document.
Its text is not stored twice: chunks cover it, so it is put together from them.

A chunk's id is its document's with a number, ``report.md#3``. It keeps the id while its text stays
the same, wherever that moves, and the vectors with it.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from strop.common.arrays import Ints
from strop.errors import BadInput, IndexDamaged
from strop.io.chunking import Piece
from strop.storage.database import Database, sensible
from strop.storage.rows import RowWriter
from strop.storage.texts import digest_of, find_document, row_of_id
from strop.types import Chunk, Document

Split = Callable[[Document], list[Piece]]
"""Cuts a document into pieces that cover its text."""


class ChunkRow(NamedTuple):
    """A chunk by the number of its row: whose it is, and its place in that document's text."""

    whole: int
    start: int
    end: int
    headings: tuple[str, ...]


def chunk_title(title: str, headings: Sequence[str]) -> str:
    """Return the title of a chunk: the document's, and the headings that say something else."""
    return " > ".join(dict.fromkeys(part for part in (title, *headings) if part))


class Chunks:
    """The chunks of a catalog's documents."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- writing --------------------------------------------------------------------------

    def put(
        self, rows: RowWriter, document: Document, metadata: str, split: Split, place: str
    ) -> str:
        """Store a document as chunks; return whether it was new, changed or unchanged.

        Chunks whose text is there already keep their row. Of the others, one after the other takes
        the place of one that is gone, so that queries given for it are handled as those of a
        document whose text changed.
        """
        connection, digest = rows.connection, digest_of(document)
        known = self._whole(document.id)
        if known is not None and known[1:] == (digest, metadata):
            return "unchanged"
        if known is None and find_document(connection, document.id) is not None:
            raise BadInput(
                f"{place}: document id {document.id!r} is the id of a chunk of another document:"
                " use another id"
            )
        (whole,) = connection.execute(
            "INSERT INTO wholes (id, title, digest, named) VALUES (?, ?, ?, 0)"
            " ON CONFLICT (id) DO UPDATE SET title = excluded.title, digest = excluded.digest"
            " RETURNING whole",
            (document.id, document.title, digest),
        ).fetchone()
        self._write(rows, whole, document, metadata, split(document))
        return "new" if known is None else "changed"

    def _write(
        self, rows: RowWriter, whole: int, document: Document, metadata: str, pieces: list[Piece]
    ) -> None:
        texts = [
            (chunk_title(document.title, one.headings), document.text[one.start : one.end])
            for one in pieces
        ]
        old: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        for number, id_, title, text in rows.connection.execute(
            "SELECT number, id, title, text FROM chunks JOIN documents USING (number)"
            " WHERE whole = ? ORDER BY start",
            (whole,),
        ):
            old[title, text].append((number, id_))
        ids = [old[text].pop(0)[1] if old[text] else "" for text in texts]
        gone = sorted(row for left in old.values() for row in left)
        for piece, known, (title, text) in zip(pieces, ids, texts, strict=True):
            id_ = known or (gone.pop(0)[1] if gone else self._new_id(rows.connection, whole))
            number, _ = rows.put(Document(id_, text, title), metadata)
            headings = json.dumps(piece.headings, ensure_ascii=False)
            rows.connection.execute(
                "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)",
                (number, whole, piece.start, piece.end, headings),
            )
        self._remove_rows(rows, [number for number, _ in gone])

    def _new_id(self, connection: sqlite3.Connection, whole: int) -> str:
        """Return an id for a new chunk; one that no document or chunk has had."""
        while True:
            id_, named = connection.execute(
                "UPDATE wholes SET named = named + 1 WHERE whole = ? RETURNING id, named", (whole,)
            ).fetchone()
            new = f"{id_}#{named - 1}"
            if self._whole(new) is None and find_document(connection, new) is None:
                return new

    def remove(self, rows: RowWriter, ids: Iterable[str]) -> None:
        """Remove documents with their chunks; an unknown id removes nothing at all."""
        for id_ in dict.fromkeys(ids):
            whole = self._whole(id_)
            if whole is None:
                row = find_document(rows.connection, id_)
                if row is None:
                    raise BadInput(f"{self._database.path.parent} has no document {id_!r}")
                document = self.read([row[0]])[0].document
                raise BadInput(f"{id_!r} is a chunk of {document!r}: name the document")
            self._remove_rows(rows, self._numbers(whole[0]))
            rows.connection.execute("DELETE FROM wholes WHERE whole = ?", (whole[0],))

    @staticmethod
    def _remove_rows(rows: RowWriter, numbers: Sequence[int]) -> None:
        rows.remove(numbers)
        rows.connection.executemany(
            "DELETE FROM chunks WHERE number = ?", [(number,) for number in numbers]
        )

    # -- reading --------------------------------------------------------------------------

    def _whole(self, id_: str) -> tuple[int, bytes, str | None] | None:
        """Return a document's number among the whole ones, digest and metadata."""
        select = (
            "SELECT whole, digest, (SELECT metadata FROM chunks JOIN documents USING (number)"
            " WHERE chunks.whole = wholes.whole LIMIT 1) FROM wholes WHERE id = ?"
        )
        with self._database.reading() as connection:
            row: tuple[int, bytes, str | None] | None = row_of_id(connection, select, id_)
        return row

    def _numbers(self, whole: int) -> list[int]:
        sql = "SELECT number FROM chunks WHERE whole = ? ORDER BY start"
        return self._database.column(sql, [whole])

    def count(self) -> int:
        """Return the number of whole documents."""
        return int(self._database.value("SELECT count(*) FROM wholes"))

    def all_ids(self) -> list[str]:
        """Return the ids of the documents that are cut, in the order they were added."""
        return self._database.column("SELECT id FROM wholes ORDER BY whole")

    def numbers_of(self, id_: str) -> list[int] | None:
        """Return the rows of a document's chunks in order, None if no document has this id."""
        with self._database.reading():
            whole = self._whole(id_)
            if whole is None:
                return None
            numbers = self._numbers(whole[0])
        if not numbers:
            folder = self._database.path.parent
            raise IndexDamaged(
                f"{folder}: document {id_!r:.80} has no chunks. To see what is wrong: strop check"
                f" {folder}"
            )
        return numbers

    def rows(self, numbers: Iterable[int]) -> dict[int, ChunkRow]:
        """Return chunks by the number of their row, of those rows that are chunks."""
        found = self._database.rows(
            "SELECT number, whole, start, behind, headings FROM chunks"
            " WHERE number IN (SELECT value FROM json_each(?))",
            (json.dumps(list(numbers)),),
        )
        with sensible(self._database.path, "chunks"):
            return {
                number: ChunkRow(int(whole), int(start), int(end), tuple(json.loads(headings)))
                for number, whole, start, end, headings in found
            }

    def wholes(self, numbers: Ints) -> Ints:
        """Return which whole document the chunk of each row belongs to; rows must be ascending."""
        found = self._database.column(
            "SELECT whole FROM json_each(?) JOIN chunks ON number = value ORDER BY number",
            (json.dumps(numbers.tolist()),),
        )
        with sensible(self._database.path, "chunks"):
            wholes = np.array(found, np.int64)
            if len(wholes) != len(numbers):
                raise ValueError(f"{len(numbers) - len(wholes):,} rows belong to no document")
            return wholes

    def ids(self, wholes: Iterable[int]) -> dict[int, str]:
        """Return the ids of whole documents."""
        sql = "SELECT whole, id FROM wholes WHERE whole IN (SELECT value FROM json_each(?))"
        return dict(self._database.rows(sql, (json.dumps(list(wholes)),)))

    def documents(self, wholes: Iterable[int]) -> dict[int, Document]:
        """Return whole documents, their texts put together from their chunks."""
        found = self._database.rows(
            "SELECT w.whole, w.id, w.title, c.start, d.text, d.metadata"
            " FROM wholes w JOIN chunks c USING (whole) JOIN documents d USING (number)"
            " WHERE w.whole IN (SELECT value FROM json_each(?)) ORDER BY w.whole, c.start",
            (json.dumps(list(wholes)),),
        )
        documents: dict[int, Document] = {}
        with sensible(self._database.path, "chunks"):
            for whole, chunks in groupby(found, itemgetter(0)):
                rows, text = list(chunks), ""
                _, id_, title, _, _, metadata = rows[0]
                for *_, start, part, _ in rows:
                    if start > len(text):
                        raise ValueError(f"{id_!r:.80} lacks text from {len(text):,}")
                    text += part[len(text) - start :]
                documents[whole] = Document(id_ + "", text, title + "", dict(json.loads(metadata)))
        return documents

    def read(self, numbers: Sequence[int]) -> list[Chunk]:
        """Return chunks by the number of their row, in the order of the text."""
        found = self._database.rows(
            "SELECT d.id, w.id, text, start, behind, headings FROM chunks"
            " JOIN documents d USING (number) JOIN wholes w USING (whole)"
            " WHERE number IN (SELECT value FROM json_each(?)) ORDER BY whole, start",
            (json.dumps(list(numbers)),),
        )
        with sensible(self._database.path, "chunks"):
            return [
                Chunk(id_, document, text, start, end, tuple(json.loads(headings)))
                for id_, document, text, start, end, headings in found
            ]

    def problems(self, chunked: bool) -> list[str]:
        """Read all chunks and say what is wrong with them."""
        with self._database.reading() as connection:
            strays = self._database.value(
                "SELECT count(*) FROM chunks c LEFT JOIN documents d USING (number)"
                " LEFT JOIN wholes w USING (whole) WHERE d.number IS NULL OR w.whole IS NULL"
            )
            others = self._database.value(
                "SELECT count(*) FROM documents WHERE number NOT IN (SELECT number FROM chunks)"
                if chunked
                else "SELECT count(*) FROM chunks"
            )
            wrong = 0
            for whole, digest in connection.execute("SELECT whole, digest FROM wholes"):
                try:
                    wrong += digest_of(self.documents([whole])[whole]) != digest
                except (IndexDamaged, KeyError):  # a gap, or no chunks at all
                    wrong += 1
        return [
            f"{count:,} {what}: restore the catalog from a backup, or build the index again"
            for count, what in (
                (strays, "chunks belong to no document"),
                (others, "rows are not cut as the index says"),
                (wrong, "documents are not what their chunks say"),
            )
            if count
        ]
