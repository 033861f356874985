"""The words of a catalog as named pieces that can stand elsewhere, and a reader's copy of them.

Segments never change (words.py), so a copy is brought up to date by the pieces that are new. The
*state* names all pieces that count. It is written last: who reads it finds every piece it names.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from strop.storage.word_reader import SourceWords, load_source
from strop.storage.words import tables_in_memory

State = dict[str, list[list[Any]]]
"""``sources``, ``segments`` and ``lengths``: rows of the tables of words, without their blobs."""
Read = Callable[[Sequence[str]], Mapping[str, bytes]]
"""Returns those of some named pieces that are there."""
_MOST_TERMS = 20_000
"""Terms whose postings a reader keeps; then it begins anew."""


def word_state(connection: sqlite3.Connection) -> State:
    """Return what words a catalog has, as JSON values."""
    segments = connection.execute(
        "SELECT segment, source, block, generation, texts, bytes, sum FROM word_segments"
        " ORDER BY segment"
    )
    lengths = connection.execute(
        "SELECT source, chunk, generation, lengths FROM word_lengths ORDER BY source, chunk"
    )
    return {
        "sources": [*map(list, connection.execute("SELECT * FROM word_sources ORDER BY source"))],
        "segments": [*map(list, segments)],
        "lengths": [[*row, crc32(blob)] for *row, blob in lengths],
    }


def new_pieces(
    connection: sqlite3.Connection, state: State, known: State
) -> Iterator[tuple[str, bytes]]:
    """Yield the pieces (name, content) of a state that are not in an older one."""
    for segment in _others(state["segments"], known["segments"]):
        (numbers,) = connection.execute(
            "SELECT numbers FROM word_segments WHERE segment = ?", (segment[0],)
        ).fetchone()
        yield _segment(segment), numbers
        rows = connection.execute(
            "SELECT term, postings FROM word_postings WHERE segment = ?", (segment[0],)
        ).fetchall()
        for term, postings in rows:
            yield f"{_segment(segment)}.{term}", postings
    for entry in _others(state["lengths"], known["lengths"]):
        (blob,) = connection.execute(
            "SELECT lengths FROM word_lengths WHERE source = ? AND chunk = ?", entry[:2]
        ).fetchone()
        yield _length(entry), blob


def old_pieces(state: State, known: State) -> tuple[list[str], list[str]]:
    """Return the pieces of an older state that a newer one has not: prefixes of names, and names.

    A prefix stands for a segment with all its postings.
    """
    segments = [_segment(one) for one in _others(known["segments"], state["segments"])]
    return segments, [_length(one) for one in _others(known["lengths"], state["lengths"])]


def no_words() -> State:
    """Return the state of nothing."""
    return {"sources": [], "segments": [], "lengths": []}


def _others(rows: list[list[Any]], known: list[list[Any]]) -> list[list[Any]]:
    have = set(map(tuple, known))
    return [row for row in rows if tuple(row) not in have]


def _segment(row: list[Any]) -> str:
    # With the checksum: a catalog restored from a backup may give a number twice.
    return f"s.{row[0]}.{row[-1]:08x}"


def _length(row: list[Any]) -> str:
    source, chunk, generation, sum_ = row
    return f"l.{source}.{chunk}.{generation}.{sum_:08x}"


class WordCopy:
    """What a reader has of the words of a copy: all but postings, which are read when wanted.

    It is in memory, and for one state; several threads may use it.
    """

    def __init__(self, state: State, read: Read, before: WordCopy | None = None) -> None:
        self._state, self._read = state, read
        self._terms: set[str] = set()
        self._lock = threading.RLock()
        have = {} if before is None else before._lengths
        wanted = [_length(row) for row in state["lengths"]]
        new = self._pieces([name for name in wanted if name not in have])
        self._lengths: dict[str, bytes] = {name: have.get(name) or new[name] for name in wanted}
        names = [_segment(row) for row in state["segments"]]
        numbers = self._pieces(names)
        self._connection = tables_in_memory()
        self._insert("word_sources", state["sources"])
        segments = zip(state["segments"], names, strict=True)
        self._insert(
            "word_segments", [[*row[:5], numbers[name], *row[5:]] for row, name in segments]
        )
        lengths = zip(state["lengths"], wanted, strict=True)
        self._insert("word_lengths", [[*row[:3], self._lengths[name]] for row, name in lengths])

    def _pieces(self, names: list[str]) -> Mapping[str, bytes]:
        found = self._read(names) if names else {}
        if missing := [name for name in names if name not in found]:
            raise LookupError(f"words {missing[0]!r} are missing")
        return found

    def _insert(self, table: str, rows: list[list[Any]]) -> None:
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def sources(self, sources: Sequence[int]) -> dict[int, SourceWords]:
        """Return sources of words, as ``WordIndex.load`` does."""
        with self._lock:
            return {one: load_source(self._connection, one) for one in sources}

    @contextmanager
    def reading(self, terms: Iterable[str]) -> Iterator[sqlite3.Connection]:
        """A connection with the postings of some terms."""
        with self._lock:
            new = set(terms) - self._terms
            if len(self._terms) + len(new) > _MOST_TERMS:
                self._connection.execute("DELETE FROM word_postings")
                self._terms, new = set(), set(terms)
            names = {
                f"{_segment(row)}.{term}": (row[0], term)
                for row in self._state["segments"]
                for term in new
            }
            if names:
                found = self._read(list(names))
                self._insert("word_postings", [[*names[name], found[name]] for name in found])
                self._terms |= new
            yield self._connection
