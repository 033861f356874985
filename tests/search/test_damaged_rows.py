"""The rows behind each hit are compared with their checksums."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.fakes import create

from strop import Index
from strop.errors import IndexDamaged

TEXTS = {
    "ships": "A harbour has ships. The crane lifts crates.",
    "bread": "The oven bakes bread. Flour and yeast rise.",
}


@pytest.fixture
def index(tmp_path: Path) -> Index:
    index = create(tmp_path / "index")
    index.sharpen("sentences")
    index.add({"id": id_, "text": text} for id_, text in TEXTS.items())
    return index


def flip_bit(index: Index, set_id: int, row: int) -> None:
    """Flip one bit of a row in a set's file."""
    file = index.catalog.vectors.files()[set_id]
    path = index.path / "vectors" / file.name
    data = bytearray(path.read_bytes())
    data[row * len(data) // file.rows] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("searched_before", [False, True])
@pytest.mark.parametrize("rows", ["own", "queries"])
def test_search_refuses_a_hit_scored_from_a_damaged_row(
    index: Index, rows: str, searched_before: bool
) -> None:
    if searched_before:  # loads the checksums
        assert index.search("oven bread", 1, "sharp").ids.tolist() == [["bread"]]
    snapshot = index.searcher.views.snapshot()
    set_id = 0 if rows == "own" else index.searcher.require("sentences").set_id
    spans = snapshot.documents if rows == "own" else snapshot.sets["sentences"]
    last = int(spans.start[1] + spans.count[1] - 1)  # of the second document, "bread"
    flip_bit(index, set_id, last)
    with pytest.raises(IndexDamaged, match=r"damaged where the best documents .*--repair"):
        index.search("oven bread", 1, "sharp")
    assert index.search("harbour ships", 1, "sharp").ids.tolist() == [["ships"]]


def test_search_refuses_rows_without_a_checksum(index: Index) -> None:
    with index.catalog.database.writing() as connection:
        connection.execute("UPDATE checksums SET sums = substr(sums, 1, 4) WHERE set_id = 0")
    assert index.search("harbour ships", 1, "sharp").ids.tolist() == [["ships"]]
    with pytest.raises(IndexDamaged, match="damaged where the best documents"):
        index.search("oven bread", 1, "sharp")
