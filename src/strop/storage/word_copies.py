"""The words of a catalog as named pieces for other stores, and a reader's copy of them.

Segments never change (words.py), so only new pieces are needed to bring a copy up to date. The
*state* names all pieces that count. It is written last, so every piece that it names exists.
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
"""Returns the named pieces that exist, by name."""
_MAX_TERMS = 20_000
"""Terms whose postings a reader keeps. If there were more, it would drop them all first."""


def word_state(connection: sqlite3.Connection) -> State:
    """Return the state of a catalog's words, as JSON values."""
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
    connection: sqlite3.Connection, state: State, older: State
) -> Iterator[tuple[str, bytes]]:
    """Yield the pieces (name, content) of a state that are not in an older one."""
    for segment in _missing_from(older["segments"], state["segments"]):
        (numbers,) = connection.execute(
            "SELECT numbers FROM word_segments WHERE segment = ?", (segment[0],)
        ).fetchone()
        yield _segment_name(segment), numbers
        rows = connection.execute(
            "SELECT term, postings FROM word_postings WHERE segment = ?", (segment[0],)
        ).fetchall()
        for term, postings in rows:
            yield f"{_segment_name(segment)}.{term}", postings
    for entry in _missing_from(older["lengths"], state["lengths"]):
        (blob,) = connection.execute(
            "SELECT lengths FROM word_lengths WHERE source = ? AND chunk = ?", entry[:2]
        ).fetchone()
        yield _lengths_name(entry), blob


def old_pieces(state: State, older: State) -> tuple[list[str], list[str]]:
    """Return the pieces of an older state that a newer one lacks: name prefixes, and names.

    A prefix stands for a segment with all its postings.
    """
    segments = _missing_from(state["segments"], older["segments"])
    lengths = _missing_from(state["lengths"], older["lengths"])
    return [_segment_name(row) for row in segments], [_lengths_name(row) for row in lengths]


def no_words() -> State:
    """Return the state of a catalog without words."""
    return {"sources": [], "segments": [], "lengths": []}


def _missing_from(known_rows: list[list[Any]], rows: list[list[Any]]) -> list[list[Any]]:
    """Return those of ``rows`` that are not among ``known_rows``."""
    known = set(map(tuple, known_rows))
    return [row for row in rows if tuple(row) not in known]


def _segment_name(row: list[Any]) -> str:
    # With the checksum: a catalog restored from a backup may use a segment id a second time.
    return f"s.{row[0]}.{row[-1]:08x}"


def _lengths_name(row: list[Any]) -> str:
    source, chunk, generation, sum_ = row
    return f"l.{source}.{chunk}.{generation}.{sum_:08x}"


class WordCopy:
    """A reader's copy of the words, in memory, for one state; several threads may use it.

    It has everything except the postings, which are read when they are needed.
    """

    def __init__(self, state: State, read: Read, before: WordCopy | None = None) -> None:
        self._state, self._read = state, read
        self._terms: set[str] = set()
        self._lock = threading.RLock()
        cached = {} if before is None else before._lengths
        lengths_names = [_lengths_name(row) for row in state["lengths"]]
        new = self._pieces([name for name in lengths_names if name not in cached])
        self._lengths: dict[str, bytes] = {
            name: cached.get(name) or new[name] for name in lengths_names
        }
        segment_names = [_segment_name(row) for row in state["segments"]]
        numbers = self._pieces(segment_names)
        self._connection = tables_in_memory()
        self._insert("word_sources", state["sources"])
        segments = zip(state["segments"], segment_names, strict=True)
        self._insert(
            "word_segments", [[*row[:5], numbers[name], *row[5:]] for row, name in segments]
        )
        lengths = zip(state["lengths"], lengths_names, strict=True)
        self._insert("word_lengths", [[*row[:3], self._lengths[name]] for row, name in lengths])

    def _pieces(self, names: list[str]) -> Mapping[str, bytes]:
        pieces = self._read(names) if names else {}
        if missing := [name for name in names if name not in pieces]:
            raise LookupError(f"words {missing[0]!r} are missing")
        return pieces

    def _insert(self, table: str, rows: list[list[Any]]) -> None:
        if rows:
            placeholders = ", ".join("?" * len(rows[0]))
            self._connection.executemany(f"INSERT INTO {table} VALUES ({placeholders})", rows)

    def sources(self, sources: Sequence[int]) -> dict[int, SourceWords]:
        """Return sources of words, as ``WordIndex.load`` does."""
        with self._lock:
            return {one: load_source(self._connection, one) for one in sources}

    @contextmanager
    def reading(self, terms: Iterable[str]) -> Iterator[sqlite3.Connection]:
        """Give a connection to tables that have the postings of these terms."""
        with self._lock:
            new = set(terms) - self._terms
            if len(self._terms) + len(new) > _MAX_TERMS:
                self._connection.execute("DELETE FROM word_postings")
                self._terms, new = set(), set(terms)
            names = {
                f"{_segment_name(row)}.{term}": (row[0], term)
                for row in self._state["segments"]
                for term in new
            }
            if names:
                postings = self._read(list(names))
                rows = [[*names[name], blob] for name, blob in postings.items()]
                self._insert("word_postings", rows)
                self._terms |= new
            yield self._connection
