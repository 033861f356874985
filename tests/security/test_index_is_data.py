"""An untrusted index is data: it runs no code, gets no key and touches no file outside."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cases import make_case
from helpers.fakes import DIM, create, reopen

from strop import Index
from strop.errors import BadIndex, BadInput, IndexDamaged
from strop.search.prefilter.table import CodeTable
from strop.storage.sidecar import write_arrays
from strop.storage.trust import needs_consent, trust_file


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("security") / "index"
    with create(path) as index:
        index.add(
            {"id": str(at), "text": f"Word{at} grows. More text {at % 3}.", "seen": at}
            for at in range(20)
        )
        index.sharpen()
        index.import_queries({str(at): [f"what grows {at}", "where"] for at in range(9)}, "simple")
        index.select_references()
        index.remove(["19"])
    return path


@pytest.fixture
def path(intact: Path, tmp_path: Path) -> Path:
    shutil.copytree(intact, tmp_path / "index")
    return tmp_path / "index"


def edit(path: Path, sql: str, *values: Any) -> None:
    with closing(sqlite3.connect(path / "catalog.sqlite")) as connection, connection:
        connection.execute(sql, values)


def set_embedder(path: Path, **changes: Any) -> None:
    """Change the embedder stored in an index, as its author could."""
    with closing(sqlite3.connect(path / "catalog.sqlite")) as connection, connection:
        (value,) = connection.execute("SELECT value FROM meta WHERE key='embedder'").fetchone()
        record = {**json.loads(value), **changes}
        connection.execute("UPDATE meta SET value=? WHERE key='embedder'", (json.dumps(record),))


# -- code and addresses ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("st:/tmp/somebody/model", {"trust_remote_code": True}),
        ("st:/tmp/somebody/model", {}),
        ("st:some/model", {"trust_remote_code": True}),
        ("contriever", {"path": "/tmp/somebody/model"}),
        ("api:x", {"base_url": "http://127.0.0.1:9/v1"}),
    ],
)
def test_embedders_that_run_code_or_send_a_key_need_consent(
    path: Path, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[str, dict[str, Any]]] = []

    def load(spec: str, options: dict[str, Any]) -> Any:
        loaded.append((spec, dict(options)))
        raise BadInput("loaded")

    monkeypatch.setattr("strop.storage.intake.load_embedder", load)
    set_embedder(path, name=name, options=options)
    with Index.open(path) as index:
        with pytest.raises(BadIndex, match="strop trust"):
            index.search("a query")
        with pytest.raises(BadIndex, match="strop trust"):
            Index.open(path, batch_size=8)  # options of the user are no consent to the stored ones
        assert loaded == []
        covered = index.trust()
        assert len(covered) >= 1
        with pytest.raises(BadInput, match="loaded"):
            index.search("a query")
        assert loaded == [(name, options)]
    set_embedder(path, name=name, options={**options, "base_url": "http://elsewhere/v1"})
    with Index.open(path) as index, pytest.raises(BadIndex, match="elsewhere"):
        index.search("a query")  # the consent was for other options
    assert "trusted.json" in str(trust_file())


def test_a_base_url_in_the_environment_needs_no_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"base_url": "http://127.0.0.1:9/v1/"}
    assert needs_consent("api:x", options)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert not needs_consent("api:x", options)


def test_options_without_effect_on_vectors_are_neither_stored_nor_used(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {
        "dimensions": 8,
        "concurrency": 3,
        "retries": 0,
        "backoff": 0.1,
        "timeout": 5.0,
    }
    with Index.create(tmp_path / "index", "api:x", **options) as index:
        assert index.info()["embedder"]["options"] == {"dimensions": 8}
    set_embedder(
        tmp_path / "index", options={"dimensions": 8, "concurrency": 10**9, "transport": "x"}
    )
    with Index.open(tmp_path / "index") as index:
        assert index.embedder.options == {"dimensions": 8}


def test_an_index_created_by_the_user_needs_no_consent(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    with Index.create(tmp_path / "new", "api:x", base_url=url, dimensions=8, retries=0):
        pass
    with Index.open(tmp_path / "new") as index:
        assert index.embedder.name == "api:x"
    with Index.open(tmp_path / "new", max_chars=100) as index:  # changes no accepted text
        assert index.embedder.options["max_chars"] == 100
        assert index.embedder.options["base_url"] == url  # texts go nowhere else


# -- names and links -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../outside.f32", "/etc/passwd", "documents.f32/../../outside.f32", "queries-1.i8", "x", ""],
)
def test_file_names_outside_the_index_are_refused(path: Path, name: str) -> None:
    outside = path.parent / "outside.f32"
    outside.write_bytes(b"precious")
    edit(path, "UPDATE files SET name = ? WHERE set_id = 0", name)
    for operation in (Index.info, Index.finish, Index.compact):
        with pytest.raises(IndexDamaged, match="files"), reopen(path) as index:
            operation(index)
    with reopen(path) as index:
        assert any("table files" in problem for problem in index.check())
    assert outside.read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "spans-1", 7])
def test_sidecar_names_outside_the_index_are_refused(path: Path, name: Any) -> None:
    outside = path.parent / "outside"
    outside.write_bytes(b"precious")
    for kind in ("spans", "candidates"):
        edit(path, "INSERT INTO meta VALUES (?, ?)", f"sidecar:{kind}", json.dumps(name))
    with pytest.raises(IndexDamaged, match="sidecar"), reopen(path) as index:
        index.finish()
    assert outside.read_bytes() == b"precious"


@pytest.mark.parametrize("shape", ["small type", "short"])
def test_cached_spans_of_another_type_or_shape_are_ignored(path: Path, shape: str) -> None:
    """Sums of a small integer type could overflow and point outside the file."""
    with reopen(path) as index:
        expected = index.search("what grows 3", k=5).ids.tolist()
        numbers = index.searcher.views.snapshot().numbers
        version = index.catalog.settings.number("version")
        ids = [0, *(query_set.set_id for query_set in index.catalog.sets.all().values())]
    spans = np.zeros((3, len(numbers)), np.int8) if shape == "small type" else np.zeros((3, 1), int)
    name = f"spans-{1:032x}"
    columns = {str(set_id): spans for set_id in ids}
    columns["0"] = columns["0"] + np.array([[0], [1], [0]], spans.dtype)
    write_arrays(path / "cache" / name, {"numbers": numbers, **columns}, {"version": version})
    edit(path, "INSERT OR REPLACE INTO meta VALUES ('sidecar:spans', ?)", json.dumps(name))
    with reopen(path) as index:
        assert index.search("what grows 3", k=5).ids.tolist() == expected


@pytest.mark.parametrize(
    "name",
    (
        "records signs sign_factors sources one_word_too_few one_row_too_few one_list_too_long"
        " lists_whose_sum_overflows another_dim negative_dim no_number_of_dims other_names"
    ).split(),
)
def test_inconsistent_arrays_of_search_codes_are_refused(tmp_path: Path, name: str) -> None:
    """Compiled code reads them without bounds checks."""
    layout = make_case(0, (1, 30, 16, 1, 4), exact=False).layout()
    sources = np.stack([np.arange(30), np.ones(30, np.int64), np.diff(layout.offsets)], axis=1)
    table, counts = CodeTable.of(layout, sources, ["simple"]), sources.copy()[:, 2]
    table.write(tmp_path / "good")
    assert len(CodeTable.open(tmp_path / "good")) == 30
    if name == "one_row_too_few":
        table = replace(table, sources=sources[:-1])
    elif name == "one_list_too_long":  # the next list is too short by the same number
        counts[3:5] += [counts[4] + 2, -counts[4] - 2]
        table = replace(table, sources=np.column_stack([sources[:, :2], counts]))
    elif name == "one_word_too_few":
        table = replace(table, records=table.records[:-1])
    elif name.endswith(("dim", "dims")):
        dims: Any = {"another_dim": 24, "negative_dim": -16, "no_number_of_dims": 16.0}
        table = replace(table, dim=dims[name])
    elif name == "other_names":
        names: Any = [1]
        table = replace(table, sets=names)
    elif name == "lists_whose_sum_overflows":
        counts[3:7] += [2**62, 2**62, 2**62, 2**62]
        table = replace(table, sources=np.column_stack([sources[:, :2], counts]))
    else:
        of_other_type: Any = {name: np.zeros(getattr(table, name).shape, np.float16)}
        table = replace(table, **of_other_type)
    table.write(tmp_path / "bad")
    with pytest.raises(IndexDamaged, match="do not belong together"):
        CodeTable.open(tmp_path / "bad")


def test_linked_folders_are_used_and_not_cleaned_up(path: Path) -> None:
    other = path.parent / "elsewhere"
    (path / "vectors").rename(other)
    (path / "vectors").symlink_to(other)
    (other / "queries-77.i8").write_bytes(b"of another index")
    (path / "cache").symlink_to(other) if not (path / "cache").exists() else None
    (other / f"spans-{1:032x}").write_bytes(b"of another index")
    with reopen(path) as index:
        index.add([{"id": "new", "text": "A new text."}])
        assert index.search("new text", k=1).ids[0, 0] == "new"
    assert (other / "queries-77.i8").exists()
    assert (other / f"spans-{1:032x}").exists()


def test_a_file_that_is_a_link_is_neither_read_nor_written(path: Path) -> None:
    outside = path.parent / "outside"
    file = path / "vectors" / "documents.f32"
    shutil.copy(file, outside)
    before = outside.read_bytes()
    file.unlink()
    file.symlink_to(outside)
    with reopen(path) as index:
        for operation in (
            lambda: index.search("a"),
            lambda: index.add([{"id": "n", "text": "New."}]),
        ):
            with pytest.raises(BadIndex, match="is a link"):
                operation()
    assert outside.read_bytes() == before


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_catalog_that_is_a_link_is_refused(path: Path, suffix: str) -> None:
    file = path / f"catalog.sqlite{suffix}"
    outside = path.parent / "outside"
    if file.exists():
        file.rename(outside)
    file.symlink_to(outside)
    with pytest.raises(BadIndex, match="is a link"):
        reopen(path)
    assert suffix == "" or not outside.exists()


# -- invalid values in the catalog -----------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE spans SET start = 10000 WHERE set_id = 0 AND number = 3",
        "UPDATE spans SET start = -1 WHERE set_id = 1 AND number = 3",
        "UPDATE spans SET count = 999999 WHERE set_id = 1 AND number = 3",
        "UPDATE spans SET count = 2 WHERE set_id = 0 AND number = 3",
        "UPDATE meta SET value = 'junk' WHERE key = 'version'",
        "UPDATE meta SET value = '-3' WHERE key = 'version'",
        "UPDATE meta SET value = '[]' WHERE key = 'embedder'",
        "UPDATE files SET rows = -1",
        "UPDATE spans SET start = 1.5 WHERE set_id = 0 AND number = 9",
        "UPDATE spans SET start = 'x' WHERE set_id = 0 AND number = 9",
        "UPDATE spans SET count = x'01' WHERE set_id = 1 AND number = 9",
        "UPDATE files SET dtype = 'float64'",
        "UPDATE sets SET settings = json_remove(settings, '$.kind')",
        "UPDATE sets SET settings = json_set(settings, '$.kind', 'else')",
        "UPDATE sets SET settings = json_remove(settings, '$.n')",
        "UPDATE sets SET settings = json_set(settings, '$.n', 'x')",
        "UPDATE sets SET settings = json_set(settings, '$.source', 'augmented')",
    ],
)
def test_an_invalid_catalog_is_refused_with_a_remedy_and_reported_by_check(
    path: Path, sql: str
) -> None:
    edit(path, sql)
    shutil.rmtree(path / "cache", ignore_errors=True)
    with pytest.raises(IndexDamaged, match=r"strop check|backup"), reopen(path) as index:
        index.search("grows")
    if "embedder" not in sql:  # without an embedder the index cannot be opened
        with reopen(path) as index:
            assert index.check()


def test_invalid_settings_of_references_are_refused(path: Path) -> None:
    with reopen(path) as index:
        index.select_references()
    edit(path, "UPDATE meta SET value = '[1]' WHERE key = 'references'")
    with pytest.raises(IndexDamaged, match="settings of references"), reopen(path) as index:
        index.info()


def test_a_document_whose_chunks_are_missing_is_refused(tmp_path: Path) -> None:
    with create(tmp_path / "cut", chunking="10:3") as index:
        index.add([{"id": "a", "text": "One sentence has some words. " * 6}])
    edit(tmp_path / "cut", "DELETE FROM documents")
    with pytest.raises(IndexDamaged, match="chunks"), reopen(tmp_path / "cut") as index:
        index.get("a")


@pytest.mark.parametrize(
    "tuned",
    [
        7, [], "sharp", {}, {"method": {"alpha": "x", "sets": None}, "for_sets": []},
        {"method": {"alpha": 1, "sets": None, "other": 1}, "for_sets": []},
        {"method": {"temperature": -1.0, "sets": None}, "for_sets": ["sentences", "simple"]},
        {"method": {"alpha": 2.0, "sets": None}},
    ],
)  # fmt: skip
def test_invalid_tuned_settings_are_refused(path: Path, tuned: Any) -> None:
    edit(path, "INSERT INTO meta VALUES ('tuned', ?)", json.dumps(tuned))
    with reopen(path) as index:
        for operation in (lambda: index.search("grows"), index.info):
            with pytest.raises(IndexDamaged, match="tuned settings"):
                operation()


def test_a_catalog_of_another_program_or_with_triggers_is_refused(path: Path) -> None:
    edit(path, "CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM documents; END")
    with pytest.raises(BadIndex, match="another program"):
        reopen(path)


def test_a_damaged_row_is_refused_and_repaired(path: Path) -> None:
    with reopen(path) as index:
        best = index.search("word7 grows", k=1).ids[0, 0]
        assert best == "7"
    for name in ("documents.f32", "queries-1.f32"):
        file = path / "vectors" / name
        data = bytearray(file.read_bytes())
        data[4 * DIM * 7 + 2 if name.startswith("doc") else len(data) // 2] ^= 64
        file.write_bytes(data)
        with reopen(path) as index, pytest.raises(IndexDamaged, match="strop check"):
            index.search("word7 grows", k=18)
        with reopen(path) as index:
            index.check(repair=True)
            assert index.search("word7 grows", k=1).ids[0, 0] == "7"


# -- input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "reported"),
    [
        ({"id": None, "text": "a"}, "the id is None"),
        ({"id": b"x", "text": "a"}, "the id is b'x'"),
        ({"id": 1.5, "text": "a"}, "the id is 1.5"),
        ({"id": "x", "text": b"a"}, "not a string"),
        ({"id": "x", "text": "a", "m": float("nan")}, "metadata"),
    ],
)
def test_documents_with_invalid_values_are_refused(
    tmp_path: Path, document: dict[str, Any], reported: str
) -> None:
    with create(tmp_path / "index") as index:
        with pytest.raises(BadInput, match=reported):
            index.add([document])
        assert len(index) == 0
