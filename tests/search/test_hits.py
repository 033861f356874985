"""Hits: the results of a search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.fakes import create

from strop import Document, Hit, Index
from strop.errors import BadInput
from strop.types import HIT_FIELDS

CATS = "Dogs bark.\n\nCats   purr when they are happy. Fish swim in cold water."


@pytest.fixture
def index(tmp_path: Path) -> Index:
    index = create(tmp_path / "index")
    index.add(
        [
            Document("pets", CATS, "About pets", {"year": 2020, "tags": ["a"]}),
            Document("stocks", "Markets fell on Monday."),
            Document("empty", ""),
        ]
    )
    return index


def test_a_hit_has_the_document_and_its_passage(index: Index) -> None:
    index.sharpen()
    hits = index.search(["cats purr", "markets"], k=2)
    assert len(hits) == 2
    first = hits[0][0]
    assert isinstance(first, Hit)
    assert (first.id, first.title, first.text) == ("pets", "About pets", CATS)
    assert first.metadata == {"year": 2020, "tags": ["a"]}
    assert type(first.score) is float
    assert first.score == hits.scores[0, 0]
    passage = first.passage
    assert passage is not None
    assert passage.text == "Cats purr when they are happy."
    assert (passage.start, passage.end, passage.source) == (12, 44, "sentences")
    assert CATS[12:44] == "Cats   purr when they are happy."
    assert [row[0].id for row in hits] == ["pets", "stocks"]


def test_hits_are_written_as_json(index: Index) -> None:
    index.sharpen()
    hits = index.search("cats purr", k=3)
    decoded = json.loads(json.dumps(hits.to_dict()))
    assert [hit["id"] for hit in decoded[0]] == hits.ids[0].tolist()
    assert decoded[0][0]["passage"]["start"] == 12
    assert json.loads(json.dumps(hits.to_dict(["id", "score"])))[0][0].keys() == {"id", "score"}


def test_without_stored_queries_the_passage_is_found_by_words(index: Index) -> None:
    for method in ("trad", "bm25"):
        hits = {hit.id: hit for hit in index.search("do fish swim", k=3, method=method)[0]}
        passage = hits["pets"].passage
        assert passage is not None
        assert (passage.text, passage.source) == ("Fish swim in cold water.", "text")
        assert hits["empty"].passage is None


def test_a_generated_query_as_passage_has_no_position(index: Index) -> None:
    index.import_queries({"pets": ["why do kittens make noise"]}, "simple")
    passage = index.search("kittens noise", k=1, method="simsharp")[0][0].passage
    assert passage is not None
    assert (passage.text, passage.start, passage.end) == ("why do kittens make noise", None, None)
    assert passage.source == "simple"


def test_the_title_can_be_the_passage(index: Index) -> None:
    index.sharpen()
    passage = index.search("about pets", k=1)[0][0].passage
    assert passage is not None
    assert (passage.text, passage.start, passage.source) == ("About pets", None, "title")


def test_ids_and_scores_alone_read_no_document(index: Index) -> None:
    index.sharpen()
    hits = index.search("cats purr", k=2, fields=())
    assert hits.rows is None
    assert hits[0][0] == Hit("pets", float(hits.scores[0, 0]))


@pytest.mark.parametrize("fields", [["id", "scor"], "id", [1]])
def test_unknown_fields_are_refused(index: Index, fields: Any) -> None:
    with pytest.raises(BadInput) as error:
        index.search("cats purr", fields=fields)
    assert str(error.value) == f"fields is a list of {', '.join(HIT_FIELDS)}, not {fields!r}"
