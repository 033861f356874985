"""Reads the words in the catalog: the state of some sources, and the postings of a term."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from strop.common.arrays import Ints
from strop.storage.words import (
    BLOCK,
    LENGTHS_PER_ROW,
    NO_BLOCK,
    TEXT,
    Counts,
    Flags,
    Lengths,
    Places,
    Segment,
    WordWriter,
    segments_of,
    tables_in_memory,
)

_MAX_CHUNKS = 2**32 // LENGTHS_PER_ROW


class Postings(NamedTuple):
    """Which documents have a term: ``first`` + each of ``places``, ascending, and how often.

    ``live`` has False for each place that does not count; None if all count.
    """

    first: int
    places: Places | Ints
    counts: Counts
    live: Flags | None


@dataclass(frozen=True)
class SourceWords:
    """What a reader knows of one source at one moment; ``entries`` is (2, numbers).

    ``entries[0]`` has the generation of each document number's words, 0 if it has none;
    ``entries[1]`` has the number of these words.
    """

    generation: int
    texts: int
    words: int
    entries: Lengths
    changed: Ints
    """The generation in which each chunk (``LENGTHS_PER_ROW`` documents) changed last."""
    segments: Mapping[int, tuple[Segment, Flags | None]]
    """By id: the segment and which of its places count, None if all do."""


_UNREAD = SourceWords(-1, 0, 0, np.zeros((2, 0), np.uint32), np.zeros(0, np.int64), {})


def load_source(
    connection: sqlite3.Connection, source: int, before: SourceWords | None = None
) -> SourceWords:
    """Return a source as this transaction sees it.

    With ``before``, only what changed since is read. Raises ``ValueError`` for rows that strop
    cannot have written.
    """
    begun, generation, texts, words = connection.execute(
        "SELECT begun, generation, texts, words FROM word_sources WHERE source = ?", (source,)
    ).fetchone() or (0, 0, 0, 0)
    if before is not None and before.generation == generation:
        return before
    # One of a later moment, or of words that were recounted since, cannot be followed.
    if before is None or not begun <= before.generation < generation:
        before = _UNREAD
    rows = connection.execute(
        "SELECT chunk, generation, lengths FROM word_lengths WHERE source = ? AND generation > ?",
        (source, before.generation),
    ).fetchall()
    chunks = np.array([chunk for chunk, _, _ in rows], np.int64)
    if len(chunks) and not 0 <= chunks.min() <= chunks.max() < _MAX_CHUNKS:
        raise ValueError("words of impossible documents")
    size = max(len(before.changed), int(chunks.max(initial=-1)) + 1)
    entries, changed = np.zeros((2, size * LENGTHS_PER_ROW), np.uint32), np.zeros(size, np.int64)
    entries[:, : before.entries.shape[1]] = before.entries
    changed[: len(before.changed)] = before.changed
    lengths = np.frombuffer(b"".join([blob for _, _, blob in rows]), "<u4")
    by_chunk = lengths.reshape(-1, 2, LENGTHS_PER_ROW).swapaxes(0, 1)
    entries.reshape(2, size, LENGTHS_PER_ROW)[:, chunks] = by_chunk
    changed[chunks] = [changed_in for _, changed_in, _ in rows]
    segments = {
        one.segment: (one, _live_places(one, entries[0], changed))
        for one in segments_of(connection, source)
    }
    return SourceWords(generation, texts, words, entries, changed, segments)


def _live_places(segment: Segment, generations: Lengths, changed: Ints) -> Flags | None:
    """Return which places of a segment count, None if all do."""
    if segment.block == NO_BLOCK:
        live = segment.live_places(generations[segment.numbers])
        return None if live.all() else live
    first = segment.block * BLOCK
    if not 0 <= first < len(generations):
        raise ValueError(f"words of an impossible block {segment.block}")
    if (
        changed[first // LENGTHS_PER_ROW : (first + BLOCK) // LENGTHS_PER_ROW].max()
        <= segment.generation
    ):
        return None
    in_block = np.zeros(BLOCK, np.uint32)
    stored = generations[first : first + BLOCK]
    in_block[: len(stored)] = stored
    return segment.live_places(in_block)


def postings_of(
    connection: sqlite3.Connection, sources: Mapping[int, SourceWords], term: str
) -> Iterator[Postings]:
    """Yield the postings of a term in texts that count; each text of a source once."""
    for source, words in sources.items():
        rows = connection.execute(
            "SELECT segment, postings FROM word_segments CROSS JOIN word_postings USING (segment)"
            " WHERE source = ? AND term = ?",
            (source, term),
        )
        for id_, blob in rows:
            segment, live = words.segments[id_]
            count = len(blob) // 3
            places = np.frombuffer(blob, "<u2", count)
            counts = np.frombuffer(blob, np.uint8, count, 2 * count)
            if segment.block != NO_BLOCK:
                yield Postings(segment.block * BLOCK, places, counts, live)
                continue
            if live is not None:
                mask = live[places]
                places, counts = places[mask], counts[mask]
            yield Postings(0, segment.numbers[places], counts, None)


def count_in_memory(texts: Iterable[Sequence[str]]) -> sqlite3.Connection:
    """Return a database in memory with the terms of texts as documents 0, 1, …"""
    connection = tables_in_memory()
    writer = WordWriter(connection)
    for number, terms in enumerate(texts):
        writer.put(TEXT, number, terms)
    writer.flush()
    return connection
