"""Feedback: the best 50 are ranked again by their similarity to the best 10."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import fakes

from strop import Index
from strop.errors import BadInput

QUERY = "an old dog in the snow"


def create(path: Path, documents: int) -> Index:
    rng = np.random.default_rng(0)
    words = [*QUERY.split(), "cat", "hat", "tree", "sea", "red", "blue", "runs", "sleeps"]
    index = Index.create(path, fakes.Bag())
    index.sharpen("sentences")
    index.add(
        {"id": f"d{i}", "text": " ".join(rng.choice(words, 6)) + f" {i}."} for i in range(documents)
    )
    return index


def expected_ranking(index: Index, k: int, weight: float) -> dict[str, float]:
    """Return the best 50 by line (8), computed step by step."""
    hits = index.search(QUERY, 50, "sharp:feedback=0", exact=True)
    scores = hits.scores[0].astype(float)
    rows = fakes.vectors_of([index.get(id_).content for id_ in hits.ids[0]], "document")
    centred = rows - rows.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1)[:, None]
    spread = scores.std()
    weights = np.exp((scores[:10] - scores[0]) / (0.5 * spread))
    similarity = centred @ centred[:10].T @ weights / weights.sum()
    total = scores + weight * spread * similarity
    order = np.argsort(-total)[:k]
    return {hits.ids[0][at]: total[at] for at in order}


@pytest.mark.parametrize("k", [3, 10, 50])
def test_feedback_is_line_8_of_the_formula(tmp_path: Path, k: int) -> None:
    with create(tmp_path / "index", 80) as index:
        for weight in (1.0, 3.0):
            hits = index.search(QUERY, k, f"sharp:feedback={weight}")
            expected = expected_ranking(index, k, weight)
            assert hits.ids[0].tolist() == list(expected)
            np.testing.assert_allclose(hits.scores[0], list(expected.values()), atol=1e-5)
        default = index.search(QUERY, k)
        assert default.ids.tolist() == hits.ids.tolist()


def test_documents_below_rank_50_keep_their_order(tmp_path: Path) -> None:
    with create(tmp_path / "index", 80) as index:
        first = index.search(QUERY, 50).ids[0].tolist()
        hits, plain = (index.search(QUERY, 80, f"sharp:feedback={w}") for w in (3, 0))
        assert hits.ids[0][:50].tolist() == first
        assert hits.ids[0][50:].tolist() == plain.ids[0][50:].tolist()
        assert (np.diff(hits.scores[0]) <= 0).all()


def test_fewer_than_50_documents_have_no_feedback(tmp_path: Path) -> None:
    with create(tmp_path / "index", 49) as index:
        hits, plain = (index.search(QUERY, 49, f"sharp:feedback={w}") for w in (3, 0))
        assert hits.ids.tolist() == plain.ids.tolist()
        np.testing.assert_array_equal(hits.scores, plain.scores)


def test_feedback_with_empty_and_equal_documents(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", fakes.Bag()) as index:
        index.add({"id": f"d{at}", "text": "" if at % 2 else "the same"} for at in range(120))
        index.sharpen("sentences")
        hits = index.search("the same", 120)
        assert np.isfinite(hits.scores).all()
        assert {int(id_[1:]) % 2 for id_ in hits.ids[0][:60]} == {0}


def test_invalid_feedback_is_refused(tmp_path: Path) -> None:
    with create(tmp_path / "index", 3) as index:
        with pytest.raises(BadInput, match="feedback must be 0 or more"):
            index.search(QUERY, 1, "sharp:feedback=-1")
        with pytest.raises(BadInput, match="bm25 has no feedback"):
            index.search(QUERY, 1, "bm25:feedback=1")
