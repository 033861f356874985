"""Search codes beside an index: searches use them, they follow changes, and are only a cache."""

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
from strop.search.prefilter import prefilter, table
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

ASKED = ["word7 text of", "more text 3", "some word31 word32"]


def documents(first: int, last: int) -> list[dict[str, str]]:
    return [
        {
            "id": str(at),
            "title": f"word{at}",
            "text": f"text of {at % 17}. more text {at % 5} {at}.",
        }
        for at in range(first, last)
    ]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small index be searched as a large one is."""
    monkeypatch.setattr(searcher, "PREFILTER_FROM", 50)
    monkeypatch.setattr(prefilter, "FEWEST", 4)
    monkeypatch.setattr(layouts, "NUMPY_UP_TO", 0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index to copy."""
    path = tmp_path_factory.mktemp("built") / "index"
    with pytest.MonkeyPatch.context() as patch, create(path) as index:
        small(patch)
        index.sharpen()
        index.add(documents(0, 300))
    return path


@pytest.fixture
def index(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    small(monkeypatch)
    with reopen(shutil.copytree(built, tmp_path / "index")) as index:
        yield index


def codes_name(index: Index) -> str:
    """The file of codes that counts, "" if there is none."""
    with closing(Database(index.path / CATALOG)) as database:
        return Settings(database).sidecar("candidates") or ""


def two_stage(index: Index) -> Prefilter | None:
    """The prefilter that a search of the index uses."""
    return index.searcher.prefilter(index.method("sharp"), 5)


def test_documents_without_vectors_have_no_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    bag = Bag()
    with create(tmp_path / "index", bag) as index:
        index.sharpen()
        bag.fail_after = 0
        with pytest.raises(Failure):
            index.add(documents(0, 100))
        index.remove(["7"])
        assert codes_name(index) == ""


def test_it_finds_what_the_scan_finds(index: Index) -> None:
    assert two_stage(index) is not None
    quick, exact = (index.search(ASKED, 5, exact=one) for one in (False, True))
    shared = [len(set(a) & set(b)) for a, b in zip(quick.ids, exact.ids, strict=True)]
    assert sum(shared) >= 12  # thirty-two signs do not tell much
    for ids, scores, right, best in zip(
        quick.ids, quick.scores, exact.ids, exact.scores, strict=True
    ):
        known = dict(zip(right.tolist(), best.tolist(), strict=True))
        for id_, score in zip(ids.tolist(), scores.tolist(), strict=True):
            assert id_ not in known or abs(known[id_] - score) < 1e-5
    assert measure_recall(index.searcher, 40)["overlap"] > 0.9


def test_whole_numbers_compile_nothing_again(index: Index) -> None:
    compiled = kernels.sharpened_at, kernels.sharpened_block, estimated_scores
    kinds = []
    for method in (Method("m", alpha=2.0, temperature=1.0), Method("m", alpha=2, temperature=1)):
        index.search(ASKED, 5, method)
        index.search(ASKED, 5, method, exact=True)
        kinds.append([set(cast(Any, kernel).signatures) for kernel in compiled])
    assert all(kinds[0])
    assert kinds[0] == kinds[1]


def test_it_looks_at_candidates_only(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    score = Layout.rescore

    def note(self: Layout, asked: Any, places: Any, method: Method) -> Any:
        seen.append(len(places))
        return score(self, asked, places, method)

    monkeypatch.setattr(Layout, "rescore", note)
    index.search(ASKED, 5)
    looked = len(seen)
    assert 3 <= looked <= 6  # a first look, and a wider one where the estimates ask for it
    assert all(1 <= some <= 100 for some in seen)
    index.search(ASKED, 5, exact=True)
    index.search(ASKED, 5, "trad")
    index.search(ASKED, 5, "sharp", n=1)
    index.search(ASKED, 200)  # most documents are wanted
    assert len(seen) == looked


def test_new_changed_and_removed_documents(index: Index) -> None:
    before = codes_name(index)
    index.remove(["7"])
    index.add([{"id": "9", "title": "zebra", "text": "a zebra stands here."}])
    index.add([{"id": "new", "title": "quagga", "text": "a quagga stands here."}])
    assert codes_name(index) == before  # little changed
    two = two_stage(index)
    assert two is not None
    assert len(two.without_row) == 2
    assert int((two.place_of < 0).sum()) == 2
    hits = index.search(["zebra", "quagga", "word7 text of 7"], 5)
    assert hits.ids[0][0] == "9"
    assert hits.ids[1][0] == "new"
    assert "7" not in hits.ids[2]
    for row in hits.ids:
        assert len(set(row.tolist())) == 5


def test_a_small_change_looks_at_no_other_documents(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("all documents were looked at")

    with monkeypatch.context() as patched:
        patched.setattr(CodeCache, "update", never)
        patched.setattr(views, "load_snapshot", never)
        index.remove(["7"])
        index.add([{"id": "new", "title": "quagga", "text": "a quagga stands here."}])
        with pytest.raises(AssertionError):
            index.add(documents(300, 340))
    index.finish()
    two = two_stage(index)
    assert two is not None
    assert not len(two.without_row)


def test_codes_that_follow_a_change_are_matched_as_if_anew(index: Index) -> None:
    changes: list[Callable[[], object]] = [
        lambda: index.remove(["0", "7", "8", "150"]),
        lambda: index.add(documents(300, 304)),
        lambda: index.add([{"id": "9", "title": "zebra", "text": "a zebra stands here."}]),
        lambda: index.remove(["299"]),
        index.compact,
    ]
    two_stage(index)
    for change in changes:
        change()
        with reopen(index.path) as other:
            followed, anew = two_stage(index), two_stage(other)
            assert followed is not None
            assert anew is not None
            assert followed.place_of.tolist() == anew.place_of.tolist()
            mine, theirs = (one.searcher.views.snapshot() for one in (index, other))
            assert mine.numbers.tolist() == theirs.numbers.tolist()
            assert mine.documents.start.tolist() == theirs.documents.start.tolist()
            for name, spans in mine.sets.items():
                assert spans.count.tolist() == theirs.sets[name].count.tolist()


def test_beside_a_set_without_vectors(index: Index) -> None:
    """What is mapped and what is not are other types to the compiler."""
    index.import_queries({"0": []}, "simple")
    quick, exact = (index.search(ASKED, 5, exact=one) for one in (False, True))
    assert two_stage(index) is not None
    shared = [len(set(a) & set(b)) for a, b in zip(quick.ids, exact.ids, strict=True)]
    assert sum(shared) >= 12  # thirty-two signs do not tell much


def test_they_are_made_anew_when_much_is_removed(index: Index) -> None:
    index.remove([str(at) for at in range(95)])
    two = two_stage(index)
    assert two is not None
    assert (two.place_of >= 0).all()


def test_it_follows_when_much_is_new(index: Index) -> None:
    index.add(documents(300, 400))
    two = two_stage(index)
    assert two is not None
    assert not len(two.without_row)
    assert len(two.place_of) == 400
    assert measure_recall(index.searcher, 40)["overlap"] > 0.9


def test_another_reader_uses_it_and_another_set_makes_it_anew(index: Index) -> None:
    with reopen(index.path) as reader:
        assert two_stage(reader) is not None
        index.import_queries({str(at): [f"who is {at}"] for at in range(300)}, "simple")
        two = two_stage(reader)
        assert two is not None
        assert two.table.sets == ["sentences", "simple"]


@pytest.mark.parametrize(
    "harm", ["gone", "cut", "older format", "too short", "other dim", "all replaced"]
)
def test_without_usable_codes_searches_are_exact_and_say_how_to_mend_them(
    index: Index, harm: str
) -> None:
    file = index.path / "cache" / codes_name(index)
    exact = index.search(ASKED, 5, exact=True)
    index.close()
    if harm == "gone":
        shutil.rmtree(index.path / "cache")
    elif harm == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        contents = read_arrays(file)
        assert contents is not None
        arrays, about = contents[0], dict(contents[1])
        arrays = {name: np.array(array) for name, array in arrays.items()}
        if harm == "older format":
            about["format"] = 4
        elif harm == "too short":
            arrays["records"] = arrays["records"][:-3]
        elif harm == "all replaced":  # and there was no room for new codes
            arrays["sources"][:, 1] += 1
        file.unlink()
        if harm == "other dim":
            spans = [
                Spans(np.zeros((1000, 8), np.float32), np.zeros(300, np.int64), counts)
                for counts in arrays["sources"].T[2:]
            ]
            other = Layout(replace(spans[0], count=np.ones(300, np.int64)), spans, None)
            CodeTable.of(other, arrays["sources"], about["sets"]).write(file)
        else:
            write_arrays(file, arrays, about)
    with reopen(index.path) as index:
        with pytest.warns(UserWarning, match="strop finish"):
            hits = index.search(ASKED, 5)
        np.testing.assert_array_equal(hits.ids, exact.ids)
        index.search(ASKED, 5)  # said once
        if harm in ("gone", "cut"):
            (problem,) = index.check()
            assert f"cache/{file.name}" in problem
        if harm == "gone":
            assert index.check(repair=True)
        else:
            index.finish()
        assert not index.check()
        assert two_stage(index) is not None


def test_a_reader_follows_a_writer_that_replaces_them_meanwhile(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    open_ = CodeTable.open

    def slow(path: Path) -> CodeTable:
        names.append(path.name)
        if len(names) == 1:  # between asking which ones count and opening them
            index.add(documents(300, 400))
        return open_(path)

    with reopen(index.path) as reader:
        monkeypatch.setattr(CodeTable, "open", slow)
        two = two_stage(reader)  # a warning would be an error
        assert two is not None
        assert names[0] != names[-1] == codes_name(reader)
        assert two.layout.size == 300
        assert not len(two.without_row)


def test_beside_a_set_that_is_not_finished_searches_are_exact_and_say_so(index: Index) -> None:
    index.close()
    bag = Bag()
    with reopen(index.path, bag) as index:
        bag.fail_after = 0
        with pytest.raises(Failure):
            index.import_queries({str(at): [f"who is {at}"] for at in range(300)}, "simple")
        with pytest.warns(UserWarning, match=r"other query sets \(sentences\).*strop finish"):
            assert two_stage(index) is None
        bag.fail_after = None
        index.finish()
        assert two_stage(index) is not None


def test_an_index_that_is_small_now_keeps_none(index: Index) -> None:
    index.remove([str(at) for at in range(20, 300)])
    assert codes_name(index) == ""
    assert not list((index.path / "cache").glob("candidates-*"))
    assert index.search("word7 text of", 5).ids[0][0] == "7"


def test_codes_that_are_no_numbers_are_computed_anew_by_a_repair(index: Index) -> None:
    """Somebody else may have written them, with the right checksum."""
    file = index.path / "cache" / codes_name(index)
    contents = read_arrays(file)
    assert contents is not None
    index.close()
    file.unlink()
    signs = np.full_like(contents[0]["sign_factors"], np.nan)
    write_arrays(file, {**contents[0], "sign_factors": signs}, contents[1])
    with reopen(index.path) as index:
        with pytest.raises(IndexDamaged, match="--repair"):
            index.search(ASKED, 5)
        index.check(repair=True)
        assert index.search(ASKED, 5).ids.shape == (3, 5)
        assert two_stage(index) is not None


def test_a_flipped_byte_of_the_codes_is_found_and_mended(index: Index) -> None:
    codes = index.path / "cache" / codes_name(index)
    assert not index.check()
    data = bytearray(codes.read_bytes())
    data[len(data) // 2] ^= 1
    codes.write_bytes(data)
    assert index.check() == [f"the candidates cache/{codes.name} are not what was written"]
    assert index.check(repair=True)
    assert not index.check()
    assert two_stage(index) is not None
    assert not codes.exists()


def test_compaction_moves_rows_and_the_candidates_stay_good(index: Index) -> None:
    index.remove([str(at) for at in range(0, 60, 2)])
    before, hits = codes_name(index), index.search(ASKED, 5)
    assert index.compact() > 0
    assert codes_name(index) == before
    two = two_stage(index)
    assert two is not None
    assert not len(two.without_row)
    assert int((two.place_of < 0).sum()) == 30
    again = index.search(ASKED, 5)
    np.testing.assert_array_equal(again.ids, hits.ids)
    np.testing.assert_allclose(again.scores, hits.scores, atol=1e-6)
    assert not index.check()


def test_compaction_counts_the_files_of_candidates(index: Index) -> None:
    index.remove([str(at) for at in range(95)])
    index.compact()
    two = two_stage(index)
    assert two is not None
    assert len(two.place_of) == 205
    files = list((index.path / "cache").iterdir())
    assert len(files) == 1
    assert index.info()["sizes"]["cache"] == sum(file.stat().st_size for file in files)


def test_vectors_made_again_are_not_trusted_to_the_candidates(index: Index) -> None:
    before = codes_name(index)
    (file,) = (index.path / "vectors").glob("queries-*")
    data = bytearray(file.read_bytes())
    data[4 * 16] ^= 255
    file.write_bytes(data)
    index.close()
    with reopen(index.path) as index:
        assert index.check(repair=True)
        assert codes_name(index) != before
        two = two_stage(index)
        assert two is not None
        assert not len(two.without_row)


def test_a_full_disk_leaves_the_older_candidates(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    before = codes_name(index)
    monkeypatch.setattr(table, "write_arrays", full)
    with pytest.warns(UserWarning, match="No space left on device.*strop finish"):
        index.add(documents(300, 400))
    assert codes_name(index) == before
    two = two_stage(index)
    assert two is not None
    assert len(two.without_row) == 100
    quick, exact = (index.search(ASKED, 20, exact=one).ids.ravel() for one in (False, True))
    late = {id_ for id_ in exact.tolist() if int(id_) >= 300}
    assert late
    assert late <= set(quick.tolist())
    monkeypatch.undo()
    assert {file.name for file in (index.path / "cache").iterdir()} == {before}


class Stopped(BaseException):
    """As a kill: nothing that handles errors sees it."""


@pytest.mark.parametrize("step", ["made", "saved", "written", "committed"])
def test_a_writer_stopped_while_it_makes_candidates(
    index: Index, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def stop(*args: Any, **more: Any) -> None:
        raise Stopped

    where: dict[str, tuple[Any, str]] = {
        "made": (CodeTable, "write"),
        "saved": (table, "write_arrays"),
        "written": (Settings, "put"),
        "committed": (sidecar, "delete_sidecar"),
    }
    before = codes_name(index)
    with monkeypatch.context() as patch:
        patch.setattr(*where[step], stop)
        with pytest.raises(Stopped):
            index.add(documents(300, 400))
    index.close()
    with reopen(index.path) as index:
        assert (codes_name(index) == before) == (step != "committed")
        two = two_stage(index)
        assert two is not None
        assert len(two.without_row) == (0 if step == "committed" else 100)
        assert not index.check()
        index.finish()
        two = two_stage(index)
        assert two is not None
        assert not len(two.without_row)
        assert len(list((index.path / "cache").iterdir())) == 1


def test_what_a_stopped_writer_left_is_swept(index: Index) -> None:
    left = [index.path / "cache" / name for name in (f"candidates-{at:032x}" for at in (1, 2))]
    for file in left:
        file.write_bytes(b"half")
    index.remove(["7"])
    assert not any(file.exists() for file in left)
    assert two_stage(index) is not None


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps(one) + "\n" for one in documents(0, 450)))
    path = str(tmp_path / "index")
    run = CliRunner().invoke
    assert run(main, ["build", str(corpus), "-o", path]).exit_code == 0
    assert run(main, ["search", path, "word7", "--exact"]).exit_code == 0
    told = run(main, ["check", path, "--recall", "--sample", "20", "--json"])
    assert told.exit_code == 0
    recall = json.loads(told.stdout)["recall"]
    assert recall["two_stage"] is False
    assert (recall["queries"], recall["k"]) == (20, 10)
    assert recall["overlap"] == recall["stored"] == recall["unlike"] == recall["worst"] == 1
    assert (
        "score every document, so they are exact" in run(main, ["check", path, "--recall"]).output
    )
    small(monkeypatch)
    assert run(main, ["finish", path]).exit_code == 0
    told = run(main, ["check", path, "--recall", "--sample", "20"])
    assert "overlap@10 with the exact ranking: " in told.output
    assert "for queries unlike any stored one; the worst query " in told.output
