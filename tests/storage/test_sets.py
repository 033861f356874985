"""Query sets are listed, dropped and renamed; an interrupted change has no effect."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import strop
from helpers.fakes import create, reopen

from strop import Document, Index
from strop.errors import BadInput
from strop.search import layout as layouts
from strop.search import searcher

QUERIES = ["cats purr", "dogs bark 3", "fish"]


def lists(word: str, n: int = 60) -> dict[str, list[str]]:
    return {f"d{at}": [f"{word} {at}", f"{word} of {at % 7}"] for at in range(n)}


def fill(path: Path) -> Index:
    index = create(path)
    index.add([Document(f"d{at}", f"text {at}. dogs {at % 5} bark.") for at in range(60)])
    index.sharpen(n=2)
    index.import_queries(lists("cats"), "simple")
    index.import_queries(lists("fish", 40), "other")
    return index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A small index that is searched like a large one."""
    monkeypatch.setattr(searcher, "PREFILTER_FROM", 50)
    monkeypatch.setattr(layouts, "NUMPY_UP_TO", 0)
    with fill(tmp_path / "index") as index:
        yield index


def ranking(index: Index, method: str = "sharp") -> Any:
    hits = index.search(QUERIES, 60, method, exact=True, fields=())
    return hits.ids.tolist(), hits.scores.round(5).tolist()


def test_sets_are_listed(index: Index) -> None:
    index.augment("simple")
    sets = {set_.name: set_ for set_ in index.sets}
    assert list(sets) == ["sentences", "simple", "other", "augmented:simple"]
    assert [set_.source for set_ in sets.values()] == ["sentences", "file", "file", "augmented"]
    assert (sets["simple"].lists, sets["simple"].queries) == (60, 120)
    assert (sets["other"].lists, sets["other"].queries) == (40, 80)
    assert sets["other"].bytes == 80 * 32 * 4


def test_dropped_set_leaves_no_trace(index: Index, tmp_path: Path) -> None:
    """Searches, also by another open reader, equal those of an index without the set."""
    index.augment("simple")
    with create(tmp_path / "without") as without_set, reopen(index.path) as reader:
        without_set.add([index.get(id_) for id_ in index.ids()])
        without_set.sharpen(n=2)
        without_set.import_queries(lists("fish", 40), "other")
        before = ranking(reader)
        index.drop_set("simple")
        for opened in (index, reader):
            assert [set_.name for set_ in opened.sets] == ["sentences", "other"]
            assert ranking(opened) == ranking(without_set) != before
            assert opened.query_sets() == ["sentences", "other"]
            with pytest.raises(BadInput, match="has no query set 'simple'"):
                opened.search("cats", method="simsharp")
        assert {file.name for file in (index.path / "vectors").iterdir()} == {
            "documents.f32", "queries-1.f32", "queries-3.f32",
        }  # fmt: skip
        assert index.check() == []
        assert index.compact() > 0
        assert index.check() == []
        assert ranking(index) == ranking(without_set)


def test_readers_use_a_new_set_of_the_same_name(index: Index, tmp_path: Path) -> None:
    """An open reader uses the new set, renamed or imported, not the old one."""
    index.drop_set("sentences")
    with reopen(index.path) as reader, create(tmp_path / "fresh") as fresh:
        fresh.add([index.get(id_) for id_ in index.ids()])
        fresh.import_queries(lists("fish", 40), "simple")
        assert ranking(reader, "sharp:sets=simple") != ranking(fresh)
        assert ranking(index, "sharp:sets=simple") != ranking(fresh)
        index.drop_set("simple")
        index.rename_set("other", "simple")
        for opened in (index, reader):
            assert ranking(opened, "sharp:sets=simple") == ranking(opened) == ranking(fresh)
            best = opened.search(QUERIES, 1, "sharp")
            assert best.ids.tolist() == opened.search(QUERIES, 1, "sharp", exact=True).ids.tolist()
        index.drop_set("simple")
        index.import_queries(lists("cats"), "simple")
        fresh.import_queries(lists("cats"), "simple")
        for opened in (index, reader):
            assert ranking(opened) == ranking(fresh)
        assert index.check() == []


def test_renamed_set_keeps_its_content(index: Index) -> None:
    index.augment("simple")
    with reopen(index.path) as reader:
        before, augmented = ranking(reader, "sharp:sets=simple"), ranking(reader, "doc2query")
        index.rename_set("simple", "contrastive")
        for opened in (index, reader):
            names = ["sentences", "contrastive", "other", "augmented:contrastive"]
            assert [set_.name for set_ in opened.sets] == names
            assert ranking(opened, "sharp:sets=contrastive") == before
            assert ranking(opened, "docexp") == augmented
        index.import_queries({"d3": ["quite another"]}, "contrastive")
        index.augment("contrastive")
        assert ranking(index, "docexp") != augmented
        assert index.check() == []


def keep_tuned(index: Index, sets: list[str] | None) -> None:
    settings = {"alpha": 2.0, "temperature": 0.1, "n": None, "feedback": 0, "words": 0}
    index.keep_tuned({"method": {"sets": sets, **settings}})


@pytest.mark.parametrize("sets", [None, ["simple", "other"]])
def test_tuned_settings_follow_their_set(index: Index, sets: list[str] | None) -> None:
    """Tuned settings follow a renamed set and are dropped with it."""
    keep_tuned(index, sets)
    assert index.method("sharp").alpha == 2
    index.rename_set("simple", "questions")
    assert index.method("sharp").alpha == 2
    assert index.method("sharp").sets == (sets and ("questions", "other"))
    index.drop_set("questions")
    assert index.method("sharp").alpha == 1
    index.rename_set("other", "questions")
    index.import_queries(lists("fish"), "other")
    assert index.method("sharp").alpha == 1
    assert index.info()["tuned"] is None


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("nobody", "new", r"has no query set 'nobody' \(it has: 'sentences', 'simple', 'other'\)"),
        ("simple", "other", "has a query set 'other': drop it or choose another name"),
        ("simple", "simple", "has a query set 'simple'"),
        ("simple", "sentences", "cannot name a set of queries"),
        ("simple", "a:b", "cannot name a set of queries"),
        ("sentences", "new", "'sentences' cannot be renamed"),
    ],
)
def test_wrong_set_names_are_refused(index: Index, old: str, new: str, problem: str) -> None:
    before = index.sets
    with pytest.raises(BadInput, match=problem):
        index.rename_set(old, new)
    with pytest.raises(BadInput, match="has no query set 'nobody'"):
        index.drop_set("nobody")
    assert index.sets == before


@pytest.mark.parametrize("change", [("drop_set", "simple"), ("rename_set", "simple", "new")])
def test_interrupted_change_has_no_effect(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, ...]
) -> None:
    """A power cut before the commit leaves the index as it was."""
    index.augment("simple")
    monkeypatch.setattr(searcher.Searcher, "update_codes", lambda self: None)  # after the commit
    before, sets = ranking(index), index.sets
    folder = index.path
    index.close()

    class Stop(Exception):
        pass

    for stop_at in range(1, 200):
        copy = tmp_path / f"copy{stop_at}"
        shutil.copytree(folder, copy)
        n_statements = 0

        def stop(_: str, stop_at: int = stop_at) -> None:
            nonlocal n_statements
            n_statements += 1
            if n_statements == stop_at:
                raise Stop

        with reopen(copy) as changed:
            name, *arguments = change
            monkeypatch.setattr(
                changed.catalog.vectors, "log", _stop_before(changed.catalog.vectors.log, stop)
            )
            monkeypatch.setattr(
                changed.catalog.settings, "put", _stop_before(changed.catalog.settings.put, stop)
            )
            try:
                getattr(changed, name)(*arguments)
            except Stop:
                assert changed.sets == sets
                assert ranking(changed) == before
                assert changed.check() == []
            else:
                assert changed.sets != sets
                assert stop_at > 3
                return
    raise AssertionError("it never ended")


def _stop_before(function: Any, stop: Any) -> Any:
    def wrapper(*arguments: Any, **options: Any) -> Any:
        stop(function.__name__)
        return function(*arguments, **options)

    return wrapper


def test_sets_command(index: Index) -> None:
    listing = strop("sets", index.path)
    assert [line.split()[:4] for line in listing.stdout.strip().splitlines()[-3:]] == [
        ["sentences", "sentences", "60", "120"],
        ["simple", "file", "60", "120"],
        ["other", "file", "40", "80"],
    ]
    sets = strop("sets", index.path, "--rename", "other", "questions", "--json").json["sets"]
    assert [set_["name"] for set_ in sets] == ["sentences", "simple", "questions"]
    assert sets[2] == {
        "name": "questions", "source": "file", "lists": 40, "queries": 80, "bytes": 80 * 32 * 4,
    }  # fmt: skip
    strop("sets", index.path, "--drop", "simple")
    assert [set_["name"] for set_ in strop("sets", index.path, "--json").json["sets"]] == [
        "sentences", "questions",
    ]  # fmt: skip
    failure = strop("sets", index.path, "--drop", "simple")
    assert failure.code == 1
    assert "has no query set 'simple'" in failure.stderr
