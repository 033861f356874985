"""What an index does: documents, query sets, search, explanation, looking after it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.fakes import (
    DIM,
    Bag,
    Doubles,
    Failure,
    all_scores,
    assert_close,
    create,
    max_score,
    memory,
    reopen,
    sharpened_score,
    vector_of,
    vectors_of,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strop import METHODS, Document, Index, Method
from strop.errors import BadIndex, BadInput, IndexDamaged

FOX = Document("fox", "The quick brown fox jumps. It clears the lazy dog.", "Foxes")
OWL = Document("owl", "The old owl sees at night. Mice fear the old owl.", "Owls")
PIG = Document("pig", "A pig digs for roots.")
ANIMALS = [FOX, OWL, PIG]
FOX_SENTENCES = ["Foxes", "The quick brown fox jumps.", "It clears the lazy dog."]
OWL_SENTENCES = ["Owls", "The old owl sees at night.", "Mice fear the old owl."]
PIG_SENTENCES = ["A pig digs for roots."]


@pytest.fixture
def bag() -> Bag:
    return Bag()


@pytest.fixture
def index(tmp_path: Path, bag: Bag) -> Iterator[Index]:
    """An index of three animals, without query sets."""
    with create(tmp_path / "index", bag) as index:
        index.add(ANIMALS)
        bag.count = 0
        yield index


def changes(index: Index, *documents: Document) -> tuple[int, int, int, int]:
    done = index.add(documents)
    return done.new, done.changed, done.unchanged, done.empty


# -- creating and opening --------------------------------------------------------------------


def test_what_was_stored_is_there_after_opening_again(tmp_path: Path) -> None:
    kept = Document("a/ü\n", "Text.\x00\n ", "Title", {"n": 1, "deep": [None, {"é": "ß"}]})
    with create(tmp_path / "index") as index:
        index.add([kept, PIG])
        index.sharpen()
        scores = all_scores(index, "roots")
    with reopen(tmp_path / "index") as again:
        assert again.get("a/ü\n") == kept
        assert len(again) == 2
        assert all_scores(again, "roots") == scores
        assert again.queries_of("pig") == {"sentences": PIG_SENTENCES}


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    create(tmp_path / "index").close()
    with pytest.raises(BadIndex, match="is an index already"):
        create(tmp_path / "index")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(BadIndex, match="is no index"):
        create(tmp_path / "other")
    with pytest.raises(BadIndex, match="is no index"):
        create(tmp_path / "other" / "letter.txt")
    assert (tmp_path / "other" / "letter.txt").read_text() == "dear"
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty").close()


def test_what_is_no_index_is_said_to_be_none(tmp_path: Path) -> None:
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


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index, index._catalog.writing() as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    with pytest.raises(BadIndex, match="format 99"):
        Index.open(tmp_path / "index")


def test_delete_leaves_nothing(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    index.add(ANIMALS)
    index.delete()
    assert not (tmp_path / "index").exists()
    create(tmp_path / "index").close()


# -- documents -------------------------------------------------------------------------------


def test_add_embeds_what_is_new_or_has_another_text(index: Index, bag: Bag) -> None:
    assert changes(index, *ANIMALS) == (0, 0, 3, 0)
    assert bag.count == 0
    newer = Document("owl", "Owls hunt by ear.")
    assert changes(index, FOX, newer, Document("cat", "Cats purr.")) == (1, 1, 1, 0)
    assert bag.count == 2
    assert index.get("owl") == newer
    assert all_scores(index, vector_of("Owls hunt by ear.", "document"))["owl"] > 0.9999


def test_another_title_is_another_text(index: Index, bag: Bag) -> None:
    assert changes(index, Document("pig", PIG.text, "Pigs")) == (0, 1, 0, 0)
    assert bag.count == 1
    assert all_scores(index, vector_of(f"Pigs {PIG.text}", "document"))["pig"] > 0.9999


def test_other_metadata_alone_is_stored_without_embedding(index: Index, bag: Bag) -> None:
    index.sharpen()
    before, bag.count = all_scores(index, "an owl"), 0
    assert changes(index, Document("owl", OWL.text, OWL.title, {"seen": 3})) == (0, 1, 0, 0)
    assert bag.count == 0
    assert index.get("owl").metadata == {"seen": 3}
    assert index.info()["waiting"] == 0
    with reopen(index.path) as again:
        assert all_scores(again, "an owl") == before


def test_a_text_that_is_taken_back_before_it_is_embedded_costs_nothing(
    index: Index, bag: Bag
) -> None:
    before, bag.count = all_scores(index, "an owl"), 0
    bag.fail_after = 0
    with pytest.raises(Failure):
        index.add([Document("owl", "Something else.")])
    assert index.get("owl").text == "Something else."
    assert index.info()["waiting"] == 1
    bag.fail_after = None
    assert_close(all_scores(index, "an owl"), before, 0)  # the old vector serves meanwhile
    bag.count = 0
    assert changes(index, OWL) == (0, 1, 0, 0)
    assert bag.count == 0
    assert index.info()["waiting"] == 0
    assert_close(all_scores(index, "an owl"), before, 0)


def test_a_text_that_is_taken_back_afterwards_is_embedded_again(index: Index) -> None:
    before = all_scores(index, "an owl")
    index.add([Document("owl", "Something else.")])
    assert abs(all_scores(index, "an owl")["owl"] - before["owl"]) > 1e-3
    index.add([OWL])
    assert_close(all_scores(index, "an owl"), before, 1e-6)


def test_documents_as_mappings_and_with_places(index: Index) -> None:
    index.add([{"_id": 7, "text": "Seven.", "title": "7", "kind": "number"}])
    assert index.get("7") == Document("7", "Seven.", "7", {"kind": "number"})
    index.add([(Document("8", "Eight."), "line 1")])
    with pytest.raises(BadInput, match=r"line 4.*'9' stands already at line 3"):
        index.add([(Document("9", "Nine."), "line 3"), (Document("9", "Nein."), "line 4")])
    with pytest.raises(BadInput, match="no document '9'"):
        index.get("9")


@pytest.mark.parametrize(
    ("bad", "said"),
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
def test_bad_input_stores_nothing(index: Index, bag: Bag, bad: Any, said: str) -> None:
    version = index._catalog.settings.get("version")
    with pytest.raises(BadInput, match=said):
        index.add([Document("fine", "This one is fine."), bad])
    assert index.unknown(["fine"]) == {"fine"}
    assert (len(index), bag.count, index._catalog.settings.get("version")) == (3, 0, version)
    index.add([Document("fine", "This one is fine.")])  # and the index is as good as before


def test_an_empty_document_is_kept_and_counted(index: Index, bag: Bag) -> None:
    assert changes(index, Document("empty", ""), Document("blank", " \n")) == (2, 0, 0, 2)
    index.sharpen()
    assert bag.count == len(FOX_SENTENCES + OWL_SENTENCES + PIG_SENTENCES)
    scores = all_scores(index, "an owl")
    assert scores["empty"] == scores["blank"] == 0
    assert all_scores(index, "an owl", method="trad")["empty"] == 0


def test_remove_takes_all_that_hangs_on_a_document(index: Index, bag: Bag) -> None:
    index.sharpen()
    index.import_queries({"owl": ["who sees at night"]}, "simple")
    with pytest.raises(BadInput, match="no document 'cow'"):
        index.remove(["owl", "cow"])
    assert len(index) == 3
    index.remove(["owl"])
    assert len(index) == 2
    assert all_scores(index, "an owl").keys() == {"fox", "pig"}
    for look in (index.get, index.queries_of):
        with pytest.raises(BadInput, match="no document 'owl'"):
            look("owl")
    with pytest.raises(BadInput, match="no document 'owl'"):
        index.explain("an owl", "owl")
    assert index.info()["sets"]["simple"]["queries"] == 0
    index.add([OWL])  # under the same id again: the imported queries do not come back
    assert index.queries_of("owl") == {"sentences": OWL_SENTENCES, "simple": []}


def test_a_list_that_waits_goes_with_its_document(index: Index, bag: Bag) -> None:
    bag.fail_after = 0
    with pytest.raises(Failure):
        index.import_queries({"owl": ["who sees at night"]}, "simple")
    bag.fail_after = None
    index.remove(["owl"])
    index.finish()
    assert index.info()["sets"]["simple"]["waiting"] == 0


def test_one_id_is_not_a_list_of_ids(index: Index) -> None:
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
    with pytest.raises(BadInput, match="no document"):
        index.get("\ud800")


# -- query sets ------------------------------------------------------------------------------


def test_sharpen_makes_sentences_now_and_for_later_documents(index: Index, bag: Bag) -> None:
    index.sharpen()
    assert bag.count == 7
    assert index.queries_of("fox") == {"sentences": FOX_SENTENCES}
    assert index.queries_of("pig") == {"sentences": PIG_SENTENCES}
    index.sharpen()
    assert bag.count == 7
    index.add([Document("cat", "Cats purr and sleep. Cats also hunt mice.")])
    assert bag.count == 7 + 1 + 2
    assert index.queries_of("cat")["sentences"][1] == "Cats also hunt mice."
    index.add([Document("fox", "Foxes hunt at night.")])
    assert index.queries_of("fox") == {"sentences": ["Foxes hunt at night."]}
    assert bag.count == 10 + 1 + 1


def test_sharpen_with_another_n_makes_the_lists_anew(index: Index, bag: Bag) -> None:
    index.sharpen(n=1)
    assert bag.count == 3
    assert index.queries_of("fox") == {"sentences": [" ".join(FOX_SENTENCES)]}
    index.sharpen(n=2)
    assert [len(index.queries_of(id_)["sentences"]) for id_ in ("fox", "owl", "pig")] == [2, 2, 1]
    assert " ".join(index.queries_of("fox")["sentences"]) == " ".join(FOX_SENTENCES)
    with pytest.raises(BadInput, match="n must be 1 or more"):
        index.sharpen(n=0)
    with pytest.raises(BadInput, match="no query source 'magic'"):
        index.sharpen("magic")


@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_blank_queries_are_refused(blank: str, index: Index) -> None:
    """They would have zero vectors, which take weight from the others."""
    before = index.info()["sets"]
    with pytest.raises(BadInput, match=r"the given lists: query 2 of 'owl' is blank; remove it"):
        index.import_queries({"fox": ["q1"], "owl": ["q2", blank]}, "simple")
    assert index.info()["sets"] == before


def test_import_replaces_the_list_of_each_document_it_names(index: Index, bag: Bag) -> None:
    taken = index.import_queries({"fox": ["q1", "q2"], "owl": ["q3"], "cow": ["q4"]}, "simple")
    assert taken[:2] == (2, 3)
    assert len(taken[2]) == 1
    assert "'cow'" in taken[2][0]
    assert bag.count == 3
    rows = [("line 1", "fox", ["q5", "q6", "q7"]), ("line 2", "cow", ["q8"])]
    taken = index.import_queries(rows, "simple", n=2)
    assert taken == (1, 2, ["line 2: 'cow'"])
    assert index.queries_of("fox") == {"simple": ["q5", "q6"]}
    assert index.queries_of("owl") == {"simple": ["q3"]}
    assert index.queries_of("pig") == {"simple": []}
    index.import_queries({"owl": []}, "simple")
    assert index.queries_of("owl") == {"simple": []}
    assert bag.count == 5


def test_importing_the_same_lists_again_embeds_nothing(index: Index, bag: Bag) -> None:
    lists = {"fox": ["q1", "q2"], "owl": ["q3"]}
    index.import_queries(lists, "simple")
    scores, bag.count = all_scores(index, "q1 q3"), 0
    assert index.import_queries(lists, "simple") == (2, 3, [])
    assert bag.count == 0
    assert all_scores(index, "q1 q3") == scores
    bag.fail_after = 0
    with pytest.raises(Failure):
        index.import_queries({"fox": ["other"], "owl": ["q3"]}, "simple")
    bag.fail_after, bag.count = None, 0
    index.import_queries({"fox": ["q1", "q2"]}, "simple")  # what waited is taken back
    assert bag.count == 0
    assert index.queries_of("fox") == {"simple": ["q1", "q2"]}
    assert index.info()["sets"]["simple"]["waiting"] == 0


def test_imported_queries_older_than_the_text_are_counted(index: Index, bag: Bag) -> None:
    index.import_queries({"fox": ["q1"], "owl": ["q2"]}, "simple")
    index.add([Document("fox", "Another text of foxes.")])
    assert index.queries_of("fox") == {"simple": ["q1"]}
    assert index.info()["sets"]["simple"]["older_than_text"] == 1
    bag.count = 0
    index.import_queries({"fox": ["q1"]}, "simple")  # they are said to fit the new text too
    assert index.info()["sets"]["simple"]["older_than_text"] == 0
    assert bag.count == 0


@pytest.mark.parametrize("bad", [[1], [None], ["fine", ["nested"]], ["\ud800"], "one text"])
def test_bad_queries_are_refused_before_they_are_stored(index: Index, bad: Any) -> None:
    with pytest.raises(BadInput, match="'owl'"):
        index.import_queries({"fox": ["fine"], "owl": bad}, "simple")
    assert index.queries_of("fox") == {}
    assert index.info()["sets"] == {}
    index.add([Document("cat", "Cats purr.")])


def test_an_import_without_a_known_document_makes_no_set(index: Index) -> None:
    for lists in ({"cow": ["q"]}, {}):
        with pytest.raises(BadInput, match="none of the ids"):
            index.import_queries(lists, "simple")
    assert index.info()["sets"] == {}
    index.import_queries({"fox": ["q"]}, "simple")
    with pytest.raises(BadInput, match="none of the ids"):
        index.import_queries({"cow": ["q"]}, "simple")
    assert index.queries_of("fox") == {"simple": ["q"]}
    for style in ("sentences", "expanded:simple", "", "a b"):
        with pytest.raises(BadInput, match="cannot name a set"):
            index.import_queries({"fox": ["q"]}, style)


def test_an_import_that_breaks_off_leaves_nothing(index: Index) -> None:
    def broken() -> Iterator[tuple[str, str, list[str]]]:
        yield "line 1", "fox", ["who jumps"]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        index.import_queries(broken(), "simple")
    assert index.info()["sets"] == {}
    with pytest.raises(BadInput, match="n must be 1 or more"):
        index.import_queries({"fox": ["who jumps"]}, "simple", n=-1)


def test_expand_appends_the_queries_to_the_text(index: Index, bag: Bag) -> None:
    with pytest.raises(BadInput, match="no query set 'simple'"):
        index.expand("simple")
    index.import_queries({"fox": ["who jumps", "who clears"], "owl": ["who sees"]}, "simple")
    with pytest.raises(BadInput, match="expand"):
        index.search("x", method="doc2query")
    bag.count = 0
    index.expand("simple")
    assert bag.count == 3
    index.expand("simple")
    assert bag.count == 3
    expanded = {
        "fox": f"{FOX.content} who jumps who clears",
        "owl": f"{OWL.content} who sees",
        "pig": PIG.text,
    }
    q = vector_of("who sees", "query")
    want = {id_: float(q @ vector_of(text, "document")) for id_, text in expanded.items()}
    assert_close(all_scores(index, "who sees", method="doc2query"), want, 1e-5)
    assert index.queries_of("owl") == {"simple": ["who sees"]}


def test_expanded_text_is_made_again_only_where_text_or_queries_changed(
    index: Index, bag: Bag
) -> None:
    index.import_queries({"fox": ["who jumps"], "owl": ["who sees"]}, "simple")
    index.expand("simple")

    def waiting() -> int:
        return int(index.info()["sets"]["expanded:simple"]["waiting"])

    assert waiting() == 0
    index.import_queries({"fox": ["who runs"], "owl": ["who sees"]}, "simple")
    assert waiting() == 1
    index.add([Document("pig", "Pigs sleep in mud.")])
    assert waiting() == 2
    index.finish()  # does not: expanding costs as much as the documents
    assert waiting() == 2
    bag.count = 0
    index.expand("simple")
    assert (bag.count, waiting()) == (2, 0)
    text = f"{FOX.content} who runs"
    q = vector_of(text, "document")
    assert all_scores(index, q, method="doc2query")["fox"] > 0.9999
    index.add([Document("cat", "Cats purr.")])
    with pytest.raises(BadInput, match="expand"):
        index.search("x", method="doc2query")


def test_finish_goes_on_where_the_embedder_failed(index: Index, bag: Bag, tmp_path: Path) -> None:
    index.sharpen()
    more = [Document(f"n{i}", f"Number {i} is here. After it comes {i + 1}.") for i in range(200)]
    bag.fail_after = 400
    with pytest.raises(Failure):
        index.add(more)
    bag.fail_after = None
    info = index.info()
    waiting = info["waiting"], info["sets"]["sentences"]["waiting"]
    assert waiting[0] == 0
    assert 0 < waiting[1] < 200
    bag.count = 0
    index.finish()
    assert bag.count == 2 * waiting[1]
    index.finish()
    assert bag.count == 2 * waiting[1]
    with create(tmp_path / "whole") as whole:
        whole.sharpen()
        whole.add([*ANIMALS, *more])
        assert_close(all_scores(index, "number 7"), all_scores(whole, "number 7"), 1e-6)


# -- looking after it ------------------------------------------------------------------------


def test_info_counts_what_is_there(index: Index) -> None:
    index.sharpen()
    index.import_queries({"fox": ["q1", "q2"], "owl": []}, "simple")
    index.add([Document("empty", "")])
    info = index.info()
    assert (info["documents"], info["empty"], info["waiting"]) == (4, 1, 0)
    counted = {
        name: [set_[key] for key in ("documents", "queries", "older_than_text", "waiting")]
        for name, set_ in info["sets"].items()
    }
    assert counted == {"sentences": [3, 7, 0, 0], "simple": [1, 2, 0, 0]}
    assert info["embedder"]["name"] == "callable:bag"
    assert info["embedder"]["dim"] == DIM
    assert info["bytes"]["vectors/documents.f32"] == 4 * DIM * 4
    assert info["total_bytes"] == sum(info["bytes"].values())


def _cut(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])


@pytest.mark.parametrize("lose", ["half", "two thirds", "a byte", "files", "folder"])
def test_check_finds_lost_vectors_and_repair_makes_them_again(
    tmp_path: Path, bag: Bag, lose: str
) -> None:
    path = tmp_path / "index"
    with create(path, bag) as index:
        index.add(ANIMALS)
        index.sharpen()
        index.import_queries({"fox": ["q1", "q2"], "pig": ["q3"]}, "simple")
        index.expand("simple")
        before = all_scores(index, "owl q1"), all_scores(index, "q1", method="doc2query")
        queries = [index.queries_of(document.id) for document in ANIMALS]
        assert index.check() == []
    for file in (path / "vectors").iterdir():
        size = file.stat().st_size
        left = {"half": size // 2, "two thirds": size // 3, "a byte": size - 1}
        if lose in left:
            _cut(file, left[lose])
        else:
            file.unlink()
    if lose == "folder":
        (path / "vectors").rmdir()
    with reopen(path, bag) as index:
        with pytest.raises(IndexDamaged, match="--repair"):
            index.search("owl")
        problems = index.check()
        assert len(problems) == 4
        assert index.check(repair=True) == problems
        assert index.check() == []
        index.expand("simple")
        after = all_scores(index, "owl q1"), all_scores(index, "q1", method="doc2query")
        for got, want in zip(after, before, strict=True):
            assert_close(got, want, 1e-6)
        assert [index.queries_of(document.id) for document in ANIMALS] == queries
        assert index.info()["waiting"] == 0


def test_repair_embeds_only_what_was_lost(index: Index, bag: Bag) -> None:
    _cut(index.path / "vectors" / "documents.f32", 2 * DIM * 4)
    with reopen(index.path, bag) as again:
        assert again.check(repair=True) == ["vectors/documents.f32 holds 2 of 3 vectors"]
        assert bag.count == 1
        assert all_scores(again, vector_of(PIG.text, "document"))["pig"] > 0.9999


# -- searching -------------------------------------------------------------------------------


def test_an_empty_index_finds_nothing(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index:
        assert index.search(["a", "b"]).ids.shape == (2, 0)
        index.sharpen()
        hits = index.search("a", k=3)
        assert hits.ids.shape == hits.scores.shape == (1, 0)
        assert hits.ids.dtype == object
        assert hits.scores.dtype == np.float32
        index.add([PIG])
        index.remove(["pig"])
        assert index.search("a").ids.shape == (1, 0)


def test_k_is_at_most_the_number_of_documents(index: Index) -> None:
    everything = index.search("an old owl", k=50)
    assert everything.ids.shape == everything.scores.shape == (1, 3)
    assert sorted(everything.ids[0]) == ["fox", "owl", "pig"]
    assert everything.ids[0][0] == "owl"
    best = index.search("an old owl", k=2)
    assert best.ids.tolist() == everything.ids[:, :2].tolist()
    assert best.scores.tolist() == everything.scores[:, :2].tolist()
    with pytest.raises(BadInput, match="k must be 1 or more"):
        index.search("an old owl", k=0)


def test_several_queries_and_vectors_give_the_same_as_one_text(index: Index) -> None:
    index.sharpen()
    asked = ["an old owl", "jumps", "", "roots and mud"]
    hits = index.search(asked, k=3)
    assert hits.ids.shape == (4, 3)
    for at, one in enumerate(asked):
        alone = index.search(one, k=3)
        assert alone.ids[0].tolist() == hits.ids[at].tolist()
        np.testing.assert_allclose(alone.scores[0], hits.scores[at], atol=1e-6)
    vectors = vectors_of(asked, "query").astype(np.float32)
    for scale in (1, 1e-3, 1e6):  # a vector's length does not matter
        again = index.search(vectors * np.float32(scale), k=3)
        assert again.ids.tolist() == hits.ids.tolist()
        np.testing.assert_allclose(again.scores, hits.scores, atol=1e-6)
    assert hits.scores[2].tolist() == [0, 0, 0]
    assert index.search([], k=3).ids.shape == (0, 3)
    for wrong in (vectors[0], vectors[:, 1:], vectors[None]):
        with pytest.raises(BadInput, match=r"must be \(n, 32\)"):
            index.search(wrong)


def test_without_query_sets_search_is_plain(index: Index) -> None:
    q = vector_of("an old owl", "query")
    want = {doc.id: float(q @ vector_of(doc.content, "document")) for doc in ANIMALS}
    assert_close(all_scores(index, "an old owl"), want, 1e-5)
    with pytest.raises(BadInput, match="needs a query set"):
        index.search("an old owl", method="sharp")
    with pytest.raises(BadInput, match="no query set 'contrastive'"):
        index.search("an old owl", method="consharp")


def test_sentences_are_embedded_as_documents_and_imported_queries_as_queries(
    index: Index,
) -> None:
    q = vector_of("an old owl", "query")
    d = vector_of(OWL.content, "document")
    index.import_queries({"owl": ["who sees", "who hunts"]}, "simple")
    own = vectors_of(["who sees", "who hunts"], "query")
    got = all_scores(index, "an old owl", alpha=0.7, temperature=0.3)
    assert abs(got["owl"] - sharpened_score(q, d, own, 0.7, 0.3)) < 1e-5
    index.sharpen()
    both = np.concatenate([own, vectors_of(OWL_SENTENCES, "document")])
    got = all_scores(index, "an old owl")
    assert abs(got["owl"] - sharpened_score(q, d, both, 1.0, 0.1)) < 1e-5
    got = all_scores(index, "an old owl", sets=["simple"])
    assert abs(got["owl"] - sharpened_score(q, d, own, 1.0, 0.1)) < 1e-5
    got = all_scores(index, "an old owl", n=1)
    both = np.concatenate([own[:1], vectors_of(OWL_SENTENCES[:1], "document")])
    assert abs(got["owl"] - sharpened_score(q, d, both, 1.0, 0.1)) < 1e-5


def test_ragged_lists_over_many_blocks(tmp_path: Path) -> None:
    """Lists of 0 to 40 queries, documents enough that the scan works in several blocks."""
    rng = np.random.default_rng(5)
    lists = {
        f"d{i}": [f"w{rng.integers(50)} w{rng.integers(50)}" for _ in range(rng.integers(41))]
        for i in range(0, 900, 2)
    }
    with create(tmp_path / "index") as index:
        index.add([Document(f"d{i}", f"w{i % 50} w{i % 37} w{i % 7}") for i in range(900)])
        index.import_queries(lists, "simple")
        assert sum(map(len, lists.values())) > 8192
        q = vector_of("w3 w5", "query")
        want = {
            f"d{i}": sharpened_score(
                q,
                vector_of(f"w{i % 50} w{i % 37} w{i % 7}", "document"),
                vectors_of(lists.get(f"d{i}", []), "query"),
                1.0,
                0.1,
            )
            for i in range(900)
        }
        assert_close(all_scores(index, "w3 w5"), want, 1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"alpha": 0.0},
        {"alpha": 2.5, "temperature": 1.0},
        {"temperature": float("inf")},
        {"method": "simsharp"},
        {"method": "maxsim"},
        {"n": 1},
        {"sets": ["sentences"]},
    ],
)
def test_an_explanation_adds_up_to_the_score(index: Index, how: dict[str, Any]) -> None:
    index.sharpen()
    index.import_queries({"owl": ["who sees", "who hunts mice"], "pig": []}, "simple")
    index.add([Document("empty", ""), Document("word", "Word")])
    for query in ("an old owl", "who hunts mice", ""):
        plain, scores = all_scores(index, query, method="trad"), all_scores(index, query, **how)
        for id_, score in scores.items():
            found = index.explain(query, id_, **how)
            assert found.id == id_
            assert abs(found.plain - plain[id_]) < 1e-5
            assert abs(found.plain + sum(part.moved for part in found.queries) - score) < 1e-5
            assert abs(found.score - score) < 1e-5
            if found.queries:
                assert abs(sum(part.weight for part in found.queries) - 1) < 1e-9
            for part in found.queries:
                kind = "document" if part.set == "sentences" else "query"
                same = float(vector_of(query, "query") @ vector_of(part.text, kind))
                assert abs(part.similarity - same) < 1e-5
                assert part.text in index.queries_of(id_)[part.set]
    vector = vector_of("an old owl", "query").astype(np.float32)
    assert index.explain(vector, "owl", **how) == index.explain("an old owl", "owl", **how)


def test_what_cannot_be_explained(index: Index, bag: Bag) -> None:
    with pytest.raises(BadInput, match="nothing to explain"):
        index.explain("an owl", "owl")
    index.sharpen()
    with pytest.raises(BadInput, match="nothing to explain"):
        index.explain("an owl", "owl", method="trad")
    bag.fail_after = 0
    with pytest.raises(Failure):
        index.add([Document("cat", "Cats purr.")])
    bag.fail_after = None
    with pytest.raises(BadInput, match="strop finish"):
        index.explain("an owl", "cat")


def test_a_method_of_ones_own(index: Index) -> None:
    index.sharpen()
    mine = Method("mine", sets=("sentences",), alpha=0.5, temperature=0.2)
    same = all_scores(index, "an old owl", alpha=0.5, temperature=0.2)
    assert all_scores(index, "an old owl", method=mine) == same
    with pytest.raises(BadInput, match="no query set 'others'"):
        index.search("an old owl", method=Method("mine", sets=("others",)))


def test_alpha_zero_is_plain_search(index: Index) -> None:
    index.sharpen()
    for query in ("an old owl", "jumps"):
        plain = all_scores(index, query, method="trad")
        assert_close(all_scores(index, query, alpha=0.0), plain, 1e-6)


def test_every_method_is_what_it_says(index: Index) -> None:
    simple, contrastive = ["who sees", "who hunts"], ["which bird is old", "which bird is up"]
    for style, queries in (("simple", simple), ("contrastive", contrastive)):
        index.import_queries({"owl": queries}, style)
        index.expand(style)
    q, d = vector_of("who sees at night", "query"), vector_of(OWL.content, "document")
    s, c = vectors_of(simple, "query"), vectors_of(contrastive, "query")
    both = np.concatenate([s, c])
    want = {
        "trad": float(q @ d),
        "sharp": sharpened_score(q, d, both, 1, 0.1),
        "simsharp": sharpened_score(q, d, s, 1, 1),
        "consharp": sharpened_score(q, d, c, 1, 1),
        "indexsharp": float(q @ (d + c.mean(0)) / np.linalg.norm(d + c.mean(0))),
        "maxsim": max_score(q, d, both),
        "doc2query": float(q @ vector_of(" ".join([OWL.content, *simple]), "document")),
        "docexp": float(q @ vector_of(" ".join([OWL.content, *contrastive]), "document")),
    }
    dense = [name for name, method in METHODS.items() if method.bm25 == "no"]  # test_words.py
    got = {name: all_scores(index, "who sees at night", method=name)["owl"] for name in dense}
    assert_close(got, want, 1e-5)


# -- against a model -------------------------------------------------------------------------

WORDS = "amber birch cedar delta ember fjord grove heath islet jetty".split()
POOL = [f"d{i}" for i in range(8)]

_word = st.sampled_from(WORDS)
_sentence = st.lists(_word, min_size=3, max_size=5).map(lambda words: " ".join(words) + ".")
_query = st.one_of(st.just(""), st.lists(_word, min_size=1, max_size=3).map(" ".join))
_style = st.sampled_from(["simple", "contrastive"])


class Page(NamedTuple):
    """A document as the model has it: its sentences are known, not found."""

    title: str
    sentences: tuple[str, ...]
    metadata: int

    def document(self, id_: str) -> Document:
        return Document(id_, " ".join(self.sentences), self.title, {"m": self.metadata})


_page = st.builds(
    Page,
    st.lists(_word, max_size=2).map(" ".join),
    st.lists(_sentence, max_size=3).map(tuple),
    st.integers(0, 1),
)
_pages = st.dictionaries(st.sampled_from(POOL), _page, max_size=4)
_lists = st.dictionaries(st.sampled_from([*POOL, "nobody"]), st.lists(_query, max_size=4))

WAYS: list[dict[str, Any]] = [
    {"method": "trad"},
    {"method": "sharp", "alpha": 0.3, "temperature": 1.0},
    {"method": "sharp", "temperature": float("inf"), "alpha": 2.0},
    {"method": "sharp", "n": 1},
    {"method": "maxsim"},
    {"method": "simsharp"},
]


class IndexAgainstModel(RuleBasedStateMachine):
    """Any sequence of changes leaves an index that scores as the equations do."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strop-test-", dir=memory()))
        self.bag = Bag()
        self.index = create(self.folder / "index", self.bag)
        self.other = reopen(self.folder / "index")
        self.pages: dict[str, Page] = {}
        self.sets: dict[str, dict[str, list[str]]] = {}
        self.most: int | None = None
        self.steps = 0

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
            self.other.close()
            shutil.rmtree(self.folder)

    # The model.

    def queries_of(self, id_: str) -> dict[str, list[str]]:
        found = {}
        for style in self.sets:
            if style == "sentences":
                page = self.pages[id_]
                parts = [part for part in dict.fromkeys([page.title, *page.sentences]) if part]
                found[style] = [" ".join(parts)] if self.most == 1 and parts else parts
            else:
                found[style] = self.sets[style].get(id_, [])
        return found

    def score(self, q: Doubles, id_: str, how: dict[str, Any]) -> float:
        page = self.pages[id_]
        d = vector_of(" ".join([page.title, *page.sentences]), "document")
        method = how.get("method", "sharp" if self.sets else "trad")
        if method == "trad":
            return float(q @ d)
        lists = [
            vectors_of(texts[: how.get("n")], "document" if style == "sentences" else "query")
            for style, texts in self.queries_of(id_).items()
            if method != "simsharp" or style == "simple"
        ]
        queries = np.concatenate(lists)
        if method == "maxsim":
            return max_score(q, d, queries)
        temperature = how.get("temperature", 1.0 if method == "simsharp" else 0.1)
        return sharpened_score(q, d, queries, how.get("alpha", 1.0), temperature)

    # What happens to both.

    @rule(pages=_pages)
    def add(self, pages: dict[str, Page]) -> None:
        new = pages.keys() - self.pages.keys()
        same = {id_ for id_ in pages if self.pages.get(id_) == pages[id_]}
        done = self.index.add([page.document(id_) for id_, page in pages.items()])
        self.pages.update(pages)
        assert done.new == len(new)
        assert done.unchanged == len(same)
        assert done.changed == len(pages) - len(new) - len(same)
        assert done.empty == sum(not (page.title or page.sentences) for page in pages.values())

    @rule(pages=_pages, after=st.integers(0, 8))
    def fail_while_adding_and_finish(self, pages: dict[str, Page], after: int) -> None:
        self.bag.fail_after = after
        try:
            self.index.add([page.document(id_) for id_, page in pages.items()])
        except Failure:
            all_scores(self.other, "amber birch")  # whatever there is can be searched
        self.bag.fail_after = None
        self.pages.update(pages)
        self.index.finish()

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(sorted(self.pages)), unique=True))
        self.index.remove(gone)
        self.forget(set(gone))

    @rule(kept=st.sets(st.sampled_from(POOL), min_size=4))
    def keep_only(self, kept: set[str]) -> None:
        gone = self.pages.keys() - kept
        assert self.index.keep_only(kept) == len(gone)
        self.forget(gone)

    def forget(self, gone: set[str]) -> None:
        for known in (self.pages, *self.sets.values()):
            for id_ in gone:
                known.pop(id_, None)  # type: ignore[attr-defined]

    @rule(most=st.sampled_from([None, 1]))
    def sharpen(self, most: int | None) -> None:
        self.index.sharpen(n=most or 100)
        self.most = most
        self.sets.setdefault("sentences", {})

    @rule(lists=_lists, style=_style, n=st.sampled_from([None, 2]))
    def import_queries(self, lists: dict[str, list[str]], style: str, n: int | None) -> None:
        known = {id_: texts[:n] for id_, texts in lists.items() if id_ in self.pages}
        if not known:
            with pytest.raises(BadInput):
                self.index.import_queries(lists, style, n=n)
            return
        taken = self.index.import_queries(lists, style, n=n)
        assert taken[:2] == (len(known), sum(map(len, known.values())))
        assert len(taken[2]) == len(lists) - len(known)
        self.sets.setdefault(style, {}).update(known)

    @rule()
    def open_again(self) -> None:
        self.index.close()
        self.index = reopen(self.folder / "index", self.bag)

    # What must hold after each.

    @invariant()
    def same_documents(self) -> None:
        if not hasattr(self, "index"):
            return
        for index in (self.index, self.other):
            assert len(index) == len(self.pages)
            assert index.unknown(POOL) == set(POOL) - self.pages.keys()
        for id_, page in self.pages.items():
            assert self.index.get(id_) == page.document(id_)
            assert self.index.queries_of(id_) == self.queries_of(id_)

    @invariant()
    def same_scores(self) -> None:
        if not hasattr(self, "index"):
            return
        self.steps += 1
        ways = [{}, WAYS[self.steps % len(WAYS)]]
        query = " ".join(WORDS[(self.steps + at) % len(WORDS)] for at in range(2))
        q = vector_of(query, "query")
        for how in ways:
            if how and how["method"] != "trad" and not self.sets:
                continue
            if how.get("method") == "simsharp" and "simple" not in self.sets:
                continue
            want = {id_: self.score(q, id_, how) for id_ in self.pages}
            for index in (self.index, self.other):
                assert_close(all_scores(index, query, **how), want, 1e-5)
            # The best three are the three best: but near-ties may come in any order.
            hits = self.index.search(query, k=3, **how)
            best = sorted(want.values(), reverse=True)[:3]
            np.testing.assert_allclose(hits.scores[0], best, atol=1e-5)
            assert all(
                abs(want[id_] - score) < 1e-5
                for id_, score in zip(hits.ids[0], hits.scores[0], strict=True)
            )

    @invariant()
    def nothing_is_wrong(self) -> None:
        if not hasattr(self, "index"):
            return
        assert self.index.check() == []
        info = self.index.info()
        assert info["waiting"] == 0
        assert all(set_["waiting"] == 0 for set_ in info["sets"].values())


IndexAgainstModel.TestCase.settings = settings(
    max_examples=25, stateful_step_count=12, deadline=None
)
TestIndexAgainstModel = IndexAgainstModel.TestCase


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_can_search(tmp_path: Path) -> None:
    import warnings

    with Index.create(tmp_path / "i", lambda texts: np.ones((len(texts), 4))) as index:
        index.add({"id": str(i), "text": "word"} for i in range(50))
        index.sharpen("sentences")
        index.search("word")  # starts the parent's threads
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forking with threads
        child = os.fork()
    if child == 0:
        with Index.open(tmp_path / "i", lambda texts: np.ones((len(texts), 4))) as again:
            os._exit(0 if len(again.search(["word"] * 9).ids) == 9 else 1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hung")


def _letters(texts: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([[text.count(letter) + 1e-9 for letter in "abcdefgh"] for text in texts])


def test_lists_of_one_document_are_pooled(tmp_path: Path) -> None:
    """A file may have a line for each reference of a document."""
    with Index.create(tmp_path / "i", _letters) as index:
        index.add([{"id": "1", "text": "abc"}, {"id": "2", "text": "def"}])
        lines = [("line 1", "1", ["a", "b"]), ("line 2", "2", ["d"]), ("line 3", "1", ["c", "a"])]
        assert index.import_queries(lines, "contrastive") == (2, 5, [])
        assert index.queries_of("1")["contrastive"] == ["a", "b", "c", "a"]
        assert index.import_queries(lines, "contrastive", n=3)[1] == 4
        assert index.queries_of("1")["contrastive"] == ["a", "b", "c"]


def test_out_of_date_expanded_text_is_refused(tmp_path: Path) -> None:
    with Index.create(tmp_path / "i", _letters) as index:
        index.add([{"id": "1", "text": "abc"}, {"id": "2", "text": "def"}])
        index.import_queries({"1": ["h"]}, "simple")
        index.expand("simple")
        assert index.search("h", method="doc2query").ids[0, 0] == "1"
        index.import_queries({"2": ["h h h"]}, "simple")
        with pytest.raises(BadInput, match=r"call index\.expand"):
            index.search("h", method="doc2query")
        index.expand("simple")
        assert index.search("h", method="doc2query").ids[0, 0] == "2"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_no_numbers_are_refused(tmp_path: Path, bad: float) -> None:
    with Index.create(tmp_path / "i", _letters) as index:
        index.add([{"id": "1", "text": "abc"}])
        with pytest.raises(BadInput, match="NaN or infinity"):
            index.search(np.full((1, 8), bad, np.float32))


def test_one_set_may_be_named_by_a_string(tmp_path: Path) -> None:
    with Index.create(tmp_path / "i", _letters) as index:
        index.add([{"id": "1", "text": "abc. def."}])
        index.sharpen("sentences")
        assert index.method("sharp", sets="sentences").sets == ("sentences",)
        with pytest.raises(BadInput, match=r"dataclasses\.replace"):
            index.search("a", method=METHODS["sharp"], alpha=2)
