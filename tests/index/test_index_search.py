"""Searching and explaining."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.animals import ANIMALS, OWL, OWL_SENTENCES, PIG
from helpers.fakes import (
    Bag,
    Failure,
    all_scores,
    assert_close,
    create,
    max_score,
    sharpened_score,
    vector_of,
    vectors_of,
)

from strop import METHODS, Document, Index, Method
from strop.errors import BadInput

pytestmark = pytest.mark.usefixtures("without_words")

# -- searching -------------------------------------------------------------------------------


def test_an_empty_index_finds_nothing(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index:
        assert index.search(["a", "b"]).ids.shape == (2, 0)
        index.sharpen()
        hits = index.search("a", k=3)
        assert hits.ids.shape == hits.scores.shape == (1, 0)
        assert hits.ids.dtype == object
        assert hits.scores.dtype == np.float32
        index.add([PIG])
        index.remove(["pig"])
        assert index.search("a").ids.shape == (1, 0)


def test_k_is_at_most_the_number_of_documents(index: Index) -> None:
    everything = index.search("an old owl", k=50)
    assert everything.ids.shape == everything.scores.shape == (1, 3)
    assert sorted(everything.ids[0]) == ["fox", "owl", "pig"]
    assert everything.ids[0][0] == "owl"
    best = index.search("an old owl", k=2)
    assert best.ids.tolist() == everything.ids[:, :2].tolist()
    assert best.scores.tolist() == everything.scores[:, :2].tolist()
    with pytest.raises(BadInput, match="k must be 1 or more"):
        index.search("an old owl", k=0)


def test_batches_and_vectors_give_the_hits_of_single_texts(index: Index) -> None:
    index.sharpen()
    queries = ["an old owl", "jumps", "zzz", "roots and mud"]
    hits = index.search(queries, k=3)
    assert hits.ids.shape == (4, 3)
    for at, query in enumerate(queries):
        single = index.search(query, k=3)
        assert single.ids[0].tolist() == hits.ids[at].tolist()
        np.testing.assert_allclose(single.scores[0], hits.scores[at], atol=1e-6)
    vectors = vectors_of(queries, "query").astype(np.float32)
    for scale in (1, 1e-3, 1e6):  # a vector's length does not matter
        scaled = index.search(vectors * np.float32(scale), k=3)
        assert scaled.ids.tolist() == hits.ids.tolist()
        np.testing.assert_allclose(scaled.scores, hits.scores, atol=1e-6)
    zero = index.search(np.zeros((1, 32), np.float32), k=3)  # like an empty query
    assert zero.scores[0].tolist() == [0, 0, 0]
    assert index.search([], k=3).ids.shape == (0, 3)
    for wrong in (vectors[0], vectors[:, 1:], vectors[None]):
        with pytest.raises(BadInput, match=r"must be \(n, 32\)"):
            index.search(wrong)


def test_without_query_sets_search_is_plain(index: Index) -> None:
    q = vector_of("an old owl", "query")
    expected = {doc.id: float(q @ vector_of(doc.content, "document")) for doc in ANIMALS}
    assert_close(all_scores(index, "an old owl"), expected, 1e-5)
    with pytest.raises(BadInput, match="needs a query set"):
        index.search("an old owl", method="sharp")
    with pytest.raises(BadInput, match="no query set 'contrastive'"):
        index.search("an old owl", method="consharp")


def test_sentences_are_embedded_as_documents_and_imported_queries_as_queries(
    index: Index,
) -> None:
    q = vector_of("an old owl", "query")
    d = vector_of(OWL.content, "document")
    index.import_queries({"owl": ["who sees", "who hunts"]}, "simple")
    imported = vectors_of(["who sees", "who hunts"], "query")
    scores = all_scores(index, "an old owl", alpha=0.7, temperature=0.3)
    assert abs(scores["owl"] - sharpened_score(q, d, imported, 0.7, 0.3)) < 1e-5
    index.sharpen()
    all_queries = np.concatenate([imported, vectors_of(OWL_SENTENCES, "document")])
    scores = all_scores(index, "an old owl")
    assert abs(scores["owl"] - sharpened_score(q, d, all_queries, 1.0, 0.1)) < 1e-5
    scores = all_scores(index, "an old owl", sets=["simple"])
    assert abs(scores["owl"] - sharpened_score(q, d, imported, 1.0, 0.1)) < 1e-5
    scores = all_scores(index, "an old owl", n=1)
    all_queries = np.concatenate([imported[:1], vectors_of(OWL_SENTENCES[:1], "document")])
    assert abs(scores["owl"] - sharpened_score(q, d, all_queries, 1.0, 0.1)) < 1e-5


def test_ragged_lists_over_many_blocks(tmp_path: Path) -> None:
    """Lists have 0 to 40 queries; the scan needs several blocks."""
    rng = np.random.default_rng(5)
    lists = {
        f"d{i}": [f"w{rng.integers(50)} w{rng.integers(50)}" for _ in range(rng.integers(41))]
        for i in range(0, 900, 2)
    }
    with create(tmp_path / "index") as index:
        index.add([Document(f"d{i}", f"w{i % 50} w{i % 37} w{i % 7}") for i in range(900)])
        index.import_queries(lists, "simple")
        assert sum(map(len, lists.values())) > 8192
        q = vector_of("w3 w5", "query")
        expected = {
            f"d{i}": sharpened_score(
                q,
                vector_of(f"w{i % 50} w{i % 37} w{i % 7}", "document"),
                vectors_of(lists.get(f"d{i}", []), "query"),
                1.0,
                0.1,
            )
            for i in range(900)
        }
        assert_close(all_scores(index, "w3 w5"), expected, 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.0},
        {"alpha": 2.5, "temperature": 1.0},
        {"temperature": float("inf")},
        {"method": "simsharp"},
        {"method": "maxsim"},
        {"n": 1},
        {"sets": ["sentences"]},
    ],
)
def test_an_explanation_adds_up_to_the_score(index: Index, options: dict[str, Any]) -> None:
    index.sharpen()
    index.import_queries({"owl": ["who sees", "who hunts mice"], "pig": []}, "simple")
    index.add([Document("empty", ""), Document("word", "Word")])
    for query in ("an old owl", "who hunts mice"):
        plain, scores = all_scores(index, query, method="trad"), all_scores(index, query, **options)
        for id_, score in scores.items():
            explanation = index.explain(query, id_, **options)
            assert explanation.id == id_
            assert abs(explanation.plain - plain[id_]) < 1e-5
            assert (
                abs(explanation.plain + sum(part.moved for part in explanation.queries) - score)
                < 1e-5
            )
            assert abs(explanation.score - score) < 1e-5
            if explanation.queries:
                assert abs(sum(part.weight for part in explanation.queries) - 1) < 1e-9
            for part in explanation.queries:
                kind = "document" if part.set == "sentences" else "query"
                cosine = float(vector_of(query, "query") @ vector_of(part.text, kind))
                assert abs(part.similarity - cosine) < 1e-5
                assert part.text in index.queries_of(id_)[part.set]
    vector = vector_of("an old owl", "query").astype(np.float32)
    assert index.explain(vector, "owl", **options) == index.explain("an old owl", "owl", **options)


def test_explain_needs_queries_and_vectors(index: Index, bag: Bag) -> None:
    with pytest.raises(BadInput, match="nothing to explain"):
        index.explain("an owl", "owl")
    index.sharpen()
    with pytest.raises(BadInput, match="nothing to explain"):
        index.explain("an owl", "owl", method="trad")
    bag.fail_after = 0
    with pytest.raises(Failure):
        index.add([Document("cat", "Cats purr.")])
    bag.fail_after = None
    with pytest.raises(BadInput, match="strop finish"):
        index.explain("an owl", "cat")


def test_a_custom_method(index: Index) -> None:
    index.sharpen()
    method = Method("mine", sets=("sentences",), alpha=0.5, temperature=0.2)
    expected = all_scores(index, "an old owl", alpha=0.5, temperature=0.2)
    assert all_scores(index, "an old owl", method=method) == expected
    with pytest.raises(BadInput, match="no query set 'others'"):
        index.search("an old owl", method=Method("mine", sets=("others",)))


def test_alpha_zero_is_plain_search(index: Index) -> None:
    index.sharpen()
    for query in ("an old owl", "jumps"):
        plain = all_scores(index, query, method="trad")
        assert_close(all_scores(index, query, alpha=0.0), plain, 1e-6)


def test_every_method_equals_its_formula(index: Index) -> None:
    simple, contrastive = ["who sees", "who hunts"], ["which bird is old", "which bird is up"]
    for style, queries in (("simple", simple), ("contrastive", contrastive)):
        index.import_queries({"owl": queries}, style)
        index.augment(style)
    q, d = vector_of("who sees at night", "query"), vector_of(OWL.content, "document")
    s, c = vectors_of(simple, "query"), vectors_of(contrastive, "query")
    both = np.concatenate([s, c])
    expected = {
        "trad": float(q @ d),
        "sharp": sharpened_score(q, d, both, 1, 0.1),
        "simsharp": sharpened_score(q, d, s, 1, 1),
        "consharp": sharpened_score(q, d, c, 1, 1),
        "indexsharp": float(q @ (d + c.mean(0)) / np.linalg.norm(d + c.mean(0))),
        "maxsim": max_score(q, d, both),
        "doc2query": float(q @ vector_of(" ".join([OWL.content, *simple]), "document")),
        "docexp": float(q @ vector_of(" ".join([OWL.content, *contrastive]), "document")),
    }
    dense = [name for name, method in METHODS.items() if method.bm25 == "no"]  # test_words.py
    scores = {name: all_scores(index, "who sees at night", method=name)["owl"] for name in dense}
    assert_close(scores, expected, 1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_can_search(tmp_path: Path) -> None:
    import warnings

    with Index.create(tmp_path / "i", lambda texts: np.ones((len(texts), 4))) as index:
        index.add({"id": str(i), "text": "word"} for i in range(50))
        index.sharpen("sentences")
        index.search("word")  # starts the parent's threads
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forking with threads
        child = os.fork()
    if child == 0:
        with Index.open(tmp_path / "i", lambda texts: np.ones((len(texts), 4))) as reopened:
            os._exit(0 if len(reopened.search(["word"] * 9).ids) == 9 else 1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hung")


def _letters(texts: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([[text.count(letter) + 1e-9 for letter in "abcdefgh"] for text in texts])


def test_lists_of_one_document_are_pooled(tmp_path: Path) -> None:
    """A file may have several lines for one document, one for each reference."""
    with Index.create(tmp_path / "i", _letters) as index:
        index.add([{"id": "1", "text": "abc"}, {"id": "2", "text": "def"}])
        lines = [("line 1", "1", ["a", "b"]), ("line 2", "2", ["d"]), ("line 3", "1", ["c", "a"])]
        assert index.import_queries(lines, "contrastive") == (2, 5, [])
        assert index.queries_of("1")["contrastive"] == ["a", "b", "c", "a"]
        assert index.import_queries(lines, "contrastive", n=3)[1] == 4
        assert index.queries_of("1")["contrastive"] == ["a", "b", "c"]


def test_outdated_augmented_text_is_refused(tmp_path: Path) -> None:
    with Index.create(tmp_path / "i", _letters) as index:
        index.add([{"id": "1", "text": "abc"}, {"id": "2", "text": "def"}])
        index.import_queries({"1": ["h"]}, "simple")
        index.augment("simple")
        assert index.search("h", method="doc2query").ids[0, 0] == "1"
        index.import_queries({"2": ["h h h"]}, "simple")
        with pytest.raises(BadInput, match=r"call index\.augment"):
            index.search("h", method="doc2query")
        index.augment("simple")
        assert index.search("h", method="doc2query").ids[0, 0] == "2"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinite_query_vectors_are_refused(tmp_path: Path, bad: float) -> None:
    with Index.create(tmp_path / "i", _letters) as index:
        index.add([{"id": "1", "text": "abc"}])
        with pytest.raises(BadInput, match="NaN or infinity"):
            index.search(np.full((1, 8), bad, np.float32))


def test_one_set_may_be_named_by_a_string(tmp_path: Path) -> None:
    with Index.create(tmp_path / "i", _letters) as index:
        index.add([{"id": "1", "text": "abc. def."}])
        index.sharpen("sentences")
        assert index.method("sharp", sets="sentences").sets == ("sentences",)
        with pytest.raises(BadInput, match=r"dataclasses\.replace"):
            index.search("a", method=METHODS["sharp"], alpha=2)
