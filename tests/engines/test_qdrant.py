"""Rows in Qdrant, which point to documents, and the vectors that an open copy caches."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fakes import DIM, Bag, create, reopen

from strop import Index, connect
from strop.engines import copies, published
from strop.engines.published import Published
from strop.errors import BadIndex, BadInput

SIZE = 120
"""Too many to score all: more than twice the 50 that feedback ranks again."""


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index and its copy."""
    pytest.importorskip("qdrant_client", reason="pip install 'strop[qdrant]'")
    folder = tmp_path_factory.mktemp("made")
    with create(folder / "index") as index:
        index.sharpen()
        text = "Alder{0} grows in the rain of spring. Elm{0} stands in the sun. Fir{0} sleeps."
        index.add({"id": f"d{at}", "text": text.format(at)} for at in range(SIZE))
        index.publish(f"qdrant://{folder}/qdrant/copy")
    return folder


@pytest.fixture
def url(tmp_path: Path, published_folder: Path) -> str:
    """The URL of a copy of the index."""
    shutil.copytree(published_folder / "qdrant", tmp_path / "qdrant")
    return f"qdrant://{tmp_path}/qdrant/copy"


@pytest.fixture
def index(
    tmp_path: Path, published_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Index]:
    monkeypatch.setattr(copies, "SCANNED", 0)
    monkeypatch.setattr(published, "FRESH", 0.0)
    shutil.copytree(published_folder / "index", tmp_path / "index")
    with reopen(tmp_path / "index") as index:
        yield index


def open_copy(url: str) -> Published:
    copy = connect(url, Bag(), name="bag", dim=DIM)
    assert isinstance(copy, Published)
    return copy


def publish_until(index: Index, url: str, step: str) -> None:
    """Publish and interrupt at the engine's method ``step``."""
    from strop.engines.qdrant import Qdrant

    def interrupt(self: Qdrant, arguments: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Qdrant, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            index.publish(url)


def rows_of(url: str) -> dict[int, int]:
    """Return how many rows point to each document."""
    from qdrant_client import QdrantClient

    client = QdrantClient(path=str(Path(url.removeprefix("qdrant://")).parent))
    points, _ = client.scroll("copy-rows", limit=1000, with_payload=["number"])
    client.close()
    return Counter(point.payload["number"] for point in points if point.payload)


def test_rows_follow_their_documents(index: Index, url: str) -> None:
    """Outdated rows are removed, also after a publisher was interrupted."""
    before = rows_of(url)
    changed = index.catalog.documents.number_of("d3")
    removed = index.catalog.documents.number_of("d4")
    index.add([{"id": "d3", "text": "Short."}])
    index.remove(["d4"])
    publish_until(index, url, "remove")
    index.publish(url)
    rows = rows_of(url)
    assert 1 <= rows[changed] < before[changed]
    assert removed not in rows
    assert len(rows) == SIZE - 1
    with open_copy(url) as copy:
        assert copy.search("short", 1).ids[0, 0] == "d3"


def test_scored_vectors_are_cached(index: Index, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the copy changes, or the cache is full."""
    from strop.engines.qdrant import Qdrant

    fetched: list[int] = []
    packed_vectors = Qdrant.packed_vectors

    def counting(self: Qdrant, numbers: Any) -> Any:
        fetched.append(len(numbers))
        return packed_vectors(self, numbers)

    monkeypatch.setattr(Qdrant, "packed_vectors", counting)
    with open_copy(url) as copy:
        first = copy.search("alder3 grows", 5)
        assert sum(fetched) > 5
        fetched.clear()
        again = copy.search("alder3 grows", 5, fields=())
        assert fetched == []
        copy.search("alder3 grows", 5)
        assert sum(fetched) == 5  # with texts, vectors are read again: both must be of one version
        assert again.ids.tolist() == first.ids.tolist()
        assert again.scores.tolist() == first.scores.tolist()
        index.add([{"id": "d3", "text": "Alder3 grows. Alder3 grows again. Alder3 grows."}])
        index.publish(url)
        fetched.clear()
        assert copy.search("alder3 grows", 5, fields=()).ids[0, 0] == "d3"
        assert sum(fetched) > 0
        monkeypatch.setattr(copies, "CACHE_BYTES", 1)
        copy.search("elm7", 5, fields=())
        fetched.clear()
        copy.search("elm7", 5, fields=())
        assert sum(fetched) > 0


def test_many_queries_have_the_same_hits_as_single_ones(
    index: Index, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries are searched in groups, which share the cache."""
    from strop.engines.qdrant import Qdrant

    queries = [f"alder{at} stands in the sun" for at in range(70)]
    fetched = Counter[int]()
    packed_vectors = Qdrant.packed_vectors

    def counting(self: Qdrant, numbers: Any) -> Any:
        fetched.update(numbers.tolist())
        return packed_vectors(self, numbers)

    with open_copy(url) as copy, open_copy(url) as other_copy:
        expected = [other_copy.search(query, 3)[0] for query in queries]
        monkeypatch.setattr(Qdrant, "packed_vectors", counting)
        assert [*copy.search(queries, 3)] == expected
        assert max(fetched.values()) == 2  # for scoring, and with the texts
        fetched.clear()
        ids = copy.search(queries, 3, fields=()).ids.tolist()
        assert ids == [[hit.id for hit in hits] for hits in expected]
        assert not fetched


def test_all_queries_of_a_search_see_the_same_vectors(
    index: Index, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another search reads a replaced document between two groups of queries."""
    from strop.engines.qdrant import Qdrant

    nearest, calls = Qdrant.nearest, list[int]()
    with open_copy(url) as copy:
        queries = ["alder3 grows"] * 70
        copy.search(queries[0], 5)

        def replacing(self: Qdrant, *arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 65:  # the first query of the second group
                index.add([{"id": "d3", "text": "Alder3 grows. Alder3 grows."}])
                publish_until(index, url, "write")
                copy.search(queries[0], 5, "trad")  # reads the new record
            return nearest(self, *arguments)

        monkeypatch.setattr(Qdrant, "nearest", replacing)
        rows = [*copy.search(queries, 5)]
        assert len(calls) > 130  # the search started again
        assert [hits[0] for hits in rows] == [copy.search(queries[0], 5)[0][0]] * 70


def test_graphs_are_int8_and_missing_payload_indexes_are_created(
    index: Index, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdrant_client import QdrantClient

    indexes = list[tuple[str, str]]()
    monkeypatch.setattr(
        QdrantClient,
        "create_payload_index",
        lambda self, collection, key, kind: indexes.append((collection, key)),
    )
    index.publish(url)  # an earlier publisher may have been killed before it created them
    keys = [("copy-rows", "number"), ("copy", "id"), ("copy", "facts"), ("copy", "kinds")]
    assert indexes == keys
    client = QdrantClient(path=str(Path(url.removeprefix("qdrant://")).parent))
    for collection, vectors in (("copy-rows", "row"), ("copy", "own")):
        params: Any = client.get_collection(collection).config.params.vectors
        assert params[vectors].quantization_config.scalar.quantile == 0.99
    client.close()


def test_reading_and_a_dry_run_create_no_folder(index: Index, url: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    url = f"qdrant://{tmp_path}/new/copy"
    with pytest.raises(BadIndex, match="holds no copy"):
        open_copy(url)
    assert index.publish(url, dry_run=True).new == len(index)
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(BadInput, match="names no folder"):
        open_copy("qdrant:///copy")


def test_text_and_score_are_of_one_version(index: Index, url: str) -> None:
    """Also if an interrupted publisher has replaced a cached document."""
    with open_copy(url) as copy:
        before = copy.search("alder3 grows", 1)[0][0]
        index.add([{"id": "d3", "text": "Alder3 grows. Alder3 grows."}])
        publish_until(index, url, "write")
        after = copy.search("alder3 grows", 1)[0][0]
        with open_copy(url) as fresh:
            assert after == fresh.search("alder3 grows", 1)[0][0]
        assert after.text == "Alder3 grows. Alder3 grows."
        assert after.score != before.score
