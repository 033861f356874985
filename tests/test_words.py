"""BM25 and fused rankings."""

from __future__ import annotations

import builtins
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest

from strop import Index, evaluate
from strop.errors import BadInput, MissingExtra
from strop.types import Dataset
from strop.words import Words, fuse

TEXTS = [
    "a fast fox and another fox",
    "the dogs slept",
    "foxes and dogs running together",
    "",
    "a violin concerto",
]
# What the tokenizer should make of them: lower case, no stop words, stems.
STEMS = [["fast", "fox", "anoth", "fox"], ["dog", "slept"],
         ["fox", "dog", "run", "togeth"], [], ["violin", "concerto"]]  # fmt: skip


def bm25(query: list[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """Lucene's BM25, from its definition."""
    mean = np.mean([len(words) for words in STEMS])
    scores = []
    for words in STEMS:
        total = 0.0
        for word in query:
            holding = sum(word in other for other in STEMS)
            idf = math.log(1 + (len(STEMS) - holding + 0.5) / (holding + 0.5))
            count = Counter(words)[word]
            total += idf * count / (count + k1 * (1 - b + b * len(words) / mean))
        scores.append(total)
    return scores


def test_scores_are_bm25s() -> None:
    scores, places = Words(TEXTS).rank(["the FOX", "running dogs?"], 10)
    for row, query in enumerate((["fox"], ["run", "dog"])):
        want = bm25(query)
        order = sorted(range(len(TEXTS)), key=lambda place: (-want[place], place))
        assert places[row].tolist() == order
        np.testing.assert_allclose(scores[row], [want[place] for place in order], rtol=1e-5)


@pytest.mark.parametrize("texts", [[], [""], ["the", "of"]])
def test_a_corpus_without_words(texts: list[str]) -> None:
    scores, places = Words(texts).rank(["fox", ""], 2)
    assert scores.shape == places.shape == (2, min(2, len(texts)))
    assert not scores.any()


def test_unknown_and_missing_words_score_nothing() -> None:
    scores, places = Words(TEXTS).rank(["zebra", "the of", ""], 2)
    assert not scores.any()
    assert places.tolist() == [[0, 1]] * 3


def test_fusion_adds_reciprocal_ranks() -> None:
    first = np.array([[0.9, 0.8, 0.7]], np.float32), np.array([[3, 1, 0]])
    second = np.array([[5.0, 0.0, 0.0]], np.float32), np.array([[1, 3, 2]])
    scores, places = fuse([first, second], 5, 4)
    assert places.tolist() == [[1, 3, 0, 2]]
    want = [1 / 62 + 1 / 61, 1 / 61, 1 / 63, 0]  # what scored 0 is not in the second ranking
    np.testing.assert_allclose(scores, [want], rtol=1e-5)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with fakes.create(tmp_path / "index") as made:
        made.add({"id": f"d{at}", "text": text} for at, text in enumerate(TEXTS))
        made.sharpen("sentences")
        yield made


def test_search_by_words(index: Index) -> None:
    assert index.search("fox", 2, "bm25").ids.tolist() == [["d0", "d2"]]
    index.add([{"id": "new", "text": "fox"}])
    index.remove(["d2"])
    assert index.search("fox", 2, "bm25").ids.tolist() == [["new", "d0"]]


def test_hybrid_is_the_fusion_of_both(index: Index) -> None:
    query = "dogs running"
    for spec in ("trad", "sharp:alpha=2"):
        fused = index.search(query, 3, "hybrid" if spec == "trad" else f"hybrid:of={spec}")
        total: Counter[str] = Counter()
        for method in (spec, "bm25"):
            hits = index.search(query, 10, method)
            for rank, (id_, score) in enumerate(zip(hits.ids[0], hits.scores[0], strict=True), 1):
                total[id_] += (1 / (60 + rank)) * (score != 0)
        want = total.most_common(3)
        assert fused.ids[0].tolist() == [id_ for id_, _ in want]
        np.testing.assert_allclose(fused.scores[0], [worth for _, worth in want], rtol=1e-5)


def test_words_need_texts(index: Index) -> None:
    vectors = index.embed_queries(["fox"])
    for method in ("bm25", "hybrid"):
        with pytest.raises(BadInput, match=f"{method} compares words"):
            index.search(vectors, 2, method)
    given = index.search(["fox"], 2, "hybrid", vectors=vectors)
    assert given.ids.tolist() == index.search("fox", 2, "hybrid").ids.tolist()
    with pytest.raises(BadInput, match="1 vectors cannot stand for 2 queries"):
        index.search(["fox", "dog"], 2, vectors=vectors)
    with pytest.raises(BadInput, match="give vectors once"):
        index.search(vectors, 2, vectors=vectors)


def test_vectors_stand_for_the_texts(index: Index) -> None:
    other = index.embed_queries(["violin"])
    assert index.search(["fox"], 1, "trad", vectors=other).ids[0, 0] == "d4"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sharp:of=trad", "sharp is of no other; only hybrid is"),
        ("hybrid:of=bm25", "no fusion of 'bm25': choose from trad, sharp"),
        ("hybrid:of=best", "no fusion of 'best'"),
        ("hybrid:alpha=2", "hybrid has no alpha"),
        ("bm25:n=2", "bm25 has no n"),
    ],
)
def test_mistakes_are_named(index: Index, spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        index.search("fox", 2, spec)


def test_ranks_are_not_explained(index: Index) -> None:
    with pytest.raises(BadInput, match="fuses ranks"):
        index.explain("fox", "d0", "hybrid:of=sharp")


def test_evaluation_takes_them_side_by_side(index: Index) -> None:
    dataset = Dataset("foxes", {"q": "fox"}, {"q": {"d0": 1}})
    report = evaluate(index, dataset, ["trad", "bm25", "hybrid", "hybrid:of=sharp:alpha=2"])
    assert report.results["bm25"]["nDCG@10"] == 1
    assert report.settings["hybrid:of=sharp:alpha=2"].alpha == 2
    told = report.to_json()["settings"]
    assert told["bm25"] == {"words": "only"}
    assert told["hybrid:of=sharp:alpha=2"]["words"] == "fused"


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "Stemmer":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match=r"strop\[bm25\]"):
        Words(TEXTS)
