"""The word counts of an index match its texts after any sequence of changes."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fakes
from helpers.words import assert_words_match_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from strop import Index
from strop.errors import BadInput, IndexDamaged
from strop.methods import Method
from strop.search.words import count_words

TEXTS = ["fox runs", "the fox", "dog dog", "", "a zebra and the dog", "stripes of zebras"]
LISTS = [["what runs"], ["zebra", "fox fox"], ["stripes"]]
IDS = ["a", "b", "c", "d"]
QUERY = "fox dog zebra stripes run missing"


def expected_scores(index: Index, sets: tuple[str, ...]) -> list[float]:
    """Return the BM25 scores, computed from the texts that count."""
    catalog, known = index.catalog, index.catalog.sets.all()
    texts = []
    for id_ in index.ids():
        number = catalog.documents.number_of(id_)
        parts = [catalog.documents.get(number).content]
        parts += chain(*(catalog.sets.queries(known[name], number) for name in sets))
        texts.append("\n".join(parts))
    return list(count_words(texts, catalog.words.tokenizer()).scores(QUERY))


def assert_scores_match_the_texts(index: Index) -> None:
    assert_words_match_texts(index)
    with index.catalog.reading():
        names = [name for name in ("own", "other") if name in index.catalog.sets.all()]
        for size in range(len(names) + 1):
            for sets in combinations(names, size):
                method = Method("bm25", weighting="none", bm25="only", sets=sets or None)
                scores = index.searcher.views.words(method).scores(QUERY)
                np.testing.assert_allclose(
                    scores, expected_scores(index, sets), rtol=1e-5, atol=1e-7
                )
    assert index.catalog.words.problems() == []


ids, texts = st.sampled_from(IDS), st.sampled_from(TEXTS)
added = st.dictionaries(ids, texts, min_size=1)
step = st.one_of(
    st.tuples(st.just("add"), added, st.booleans()),
    st.tuples(st.just("remove"), st.sets(ids)),
    st.tuples(
        st.just("import"),
        st.sampled_from(["own", "other"]),
        st.dictionaries(ids, st.sampled_from(LISTS), min_size=1),
    ),
    st.tuples(st.sampled_from(["sharpen", "compact", "reopen", "recount"])),
)


def apply_step(index: Index, name: str, *arguments: Any) -> None:
    if name == "add":
        documents, keep = arguments
        index.add(({"id": id_, "text": text} for id_, text in documents.items()), keep_queries=keep)
    elif name == "remove":
        index.remove([id_ for id_ in arguments[0] if not index.unknown([id_])])
    elif name == "import":
        lists = {id_: texts for id_, texts in arguments[1].items() if not index.unknown([id_])}
        if lists:
            index.import_queries(lists, arguments[0])
    elif name == "recount":
        index.catalog.words.recount()
    elif name != "reopen":
        getattr(index, name)()


@settings(max_examples=40)
@given(st.lists(step, max_size=12), st.sampled_from([1, 8192]))
def test_word_counts_match_the_texts(steps: list[tuple[Any, ...]], most_named: int) -> None:
    with (
        tempfile.TemporaryDirectory(dir=fakes.memory()) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("strop.storage.words.MOST_NAMED", most_named)
        index = fakes.create(Path(folder) / "index")
        try:
            for name, *arguments in steps:
                apply_step(index, name, *arguments)
                if name == "reopen":
                    index.close()
                    index = fakes.reopen(Path(folder) / "index")
                assert_scores_match_the_texts(index)
        finally:
            index.close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with fakes.create(tmp_path / "index") as index:
        index.add({"id": id_, "text": text} for id_, text in zip(IDS, TEXTS, strict=False))
        yield index


def texts_of(index: Index, source: int) -> int:
    return index.catalog.words.load([source])[source].texts


def test_words_of_outdated_lists_do_not_count(index: Index) -> None:
    index.import_queries({"a": ["zebra"], "b": ["stripes"]}, "own")
    (own,) = (set_.set_id for set_ in index.catalog.sets.all().values())
    assert texts_of(index, own) == 2
    index.add([{"id": "a", "text": "another"}])
    assert texts_of(index, own) == 1
    index.add([{"id": "a", "text": TEXTS[0]}])  # the old text is back
    assert texts_of(index, own) == 2
    index.add([{"id": "a", "text": "another"}])
    index.add([{"id": "a", "text": "another"}], keep_queries=True)
    assert texts_of(index, own) == 2
    index.add([{"id": "b", "text": "more"}])
    index.import_queries({"b": ["stripes"]}, "own")  # imported again
    assert texts_of(index, own) == 2


def test_metadata_changes_leave_the_words_alone(index: Index) -> None:
    before = index.catalog.words.load([0])[0].generation
    index.add([{"id": "a", "text": TEXTS[0], "year": 1999}])
    assert index.catalog.words.load([0])[0].generation == before


GERMAN = "Der Fuchs und die Hunde sind nicht in den Wäldern, aber er ist auf dem Feld."


def test_languages_are_detected_again_at_ten_times_the_documents(tmp_path: Path) -> None:
    with fakes.create(tmp_path / "index") as index:
        index.add([{"id": "first", "text": "The fox and the dogs are not in it."}])
        assert index.catalog.words.tokenizer().languages["latin"] == "english"
        index.add({"id": str(at), "text": f"{GERMAN} {at}"} for at in range(8))
        assert index.catalog.words.tokenizer().languages["latin"] == "english"
        index.add([{"id": "tenth", "text": GERMAN}])
        assert index.catalog.words.tokenizer().languages["latin"] == "german"
        assert_words_match_texts(index)
        assert index.search("Wald", 1, "bm25").scores[0, 0] > 0


def test_given_language_is_kept(tmp_path: Path) -> None:
    with fakes.create(tmp_path / "index", language="swedish") as index:
        index.add({"id": str(at), "text": GERMAN} for at in range(20))
        assert index.catalog.words.tokenizer().languages["latin"] == "swedish"
        assert index.catalog.words.tokenizer().languages["cyrillic"] == "russian"
    with pytest.raises(BadInput, match="no stems for 'klingon'"):
        fakes.create(tmp_path / "other", language="klingon")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM word_postings WHERE term = 'fox'",
        "UPDATE word_postings SET postings = x'000009' WHERE term = 'dog'",
        "UPDATE word_postings SET term = 'foxes' WHERE term = 'fox'",
        "DELETE FROM word_segments",
        "UPDATE word_segments SET block = 4000000",
        "UPDATE word_segments SET numbers = x'00'",
        "DELETE FROM word_lengths",
        "UPDATE word_lengths SET chunk = 1 << 60",
        "UPDATE word_sources SET texts = texts + 1",
        "DELETE FROM word_sources",
        "UPDATE word_sources SET generation = 'junk'",
        "UPDATE meta SET value = json_set(value, '$.version', 0) WHERE key = 'words'",
        "UPDATE meta SET value = json_set(value, '$.languages.latin', 0) WHERE key = 'words'",
        "UPDATE meta SET value = '[]' WHERE key = 'words'",
        "DELETE FROM meta WHERE key = 'words'",
    ],
)
def test_damaged_words_are_found_and_counted_again(index: Index, damage: str) -> None:
    with sqlite3.connect(index.path / "catalog.sqlite") as connection:
        connection.execute(damage)
    with fakes.reopen(index.path) as reopened:
        assert reopened.check()
        reopened.check(repair=True)
        assert reopened.check() == []
        assert_words_match_texts(reopened)


def test_damage_that_only_the_seal_shows_is_repaired(index: Index) -> None:
    """Two documents' lengths are swapped: all sums stay the same, BM25 would be wrong."""
    before = index.search("fox", 4, "bm25").scores
    swap_lengths(index)
    with fakes.reopen(index.path) as reopened:
        assert (reopened.search("fox", 4, "bm25").scores != before).any()
        (problem,) = reopened.check()
        assert (
            "rows of word_lengths are not what strop wrote; --repair computes them again" in problem
        )
        reopened.check(repair=True)
        assert reopened.check() == []
        assert_words_match_texts(reopened)
        np.testing.assert_array_equal(reopened.search("fox", 4, "bm25").scores, before)


def swap_lengths(index: Index) -> None:
    """Damage lengths without changing their sum: only the seal shows it."""
    with sqlite3.connect(index.path / "catalog.sqlite") as connection:
        (stored,) = connection.execute("SELECT lengths FROM word_lengths").fetchone()
        entries = np.frombuffer(stored, "<u4").reshape(2, -1).copy()
        first, other = np.flatnonzero(np.diff(entries[1]))[0] + [0, 1]
        entries[1, [first, other]] = entries[1, [other, first]]
        connection.execute(
            "UPDATE word_lengths SET lengths = ? WHERE source = 0", (entries.tobytes(),)
        )


def test_interrupted_repair_hides_no_damage(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    swap_lengths(index)
    with fakes.reopen(index.path) as reopened:
        with monkeypatch.context() as patch:
            patch.setattr(type(reopened.catalog.words), "recount", interrupt)
            with pytest.raises(KeyboardInterrupt):
                reopened.check(repair=True)
        assert reopened.check()
        reopened.check(repair=True)
        assert reopened.check() == []
        assert_words_match_texts(reopened)


@pytest.mark.parametrize(
    "seals",
    [
        "UPDATE meta SET value = value",
        "UPDATE meta SET value = '[]'",
        "UPDATE meta SET value = json_set(value, '$.word_lengths', 'junk')",
        "UPDATE meta SET value = CAST(x'ff' AS TEXT)",
        "DELETE FROM meta",
    ],
)
@pytest.mark.parametrize(
    "damage",
    [
        "queries SET texts = '[1, \"b fox\"]'",
        "documents SET text = CAST('full' || x'ff' AS TEXT)",
    ],
)
def test_uncountable_words_prevent_no_other_repair(index: Index, damage: str, seals: str) -> None:
    index.import_queries({"b": ["a fox", "b fox"]}, "own")
    swap_lengths(index)
    with sqlite3.connect(index.path / "catalog.sqlite") as connection:
        assert connection.execute(f"UPDATE {damage} WHERE number = 2").rowcount == 1
        connection.execute(f"{seals} WHERE key = 'seals'")
    with open(index.path / "vectors" / "documents.f32", "r+b") as file:
        file.write(b"\xff")
    with fakes.reopen(index.path) as reopened:
        *broken_seals, vectors = [problem for problem in reopened.check() if ": rows" in problem]
        assert vectors.startswith("vectors/documents.f32")
        for _ in range(2):
            with pytest.raises(
                IndexDamaged, match=r"texts make no sense|Could not decode"
            ) as error:
                reopened.check(repair=True)
            assert "full" not in str(error.value)  # the text of a document
            assert reopened.info()["waiting"] == 0  # what was lost is embedded again
            assert [problem for problem in reopened.check() if ": rows" in problem] == broken_seals


def test_search_reports_unreadable_words(index: Index) -> None:
    with sqlite3.connect(index.path / "catalog.sqlite") as connection:
        connection.execute("UPDATE word_postings SET postings = 'text'")
    with (
        fakes.reopen(index.path) as reopened,
        pytest.raises(IndexDamaged, match="words make no sense"),
    ):
        reopened.search("fox", 1, "bm25")


def test_failed_commit_adds_no_words(index: Index) -> None:
    generation = index.catalog.words.load([0])[0].generation
    with pytest.raises(BadInput):
        index.add([{"id": "new", "text": "zebra"}, {"id": "new", "text": "again"}])
    index.add([{"id": "later", "text": "dog"}])
    assert index.catalog.words.load([0])[0].generation == generation + 1
    assert_words_match_texts(index)


def test_info_reports_the_size_of_the_words(index: Index) -> None:
    sizes = index.info()["sizes"]
    assert 0 < sizes["words"] < sizes["catalog"]
