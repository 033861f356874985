"""Choosing the defaults of ``sharp``, on small indexes whose best setting is known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fakes
from helpers.commands import strop

from strop import METHODS, Index
from strop.cli.tables import print_choice
from strop.common.arrays import unit_rows
from strop.errors import BadInput
from strop.evaluation.scoring import bootstrap_interval
from strop.evaluation.tune import Choice, decide, default_sharp, settings_grid, tune
from strop.methods import FEEDBACK
from strop.search.sampling import sample_queries
from strop.search.words import WordScorer
from strop.types import Dataset, Vectors

SIZE, DIM = 120, 24
_RNG = np.random.default_rng(5)
MEANINGS = unit_rows(_RNG.normal(size=(SIZE, DIM)))


TO_SIGNS = str.maketrans("0123456789", "@$%()*/<>~")
FROM_SIGNS = {sign: digit for digit, sign in TO_SIGNS.items()}


def blurred_vector(document: int, blur: float, seed: int) -> Vectors:
    """Return a vector near the meaning of a document; blur 1 is pure noise."""
    noise = np.random.default_rng([seed, document]).normal(size=DIM) / np.sqrt(DIM)
    return np.asarray((1 - blur) * MEANINGS[document] + blur * noise, np.float32)


def embed(texts: list[str]) -> Vectors:
    """Embed texts ``blur document seed``: the blur says how well a text is understood."""
    parts = [text.split()[:3] for text in texts]
    return unit_rows(
        np.stack(
            [blurred_vector(int(d.translate(FROM_SIGNS)), float(b), int(s)) for b, d, s in parts]
        )
    )


def build(path: Path, document_blur: float, query_blur: float, styles: list[str]) -> Index:
    index = Index.create(path, embed, name="blurred", dim=DIM)
    index.add({"id": f"d{i}", "text": f"{document_blur} {i} 0"} for i in range(SIZE))
    for set_number, style in enumerate(styles, 1):
        lists = {f"d{i}": [f"{query_blur} {i} {10 * set_number + n}" for n in range(3)]
                 for i in range(SIZE)}  # fmt: skip
        index.import_queries(lists, style)
    return index


@pytest.fixture
def blurred(tmp_path: Path) -> Iterator[Index]:
    """The embedder understands queries better than documents."""
    with build(tmp_path / "index", 0.85, 0.55, ["simple", "contrastive"]) as index:
        yield index


@pytest.fixture
def few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small grid of settings, for speed."""
    monkeypatch.setattr("strop.evaluation.tune.ALPHAS", (0.5, 1.0, 4.0))
    monkeypatch.setattr("strop.evaluation.tune.TEMPERATURES", (0.1, 1.0))


def test_cross_validation_chooses_strong_sharpening_for_blurred_documents(blurred: Index) -> None:
    choice = tune(blurred, queries=100)
    assert choice.taken
    assert choice.method.alpha >= 2
    assert choice.method.sets == ("simple", "contrastive")
    assert choice.method.feedback == FEEDBACK  # stored queries cannot evaluate it
    assert choice.queries == 200
    assert choice.gain is not None
    assert choice.low is not None
    assert choice.high is not None
    assert 0 < choice.low < choice.gain < choice.high
    assert blurred.method("sharp") == choice.method
    assert blurred.method() == choice.method


def test_words_are_tuned_if_no_dense_setting_gains(
    blurred: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document numbers in the texts are words, which find the document."""
    monkeypatch.setattr(
        "strop.evaluation.tune.settings_grid",
        lambda default, sets: [replace(default, sets=sets, words=0.0)],
    )
    monkeypatch.setattr("strop.methods.WORDS_OTHERS", 0.1)
    choice = tune(blurred, queries=200)
    assert choice.taken
    expected = replace(METHODS["sharp"], words=0.2, feedback=FEEDBACK)
    assert choice.method == expected == blurred.method("sharp")
    assert "words=0.2 gains" in choice.why
    assert choice.gain is not None
    assert choice.low is not None
    assert choice.high is not None
    assert 0 < choice.low < choice.gain < choice.high
    assert not choice.held_out
    monkeypatch.setattr("strop.evaluation.tune.WORDS", ())
    choice = tune(blurred, queries=200)
    assert (choice.taken, choice.gain, choice.held_out) == (False, 0, True)
    assert blurred.method("sharp") == default_sharp(blurred)


@pytest.mark.usefixtures("few_settings")
def test_negative_queries_are_not_used(tmp_path: Path) -> None:
    queries = {f"q{at}": f"0.5 {at} 7" for at in range(40)}
    labels = Dataset("labelled", queries, {f"q{at}": {f"d{at}": 1} for at in range(40)})
    choices = []
    for styles in (["simple"], ["simple", "negative"]):
        with build(tmp_path / "-".join(styles), 0.85, 0.55, styles) as index:
            choices.append((tune(index), tune(index, labels)))
    assert choices[0] == choices[1]
    assert choices[1][0].queries == 0  # one set cannot evaluate itself
    assert choices[1][1].method.sets == ("simple",)
    with (
        build(tmp_path / "negative", 0.85, 0.55, ["negative"]) as index,
        pytest.raises(BadInput, match="has no query set"),
    ):
        tune(index)


@pytest.mark.usefixtures("few_settings")
def test_misleading_queries_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.methods.WORDS_OTHERS", 0.0)  # words would find the document
    with build(tmp_path / "index", 0.3, 0.97, ["simple", "contrastive"]) as index:
        choice = tune(index, queries=100)
        assert not choice.taken or choice.method.alpha < 1
        if not choice.taken:
            assert index.method("sharp") == default_sharp(index)


@pytest.mark.usefixtures("few_settings")
def test_the_choice_is_kept_overridden_and_reset(blurred: Index, tmp_path: Path) -> None:
    choice = tune(blurred, queries=50)
    blurred.close()
    assert "tuned" in strop("info", tmp_path / "index").stdout
    with Index.open(tmp_path / "index", embed, name="blurred", dim=DIM) as index:
        assert index.method("sharp") == choice.method
        assert index.method("sharp", alpha=3).alpha == 3
        assert index.method("sharp", alpha=3).temperature == choice.method.temperature
        assert index.method("sharp:feedback=0").feedback == 0
        assert index.method("hybrid:of=sharp").alpha == choice.method.alpha
        assert index.method("simsharp") == METHODS["simsharp"]
        assert index.info()["tuned"]["method"]["alpha"] == choice.method.alpha
        assert index.info()["tuned"]["in_use"]
        index.keep_tuned(None)
        assert index.method("sharp") == default_sharp(index)
        assert index.info()["tuned"] is None


def test_a_new_query_set_invalidates_the_choice(blurred: Index) -> None:
    chosen = replace(default_sharp(blurred), alpha=2.0)
    blurred.keep_tuned(Choice(chosen, True, "a test").to_json())
    assert blurred.method("sharp") == chosen
    blurred.import_queries({"d0": ["0.5 0 99"]}, "later")
    assert blurred.method("sharp") == default_sharp(blurred)
    assert not blurred.info()["tuned"]["in_use"]
    assert blurred.info()["tuned"]["unused"] == "the query sets changed"


@pytest.mark.parametrize("whiten", [0.0, 0.5])
def test_a_choice_with_the_removed_whitening_setting(blurred: Index, whiten: float) -> None:
    stored = Choice(replace(default_sharp(blurred), alpha=2.0), True, "a test").to_json()
    blurred.keep_tuned({**stored, "method": {**stored["method"], "whiten": whiten}})
    assert blurred.method("sharp").alpha == (1.0 if whiten else 2.0)
    assert blurred.info()["tuned"]["in_use"] == (not whiten)
    shown = " ".join(strop("info", blurred.path).stdout.split())
    reason = f"not in use, it needs whitening, which was removed: strop tune {blurred.path}"
    assert (reason in shown) == bool(whiten)


@pytest.mark.usefixtures("few_settings")
def test_tuning_with_labels(blurred: Index) -> None:
    queries = {f"q{at}": f"0.5 {at} 7" for at in range(30)}
    dataset = Dataset("labelled", queries, {f"q{at}": {f"d{at}": 1} for at in range(30)})
    choice = tune(blurred, dataset, exclude=["q0"])
    assert choice.taken
    assert choice.queries == 29
    assert choice.method.alpha >= 2
    assert "labelled" in choice.why


@pytest.mark.usefixtures("few_settings")
def test_the_words_of_a_query_are_scored_once_for_all_settings(
    blurred: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[tuple[WordScorer, tuple[str, ...]]] = []
    score = WordScorer.all

    def recording(self: WordScorer, connection: Any, terms: Sequence[str]) -> Any:
        scored.append((self, tuple(terms)))
        return score(self, connection, terms)

    monkeypatch.setattr(WordScorer, "all", recording)
    queries = {f"q{at}": f"0.5 {at} 7" for at in range(30)}
    dataset = Dataset("labelled", queries, {f"q{at}": {f"d{at}": 1} for at in range(30)})
    choice = tune(blurred, dataset)
    assert len(scored) == len(set(scored)) == 30  # both mixes have the same words
    monkeypatch.setattr("strop.search.words.CACHED_SCORES_BYTES", 0)
    assert tune(blurred, dataset) == choice
    assert len(scored) > 60
    del scored[:]
    for _ in range(2):  # nothing is cached afterwards
        blurred.search("0.5 1 7", method="sharp:words=1")
    assert len(scored) == 2


@pytest.mark.usefixtures("few_settings")
def test_labels_can_ignore_the_document_of_the_same_id(blurred: Index) -> None:
    """Queries equal documents: each finds itself first, but another one is relevant."""
    queries = {f"d{at}": f"0.85 {at} 0" for at in range(0, SIZE, 4)}
    dataset = Dataset("same", queries, {id_: {f"d{int(id_[1:]) + 1}": 1} for id_ in queries})
    with_same, without = (tune(blurred, dataset, ignore_same_id=ignore) for ignore in (False, True))
    assert with_same.queries == without.queries == SIZE // 4
    assert with_same.why == without.why
    assert with_same.gain != without.gain


def test_one_generated_set_alone_changes_nothing(tmp_path: Path) -> None:
    with build(tmp_path / "index", 0.8, 0.5, ["simple"]) as index:
        choice = tune(index)
        assert (choice.taken, choice.gain, choice.queries) == (False, None, 0)
        assert index.method("sharp") == default_sharp(index)
        assert "cannot judge itself" in choice.why
        assert "generate or import a second one" in choice.why
        assert "--labels" in choice.why


def name_of(document: int) -> str:
    """Return a word that names a document; no name is the stem of another."""
    return "x" + "".join("bcdfghjklm"[int(digit)] for digit in f"{document:03}") + "x"


def number_in_signs(document: int) -> str:
    """Return a document's number in signs, which are not words."""
    return str(document).translate(TO_SIGNS)


def build_named(path: Path, shift: int) -> Index:
    """Build an index whose queries name their document, or with a shift another one."""
    index = Index.create(path, embed, name="blurred", dim=DIM)
    index.add(
        {"id": f"d{i}", "text": f"0.85 {number_in_signs(i)} 0 {name_of(i)}"} for i in range(SIZE)
    )
    for number, style in enumerate(("simple", "contrastive"), 1):
        names = [name_of((i + number * shift) % SIZE) for i in range(SIZE)]
        lists = {f"d{i}": [f"0.55 {number_in_signs(i)} {number} {names[i]}"] for i in range(SIZE)}
        index.import_queries(lists, style)
    return index


@pytest.mark.usefixtures("few_settings")
def test_the_gain_is_measured_with_keyword_matching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words find each document: alpha and temperature would gain only without words."""
    monkeypatch.setattr("strop.methods.WORDS_OTHERS", 10.0)
    with build_named(tmp_path / "index", 0) as index:
        choice = tune(index, queries=100)
    assert (choice.taken, choice.gain) == (False, 0)
    assert choice.method.words == 10
    assert choice.why.endswith("no significant gain, so the defaults stay")


@pytest.mark.usefixtures("few_settings")
@pytest.mark.parametrize(("shift", "default", "words"), [(0, 0.35, 0.7), (1, 5.0, 0.0)])
def test_cross_validation_uses_words_only_if_they_help(
    shift: int,
    default: float,
    words: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strop.methods.WORDS_OTHERS", default)
    with build_named(tmp_path / "index", shift) as index:
        choice = tune(index, queries=100)
        assert choice.taken
        assert choice.method.words == words
        assert f"words={words:g} gains" in choice.why


def test_sentences_alone_change_nothing(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", embed, name="blurred", dim=DIM) as index:
        index.sharpen("sentences")
        index.add({"id": f"d{at}", "text": f"0.7 {at} 1"} for at in range(SIZE))
        choice = tune(index)
        assert (choice.taken, choice.gain, choice.queries) == (False, None, 0)
        assert index.method("sharp") == default_sharp(index)
        assert "sentences alone cannot judge" in choice.why


def test_one_generated_set_with_sentences_tunes_words(tmp_path: Path) -> None:
    with build(tmp_path / "index", 0.5, 0.5, ["simple"]) as index:
        index.sharpen("sentences")
        choice = tune(index)
        assert choice.queries == 3 * SIZE
        assert (choice.method.alpha, choice.method.temperature) == (1.0, 0.1)
        assert choice.low is not None
        assert choice.taken == (choice.low > 0)


def test_a_gain_by_chance_is_rejected() -> None:
    rng = np.random.default_rng(0)
    methods = settings_grid(METHODS["sharp"], ("simple",))
    choice = decide(rng.random((len(methods), 300)), rng.random(300), methods, "chance")
    assert not choice.taken
    assert choice.gain is not None
    # The best of many by chance gains on the queries that chose it, not on held-out ones.
    assert abs(choice.gain) < 7
    assert "defaults stay" in choice.why


def test_a_significant_gain_is_accepted() -> None:
    rng = np.random.default_rng(0)
    methods = settings_grid(METHODS["sharp"], ("simple",))
    default_values = rng.random(300)
    values = np.tile(default_values, (len(methods), 1)) - 0.1
    values[7] = default_values + 0.05
    choice = decide(values, default_values, methods, "sure")
    assert choice.taken
    assert choice.method == methods[7]
    assert (choice.gain, choice.low, choice.high) == pytest.approx((5, 5, 5))


def test_the_interval_equals_that_of_the_mean() -> None:
    gains = np.random.default_rng(1).normal(0.02, 0.1, 400)
    low, high = bootstrap_interval(gains)
    mean, half_width = 100 * gains.mean(), 196 * gains.std() / 20
    assert low == pytest.approx(mean - half_width, abs=0.15)
    assert high == pytest.approx(mean + half_width, abs=0.15)


def test_tuning_without_enough_queries_is_refused(tmp_path: Path, blurred: Index) -> None:
    with fakes.create(tmp_path / "bare") as index:
        index.add([{"id": "a", "text": "b"}])
        with pytest.raises(BadInput, match="has no query set"):
            tune(index)
    with pytest.raises(BadInput, match="5 queries decide nothing"):
        tune(blurred, queries=5)
    few = Dataset("few", {"q": "0.5 1 7"}, {"q": {"d1": 1}})
    with pytest.raises(BadInput, match="few has 1 query,"):
        tune(blurred, few)
    assert blurred.method("sharp") == default_sharp(blurred)


def test_stored_queries_are_sampled_with_their_documents(blurred: Index) -> None:
    ids, texts, vectors = sample_queries(blurred.searcher, "simple", 50)
    assert len(ids) == len(texts) == len(vectors) == 50
    for id_, text, vector in zip(ids, texts, vectors, strict=True):
        assert text in blurred.queries_of(id_)["simple"]
        assert float(embed([text])[0] @ vector) == pytest.approx(1, abs=1e-4)
    assert sample_queries(blurred.searcher, "simple", 50)[0] == ids
    assert sorted(sample_queries(blurred.searcher, "simple", 9999)[0]) == sorted(3 * blurred.ids())


@pytest.mark.usefixtures("few_settings")
def test_the_tune_command(index: Path) -> None:
    output = strop("tune", index, "--json").json
    assert output["method"].keys() >= {"alpha", "temperature", "sets", "n", "feedback"}
    result = strop("tune", index)
    assert result.code == 0
    assert "sharp" in result.stdout
    assert strop("tune", index, "--reset").code == 0
    assert strop("info", index, "--json").json["tuned"] is None
    assert strop("tune", index, "--reset", "--labels", "x").code == 2
    result = strop("tune", index, "--exclude-queries", "1")
    assert result.code == 2
    assert "--exclude-queries needs --labels" in result.stderr


def test_a_new_set_reports_that_the_choice_is_not_used(index: Path) -> None:
    with Index.open(index) as opened_index:
        opened_index.keep_tuned(Choice(default_sharp(opened_index), True, "a test").to_json())
        lists = json.dumps({"id": opened_index.ids()[0], "queries": ["a query"]})
    result = strop("queries", index, "--file", "-", "--set", "later", stdin=lists)
    assert f"(the query sets changed): strop tune {index}" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("taken", "held_out", "shown"),
    [
        (
            True,
            True,
            ["sharp is now sharp:alpha=2", "on 30 queries that had no part in the choice"],
        ),
        (True, False, ["sharp is now sharp:alpha=2", "on the 30 queries that decided: optimistic"]),
        (False, True, ["keeps its defaults", "best settings tried: sharp:alpha=2"]),
    ],
)
def test_the_choice_is_printed(
    taken: bool, held_out: bool, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    method = replace(METHODS["sharp"], alpha=2.0)
    print_choice(Choice(method, taken, "a reason", 30, 1.0, 0.5, 1.5, held_out))
    output = " ".join(capsys.readouterr().out.split())
    interval = "+1.00 nDCG@10 against the defaults (95% confidence interval +0.50 to +1.50)"
    for text in (*shown, interval, "a reason"):
        assert text in output


def test_the_command_reports_why_nothing_is_chosen(tmp_path: Path, corpus: Path) -> None:
    path = tmp_path / "sentences.index"
    assert strop("build", corpus, "-o", path).code == 0
    output = strop("tune", path).stdout
    assert "sentences alone cannot judge" in " ".join(output.split())
