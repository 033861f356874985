"""Evaluation without labels: queries of one set search an index sharpened by the other sets."""

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
    with Index.create(tmp_path / "animals.index") as index:
        index.add({"id": name, "text": f"All about an animal, number {i}."}
                  for i, name in enumerate(ANIMALS))  # fmt: skip
        index.import_queries({name: [f"what does a {name} eat"] for name in ANIMALS}, "simple")
        index.import_queries({name: [f"food of the {name}"] for name in ANIMALS}, "contrastive")
        yield index


def test_query_sets_are_cross_validated(index: Index) -> None:
    report = estimate(index, measures=["nDCG@10", "Success@1"])
    assert report.queries == 2 * len(ANIMALS)
    assert report.results["sharp"]["Success@1"] == 1
    assert report.results["trad"]["Success@1"] < 0.5
    # The same with evaluate(): simple queries search an index sharpened by contrastive ones.
    dataset = Dataset("", {name: f"what does a {name} eat" for name in ANIMALS},
                   {name: {name: 1} for name in ANIMALS})  # fmt: skip
    direct = evaluate(index, dataset, ["trad", "sharp:sets=contrastive"], measures=["nDCG@10"])
    for name, spec in (("trad", "trad"), ("sharp", "sharp:sets=contrastive")):
        values = report.per_query[name]["nDCG@10"]
        simple_values = [value for key, value in values.items() if key.startswith("simple")]
        assert simple_values == list(direct.per_query[spec]["nDCG@10"].values())


def test_methods_that_cannot_be_tested_are_refused(index: Index) -> None:
    with pytest.raises(BadInput, match="mixes the set alone that would test it"):
        estimate(index, ["trad", "simsharp"])
    with pytest.raises(BadInput, match="needs labelled queries"):
        estimate(index, ["trad", "doc2query"])
    index.drop_set("contrastive")
    with pytest.raises(BadInput, match="two query sets, at least one of them generated"):
        estimate(index)


def test_one_generated_set_with_sentences_is_enough(index: Index) -> None:
    index.drop_set("contrastive")
    index.sharpen("sentences")
    assert estimate(index).queries == len(ANIMALS)


def test_the_conclusion_gives_the_interval_of_the_gain(index: Index) -> None:
    report = estimate(index, ["trad", "sharp"])
    mean, low, high = report.gain("sharp")
    assert 0 < low <= mean <= high
    assert report.gain("sharp", report.measures[0]) == (mean, low, high)
    measure = report.measures[1]
    difference = report.results["sharp"][measure] - report.results["trad"][measure]
    assert report.gain("sharp", measure)[0] == pytest.approx(100 * difference)
    conclusion = report.conclusion("sharp")
    assert conclusion.startswith("sharp ranks better than trad here: nDCG@10 +")
    assert "16 queries" in conclusion
    equal_methods = estimate(index, ["trad", "trad:words=0"])
    assert "do not differ clearly" in equal_methods.conclusion("trad:words=0")


def test_eval_without_a_dataset(index: Index) -> None:
    output = strop("eval", index.path, "--json").json
    assert output["labels"] is False
    assert output["gains"]["sharp"]["low"] > 0
    text = strop("eval", index.path).stdout
    assert "By stored queries, without labels: sharp ranks better" in text
    result = strop("eval", index.path, "--leak-gate", "0.9")
    assert result.code == 2
    assert "--leak-gate needs DATASET" in result.stderr
