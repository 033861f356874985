"""BM25 from the words in the catalog, against its definition."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strop.common.arrays import Floats
from strop.search.word_scores import WordScorer, largest_scores
from strop.storage.word_reader import load_source
from strop.storage.words import BLOCK, TEXT, WORD_TABLES, WordWriter

SET = 3


def stored(*sources: dict[int, list[str]]) -> tuple[sqlite3.Connection, WordScorer]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(WORD_TABLES)
    writer = WordWriter(connection)
    ids = (TEXT, SET)[: len(sources)]
    for source, texts in zip(ids, sources, strict=True):
        for number, terms in texts.items():
            writer.put(source, number, terms)
    writer.flush()
    return connection, WordScorer({one: load_source(connection, one) for one in ids})


def reference(texts: dict[int, list[str]], query: list[str]) -> dict[int, float]:
    """The score of each document: BM25 over the length of the query's vector of weights."""
    mean = sum(map(len, texts.values())) / max(len(texts), 1)
    weights = {}
    for term in query:
        holding = sum(term in terms for terms in texts.values())
        weights[term] = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
    length = math.sqrt(sum((weights[term] * n) ** 2 for term, n in Counter(query).items()))
    scores = {}
    for number, terms in texts.items():
        total = 0.0
        for term in query:
            count = Counter(terms)[term]
            norm = 1.5 * (0.25 + 0.75 * len(terms) / (mean or 1))
            total += weights[term] * count / (count + norm)
        scores[number] = total / (length or 1)
    return scores


def best(scores: Floats, k: int) -> list[int]:
    places: list[int] = largest_scores(scores, k).tolist()
    return places


words = st.lists(st.sampled_from("abcdefgh"), max_size=8)
numbers = st.sampled_from([*range(6), 1024, BLOCK - 1, BLOCK, 2 * BLOCK + 5])


@given(st.dictionaries(numbers, words), st.dictionaries(numbers, words), words)
def test_scores_are_by_definition(
    texts: dict[int, list[str]], queries: dict[int, list[str]], query: list[str]
) -> None:
    queries = {number: terms for number, terms in queries.items() if number in texts}
    connection, scorer = stored(texts, queries)
    joined = {number: terms + queries.get(number, []) for number, terms in texts.items()}
    want = reference(joined, query)
    scores = scorer.all(connection, query)
    found = {number: scores[number] for number in sorted(texts)}
    np.testing.assert_allclose([*found.values()], [want[n] for n in found], rtol=1e-5, atol=1e-7)
    assert not np.delete(scores, sorted(texts)).any()
    top = sorted((score for score in want.values() if score), reverse=True)[:4]
    np.testing.assert_allclose(scores[best(scores, 4)], top, rtol=1e-5)
    connection.close()


def test_words_of_a_set_count_only_where_it_is_named() -> None:
    connection, with_set = stored({1: ["a"], 2: ["b"]}, {2: ["c"]})
    alone = WordScorer({TEXT: load_source(connection, TEXT)})
    assert best(with_set.all(connection, ["c"]), 5) == [2]
    assert best(alone.all(connection, ["c"]), 5) == []


def test_a_word_no_document_has_counts_as_missing() -> None:
    connection, scorer = stored({1: ["a"], 2: ["b"]})
    whole, part = (scorer.all(connection, query)[1] for query in (["a"], ["a", "missing"]))
    assert 0 < part < whole / 2


def test_an_empty_index_and_an_empty_query() -> None:
    connection, scorer = stored({})
    assert best(scorer.all(connection, ["a"]), 5) == []
    connection, scorer = stored({1: ["a"], 2: []})
    assert best(scorer.all(connection, []), 5) == []
    assert not scorer.all(connection, []).any()


def test_the_best_of_many_blocks() -> None:
    texts = {at * 97: ["a"] * (1 + at % 7) + ["b"] * (at % 5) for at in range(3000)}
    connection, scorer = stored(texts)
    scores = scorer.all(connection, ["a", "b"])
    found = best(scores, 50)
    assert scores[found].tolist() == np.sort(scores)[::-1][:50].tolist()
    assert len(set(found)) == 50
