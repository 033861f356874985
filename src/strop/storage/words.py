"""The words of documents and of given queries in the catalog: which text has which word how often.

The *source* of words is 0 for a document's own text, else the id of the query set. What is written
in one commit becomes a *segment*: for each term the documents that have it and how often.
A segment is never changed. Small ones are merged when they pile up, and always within a *block* of
65,536 document numbers: so a change costs the same in a large index as in a small one.

A document's words of a source have a *generation*, the number of the commit that wrote them. A
posting counts if its segment holds that generation. So words that are replaced or removed are gone
at once, though their postings stay until the next merge.

Everything is in the transaction that writes the documents: both are there, or neither.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints

TEXT = 0
"""The source of a document's own words."""
BLOCK = 65536
"""Document numbers in a block: the place in it fits two bytes."""
CHUNK = 1024
"""Documents whose generations and lengths are one entry: a change of one document writes these."""
MOST = 255
"""A word that a text has more often counts as if so often: its score hardly grows by then."""
PILE = 8
"""So many segments of about the same size become one."""
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
    segment INTEGER PRIMARY KEY AUTOINCREMENT,
    source  INTEGER NOT NULL,
    block   INTEGER NOT NULL,
    first   INTEGER NOT NULL,
    last    INTEGER NOT NULL,
    texts   INTEGER NOT NULL
);
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
Postings = tuple[NDArray[np.uint16], NDArray[np.uint8]]
"""Places in a block, ascending, and how often each has the word."""


@dataclass(frozen=True)
class Segment:
    """Postings of the texts of one source in one block that were written in some generations."""

    segment: int
    source: int
    block: int
    first: int
    last: int
    texts: int

    def living(self, generations: Lengths) -> NDArray[np.bool_]:
        """Tell which of its texts have not been replaced or removed since."""
        return (generations >= self.first) & (generations <= self.last)


def segments_of(connection: sqlite3.Connection, source: int, block: int | None) -> list[Segment]:
    """Return the segments of a source, in one block or in all, oldest first."""
    which = "" if block is None else " AND block = ?"
    found = connection.execute(
        "SELECT segment, source, block, first, last, texts FROM word_segments"
        f" WHERE source = ?{which} ORDER BY block, first",
        (source,) if block is None else (source, block),
    )
    return [Segment(*row) for row in found]


def unpack(blob: bytes) -> Postings:
    """Return the postings of one row."""
    count = len(blob) // 3
    return np.frombuffer(blob, "<u2", count), np.frombuffer(blob, np.uint8, count, 2 * count)


def read_chunks(
    connection: sqlite3.Connection, source: int, since: int = -1
) -> Iterator[tuple[int, Lengths]]:
    """Yield (chunk, generations and lengths (2, CHUNK)) of a source, of those changed after
    generation ``since``."""
    found = connection.execute(
        "SELECT chunk, lengths FROM word_lengths WHERE source = ? AND generation > ?",
        (source, since),
    )
    for chunk, blob in found:
        yield chunk, np.frombuffer(blob, "<u4").reshape(2, CHUNK)


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
        gone = np.array(sorted(set(numbers)), np.int64)
        self._set_lengths(source, gone, np.zeros(len(gone), np.int64), living=False)

    def remove_source(self, source: int) -> None:
        """Remove all words of a source."""
        self.flush()
        self._connection.execute(
            "DELETE FROM word_postings WHERE segment IN"
            " (SELECT segment FROM word_segments WHERE source = ?)",
            (source,),
        )
        for table in ("word_segments", "word_lengths"):
            self._connection.execute(f"DELETE FROM {table} WHERE source = ?", (source,))
        # It stays known: readers must see that what they know of it is gone.
        self._connection.execute(
            "UPDATE word_sources SET begun = generation + 1, generation = generation + 1,"
            " texts = 0, words = 0 WHERE source = ?",
            (source,),
        )

    def flush(self) -> None:
        """Write what was put."""
        if not self._texts:
            return
        numbers = np.fromiter(self._texts, np.int64, len(self._texts))
        sizes = np.fromiter(self._texts.values(), np.int64, len(self._texts))
        terms = sorted(self._ids)
        ranks = np.empty(len(terms), np.int64)
        ranks[[self._ids[term] for term in terms]] = np.arange(len(terms))
        words = ranks[np.frombuffer(self._words, np.uint32)]
        generation = self._set_lengths(self._source, numbers, sizes, living=True)
        owners = np.repeat(numbers, sizes)
        for block in np.unique(numbers // BLOCK).tolist():
            here = owners // BLOCK == block
            keys = (words[here] << 16) | (owners[here] % BLOCK)
            keys.sort()
            starts = np.flatnonzero(np.diff(keys, prepend=-1))
            often = np.minimum(np.diff(starts, append=len(keys)), MOST)
            texts = int((numbers // BLOCK == block).sum())
            spans = (self._source, block, generation, generation, texts)
            self._write(spans, terms, (keys[starts] << 8) | often)
            self._merge_pile(self._source, block)
        self._begin()

    def compact(self) -> None:
        """Drop postings that do not count any more, where they are many."""
        self.flush()
        blocks = self._connection.execute("SELECT DISTINCT source, block FROM word_segments")
        for source, block in blocks.fetchall():
            generations = self._generations(source, block)
            found = segments_of(self._connection, source, block)
            alive = sum(int(one.living(generations).sum()) for one in found)
            if len(found) > 1 or alive < 0.9 * sum(one.texts for one in found):
                self._merge(found)
                self._connection.execute(
                    "UPDATE word_sources SET generation = generation + 1 WHERE source = ?",
                    (source,),
                )

    # -- inside -------------------------------------------------------------------------------

    def _set_lengths(self, source: int, numbers: Ints, lengths: Ints, *, living: bool) -> int:
        """Write the lengths of texts of a new generation, and return it."""
        connection = self._connection
        row = connection.execute(
            "SELECT begun, generation + 1, texts, words FROM word_sources WHERE source = ?",
            (source,),
        ).fetchone()
        begun, generation, texts, words = row or (1, 1, 0, 0)
        for chunk in np.unique(numbers // CHUNK).tolist():
            here = numbers // CHUNK == chunk
            at = numbers[here] % CHUNK
            entry = self._chunk(source, chunk)
            texts -= int((entry[0, at] > 0).sum())
            words -= int(entry[1, at].sum())
            entry[0, at] = generation if living else 0
            entry[1, at] = lengths[here]
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

    def _chunk(self, source: int, chunk: int) -> Lengths:
        row = self._connection.execute(
            "SELECT lengths FROM word_lengths WHERE source = ? AND chunk = ?", (source, chunk)
        ).fetchone()
        if row is None:
            return np.zeros((2, CHUNK), np.dtype("<u4"))
        entry: Lengths = np.frombuffer(row[0], "<u4").reshape(2, CHUNK).copy()
        return entry

    def _generations(self, source: int, block: int) -> Lengths:
        """Return the generation of each text of a block."""
        generations = np.zeros((BLOCK // CHUNK, CHUNK), np.uint32)
        first = block * BLOCK // CHUNK
        found = self._connection.execute(
            "SELECT chunk, lengths FROM word_lengths WHERE source = ? AND chunk BETWEEN ? AND ?",
            (source, first, first + BLOCK // CHUNK - 1),
        )
        for chunk, blob in found:
            generations[chunk - first] = np.frombuffer(blob, "<u4", CHUNK)
        return generations.ravel()

    def _merge_pile(self, source: int, block: int) -> None:
        """Merge the newest segments while there are many of about the same size."""
        found = segments_of(self._connection, source, block)
        size = PILE
        while len(found) >= PILE:
            small = 0
            while small < len(found) and found[-1 - small].texts <= size:
                small += 1
            if small >= PILE:
                self._merge(found[-small:])
                found = segments_of(self._connection, source, block)
            elif size >= BLOCK:
                break
            size *= PILE

    def _merge(self, found: list[Segment]) -> None:
        """Make one segment of several that follow each other."""
        source, block = found[0].source, found[0].block
        generations = self._generations(source, block)
        ids: dict[str, int] = {}
        parts = []
        for segment in found:
            rows = self._connection.execute(
                "SELECT term, postings FROM word_postings WHERE segment = ? ORDER BY term",
                (segment.segment,),
            ).fetchall()
            sizes = np.array([len(blob) // 3 for _, blob in rows], np.int64)
            numbers = np.array([ids.setdefault(term, len(ids)) for term, _ in rows], np.int64)
            places = b"".join([blob[: len(blob) // 3 * 2] for _, blob in rows])
            counts = b"".join([blob[len(blob) // 3 * 2 :] for _, blob in rows])
            at = np.frombuffer(places, "<u2").astype(np.int64)
            keys = np.repeat(numbers, sizes) << 24 | at << 8 | np.frombuffer(counts, np.uint8)
            parts.append(keys[segment.living(generations)[at]])
        keys = np.concatenate(parts)
        terms = sorted(ids)
        ranks = np.empty(len(terms), np.int64)
        ranks[[ids[term] for term in terms]] = np.arange(len(terms))
        keys = ranks[keys >> 24] << 24 | keys & 0xFFFFFF
        keys.sort()
        first, last = found[0].first, found[-1].last
        texts = int(((generations >= first) & (generations <= last)).sum())
        for table in ("word_postings", "word_segments"):
            self._connection.executemany(
                f"DELETE FROM {table} WHERE segment = ?", [(one.segment,) for one in found]
            )
        self._write((source, block, first, last, texts), terms, keys)

    def _write(self, about: tuple[int, ...], terms: list[str], keys: Ints) -> None:
        """Write a segment: ``keys`` are place of the term << 24 | place in block << 8 | count."""
        segment = self._connection.execute(
            "INSERT INTO word_segments (source, block, first, last, texts) VALUES (?, ?, ?, ?, ?)",
            about,
        ).lastrowid
        owners = keys >> 24
        places = ((keys >> 8) & 0xFFFF).astype("<u2").tobytes()
        counts = (keys & 0xFF).astype(np.uint8).tobytes()
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        used = owners[starts].tolist()
        ends: list[Any] = [*starts.tolist(), len(keys)]
        self._connection.executemany(
            "INSERT INTO word_postings VALUES (?, ?, ?)",
            (
                (segment, terms[term], places[2 * at : 2 * end] + counts[at:end])
                for term, (at, end) in zip(used, pairwise(ends), strict=True)
            ),
        )
