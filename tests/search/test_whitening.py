"""Whitening: what it does to vectors, and that search, explanation and scores agree on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import fakes

from strop import Index
from strop.common.arrays import unit_rows
from strop.errors import BadInput
from strop.search.whitening import Whitening
from strop.types import Vectors

pytestmark = pytest.mark.usefixtures("without_words")


def skewed(n: int, seed: int = 0) -> Vectors:
    """Unit vectors that share a mean and use some directions much more than others."""
    rng = np.random.default_rng(seed)
    return unit_rows(rng.normal(size=(n, 8)) * 2.0 ** -np.arange(8) + 0.3)


def spread(vectors: Vectors) -> float:
    """How unevenly the directions are used: the largest variance over the smallest."""
    variances = np.linalg.eigvalsh(np.cov(vectors.T))
    return float(variances[-1] / variances[0])


def test_directions_are_evened_out() -> None:
    rows = skewed(5000)
    before = spread(rows)
    half, full = (spread(Whitening([rows], power).apply(rows)) for power in (0.5, 1.0))
    assert full < 4
    assert full < half < before / 10
    assert abs(Whitening([rows], 1.0).apply(rows).mean(axis=0)).max() < 0.05


def test_the_map_is_that_of_the_definition() -> None:
    parts, asked = [skewed(3000), skewed(1000, 1)], skewed(5, 2)
    sample = np.concatenate(parts).astype(np.float64)
    trust = 4000 / 4008
    mean = trust * sample.mean(axis=0)
    cov = (sample - mean).T @ (sample - mean) / 4000
    cov = trust * cov + (1 - trust) * np.eye(8) * np.trace(cov) / 8
    values, axes = np.linalg.eigh(cov)
    mapped = (asked - mean) @ axes @ np.diag((values + 1e-4 * values[-1]) ** -0.25) @ axes.T
    want = mapped / np.linalg.norm(mapped, axis=1, keepdims=True)
    np.testing.assert_allclose(Whitening(parts, 0.5).apply(asked), want, atol=1e-5)


def test_few_vectors_move_little() -> None:
    few = unit_rows(np.eye(64)[:3])
    moved = Whitening([few], 0.5).apply(unit_rows(np.eye(64)))
    assert np.diag(moved).min() > 0.95


@pytest.mark.parametrize("rows", [np.zeros((0, 4), np.float32), np.zeros((3, 4), np.float32)])
def test_nothing_to_learn_from(rows: Vectors) -> None:
    asked = unit_rows(np.eye(4))
    np.testing.assert_allclose(Whitening([rows], 0.5).apply(asked), asked, atol=1e-6)


def test_empty_texts_stay_zero() -> None:
    rows = skewed(100)
    rows[3] = 0
    made = Whitening([rows], 0.5).apply(rows)
    assert not made[3].any()
    np.testing.assert_allclose(np.linalg.norm(np.delete(made, 3, 0), axis=1), 1, atol=1e-5)


TEXTS = [f"{a} {b} {c}" for a in ("red", "blue", "old") for b in ("fox", "dog") for c in "xyz"]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with fakes.create(tmp_path / "index") as made:
        made.add({"id": f"d{at}", "text": f"{text}. And more of {at}."}
                 for at, text in enumerate([*TEXTS, ""]))  # fmt: skip
        made.sharpen("sentences")
        yield made


@pytest.mark.parametrize("spec", ["sharp:whiten=0.5", "sharp:whiten=1:alpha=2:T=1"])
def test_search_is_the_formula_in_the_evened_space(index: Index, spec: str) -> None:
    method = index.method(spec)
    lists = {id_: index.queries_of(id_)["sentences"] for id_ in index.ids()}
    rows = fakes.vectors_of([text for texts in lists.values() for text in texts], "document")
    whitening = Whitening([rows.astype(np.float32)], method.whiten)

    def mapped(texts: list[str], kind: str) -> fakes.Doubles:
        made = whitening.apply(fakes.vectors_of(texts, kind).astype(np.float32))
        return made.astype(np.float64)

    asked = mapped(["an old dog"], "query")[0]
    want = {
        id_: fakes.sharpened_score(
            asked, mapped([index.get(id_).content], "document")[0], mapped(texts, "document"),
            method.alpha, method.temperature,
        )
        for id_, texts in lists.items()
    }  # fmt: skip
    got = fakes.all_scores(index, "an old dog", method=spec)
    fakes.assert_close(got, want, 1e-4)
    told = index.explain("an old dog", "d3", spec)
    assert told.score == pytest.approx(got["d3"], abs=1e-4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sharp:whiten=2", "whiten must be from 0 to 1, not 2.0"),
        ("sharp:whiten=much", "'much' is no value for whiten"),
        ("trad:whiten=0.5", "trad has no whiten"),
    ],
)
def test_mistakes_are_named(index: Index, spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        index.search("dog", 1, spec)
