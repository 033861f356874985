"""Query sets are listed, dropped and renamed, all or nothing."""

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
    """An index that is searched as a large one is."""
    monkeypatch.setattr(searcher, "PREFILTER_FROM", 50)
    monkeypatch.setattr(layouts, "NUMPY_UP_TO", 0)
    with fill(tmp_path / "index") as index:
        yield index


def ranking(index: Index, method: str = "sharp") -> Any:
    hits = index.search(QUERIES, 60, method, exact=True, fields=())
    return hits.ids.tolist(), hits.scores.round(5).tolist()


def test_listed(index: Index) -> None:
    index.augment("simple")
    sets = {one.name: one for one in index.sets}
    assert list(sets) == ["sentences", "simple", "other", "augmented:simple"]
    assert [one.source for one in sets.values()] == ["sentences", "file", "file", "augmented"]
    assert (sets["simple"].lists, sets["simple"].queries) == (60, 120)
    assert (sets["other"].lists, sets["other"].queries) == (40, 80)
    assert sets["other"].bytes == 80 * 32 * 4


def test_a_dropped_set_leaves_nothing(index: Index, tmp_path: Path) -> None:
    """Searches, also of another open reader, are those of an index that never had it."""
    index.augment("simple")
    with create(tmp_path / "never") as never, reopen(index.path) as reader:
        never.add([index.get(id_) for id_ in index.ids()])
        never.sharpen(n=2)
        never.import_queries(lists("fish", 40), "other")
        before = ranking(reader)
        index.drop_set("simple")
        for one in (index, reader):
            assert [set_.name for set_ in one.sets] == ["sentences", "other"]
            assert ranking(one) == ranking(never) != before
            assert one.query_sets() == ["sentences", "other"]
            with pytest.raises(BadInput, match="has no query set 'simple'"):
                one.search("cats", method="simsharp")
        assert {file.name for file in (index.path / "vectors").iterdir()} == {
            "documents.f32", "queries-1.f32", "queries-3.f32",
        }  # fmt: skip
        assert index.check() == []
        assert index.compact() > 0
        assert index.check() == []
        assert ranking(index) == ranking(never)


def test_a_set_of_the_same_name_is_another_one(index: Index, tmp_path: Path) -> None:
    """A reader that saw the old one sees the new one, whatever took the name."""
    index.drop_set("sentences")
    with reopen(index.path) as reader, create(tmp_path / "fresh") as fresh:
        fresh.add([index.get(id_) for id_ in index.ids()])
        fresh.import_queries(lists("fish", 40), "simple")
        assert ranking(reader, "sharp:sets=simple") != ranking(fresh)
        assert ranking(index, "sharp:sets=simple") != ranking(fresh)
        index.drop_set("simple")
        index.rename_set("other", "simple")
        for one in (index, reader):
            assert ranking(one, "sharp:sets=simple") == ranking(one) == ranking(fresh)
            quick = one.search(QUERIES, 1, "sharp")
            assert quick.ids.tolist() == one.search(QUERIES, 1, "sharp", exact=True).ids.tolist()
        index.drop_set("simple")
        index.import_queries(lists("cats"), "simple")
        fresh.import_queries(lists("cats"), "simple")
        for one in (index, reader):
            assert ranking(one) == ranking(fresh)
        assert index.check() == []


def test_a_renamed_set_is_the_same_one(index: Index) -> None:
    index.augment("simple")
    with reopen(index.path) as reader:
        before, augmented = ranking(reader, "sharp:sets=simple"), ranking(reader, "doc2query")
        index.rename_set("simple", "contrastive")
        for one in (index, reader):
            names = ["sentences", "contrastive", "other", "augmented:contrastive"]
            assert [set_.name for set_ in one.sets] == names
            assert ranking(one, "sharp:sets=contrastive") == before
            assert ranking(one, "docexp") == augmented
        index.import_queries({"d3": ["quite another"]}, "contrastive")
        index.augment("contrastive")
        assert ranking(index, "docexp") != augmented
        assert index.check() == []


def tuned(index: Index, sets: list[str] | None) -> None:
    settings = {"alpha": 2.0, "temperature": 0.1, "n": None, "feedback": 0, "words": 0}
    index.keep_tuned({"method": {"sets": sets, **settings}})


@pytest.mark.parametrize("mixed", [None, ["simple", "other"]])
def test_tuned_settings(index: Index, mixed: list[str] | None) -> None:
    """They follow a new name, and do not outlive a set they are for."""
    tuned(index, mixed)
    assert index.method("sharp").alpha == 2
    index.rename_set("simple", "questions")
    assert index.method("sharp").alpha == 2
    assert index.method("sharp").sets == (mixed and ("questions", "other"))
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
def test_names_that_cannot_be(index: Index, old: str, new: str, problem: str) -> None:
    before = index.sets
    with pytest.raises(BadInput, match=problem):
        index.rename_set(old, new)
    with pytest.raises(BadInput, match="has no query set 'nobody'"):
        index.drop_set("nobody")
    assert index.sets == before


@pytest.mark.parametrize("change", [("drop_set", "simple"), ("rename_set", "simple", "new")])
def test_stopped_at_any_statement_it_has_changed_nothing(
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

    for steps in range(1, 200):
        copy = tmp_path / f"copy{steps}"
        shutil.copytree(folder, copy)
        done = 0

        def stop(_: str, steps: int = steps) -> None:
            nonlocal done
            done += 1
            if done == steps:
                raise Stop

        with reopen(copy) as one:
            name, *arguments = change
            monkeypatch.setattr(
                one.catalog.vectors, "log", _stopping(one.catalog.vectors.log, stop)
            )
            monkeypatch.setattr(
                one.catalog.settings, "put", _stopping(one.catalog.settings.put, stop)
            )
            try:
                getattr(one, name)(*arguments)
            except Stop:
                assert one.sets == sets
                assert ranking(one) == before
                assert one.check() == []
            else:
                assert one.sets != sets
                assert steps > 3
                return
    raise AssertionError("it never ended")


def _stopping(function: Any, stop: Any) -> Any:
    def stopping(*arguments: Any, **more: Any) -> Any:
        stop(function.__name__)
        return function(*arguments, **more)

    return stopping


def test_the_command(index: Index) -> None:
    listed = strop("sets", index.path)
    assert [line.split()[:4] for line in listed.stdout.strip().splitlines()[-3:]] == [
        ["sentences", "sentences", "60", "120"],
        ["simple", "file", "60", "120"],
        ["other", "file", "40", "80"],
    ]
    found = strop("sets", index.path, "--rename", "other", "questions", "--json").json["sets"]
    assert [one["name"] for one in found] == ["sentences", "simple", "questions"]
    assert found[2] == {
        "name": "questions", "source": "file", "lists": 40, "queries": 80, "bytes": 80 * 32 * 4,
    }  # fmt: skip
    strop("sets", index.path, "--drop", "simple")
    assert [one["name"] for one in strop("sets", index.path, "--json").json["sets"]] == [
        "sentences", "questions",
    ]  # fmt: skip
    bad = strop("sets", index.path, "--drop", "simple")
    assert bad.code == 1
    assert "has no query set 'simple'" in bad.stderr
