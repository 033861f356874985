"""Flipped bits in vector files: no hit uses a damaged row."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.fakes import DIM, create, memory, reopen

from strop import Hits, Index
from strop.errors import IndexDamaged

DAMAGES = 24
COUNT = 60
QUERIES = [f"word{at} grows" for at in range(0, COUNT, 5)]
METHODS = ["trad", "sharp", "sharp:words=1", "hybrid:of=sharp"]


@pytest.fixture(scope="module")
def intact() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="strop-test-", dir=memory()) as folder:
        with create(Path(folder) / "intact") as index:
            index.add(
                {"id": str(at), "text": f"Word{at} grows. More text {at % 3}."}
                for at in range(COUNT)
            )
            index.sharpen()
            index.import_queries({str(at): [f"what grows {at}", "where"] for at in range(9)}, "own")
        yield Path(folder) / "intact"


def damage(path: Path, rng: np.random.Generator) -> tuple[str, set[int]]:
    """Flip bits in a few rows of one file; return its name and the rows."""
    file = rng.choice(sorted((path / "vectors").iterdir()))
    data = bytearray(file.read_bytes())
    rows = set(rng.integers(0, len(data) // (4 * DIM), rng.choice([1, 3, 12])).tolist())
    for row in rows:
        data[4 * DIM * row + int(rng.integers(4 * DIM))] ^= 1 << int(rng.integers(8))
    file.write_bytes(data)
    return file.name, rows


def rows_of(index: Index, name: str, ids: set[str]) -> set[int]:
    """Return the rows of a vector file that belong to documents."""
    snapshot = index.searcher.views.snapshot()
    number_of = index.searcher.catalog.documents.number_of
    sets = index.searcher.catalog.sets.all()
    by_file = {
        f"queries-{query_set.set_id}.f32": snapshot.sets[key] for key, query_set in sets.items()
    }
    spans = by_file.get(name, snapshot.documents)
    places = np.searchsorted(snapshot.numbers, [number_of(id_) for id_ in ids])
    return {
        row
        for place in places.tolist()
        for row in range(spans.start[place], spans.start[place] + spans.count[place])
    }


def test_no_hit_uses_a_damaged_row(intact: Path) -> None:
    with reopen(intact) as index:
        expected = {method: index.search(QUERIES, k=3, method=method) for method in METHODS}
    path, rng = intact.parent / "damaged", np.random.default_rng(0)
    refused: Counter[str] = Counter()
    for _ in range(DAMAGES):
        shutil.copytree(intact, path)
        name, damaged = damage(path, rng)
        for method in METHODS:
            with reopen(path) as index:
                refused[method] += is_refused(index, method, expected[method], name, damaged)
        with reopen(path) as index:
            assert any(name in problem for problem in index.check())
            index.check(repair=True)
            for method in METHODS:
                hits = index.search(QUERIES, k=3, method=method)
                assert hits.ids.tolist() == expected[method].ids.tolist()
            assert index.check() == []
        shutil.rmtree(path)
    assert all(0 < refused[method] < DAMAGES for method in METHODS)


def is_refused(index: Index, method: str, expected: Hits, name: str, damaged: set[int]) -> bool:
    """Return whether a search reports the damage; if not, check that its hits do not use it."""
    try:
        hits = index.search(QUERIES, k=3, method=method)
    except IndexDamaged as error:
        assert "strop check" in str(error)  # noqa: PT017
        return True
    if method != "trad" or name == "documents.f32":
        assert not damaged & rows_of(index, name, set(hits.ids.ravel().tolist()))
    for at, ids in enumerate(hits.ids.tolist()):
        scores = dict(zip(expected.ids[at].tolist(), expected.scores[at], strict=True))
        for id_, score in zip(ids, hits.scores[at].tolist(), strict=True):
            if id_ in scores and "hybrid" not in method:
                assert score == pytest.approx(scores[id_], abs=1e-5)
    return False
