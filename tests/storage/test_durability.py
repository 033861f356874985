"""Crashes, full disks, several writers and readers: an index survives, and tells no lies."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

if not hasattr(os, "fork"):
    pytest.skip("these tests fork and kill processes", allow_module_level=True)

from helpers import crashes
from helpers.crashes import (
    CRASHED,
    EMPTY_STATE,
    Forks,
    State,
    assert_consistent,
    logged,
    make_changes,
)
from helpers.fakes import Bag, Doubles, all_scores, assert_close, create, reopen, vectors_of

import strop.storage.pipeline
import strop.storage.vectors
from strop import Document, Index
from strop.errors import BadIndex, BadInput, IndexBusy
from strop.search.layout import Layout
from strop.storage.database import Database
from strop.storage.references import SelectedReferences
from strop.types import Vectors

# What was interrupted is searched here all the time.
pytestmark = pytest.mark.filterwarnings("ignore::strop.errors.UnfinishedIndex")

SMALL, LARGE = 5, 60
KILLS = int(os.environ.get("STROP_KILLS", "25"))
GENERATIONS = 10 if KILLS < 50 else 40
"""So many times readers see all documents replaced, at least."""
READERS = 2 if KILLS < 50 else 4


@pytest.fixture(scope="module", autouse=True)
def caches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strop.storage.snapshot.LOG_LEAST", 3)
        patch.setattr("strop.storage.snapshot.LOG_SHARE", 0.0)
        yield


class Chapter(NamedTuple):
    """An index as it is after one of the changes, made without interruption."""

    path: Path
    state: State
    scores: dict[str, dict[str, float]]
    references: dict[str, SelectedReferences | None]


def references_of(index: Index) -> dict[str, SelectedReferences | None]:
    return {id_: index.references_of(id_) for id_ in index.ids()}


def scores_of(index: Index) -> dict[str, dict[str, float]]:
    found = {}
    for method in ("trad", "sharp", "sharp:words=0", "doc2query"):
        try:
            found[method] = all_scores(index, crashes.QUERY, method=method)
        except BadInput:  # no set yet, or not every document is augmented
            found[method] = {}
    return found


def assert_same(index: Index, size: int, chapter: Chapter) -> None:
    assert index.check() == []
    assert State.of(index, size) == chapter.state
    info = index.info()
    assert info["waiting"] == 0
    for set_ in info["sets"].values():
        assert set_["waiting"] == 0 or set_["source"] == "augmented"
    for method, scores in scores_of(index).items():
        assert_close(scores, chapter.scores[method], 1e-6)
    assert references_of(index) == chapter.references
    named = {file.name for file in index.catalog.vectors.files().values()}
    assert {file.name for file in (index.path / "vectors").iterdir()} <= named


def tell_whole(folder: Path, size: int) -> list[Chapter]:
    chapters = []
    with create(folder / "index") as index:
        index.close()
        shutil.copytree(index.path, folder / "begin")
        chapters.append(Chapter(folder / "begin", EMPTY_STATE, {"trad": {}, "sharp": {}}, {}))
    for at, (_, op) in enumerate(make_changes(size)):
        with reopen(folder / "index") as index:
            op(index)
            state, scores = State.of(index, size), scores_of(index)
            references = references_of(index)
        shutil.copytree(folder / "index", folder / f"{at}")
        chapters.append(Chapter(folder / f"{at}", state, scores, references))
    return chapters


@pytest.fixture(scope="module")
def small(fast: Path) -> list[Chapter]:
    return tell_whole(fast / "small", SMALL)


@pytest.fixture(scope="module")
def large(fast: Path) -> list[Chapter]:
    return tell_whole(fast / "large", LARGE)


def assert_recovers(path: Path, small: list[Chapter], op: int) -> None:
    """Check an index that was interrupted in ``op``, go on, and check the outcome."""
    before, after = small[op], small[op + 1]
    with reopen(path) as index:
        assert_consistent(index, SMALL, before.state, after.state)
        index.finish()
        # What was begun is done, all of it; or it never began.
        assert State.of(index, SMALL) in (before.state, after.state)
        assert index.info()["waiting"] == 0
        make_changes(SMALL)[op][1](index)
        assert_same(index, SMALL, after)


# -- crashes ---------------------------------------------------------------------------------

OPS = [name for name, _ in make_changes(SMALL)]


# Of what stops of a change leave, the default run takes some, others for each change; slow tests
# take all.
SOME = pytest.mark.parametrize("most", [6, pytest.param(None, marks=pytest.mark.slow)])


@SOME
@pytest.mark.parametrize("op", range(len(OPS)), ids=OPS)
def test_a_crash_at_any_step(
    scratch: Path, forks: Forks, small: list[Chapter], op: int, most: int | None
) -> None:
    stop_at_steps(scratch, forks, small, op, most, power=False)


@SOME
@pytest.mark.parametrize("name", ["add", "sharpen", "import", "update", "expand", "compact"])
def test_a_power_cut_at_any_step(
    scratch: Path, forks: Forks, small: list[Chapter], name: str, most: int | None
) -> None:
    """What was written but not synced is lost; the catalog's commits are not."""
    stop_at_steps(scratch, forks, small, OPS.index(name), most, power=True)


def some_of(copies: list[Path], most: int | None, seed: int) -> list[Path]:
    """Return the first copy, the last, and one of each of the equal parts between; or all."""
    if most is None or len(copies) <= most:
        return copies
    parts = np.linspace(1, len(copies) - 1, most - 1).astype(int).tolist()
    rng = random.Random(seed)
    between = [copies[rng.randrange(low, high)] for low, high in itertools.pairwise(parts)]
    return [copies[0], *between, copies[-1]]


def stop_at_steps(
    scratch: Path, forks: Forks, small: list[Chapter], op: int, most: int | None, power: bool
) -> None:
    path = shutil.copytree(small[op].path, scratch / "whole")
    assert forks.run(crashes.record, path, SMALL, op, power, scratch / "copies") == 0
    with reopen(path) as index:
        assert_same(index, SMALL, small[op + 1])
    copies = sorted((scratch / "copies").iterdir(), key=lambda copy: int(copy.name))
    # Before and after a transaction; what embeds has vectors that no transaction refers to yet.
    assert len(copies) >= (2 if OPS[op] == "remove" else 3)
    for copy in some_of(copies, most, op + 100 * power):
        assert_recovers(copy, small, op)


def test_a_crash_at_any_step_of_creating(scratch: Path, forks: Forks) -> None:
    assert forks.run(crashes.record_creating, scratch / "index", scratch / "copies") == 0
    copies = sorted((scratch / "copies").iterdir(), key=lambda copy: int(copy.name))
    assert len(copies) >= 10
    # What is half made is deleted by its name and never read: one of each set of names is enough.
    made = [copy for copy in copies if (copy / "catalog.sqlite").exists()]
    half = {tuple(sorted(crashes.contents(copy))): copy for copy in copies if copy not in made}
    assert made
    assert any("catalog.sqlite.new" in names for names in half)
    for copy in (*made, *half.values()):
        with reopen(copy) if (copy / "catalog.sqlite").exists() else create(copy) as index:
            index.add([crashes.make_document(1)])
            assert index.check() == []
            assert index.search("alder1").ids.tolist() == [["d1"]]


def test_commits_reach_the_disk(tmp_path: Path) -> None:
    """A power cut cannot be had, but SQLite can be asked whether it will wait for the disk."""
    with create(tmp_path / "index") as index, index.catalog.reading() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_kills_at_random_moments(tmp_path: Path, forks: Forks, large: list[Chapter]) -> None:
    """However often a writer is killed, it goes on; and nothing is embedded twice.

    At most the batch that was under way when it was killed is embedded again.
    """
    rng = random.Random(7)
    pause, ops = 0.0002, len(make_changes(LARGE))
    log, done, asked = tmp_path / "log", tmp_path / "done", tmp_path / "asked"
    began = time.monotonic()
    assert forks.run(crashes.apply_changes, tmp_path / "whole", LARGE, log, done, pause, asked) == 0
    longest = 2 * (time.monotonic() - began) / ops
    texts, questions = sum(logged(log)), logged(asked)
    assert len(questions) == len(set(questions)) > 12
    kills, killed_in = 0, set()
    while kills < KILLS:
        path = Path(tempfile.mkdtemp(dir=tmp_path))
        log, done, asked = path / "log", path / "done", path / "asked"
        again = died = 0
        while True:
            calls, told = len(logged(log)), len(crashes.parts(done))
            pid = forks.start(crashes.apply_changes, path / "index", LARGE, log, done, pause, asked)
            if kills == KILLS:  # enough: let this one end
                code = forks.wait(pid)
            else:
                target = min(told + rng.randint(0, 2), ops)
                while len(crashes.parts(done)) < target and not forks.has_failed:
                    time.sleep(0.001)
                time.sleep(rng.uniform(0, longest))
                code = forks.kill(pid)
            if code == 0:
                break
            kills, died = kills + 1, died + 1
            again += logged(log)[-1] if len(logged(log)) > calls else 0
            if not (path / "index" / "catalog.sqlite").exists():
                continue
            op = len(crashes.parts(done))
            killed_in.add(op)
            # Done, but not yet noted, is possible; then it is what comes after.
            after = large[min(op + 1, ops)].state
            with reopen(path / "index") as index:
                assert_consistent(index, LARGE, large[op].state, after)
        with reopen(path / "index") as index:
            assert_same(index, LARGE, large[-1])
        assert texts <= sum(logged(log)) <= texts + again
        # No reply that was stored is paid for again. What a kill can cost is the reply that was
        # being stored and the call that was sent meanwhile.
        assert set(logged(asked)) == set(questions)
        assert len(logged(asked)) <= len(questions) + 2 * died
    assert len(killed_in) >= min(6, KILLS // 4)


def test_cached_vectors_survive_a_crash(tmp_path: Path, forks: Forks) -> None:
    """A batch that was cut short is not paid for again: the cache has it but for 256 texts."""
    path, cache, log = tmp_path / "index", tmp_path / "cache.sqlite", tmp_path / "log"
    for last in (2, 2, 1):  # the call that dies has been answered, but was not stored
        assert forks.run(crashes.build_cached, path, cache, log, 1000, last) == CRASHED
    assert forks.run(crashes.build_cached, path, cache, log, 1000, 0) == 0
    assert logged(log) == [256] * 5 + [256, 232]
    with create(tmp_path / "plain") as plain, Index.open(path, Bag(), name="bag") as index:
        plain.add(crashes.make_document(i) for i in range(1000))
        assert_close(all_scores(index, "alder3"), all_scores(plain, "alder3"), 1e-6)


# -- full disks ------------------------------------------------------------------------------


@pytest.mark.parametrize("op", range(len(OPS)), ids=OPS)
def test_a_disk_too_full_for_vectors(
    scratch: Path, small: list[Chapter], op: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = strop.storage.vectors.append_rows
    monkeypatch.setattr("strop.storage.pipeline.FEWEST", 3)
    monkeypatch.setattr("strop.storage.pipeline.MOST", 3)
    full_at = 1
    while True:
        path = shutil.copytree(small[op].path, scratch / f"{full_at}")
        calls = itertools.chain(itertools.repeat(False, full_at - 1), [True])

        def append_rows(
            file: Path, committed: int, rows: Vectors, is_full: Iterator[bool] = calls
        ) -> None:
            if next(is_full, False):
                append(file, committed, rows[: len(rows) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            append(file, committed, rows)

        monkeypatch.setattr(strop.storage.pipeline, "append_rows", append_rows)
        with reopen(path) as index:
            try:
                make_changes(SMALL)[op][1](index)
            except BadIndex as error:
                assert "make room" in str(error)  # noqa: PT017
                assert_consistent(index, SMALL, small[op].state, small[op + 1].state)
            else:
                break
            finally:
                monkeypatch.setattr(strop.storage.pipeline, "append_rows", append)
            index.finish()  # the same object goes on
        assert_recovers(path, small, op)
        full_at += 1
    unembedded = ("remove", "references", "references again", "compact", "rename", "drop")
    appends = OPS[op] not in unembedded
    assert full_at > (1 if appends else 0)


def test_a_disk_too_full_for_the_catalog(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite may use some pages more than it has; then none of those that it needs."""
    monkeypatch.setattr("strop.storage.pipeline.FEWEST", 16)
    monkeypatch.setattr("strop.storage.pipeline.MOST", 16)
    old = [Document(f"d{i}", f"Old{i} alder{i} " + "alder " * 30) for i in range(30)]
    new = [Document(f"d{i}", f"New{i} elm{i} " + "birch " * 60) for i in range(15, 40)]
    lists = {f"d{i}": [f"which tree is {i} " + "cedar " * 10] * 3 for i in range(40)}
    changes: list[Callable[[Index], object]] = [
        lambda index: index.add(new),
        lambda index: index.import_queries(lists, "simple"),
        lambda index: index.remove(sorted({"d1", "d2"} - index.unknown(["d1", "d2"]))),
        lambda index: index.select_references(crashes.REFERENCES),
        lambda index: crashes.generate(index, 6, None),
        lambda index: index.compact(),
    ]
    begun: list[int] = []

    def change(index: Index) -> None:
        for at, one in enumerate(changes):
            begun.append(at)
            one(index)

    with create(scratch / "begin") as index:
        index.add(old)
        index.sharpen()
    shutil.copytree(scratch / "begin", scratch / "whole")
    with reopen(scratch / "whole") as index:
        change(index)
        want, references = all_scores(index, "birch 3"), references_of(index)
    connect, refused, room = Database.connect, [], 0
    while True:
        path = shutil.copytree(scratch / "begin", scratch / f"{room}")

        def limited(database: Database, room: int = room) -> object:
            connection = connect(database)
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + room}")
            return connection

        monkeypatch.setattr(Database, "connect", limited)
        with reopen(path) as index:
            try:
                change(index)
                break
            except BadIndex as error:
                assert "is full" in str(error)  # noqa: PT017
                refused.append(begun[-1])
                assert index.check() == []
                all_scores(index, "birch 3")
            finally:
                monkeypatch.setattr(Database, "connect", connect)
        with reopen(path) as index:
            texts = {id_: index.get(f"d{id_}").text[:3] for id_ in range(15, 30)}
            assert set(texts.values()) in ({"Old"}, {"New"})
            index.finish()
            change(index)
            assert_close(all_scores(index, "birch 3"), want, 1e-6)
            assert references_of(index) == references
            assert index.check() == []
        room += 1
    assert {0, 1, 4} <= set(refused)  # adding, importing and generating, several times each
    assert len(refused) > 5


def test_a_disk_that_is_really_full(tmp_path: Path, forks: Forks) -> None:
    """The error that the system gives is understood, not only the one that we make up."""
    path = tmp_path / "index"
    Index.create(path, embedder=crashes.wide, name="wide").close()
    assert forks.run(crashes.fill_disk, path, 400_000) == 0
    with Index.open(path, embedder=crashes.wide, name="wide") as index:
        assert len(index) == 100
        assert index.info()["waiting"] > 0
        index.finish()
        with Index.create(tmp_path / "whole", embedder=crashes.wide, name="wide") as whole:
            whole.add(crashes.make_document(i) for i in range(100))
            assert_close(all_scores(index, "alder3"), all_scores(whole, "alder3"), 1e-6)


# -- two writers -----------------------------------------------------------------------------


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.005)


def writes(index: Index) -> list[Callable[[], object]]:
    return [
        lambda: index.add([crashes.make_document(1, version=3)]),
        lambda: index.remove(["d1"]),
        lambda: index.keep_only(["d1"]),
        index.sharpen,
        lambda: index.import_queries({"d1": ["q"]}, "simple"),
        lambda: index.augment("simple"),
        index.finish,
    ]


def test_two_that_create_an_index_at_once(tmp_path: Path) -> None:
    """The one that is late leaves the other's index alone."""

    def embed(texts: list[str]) -> Doubles:  # called while the index is being made
        if not (tmp_path / "index").exists():
            with create(tmp_path / "index") as quick:
                quick.add([crashes.make_document(1)])
        return vectors_of(texts, "document")

    with pytest.raises(BadIndex, match="is an index already"):
        Index.create(tmp_path / "index", embedder=embed)
    with reopen(tmp_path / "index") as index:
        assert index.get("d1") == crashes.make_document(1)
        assert index.check() == []


def test_a_second_writing_thread_is_told_so(tmp_path: Path) -> None:
    entered, gate = threading.Event(), threading.Event()

    class Waiting(Bag):
        def __call__(self, texts: Any, kind: str) -> Doubles:
            entered.set()
            assert gate.wait(60)
            return super().__call__(texts, kind)

    with create(tmp_path / "index", Waiting()) as index, ThreadPoolExecutor(1) as thread:
        first = thread.submit(index.add, [crashes.make_document(1)])
        assert entered.wait(60)
        with reopen(index.path) as other:
            for writer in (index, other):
                with pytest.raises(IndexBusy, match=r"this process is writing .* another thread"):
                    writer.remove(["d1"])
        gate.set()
        assert first.result().new == 1
        with reopen(index.path) as other:
            other.add([crashes.make_document(2)])
        assert len(index) == 2
        index.remove(["d1"])


def test_a_second_writer_is_refused_at_once(
    tmp_path: Path, forks: Forks, small: list[Chapter]
) -> None:
    op = OPS.index("import")
    path = shutil.copytree(small[op + 1].path, tmp_path / "index")
    ready, gate = tmp_path / "ready", tmp_path / "gate"
    holder = forks.start(crashes.keep_writing, path, ready, gate)
    until(ready.exists)
    with reopen(path) as index:
        for write in writes(index):
            with pytest.raises(IndexBusy, match="another process is writing"):
                write()
        for method, scores in scores_of(index).items():  # reading is fine
            if method != "sharp":  # words are rarer or not with those of documents that wait
                assert_close(scores, small[op + 1].scores[method], 1e-6)
        assert index.get("d1") == crashes.make_document(1)
        gate.touch()
        assert forks.wait(holder) == 0
        assert index.unknown(["d50", "d51", "d52"]) == set()
        assert all_scores(index, "q").keys() >= {"d50", "d51", "d52"}
        index.add([crashes.make_document(1, version=3)])
        assert index.get("d1") == crashes.make_document(1, version=3)
        assert index.check() == []


def test_a_killed_writer_stands_in_nobodys_way(
    tmp_path: Path, forks: Forks, small: list[Chapter]
) -> None:
    path = shutil.copytree(small[1].path, tmp_path / "index")
    ready = tmp_path / "ready"
    holder = forks.start(crashes.keep_writing, path, ready, tmp_path / "never")
    until(ready.exists)
    with reopen(path) as index:
        with pytest.raises(IndexBusy):
            index.finish()
        forks.kill(holder)
        index.remove(["d1"])
        assert index.info()["waiting"] == 3  # what the other had stored
        index.finish()
        assert all_scores(index, "q").keys() >= {"d50", "d51", "d52"}


# -- readers ---------------------------------------------------------------------------------


@pytest.fixture
def watched(scratch: Path) -> Iterator[tuple[Index, Path]]:
    """An index with the first generation of what a watcher watches."""
    notes = scratch / "notes"
    with create(scratch / "index") as index:
        index.sharpen()
        index.add(crashes.member(0, at) for at in range(crashes.GROUP))
        index.add(crashes.anchor(0, at) for at in range(crashes.GROUP))
        crashes.note(notes, 0, -1, 0)
        yield index, notes


def test_readers_in_other_processes_see_only_whole_changes(
    tmp_path: Path, forks: Forks, watched: tuple[Index, Path]
) -> None:
    index, notes = watched
    end = tmp_path / "end"
    seen = [tmp_path / "seen1", tmp_path / "seen2"]
    readers = [forks.start(crashes.watch, index.path, notes, one, end) for one in seen]
    until(lambda: all(one.exists() for one in seen))

    def enough() -> bool:
        return all(int(one.read_text() or 0) > 40 for one in seen)

    crashes.write_generations(index, notes, GENERATIONS, enough)
    end.touch()
    for reader in readers:
        assert forks.wait(reader) == 0
    assert enough()


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
def test_readers_in_threads_see_only_whole_changes(
    watched: tuple[Index, Path], shared: bool
) -> None:
    index, notes = watched
    end = threading.Event()
    readers = [index if shared else reopen(index.path) for _ in range(READERS)]
    watchers = [crashes.Watcher(reader, notes) for reader in readers]

    def look(watcher: crashes.Watcher) -> None:
        while not end.is_set():
            watcher.look()

    def enough() -> bool:
        ended = any(one.done() for one in looking)  # by an error, which result() tells
        return ended or all(watcher.searches > 20 for watcher in watchers)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(READERS) as threads:
            looking = [threads.submit(look, watcher) for watcher in watchers]
            try:
                crashes.write_generations(index, notes, GENERATIONS, enough)
            finally:
                end.set()
            for one in looking:
                one.result()
            assert enough()
    finally:
        sys.setswitchinterval(interval)
        for reader in readers:
            reader.close()


def test_threads_that_see_different_versions_keep_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow search of an older version neither spoils the newer one nor is spoilt by it."""
    begun, go_on = threading.Event(), threading.Event()

    def slow_in_one_thread(*args: Any) -> Layout:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert go_on.wait(60)
        return Layout(*args)

    monkeypatch.setattr("strop.search.views.Layout", slow_in_one_thread)
    with create(tmp_path / "index") as index, reopen(tmp_path / "index") as writer:
        writer.add(crashes.make_document(i) for i in range(10))
        with reopen(tmp_path / "index") as other:
            old = all_scores(other, crashes.QUERY)
        with ThreadPoolExecutor(1) as thread:
            slow = thread.submit(all_scores, index, crashes.QUERY)
            assert begun.wait(60)
            writer.remove(["d0", "d4"])
            writer.add([crashes.make_document(10)])
            new = all_scores(index, crashes.QUERY)
            go_on.set()
            assert slow.result() == old
        assert all_scores(index, crashes.QUERY) == new
        assert new.keys() == old.keys() - {"d0", "d4"} | {"d10"}


def test_a_change_is_seen_by_the_next_search(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index, reopen(tmp_path / "index") as other:
        index.add(crashes.make_document(i) for i in range(20))
        for i in range(20):
            for reader in (other, index):
                assert f"d{i}" in all_scores(reader, crashes.QUERY)
            index.remove([f"d{i}"])
            for reader in (other, index):
                assert f"d{i}" not in all_scores(reader, crashes.QUERY)


def test_many_threads_find_what_one_finds(large: list[Chapter]) -> None:
    asked = vectors_of([f"where grows alder{i}" for i in range(24)], "query").astype(np.float32)
    ways = [{"method": "trad"}, {"alpha": 0.5}, {"n": 1}, {"temperature": 1.0}]
    jobs = [(one, way) for one in asked for way in ways]
    with reopen(large[6].path) as index:
        alone = [index.search(one[None], k=20, **way) for one, way in jobs]  # type: ignore[arg-type]
    with reopen(large[6].path) as index, ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda job: index.search(job[0][None], k=20, **job[1]), jobs)
        for one, other in zip(alone, found, strict=True):
            assert one.ids.tolist() == other.ids.tolist()
            assert one.scores.tolist() == other.scores.tolist()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="cannot count open files")
def test_threads_that_end_leave_no_file_open(large: list[Chapter]) -> None:
    with reopen(large[1].path) as index:
        index.search(crashes.QUERY)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(20):
            thread = threading.Thread(target=index.search, args=(crashes.QUERY,))
            thread.start()
            thread.join()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4
