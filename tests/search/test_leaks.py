"""The leak gate: evaluation without generated queries that nearly equal a test query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import fakes

from strop import Index, evaluate
from strop.errors import BadIndex, BadInput
from strop.types import Dataset

TEXTS = ["red fox runs", "blue dog sleeps", "green bird sings", "old tree falls", "red dog barks"]
QUERIES = {
    "d0": ["who runs", "swift animal", "what does the fox do"],
    "d1": ["sleepy animal", "blue pets"],
    "d2": ["swift animal", "music of birds"],
    "d4": ["loud animal"],
}
DATASET = Dataset(
    "animals", {"q": "swift animal", "r": "old wood"}, {"q": {"d0": 1}, "r": {"d3": 1}}
)


def build(path: Path, lists: dict[str, list[str]]) -> Index:
    index = fakes.create(path)
    index.add({"id": f"d{i}", "text": text} for i, text in enumerate(TEXTS))
    index.sharpen("sentences")
    index.import_queries(lists, "simple")
    return index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with build(tmp_path / "index", QUERIES) as index:
        yield index


METHODS = ["trad", "sharp", "simsharp:n=2", "simsharp:T=inf", "maxsim:sets=simple", "doc2query"]


def test_leaks_score_as_if_never_generated(index: Index, tmp_path: Path) -> None:
    report = evaluate(index, DATASET, METHODS, leak_gate=0.95)
    assert report.left_out == {"simple": 2}
    kept_queries = {
        id_: [text for text in texts if text != "swift animal"] for id_, texts in QUERIES.items()
    }
    with build(tmp_path / "clean", kept_queries) as clean:
        expected = evaluate(clean, DATASET, METHODS)
    assert report.gated is not None
    for name in METHODS:
        for query in DATASET.queries:
            assert dict(report.gated.runs[name][query]) == pytest.approx(
                dict(expected.runs[name][query]), abs=1e-6
            )
    assert (
        report.results == evaluate(index, DATASET, METHODS).results
    )  # the plain results do not change
    assert report.gated.runs["simsharp:n=2"] != report.runs["simsharp:n=2"]


def test_a_high_gate_leaves_out_nothing_and_a_low_one_everything(index: Index) -> None:
    dataset = Dataset("one", {"q": "loud fox"}, {"q": {"d0": 1}})
    high = evaluate(index, dataset, ["sharp"], leak_gate=1)
    assert high.left_out == {"simple": 0}
    assert high.gated is not None
    assert high.gated.runs == high.runs
    query_vectors = index.embed_queries(["fox"])
    view, left_out = index.without_leaks(query_vectors, -1.1)
    assert left_out == {"simple": 8}
    ids = view.search("fox", 5, "simsharp").ids
    assert ids.tolist() == index.search("fox", 5, "trad").ids.tolist()


def test_a_view_is_invalid_after_a_change(index: Index) -> None:
    view, _ = index.without_leaks(index.embed_queries(["fox"]), 0.9)
    view.search("fox", 1)
    index.add([{"id": "new", "text": "fox"}])
    with pytest.raises(BadIndex, match="changed while it was being scored"):
        view.search("fox", 1)
    assert index.search("fox", 1, "trad").ids[0, 0] == "new"


def test_json_has_results_with_and_without_leaks(index: Index) -> None:
    output = evaluate(index, DATASET, ["trad", "sharp"], leak_gate=0.95).to_json()
    assert output["leak_gate"]["cosine"] == 0.95
    assert output["leak_gate"]["left_out"] == {"simple": 2}
    assert output["leak_gate"]["results"].keys() == output["results"].keys()
    assert "leak_gate" not in evaluate(index, DATASET, ["trad"]).to_json()


@pytest.mark.parametrize("gate", [0.0, 1.5, -1.0, np.nan])
def test_an_invalid_gate_is_refused(index: Index, gate: float) -> None:
    with pytest.raises(BadInput, match="cosine above 0"):
        evaluate(index, DATASET, ["trad"], leak_gate=gate)
