"""Scoring as if no generated query were nearly a test query."""

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
ASKED = Dataset("animals", {"q": "swift animal", "r": "old wood"}, {"q": {"d0": 1}, "r": {"d3": 1}})


def make(path: Path, lists: dict[str, list[str]]) -> Index:
    made = fakes.create(path)
    made.add({"id": f"d{at}", "text": text} for at, text in enumerate(TEXTS))
    made.sharpen("sentences")
    made.import_queries(lists, "simple")
    return made


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with make(tmp_path / "index", QUERIES) as made:
        yield made


METHODS = ["trad", "sharp", "simsharp:n=2", "simsharp:T=inf", "maxsim:sets=simple", "doc2query"]


def test_it_is_as_if_they_had_not_been_written(index: Index, tmp_path: Path) -> None:
    report = evaluate(index, ASKED, METHODS, leak_gate=0.95)
    assert report.left_out == {"simple": 2}
    kept = {id_: [one for one in list_ if one != "swift animal"] for id_, list_ in QUERIES.items()}
    with make(tmp_path / "clean", kept) as clean:
        want = evaluate(clean, ASKED, METHODS)
    assert report.gated is not None
    for name in METHODS:
        for query in ASKED.queries:
            assert dict(report.gated.runs[name][query]) == pytest.approx(
                dict(want.runs[name][query]), abs=1e-6
            )
    assert report.results == evaluate(index, ASKED, METHODS).results  # the first is untouched
    assert report.gated.runs["simsharp:n=2"] != report.runs["simsharp:n=2"]


def test_nothing_is_close_at_a_high_gate_and_everything_at_a_low_one(index: Index) -> None:
    dataset = Dataset("one", {"q": "loud fox"}, {"q": {"d0": 1}})
    high = evaluate(index, dataset, ["sharp"], leak_gate=1)
    assert high.left_out == {"simple": 0}
    assert high.gated is not None
    assert high.gated.runs == high.runs
    asked = index.embed_queries(["fox"])
    view, left_out = index.without_leaks(asked, -1.1)
    assert left_out == {"simple": 8}
    ids = view.search("fox", 5, "simsharp").ids
    assert ids.tolist() == index.search("fox", 5, "trad").ids.tolist()


def test_a_view_does_not_outlive_a_change(index: Index) -> None:
    view, _ = index.without_leaks(index.embed_queries(["fox"]), 0.9)
    view.search("fox", 1)
    index.add([{"id": "new", "text": "fox"}])
    with pytest.raises(BadIndex, match="changed while it was being scored"):
        view.search("fox", 1)
    assert index.search("fox", 1, "trad").ids[0, 0] == "new"


def test_json_tells_both(index: Index) -> None:
    told = evaluate(index, ASKED, ["trad", "sharp"], leak_gate=0.95).to_json()
    assert told["leak_gate"]["cosine"] == 0.95
    assert told["leak_gate"]["left_out"] == {"simple": 2}
    assert told["leak_gate"]["results"].keys() == told["results"].keys()
    assert "leak_gate" not in evaluate(index, ASKED, ["trad"]).to_json()


@pytest.mark.parametrize("gate", [0.0, 1.5, -1.0, np.nan])
def test_a_gate_is_a_cosine(index: Index, gate: float) -> None:
    with pytest.raises(BadInput, match="cosine above 0"):
        evaluate(index, ASKED, ["trad"], leak_gate=gate)
