"""Creating and opening an index; documents that are added, changed and removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.animals import ANIMALS, FOX, FOX_SENTENCES, OWL, OWL_SENTENCES, PIG, PIG_SENTENCES
from helpers.fakes import (
    DIM,
    Bag,
    Failure,
    all_scores,
    assert_close,
    create,
    reopen,
    vector_of,
)

from strop import Document, Index
from strop.errors import BadIndex, BadInput, IndexDamaged, UnfinishedIndex


def changes(index: Index, *documents: Document) -> tuple[int, int, int, int]:
    result = index.add(documents)
    return result.new, result.changed, result.unchanged, result.empty


# -- creating and opening --------------------------------------------------------------------


def test_a_reopened_index_has_its_documents_and_scores(tmp_path: Path) -> None:
    document = Document("a/ü\n", "Text.\x00\n ", "Title", {"n": 1, "deep": [None, {"é": "ß"}]})
    with create(tmp_path / "index") as index:
        index.add([document, PIG])
        index.sharpen()
        scores = all_scores(index, "roots")
    with reopen(tmp_path / "index") as reopened:
        assert reopened.get("a/ü\n") == document
        assert len(reopened) == 2
        assert all_scores(reopened, "roots") == scores
        assert reopened.queries_of("pig") == {"sentences": PIG_SENTENCES}


def test_create_leaves_existing_files_unchanged(tmp_path: Path) -> None:
    create(tmp_path / "index").close()
    with pytest.raises(BadIndex, match="is an index already"):
        create(tmp_path / "index")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(BadIndex, match="is not an index"):
        create(tmp_path / "other")
    with pytest.raises(BadIndex, match="is not an index"):
        create(tmp_path / "other" / "letter.txt")
    assert (tmp_path / "other" / "letter.txt").read_text() == "dear"
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty").close()


def test_open_refuses_what_is_not_an_index(tmp_path: Path) -> None:
    with pytest.raises(BadIndex, match="does not exist"):
        Index.open(tmp_path / "nowhere")
    with pytest.raises(BadIndex, match="is not an index"):
        Index.open(tmp_path)
    (tmp_path / "catalog.sqlite").write_text("no database, but long enough to look at" * 100)
    with pytest.raises(IndexDamaged, match="not a catalog"):
        Index.open(tmp_path)


def test_vectors_of_two_embedders_do_not_mix(tmp_path: Path) -> None:
    create(tmp_path / "index").close()
    for options in ({"name": "sack", "dim": DIM}, {"name": "bag", "dim": DIM, "revision": "2"}):
        with pytest.raises(BadIndex, match="do not mix"):
            Index.open(tmp_path / "index", embedder=Bag(), **options)
    with pytest.raises(BadIndex, match="dim 32, not 2"):
        Index.open(tmp_path / "index", embedder=lambda texts: [[1, 0]] * len(texts), name="bag")
    with Index.open(tmp_path / "index") as index, pytest.raises(BadInput, match="embedder="):
        index.search("a function cannot be loaded by its name")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index, index.catalog.writing() as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    with pytest.raises(BadIndex, match="format 99"):
        Index.open(tmp_path / "index")


# -- documents -------------------------------------------------------------------------------


def test_add_embeds_new_and_changed_texts(index: Index, bag: Bag) -> None:
    assert changes(index, *ANIMALS) == (0, 0, 3, 0)
    assert bag.count == 0
    newer = Document("owl", "Owls hunt by ear.")
    assert changes(index, FOX, newer, Document("cat", "Cats purr.")) == (1, 1, 1, 0)
    assert bag.count == 2
    assert index.get("owl") == newer
    assert all_scores(index, vector_of("Owls hunt by ear.", "document"))["owl"] > 0.9999


def test_a_changed_title_is_embedded(index: Index, bag: Bag) -> None:
    assert changes(index, Document("pig", PIG.text, "Pigs")) == (0, 1, 0, 0)
    assert bag.count == 1
    assert all_scores(index, vector_of(f"Pigs {PIG.text}", "document"))["pig"] > 0.9999


def test_changed_metadata_is_stored_without_embedding(index: Index, bag: Bag) -> None:
    index.sharpen()
    before, bag.count = all_scores(index, "an owl"), 0
    assert changes(index, Document("owl", OWL.text, OWL.title, {"seen": 3})) == (0, 1, 0, 0)
    assert bag.count == 0
    assert index.get("owl").metadata == {"seen": 3}
    assert index.info()["waiting"] == 0
    with reopen(index.path) as reopened:
        assert all_scores(reopened, "an owl") == before


def test_a_text_restored_before_embedding_is_not_embedded(index: Index, bag: Bag) -> None:
    before, bag.count = all_scores(index, "an owl"), 0
    bag.fail_after = 0
    with pytest.raises(Failure):
        index.add([Document("owl", "Something else.")])
    assert index.get("owl").text == "Something else."
    assert index.info()["waiting"] == 1
    bag.fail_after = None
    with pytest.warns(UnfinishedIndex):
        assert_close(all_scores(index, "an owl"), before, 0)  # the old vector is used meanwhile
    bag.count = 0
    assert changes(index, OWL) == (0, 1, 0, 0)
    assert bag.count == 0
    assert index.info()["waiting"] == 0
    assert_close(all_scores(index, "an owl"), before, 0)


def test_a_text_restored_after_embedding_is_embedded_again(index: Index) -> None:
    before = all_scores(index, "an owl")
    index.add([Document("owl", "Something else.")])
    assert abs(all_scores(index, "an owl")["owl"] - before["owl"]) > 1e-3
    index.add([OWL])
    assert_close(all_scores(index, "an owl"), before, 1e-6)


def test_documents_as_mappings_and_with_locations(index: Index) -> None:
    index.add([{"_id": 7, "text": "Seven.", "title": "7", "kind": "number"}])
    assert index.get("7") == Document("7", "Seven.", "7", {"kind": "number"})
    index.add([(Document("8", "Eight."), "line 1")])
    with pytest.raises(BadInput, match=r"line 4.*'9' is already used at line 3"):
        index.add([(Document("9", "Nine."), "line 3"), (Document("9", "Nein."), "line 4")])
    with pytest.raises(BadInput, match="no document '9'"):
        index.get("9")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Document("x", "y \ud800"), "surrogate"),
        (Document("x\ud800", "y"), "surrogate"),
        (Document("x", "y", "\udfff"), "surrogate"),
        (Document("x", "y", metadata={"a": "\ud800"}), "surrogate"),
        (Document("x", "y", metadata={"a": {1, 2}}), "JSON"),
        (Document("x", None), "document 2"),  # type: ignore[arg-type]
        (Document("", "y"), "the id is empty"),
        (Document(7, "y"), "id is 7"),  # type: ignore[arg-type]
        ({"id": "x"}, "no 'text'"),
        ("a text alone", "document 2 is a str"),
    ],
)
def test_bad_input_stores_nothing(index: Index, bag: Bag, bad: Any, message: str) -> None:
    version = index.catalog.settings.get("version")
    with pytest.raises(BadInput, match=message):
        index.add([Document("fine", "This one is fine."), bad])
    assert index.unknown(["fine"]) == {"fine"}
    assert (len(index), bag.count, index.catalog.settings.get("version")) == (3, 0, version)
    index.add([Document("fine", "This one is fine.")])  # the index still works


def test_an_empty_document_is_stored_and_counted(index: Index, bag: Bag) -> None:
    assert changes(index, Document("empty", ""), Document("blank", " \n")) == (2, 0, 0, 2)
    index.sharpen()
    assert bag.count == len(FOX_SENTENCES + OWL_SENTENCES + PIG_SENTENCES)
    scores = all_scores(index, "an owl")
    assert scores["empty"] == scores["blank"] == -1  # below every cosine: they rank last
    assert all_scores(index, "an owl", method="trad")["empty"] == -1


def test_remove_deletes_all_data_of_a_document(index: Index, bag: Bag) -> None:
    index.sharpen()
    index.import_queries({"owl": ["who sees at night"]}, "simple")
    with pytest.raises(BadInput, match="no document 'cow'"):
        index.remove(["owl", "cow"])
    assert len(index) == 3
    index.remove(["owl"])
    assert len(index) == 2
    assert all_scores(index, "an owl").keys() == {"fox", "pig"}
    for read in (index.get, index.queries_of):
        with pytest.raises(BadInput, match="no document 'owl'"):
            read("owl")
    with pytest.raises(BadInput, match="no document 'owl'"):
        index.explain("an owl", "owl")
    assert index.info()["sets"]["simple"]["queries"] == 0
    index.add([OWL])  # under the same id again: the imported queries do not come back
    assert index.queries_of("owl") == {"sentences": OWL_SENTENCES, "simple": []}


def test_a_waiting_list_is_removed_with_its_document(index: Index, bag: Bag) -> None:
    bag.fail_after = 0
    with pytest.raises(Failure):
        index.import_queries({"owl": ["who sees at night"]}, "simple")
    bag.fail_after = None
    index.remove(["owl"])
    index.finish()
    assert index.info()["sets"]["simple"]["waiting"] == 0


def test_one_id_instead_of_a_list_is_refused(index: Index) -> None:
    for change in (index.remove, index.keep_only):
        with pytest.raises(BadInput, match=r"write \['fox'\]"):
            change("fox")
    assert len(index) == 3


def test_keep_only(index: Index) -> None:
    assert index.keep_only(["owl", "pig", "unheard of"]) == 1
    assert all_scores(index, "an owl").keys() == {"owl", "pig"}
    assert index.keep_only(iter(["pig", "owl"])) == 0
    assert index.keep_only([]) == 2
    assert len(index) == 0


def test_unknown(index: Index) -> None:
    assert index.unknown(["fox", "cow", "\ud800"]) == {"cow", "\ud800"}
    index.add([{"id": "a\0b", "text": "an id with a zero"}])
    assert index.unknown(["a\0b", "a", "fox\0b"]) == {"a", "fox\0b"}
    with pytest.raises(BadInput, match="no document"):
        index.get("\ud800")
