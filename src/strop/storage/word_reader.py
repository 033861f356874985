"""Reading the words in the catalog: the state of some sources, and the postings of a term."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strop.storage.words import (
    BLOCK,
    CHUNK,
    MOST,
    TEXT,
    WORD_TABLES,
    Lengths,
    Postings,
    Segment,
    WordWriter,
    read_chunks,
    segments_of,
    unpack,
)


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
    segments: Sequence[Segment]
    replaced: frozenset[int]
    """Segments with postings that do not count any more."""


def load_source(
    connection: sqlite3.Connection, source: int, before: SourceWords | None = None
) -> SourceWords:
    """Return a source as it is in this transaction; of ``before``, only what changed is read."""
    begun, generation, texts, words = connection.execute(
        "SELECT begun, generation, texts, words FROM word_sources WHERE source = ?", (source,)
    ).fetchone() or (0, 0, 0, 0)
    if before is not None and before.generation == generation:
        return before
    since, old = -1, np.zeros((2, 0), np.uint32)
    if before is not None and before.generation >= begun:
        since, old = before.generation, before.entries
    chunks = dict(read_chunks(connection, source, since))
    size = max([old.shape[1], *(CHUNK * (chunk + 1) for chunk in chunks)])
    entries = np.zeros((2, size), np.uint32)
    entries[:, : old.shape[1]] = old
    for chunk, entry in chunks.items():
        entries[:, chunk * CHUNK : (chunk + 1) * CHUNK] = entry
    segments = segments_of(connection, source, None)
    replaced = frozenset(
        one.segment for one in segments if int(one.living(_block(entries, one)).sum()) < one.texts
    )
    return SourceWords(generation, texts, words, entries, segments, replaced)


def _block(entries: Lengths, segment: Segment) -> Lengths:
    return entries[0, segment.block * BLOCK : (segment.block + 1) * BLOCK]


def postings_of(
    connection: sqlite3.Connection, source: SourceWords, term: str
) -> Iterator[tuple[int, Postings]]:
    """Yield (block, postings) of a term, of texts that count; each text once."""
    for segment in source.segments:
        row = connection.execute(
            "SELECT postings FROM word_postings WHERE segment = ? AND term = ?",
            (segment.segment, term),
        ).fetchone()
        if row is None:
            continue
        places, counts = unpack(row[0])
        if segment.segment in source.replaced:
            living = segment.living(_block(source.entries, segment)[places])
            places, counts = places[living], counts[living]
        if len(places):
            yield segment.block, (places, counts)


def pooled_postings(
    connection: sqlite3.Connection, sources: Mapping[int, SourceWords], term: str
) -> Iterator[tuple[int, Postings]]:
    """Yield (block, postings) of a term, counted over several sources; each document once."""
    if len(sources) == 1:
        (source,) = sources.values()
        yield from postings_of(connection, source, term)
        return
    blocks: dict[int, list[Postings]] = defaultdict(list)
    for source in sources.values():
        for block, postings in postings_of(connection, source, term):
            blocks[block].append(postings)
    for block, parts in blocks.items():
        if len(parts) == 1:
            yield block, parts[0]
            continue
        total = np.zeros(BLOCK, np.uint8)
        for places, counts in parts:
            total[places] = np.minimum(total[places].astype(np.uint16) + counts, MOST)
        having = np.flatnonzero(total)
        yield block, (having.astype(np.uint16), total[having])


def count_in_memory(texts: Iterable[Sequence[str]]) -> sqlite3.Connection:
    """Return a database in memory with the terms of texts as documents 0, 1, …

    It serves all threads.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(WORD_TABLES)
    writer = WordWriter(connection)
    for number, terms in enumerate(texts):
        writer.put(TEXT, number, terms)
    writer.flush()
    return connection
