"""Documents cut into chunks: which rows are whose, where they stand, and the whole text again.

In an index with chunks every row of ``documents`` is a chunk: it has its own text, vectors, queries
and words, and its document's metadata. Its title is the document's with the headings it stands
under, so that what it says can be understood. The table ``wholes`` has a row for each document.
Its text is not stored twice: chunks cover it, so it is put together from them.

A chunk's id is its document's with a number, ``report.md#3``. It keeps the id while its text stays
the same, wherever that moves, and the vectors with it.

Long documents are a problem where the embedder reads only their beginning. With the setting
``auto``, the first documents that come are looked at: where some are much longer than that, all
are cut. What is decided stays.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from strop.common.arrays import Ints
from strop.embed import Embedder
from strop.embed.base import token_counter
from strop.errors import BadInput, IndexDamaged
from strop.io.chunking import Chunking, ChunkSpan, parse_chunking, split_text
from strop.storage.database import Database, reporting_damage
from strop.storage.rows import RowWriter, digest_of
from strop.types import Chunk, Document

AUTO = "auto"
"""The setting ``chunking`` until the first documents decide."""
SAMPLE = 1000
LONG = 8
"""Windows of the embedder. A shorter document has at most a hundred sentences or so, which cover
it: cut, it is ranked no better (docs/log.md). Those of a longer one are joined, not read whole."""
LONG_SHARE = 0.05
MOST_TOKENS = 400
Split = Callable[[Document], list[ChunkSpan]]
"""Cuts a document into pieces that cover its text."""
Placed = tuple[Document, str]


def checked_chunking(chunking: str | None) -> str | None:
    """Return how an index stores its chunking: None, ``auto`` or sizes such as ``200:40``."""
    return chunking if chunking in (None, AUTO) else str(parse_chunking(chunking))


def splitter(chunking: str, embedder: Embedder) -> Split:
    """Return what cuts documents, with the tokens of an embedder."""
    sizes, count = parse_chunking(chunking), token_counter(embedder)
    return lambda document: split_text(document.text, sizes, count)


def decide(documents: Iterable[Placed], embedder: Embedder) -> tuple[str | None, Iterator[Placed]]:
    """Return the chunking that suits documents and what the embedder reads, and the documents."""
    remaining = iter(documents)
    window: int | None = getattr(embedder, "window", None)
    if window is None:
        return None, remaining
    sample = list(islice(remaining, SAMPLE))
    # A token has at least one character: most texts need not be counted.
    texts = [one.content for one, _ in sample if len(one.content) > LONG * window]
    long = sum(tokens > LONG * window for tokens in token_counter(embedder)(texts))
    both = chain(sample, remaining)
    if long <= LONG_SHARE * len(sample):
        return None, both
    size = max(10, min(window * 25 // 32, MOST_TOKENS))  # the title needs room too
    chunking = Chunking(size, size // 5)
    warnings.warn(
        f"{long:,} of the first {len(sample):,} documents are more than {LONG} times as long as the"
        f" {window:,} tokens that {embedder.name} reads: all are cut into chunks of {size} tokens,"
        f" {chunking.overlap} of them shared. To choose otherwise for a new index: --chunk none or"
        " --chunk SIZE:OVERLAP (chunking=None or chunking='SIZE:OVERLAP')",
        stacklevel=5,
    )
    return str(chunking), both


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
        digest, known = digest_of(document), self._whole(document.id)
        if known is not None and known[1:] == (digest, metadata):
            return "unchanged"
        if known is None and rows.find(document.id) is not None:
            raise BadInput(
                f"{place}: document id {document.id!r} is the id of a chunk of another document:"
                " use another id"
            )
        (whole,) = self._database.execute(
            "INSERT INTO wholes (id, title, digest, named) VALUES (?, ?, ?, 0)"
            " ON CONFLICT (id) DO UPDATE SET title = excluded.title, digest = excluded.digest"
            " RETURNING whole",
            (document.id, document.title, digest),
        ).fetchone()
        self._write(rows, whole, document, metadata, split(document))
        return "new" if known is None else "changed"

    def _write(
        self,
        rows: RowWriter,
        whole: int,
        document: Document,
        metadata: str,
        pieces: list[ChunkSpan],
    ) -> None:
        texts = [
            (chunk_title(document.title, one.headings), document.text[one.start : one.end])
            for one in pieces
        ]
        old: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        for number, id_, title, text in self._database.execute(
            "SELECT number, id, title, text FROM chunks JOIN documents USING (number)"
            " WHERE whole = ? ORDER BY start",
            (whole,),
        ):
            old[title, text].append((number, id_))
        ids = [old[text].pop(0)[1] if old[text] else "" for text in texts]
        gone = sorted(row for left in old.values() for row in left)
        for piece, known, (title, text) in zip(pieces, ids, texts, strict=True):
            id_ = known or (gone.pop(0)[1] if gone else self._new_id(rows, whole))
            number, _ = rows.put(Document(id_, text, title), metadata)
            headings = json.dumps(piece.headings, ensure_ascii=False)
            self._database.execute(
                "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)",
                (number, whole, piece.start, piece.end, headings),
            )
        self._remove_rows(rows, [number for number, _ in gone])

    def _new_id(self, rows: RowWriter, whole: int) -> str:
        """Return an id for a new chunk; one that no document or chunk has had."""
        while True:
            id_, named = self._database.execute(
                "UPDATE wholes SET named = named + 1 WHERE whole = ? RETURNING id, named", (whole,)
            ).fetchone()
            new = f"{id_}#{named - 1}"
            if self._whole(new) is None and rows.find(new) is None:
                return new

    def remove(self, rows: RowWriter, ids: Iterable[str]) -> None:
        """Remove documents with their chunks; an unknown id removes nothing at all."""
        for id_ in dict.fromkeys(ids):
            whole = self._whole(id_)
            if whole is None:
                row = rows.find(id_)
                if row is None:
                    raise BadInput(f"{self._database.path.parent} has no document {id_!r}")
                document = self.read([row[0]])[0].document
                raise BadInput(f"{id_!r} is a chunk of {document!r}: name the document")
            self._remove_rows(rows, self._numbers(whole[0]))
            self._database.execute("DELETE FROM wholes WHERE whole = ?", (whole[0],))

    def _remove_rows(self, rows: RowWriter, numbers: Sequence[int]) -> None:
        rows.remove(numbers)
        self._database.executemany(
            "DELETE FROM chunks WHERE number = ?", [(number,) for number in numbers]
        )

    # -- reading --------------------------------------------------------------------------

    def _whole(self, id_: str) -> tuple[int, bytes, str | None] | None:
        """Return a document's number among the whole ones, digest and metadata."""
        row: tuple[int, bytes, str | None] | None = self._database.row(
            "SELECT whole, digest, (SELECT metadata FROM chunks JOIN documents USING (number)"
            " WHERE chunks.whole = wholes.whole LIMIT 1) FROM wholes WHERE id = ?",
            (id_,),
        )
        return row

    def _numbers(self, whole: int) -> list[int]:
        sql = "SELECT number FROM chunks WHERE whole = ? ORDER BY start"
        return self._database.column(sql, [whole])

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
        with reporting_damage(self._database.path, "chunks"):
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
        with reporting_damage(self._database.path, "chunks"):
            wholes = np.array(found, np.int64)
            if len(wholes) != len(numbers):
                raise ValueError(f"{len(numbers) - len(wholes):,} rows belong to no document")
            return wholes

    def documents(self, wholes: Iterable[int]) -> dict[int, Document]:
        """Return whole documents, their texts put together from their chunks."""
        found = self._database.rows(
            "SELECT w.whole, w.id, w.title, c.start, d.text, d.metadata"
            " FROM wholes w JOIN chunks c USING (whole) JOIN documents d USING (number)"
            " WHERE w.whole IN (SELECT value FROM json_each(?)) ORDER BY w.whole, c.start",
            (json.dumps(list(wholes)),),
        )
        documents: dict[int, Document] = {}
        with reporting_damage(self._database.path, "chunks"):
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
        with reporting_damage(self._database.path, "chunks"):
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
