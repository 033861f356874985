"""Feedback: the best 50 are ranked again by how much they resemble the very best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import fakes

from strop import Index
from strop.errors import BadInput

QUERY = "an old dog in the snow"


def create(path: Path, documents: int) -> Index:
    draw = np.random.default_rng(0)
    words = [*QUERY.split(), "cat", "hat", "tree", "sea", "red", "blue", "runs", "sleeps"]
    index = Index.create(path, fakes.Bag())
    index.sharpen("sentences")
    index.add(
        {"id": f"d{at}", "text": " ".join(draw.choice(words, 6)) + f" {at}."}
        for at in range(documents)
    )
    return index


def expected(index: Index, k: int, weight: float) -> dict[str, float]:
    """Return the best 50 by line (8), computed step by step."""
    hits = index.search(QUERY, 50, "sharp:feedback=0", exact=True)
    scores = hits.scores[0].astype(float)
    rows = fakes.vectors_of([index.get(id_).content for id_ in hits.ids[0]], "document")
    apart = rows - rows.mean(axis=0)
    apart /= np.linalg.norm(apart, axis=1)[:, None]
    spread = scores.std()
    weights = np.exp((scores[:10] - scores[0]) / (0.5 * spread))
    likeness = apart @ apart[:10].T @ weights / weights.sum()
    total = scores + weight * spread * likeness
    order = np.argsort(-total)[:k]
    return {hits.ids[0][at]: total[at] for at in order}


@pytest.mark.parametrize("k", [3, 10, 50])
def test_feedback_is_line_8_of_the_formula(tmp_path: Path, k: int) -> None:
    with create(tmp_path / "index", 80) as index:
        for weight in (1.0, 3.0):
            hits = index.search(QUERY, k, f"sharp:feedback={weight}")
            want = expected(index, k, weight)
            assert hits.ids[0].tolist() == list(want)
            np.testing.assert_allclose(hits.scores[0], list(want.values()), atol=1e-5)
        default = index.search(QUERY, k)
        assert default.ids.tolist() == hits.ids.tolist()


def test_what_comes_behind_stays_behind(tmp_path: Path) -> None:
    with create(tmp_path / "index", 80) as index:
        first = index.search(QUERY, 50).ids[0].tolist()
        hits, plain = (index.search(QUERY, 80, f"sharp:feedback={w}") for w in (3, 0))
        assert hits.ids[0][:50].tolist() == first
        assert hits.ids[0][50:].tolist() == plain.ids[0][50:].tolist()
        assert (np.diff(hits.scores[0]) <= 0).all()


def test_few_documents_have_no_feedback(tmp_path: Path) -> None:
    with create(tmp_path / "index", 49) as index:
        hits, plain = (index.search(QUERY, 49, f"sharp:feedback={w}") for w in (3, 0))
        assert hits.ids.tolist() == plain.ids.tolist()
        np.testing.assert_array_equal(hits.scores, plain.scores)


def test_documents_without_text_or_all_alike_do_no_harm(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", fakes.Bag()) as index:
        index.add({"id": f"d{at}", "text": "" if at % 2 else "the same"} for at in range(120))
        index.sharpen("sentences")
        hits = index.search("the same", 120)
        assert np.isfinite(hits.scores).all()
        assert {int(id_[1:]) % 2 for id_ in hits.ids[0][:60]} == {0}


def test_mistakes_are_named(tmp_path: Path) -> None:
    with create(tmp_path / "index", 3) as index:
        with pytest.raises(BadInput, match="feedback must be 0 or more"):
            index.search(QUERY, 1, "sharp:feedback=-1")
        with pytest.raises(BadInput, match="bm25 has no feedback"):
            index.search(QUERY, 1, "bm25:feedback=1")
