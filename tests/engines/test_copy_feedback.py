"""Feedback gives the same ranking in a published copy and in its folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fakes

import strop
from strop import Index

pytest.importorskip("duckdb")

from strop.engines.duckdb import DuckDB
from strop.engines.published import Published


def test_feedback_of_candidates_from_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More documents are ranked than k, but not all are fetched."""
    monkeypatch.setattr("strop.engines.copies.SCANNED", 0)
    rng = np.random.default_rng(0)
    texts = (f"{random_text(rng)}. {random_text(rng)}. {random_text(rng)}." for _ in range(900))
    with index_and_copy(tmp_path, texts) as (index, copy):
        queries = [random_text(rng) for _ in range(30)]
        fetched: list[int] = []
        nearest = DuckDB.nearest

        def counting(*args: Any, **options: Any) -> Any:
            candidates = nearest(*args, **options)
            fetched.append(len(candidates))
            return candidates

        monkeypatch.setattr(DuckDB, "nearest", counting)
        expected, found = (it.search(queries, 10) for it in (index, copy))
    shared = [len({*a} & {*b}) for a, b in zip(expected.ids, found.ids, strict=True)]
    assert np.mean(shared) >= 9.8
    assert min(fetched) >= 50
    assert np.mean(fetched) < 450


@contextmanager
def index_and_copy(
    tmp_path: Path, texts: Iterable[str]
) -> Iterator[tuple[Index, Index | Published]]:
    """Give an index sharpened by sentences, and its copy."""
    url = f"duckdb://{tmp_path / 'copy.duckdb'}"
    with fakes.create(tmp_path / "index") as index:
        index.sharpen("sentences")
        index.add({"id": f"d{at}", "text": text} for at, text in enumerate(texts))
        index.publish(url)
        with strop.connect(url, embedder=fakes.Bag(), name="bag", dim=fakes.DIM) as copy:
            yield index, copy


def random_text(rng: np.random.Generator, count: int = 5) -> str:
    words = "an old dog in the snow cat hat tree sea red blue runs".split()
    return " ".join(rng.choice(words, count))


def test_a_copy_has_the_same_feedback(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with index_and_copy(tmp_path, (random_text(rng, 6) for _ in range(90))) as (index, copy):
        for k in (5, 60):
            expected, found = (it.search("an old dog", k) for it in (index, copy))
            assert found.ids.tolist() == expected.ids.tolist()
            np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
        assert (
            expected.ids.tolist() != index.search("an old dog", 60, "sharp:feedback=0").ids.tolist()
        )


@pytest.mark.parametrize("cache_bytes", [1, 10**9])
def test_feedback_of_queries_in_groups(
    cache_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query has the ranking that it has alone, whatever the caches still contain."""
    monkeypatch.setattr("strop.engines.copies.SCANNED", 0)
    monkeypatch.setattr("strop.engines.copies.CACHE_BYTES", cache_bytes)
    monkeypatch.setattr("strop.engines.copies.MAX_FETCHED", 60)
    rng = np.random.default_rng(0)
    texts = (f"{random_text(rng)}. {random_text(rng)}." for _ in range(300))
    with index_and_copy(tmp_path, texts) as (_, copy):
        queries = [random_text(rng) for _ in range(7)]
        alone = [copy.search(query, 5)[0] for query in queries]
        monkeypatch.setattr("strop.engines.published.QUERIES_AT_ONCE", 2)
        assert [*copy.search(queries, 5)] == alone
