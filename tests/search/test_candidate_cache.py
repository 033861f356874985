"""Candidates beside an index: searches use them, they follow changes, and can be done without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.candidates import few
from helpers.fakes import Bag, Failure, create, reopen

from strop import Index
from strop.cli.main import main
from strop.methods import Method
from strop.search import candidates
from strop.search.candidate_cache import CandidateCache
from strop.search.layout import Layout
from strop.storage.settings import Settings
from strop.storage.sidecar import read_arrays, write_arrays

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


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(candidates, "TWO_STAGE_FROM", 50)
    monkeypatch.setattr(candidates.Effort, "of", few)
    with create(tmp_path / "index") as index:
        index.sharpen()
        index.add(documents(0, 300))
        yield index


def two_stage(index: Index, k: int = 5) -> candidates.TwoStage | None:
    with index._catalog.reading():
        method = index.method("sharp")
        return index._two(*index._layout(method), method, k)


def test_documents_without_vectors_have_no_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "TWO_STAGE_FROM", 50)
    bag = Bag()
    with create(tmp_path / "index", bag) as index:
        index.sharpen()
        bag.fail_after = 0
        with pytest.raises(Failure):
            index.add(documents(0, 100))
        index.remove(["7"])
        assert index._catalog.settings.sidecar("candidates") is None


def test_it_finds_what_the_scan_finds(index: Index) -> None:
    assert two_stage(index) is not None
    quick, exact = (index.search(ASKED, 5, exact=one) for one in (False, True))
    shared = [len(set(a) & set(b)) for a, b in zip(quick.ids, exact.ids, strict=True)]
    assert sum(shared) >= 12  # thirty-two signs do not tell much
    for ids, scores, right, best in zip(*quick, *exact, strict=True):
        known = dict(zip(right.tolist(), best.tolist(), strict=True))
        for id_, score in zip(ids.tolist(), scores.tolist(), strict=True):
            assert id_ not in known or abs(known[id_] - score) < 1e-5
    assert index.recall(40)["overlap"] > 0.9


def test_it_looks_at_candidates_only(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    score = Layout.rescore

    def note(self: Layout, asked: Any, places: Any, method: Method) -> Any:
        seen.append(len(places))
        return score(self, asked, places, method)

    monkeypatch.setattr(Layout, "rescore", note)
    index.search(ASKED, 5)
    assert len(seen) == 3
    assert all(5 <= looked <= 40 for looked in seen)
    index.search(ASKED, 5, exact=True)
    index.search(ASKED, 5, "trad")
    index.search(ASKED, 5, "sharp", n=1)
    index.search(ASKED, 200)  # most of them are asked for
    assert len(seen) == 3


def test_new_changed_and_removed_documents(index: Index) -> None:
    before = index._catalog.settings.sidecar("candidates")
    index.remove(["7"])
    index.add([{"id": "9", "title": "zebra", "text": "a zebra stands here."}])
    index.add([{"id": "new", "title": "quagga", "text": "a quagga stands here."}])
    assert index._catalog.settings.sidecar("candidates") == before  # little changed
    two = two_stage(index)
    assert two is not None
    assert len(two.tail) == 2
    assert int((two.place_of < 0).sum()) == 2
    hits = index.search(["zebra", "quagga", "word7 text of 7"], 5)
    assert hits.ids[0][0] == "9"
    assert hits.ids[1][0] == "new"
    assert "7" not in hits.ids[2]
    for row in hits.ids:
        assert len(set(row.tolist())) == 5


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
    assert not len(two.tail)
    assert len(two.place_of) == 400
    assert index.recall(40)["overlap"] > 0.9


def test_it_is_measured_anew_when_the_documents_have_doubled(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_more(k: int, measured: Any, known: bool = True) -> candidates.Effort:
        return few(2 * k, measured, known)  # there are twice as many

    monkeypatch.setattr(candidates.Effort, "of", for_more)
    for first in range(300, 700, 100):
        index.add(documents(first, first + 100))
        two = two_stage(index)
        assert two is not None
        parts = two.candidates.edges
        assert len(parts) == (1 if first == 600 else 1 + (first - 200) // 100)
        assert parts[-1, -1] == first + 100
    assert index.recall(40)["overlap"] > 0.9


def test_another_reader_uses_it_and_another_set_makes_it_anew(index: Index) -> None:
    with reopen(index.path) as reader:
        assert two_stage(reader) is not None
        index.import_queries({str(at): [f"who is {at}"] for at in range(300)}, "simple")
        two = two_stage(reader)
        assert two is not None
        assert two.candidates.sets == ["sentences", "simple"]


@pytest.mark.parametrize("harm", ["gone", "cut", "older format", "codes gone", "flipped"])
def test_without_usable_candidates_searches_are_exact_and_say_how_to_mend_them(
    index: Index, harm: str
) -> None:
    beside = index.path / "cache" / str(index._catalog.settings.sidecar("candidates"))
    codes = beside.with_name(beside.name + ".codes")
    exact = index.search(ASKED, 5, exact=True)
    index.close()
    if harm == "gone":
        shutil.rmtree(index.path / "cache")
    elif harm == "cut":
        codes.write_bytes(codes.read_bytes()[:-100])
    elif harm == "older format":  # which had fewer figures
        found = read_arrays(beside)
        assert found is not None
        beside.unlink()
        older = {**found[0], "measured": found[0]["measured"][:8]}
        write_arrays(beside, older, {**found[1], "format": 3})
    elif harm == "flipped":
        data = bytearray(beside.read_bytes())
        data[-1000] ^= 1
        beside.write_bytes(data)
    else:
        codes.unlink()
    with reopen(index.path) as index:
        with pytest.warns(UserWarning, match="strop finish"):
            hits = index.search(ASKED, 5)
        np.testing.assert_array_equal(hits.ids, exact.ids)
        index.search(ASKED, 5)  # said once
        (problem,) = index.check()
        assert f"cache/{beside.name}" in problem
        assert ("another version" in problem) == (harm == "older format")
        if harm in ("cut", "older format"):  # as the warning says, and as check does
            index.finish()
        else:
            assert index.check(repair=True)
        assert not index.check()
        assert two_stage(index) is not None


def test_a_reader_follows_a_writer_that_replaces_them_meanwhile(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    open_ = candidates.Candidates.open

    def slow(path: Path) -> candidates.Candidates:
        names.append(path.name)
        if len(names) == 1:  # between asking which ones count and opening them
            index.add(documents(300, 400))
        return open_(path)

    with reopen(index.path) as reader:
        monkeypatch.setattr(candidates.Candidates, "open", slow)
        two = two_stage(reader)  # a warning would be an error
        assert two is not None
        assert names[0] != names[-1] == reader._catalog.settings.sidecar("candidates")
        assert two.layout.size == 300
        assert not len(two.tail)


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
    assert index._catalog.settings.sidecar("candidates") is None
    assert not list((index.path / "cache").glob("candidates-*"))
    assert index.search("word7 text of", 5).ids[0][0] == "7"


def test_a_flipped_byte_of_the_codes_is_found_and_mended(index: Index) -> None:
    codes = index.path / "cache" / f"{index._catalog.settings.sidecar('candidates')}.codes"
    assert not index.check()
    data = bytearray(codes.read_bytes())
    data[len(data) // 2] ^= 1
    codes.write_bytes(data)
    name = codes.name.removesuffix(".codes")
    assert index.check() == [f"the candidates cache/{name} are not what was written"]
    assert index.check(repair=True)
    assert not index.check()
    assert two_stage(index) is not None
    assert not codes.exists()


def test_compaction_moves_rows_and_the_candidates_stay_good(index: Index) -> None:
    index.remove([str(at) for at in range(0, 60, 2)])
    before, hits = index._catalog.settings.sidecar("candidates"), index.search(ASKED, 5)
    assert index.compact() > 0
    assert index._catalog.settings.sidecar("candidates") == before
    two = two_stage(index)
    assert two is not None
    assert not len(two.tail)
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
    assert len(files) == 2
    assert index.info()["sizes"]["cache"] == sum(file.stat().st_size for file in files)


def test_vectors_made_again_are_not_trusted_to_the_candidates(index: Index) -> None:
    before = index._catalog.settings.sidecar("candidates")
    (file,) = (index.path / "vectors").glob("queries-*")
    data = bytearray(file.read_bytes())
    data[4 * 16] ^= 255
    file.write_bytes(data)
    index.close()
    with reopen(index.path) as index:
        assert index.check(repair=True)
        assert index._catalog.settings.sidecar("candidates") == before
        two = two_stage(index)
        assert two is not None
        assert len(two.tail) == 1


def test_a_full_disk_leaves_the_older_candidates(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    before = index._catalog.settings.sidecar("candidates")
    monkeypatch.setattr(candidates, "write_arrays", full)
    with pytest.warns(UserWarning, match="No space left on device.*strop finish"):
        index.add(documents(300, 400))
    assert index._catalog.settings.sidecar("candidates") == before
    two = two_stage(index)
    assert two is not None
    assert len(two.tail) == 100
    quick, exact = (index.search(ASKED, 20, exact=one).ids.ravel() for one in (False, True))
    late = {id_ for id_ in exact.tolist() if int(id_) >= 300}
    assert late
    assert late <= set(quick.tolist())
    monkeypatch.undo()
    assert {file.name for file in (index.path / "cache").iterdir()} == {
        before, f"{before}.codes",
    }  # fmt: skip


class Stopped(BaseException):
    """As a kill: nothing that handles errors sees it."""


@pytest.mark.parametrize("step", ["made", "saved", "written", "committed"])
def test_a_writer_stopped_while_it_makes_candidates(
    index: Index, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def stop(*args: Any, **more: Any) -> None:
        raise Stopped

    where: dict[str, tuple[Any, str]] = {
        "made": (candidates.Candidates, "write"),
        "saved": (candidates, "write_arrays"),
        "written": (Settings, "put"),
        "committed": (CandidateCache, "_delete"),
    }
    before = index._catalog.settings.sidecar("candidates")
    with monkeypatch.context() as patch:
        patch.setattr(*where[step], stop)
        with pytest.raises(Stopped):
            index.add(documents(300, 400))
    index.close()
    with reopen(index.path) as index:
        assert (index._catalog.settings.sidecar("candidates") == before) == (step != "committed")
        two = two_stage(index)
        assert two is not None
        assert len(two.tail) == (0 if step == "committed" else 100)
        assert not index.check()
        index.finish()
        two = two_stage(index)
        assert two is not None
        assert not len(two.tail)
        assert len(list((index.path / "cache").iterdir())) == 2


def test_what_a_stopped_writer_left_is_swept(index: Index) -> None:
    left = [index.path / "cache" / name for name in ("candidates-1", "candidates-1.codes")]
    for file in left:
        file.write_bytes(b"half")
    index.remove(["7"])
    assert not any(file.exists() for file in left)
    assert two_stage(index) is not None


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps(one) + "\n" for one in documents(0, 30)))
    path = str(tmp_path / "index")
    run = CliRunner().invoke
    assert run(main, ["build", str(corpus), "-o", path]).exit_code == 0
    assert run(main, ["search", path, "word7", "--exact"]).exit_code == 0
    told = run(main, ["check", path, "--recall", "--sample", "20", "--json"])
    assert told.exit_code == 0
    recall = json.loads(told.stdout)["recall"]
    assert recall == {"queries": 20, "k": 10, "two_stage": False, "overlap": 1.0}
    assert "overlap@10" in run(main, ["check", path, "--recall"]).output
