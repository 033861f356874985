"""The facet table that filters read, against a literal filter over all documents."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers.cases import MORE
from helpers.fakes import create, memory, reopen
from helpers.filters import FILTERS, METADATA, ORDERED
from hypothesis import given, settings
from hypothesis import strategies as st

from strop import Document
from strop.filters import read_filter
from strop.storage.intake import CATALOG


def values_at(metadata: Any, path: str) -> list[Any] | None:
    """Return the values at a path, None if there is no such field; lists are looked into."""
    if isinstance(metadata, list):
        lists = [values_at(item, path) for item in metadata]
        present = [values for values in lists if values is not None]
        return [value for values in present for value in values] if present else None
    if not isinstance(metadata, Mapping):
        return None
    results = []
    for key, value in metadata.items():
        if key == path:
            results.append(flat(value))
        elif path.startswith(f"{key}."):
            nested = values_at(value, path.removeprefix(f"{key}."))
            if nested is not None:
                results.append(nested)
    return [value for values in results for value in values] if results else None


def flat(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [scalar for item in value for scalar in flat(item)]
    return [] if isinstance(value, Mapping) else [value]


def kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "text" if isinstance(value, str) else "number"


def equal(left: Any, right: Any) -> bool:
    if kind(left) == kind(right) == "number":
        return float(left) == float(right)
    return kind(left) == kind(right) and left == right


def passes_filter(where: Mapping[str, Any], id_: str, metadata: Mapping[str, Any]) -> bool:
    """Tell whether a document passes a filter, as the documentation defines it."""
    for key, condition in where.items():
        if key == "$and":
            passes = all(passes_filter(part, id_, metadata) for part in condition)
        elif key == "$or":
            passes = any(passes_filter(part, id_, metadata) for part in condition)
        elif key == "$not":
            passes = not passes_filter(condition, id_, metadata)
        elif key == "$id":
            passes = id_ in condition["$in"]
        else:
            tests = condition if isinstance(condition, Mapping) else {"$eq": condition}
            passes = all(passes_test(op, value, metadata, key) for op, value in tests.items())
        if not passes:
            return False
    return True


def passes_test(op: str, wanted: Any, metadata: Mapping[str, Any], field: str) -> bool:
    values = values_at(metadata, field)
    if op == "$exists":
        return (values is not None) is wanted
    if op in ("$ne", "$nin"):
        return not passes_test({"$ne": "$eq", "$nin": "$in"}[op], wanted, metadata, field)
    if op == "$in":
        return any(passes_test("$eq", choice, metadata, field) for choice in wanted)
    if op == "$eq":
        missing = wanted is None and values is None
        return missing or any(equal(value, wanted) for value in values or ())
    return any(kind(value) == kind(wanted) and ORDERED[op](value, wanted) for value in values or ())


@settings(max_examples=50 * MORE)
@given(
    first=st.lists(METADATA, min_size=1, max_size=8),
    second=st.dictionaries(st.integers(0, 8), METADATA, max_size=3),
    removed=st.sets(st.integers(0, 8), max_size=3),
    wheres=st.lists(FILTERS, min_size=1, max_size=8),
)
def test_filters_select_like_a_literal_filter(
    first: list[dict[str, Any]],
    second: dict[int, dict[str, Any]],
    removed: set[int],
    wheres: list[dict[str, Any]],
) -> None:
    stored = {f"d{at}": metadata for at, metadata in enumerate(first)}
    with (
        tempfile.TemporaryDirectory(prefix="strop-test-", dir=memory()) as folder,
        create(Path(folder) / "index") as index,
    ):
        index.add([Document(id_, "text", "", metadata) for id_, metadata in stored.items()])
        updates = {f"d{at}": metadata for at, metadata in second.items()}
        stored |= updates
        index.add([Document(id_, "text", "", metadata) for id_, metadata in updates.items()])
        removed_ids = [f"d{at}" for at in removed if f"d{at}" in stored]
        index.remove(removed_ids)
        stored = {id_: metadata for id_, metadata in stored.items() if id_ not in removed_ids}
        for where in wheres:
            numbers = index.catalog.facets.select(read_filter(where)).tolist()
            selected = set(index.catalog.documents.ids_of(numbers).values())
            expected = {
                id_ for id_, metadata in stored.items() if passes_filter(where, id_, metadata)
            }
            assert selected == expected, where
        assert index.catalog.facets.problems() == []


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("facets") / "index"
    with create(path) as index:
        index.add([Document(f"d{at}", "text", "", {"year": 2020 + at}) for at in range(4)])
        for number in (1, 1.0, True, -0.0, 0):  # equal values are not written again
            tags = ["a", None, {"b": 2.5}, -1, number]
            index.add([{"id": "plain", "text": "text", "tags": tags, "x" * 300: 1}])
            assert index.check() == []
    return path


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM facets WHERE value = 2021",
        "UPDATE facets SET value = 2030 WHERE value = 2021",
        "UPDATE facets SET number = 3 WHERE value = 2021",
        "UPDATE fields SET name = CAST('jahr' AS BLOB) WHERE name = CAST('year' AS BLOB)",
        "UPDATE facets SET value = -2 WHERE value = -1",
        "DELETE FROM fields",
        """UPDATE documents SET metadata = '{"year": 1999}' WHERE id = 'd1'""",
    ],
)
def test_facets_that_disagree_with_the_metadata_are_repaired(
    template: Path, tmp_path: Path, change: str
) -> None:
    shutil.copytree(template, tmp_path / "index")
    with closing(sqlite3.connect(tmp_path / "index" / CATALOG)) as connection:
        connection.execute(change)
        connection.commit()
    problem = "catalog.sqlite: the values that filters read are not those of the metadata"
    with reopen(tmp_path / "index") as index:
        assert problem in index.check()
        assert problem in index.check(repair=True)
        assert index.check() == []
        for at in range(4):
            year = index.get(f"d{at}").metadata["year"]
            hits = index.search("text", where={"year": year})
            assert hits.ids.tolist() == [[f"d{at}"]]


@pytest.mark.parametrize("value", ["2021.0", "CAST(x'ff' AS TEXT)"])
def test_facets_of_wrong_type_or_unreadable_text_are_repaired(
    template: Path, tmp_path: Path, value: str
) -> None:
    shutil.copytree(template, tmp_path / "index")
    with closing(sqlite3.connect(tmp_path / "index" / CATALOG)) as connection:
        connection.execute(f"UPDATE facets SET value = {value} WHERE value = 2021")
        connection.commit()
    with reopen(tmp_path / "index") as index:
        problem, *_ = index.check(repair=True)
        assert "rows of facets are not what strop wrote; --repair computes them again" in problem
        assert index.check() == []
        types = index.catalog.database.rows("SELECT typeof(value) FROM facets WHERE value = 2021")
        assert types == [("integer",)]
