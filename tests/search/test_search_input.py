"""The arguments of a search: settings of methods, queries, k."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fakes import create

from strop import Index
from strop.errors import BadInput
from strop.methods import METHODS, Method, parse_method


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with create(tmp_path / "index") as index:
        index.sharpen()
        index.add({"id": f"d{i}", "text": f"word{i} text. more {i}."} for i in range(9))
        index.import_queries({"d3": ["a zebra"]}, "simple")
        yield index


def test_equal_weights_have_no_temperature() -> None:
    with pytest.raises(BadInput, match="indexsharp has no temperature"):
        parse_method("indexsharp:temperature=1")
    with pytest.warns(UserWarning, match="indexsharp has no temperature"):
        method = parse_method("indexsharp", {"temperature": 1})
    assert method == METHODS["indexsharp"]
    assert method != parse_method("consharp", {"temperature": 1})


def test_queries_can_come_from_a_generator(index: Index) -> None:
    texts = ["word3", "more 5"]
    for method in ("sharp", "sharp:words=1", "bm25"):
        assert (
            index.search((text for text in texts), 3, method).ids.tolist()
            == index.search(texts, 3, method).ids.tolist()
        )


@pytest.mark.parametrize("k", [2.5, True, 10**30, 0, "3", None])
def test_invalid_k_is_refused(index: Index, k: Any) -> None:
    with pytest.raises(BadInput, match="k must be 1 or more"):
        index.search("word3", k)


@pytest.mark.parametrize("settings", [{"n": 1.5}, {"n": True}, {"alpha": "x"}])
def test_invalid_settings_are_refused(index: Index, settings: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="must be"):
        index.search("word3", 3, "sharp", **settings)
    with pytest.raises(BadInput, match="must be"):
        index.search("word3", 3, Method("sharp", **settings))


@pytest.mark.parametrize("queries", [[None], b"x", "", ["word3", " "], 7])
def test_invalid_queries_are_refused(index: Index, queries: Any) -> None:
    with pytest.raises(BadInput, match=r"a query is a text|is empty"):
        index.search(queries)


def test_bm25_uses_the_words_of_named_sets(index: Index) -> None:
    for method in ("bm25", "hybrid"):
        assert index.search("zebra", 1, f"{method}:sets=simple").ids[0, 0] == "d3"
    assert not index.search("zebra", 1, "bm25").scores.any()
