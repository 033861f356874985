"""A copy in an object store: LanceDB behind S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.commands import strop
from helpers.object_store import object_store

from strop import Document, Index, connect
from strop.engines import copies, open_engine
from strop.errors import BadIndex, BadInput, IndexBusy

TREES = ["Alders grow by rivers.", "Birches are white. Birds like them.", "Cedars smell good."]
QUERY = "which trees grow by rivers?"


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """One store for all tests: LanceDB caches the address of a bucket."""
    for package in ("moto", "flask", "flask_cors"):
        pytest.importorskip(package, reason="pip install 'moto[s3]' flask flask-cors")
    pytest.importorskip("lancedb", reason="pip install 'strop[lancedb]'")
    with object_store("forest") as environment:
        yield environment


@pytest.fixture
def url(
    store: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    return f"lancedb+s3://forest/copies/{request.node.name}"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "index") as index:
        index.sharpen("sentences")
        index.add([Document(f"d{i}", text, metadata={"n": i}) for i, text in enumerate(TREES)])
        yield index


def assert_same(index: Index, url: str) -> None:
    with connect(url) as copy:
        assert copy.check() == []
        for where in (None, {"n": {"$gte": 1}}):
            expected, found = (it.search(QUERY, k=3, where=where)[0] for it in (index, copy))
            assert [(hit.id, hit.text) for hit in found] == [(hit.id, hit.text) for hit in expected]
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected])


def test_a_copy_in_an_object_store_follows_its_index(
    index: Index, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadIndex, match="holds no copy"):
        connect(url)
    monkeypatch.setattr(copies, "SCANNED", 0)  # use the search for nearest rows
    index.publish(url)
    assert_same(index, url)
    index.add([Document("d1", "Birches grow everywhere."), Document("new", "Elms by rivers.")])
    index.remove(["d2"])
    done = index.publish(url)
    assert (done.new, done.changed, done.removed) == (1, 1, 1)
    assert_same(index, url)
    assert open_engine(url).size() > 0


def test_one_publisher_at_a_time(index: Index, url: str) -> None:
    first, second = open_engine(url), open_engine(url)
    with (
        first.publishing(index.dim),
        pytest.raises(IndexBusy, match="another process is publishing"),
        second.publishing(index.dim),
    ):
        raise AssertionError
    with second.publishing(index.dim):
        pass


@pytest.mark.parametrize(
    "rest",
    [
        "key:secret@forest/copies", "key:se/secret@forest/x", "secret@forest/x",
        "forest/x?aws_secret_access_key=secret", "forest/x%3Fkey=secret",
    ],
)  # fmt: skip
def test_a_secret_in_the_url_is_refused_and_not_shown(rest: str) -> None:
    with pytest.raises(BadInput, match="environment") as error:
        connect(f"lancedb+s3://{rest}")
    assert "secret" not in str(error.value)


def test_a_url_without_a_bucket_is_refused() -> None:
    pytest.importorskip("lancedb", reason="pip install 'strop[lancedb]'")
    with pytest.raises(BadInput, match="names no bucket"):
        connect("lancedb+s3:///copies")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("duckdb://", "names no place"), ("lancedb://", "names no place"),
        ("duckdb://copy.duckdb?table=other", "only PostgreSQL"),
        ("duckdb:copy.duckdb", "duckdb://"), ("lancedb+s3:/key:secret@b/x", "lancedb\\+s3://"),
    ],
)  # fmt: skip
def test_an_incomplete_url_is_refused(url: str, reason: str) -> None:
    for open_url in (connect, open_engine):
        with pytest.raises(BadInput, match=reason) as error:
            open_url(url)
        assert "secret" not in str(error.value)


def test_a_mistyped_url_gets_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, suggestion in (
        ("duckbd://copy.duckdb", "duckdb://copy.duckdb"),
        ("postgress://me:secret@host/db", "postgres://me:***@host/db"),
        ("lance:///folder", "lancedb:///folder"),
    ):
        with pytest.raises(BadInput) as error:
            connect(url)
        assert str(error.value).endswith(f". Did you mean {suggestion}?")
    pytest.importorskip("duckdb", reason="pip install 'strop[duckdb]'")
    with Index.create("index") as index:
        with pytest.raises(BadInput, match=r"; did you mean duckdb://dev/null/copy\?$"):
            index.publish("duckdb:///dev/null/copy")
        index.publish("duckdb://copy.duckdb")
    with pytest.raises(BadIndex, match=r"did you mean duckdb://copy\.duckdb\?$"):
        connect("duckdb:///copy.duckdb")
    with pytest.raises(BadIndex, match=r"holds no copy: strop publish INDEX URL makes one$"):
        connect("duckdb:///other.duckdb")


def test_creating_an_index_at_a_url_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("duckdb://copy.duckdb", Path("duckdb://copy.duckdb")):
        with pytest.raises(BadInput, match="an index is a folder"):
            Index.create(place)
    with pytest.raises(BadInput, match=r"copy\.duckdb is not a URL: write duckdb://copy\.duckdb$"):
        open_engine("copy.duckdb")
    for place in ("qdrant://me:secret@127.0.0.1:1/db", Path("qdrant://me:secret@127.0.0.1:1/db")):
        with pytest.raises(BadInput, match=r"strop\.connect\(URL\)") as error:
            Index.open(place)
        assert "secret" not in str(error.value)
    result = strop("build", "postgresql://me:secret@127.0.0.1:1/db", "-o", "x.index")
    assert result.code == 1
    assert "--source" in result.stderr
    assert "secret" not in result.stderr
    assert not list(tmp_path.iterdir())
