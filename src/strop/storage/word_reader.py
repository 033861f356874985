"""Reading the words in the catalog: the state of some sources, and the postings of a term."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from strop.common.arrays import Ints
from strop.storage.words import (
    BLOCK,
    CHUNK,
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

_MOST_CHUNKS = 2**32 // CHUNK


class Postings(NamedTuple):
    """Which documents have a term: ``first`` + each of ``places``, ascending, and how often.

    Where ``living`` is given, places that it has False for do not count.
    """

    first: int
    places: Places | Ints
    counts: Counts
    living: Flags | None


@dataclass(frozen=True)
class SourceWords:
    """What a reader knows of one source at one moment; ``entries`` is (2, numbers).

    ``entries[0]`` has the generation of each document number's words, 0 where it has none;
    ``entries[1]`` how many words they are.
    """

    generation: int
    texts: int
    words: int
    entries: Lengths
    changed: Ints
    """The generation in which each chunk changed last."""
    segments: Mapping[int, tuple[Segment, Flags | None]]
    """By their ids, with the places that count, None if all do."""


_UNREAD = SourceWords(-1, 0, 0, np.zeros((2, 0), np.uint32), np.zeros(0, np.int64), {})


def load_source(
    connection: sqlite3.Connection, source: int, before: SourceWords | None = None
) -> SourceWords:
    """Return a source as it is in this transaction; of ``before``, only what changed is read.

    Raises ``ValueError`` for what cannot have been written so.
    """
    begun, generation, texts, words = connection.execute(
        "SELECT begun, generation, texts, words FROM word_sources WHERE source = ?", (source,)
    ).fetchone() or (0, 0, 0, 0)
    if before is not None and before.generation == generation:
        return before
    if before is None or not begun <= before.generation < generation:  # it is of a later moment
        before = _UNREAD
    rows = connection.execute(
        "SELECT chunk, generation, lengths FROM word_lengths WHERE source = ? AND generation > ?",
        (source, before.generation),
    ).fetchall()
    chunks = np.array([chunk for chunk, _, _ in rows], np.int64)
    if len(chunks) and not 0 <= chunks.min() <= chunks.max() < _MOST_CHUNKS:
        raise ValueError("words of impossible documents")
    size = max(len(before.changed), int(chunks.max(initial=-1)) + 1)
    entries, changed = np.zeros((2, size * CHUNK), np.uint32), np.zeros(size, np.int64)
    entries[:, : before.entries.shape[1]] = before.entries
    changed[: len(before.changed)] = before.changed
    read = np.frombuffer(b"".join([blob for _, _, blob in rows]), "<u4")
    entries.reshape(2, size, CHUNK)[:, chunks] = read.reshape(-1, 2, CHUNK).swapaxes(0, 1)
    changed[chunks] = [at for _, at, _ in rows]
    segments = {
        one.segment: (one, _living(one, entries[0], changed))
        for one in segments_of(connection, source)
    }
    return SourceWords(generation, texts, words, entries, changed, segments)


def _living(segment: Segment, generations: Lengths, changed: Ints) -> Flags | None:
    """Return which places of a segment count, None if all do."""
    if segment.block == NO_BLOCK:
        living = segment.living(generations[segment.numbers])
        return None if living.all() else living
    first = segment.block * BLOCK
    if not 0 <= first < len(generations):
        raise ValueError(f"words of an impossible block {segment.block}")
    if changed[first // CHUNK : (first + BLOCK) // CHUNK].max() <= segment.generation:
        return None
    own = np.zeros(BLOCK, np.uint32)
    here = generations[first : first + BLOCK]
    own[: len(here)] = here
    return segment.living(own)


def postings_of(
    connection: sqlite3.Connection, sources: Mapping[int, SourceWords], term: str
) -> Iterator[Postings]:
    """Yield the postings of a term, of texts that count; each text of a source once."""
    for source, known in sources.items():
        rows = connection.execute(
            "SELECT segment, postings FROM word_segments CROSS JOIN word_postings USING (segment)"
            " WHERE source = ? AND term = ?",
            (source, term),
        )
        for id_, blob in rows:
            segment, living = known.segments[id_]
            count = len(blob) // 3
            places = np.frombuffer(blob, "<u2", count)
            counts = np.frombuffer(blob, np.uint8, count, 2 * count)
            if segment.block != NO_BLOCK:
                yield Postings(segment.block * BLOCK, places, counts, living)
                continue
            if living is not None:
                which = living[places]
                places, counts = places[which], counts[which]
            yield Postings(0, segment.numbers[places], counts, None)


def count_in_memory(texts: Iterable[Sequence[str]]) -> sqlite3.Connection:
    """Return a database in memory with the terms of texts as documents 0, 1, …"""
    connection = tables_in_memory()
    writer = WordWriter(connection)
    for number, terms in enumerate(texts):
        writer.put(TEXT, number, terms)
    writer.flush()
    return connection
