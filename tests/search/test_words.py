"""BM25 from the words in the catalog, compared with its definition; hybrid rankings."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fakes
from hypothesis import given
from hypothesis import strategies as st

from strop import Index, evaluate
from strop.common.arrays import Floats, unit_rows
from strop.errors import BadInput
from strop.methods import Method
from strop.search.folder import FolderStore
from strop.search.layout import Layout
from strop.search.ranking import fuse, rank
from strop.search.words import QueryWordScores, WordScorer, count_words, largest_scores
from strop.storage.snapshot import Spans
from strop.storage.word_reader import load_source
from strop.storage.words import BLOCK, TEXT, WORD_TABLES, WordWriter
from strop.types import Dataset

TEXTS = [
    "a fast fox and another fox",
    "the dogs slept",
    "foxes and dogs running together",
    "",
    "a violin concerto",
]
# The expected tokens: lower case, stems, stop words marked.
STEMS = [[" a", "fast", "fox", " and", "anoth", "fox"], [" the", "dog", "slept"],
         ["fox", " and", "dog", "run", "togeth"], [], [" a", "violin", "concerto"]]  # fmt: skip


SET = 3


def stored_words(*sources: dict[int, list[str]]) -> tuple[sqlite3.Connection, WordScorer]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(WORD_TABLES)
    writer = WordWriter(connection)
    ids = (TEXT, SET)[: len(sources)]
    for source, texts in zip(ids, sources, strict=True):
        for number, terms in texts.items():
            writer.put(source, number, terms)
    writer.flush()
    return connection, WordScorer({source: load_source(connection, source) for source in ids})


def reference(texts: dict[int, list[str]], query: list[str]) -> dict[int, float]:
    """Return the score of each document: BM25 over the length of the query's weight vector."""
    mean = sum(map(len, texts.values())) / max(len(texts), 1)
    weights = {}
    for term in query:
        frequency = sum(term in terms for terms in texts.values())
        weights[term] = math.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
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


def top_places(scores: Floats, k: int) -> list[int]:
    places: list[int] = largest_scores(scores, k).tolist()
    return places


def bm25(query: list[str]) -> list[float]:
    return [*reference(dict(enumerate(STEMS)), query).values()]


def test_rank_equals_bm25() -> None:
    scores, places = count_words(TEXTS).rank(["the FOX", "running dogs?", "the"], 10)
    for row, query in enumerate((["fox"], ["run", "dog"], [" the"])):
        expected = bm25(query)
        order = sorted(range(len(TEXTS)), key=lambda place: (-expected[place], place))
        assert places[row].tolist() == order
        np.testing.assert_allclose(scores[row], [expected[place] for place in order], rtol=1e-5)


@pytest.mark.parametrize("texts", [[], [""], ["the", "of"]])
def test_a_corpus_without_words(texts: list[str]) -> None:
    scores, places = count_words(texts).rank(["fox", ""], 2)
    assert scores.shape == places.shape == (2, min(2, len(texts)))
    assert not scores.any()


def test_unknown_words_score_0() -> None:
    scores, places = count_words(TEXTS).rank(["zebra", "of", ""], 2)
    assert not scores.any()
    assert places.tolist() == [[0, 1]] * 3


def test_fusion_adds_reciprocal_ranks() -> None:
    first = np.array([[0.9, 0.8, 0.7]], np.float32), np.array([[3, 1, 0]])
    second = np.array([[5.0, 0.0, 0.0]], np.float32), np.array([[1, 3, 2]])
    scores, places = fuse(first, second, 5, 4)
    assert places.tolist() == [[1, 3, 0, 2]]
    # Documents with score 0 are not in the second ranking.
    expected = [1 / 62 + 1 / 61, 1 / 61, 1 / 63, 0]
    np.testing.assert_allclose(scores, [expected], rtol=1e-5)


def test_a_word_score_is_bm25_over_the_length_of_the_query() -> None:
    words = count_words(TEXTS)
    for query, stems in (("the FOX", ["fox"]), ("running fox zebra", ["run", "fox", "zebra"])):
        expected = bm25(stems)  # the zebra is an unknown word
        np.testing.assert_allclose(words.scores(query), expected, rtol=1e-5)
    for unknown_query in ("", "of", "zebra"):
        assert not words.scores(unknown_query).any()
    assert count_words([]).scores("fox").shape == (0,)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("weighting", ["none", "softmax"])
def test_dense_and_word_scores_are_combined_exactly(
    weighting: Any, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the sum of all scores; both rankings disagree and stop early."""
    monkeypatch.setattr("strop.search.folder.FIRST_DEPTH", 1)
    if not small:
        monkeypatch.setattr("strop.search.layout.NUMPY_UP_TO", 0)
    rng = np.random.default_rng(3)
    size, dim, k = 300, 8, 1
    names = np.array([f"word{letter}" for letter in "abcdefghijkl"])
    words = count_words(" ".join(rng.choice(names, 5)) for _ in range(size))
    queries = [" ".join(rng.choice(names, 3)) for _ in range(20)]
    query_vectors = unit_rows(rng.normal(size=(20, dim)))
    own = Spans(unit_rows(rng.normal(size=(size, dim))), np.arange(size), np.ones(size, int))
    counts = rng.integers(0, 4, size)
    rows = unit_rows(rng.normal(size=(int(counts.sum()), dim)))
    layout = Layout(own, [Spans(rows, np.cumsum(counts) - counts, counts)], None)
    method = Method("tried", weighting=weighting, temperature=0.1, words=0.5)
    scores, places = rank(FolderStore(layout, method, words), query_vectors, queries, k)
    dense = layout.scan(query_vectors, method, size)
    for at, query in enumerate(queries):
        total = 0.5 * words.scores(query)
        total[dense[1][at]] += dense[0][at]
        np.testing.assert_allclose(scores[at], np.sort(total)[::-1][:k], atol=1e-6)
        np.testing.assert_allclose(total[places[at]], scores[at], atol=1e-6)


def test_best_word_scores_are_limited_to_the_view() -> None:
    word_scores = np.array([0, 0.5, 0.9, 0, 0.7, 0.6], np.float32)  # by document number
    partial = QueryWordScores(word_scores, np.array([1, 3, 5]), complete=False)
    assert partial.best(2).tolist() == [2, 0]
    assert partial.best(5, 0.55).tolist() == [2]
    complete = QueryWordScores(word_scores, np.array([1, 2, 4, 5]), complete=True)
    assert complete.best(3).tolist() == [1, 2, 3]
    assert complete.at(np.array([3, 0])).tolist() == word_scores[[5, 1]].tolist()


words = st.lists(st.sampled_from("abcdefgh"), max_size=8)
numbers = st.sampled_from([*range(6), 1024, BLOCK - 1, BLOCK, 2 * BLOCK + 5])


@given(st.dictionaries(numbers, words), st.dictionaries(numbers, words), words)
def test_stored_words_score_as_bm25_is_defined(
    texts: dict[int, list[str]], queries: dict[int, list[str]], query: list[str]
) -> None:
    queries = {number: terms for number, terms in queries.items() if number in texts}
    connection, scorer = stored_words(texts, queries)
    joined = {number: terms + queries.get(number, []) for number, terms in texts.items()}
    expected = reference(joined, query)
    scores = scorer.all(connection, query)
    found = {number: scores[number] for number in sorted(texts)}
    np.testing.assert_allclose(
        [*found.values()], [expected[n] for n in found], rtol=1e-5, atol=1e-7
    )
    assert not np.delete(scores, sorted(texts)).any()
    top = sorted((score for score in expected.values() if score), reverse=True)[:4]
    np.testing.assert_allclose(scores[top_places(scores, 4)], top, rtol=1e-5)
    connection.close()


def test_words_of_a_set_count_only_if_it_is_named() -> None:
    connection, with_set = stored_words({1: ["a"], 2: ["b"]}, {2: ["c"]})
    alone = WordScorer({TEXT: load_source(connection, TEXT)})
    assert top_places(with_set.all(connection, ["c"]), 5) == [2]
    assert top_places(alone.all(connection, ["c"]), 5) == []


def test_an_unknown_word_lowers_the_score() -> None:
    connection, scorer = stored_words({1: ["a"], 2: ["b"]})
    full, partial = (scorer.all(connection, query)[1] for query in (["a"], ["a", "missing"]))
    assert 0 < partial < full / 2


def test_an_empty_index_and_an_empty_query() -> None:
    connection, scorer = stored_words({})
    assert top_places(scorer.all(connection, ["a"]), 5) == []
    connection, scorer = stored_words({1: ["a"], 2: []})
    assert top_places(scorer.all(connection, []), 5) == []
    assert not scorer.all(connection, []).any()


def test_best_scores_across_many_blocks() -> None:
    texts = {at * 97: ["a"] * (1 + at % 7) + ["b"] * (at % 5) for at in range(3000)}
    connection, scorer = stored_words(texts)
    scores = scorer.all(connection, ["a", "b"])
    found = top_places(scores, 50)
    assert scores[found].tolist() == np.sort(scores)[::-1][:50].tolist()
    assert len(set(found)) == 50


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with fakes.create(tmp_path / "index") as index:
        index.add({"id": f"d{i}", "text": text} for i, text in enumerate(TEXTS))
        index.sharpen("sentences")
        yield index


def test_search_with_bm25(index: Index) -> None:
    assert index.search("fox", 2, "bm25").ids.tolist() == [["d0", "d2"]]
    index.add([{"id": "new", "text": "fox"}])
    index.remove(["d2"])
    assert index.search("fox", 2, "bm25").ids.tolist() == [["new", "d0"]]


def test_hybrid_fuses_both_rankings(index: Index) -> None:
    query = "dogs running"
    for spec in ("trad", "sharp:alpha=2"):
        fused = index.search(query, 3, "hybrid" if spec == "trad" else f"hybrid:of={spec}")
        total: Counter[str] = Counter()
        for method in (spec, "bm25"):
            hits = index.search(query, 10, method)
            for place, (id_, score) in enumerate(zip(hits.ids[0], hits.scores[0], strict=True), 1):
                total[id_] += (1 / (60 + place)) * (score != 0)
        expected = total.most_common(3)
        assert fused.ids[0].tolist() == [id_ for id_, _ in expected]
        np.testing.assert_allclose(fused.scores[0], [score for _, score in expected], rtol=1e-5)


def test_words_are_added_to_the_score(index: Index) -> None:
    query = "dogs running"
    for spec in ("trad", "sharp:alpha=2", "sharp:feedback=0.2"):
        plain = index.search(query, 10, f"{spec}:words=0")
        hits = index.search(query, 3, f"{spec}:words=0.7")
        words = dict(zip(index.ids(), count_words(TEXTS).scores(query), strict=True))
        pairs = zip(plain.ids[0], plain.scores[0], strict=True)
        total = Counter({id_: score + 0.7 * words[id_] for id_, score in pairs})
        expected = total.most_common(3)
        assert hits.ids[0].tolist() == [id_ for id_, _ in expected]
        np.testing.assert_allclose(hits.scores[0], [score for _, score in expected], atol=1e-6)
        assert hits.ids[0, 0] == "d2"
    vectors = index.embed_queries([query])
    with_words, without = (index.search([query], 3, f"sharp:words={w}", vectors=vectors)
                           for w in (1, 0))  # fmt: skip
    assert not np.array_equal(with_words.scores, without.scores)
    from_vectors = index.search(vectors, 3, "sharp:words=1")  # vectors have no words
    np.testing.assert_array_equal(from_vectors.scores, without.scores)


def test_words_of_generated_queries_count(index: Index) -> None:
    index.import_queries({"d3": ["a zebra", "stripes of the savanna"]}, "simple")
    index.import_queries({"d4": ["zebra zebra"]}, "contrastive")

    def word_score(id_: str, method: str) -> float:
        return index.explain("zebra", id_, f"{method}:words=1").words

    assert word_score("d3", "sharp:sets=sentences+simple") > 0
    assert word_score("d4", "sharp:sets=sentences+simple") == 0
    assert word_score("d3", "sharp:sets=sentences") == 0
    assert word_score("d4", "sharp") > 0
    assert index.explain("stripes", "d3", "sharp:words=1").words > 0
    all_queries = index.explain("stripes", "d3", "sharp:words=1").words
    # n limits vectors, not words.
    assert index.explain("stripes", "d3", "sharp:words=1:n=1").words == all_queries
    assert not index.search("zebra", 1, "bm25").scores.any()


def test_hybrid_uses_the_words_of_the_sets_of_its_dense_part(index: Index) -> None:
    index.import_queries({"d3": ["a zebra"]}, "simple")
    named = index.search("zebra", 5, "hybrid:of=sharp:sets=sentences+simple")
    fused = index.search("zebra", 5, "hybrid:of=sharp")
    assert fused.ids.tolist() == named.ids.tolist()
    np.testing.assert_array_equal(fused.scores, named.scores)
    without = index.search("zebra", 5, "hybrid:of=sharp:sets=sentences")
    assert fused.scores[0, 0] > without.scores[0, 0]


def test_words_of_leaks_do_not_count(index: Index) -> None:
    index.import_queries({"d3": ["a zebra", "stripes"], "d4": ["stripes"]}, "simple")
    view, left_out = index.without_leaks(index.embed_queries(["a zebra"]), 0.99)
    assert left_out == {"simple": 1}
    assert index.explain("zebra", "d3", "sharp:words=1").words > 0
    assert view.explain("zebra", "d3", "sharp:words=1").words == 0
    assert view.explain("stripes", "d3", "sharp:words=1").words > 0
    hits = view.search("zebra stripes", 3, "sharp:words=1")
    for id_, score in zip(hits.ids[0], hits.scores[0], strict=True):
        assert view.explain("zebra stripes", id_, "sharp:words=1").score == pytest.approx(
            score, abs=1e-5
        )


def test_words_are_explained(index: Index) -> None:
    query = "dogs running"
    hits = index.search(query, 3, "sharp:words=0.7")
    for id_, score in zip(hits.ids[0], hits.scores[0], strict=True):
        explanation = index.explain(query, id_, "sharp:words=0.7")
        assert explanation.score == pytest.approx(float(score), abs=1e-5)
        parts = (
            explanation.plain + sum(part.moved for part in explanation.queries) + explanation.words
        )
        assert parts == pytest.approx(explanation.score)
    query_vectors = index.embed_queries(["violin"])
    moved = index.explain(query, "d2", "sharp:words=0.7", vectors=query_vectors)
    assert moved.words == pytest.approx(index.explain(query, "d2", "sharp:words=0.7").words)
    assert moved.plain == pytest.approx(index.explain(query_vectors, "d2", "sharp").plain)


def test_methods_with_words_need_query_texts(index: Index) -> None:
    vectors = index.embed_queries(["fox"])
    for method in ("bm25", "hybrid"):
        with pytest.raises(BadInput, match=f"{method} compares words"):
            index.search(vectors, 2, method)
    with_vectors = index.search(["fox"], 2, "hybrid", vectors=vectors)
    assert with_vectors.ids.tolist() == index.search("fox", 2, "hybrid").ids.tolist()
    with pytest.raises(BadInput, match="1 vectors cannot stand for 2 queries"):
        index.search(["fox", "dog"], 2, vectors=vectors)
    with pytest.raises(BadInput, match="give vectors once"):
        index.search(vectors, 2, vectors=vectors)


def test_given_vectors_replace_the_embedding_of_the_texts(index: Index) -> None:
    other = index.embed_queries(["violin"])
    assert index.search(["fox"], 1, "trad", vectors=other).ids[0, 0] == "d4"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sharp:of=trad", "sharp takes no of=; only hybrid does"),
        ("hybrid:of=bm25", "cannot fuse 'bm25': choose from trad, sharp"),
        ("hybrid:of=best", "cannot fuse 'best'"),
        ("hybrid:alpha=2", "hybrid has no alpha"),
        ("bm25:n=2", "bm25 has no n"),
        ("hybrid:of=sharp:words=1", "hybrid has no words"),
        ("maxsim:words=1", "maxsim has no words"),
        ("sharp:words=-1", "words must be 0 or more and at most 1,000,000, not -1"),
        ("sharp:words=nan", "words must be 0 or more and at most 1,000,000, not nan"),
        ("sharp:words=1e39", r"words must be 0 or more and at most 1,000,000, not 1e\+39"),
        ("sharp:feedback=1e39", r"feedback must be 0 or more and at most 1,000,000, not 1e\+39"),
        ("sharp:feedback=inf", "feedback must be 0 or more and at most 1,000,000, not inf"),
        ("sharp:words=many", "'many' is no value for words"),
    ],
)
def test_invalid_specs_are_refused(index: Index, spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        index.search("fox", 2, spec)


@pytest.mark.parametrize("spec", ["sharp:words=1e6", "sharp:feedback=1e6"])
def test_the_largest_weights_still_rank(index: Index, spec: str) -> None:
    hits = index.search("dogs running together", 3, spec)
    assert np.isfinite(hits.scores).all()
    assert hits.scores[0].any()
    assert hits.ids[0, 0] == "d2"


def test_explaining_a_hybrid_is_refused(index: Index) -> None:
    with pytest.raises(BadInput, match="fuses ranks"):
        index.explain("fox", "d0", "hybrid:of=sharp")


def test_evaluation_compares_dense_bm25_and_hybrid(index: Index) -> None:
    dataset = Dataset("foxes", {"q": "fox"}, {"q": {"d0": 1}})
    report = evaluate(index, dataset, ["trad", "bm25", "hybrid", "hybrid:of=sharp:alpha=2"])
    assert report.results["bm25"]["nDCG@10"] == 1
    assert report.settings["hybrid:of=sharp:alpha=2"].alpha == 2
    output_settings = report.to_json()["settings"]
    assert output_settings["bm25"] == {"bm25": "only"}
    assert output_settings["hybrid:of=sharp:alpha=2"]["bm25"] == "fused"
