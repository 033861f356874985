"""Documents split into chunks: the rows of each document, their positions, and the text again.

In an index with chunks every row of ``documents`` is a chunk: it has its own text, vectors, queries
and words, and its document's metadata. Its title is the document's title and the headings above the
chunk, so that the chunk can be understood alone. The table ``wholes`` has a row for each document,
the *parent* of its chunks, with the number ``whole``. The document's text is not stored twice:
chunks cover it, so it is joined from them.

A chunk's id is its document's id with a number, ``report.md#3``. It keeps the id and the vectors
while its text stays the same, wherever in the document the text moves.

Long documents are a problem if the embedder reads only their beginning. With the setting ``auto``,
the first documents that are added are examined: if some are much longer than the embedder reads,
all documents are split. The decision is stored and stays.
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
"""The number of first documents that ``decide`` examines."""
LONG = 8
"""A document is long if it has more tokens than this many windows of the embedder. A shorter one
has at most a hundred sentences or so, which cover it: splitting it does not improve its rank
(docs/log.md). The sentences of a longer one are joined, and not read completely."""
LONG_SHARE = 0.05
"""Documents are split if more than this share of the sample is long."""
MOST_TOKENS = 400
"""The maximum size of a chunk that ``decide`` chooses."""
Split = Callable[[Document], list[ChunkSpan]]
"""Splits a document into spans that cover its text."""
Placed = tuple[Document, str]
"""A document and the place that it came from."""


def checked_chunking(chunking: str | None) -> str | None:
    """Return how an index stores its chunking: None, ``auto`` or sizes such as ``200:40``."""
    return chunking if chunking in (None, AUTO) else str(parse_chunking(chunking))


def splitter(chunking: str, embedder: Embedder) -> Split:
    """Return the function that splits documents, by the tokens of an embedder."""
    sizes, count = parse_chunking(chunking), token_counter(embedder)
    return lambda document: split_text(document.text, sizes, count)


def decide(documents: Iterable[Placed], embedder: Embedder) -> tuple[str | None, Iterator[Placed]]:
    """Return the chunking that suits the documents and the embedder's window, and the documents."""
    remaining = iter(documents)
    window: int | None = getattr(embedder, "window", None)
    if window is None:
        return None, remaining
    sample = list(islice(remaining, SAMPLE))
    # A token has at least one character: most texts need not be counted.
    texts = [one.content for one, _ in sample if len(one.content) > LONG * window]
    long = sum(tokens > LONG * window for tokens in token_counter(embedder)(texts))
    all_documents = chain(sample, remaining)
    if long <= LONG_SHARE * len(sample):
        return None, all_documents
    size = max(10, min(window * 25 // 32, MOST_TOKENS))  # the title needs room too
    chunking = Chunking(size, size // 5)
    warnings.warn(
        f"{long:,} of the first {len(sample):,} documents are more than {LONG} times as long as the"
        f" {window:,} tokens that {embedder.name} reads: all are split into chunks of {size} tokens"
        f" that share {chunking.overlap}. To choose otherwise for a new index: --chunk none or"
        " --chunk SIZE:OVERLAP (chunking=None or chunking='SIZE:OVERLAP')",
        stacklevel=5,
    )
    return str(chunking), all_documents


class ChunkRow(NamedTuple):
    """A chunk: the number of its parent, and its position in that text."""

    parent: int
    start: int
    end: int
    headings: tuple[str, ...]


def chunk_title(title: str, headings: Sequence[str]) -> str:
    """Return the title of a chunk: the document's title and the headings that differ from it."""
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

        Chunks whose text is stored already keep their row. Each other chunk replaces one that is
        gone, as long as there are any: queries that were given for the old one are then handled
        like those of a document whose text changed.
        """
        digest, stored = digest_of(document), self._find(document.id)
        if stored is not None and stored[1:] == (digest, metadata):
            return "unchanged"
        if stored is None and rows.find(document.id) is not None:
            raise BadInput(
                f"{place}: document id {document.id!r} is the id of a chunk of another document:"
                " use another id"
            )
        (parent,) = self._database.execute(
            "INSERT INTO wholes (id, title, digest, named) VALUES (?, ?, ?, 0)"
            " ON CONFLICT (id) DO UPDATE SET title = excluded.title, digest = excluded.digest"
            " RETURNING whole",
            (document.id, document.title, digest),
        ).fetchone()
        self._write(rows, parent, document, metadata, split(document))
        return "new" if stored is None else "changed"

    def _write(
        self,
        rows: RowWriter,
        parent: int,
        document: Document,
        metadata: str,
        spans: list[ChunkSpan],
    ) -> None:
        texts = [
            (chunk_title(document.title, span.headings), document.text[span.start : span.end])
            for span in spans
        ]
        old: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        for number, id_, title, text in self._database.execute(
            "SELECT number, id, title, text FROM chunks JOIN documents USING (number)"
            " WHERE whole = ? ORDER BY start",
            (parent,),
        ):
            old[title, text].append((number, id_))
        kept_ids = [old[text].pop(0)[1] if old[text] else "" for text in texts]
        unused = sorted(row for same_text in old.values() for row in same_text)
        for span, kept_id, (title, text) in zip(spans, kept_ids, texts, strict=True):
            id_ = kept_id or (unused.pop(0)[1] if unused else self._new_id(rows, parent))
            number, _ = rows.put(Document(id_, text, title), metadata)
            headings = json.dumps(span.headings, ensure_ascii=False)
            self._database.execute(
                "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)",
                (number, parent, span.start, span.end, headings),
            )
        self._remove_rows(rows, [number for number, _ in unused])

    def _new_id(self, rows: RowWriter, parent: int) -> str:
        """Return an id for a new chunk; no document or chunk has or had it."""
        while True:
            id_, named = self._database.execute(
                "UPDATE wholes SET named = named + 1 WHERE whole = ? RETURNING id, named", (parent,)
            ).fetchone()
            new_id = f"{id_}#{named - 1}"
            if self._find(new_id) is None and rows.find(new_id) is None:
                return new_id

    def remove(self, rows: RowWriter, ids: Iterable[str]) -> None:
        """Remove documents with their chunks; an unknown id removes nothing at all."""
        for id_ in dict.fromkeys(ids):
            stored = self._find(id_)
            if stored is None:
                chunk = rows.find(id_)
                if chunk is None:
                    folder = self._database.path.parent
                    raise BadInput(f"{folder} has no document {id_!r}: ids are those of the corpus")
                document = self.read([chunk[0]])[0].document
                raise BadInput(f"{id_!r} is a chunk of {document!r}: name the document")
            self._remove_rows(rows, self._numbers(stored[0]))
            self._database.execute("DELETE FROM wholes WHERE whole = ?", (stored[0],))

    def _remove_rows(self, rows: RowWriter, numbers: Sequence[int]) -> None:
        rows.remove(numbers)
        self._database.executemany(
            "DELETE FROM chunks WHERE number = ?", [(number,) for number in numbers]
        )

    # -- reading --------------------------------------------------------------------------

    def _find(self, id_: str) -> tuple[int, bytes, str | None] | None:
        """Return the number, digest and metadata of a split document."""
        row: tuple[int, bytes, str | None] | None = self._database.row(
            "SELECT whole, digest, (SELECT metadata FROM chunks JOIN documents USING (number)"
            " WHERE chunks.whole = wholes.whole LIMIT 1) FROM wholes WHERE id = ?",
            (id_,),
        )
        return row

    def _numbers(self, parent: int) -> list[int]:
        sql = "SELECT number FROM chunks WHERE whole = ? ORDER BY start"
        return self._database.column(sql, [parent])

    def numbers_of(self, id_: str) -> list[int] | None:
        """Return the rows of a document's chunks in order, None if no document has this id."""
        with self._database.reading():
            stored = self._find(id_)
            if stored is None:
                return None
            numbers = self._numbers(stored[0])
        if not numbers:
            folder = self._database.path.parent
            raise IndexDamaged(
                f"{folder}: document {id_!r:.80} has no chunks. To see what is wrong: strop check"
                f" {folder}"
            )
        return numbers

    def rows(self, numbers: Iterable[int]) -> dict[int, ChunkRow]:
        """Return chunks by the number of their row; rows that are not chunks are left out."""
        rows = self._database.rows(
            "SELECT number, whole, start, behind, headings FROM chunks"
            " WHERE number IN (SELECT value FROM json_each(?))",
            (json.dumps(list(numbers)),),
        )
        with reporting_damage(self._database.path, "chunks"):
            return {
                number: ChunkRow(int(parent), int(start), int(end), tuple(json.loads(headings)))
                for number, parent, start, end, headings in rows
            }

    def parents(self, numbers: Ints) -> Ints:
        """Return the number of each row's parent; rows must be ascending."""
        stored = self._database.column(
            "SELECT whole FROM json_each(?) JOIN chunks ON number = value ORDER BY number",
            (json.dumps(numbers.tolist()),),
        )
        with reporting_damage(self._database.path, "chunks"):
            parents = np.array(stored, np.int64)
            if len(parents) != len(numbers):
                raise ValueError(f"{len(numbers) - len(parents):,} rows belong to no document")
            return parents

    def documents(self, parents: Iterable[int]) -> dict[int, Document]:
        """Return split documents by number; their texts are joined from their chunks."""
        stored = self._database.rows(
            "SELECT w.whole, w.id, w.title, c.start, d.text, d.metadata"
            " FROM wholes w JOIN chunks c USING (whole) JOIN documents d USING (number)"
            " WHERE w.whole IN (SELECT value FROM json_each(?)) ORDER BY w.whole, c.start",
            (json.dumps(list(parents)),),
        )
        documents: dict[int, Document] = {}
        with reporting_damage(self._database.path, "chunks"):
            for parent, chunks in groupby(stored, itemgetter(0)):
                rows, text = list(chunks), ""
                _, id_, title, _, _, metadata = rows[0]
                for *_, start, chunk_text, _ in rows:
                    if start > len(text):
                        raise ValueError(f"{id_!r:.80} lacks text from {len(text):,}")
                    text += chunk_text[len(text) - start :]
                documents[parent] = Document(id_ + "", text, title + "", dict(json.loads(metadata)))
        return documents

    def read(self, numbers: Sequence[int]) -> list[Chunk]:
        """Return the chunks of some rows, in the order of the text."""
        rows = self._database.rows(
            "SELECT d.id, w.id, text, start, behind, headings FROM chunks"
            " JOIN documents d USING (number) JOIN wholes w USING (whole)"
            " WHERE number IN (SELECT value FROM json_each(?)) ORDER BY whole, start",
            (json.dumps(list(numbers)),),
        )
        with reporting_damage(self._database.path, "chunks"):
            return [
                Chunk(id_, document, text, start, end, tuple(json.loads(headings)))
                for id_, document, text, start, end, headings in rows
            ]

    def problems(self, split: bool) -> list[str]:
        """Read all chunks and return a description of each problem."""
        with self._database.reading() as connection:
            orphans = self._database.value(
                "SELECT count(*) FROM chunks c LEFT JOIN documents d USING (number)"
                " LEFT JOIN wholes w USING (whole) WHERE d.number IS NULL OR w.whole IS NULL"
            )
            wrong_kind = self._database.value(
                "SELECT count(*) FROM documents WHERE number NOT IN (SELECT number FROM chunks)"
                if split
                else "SELECT count(*) FROM chunks"
            )
            differing = 0
            for parent, digest in connection.execute("SELECT whole, digest FROM wholes"):
                try:
                    differing += digest_of(self.documents([parent])[parent]) != digest
                except (IndexDamaged, KeyError):  # a gap, or no chunks at all
                    differing += 1
        return [
            f"{count:,} {what}: restore the catalog from a backup, or build the index again"
            for count, what in (
                (orphans, "chunks belong to no document"),
                (wrong_kind, "rows are not split as the index says"),
                (differing, "documents are not what their chunks say"),
            )
            if count
        ]
