"""Publishing to a database that holds something else is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.fakes import DIM, create

from strop import Index, connect
from strop.errors import BadInput, StropError


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with create(tmp_path / "index") as index:
        index.add([{"id": "a", "text": "Alder grows."}])
        yield index


@pytest.mark.parametrize("table", ["orders", "documents", "rows"])
def test_a_foreign_duckdb_file_is_refused(index: Index, tmp_path: Path, table: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "mine.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute(f"CREATE TABLE {table} AS SELECT range AS id FROM range(1000)")
    for dry_run in (False, True, False):
        with pytest.raises(BadInput, match=rf"its tables: {table}\): publish to a new file"):
            index.publish(f"duckdb://{path}", dry_run=dry_run)
        with pytest.raises(StropError, match="holds no copy but other tables"):
            connect(f"duckdb://{path}")
        assert not path.with_name("mine.duckdb.new").exists()
    with duckdb.connect(str(path)) as database:
        assert database.execute(f"SELECT count(*) FROM {table}").fetchall() == [(1000,)]


def test_foreign_tables_next_to_a_copy_are_kept(index: Index, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "copy.duckdb"
    index.publish(f"duckdb://{path}")
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE notes AS SELECT 7 AS seven")
    index.add([{"id": "b", "text": "Birch grows."}])
    assert index.publish(f"duckdb://{path}").new == 1
    with duckdb.connect(str(path)) as database:
        assert database.execute("SELECT seven FROM notes").fetchall() == [(7,)]


def test_a_file_that_is_not_a_duckdb_file_is_refused(index: Index, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    path = tmp_path / "letters.txt"
    path.write_text("Dear reader, " * 1000)
    for _ in range(2):
        with pytest.raises(StropError, match="letters"):
            index.publish(f"duckdb://{path}")
    assert path.read_text() == "Dear reader, " * 1000


def test_a_foreign_lancedb_table_is_refused(index: Index, tmp_path: Path) -> None:
    lancedb = pytest.importorskip("lancedb")
    database = lancedb.connect(str(tmp_path / "lance"))
    database.create_table("documents", [{"id": 1, "text": "mine"}])
    for dry_run in (True, False):
        with pytest.raises(BadInput, match="has a table 'documents' of something else"):
            index.publish(f"lancedb://{tmp_path / 'lance'}", dry_run=dry_run)
    assert database.open_table("documents").to_arrow().to_pylist() == [{"id": 1, "text": "mine"}]


def test_a_foreign_qdrant_collection_is_refused(index: Index, tmp_path: Path) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    from qdrant_client import models

    client = qdrant.QdrantClient(path=str(tmp_path / "qdrant"))
    params = models.VectorParams(size=DIM, distance=models.Distance.DOT)
    client.create_collection("mine", {"own": params})
    point = models.PointStruct(id=1, vector={"own": [1.0] * DIM}, payload={"text": "mine"})
    client.upsert("mine", [point])
    client.close()
    for dry_run in (True, False):
        with pytest.raises(BadInput, match="is no copy: publish to a new name"):
            index.publish(f"qdrant://{tmp_path / 'qdrant'}/mine", dry_run=dry_run)
    client = qdrant.QdrantClient(path=str(tmp_path / "qdrant"))
    (kept,) = client.retrieve("mine", [1], with_payload=True)
    assert kept.payload == {"text": "mine"}
    assert len(client.get_collections().collections) == 1
    client.close()
