"""Cached search codes: searches use them, changes update them, damage is repaired."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.fakes import Bag, Failure, create, reopen

from strop import Index
from strop.cli.main import main
from strop.errors import IndexDamaged
from strop.methods import Method
from strop.search import kernels, searcher, views
from strop.search import layout as layouts
from strop.search.layout import Layout
from strop.search.prefilter import prefilter as prefilters
from strop.search.prefilter import table
from strop.search.prefilter.cache import CodeCache
from strop.search.prefilter.codes import estimated_scores
from strop.search.prefilter.prefilter import Prefilter
from strop.search.prefilter.table import CodeTable
from strop.search.sampling import measure_recall
from strop.storage import sidecar
from strop.storage.database import Database
from strop.storage.intake import CATALOG
from strop.storage.settings import Settings
from strop.storage.sidecar import read_arrays, write_arrays
from strop.storage.snapshot import Spans

pytestmark = pytest.mark.usefixtures("without_words")

QUERIES = ["word7 text of", "more text 3", "some word31 word32"]


def documents(first: int, last: int) -> list[dict[str, str]]:
    return [
        {
            "id": str(i),
            "title": f"word{i}",
            "text": f"text of {i % 17}. more text {i % 5} {i}.",
        }
        for i in range(first, last)
    ]


def lower_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the prefilter on small indexes too."""
    monkeypatch.setattr(searcher, "PREFILTER_FROM", 50)
    monkeypatch.setattr(prefilters, "FEWEST", 4)
    monkeypatch.setattr(layouts, "NUMPY_UP_TO", 0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index to copy."""
    path = tmp_path_factory.mktemp("built") / "index"
    with pytest.MonkeyPatch.context() as patch, create(path) as index:
        lower_thresholds(patch)
        index.sharpen()
        index.add(documents(0, 300))
    return path


@pytest.fixture
def index(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    lower_thresholds(monkeypatch)
    with reopen(shutil.copytree(built, tmp_path / "index")) as index:
        yield index


def codes_name(index: Index) -> str:
    """Return the name of the current file of codes, "" if there is none."""
    with closing(Database(index.path / CATALOG)) as database:
        return Settings(database).sidecar("candidates") or ""


def find_prefilter(index: Index) -> Prefilter | None:
    """Return the prefilter that a search of the index uses, if any."""
    return index.searcher.prefilter(index.method("sharp"), 5)


def prefilter_of(index: Index) -> Prefilter:
    """Return the prefilter that a search of the index uses."""
    prefilter = find_prefilter(index)
    assert prefilter is not None
    return prefilter


def test_no_codes_without_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lower_thresholds(monkeypatch)
    bag = Bag()
    with create(tmp_path / "index", bag) as index:
        index.sharpen()
        bag.fail_after = 0
        with pytest.raises(Failure):
            index.add(documents(0, 100))
        index.remove(["7"])
        assert codes_name(index) == ""


def test_prefilter_agrees_with_the_exact_scan(index: Index) -> None:
    assert find_prefilter(index) is not None
    approximate, exact = (index.search(QUERIES, 5, exact=flag) for flag in (False, True))
    shared = [len(set(a) & set(b)) for a, b in zip(approximate.ids, exact.ids, strict=True)]
    assert sum(shared) >= 12  # 32 sign bits are a rough estimate
    for ids, scores, exact_ids, exact_scores in zip(
        approximate.ids, approximate.scores, exact.ids, exact.scores, strict=True
    ):
        expected = dict(zip(exact_ids.tolist(), exact_scores.tolist(), strict=True))
        for id_, score in zip(ids.tolist(), scores.tolist(), strict=True):
            assert id_ not in expected or abs(expected[id_] - score) < 1e-5
    assert measure_recall(index.searcher, 40)["overlap"] > 0.9


def test_integer_settings_do_not_recompile_kernels(index: Index) -> None:
    kernels_used = kernels.sharpened_at, kernels.sharpened_block, estimated_scores
    signatures = []
    for method in (Method("m", alpha=2.0, temperature=1.0), Method("m", alpha=2, temperature=1)):
        index.search(QUERIES, 5, method)
        index.search(QUERIES, 5, method, exact=True)
        signatures.append([set(cast(Any, kernel).signatures) for kernel in kernels_used])
    assert all(signatures[0])
    assert signatures[0] == signatures[1]


def test_only_candidates_are_rescored(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    n_rescored: list[int] = []
    score = Layout.rescore

    def counting(self: Layout, query_vectors: Any, places: Any, method: Method) -> Any:
        n_rescored.append(len(places))
        return score(self, query_vectors, places, method)

    monkeypatch.setattr(Layout, "rescore", counting)
    index.search(QUERIES, 5)
    n_calls = len(n_rescored)
    assert 3 <= n_calls <= 6  # a first pass, and a second one if the estimates are uncertain
    assert all(1 <= n <= 100 for n in n_rescored)
    index.search(QUERIES, 5, exact=True)
    index.search(QUERIES, 5, "trad")
    index.search(QUERIES, 5, "sharp", n=1)
    index.search(QUERIES, 200)  # k is most of the index
    assert len(n_rescored) == n_calls


def test_new_changed_and_removed_documents(index: Index) -> None:
    before = codes_name(index)
    index.remove(["7"])
    index.add([{"id": "9", "title": "zebra", "text": "a zebra stands here."}])
    index.add([{"id": "new", "title": "quagga", "text": "a quagga stands here."}])
    assert codes_name(index) == before  # little changed
    prefilter = prefilter_of(index)
    assert len(prefilter.without_row) == 2
    assert int((prefilter.place_of < 0).sum()) == 2
    hits = index.search(["zebra", "quagga", "word7 text of 7"], 5)
    assert hits.ids[0][0] == "9"
    assert hits.ids[1][0] == "new"
    assert "7" not in hits.ids[2]
    for row in hits.ids:
        assert len(set(row.tolist())) == 5


def test_a_small_change_does_not_rebuild_the_codes(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("all documents were read")

    with monkeypatch.context() as patch:
        patch.setattr(CodeCache, "update", refuse)
        patch.setattr(views, "load_snapshot", refuse)
        index.remove(["7"])
        index.add([{"id": "new", "title": "quagga", "text": "a quagga stands here."}])
        with pytest.raises(AssertionError):
            index.add(documents(300, 340))
    index.finish()
    prefilter = prefilter_of(index)
    assert not len(prefilter.without_row)


def test_an_updated_prefilter_equals_a_fresh_one(index: Index) -> None:
    changes: list[Callable[[], object]] = [
        lambda: index.remove(["0", "7", "8", "150"]),
        lambda: index.add(documents(300, 304)),
        lambda: index.add([{"id": "9", "title": "zebra", "text": "a zebra stands here."}]),
        lambda: index.remove(["299"]),
        index.compact,
    ]
    prefilter_of(index)
    for change in changes:
        change()
        with reopen(index.path) as fresh_index:
            updated, fresh = prefilter_of(index), prefilter_of(fresh_index)
            assert updated.place_of.tolist() == fresh.place_of.tolist()
            snapshot, fresh_snapshot = (it.searcher.views.snapshot() for it in (index, fresh_index))
            assert snapshot.numbers.tolist() == fresh_snapshot.numbers.tolist()
            assert snapshot.documents.start.tolist() == fresh_snapshot.documents.start.tolist()
            for name, spans in snapshot.sets.items():
                assert spans.count.tolist() == fresh_snapshot.sets[name].count.tolist()


def test_prefilter_with_an_empty_query_set(index: Index) -> None:
    """Mapped and unmapped arrays have different types for the compiler."""
    index.import_queries({"0": []}, "simple")
    approximate, exact = (index.search(QUERIES, 5, exact=flag) for flag in (False, True))
    assert find_prefilter(index) is not None
    shared = [len(set(a) & set(b)) for a, b in zip(approximate.ids, exact.ids, strict=True)]
    assert sum(shared) >= 12  # 32 sign bits are a rough estimate


def test_codes_are_rebuilt_after_many_removals(index: Index) -> None:
    index.remove([str(at) for at in range(95)])
    prefilter = prefilter_of(index)
    assert (prefilter.place_of >= 0).all()


def test_codes_are_rebuilt_after_many_additions(index: Index) -> None:
    index.add(documents(300, 400))
    prefilter = prefilter_of(index)
    assert not len(prefilter.without_row)
    assert len(prefilter.place_of) == 400
    assert measure_recall(index.searcher, 40)["overlap"] > 0.9


def test_a_new_query_set_rebuilds_the_codes_for_other_readers(index: Index) -> None:
    with reopen(index.path) as reader:
        assert find_prefilter(reader) is not None
        index.import_queries({str(at): [f"who is {at}"] for at in range(300)}, "simple")
        prefilter = prefilter_of(reader)
        assert prefilter.table.sets == ["sentences", "simple"]


@pytest.mark.parametrize(
    "damage", ["gone", "cut", "older format", "too short", "other dim", "all replaced"]
)
def test_unusable_codes_give_exact_searches_and_a_warning(index: Index, damage: str) -> None:
    file = index.path / "cache" / codes_name(index)
    exact = index.search(QUERIES, 5, exact=True)
    index.close()
    if damage == "gone":
        shutil.rmtree(index.path / "cache")
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        contents = read_arrays(file)
        assert contents is not None
        arrays, header = contents[0], dict(contents[1])
        arrays = {name: np.array(array) for name, array in arrays.items()}
        if damage == "older format":
            header["format"] = 4
        elif damage == "too short":
            arrays["records"] = arrays["records"][:-3]
        elif damage == "all replaced":  # and the disk was too full for new codes
            arrays["sources"][:, 1] += 1
        file.unlink()
        if damage == "other dim":
            spans = [
                Spans(np.zeros((1000, 8), np.float32), np.zeros(300, np.int64), counts)
                for counts in arrays["sources"].T[2:]
            ]
            other = Layout(replace(spans[0], count=np.ones(300, np.int64)), spans, None)
            CodeTable.of(other, arrays["sources"], header["sets"]).write(file)
        else:
            write_arrays(file, arrays, header)
    with reopen(index.path) as index:
        with pytest.warns(UserWarning, match="strop finish"):
            hits = index.search(QUERIES, 5)
        np.testing.assert_array_equal(hits.ids, exact.ids)
        index.search(QUERIES, 5)  # only one warning
        if damage in ("gone", "cut"):
            (problem,) = index.check()
            assert f"cache/{file.name}" in problem
        if damage == "gone":
            assert index.check(repair=True)
        else:
            index.finish()
        assert not index.check()
        assert find_prefilter(index) is not None


def test_a_reader_follows_a_writer_that_replaces_the_codes(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    open_ = CodeTable.open

    def open_late(path: Path) -> CodeTable:
        names.append(path.name)
        if len(names) == 1:  # between reading the name and opening the file
            index.add(documents(300, 400))
        return open_(path)

    with reopen(index.path) as reader:
        monkeypatch.setattr(CodeTable, "open", open_late)
        prefilter = prefilter_of(reader)  # a warning would be an error
        assert names[0] != names[-1] == codes_name(reader)
        assert prefilter.layout.size == 300
        assert not len(prefilter.without_row)


def test_an_unfinished_set_gives_exact_searches_and_a_warning(index: Index) -> None:
    index.close()
    bag = Bag()
    with reopen(index.path, bag) as index:
        bag.fail_after = 0
        with pytest.raises(Failure):
            index.import_queries({str(at): [f"who is {at}"] for at in range(300)}, "simple")
        with pytest.warns(UserWarning, match=r"other query sets \(sentences\).*strop finish"):
            assert find_prefilter(index) is None
        bag.fail_after = None
        index.finish()
        assert find_prefilter(index) is not None


def test_an_index_that_became_small_has_no_codes(index: Index) -> None:
    index.remove([str(at) for at in range(20, 300)])
    assert codes_name(index) == ""
    assert not list((index.path / "cache").glob("candidates-*"))
    assert index.search("word7 text of", 5).ids[0][0] == "7"


def test_repair_recomputes_codes_with_nan(index: Index) -> None:
    """Such a file can come from outside, with a valid checksum."""
    file = index.path / "cache" / codes_name(index)
    contents = read_arrays(file)
    assert contents is not None
    index.close()
    file.unlink()
    signs = np.full_like(contents[0]["sign_factors"], np.nan)
    write_arrays(file, {**contents[0], "sign_factors": signs}, contents[1])
    with reopen(index.path) as index:
        with pytest.raises(IndexDamaged, match="--repair"):
            index.search(QUERIES, 5)
        index.check(repair=True)
        assert index.search(QUERIES, 5).ids.shape == (3, 5)
        assert find_prefilter(index) is not None


def test_check_finds_and_repairs_a_flipped_byte(index: Index) -> None:
    codes = index.path / "cache" / codes_name(index)
    assert not index.check()
    data = bytearray(codes.read_bytes())
    data[len(data) // 2] ^= 1
    codes.write_bytes(data)
    assert index.check() == [f"the candidates cache/{codes.name} are not what was written"]
    assert index.check(repair=True)
    assert not index.check()
    assert find_prefilter(index) is not None
    assert not codes.exists()


def test_compaction_keeps_the_codes_valid(index: Index) -> None:
    index.remove([str(at) for at in range(0, 60, 2)])
    before, hits = codes_name(index), index.search(QUERIES, 5)
    assert index.compact() > 0
    assert codes_name(index) == before
    prefilter = prefilter_of(index)
    assert not len(prefilter.without_row)
    assert int((prefilter.place_of < 0).sum()) == 30
    again = index.search(QUERIES, 5)
    np.testing.assert_array_equal(again.ids, hits.ids)
    np.testing.assert_allclose(again.scores, hits.scores, atol=1e-6)
    assert not index.check()


def test_info_counts_the_size_of_the_codes_after_compaction(index: Index) -> None:
    index.remove([str(at) for at in range(95)])
    index.compact()
    prefilter = prefilter_of(index)
    assert len(prefilter.place_of) == 205
    files = list((index.path / "cache").iterdir())
    assert len(files) == 1
    assert index.info()["sizes"]["cache"] == sum(file.stat().st_size for file in files)


def test_repaired_vectors_rebuild_the_codes(index: Index) -> None:
    before = codes_name(index)
    (file,) = (index.path / "vectors").glob("queries-*")
    data = bytearray(file.read_bytes())
    data[4 * 16] ^= 255
    file.write_bytes(data)
    index.close()
    with reopen(index.path) as index:
        assert index.check(repair=True)
        assert codes_name(index) != before
        prefilter = prefilter_of(index)
        assert not len(prefilter.without_row)


def test_a_full_disk_keeps_the_older_codes(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    before = codes_name(index)
    monkeypatch.setattr(table, "write_arrays", fail)
    with pytest.warns(UserWarning, match="No space left on device.*strop finish"):
        index.add(documents(300, 400))
    assert codes_name(index) == before
    prefilter = prefilter_of(index)
    assert len(prefilter.without_row) == 100
    approximate, exact = (
        index.search(QUERIES, 20, exact=flag).ids.ravel() for flag in (False, True)
    )
    new_ids = {id_ for id_ in exact.tolist() if int(id_) >= 300}
    assert new_ids
    assert new_ids <= set(approximate.tolist())
    monkeypatch.undo()
    assert {file.name for file in (index.path / "cache").iterdir()} == {before}


class Stopped(BaseException):
    """Like a kill: error handlers do not catch it."""


@pytest.mark.parametrize("step", ["made", "saved", "written", "committed"])
def test_a_writer_stopped_while_writing_codes(
    index: Index, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def stop(*args: Any, **more: Any) -> None:
        raise Stopped

    targets: dict[str, tuple[Any, str]] = {
        "made": (CodeTable, "write"),
        "saved": (table, "write_arrays"),
        "written": (Settings, "put"),
        "committed": (sidecar, "delete_sidecar"),
    }
    before = codes_name(index)
    with monkeypatch.context() as patch:
        patch.setattr(*targets[step], stop)
        with pytest.raises(Stopped):
            index.add(documents(300, 400))
    index.close()
    with reopen(index.path) as index:
        assert (codes_name(index) == before) == (step != "committed")
        prefilter = prefilter_of(index)
        assert len(prefilter.without_row) == (0 if step == "committed" else 100)
        assert not index.check()
        index.finish()
        prefilter = prefilter_of(index)
        assert not len(prefilter.without_row)
        assert len(list((index.path / "cache").iterdir())) == 1


def test_leftover_files_of_a_stopped_writer_are_deleted(index: Index) -> None:
    leftovers = [index.path / "cache" / name for name in (f"candidates-{at:032x}" for at in (1, 2))]
    for file in leftovers:
        file.write_bytes(b"half")
    index.remove(["7"])
    assert not any(file.exists() for file in leftovers)
    assert find_prefilter(index) is not None


def test_check_recall_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps(document) + "\n" for document in documents(0, 450)))
    path = str(tmp_path / "index")
    run = CliRunner().invoke
    assert run(main, ["build", str(corpus), "-o", path]).exit_code == 0
    assert run(main, ["search", path, "word7", "--exact"]).exit_code == 0
    result = run(main, ["check", path, "--recall", "--sample", "20", "--json"])
    assert result.exit_code == 0
    recall = json.loads(result.stdout)["recall"]
    assert recall["two_stage"] is False
    assert (recall["queries"], recall["k"]) == (20, 10)
    assert recall["overlap"] == recall["stored"] == recall["unlike"] == recall["worst"] == 1
    assert (
        "score every document, so they are exact" in run(main, ["check", path, "--recall"]).output
    )
    lower_thresholds(monkeypatch)
    assert run(main, ["finish", path]).exit_code == 0
    result = run(main, ["check", path, "--recall", "--sample", "20"])
    assert "overlap@10 with the exact ranking: " in result.output
    assert "for queries unlike any stored one; the worst query " in result.output
