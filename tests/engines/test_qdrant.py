"""Qdrant's rows, which point to documents, and the vectors that an open copy remembers."""

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
"""More than are all scored: twice the 50 that feedback ranks again."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def url(tmp_path: Path, made: Path) -> str:
    """The URL of a copy of the index."""
    shutil.copytree(made / "qdrant", tmp_path / "qdrant")
    return f"qdrant://{tmp_path}/qdrant/copy"


@pytest.fixture
def index(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(copies, "SCANNED", 0)
    monkeypatch.setattr(published, "FRESH", 0.0)
    shutil.copytree(made / "index", tmp_path / "index")
    with reopen(tmp_path / "index") as index:
        yield index


def open_copy(url: str) -> Published:
    copy = connect(url, Bag(), name="bag", dim=DIM)
    assert isinstance(copy, Published)
    return copy


def publish_until(index: Index, url: str, step: str) -> None:
    """Publish, and be stopped where the engine would do ``step``."""
    from strop.engines.qdrant import Qdrant

    def stopped(self: Qdrant, given: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Qdrant, step, stopped)
        with pytest.raises(KeyboardInterrupt):
            index.publish(url)


def rows_of(url: str) -> dict[int, int]:
    """Return how many rows point to each document."""
    from qdrant_client import QdrantClient

    client = QdrantClient(path=str(Path(url.removeprefix("qdrant://")).parent))
    points, _ = client.scroll("copy-rows", limit=1000, with_payload=["number"])
    client.close()
    return Counter(one.payload["number"] for one in points if one.payload)


def test_rows_follow_their_documents(index: Index, url: str) -> None:
    """Those that a document has no more are gone, also after a publisher was stopped."""
    before = rows_of(url)
    changed = index.catalog.documents.number_of("d3")
    gone = index.catalog.documents.number_of("d4")
    index.add([{"id": "d3", "text": "Short."}])
    index.remove(["d4"])
    publish_until(index, url, "remove")
    index.publish(url)
    rows = rows_of(url)
    assert 1 <= rows[changed] < before[changed]
    assert gone not in rows
    assert len(rows) == SIZE - 1
    with open_copy(url) as copy:
        assert copy.search("short", 1).ids[0, 0] == "d3"


def test_what_was_scored_is_fetched_once(
    index: Index, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the copy changes; more than there is room for is fetched again."""
    from strop.engines.qdrant import Qdrant

    fetched: list[int] = []
    packed_vectors = Qdrant.packed_vectors

    def counted(self: Qdrant, numbers: Any) -> Any:
        fetched.append(len(numbers))
        return packed_vectors(self, numbers)

    monkeypatch.setattr(Qdrant, "packed_vectors", counted)
    with open_copy(url) as copy:
        first = copy.search("alder3 grows", 5)
        assert sum(fetched) > 5
        fetched.clear()
        again = copy.search("alder3 grows", 5, fields=())
        assert fetched == []
        copy.search("alder3 grows", 5)
        assert sum(fetched) == 5  # where texts are read too, they must be of the same moment
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


def test_many_queries_are_answered_as_each_alone(
    index: Index, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are searched in groups, and what one group fetched serves the next."""
    from strop.engines.qdrant import Qdrant

    queries = [f"alder{at} stands in the sun" for at in range(70)]
    fetched = Counter[int]()
    packed_vectors = Qdrant.packed_vectors

    def counted(self: Qdrant, numbers: Any) -> Any:
        fetched.update(numbers.tolist())
        return packed_vectors(self, numbers)

    with open_copy(url) as copy, open_copy(url) as other:
        alone = [other.search(query, 3)[0] for query in queries]
        monkeypatch.setattr(Qdrant, "packed_vectors", counted)
        assert [*copy.search(queries, 3)] == alone
        assert max(fetched.values()) == 2  # when it is scored, and where texts are read
        fetched.clear()
        ids = copy.search(queries, 3, fields=()).ids.tolist()
        assert ids == [[hit.id for hit in hits] for hits in alone]
        assert not fetched


def test_all_queries_of_a_search_see_the_same_vectors(
    index: Index, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document is replaced, and read by another search, between two groups of queries."""
    from strop.engines.qdrant import Qdrant

    nearest, calls = Qdrant.nearest, list[int]()
    with open_copy(url) as copy:
        queries = ["alder3 grows"] * 70
        copy.search(queries[0], 5)

        def replacing(self: Qdrant, *given: Any) -> Any:
            calls.append(1)
            if len(calls) == 65:  # the first query of the second group
                index.add([{"id": "d3", "text": "Alder3 grows. Alder3 grows."}])
                publish_until(index, url, "write")
                copy.search(queries[0], 5, "trad")  # reads the new record
            return nearest(self, *given)

        monkeypatch.setattr(Qdrant, "nearest", replacing)
        rows = [*copy.search(queries, 5)]
        assert len(calls) > 130  # the search began anew
        assert [hits[0] for hits in rows] == [copy.search(queries[0], 5)[0][0]] * 70


def test_graphs_are_of_int8_and_payload_indexes_are_made_where_they_lack(
    index: Index, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdrant_client import QdrantClient

    indexes = list[tuple[str, str]]()
    monkeypatch.setattr(
        QdrantClient,
        "create_payload_index",
        lambda self, collection, key, kind: indexes.append((collection, key)),
    )
    index.publish(url)  # the one before may have been killed between collection and index
    keys = [("copy-rows", "number"), ("copy", "id"), ("copy", "facts"), ("copy", "kinds")]
    assert indexes == keys
    client = QdrantClient(path=str(Path(url.removeprefix("qdrant://")).parent))
    for collection, vectors in (("copy-rows", "row"), ("copy", "own")):
        params: Any = client.get_collection(collection).config.params.vectors
        assert params[vectors].quantization_config.scalar.quantile == 0.99
    client.close()


def test_reading_and_a_dry_run_make_no_folder(index: Index, url: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    url = f"qdrant://{tmp_path}/new/copy"
    with pytest.raises(BadIndex, match="holds no copy"):
        open_copy(url)
    assert index.publish(url, dry_run=True).new == len(index)
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(BadInput, match="names no folder"):
        open_copy("qdrant:///copy")


def test_text_and_score_are_of_one_moment(index: Index, url: str) -> None:
    """Also while a publisher that was stopped has replaced a document that is remembered."""
    with open_copy(url) as copy:
        before = copy.search("alder3 grows", 1)[0][0]
        index.add([{"id": "d3", "text": "Alder3 grows. Alder3 grows."}])
        publish_until(index, url, "write")
        after = copy.search("alder3 grows", 1)[0][0]
        with open_copy(url) as fresh:
            assert after == fresh.search("alder3 grows", 1)[0][0]
        assert after.text == "Alder3 grows. Alder3 grows."
        assert after.score != before.score
