"""Searches with a filter, against a literal filter over the ranking of all documents."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fakes import Bag, create, reopen, vectors_of
from helpers.filters import FILTERS, METADATA
from hypothesis import given, settings
from hypothesis import strategies as st

from strop import Document, Hits, Index
from strop.errors import BadInput
from strop.expand.methods import LameR
from strop.filters import matches, read_filter
from strop.search import filtered, searcher
from strop.search import layout as layouts
from strop.search.prefilter import prefilter

WORDS = "red green blue cat dog fish house tree river stone".split()
QUERIES = ["red cat by the river", "house", "dog fish stone unknown"]
METHODS = [
    "trad", "sharp", "sharp:words=1", "trad:words=0.5", "sharp:n=1", "maxsim",
    "simsharp:alpha=-1", "indexsharp", "doc2query", "docexp", "bm25", "bm25:sets=simple",
    "sharp:n=2:words=2",
]  # fmt: skip
pytestmark = [
    pytest.mark.filterwarnings("ignore:filter. "),
    pytest.mark.usefixtures("without_words"),
]


def document(at: int, metadata: dict[str, Any]) -> Document:
    """Return a document with a unique text."""
    rng = np.random.default_rng(at)
    text = ". ".join(" ".join(rng.choice(WORDS, 4)) for _ in range(3))
    return Document(f"d{at}", f"{text}. number{at}.", f"title{at}", metadata)


def fill(index: Index, metadata: dict[int, dict[str, Any]]) -> None:
    """Add documents with two generated sets beside their sentences."""
    index.sharpen(n=3)
    index.add([document(at, fields) for at, fields in metadata.items()])
    for style in ("simple", "contrastive"):
        index.import_queries(
            {f"d{at}": [f"{WORDS[at % 10]} {style}{at}", f"what is {at}"] for at in metadata}, style
        )
        index.augment(style)


def check(index: Index, wheres: Sequence[Any], method: str, *ks: int, exact: bool = False) -> None:
    """Compare filtered searches with the ranking of all documents, filtered afterwards."""
    metadata = {id_: index.get(id_).metadata for id_ in index.ids()}
    all_hits = index.search(QUERIES, len(index), method, exact=True, fields=())
    rankings = [
        dict(zip(ids, scores, strict=True))
        for ids, scores in zip(all_hits.ids.tolist(), all_hits.scores.tolist(), strict=True)
    ]
    for where in wheres:
        filter_ = read_filter(where)
        allowed = {id_ for id_, fields in metadata.items() if matches(filter_, id_, fields)}
        for k in ks:
            hits = index.search(QUERIES, k, method, where=where, exact=exact, fields=())
            assert hits.ids.shape == hits.scores.shape == (len(QUERIES), min(k, len(allowed)))
            for all_scores, found, scores in zip(
                rankings, hits.ids.tolist(), hits.scores, strict=True
            ):
                expected = [score for id_, score in all_scores.items() if id_ in allowed]
                assert len({*found} & allowed) == len(found), (where, method)
                np.testing.assert_allclose(scores, expected[:k], atol=2e-6)
                np.testing.assert_allclose(scores, [all_scores[id_] for id_ in found], atol=2e-6)


@settings(max_examples=25)
@given(
    first=st.lists(METADATA, min_size=1, max_size=8),
    second=st.dictionaries(st.integers(0, 8), METADATA, max_size=3),
    removed=st.sets(st.integers(0, 8), max_size=3),
    wheres=st.lists(FILTERS, min_size=1, max_size=3),
    k=st.integers(1, 9),
    method=st.sampled_from(METHODS),
)
def test_a_filtered_search_ranks_only_matching_documents(
    tmp_path_factory: Any,
    first: list[dict[str, Any]],
    second: dict[int, dict[str, Any]],
    removed: set[int],
    wheres: list[Any],
    k: int,
    method: str,
) -> None:
    known = dict(enumerate(first))
    with create(tmp_path_factory.mktemp("filtered") / "index") as index:
        fill(index, known)
        check(index, wheres, method, k)
        index.add([document(at, metadata) for at, metadata in second.items()])
        removed_ids = [f"d{at}" for at in removed if at in known or at in second]
        index.remove(removed_ids)
        for style in ("simple", "contrastive"):
            index.augment(style)
        if len(index):
            check(index, wheres, method, k)


def metadata_of(at: int) -> dict[str, Any]:
    return {"at": at, "half": at % 2, "tag": [f"t{at % 7}", "all"], "rare": at == 77}


WHERES: list[Any] = [
    {"half": 1}, {"at": {"$lt": 3}}, {"rare": True}, {"at": {"$gte": 40}, "tag": "t3"},
    {"$or": [{"at": 5}, {"$id": {"$in": ["d9", "d12", "nobody"]}}]}, {"at": {"$ne": 0}},
    {"at": -1}, {"tag": "all"}, {},
]  # fmt: skip


@pytest.fixture(scope="module")
def filled_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index to copy."""
    path = tmp_path_factory.mktemp("filled") / "index"
    with pytest.MonkeyPatch.context() as patch, create(path) as index:
        patch.setattr(searcher, "PREFILTER_FROM", 50)
        fill(index, {at: metadata_of(at) for at in range(120)})
    return path


@pytest.fixture
def large(filled_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index searched with the prefilter, every document being a candidate."""
    monkeypatch.setattr(searcher, "PREFILTER_FROM", 50)
    monkeypatch.setattr(searcher, "SCANNED_SHARE", 0.1)
    monkeypatch.setattr("strop.search.folder.FIRST_DEPTH", 1)
    monkeypatch.setattr(prefilter, "FEWEST", 1000)
    monkeypatch.setattr(layouts, "NUMPY_UP_TO", 0)
    with reopen(shutil.copytree(filled_index, tmp_path / "index")) as index:
        yield index


@pytest.mark.parametrize("method", METHODS)
def test_filtered_search_of_a_large_index(
    large: Index, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []  # usable rows of each prefilter that searched
    search = prefilter.Prefilter.search

    def recording(self: Any, *arguments: Any) -> Any:
        used.append(self.usable)
        return search(self, *arguments)

    monkeypatch.setattr(prefilter.Prefilter, "search", recording)
    check(large, WHERES, method, 1, 4, 200)
    assert {"sharp": 60, "sharp:words=1": 119}.get(method, 0) in (*used, 0)
    check(large, WHERES[:1], method, 5, exact=True)
    large.add([document(at, metadata_of(at + 1)) for at in range(100, 125)])
    large.remove([f"d{at}" for at in range(0, 60, 3)])
    for style in ("simple", "contrastive"):
        large.augment(style)
    check(large, WHERES, method, 1)


def subset_index(index: Index, where: Any, path: Path) -> Index:
    """Return an index that has only the matching documents."""
    filter_, part = read_filter(where), create(path)
    documents = [index.get(id_) for id_ in index.ids()]
    matching = [doc for doc in documents if matches(filter_, doc.id, doc.metadata)]
    fill(part, {doc.metadata["at"]: dict(doc.metadata) for doc in matching})
    return part


def test_feedback_uses_only_matching_documents(large: Index, tmp_path: Path) -> None:
    where = WHERES[3]
    with subset_index(large, where, tmp_path / "part") as part:
        for method in ("sharp:feedback=0.8", "maxsim:feedback=2"):
            expected = part.search(QUERIES, 5, method)
            hits = large.search(QUERIES, 5, method, where=where)
            assert hits.ids.tolist() == expected.ids.tolist()
            np.testing.assert_allclose(hits.scores, expected.scores, atol=1e-6)
            passages = [[hit.passage for hit in row] for row in hits]
            assert passages == [[hit.passage for hit in row] for row in expected]


@pytest.mark.parametrize(("of", "sets"), [("trad", ""), ("sharp", ":sets=simple+contrastive")])
def test_hybrid_fuses_the_ranks_of_matching_documents(large: Index, of: str, sets: str) -> None:
    for where in WHERES:
        dense = large.search(QUERIES, 200, of, where=where, fields=())
        words = large.search(QUERIES, 200, f"bm25{sets}", where=where, fields=())
        hits = large.search(QUERIES, 7, f"hybrid:of={of}", where=where, fields=())
        assert hits.ids.shape == (3, min(7, dense.ids.shape[1]))
        for q in range(3):
            expected = dict.fromkeys(dense.ids[q], 0.0)
            for ranking, threshold in ((dense, -1), (words, 0)):
                for rank, id_ in enumerate(ranking.ids[q], 1):
                    if ranking.scores[q, rank - 1] > threshold:
                        expected[id_] += 1 / (60 + rank)
            np.testing.assert_allclose(
                hits.scores[q], sorted(expected.values(), reverse=True)[:7], atol=1e-6
            )
            assert [expected[id_] for id_ in hits.ids[q]] == pytest.approx(hits.scores[q].tolist())


def test_filtered_search_of_a_view_without_leaks(large: Index) -> None:
    leaks = vectors_of(["what is 5", "what is 77"], "query").astype(np.float32)
    view, left_out = large.without_leaks(leaks, 0.999)
    assert left_out["simple"] == 2
    for method in ("sharp", "sharp:words=1", "doc2query", "bm25:sets=simple"):
        check(view, WHERES, method, 4)


def test_no_match_gives_rows_of_length_0(large: Index) -> None:
    for method in (*METHODS, "hybrid", "sharp:feedback=1"):
        hits = large.search(QUERIES, where={"at": -1}, method=method)
        assert hits.ids.shape == hits.scores.shape == (3, 0)
        assert [*hits] == [[], [], []]


def search_with_warnings(search: Any) -> tuple[Hits, Sequence[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        return search(), caught_warnings


def test_an_unknown_field_gives_a_warning(large: Index) -> None:
    where = {"att": 3, "$not": {"lang": "en"}}
    hits, (warning,) = search_with_warnings(lambda: large.search("cat", where=where))
    assert hits.ids.shape == (1, 0)
    assert warning.category is UserWarning
    assert warning.filename == __file__
    assert str(warning.message) == (
        "filter: no document has the field 'att', 'lang' (fields there are: at, half, rare, tag)"
    )
    assert not search_with_warnings(lambda: large.search("cat", where={"at": 3}))[1]


def test_a_bad_filter_is_refused(large: Index) -> None:
    with pytest.raises(BadInput, match=r"'at': '\$near' is not one of"):
        large.search("cat", where={"at": {"$near": 3}})
    with pytest.raises(BadInput, match="a filter is a mapping"):
        large.search("cat", where="at=3")  # type: ignore[arg-type]


def test_many_filters_in_many_threads(large: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """More filters than the cache holds: each thread gets the documents of its own filter."""
    monkeypatch.setattr(filtered, "FILTERS", 3)
    monkeypatch.setattr(filtered, "DOCUMENTS", 100)

    def search(at: int) -> set[str]:
        return {*large.search("cat", 120, where={"at": {"$lt": at % 40}}, fields=()).ids[0]}

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(search, range(200)))
    assert found == [{f"d{i}" for i in range(at % 40)} for at in range(200)]


def test_a_cached_filter_follows_changes_of_metadata(large: Index) -> None:
    """Also in another reader of the index."""
    with reopen(large.path) as reader:
        for _ in range(2):
            assert reader.search("cat", where={"at": 3}).ids.tolist() == [["d3"]]
        large.add([document(3, {"at": 4})])
        assert reader.search("cat", where={"at": 3}).ids.shape == (1, 0)
        assert {*reader.search("cat", where={"at": 4}).ids[0]} == {"d3", "d4"}


def test_the_language_model_sees_only_matching_documents(large: Index) -> None:
    prompts: list[str] = []

    def model(prompt: str) -> str:
        prompts.append(prompt)
        return "a red cat"

    hits = large.search("red cat", 2, expand=LameR(model, samples=1), where={"at": {"$lt": 3}})
    assert {*hits.ids[0]} <= {"d0", "d1", "d2"}
    (prompt,) = prompts
    assert {*re.findall(r"number\d+", prompt)} == {"number0", "number1", "number2"}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"n": {"$gte": "15"}}, "'n' is compared with text, and documents have numbers there"),
        ({"n": True}, "'n' is compared with true or false, and documents have numbers"),
        ({"day": {"$gte": 2020}}, "'day' is compared with numbers, and .* text and dates there"),
        ({"name": {"$lt": "2020-01-01"}}, "'name' is compared with dates, and documents have text"),
    ],
)
def test_a_value_of_another_type_gives_a_warning(
    tmp_path: Path, where: dict[str, object], message: str
) -> None:
    with Index.create(tmp_path / "index", Bag()) as index:
        index.add([{"id": "a", "text": "a", "n": 20, "day": "2024-05-01", "name": "Ada"}])
        with pytest.warns(UserWarning, match=message):
            assert index.search("a", where=where).ids.shape == (1, 0)


def test_a_filter_with_several_types_gives_no_warning(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", Bag()) as index:
        index.add([{"id": "a", "text": "a", "n": 20, "none": None}])
        for where in ({"n": {"$in": [20, "20"]}}, {"n": {"$ne": None}}, {"none": None}):
            assert len(index.search("a", where=where)[0]) == 1
