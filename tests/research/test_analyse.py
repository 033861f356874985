"""Analyses: each point equals an evaluation; every file is written and can be read."""

from __future__ import annotations

import csv
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import strop

from strop import METHODS, Index, evaluate
from strop.errors import BadInput, MissingExtra
from strop.io.datasets import read_dataset
from strop.research.analyse import ALPHAS, boost_against_perplexity, sweep
from strop.research.perplexity import PerplexitySettings, perplexities

pytestmark = pytest.mark.usefixtures("without_words")


def test_a_sweep_equals_separate_evaluations(index: Path, dataset: Path) -> None:
    with Index.open(index) as opened:
        result = sweep(opened, read_dataset(dataset), "alpha", sets=["simple"])
        specs = ["trad", "sharp:alpha=2:T=0.1:sets=simple", "sharp:alpha=2:T=1:sets=simple"]
        report = evaluate(opened, dataset, specs)
    value = {spec: 100 * report.results[spec]["nDCG@10"] for spec in specs}
    assert result.plain == pytest.approx(value["trad"])
    points = {(point.fixed, point.x): point for point in result.points}
    assert tuple(x for label, x in points if label == "T = 1") == ALPHAS
    assert points["T = 0.1", 2.0].value == pytest.approx(value[specs[1]])
    assert points["T = 1", 2.0].value == pytest.approx(value[specs[2]])
    zero = points["T = 1", 0.0]
    assert (zero.value, zero.change, zero.low, zero.high) == (result.plain, 0, 0, 0)
    change = np.array([
        100 * (report.per_query[specs[1]]["nDCG@10"][q] - report.per_query["trad"]["nDCG@10"][q])
        for q in query_ids(dataset)
    ])  # fmt: skip
    half = 1.96 * change.std(ddof=1) / math.sqrt(len(change))
    assert points["T = 0.1", 2.0].low == pytest.approx(change.mean() - half)


@pytest.mark.parametrize("parameter", ["alpha", "temperature"])
def test_a_sweep_includes_the_settings_in_use(parameter: str, index: Path, dataset: Path) -> None:
    """Also through tuned settings."""
    with Index.open(index) as opened:
        tuned = replace(METHODS["sharp"], alpha=1.6, temperature=0.07, sets=("simple",), words=0.4)
        opened.keep_tuned({"method": asdict(tuned)})
        result = sweep(opened, read_dataset(dataset), parameter)
        report = evaluate(opened, dataset, ["sharp"])
    assert result.in_use == {"alpha": 1.6, "temperature": 0.07}[parameter]
    curve = [point for point in result.points if point.fixed == result.points[0].fixed]
    (current,) = (point for point in curve if point.x == result.in_use)
    assert current.value == pytest.approx(100 * report.results["sharp"]["nDCG@10"])


def query_ids(dataset: Path) -> list[str]:
    return list(read_dataset(dataset).queries)


def test_a_sweep_of_n_ends_at_the_longest_list(index: Path, dataset: Path) -> None:
    with Index.open(index) as opened:
        result = sweep(opened, read_dataset(dataset), "n", sets=["simple"])
        report = evaluate(opened, dataset, ["sharp:n=2:sets=simple"])
    points = [point for point in result.points if point.fixed == "T = 0.1"]
    assert [point.x for point in points] == [1, 2, 3]
    assert points[1].value == pytest.approx(
        100 * report.results["sharp:n=2:sets=simple"]["nDCG@10"]
    )


def test_a_sweep_of_sets_evaluates_each_set(index: Path, dataset: Path) -> None:
    with Index.open(index) as opened:
        result = sweep(opened, read_dataset(dataset), "sets")
        report = evaluate(opened, dataset, ["sharp:T=1:sets=sentences"])
    points = {(point.fixed, point.x): point.value for point in result.points}
    labels = ("T = 1", "T = 0.1")
    assert set(points) == {(label, x) for label in labels for x in ("sentences", "simple")}
    assert points["T = 1", "sentences"] == pytest.approx(
        100 * report.results["sharp:T=1:sets=sentences"]["nDCG@10"]
    )


def test_sweeps_exclude_negative_queries_as_sharp_does(index: Path, dataset: Path) -> None:
    data = read_dataset(dataset)
    with Index.open(index) as opened:
        before = sweep(opened, data, "alpha"), sweep(opened, data, "sets")
        lists = {id_: [data.queries[q]] for q, grades in data.qrels.items() for id_ in grades}
        opened.import_queries(lists, "negative")
        assert (sweep(opened, data, "alpha"), sweep(opened, data, "sets")) == before
        alone = sweep(opened, data, "sets", sets=["negative"])
    assert {point.x for point in alone.points} == {"negative"}


def test_figures_are_written_with_their_data(index: Path, dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "figures"
    report = strop("analyse", index, dataset, "-o", out, "--json").json
    assert list(report) == ["alpha", "temperature", "n", "sets"]
    for name in report:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text("utf-8")
        with open(out / f"{name}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        values = report[name]["points"]
        assert [float(row["value"]) for row in rows] == [row["value"] for row in values]
    # A second run writes the same bytes.
    before = (out / "alpha.svg").read_bytes()
    result = strop("analyse", index, dataset, "-o", out, "--what", "alpha")
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith("alpha: best ")
    assert (out / "alpha.svg").read_bytes() == before


def test_invalid_arguments_are_refused(index: Path, dataset: Path, tmp_path: Path) -> None:
    result = strop("analyse", index, dataset, "-o", tmp_path / "x", "--what", "beta")
    assert result.code == 2
    assert "alpha, temperature, n, sets, perplexity" in result.stderr
    result = strop("analyse", index, dataset, "-o", tmp_path / "x", "--exclude-queries", "nobody")
    assert result.code == 1
    assert "'nobody' cannot be excluded" in result.stderr
    assert not (tmp_path / "x").exists()


def test_missing_matplotlib_is_reported_with_its_extra(
    index: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = strop("analyse", index, dataset, "-o", tmp_path / "x", "--what", "alpha")
    assert result.code == 1
    assert "pip install 'strop[figures]'" in result.stderr


# -- perplexity -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model of a few thousand weights, with a tokenizer of single bytes."""
    torch = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("reader")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(alphabet), n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def settings(reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PerplexitySettings:
    monkeypatch.setenv("STROP_CACHE", str(tmp_path / "cache"))
    return PerplexitySettings(f"hf:{reader}", max_tokens=40)


def test_perplexity_follows_the_equation(settings: PerplexitySettings, reader: Path) -> None:
    import torch
    import transformers

    texts = ["stone by stone", "a", "", "x" * 100]
    values = perplexities(texts, settings)
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    model = load(reader).eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(reader)
    for text, value in zip(texts, values, strict=True):
        ids = tokenizer(text).input_ids[:40]
        if len(ids) < 2:
            assert math.isnan(value)
            continue
        with torch.no_grad():
            chances = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        total = sum(float(chances[at, token]) for at, token in enumerate(ids[1:]))
        assert value == pytest.approx(math.exp(-total / (len(ids) - 1)), rel=1e-4)


def test_perplexities_are_cached(
    settings: PerplexitySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = perplexities(["one text", "another", "z"], settings)
    monkeypatch.setattr(
        "strop.research.perplexity.load_perplexity", lambda _: pytest.fail("read again")
    )
    again = perplexities(["another", "one text", "z"], settings)
    assert again[:2] == [first[1], first[0]]
    assert math.isnan(again[2])


def test_correlation_is_computed_over_every_pair(
    index: Path, dataset: Path, settings: PerplexitySettings
) -> None:
    data = read_dataset(dataset)
    with Index.open(index) as opened:
        result = boost_against_perplexity(opened, data, "simsharp", settings, top=7)
        pairs = []
        for text in data.queries.values():
            for id_ in opened.search(text, 7, "trad").ids[0]:
                explanation = opened.explain(text, id_, "simsharp")
                (perplexity,) = perplexities([opened.get(id_).content], settings)
                pairs.append((perplexity, explanation.score - explanation.plain))
        few = boost_against_perplexity(
            opened, data, "simsharp", PerplexitySettings(settings.lm, 40, documents=10), top=7
        )
        with pytest.raises(BadInput, match="maxsim has no d"):
            boost_against_perplexity(opened, data, "maxsim", settings)
    x, y = np.array(pairs).T
    assert result.pairs == len(pairs) == 7 * len(data.queries)
    assert result.pearson == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-4)
    assert result.log_pearson == pytest.approx(np.corrcoef(np.log(x), y)[0, 1], abs=1e-4)
    assert result.low < result.pearson < result.high
    assert few.documents == 10
    assert few.pairs < result.pairs


def test_perplexity_on_the_command_line(
    index: Path, dataset: Path, settings: PerplexitySettings, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    report = strop(
        "analyse", index, dataset, "--what", "perplexity", "--perplexity-lm", settings.lm,
        "--tokens", "40", "-o", tmp_path / "x", "--json",
    ).json["perplexity"]  # fmt: skip
    assert -1 <= report["pearson"] <= 1
    assert len((tmp_path / "x" / "perplexity.csv").read_text().splitlines()) == report["pairs"] + 1


def test_missing_parts_of_perplexity_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="no perplexity model 'gpt'"):
        PerplexitySettings("gpt")
    assert "there is no file" in str(PerplexitySettings(f"hf:{tmp_path}/x.gguf").missing())
    monkeypatch.setattr("strop.research.perplexity.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"strop\[perplexity\]"):
        perplexities(["a text"], PerplexitySettings("hf:somewhere"))


@pytest.mark.slow
def test_the_packaged_model_gives_fluent_text_a_lower_perplexity(tmp_path: Path) -> None:
    settings = PerplexitySettings("smollm2")
    if lacking := settings.missing():
        pytest.skip(str(lacking))
    fluent = "The wing of an aircraft produces lift because the air above it moves faster."
    shuffled = "aircraft because the of it moves lift The wing above faster an produces air the."
    values = perplexities([fluent, shuffled], settings)
    assert values[0] < values[1] / 3
