"""The words of documents and of given queries in the catalog: which text has which word how often.

The *source* of words is 0 for a document's own text, else the id of the query set. What is written
in one commit becomes a *segment*: for each term the documents that have it and how often.
A segment is never changed. A segment of up to ``MOST_NAMED`` texts lists the numbers of its
documents; a larger one covers a *block* of 65,536 document numbers. If a block has
``SEGMENTS_TO_MERGE`` segments, or there are as many that list their documents, they are merged: on
average, a change costs the same in a large index as in a small one.

Each change of a source is a *generation*. The words of a document have the generation that wrote
them. A segment has the generation in which it was written or merged. A posting is live if the words
of its document are not newer than its segment. So words that are replaced or removed do not count
from then on, though their postings stay until the next merge.

Everything is written in the transaction that writes the documents: both are committed, or neither.
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
"""The block of a segment that lists its documents."""
MOST_NAMED = 8192
"""The maximum number of texts in such a segment."""
LENGTHS_PER_ROW = 128
"""Documents whose generations and lengths are one row (``chunk``) of ``word_lengths``: a change of
one document rewrites that row. Such a chunk is not a chunk of a document."""
MOST = 255
"""The largest stored count of a word in a text. Above it the score hardly grows."""
SEGMENTS_TO_MERGE = 8
"""If a block has this many segments, they are merged into one."""
_BUFFERED = 8_000_000
"""Words in memory before they are written as a segment."""

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
    """Return a database in memory with tables of words, for all threads."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(WORD_TABLES)
    return connection


@dataclass(frozen=True)
class Segment:
    """Postings of texts of one source: of a block, or of the documents ``numbers``, ascending.

    A posting names its document by *place*: in the block, or in ``numbers``.
    """

    segment: int
    source: int
    block: int
    generation: int
    texts: int
    numbers: Ints
    sum: int

    @property
    def size(self) -> int:
        """The number of its places."""
        return len(self.numbers) if self.block == NO_BLOCK else BLOCK

    def numbers_at(self, places: Ints) -> Ints:
        """Return the numbers of the documents at these places."""
        if self.block == NO_BLOCK:
            return self.numbers[places]
        return self.block * BLOCK + places

    def live_places(self, generations: Lengths) -> Flags:
        """Return which places are live, by the generations of their documents' words."""
        return (generations > 0) & (generations <= self.generation)


@dataclass(frozen=True)
class SegmentContents:
    """The contents of a segment: its terms, the number of postings of each, and the postings."""

    terms: list[str]
    sizes: Ints
    places: bytes
    counts: bytes

    @property
    def sum(self) -> int:
        """The checksum that detects damage."""
        sum_ = crc32("\0".join(self.terms).encode("utf-8", "surrogatepass"))
        for part in (self.sizes.astype("<u4").tobytes(), self.places, self.counts):
            sum_ = crc32(part, sum_)
        return sum_


def segments_of(
    connection: sqlite3.Connection, source: int, block: int | None = None
) -> list[Segment]:
    """Return the segments of a source, in one block or in all, oldest first."""
    rows = connection.execute(
        "SELECT segment, block, generation, texts, numbers, sum FROM word_segments"
        " WHERE source = ? AND block = coalesce(?, block) ORDER BY block, segment",
        (source, block),
    )
    segments = []
    for id_, block_, generation, texts, blob, sum_ in rows:
        numbers = np.frombuffer(blob, "<u4").astype(np.int64)
        segments.append(Segment(id_, source, block_, generation, texts, numbers, sum_))
    return segments


def read_segment(connection: sqlite3.Connection, segment: int) -> SegmentContents:
    """Read the contents of a segment."""
    rows = connection.execute(
        "SELECT term, postings FROM word_postings WHERE segment = ? ORDER BY term", (segment,)
    ).fetchall()
    return SegmentContents(
        [term for term, _ in rows],
        np.array([len(blob) // 3 for _, blob in rows], np.int64),
        b"".join([blob[: len(blob) // 3 * 2] for _, blob in rows]),
        b"".join([blob[len(blob) // 3 * 2 :] for _, blob in rows]),
    )


class WordWriter:
    """Writes words within one transaction; call ``flush`` before it is committed."""

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
        """Replace the words that a document has of a source."""
        if source != self._source or number in self._texts or len(self._words) > _BUFFERED:
            self.flush()
            self._source = source
        self._words.extend(map(self._ids.__getitem__, terms))
        self._texts[number] = len(terms)

    def remove(self, source: int, numbers: Iterable[int]) -> None:
        """Remove the words that documents have of a source."""
        self.flush()
        removed = np.unique(np.fromiter(numbers, np.int64))
        removed = removed[self._generations(source, removed) > 0]
        if len(removed):
            self._set_lengths(source, removed, np.zeros(len(removed), np.int64), live=False)

    def flush(self) -> None:
        """Write the buffered words as segments."""
        if not self._texts:
            return
        numbers = np.fromiter(self._texts, np.int64, len(self._texts))
        sizes = np.fromiter(self._texts.values(), np.int64, len(self._texts))
        order = np.argsort(numbers)
        generation = self._set_lengths(self._source, numbers[order], sizes[order], live=True)
        terms, ranks = _ranked(self._ids)
        keys = ranks[np.frombuffer(self._words, np.uint32)] << 32 | np.repeat(numbers, sizes)
        keys, counts = np.unique(keys, return_counts=True)
        self._store(self._source, generation, numbers[order], terms, keys, counts)
        self._begin()

    def compact(self) -> None:
        """Merge segments, and drop postings that are not live if they are many."""
        self.flush()
        sources = self._connection.execute("SELECT DISTINCT source FROM word_segments").fetchall()
        for (source,) in sources:
            self._connection.execute(
                "UPDATE word_sources SET generation = generation + 1 WHERE source = ?", (source,)
            )
            # NO_BLOCK comes first: merging may turn its segments into segments of blocks.
            for block in sorted({one.block for one in segments_of(self._connection, source)}):
                segments = segments_of(self._connection, source, block)
                live = sum(int(self._live_places(one).sum()) for one in segments)
                if len(segments) > 1 or live < 0.9 * sum(one.texts for one in segments):
                    self._merge(segments)

    # -- inside -------------------------------------------------------------------------------

    def _set_lengths(self, source: int, numbers: Ints, lengths: Ints, *, live: bool) -> int:
        """Write the lengths of texts (numbers ascending) as a new generation; return it.

        With ``live`` False the texts are removed.
        """
        connection = self._connection
        row = connection.execute(
            "SELECT begun, generation + 1, texts, words FROM word_sources WHERE source = ?",
            (source,),
        ).fetchone()
        begun, generation, texts, words = row or (1, 1, 0, 0)
        edges = np.flatnonzero(np.diff(numbers // LENGTHS_PER_ROW, prepend=-1))
        for first, behind in pairwise([*edges.tolist(), len(numbers)]):
            chunk, at = (
                int(numbers[first]) // LENGTHS_PER_ROW,
                numbers[first:behind] % LENGTHS_PER_ROW,
            )
            entry = np.zeros((2, LENGTHS_PER_ROW), np.dtype("<u4"))
            for (stored,) in connection.execute(
                "SELECT lengths FROM word_lengths WHERE source = ? AND chunk = ?", (source, chunk)
            ):
                entry[:] = np.frombuffer(stored, "<u4").reshape(2, LENGTHS_PER_ROW)
            texts -= int((entry[0, at] > 0).sum())
            words -= int(entry[1, at].sum())
            entry[0, at] = generation if live else 0
            entry[1, at] = lengths[first:behind]
            connection.execute(
                "INSERT OR REPLACE INTO word_lengths VALUES (?, ?, ?, ?)",
                (source, chunk, generation, entry.tobytes()),
            )
        texts, words = texts + len(numbers) * live, words + int(lengths.sum())
        connection.execute(
            "INSERT OR REPLACE INTO word_sources VALUES (?, ?, ?, ?, ?)",
            (source, begun, generation, texts, words),
        )
        return int(generation)

    def _generations(self, source: int, numbers: Ints) -> Lengths:
        """Return the generation of the words of each document, 0 if it has none."""
        chunks, inverse = np.unique(numbers // LENGTHS_PER_ROW, return_inverse=True)
        generations = np.zeros((len(chunks), LENGTHS_PER_ROW), np.uint32)
        rows = self._connection.execute(
            "SELECT chunk, lengths FROM word_lengths WHERE source = ?"
            " AND chunk IN (SELECT value FROM json_each(?))",
            (source, json.dumps(chunks.tolist())),
        )
        for chunk, lengths in rows:
            generations[np.searchsorted(chunks, chunk)] = np.frombuffer(
                lengths, "<u4", LENGTHS_PER_ROW
            )
        by_document: Lengths = generations[inverse, numbers % LENGTHS_PER_ROW]
        return by_document

    def _live_places(self, segment: Segment) -> Flags:
        """Return which places of a segment are live."""
        numbers = segment.numbers_at(np.arange(segment.size))
        return segment.live_places(self._generations(segment.source, numbers))

    def _merge(self, segments: list[Segment]) -> None:
        """Replace segments by one, or by one for each block."""
        ids: dict[str, int] = {}
        live_postings, live_numbers, source = [], [], segments[0].source
        for segment in segments:
            live = self._live_places(segment)
            contents = read_segment(self._connection, segment.segment)
            terms = np.array([ids.setdefault(term, len(ids)) for term in contents.terms], np.int64)
            places = np.frombuffer(contents.places, "<u2").astype(np.int64)
            counts = np.frombuffer(contents.counts, np.uint8)
            postings = [np.repeat(terms, contents.sizes), segment.numbers_at(places), counts]
            live_postings.append(np.array(postings, np.int64)[:, live[places]])
            live_numbers.append(segment.numbers_at(np.flatnonzero(live)))
        for table in ("word_postings", "word_segments"):
            self._connection.executemany(
                f"DELETE FROM {table} WHERE segment = ?", [(one.segment,) for one in segments]
            )
        term_ids, owners, merged_counts = np.concatenate(live_postings, axis=1)
        sorted_terms, ranks = _ranked(ids)
        keys = ranks[term_ids] << 32 | owners
        order = np.argsort(keys)
        (generation,) = self._connection.execute(
            "SELECT generation FROM word_sources WHERE source = ?", (source,)
        ).fetchone()
        # A text of the block that is in another segment does no harm: it has no postings here.
        numbers = np.unique(np.concatenate(live_numbers))
        self._store(source, generation, numbers, sorted_terms, keys[order], merged_counts[order])

    def _store(
        self,
        source: int,
        generation: int,
        numbers: Ints,
        terms: list[str],
        keys: Ints,
        counts: Ints,
    ) -> None:
        """Write the words of the documents ``numbers`` as one segment, or one for each block.

        ``keys`` are the place of the term << 32 | the document's number, ascending; ``counts`` how
        often the document has the term.
        """
        if not len(numbers):
            return
        if len(numbers) <= MOST_NAMED:
            self._write((source, NO_BLOCK, generation), numbers, terms, keys, counts)
            return
        blocks, owners = numbers // BLOCK, (keys & 0xFFFFFFFF) // BLOCK
        for block in np.unique(blocks).tolist():
            mask, segment = owners == block, (source, block, generation)
            self._write(segment, numbers[blocks == block], terms, keys[mask], counts[mask])

    def _write(
        self,
        segment: tuple[int, int, int],
        numbers: Ints,
        terms: list[str],
        keys: Ints,
        counts: Ints,
    ) -> None:
        """Write a segment (source, block, generation); if there are many now, merge them."""
        source, block, _ = segment
        owners, named = keys & 0xFFFFFFFF, block == NO_BLOCK
        place_of = np.searchsorted(numbers, owners) if named else owners % BLOCK
        place_bytes = place_of.astype("<u2").tobytes()
        count_bytes = np.minimum(counts, MOST).astype(np.uint8).tobytes()
        starts = np.flatnonzero(np.diff(keys >> 32, prepend=-1))
        used = [terms[at] for at in (keys[starts] >> 32).tolist()]
        ends = [*starts.tolist(), len(keys)]
        size = sum(map(len, used)) + len(place_bytes) + len(count_bytes)
        sum_ = SegmentContents(used, np.diff(ends), place_bytes, count_bytes).sum
        segment_id = self._connection.execute(
            "INSERT INTO word_segments (source, block, generation, texts, numbers, bytes, sum)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*segment, len(numbers), numbers.astype("<u4").tobytes() if named else b"", size, sum_),
        ).lastrowid
        self._connection.executemany(
            "INSERT INTO word_postings VALUES (?, ?, ?)",
            (
                (segment_id, term, place_bytes[2 * at : 2 * end] + count_bytes[at:end])
                for term, (at, end) in zip(used, pairwise(ends), strict=True)
            ),
        )
        segments = segments_of(self._connection, source, block)
        if len(segments) >= SEGMENTS_TO_MERGE:
            self._merge(segments)


def _ranked(ids: dict[str, int]) -> tuple[list[str], Ints]:
    """Return the terms in order, and the rank of each id's term in that order."""
    terms = sorted(ids)
    ranks = np.empty(len(terms), np.int64)
    ranks[[ids[term] for term in terms]] = np.arange(len(terms))
    return terms, ranks
