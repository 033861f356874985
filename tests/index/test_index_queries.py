"""Query sets of an index, its counts, and the repair of lost vectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.animals import ANIMALS, FOX, FOX_SENTENCES, OWL, PIG, PIG_SENTENCES
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
from strop.errors import BadInput, IndexDamaged, UnfinishedIndex

# -- query sets ------------------------------------------------------------------------------


def test_sharpen_covers_present_and_later_documents(index: Index, bag: Bag) -> None:
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


def test_sharpen_with_another_n_rebuilds_the_lists(index: Index, bag: Bag) -> None:
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
    """Their zero vectors would take weight from the other queries."""
    before = index.info()["sets"]
    with pytest.raises(BadInput, match=r"the given lists: query 2 of 'owl' is blank; remove it"):
        index.import_queries({"fox": ["q1"], "owl": ["q2", blank]}, "simple")
    assert index.info()["sets"] == before


def test_import_replaces_the_list_of_each_document_it_names(index: Index, bag: Bag) -> None:
    result = index.import_queries({"fox": ["q1", "q2"], "owl": ["q3"], "cow": ["q4"]}, "simple")
    assert result[:2] == (2, 3)
    assert len(result[2]) == 1
    assert "'cow'" in result[2][0]
    assert bag.count == 3
    rows = [("line 1", "fox", ["q5", "q6", "q7"]), ("line 2", "cow", ["q8"])]
    result = index.import_queries(rows, "simple", n=2)
    assert result == (1, 2, ["line 2: 'cow'"])
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
    index.import_queries({"fox": ["q1", "q2"]}, "simple")  # replaces the waiting list
    assert bag.count == 0
    assert index.queries_of("fox") == {"simple": ["q1", "q2"]}
    assert index.info()["sets"]["simple"]["waiting"] == 0


def test_queries_of_an_older_text_do_not_count_until_imported_again(tmp_path: Path) -> None:
    lists = {"pet": ["cats that purr", "why cats purr"], "farm": ["cows"], "sea": ["whales"]}

    def best(*indexes: Index) -> set[str]:
        return {
            index.search("why cats purr", k=1, method=method).ids[0, 0]
            for index in indexes
            for method in ("sharp", "sharp:words=1", "maxsim")
        }

    with create(tmp_path / "index") as index, reopen(tmp_path / "index") as reader:
        index.add(
            [
                Document("pet", "Cats purr."),
                Document("farm", "Cows and cats."),
                Document("sea", "W"),
            ]
        )
        index.import_queries(lists, "simple")
        index.augment("simple")
        assert best(index, reader) == {"pet"}
        index.add([Document("pet", "Stock markets crash.")])
        assert best(index, reader) == {"farm"}
        assert index.info()["sets"]["simple"]["older_than_text"] == 1
        assert index.queries_of("pet")["simple"] == lists["pet"]
        with pytest.raises(BadInput, match="augment"):
            index.search("cats", method="docexp:sets=simple")
        index.augment("simple")
        assert index.search("why cats purr", k=1, method="docexp:sets=simple").ids[0, 0] == "farm"
        explanation = index.explain("cats", "farm")
        assert [part.text for part in explanation.queries] == ["cows"]
        with reopen(index.path) as reopened:
            assert best(reopened) == {"farm"}
        index.import_queries({"pet": lists["pet"]}, "simple")
        assert best(index, reader) == {"pet"}
        with pytest.raises(BadInput, match="augment"):
            index.search("cats", method="docexp:sets=simple")
        index.add([Document("pet", "Stock markets fall.")])
        assert best(index, reader) == {"farm"}
        index.add([Document("pet", "Stock markets crash.")])  # restored: its queries count
        assert best(index, reader) == {"pet"}
        assert index.check() == []


def test_keep_queries_lets_queries_of_an_older_text_count(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index, reopen(tmp_path / "index") as reader:

        def best() -> set[str]:
            return {opened.search("why cats purr", k=1).ids[0, 0] for opened in (index, reader)}

        index.add([Document("pet", "Cats purr."), Document("farm", "Cows and cats.")])
        index.import_queries({"pet": ["why cats purr"]}, "simple")
        index.add([Document("pet", "Stock markets crash.")], keep_queries=True)
        assert index.info()["sets"]["simple"]["older_than_text"] == 0
        assert best() == {"pet"}
        index.add([Document("pet", "Stock markets fall.")])
        assert best() == {"farm"}
        index.add([Document("pet", "Stock markets fall.")], keep_queries=True)  # also works later
        assert best() == {"pet"}
        assert index.check() == []


def test_info_counts_lists_older_than_their_text(index: Index, bag: Bag) -> None:
    index.import_queries({"fox": ["q1"], "owl": ["q2"]}, "simple")
    index.add([Document("fox", "Another text of foxes.")])
    assert index.queries_of("fox") == {"simple": ["q1"]}
    assert index.info()["sets"]["simple"]["older_than_text"] == 1
    bag.count = 0
    index.import_queries({"fox": ["q1"]}, "simple")  # they now belong to the new text
    assert index.info()["sets"]["simple"]["older_than_text"] == 0
    assert bag.count == 0


@pytest.mark.parametrize("bad", [[1], [None], ["fine", ["nested"]], ["\ud800"], "one text"])
def test_bad_queries_are_refused_before_they_are_stored(index: Index, bad: Any) -> None:
    with pytest.raises(BadInput, match="'owl'"):
        index.import_queries({"fox": ["fine"], "owl": bad}, "simple")
    assert index.queries_of("fox") == {}
    assert index.info()["sets"] == {}
    index.add([Document("cat", "Cats purr.")])


def test_an_import_without_a_known_document_creates_no_set(index: Index) -> None:
    for lists in ({"cow": ["q"]}, {}):
        with pytest.raises(BadInput, match="none of the ids"):
            index.import_queries(lists, "simple")
    assert index.info()["sets"] == {}
    index.import_queries({"fox": ["q"]}, "simple")
    with pytest.raises(BadInput, match="none of the ids"):
        index.import_queries({"cow": ["q"]}, "simple")
    assert index.queries_of("fox") == {"simple": ["q"]}
    for style in ("sentences", "augmented:simple", "", "a b"):
        with pytest.raises(BadInput, match="cannot name a set"):
            index.import_queries({"fox": ["q"]}, style)


def test_an_interrupted_import_stores_nothing(index: Index) -> None:
    def broken() -> Iterator[tuple[str, str, list[str]]]:
        yield "line 1", "fox", ["who jumps"]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        index.import_queries(broken(), "simple")
    assert index.info()["sets"] == {}
    with pytest.raises(BadInput, match="n must be 1 or more"):
        index.import_queries({"fox": ["who jumps"]}, "simple", n=-1)


def test_augment_appends_the_queries_to_the_text(index: Index, bag: Bag) -> None:
    with pytest.raises(BadInput, match="no query set 'simple'"):
        index.augment("simple")
    index.import_queries({"fox": ["who jumps", "who clears"], "owl": ["who sees"]}, "simple")
    with pytest.raises(BadInput, match="augment"):
        index.search("x", method="doc2query")
    bag.count = 0
    index.augment("simple")
    assert bag.count == 3
    index.augment("simple")
    assert bag.count == 3
    augmented = {
        "fox": f"{FOX.content} who jumps who clears",
        "owl": f"{OWL.content} who sees",
        "pig": PIG.text,
    }
    q = vector_of("who sees", "query")
    expected = {id_: float(q @ vector_of(text, "document")) for id_, text in augmented.items()}
    assert_close(all_scores(index, "who sees", method="doc2query"), expected, 1e-5)
    assert index.queries_of("owl") == {"simple": ["who sees"]}


def test_augment_embeds_only_changed_texts_and_lists(index: Index, bag: Bag) -> None:
    index.import_queries({"fox": ["who jumps"], "owl": ["who sees"]}, "simple")
    index.augment("simple")

    def waiting() -> int:
        return int(index.info()["sets"]["augmented:simple"]["waiting"])

    assert waiting() == 0
    index.import_queries({"fox": ["who runs"], "owl": ["who sees"]}, "simple")
    assert waiting() == 1
    index.add([Document("pig", "Pigs sleep in mud.")])
    assert waiting() == 2
    index.finish()  # does not augment: that costs as much as embedding the documents
    assert waiting() == 2
    bag.count = 0
    index.augment("simple")
    assert (bag.count, waiting()) == (2, 0)
    text = f"{FOX.content} who runs"
    q = vector_of(text, "document")
    assert all_scores(index, q, method="doc2query")["fox"] > 0.9999
    index.add([Document("cat", "Cats purr.")])
    with pytest.raises(BadInput, match="augment"):
        index.search("x", method="doc2query")


def test_finish_continues_where_the_embedder_failed(index: Index, bag: Bag, tmp_path: Path) -> None:
    index.sharpen()
    documents = [
        Document(f"n{i}", f"Number {i} is here. After it comes {i + 1}.") for i in range(200)
    ]
    bag.fail_after = 400
    with pytest.raises(Failure):
        index.add(documents)
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
    with create(tmp_path / "complete") as complete:
        complete.sharpen()
        complete.add([*ANIMALS, *documents])
        assert_close(all_scores(index, "number 7"), all_scores(complete, "number 7"), 1e-6)


# -- maintenance -----------------------------------------------------------------------------


def test_a_search_of_an_unfinished_index_warns_once(index: Index, bag: Bag) -> None:
    bag.fail_after = 1
    with pytest.raises(Failure):
        index.add([Document("new", "A text."), Document("newer", "Another text.")])
    bag.fail_after = None
    with pytest.warns(UnfinishedIndex, match=r"2 of its documents.*strop finish"):
        index.search("text")
    index.search("text")
    with reopen(index.path, bag) as reopened:
        with pytest.warns(UnfinishedIndex):
            reopened.search("text")
        reopened.finish()
    with reopen(index.path, bag) as reopened:
        reopened.search("text")


def test_info_counts_documents_and_queries(index: Index) -> None:
    index.sharpen()
    index.import_queries({"fox": ["q1", "q2"], "owl": []}, "simple")
    index.add([Document("empty", "")])
    info = index.info()
    assert (info["documents"], info["empty"], info["waiting"]) == (4, 1, 0)
    counts = {
        name: [set_[key] for key in ("documents", "queries", "older_than_text", "waiting")]
        for name, set_ in info["sets"].items()
    }
    assert counts == {"sentences": [3, 7, 0, 0], "simple": [1, 2, 0, 0]}
    assert info["embedder"]["name"] == "callable:bag"
    assert info["embedder"]["dim"] == DIM
    assert info["sizes"]["documents"] == 4 * DIM * 4


def _cut(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])


@pytest.mark.parametrize("lose", ["half", "two thirds", "a byte", "files", "folder"])
def test_check_finds_lost_vectors_and_repair_restores_them(
    tmp_path: Path, bag: Bag, lose: str
) -> None:
    path = tmp_path / "index"
    with create(path, bag) as index:
        index.add(ANIMALS)
        index.sharpen()
        index.import_queries({"fox": ["q1", "q2"], "pig": ["q3"]}, "simple")
        index.augment("simple")
        before = all_scores(index, "owl q1"), all_scores(index, "q1", method="doc2query")
        queries = [index.queries_of(document.id) for document in ANIMALS]
        assert index.check() == []
    for file in (path / "vectors").iterdir():
        size = file.stat().st_size
        kept_bytes = {"half": size // 2, "two thirds": size // 3, "a byte": size - 1}
        if lose in kept_bytes:
            _cut(file, kept_bytes[lose])
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
        index.augment("simple")
        after = all_scores(index, "owl q1"), all_scores(index, "q1", method="doc2query")
        for scores, expected in zip(after, before, strict=True):
            assert_close(scores, expected, 1e-6)
        assert [index.queries_of(document.id) for document in ANIMALS] == queries
        assert index.info()["waiting"] == 0


def test_repair_embeds_only_lost_vectors(index: Index, bag: Bag) -> None:
    _cut(index.path / "vectors" / "documents.f32", 2 * DIM * 4)
    with reopen(index.path, bag) as reopened:
        assert reopened.check(repair=True) == ["vectors/documents.f32 holds 2 of 3 vectors"]
        assert bag.count == 1
        assert all_scores(reopened, vector_of(PIG.text, "document"))["pig"] > 0.9999
