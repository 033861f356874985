"""The words of documents and of given queries in the catalog: which text has which word how often.

The *source* of words is 0 for a document's own text, else the id of the query set. What is written
in one commit becomes a *segment*: for each term the documents that have it and how often.
A segment is never changed. Of up to ``MOST_NAMED`` texts it names its documents; a larger one has
those of a *block* of 65,536 document numbers. ``SEGMENTS_TO_MERGE`` segments of a block, or that
name their documents, are merged: so on average a change costs the same in a large index as in a
small one.

Each change of a source is a *generation*. The words that a document has have the generation that
wrote them, and a segment the one in which it was written or merged. A posting counts if the words
of its document are not newer than its segment. So words that are replaced or removed are gone
at once, though their postings stay until the next merge.

Everything is in the transaction that writes the documents: both are there, or neither.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints

TEXT = 0
"""The source of a document's own words."""
BLOCK = 65536
"""Document numbers in a block: the place in it fits two bytes."""
NO_BLOCK = -1
"""The block of a segment that names its documents."""
MOST_NAMED = 8192
"""The most texts that such a segment has."""
CHUNK = 128
"""Documents whose generations and lengths are one entry: a change of one document writes these."""
MOST = 255
"""A word that a text has more often counts as if so often: its score hardly grows by then."""
SEGMENTS_TO_MERGE = 8
"""So many segments of a block become one."""
_BUFFERED = 8_000_000  # words in memory before they become a segment

WORD_TABLES = """
CREATE TABLE word_sources (
    source     INTEGER PRIMARY KEY,
    begun      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    texts      INTEGER NOT NULL,
    words      INTEGER NOT NULL
);
CREATE TABLE word_segments (
    segment    INTEGER PRIMARY KEY AUTOINCREMENT,
    source     INTEGER NOT NULL,
    block      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    texts      INTEGER NOT NULL,
    numbers    BLOB NOT NULL,
    bytes      INTEGER NOT NULL,
    sum        INTEGER NOT NULL
);
CREATE INDEX segments_of_words ON word_segments (source, block);
CREATE TABLE word_postings (
    segment  INTEGER NOT NULL,
    term     TEXT NOT NULL,
    postings BLOB NOT NULL,
    PRIMARY KEY (segment, term)
) WITHOUT ROWID;
CREATE TABLE word_lengths (
    source     INTEGER NOT NULL,
    chunk      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    lengths    BLOB NOT NULL,
    PRIMARY KEY (source, chunk)
) WITHOUT ROWID;
"""

Lengths = NDArray[np.uint32]
Places = NDArray[np.uint16]
Counts = NDArray[np.uint8]
Flags = NDArray[np.bool_]


def tables_in_memory() -> sqlite3.Connection:
    """Return a database in memory with tables of words; it serves all threads."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(WORD_TABLES)
    return connection


@dataclass(frozen=True)
class Segment:
    """Postings of texts of one source: of a block, or of the documents ``numbers``, ascending."""

    segment: int
    source: int
    block: int
    generation: int
    texts: int
    numbers: Ints
    sum: int

    @property
    def size(self) -> int:
        """How many places it has."""
        return len(self.numbers) if self.block == NO_BLOCK else BLOCK

    def numbers_at(self, places: Ints) -> Ints:
        """Return the numbers of the documents at these places."""
        if self.block == NO_BLOCK:
            return self.numbers[places]
        return self.block * BLOCK + places

    def living(self, generations: Lengths) -> Flags:
        """Tell which places count, by the generations of the words of their documents."""
        return (generations > 0) & (generations <= self.generation)


@dataclass(frozen=True)
class Rows:
    """Everything that a segment has: its terms, how many postings each has, and these."""

    terms: list[str]
    sizes: Ints
    places: bytes
    counts: bytes

    @property
    def sum(self) -> int:
        """The checksum by which damage is found."""
        sum_ = crc32("\0".join(self.terms).encode("utf-8", "surrogatepass"))
        for part in (self.sizes.astype("<u4").tobytes(), self.places, self.counts):
            sum_ = crc32(part, sum_)
        return sum_


def segments_of(
    connection: sqlite3.Connection, source: int, block: int | None = None
) -> list[Segment]:
    """Return the segments of a source, in one block or in all, oldest first."""
    found = connection.execute(
        "SELECT segment, block, generation, texts, numbers, sum FROM word_segments"
        " WHERE source = ? AND block = coalesce(?, block) ORDER BY block, segment",
        (source, block),
    )
    segments = []
    for id_, where, generation, texts, numbers, sum_ in found:
        named = np.frombuffer(numbers, "<u4").astype(np.int64)
        segments.append(Segment(id_, source, where, generation, texts, named, sum_))
    return segments


def rows_of(connection: sqlite3.Connection, segment: int) -> Rows:
    """Read a whole segment."""
    rows = connection.execute(
        "SELECT term, postings FROM word_postings WHERE segment = ? ORDER BY term", (segment,)
    ).fetchall()
    return Rows(
        [term for term, _ in rows],
        np.array([len(blob) // 3 for _, blob in rows], np.int64),
        b"".join([blob[: len(blob) // 3 * 2] for _, blob in rows]),
        b"".join([blob[len(blob) // 3 * 2 :] for _, blob in rows]),
    )


class WordWriter:
    """Writes words within one transaction; ``flush`` before it is committed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._source = TEXT
        self._begin()

    def _begin(self) -> None:
        self._ids: defaultdict[str, int] = defaultdict()  # of terms, within the buffer
        self._ids.default_factory = self._ids.__len__
        self._words = array("I")
        self._texts: dict[int, int] = {}  # document number -> how many terms

    def put(self, source: int, number: int, terms: Sequence[str]) -> None:
        """Let a document have these words of a source, in place of those it has."""
        if source != self._source or number in self._texts or len(self._words) > _BUFFERED:
            self.flush()
            self._source = source
        self._words.extend(map(self._ids.__getitem__, terms))
        self._texts[number] = len(terms)

    def remove(self, source: int, numbers: Iterable[int]) -> None:
        """Let documents have no words of a source."""
        self.flush()
        gone = np.unique(np.fromiter(numbers, np.int64))
        gone = gone[self._generations(source, gone) > 0]
        if len(gone):
            self._set_lengths(source, gone, np.zeros(len(gone), np.int64), living=False)

    def flush(self) -> None:
        """Write what was put."""
        if not self._texts:
            return
        numbers = np.fromiter(self._texts, np.int64, len(self._texts))
        sizes = np.fromiter(self._texts.values(), np.int64, len(self._texts))
        order = np.argsort(numbers)
        generation = self._set_lengths(self._source, numbers[order], sizes[order], living=True)
        terms, ranks = _ranked(self._ids)
        keys = ranks[np.frombuffer(self._words, np.uint32)] << 32 | np.repeat(numbers, sizes)
        keys, often = np.unique(keys, return_counts=True)
        self._store(self._source, generation, numbers[order], terms, keys, often)
        self._begin()

    def compact(self) -> None:
        """Drop postings that do not count any more, where they are many."""
        self.flush()
        sources = self._connection.execute("SELECT DISTINCT source FROM word_segments").fetchall()
        for (source,) in sources:
            self._connection.execute(
                "UPDATE word_sources SET generation = generation + 1 WHERE source = ?", (source,)
            )
            # Those of all blocks come first: they may become segments of blocks.
            for block in sorted({one.block for one in segments_of(self._connection, source)}):
                found = segments_of(self._connection, source, block)
                alive = sum(int(self._living(one).sum()) for one in found)
                if len(found) > 1 or alive < 0.9 * sum(one.texts for one in found):
                    self._merge(found)

    # -- inside -------------------------------------------------------------------------------

    def _set_lengths(self, source: int, numbers: Ints, lengths: Ints, *, living: bool) -> int:
        """Write the lengths of texts (numbers ascending) of a new generation, and return it."""
        connection = self._connection
        row = connection.execute(
            "SELECT begun, generation + 1, texts, words FROM word_sources WHERE source = ?",
            (source,),
        ).fetchone()
        begun, generation, texts, words = row or (1, 1, 0, 0)
        edges = np.flatnonzero(np.diff(numbers // CHUNK, prepend=-1))
        for first, behind in pairwise([*edges.tolist(), len(numbers)]):
            chunk, at = int(numbers[first]) // CHUNK, numbers[first:behind] % CHUNK
            entry = np.zeros((2, CHUNK), np.dtype("<u4"))
            for (stored,) in connection.execute(
                "SELECT lengths FROM word_lengths WHERE source = ? AND chunk = ?", (source, chunk)
            ):
                entry[:] = np.frombuffer(stored, "<u4").reshape(2, CHUNK)
            texts -= int((entry[0, at] > 0).sum())
            words -= int(entry[1, at].sum())
            entry[0, at] = generation if living else 0
            entry[1, at] = lengths[first:behind]
            connection.execute(
                "INSERT OR REPLACE INTO word_lengths VALUES (?, ?, ?, ?)",
                (source, chunk, generation, entry.tobytes()),
            )
        texts, words = texts + len(numbers) * living, words + int(lengths.sum())
        connection.execute(
            "INSERT OR REPLACE INTO word_sources VALUES (?, ?, ?, ?, ?)",
            (source, begun, generation, texts, words),
        )
        return int(generation)

    def _generations(self, source: int, numbers: Ints) -> Lengths:
        """Return the generation of the words of each document, 0 where it has none."""
        chunks, which = np.unique(numbers // CHUNK, return_inverse=True)
        generations = np.zeros((len(chunks), CHUNK), np.uint32)
        rows = self._connection.execute(
            "SELECT chunk, lengths FROM word_lengths WHERE source = ?"
            " AND chunk IN (SELECT value FROM json_each(?))",
            (source, json.dumps(chunks.tolist())),
        )
        for chunk, lengths in rows:
            generations[np.searchsorted(chunks, chunk)] = np.frombuffer(lengths, "<u4", CHUNK)
        own: Lengths = generations[which, numbers % CHUNK]
        return own

    def _living(self, segment: Segment) -> Flags:
        """Tell which places of a segment count."""
        numbers = segment.numbers_at(np.arange(segment.size))
        return segment.living(self._generations(segment.source, numbers))

    def _merge(self, found: list[Segment]) -> None:
        """Make one segment of several, or one for each block."""
        ids: dict[str, int] = {}
        parts, texts, source = [], [], found[0].source
        for segment in found:
            living, rows = self._living(segment), rows_of(self._connection, segment.segment)
            terms = np.array([ids.setdefault(term, len(ids)) for term in rows.terms], np.int64)
            places = np.frombuffer(rows.places, "<u2").astype(np.int64)
            counts = np.frombuffer(rows.counts, np.uint8)
            postings = [np.repeat(terms, rows.sizes), segment.numbers_at(places), counts]
            parts.append(np.array(postings, np.int64)[:, living[places]])
            texts.append(segment.numbers_at(np.flatnonzero(living)))
        for table in ("word_postings", "word_segments"):
            self._connection.executemany(
                f"DELETE FROM {table} WHERE segment = ?", [(one.segment,) for one in found]
            )
        of_term, numbers, often = np.concatenate(parts, axis=1)
        names, ranks = _ranked(ids)
        keys = ranks[of_term] << 32 | numbers
        order = np.argsort(keys)
        (generation,) = self._connection.execute(
            "SELECT generation FROM word_sources WHERE source = ?", (source,)
        ).fetchone()
        # Texts of a block that are in another segment do no harm here: they have no postings.
        numbers = np.unique(np.concatenate(texts))
        self._store(source, generation, numbers, names, keys[order], often[order])

    def _store(
        self, source: int, generation: int, numbers: Ints, terms: list[str], keys: Ints, often: Ints
    ) -> None:
        """Write the words of the documents ``numbers`` as one segment, or one for each block.

        ``keys`` are the place of the term << 32 | the document's number, ascending.
        """
        if not len(numbers):
            return
        if len(numbers) <= MOST_NAMED:
            self._write((source, NO_BLOCK, generation), numbers, terms, keys, often)
            return
        blocks, owners = numbers // BLOCK, (keys & 0xFFFFFFFF) // BLOCK
        for block in np.unique(blocks).tolist():
            here, about = owners == block, (source, block, generation)
            self._write(about, numbers[blocks == block], terms, keys[here], often[here])

    def _write(
        self, about: tuple[int, int, int], numbers: Ints, terms: list[str], keys: Ints, often: Ints
    ) -> None:
        """Write a segment (source, block, generation), and merge where there are many by now."""
        source, block, _ = about
        owners, named = keys & 0xFFFFFFFF, block == NO_BLOCK
        at_places = np.searchsorted(numbers, owners) if named else owners % BLOCK
        places = at_places.astype("<u2").tobytes()
        counts = np.minimum(often, MOST).astype(np.uint8).tobytes()
        starts = np.flatnonzero(np.diff(keys >> 32, prepend=-1))
        used = [terms[at] for at in (keys[starts] >> 32).tolist()]
        ends = [*starts.tolist(), len(keys)]
        size = sum(map(len, used)) + len(places) + len(counts)
        sum_ = Rows(used, np.diff(ends), places, counts).sum
        segment = self._connection.execute(
            "INSERT INTO word_segments (source, block, generation, texts, numbers, bytes, sum)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*about, len(numbers), numbers.astype("<u4").tobytes() if named else b"", size, sum_),
        ).lastrowid
        self._connection.executemany(
            "INSERT INTO word_postings VALUES (?, ?, ?)",
            (
                (segment, term, places[2 * at : 2 * end] + counts[at:end])
                for term, (at, end) in zip(used, pairwise(ends), strict=True)
            ),
        )
        found = segments_of(self._connection, source, block)
        if len(found) >= SEGMENTS_TO_MERGE:
            self._merge(found)


def _ranked(ids: dict[str, int]) -> tuple[list[str], Ints]:
    """Return the terms in order, and the place in it of each id."""
    terms = sorted(ids)
    ranks = np.empty(len(terms), np.int64)
    ranks[[ids[term] for term in terms]] = np.arange(len(terms))
    return terms, ranks
