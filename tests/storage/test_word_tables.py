"""The word tables of a catalog: readers see what was written, after any sequence of changes."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.storage.word_reader import SourceWords, load_source, postings_of
from strop.storage.words import (
    BLOCK,
    MOST,
    NO_BLOCK,
    SEGMENTS_TO_MERGE,
    WordWriter,
    read_segment,
    segments_of,
    tables_in_memory,
)

Model = dict[int, dict[int, list[str]]]
"""The terms of each document, by source."""
SOURCES = (0, 7)
NUMBERS = (0, 1, 2, 1023, 1024, BLOCK - 1, BLOCK, 3 * BLOCK)


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(tables_in_memory()) as opened:
        yield opened


def counts_by_number(
    connection: sqlite3.Connection, sources: dict[int, SourceWords], term: str
) -> dict[int, int]:
    totals: Counter[int] = Counter()
    for source, source_words in sources.items():
        numbers = []
        for first, places, counts, living in postings_of(connection, {source: source_words}, term):
            live = np.ones(len(places), bool) if living is None else living[places]
            live_numbers = (first + places[live].astype(int)).tolist()
            numbers += live_numbers
            totals.update(dict(zip(live_numbers, counts[live].tolist(), strict=True)))
        assert len(numbers) == len(set(numbers))
    return {number: min(count, MOST) for number, count in totals.items()}


def load_sources(
    connection: sqlite3.Connection, known: dict[int, SourceWords] | None = None
) -> dict[int, SourceWords]:
    known = known or {}
    return {source: load_source(connection, source, known.get(source)) for source in SOURCES}


def assert_stored(connection: sqlite3.Connection, model: Model) -> None:
    assert_loaded(connection, load_sources(connection), model)


def assert_loaded(
    connection: sqlite3.Connection, sources: dict[int, SourceWords], model: Model
) -> None:
    for source, source_words in sources.items():
        texts = model.get(source, {})
        assert source_words.texts == len(texts)
        assert source_words.words == sum(map(len, texts.values()))
        for number in NUMBERS:
            if number < source_words.entries.shape[1]:
                assert source_words.entries[1, number] == len(texts.get(number, ()))
                assert bool(source_words.entries[0, number]) == (number in texts)
            else:
                assert number not in texts
    for term in ("a", "b", "猫", "missing"):
        for selected in (SOURCES[:1], SOURCES[1:], SOURCES):
            expected: Counter[int] = Counter()
            for source in selected:
                for number, terms in model.get(source, {}).items():
                    expected[number] += Counter(terms)[term]
            counts = counts_by_number(
                connection, {source: sources[source] for source in selected}, term
            )
            assert counts == +expected


terms = st.lists(st.sampled_from(["a", "b", "猫", "c"]), max_size=4)
change = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(SOURCES), st.sampled_from(NUMBERS), terms),
    st.tuples(st.just("remove"), st.sampled_from(SOURCES), st.sets(st.sampled_from(NUMBERS))),
    st.tuples(st.just("flush")),
    st.tuples(st.just("compact")),
)


@given(st.lists(change, max_size=40), st.sampled_from([0, 2, 8192]))
def test_readers_see_what_was_written(changes: list[tuple[Any, ...]], most_named: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strop.storage.words.MOST_NAMED", most_named)
        check_changes(changes)


def check_changes(changes: list[tuple[Any, ...]]) -> None:
    connection = tables_in_memory()
    writer, model = WordWriter(connection), Model()
    followed = load_sources(connection)
    for name, *arguments in changes:
        getattr(writer, name)(*arguments)
        if name == "put":
            source, number, new_terms = arguments
            model.setdefault(source, {})[number] = new_terms
        elif name == "remove":
            source, numbers = arguments
            for number in numbers:
                model.get(source, {}).pop(number, None)
        elif name == "flush":
            followed = load_sources(connection, followed)
            assert_loaded(connection, followed, model)
    writer.flush()
    followed = load_sources(connection, followed)
    assert_loaded(connection, followed, model)
    assert_stored(connection, model)
    for (segment,) in connection.execute("SELECT segment FROM word_segments").fetchall():
        (stored_sum,) = connection.execute(
            "SELECT sum FROM word_segments WHERE segment = ?", (segment,)
        ).fetchone()
        assert read_segment(connection, segment).sum == stored_sum
    connection.close()


def test_an_unchanged_source_is_not_read_again(connection: sqlite3.Connection) -> None:
    writer = WordWriter(connection)
    writer.put(0, 1, ["a"])
    writer.flush()
    known = load_source(connection, 0)
    assert load_source(connection, 0, known) is known


def test_rollback_leaves_no_words(connection: sqlite3.Connection) -> None:
    writer = WordWriter(connection)
    writer.put(0, 1, ["a"])
    writer.flush()
    connection.execute("BEGIN")
    writer.put(0, 1, ["b"])
    writer.put(0, 2, ["a", "b"])
    writer.remove(0, [1])
    connection.execute("ROLLBACK")
    assert_stored(connection, {0: {1: ["a"]}})


def test_counts_are_capped(connection: sqlite3.Connection) -> None:
    writer = WordWriter(connection)
    writer.put(0, 1, ["a"] * 1000)
    writer.put(7, 1, ["a"] * 3)
    writer.flush()
    sources = load_sources(connection)
    assert counts_by_number(connection, sources, "a") == {1: MOST}
    assert sources[0].words == 1000


def test_small_segments_are_merged(connection: sqlite3.Connection) -> None:
    writer, model = WordWriter(connection), Model({0: {}})
    max_segments = 0
    for at in range(4 * SEGMENTS_TO_MERGE * SEGMENTS_TO_MERGE):
        number = at % 50
        model[0][number] = ["a", f"only-{at}"]
        writer.put(0, number, model[0][number])
        writer.flush()
        max_segments = max(max_segments, len(segments_of(connection, 0)))
    assert max_segments <= 3 * SEGMENTS_TO_MERGE
    source = load_source(connection, 0)
    assert counts_by_number(connection, {0: source}, "a") == dict.fromkeys(range(50), 1)
    assert counts_by_number(connection, {0: source}, f"only-{at}") == {at % 50: 1}
    assert counts_by_number(connection, {0: source}, "only-3") == {}


def test_blocks_are_merged_separately(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.storage.words.MOST_NAMED", 0)
    writer = WordWriter(connection)
    writer.put(0, 0, ["a"])
    writer.flush()
    (kept,) = segments_of(connection, 0, 0)
    for at in range(2 * SEGMENTS_TO_MERGE):
        writer.put(0, BLOCK + at, ["a"])
        writer.flush()
    assert [segment.segment for segment in segments_of(connection, 0, 0)] == [kept.segment]
    assert len(segments_of(connection, 0, 1)) <= SEGMENTS_TO_MERGE


def test_small_commits_write_one_segment_across_blocks(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.storage.words.MOST_NAMED", 10)
    writer = WordWriter(connection)
    for number in (3 * BLOCK, 5, BLOCK + 1):
        writer.put(0, number, ["a"])
    writer.flush()
    (segment,) = segments_of(connection, 0)
    assert (segment.block, segment.numbers.tolist()) == (NO_BLOCK, [5, BLOCK + 1, 3 * BLOCK])
    for at in range(SEGMENTS_TO_MERGE):  # merged, they are too large for one such segment
        writer.put(0, BLOCK + 7 * at, ["a"])
        writer.put(0, 7 * at, ["a"])
        writer.flush()
    assert {segment.block for segment in segments_of(connection, 0)} >= {0, 1}
    counts = counts_by_number(connection, {0: load_source(connection, 0)}, "a")
    assert len(counts) == 3 + 2 * SEGMENTS_TO_MERGE


def test_compaction_frees_replaced_postings(connection: sqlite3.Connection) -> None:
    writer = WordWriter(connection)
    for number in range(20):
        writer.put(0, number, ["a", f"only-{number}"])
    writer.remove(0, range(1, 20))
    writer.compact()
    (rows,) = connection.execute("SELECT count(*) FROM word_postings").fetchone()
    assert rows == 2
    assert_stored(connection, {0: {0: ["a", "only-0"]}})


def test_a_reader_of_an_older_version_does_not_follow_a_newer_one(
    connection: sqlite3.Connection,
) -> None:
    writer = WordWriter(connection)
    writer.put(0, 1, ["a"])
    writer.flush()
    connection.execute("BEGIN")
    writer.put(0, 2, ["a"])
    writer.flush()
    newer = load_source(connection, 0)
    connection.execute("ROLLBACK")
    followed = load_sources(connection, dict.fromkeys(SOURCES, newer))
    assert_loaded(connection, followed, {0: {1: ["a"]}})
