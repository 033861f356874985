"""Evaluation without labels: the queries of one set search what the other sets sharpened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.commands import strop

from strop import Index, evaluate
from strop.errors import BadInput
from strop.evaluation.estimate import estimate
from strop.types import Dataset

ANIMALS = ("cat", "dog", "horse", "whale", "owl", "frog", "bee", "wolf")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "animals.index") as made:
        made.add({"id": name, "text": f"All about an animal, number {at}."}
                 for at, name in enumerate(ANIMALS))  # fmt: skip
        made.import_queries({name: [f"what does a {name} eat"] for name in ANIMALS}, "simple")
        made.import_queries({name: [f"food of the {name}"] for name in ANIMALS}, "contrastive")
        yield made


def test_sets_test_each_other_and_never_themselves(index: Index) -> None:
    report = estimate(index, measures=["nDCG@10", "Success@1"])
    assert report.queries == 2 * len(ANIMALS)
    assert report.results["sharp"]["Success@1"] == 1
    assert report.results["trad"]["Success@1"] < 0.5
    # The same by hand: the simple queries search an index sharpened by the contrastive ones.
    data = Dataset("", {name: f"what does a {name} eat" for name in ANIMALS},
                   {name: {name: 1} for name in ANIMALS})  # fmt: skip
    by_hand = evaluate(index, data, ["trad", "sharp:sets=contrastive"], measures=["nDCG@10"])
    for ours, theirs in (("trad", "trad"), ("sharp", "sharp:sets=contrastive")):
        of = report.per_query[ours]["nDCG@10"]
        values = [value for key, value in of.items() if key.startswith("simple")]
        assert values == list(by_hand.per_query[theirs]["nDCG@10"].values())


def test_what_cannot_be_tested_is_refused(index: Index) -> None:
    with pytest.raises(BadInput, match="mixes the set alone that would test it"):
        estimate(index, ["trad", "simsharp"])
    with pytest.raises(BadInput, match="needs labelled queries"):
        estimate(index, ["trad", "doc2query"])
    index.drop_set("contrastive")
    with pytest.raises(BadInput, match="two query sets, at least one of them generated"):
        estimate(index)


def test_one_generated_set_tests_sentences(index: Index) -> None:
    index.drop_set("contrastive")
    index.sharpen("sentences")
    assert estimate(index).queries == len(ANIMALS)


def test_the_conclusion_says_how_sure_it_is(index: Index) -> None:
    report = estimate(index, ["trad", "sharp"])
    mean, low, high = report.gain("sharp")
    assert 0 < low <= mean <= high
    assert report.gain("sharp", report.measures[0]) == (mean, low, high)
    other = report.measures[1]
    difference = report.results["sharp"][other] - report.results["trad"][other]
    assert report.gain("sharp", other)[0] == pytest.approx(100 * difference)
    said = report.conclusion("sharp")
    assert said.startswith("sharp ranks better than trad here: nDCG@10 +")
    assert "16 queries" in said
    same = estimate(index, ["trad", "trad:words=0"])
    assert "do not differ clearly" in same.conclusion("trad:words=0")


def test_the_command_needs_no_dataset(index: Index) -> None:
    value = strop("eval", index.path, "--json").json
    assert value["labels"] is False
    assert value["gains"]["sharp"]["low"] > 0
    shown = strop("eval", index.path).stdout
    assert "By stored queries, without labels: sharp ranks better" in shown
    refused = strop("eval", index.path, "--leak-gate", "0.9")
    assert refused.code == 2
    assert "--leak-gate needs DATASET" in refused.stderr
