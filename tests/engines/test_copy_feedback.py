"""Feedback ranks the same in a published copy as in the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fakes

import strop

pytest.importorskip("duckdb")

from strop.engines.duckdb import DuckDB


def test_feedback_of_documents_that_an_engine_proposes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More documents are ranked than hits are wanted, and not all are fetched."""
    monkeypatch.setattr("strop.engines.copies.SCANNED", 0)
    url = f"duckdb://{tmp_path / 'copy.duckdb'}"
    draw = np.random.default_rng(0)
    with fakes.create(tmp_path / "index") as index:
        index.sharpen("sentences")
        index.add(
            {"id": f"d{at}", "text": f"{_text(draw)}. {_text(draw)}. {_text(draw)}."}
            for at in range(900)
        )
        index.publish(url)
        with strop.connect(url, embedder=fakes.Bag(), name="bag", dim=fakes.DIM) as copy:
            queries = [_text(draw) for _ in range(30)]
            fetched: list[int] = []
            nearest = DuckDB.nearest

            def counted(*args: Any, **named: Any) -> Any:
                near = nearest(*args, **named)
                fetched.append(len(near))
                return near

            monkeypatch.setattr(DuckDB, "nearest", counted)
            want, found = (it.search(queries, 10) for it in (index, copy))
    common = [len({*a} & {*b}) for a, b in zip(want.ids, found.ids, strict=True)]
    assert np.mean(common) >= 9.8
    assert min(fetched) >= 50
    assert np.mean(fetched) < 450


def _text(draw: np.random.Generator, count: int = 5) -> str:
    words = "an old dog in the snow cat hat tree sea red blue runs".split()
    return " ".join(draw.choice(words, count))


def test_feedback_in_a_copy(tmp_path: Path) -> None:
    url = f"duckdb://{tmp_path / 'copy.duckdb'}"
    draw = np.random.default_rng(0)
    with fakes.create(tmp_path / "index") as index:
        index.sharpen("sentences")
        index.add({"id": f"d{at}", "text": _text(draw, 6)} for at in range(90))
        index.publish(url)
        with strop.connect(url, embedder=fakes.Bag(), name="bag", dim=fakes.DIM) as copy:
            for k in (5, 60):
                want, found = (it.search("an old dog", k) for it in (index, copy))
                assert found.ids.tolist() == want.ids.tolist()
                np.testing.assert_allclose(found.scores, want.scores, atol=1e-5)
        assert want.ids.tolist() != index.search("an old dog", 60, "sharp:feedback=0").ids.tolist()


@pytest.mark.parametrize("cache_bytes", [1, 10**9])
def test_feedback_of_queries_in_groups(
    cache_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after all groups: what the first ones fetched may be gone by then."""
    monkeypatch.setattr("strop.engines.copies.SCANNED", 0)
    monkeypatch.setattr("strop.engines.copies.CACHE_BYTES", cache_bytes)
    monkeypatch.setattr("strop.engines.copies._MAX_FETCHED", 60)
    url = f"duckdb://{tmp_path / 'copy.duckdb'}"
    draw = np.random.default_rng(0)
    with fakes.create(tmp_path / "index") as index:
        index.sharpen("sentences")
        index.add({"id": f"d{at}", "text": f"{_text(draw)}. {_text(draw)}."} for at in range(300))
        index.publish(url)
    with strop.connect(url, embedder=fakes.Bag(), name="bag", dim=fakes.DIM) as copy:
        queries = [_text(draw) for _ in range(7)]
        alone = [copy.search(query, 5)[0] for query in queries]
        monkeypatch.setattr("strop.engines.copies._QUERIES_AT_ONCE", 2)
        assert [*copy.search(queries, 5)] == alone
