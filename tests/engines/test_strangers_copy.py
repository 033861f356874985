"""A copy from an untrusted source: its views read no other file."""

from __future__ import annotations

from pathlib import Path

import pytest

import strop
from strop.errors import StropError

duckdb = pytest.importorskip("duckdb")


def test_a_view_of_a_duckdb_copy_reads_no_file(tmp_path: Path) -> None:
    secret, copy = tmp_path / "secret.txt", tmp_path / "copy.duckdb"
    secret.write_text("a key", "utf-8")
    with strop.Index.create(tmp_path / "mine.index") as index:
        index.add([{"id": "a", "text": "cats purr"}])
        index.publish(f"duckdb://{copy}")
    with duckdb.connect(str(copy)) as connection:
        connection.execute("ALTER TABLE pieces RENAME TO taken")
        columns = ", ".join(
            f"content::BLOB AS {name}" if name == "content" else f"'x' AS {name}"
            for (name,) in connection.execute(
                "SELECT column_name FROM duckdb_columns() WHERE table_name = 'taken'"
            ).fetchall()
        )
        connection.execute(f"CREATE VIEW pieces AS SELECT {columns} FROM read_text('{secret}')")
    with pytest.raises(StropError, match=r"(?i)permission|disabled|no copy|damaged") as error:
        strop.connect(f"duckdb://{copy}").search("cats")
    assert "a key" not in str(error.value)


def test_a_source_must_be_one_select() -> None:
    from strop.engines.postgres_source import checked_source
    from strop.errors import BadInput

    for query in ("SELECT\n id, text FROM d;", "WITH\tx AS (SELECT 1) SELECT ';' AS id FROM x"):
        assert checked_source(query) == query.removesuffix(";")
    for query in (
        "",
        "DROP TABLE d",
        ";",
        "SELECT 1; DROP TABLE d",
        "SELECT ';' AS a; DROP TABLE d",
    ):
        with pytest.raises(BadInput, match="one SELECT"):
            checked_source(query)


def test_a_source_without_rows_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strop.engines import postgres_source
    from strop.errors import BadInput

    monkeypatch.setattr(postgres_source, "read_source", lambda *_: iter(()))
    with strop.Index.create(tmp_path / "mine.index") as index:
        index.add([{"id": "a", "text": "cats purr"}])
        with pytest.raises(BadInput, match="selects no row"):
            postgres_source.sync_source(index, "postgresql://x/y", "SELECT 1 WHERE false")
        assert index.ids() == ["a"]
