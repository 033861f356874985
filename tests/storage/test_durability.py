"""Crashes, full disks, several writers and readers: an index stays correct and consistent."""

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

# These tests search unfinished indexes.
pytestmark = pytest.mark.filterwarnings("ignore::strop.errors.UnfinishedIndex")

SMALL, LARGE = 5, 60
KILLS = int(os.environ.get("STROP_KILLS", "25"))
GENERATIONS = 10 if KILLS < 50 else 40
"""Readers see all documents replaced at least this many times."""
READERS = 2 if KILLS < 50 else 4


@pytest.fixture(scope="module", autouse=True)
def caches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strop.storage.snapshot.LOG_LEAST", 3)
        patch.setattr("strop.storage.snapshot.LOG_SHARE", 0.0)
        yield


class Checkpoint(NamedTuple):
    """An index after one operation of the story, without interruption."""

    path: Path
    state: State
    scores: dict[str, dict[str, float]]
    references: dict[str, SelectedReferences | None]


def references_of(index: Index) -> dict[str, SelectedReferences | None]:
    return {id_: index.references_of(id_) for id_ in index.ids()}


def scores_by_method(index: Index) -> dict[str, dict[str, float]]:
    scores = {}
    for method in ("trad", "sharp", "sharp:words=0", "doc2query"):
        try:
            scores[method] = all_scores(index, crashes.QUERY, method=method)
        except BadInput:  # no set yet, or not every document is augmented
            scores[method] = {}
    return scores


def assert_same(index: Index, size: int, checkpoint: Checkpoint) -> None:
    assert index.check() == []
    assert State.of(index, size) == checkpoint.state
    info = index.info()
    assert info["waiting"] == 0
    for set_ in info["sets"].values():
        assert set_["waiting"] == 0 or set_["source"] == "augmented"
    for method, scores in scores_by_method(index).items():
        assert_close(scores, checkpoint.scores[method], 1e-6)
    assert references_of(index) == checkpoint.references
    known_files = {file.name for file in index.catalog.vectors.files().values()}
    assert {file.name for file in (index.path / "vectors").iterdir()} <= known_files


def build_checkpoints(folder: Path, size: int) -> list[Checkpoint]:
    checkpoints = []
    with create(folder / "index") as index:
        index.close()
        shutil.copytree(index.path, folder / "begin")
        checkpoints.append(Checkpoint(folder / "begin", EMPTY_STATE, {"trad": {}, "sharp": {}}, {}))
    for at, (_, op) in enumerate(make_changes(size)):
        with reopen(folder / "index") as index:
            op(index)
            state, scores = State.of(index, size), scores_by_method(index)
            references = references_of(index)
        shutil.copytree(folder / "index", folder / f"{at}")
        checkpoints.append(Checkpoint(folder / f"{at}", state, scores, references))
    return checkpoints


@pytest.fixture(scope="module")
def small(fast: Path) -> list[Checkpoint]:
    return build_checkpoints(fast / "small", SMALL)


@pytest.fixture(scope="module")
def large(fast: Path) -> list[Checkpoint]:
    return build_checkpoints(fast / "large", LARGE)


def assert_recovers(path: Path, small: list[Checkpoint], op: int) -> None:
    """Check an index interrupted in ``op``, finish the operation, and check the result."""
    before, after = small[op], small[op + 1]
    with reopen(path) as index:
        assert_consistent(index, SMALL, before.state, after.state)
        index.finish()
        # The operation is complete, or it never began.
        assert State.of(index, SMALL) in (before.state, after.state)
        assert index.info()["waiting"] == 0
        make_changes(SMALL)[op][1](index)
        assert_same(index, SMALL, after)


# -- crashes ---------------------------------------------------------------------------------

OPS = [name for name, _ in make_changes(SMALL)]


# The default run checks a sample of the copies, a different one per operation; slow tests all.
SAMPLED = pytest.mark.parametrize("max_copies", [6, pytest.param(None, marks=pytest.mark.slow)])


@SAMPLED
@pytest.mark.parametrize("op", range(len(OPS)), ids=OPS)
def test_recovery_from_a_crash_at_any_step(
    scratch: Path, forks: Forks, small: list[Checkpoint], op: int, max_copies: int | None
) -> None:
    assert_recovers_at_every_step(scratch, forks, small, op, max_copies, power_cut=False)


@SAMPLED
@pytest.mark.parametrize("name", ["add", "sharpen", "import", "update", "expand", "compact"])
def test_recovery_from_a_power_cut_at_any_step(
    scratch: Path, forks: Forks, small: list[Checkpoint], name: str, max_copies: int | None
) -> None:
    """Writes that were not synced are lost; commits of the catalog are not."""
    assert_recovers_at_every_step(
        scratch, forks, small, OPS.index(name), max_copies, power_cut=True
    )


def sample_copies(copies: list[Path], max_copies: int | None, seed: int) -> list[Path]:
    """Return the first copy, the last, and one of each of the equal parts between.

    All copies are returned if ``max_copies`` is None.
    """
    if max_copies is None or len(copies) <= max_copies:
        return copies
    bounds = np.linspace(1, len(copies) - 1, max_copies - 1).astype(int).tolist()
    rng = random.Random(seed)
    sampled = [copies[rng.randrange(low, high)] for low, high in itertools.pairwise(bounds)]
    return [copies[0], *sampled, copies[-1]]


def assert_recovers_at_every_step(
    scratch: Path,
    forks: Forks,
    small: list[Checkpoint],
    op: int,
    max_copies: int | None,
    power_cut: bool,
) -> None:
    path = shutil.copytree(small[op].path, scratch / "whole")
    assert forks.run(crashes.record, path, SMALL, op, power_cut, scratch / "copies") == 0
    with reopen(path) as index:
        assert_same(index, SMALL, small[op + 1])
    copies = sorted((scratch / "copies").iterdir(), key=lambda copy: int(copy.name))
    # Before and after a transaction; operations that embed also stop between vectors and commit.
    assert len(copies) >= (2 if OPS[op] == "remove" else 3)
    for copy in sample_copies(copies, max_copies, op + 100 * power_cut):
        assert_recovers(copy, small, op)


def test_recovery_from_a_crash_at_any_step_of_creating(scratch: Path, forks: Forks) -> None:
    assert forks.run(crashes.record_creating, scratch / "index", scratch / "copies") == 0
    copies = sorted((scratch / "copies").iterdir(), key=lambda copy: int(copy.name))
    assert len(copies) >= 10
    # Incomplete indexes are deleted by file name, never read: one copy per set of names is enough.
    complete = [copy for copy in copies if (copy / "catalog.sqlite").exists()]
    incomplete = {
        tuple(sorted(crashes.contents(copy))): copy for copy in copies if copy not in complete
    }
    assert complete
    assert any("catalog.sqlite.new" in names for names in incomplete)
    for copy in (*complete, *incomplete.values()):
        with reopen(copy) if (copy / "catalog.sqlite").exists() else create(copy) as index:
            index.add([crashes.make_document(1)])
            assert index.check() == []
            assert index.search("alder1").ids.tolist() == [["d1"]]


def test_commits_are_synced_to_disk(tmp_path: Path) -> None:
    """A test cannot cut the power, but SQLite's settings say that commits wait for the disk."""
    with create(tmp_path / "index") as index, index.catalog.reading() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_recovery_from_kills_at_random_moments(
    tmp_path: Path, forks: Forks, large: list[Checkpoint]
) -> None:
    """A writer that is killed continues from where it stopped.

    A kill costs at most the batch that was being embedded.
    """
    rng = random.Random(7)
    pause, ops = 0.0002, len(make_changes(LARGE))
    log, done, prompts_log = tmp_path / "log", tmp_path / "done", tmp_path / "prompts"
    start = time.monotonic()
    assert (
        forks.run(crashes.apply_changes, tmp_path / "whole", LARGE, log, done, pause, prompts_log)
        == 0
    )
    longest = 2 * (time.monotonic() - start) / ops
    n_texts, prompts = sum(logged(log)), logged(prompts_log)
    assert len(prompts) == len(set(prompts)) > 12
    kills, killed_in = 0, set()
    while kills < KILLS:
        path = Path(tempfile.mkdtemp(dir=tmp_path))
        log, done, prompts_log = path / "log", path / "done", path / "prompts"
        n_embedded_again = n_deaths = 0
        while True:
            n_calls, n_done = len(logged(log)), len(crashes.parts(done))
            pid = forks.start(
                crashes.apply_changes, path / "index", LARGE, log, done, pause, prompts_log
            )
            if kills == KILLS:  # enough kills: let this run finish
                code = forks.wait(pid)
            else:
                target = min(n_done + rng.randint(0, 2), ops)
                while len(crashes.parts(done)) < target and not forks.has_failed:
                    time.sleep(0.001)
                time.sleep(rng.uniform(0, longest))
                code = forks.kill(pid)
            if code == 0:
                break
            kills, n_deaths = kills + 1, n_deaths + 1
            n_embedded_again += logged(log)[-1] if len(logged(log)) > n_calls else 0
            if not (path / "index" / "catalog.sqlite").exists():
                continue
            op = len(crashes.parts(done))
            killed_in.add(op)
            # The operation may be complete but not yet logged.
            after = large[min(op + 1, ops)].state
            with reopen(path / "index") as index:
                assert_consistent(index, LARGE, large[op].state, after)
        with reopen(path / "index") as index:
            assert_same(index, LARGE, large[-1])
        assert n_texts <= sum(logged(log)) <= n_texts + n_embedded_again
        # No stored reply is requested again. A kill can cost two requests: the one whose reply was
        # being stored, and the one sent meanwhile.
        assert set(logged(prompts_log)) == set(prompts)
        assert len(logged(prompts_log)) <= len(prompts) + 2 * n_deaths
    assert len(killed_in) >= min(6, KILLS // 4)


def test_cached_vectors_survive_a_crash(tmp_path: Path, forks: Forks) -> None:
    """After a crash within a batch, at most its last 256 texts are embedded again."""
    path, cache, log = tmp_path / "index", tmp_path / "cache.sqlite", tmp_path / "log"
    for last in (2, 2, 1):  # killed after the embedder's reply, before it was stored
        assert forks.run(crashes.build_cached, path, cache, log, 1000, last) == CRASHED
    assert forks.run(crashes.build_cached, path, cache, log, 1000, 0) == 0
    assert logged(log) == [256] * 5 + [256, 232]
    with create(tmp_path / "uncached") as uncached, Index.open(path, Bag(), name="bag") as index:
        uncached.add(crashes.make_document(i) for i in range(1000))
        assert_close(all_scores(index, "alder3"), all_scores(uncached, "alder3"), 1e-6)


# -- full disks ------------------------------------------------------------------------------


@pytest.mark.parametrize("op", range(len(OPS)), ids=OPS)
def test_disk_full_when_writing_vectors(
    scratch: Path, small: list[Checkpoint], op: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = strop.storage.vectors.append_rows
    monkeypatch.setattr("strop.storage.pipeline.FEWEST", 3)
    monkeypatch.setattr("strop.storage.pipeline.MOST", 3)
    full_at = 1
    while True:
        path = shutil.copytree(small[op].path, scratch / f"{full_at}")
        fails = itertools.chain(itertools.repeat(False, full_at - 1), [True])

        def append_rows(
            file: Path, committed: int, rows: Vectors, is_full: Iterator[bool] = fails
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
            index.finish()  # the same object continues
        assert_recovers(path, small, op)
        full_at += 1
    without_vectors = ("remove", "references", "references again", "compact", "rename", "drop")
    writes_vectors = OPS[op] not in without_vectors
    assert full_at > (1 if writes_vectors else 0)


def test_disk_full_when_writing_the_catalog(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite may add a few pages only: fewer than it needs until the last round."""
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
    started: list[int] = []

    def apply_changes(index: Index) -> None:
        for at, operation in enumerate(changes):
            started.append(at)
            operation(index)

    with create(scratch / "begin") as index:
        index.add(old)
        index.sharpen()
    shutil.copytree(scratch / "begin", scratch / "whole")
    with reopen(scratch / "whole") as index:
        apply_changes(index)
        expected, references = all_scores(index, "birch 3"), references_of(index)
    connect, failed_in, extra_pages = Database.connect, [], 0
    while True:
        path = shutil.copytree(scratch / "begin", scratch / f"{extra_pages}")

        def limited(database: Database, extra_pages: int = extra_pages) -> object:
            connection = connect(database)
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + extra_pages}")
            return connection

        monkeypatch.setattr(Database, "connect", limited)
        with reopen(path) as index:
            try:
                apply_changes(index)
                break
            except BadIndex as error:
                assert "is full" in str(error)  # noqa: PT017
                failed_in.append(started[-1])
                assert index.check() == []
                all_scores(index, "birch 3")
            finally:
                monkeypatch.setattr(Database, "connect", connect)
        with reopen(path) as index:
            texts = {id_: index.get(f"d{id_}").text[:3] for id_ in range(15, 30)}
            assert set(texts.values()) in ({"Old"}, {"New"})
            index.finish()
            apply_changes(index)
            assert_close(all_scores(index, "birch 3"), expected, 1e-6)
            assert references_of(index) == references
            assert index.check() == []
        extra_pages += 1
    assert {0, 1, 4} <= set(failed_in)  # adding, importing and generating, several times each
    assert len(failed_in) > 5


def test_disk_full_error_of_the_system(tmp_path: Path, forks: Forks) -> None:
    """The system's own error is handled, not only the simulated one."""
    path = tmp_path / "index"
    Index.create(path, embedder=crashes.wide, name="wide").close()
    assert forks.run(crashes.fill_disk, path, 400_000) == 0
    with Index.open(path, embedder=crashes.wide, name="wide") as index:
        assert len(index) == 100
        assert index.info()["waiting"] > 0
        index.finish()
        with Index.create(tmp_path / "complete", embedder=crashes.wide, name="wide") as complete:
            complete.add(crashes.make_document(i) for i in range(100))
            assert_close(all_scores(index, "alder3"), all_scores(complete, "alder3"), 1e-6)


# -- two writers -----------------------------------------------------------------------------


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def write_operations(index: Index) -> list[Callable[[], object]]:
    return [
        lambda: index.add([crashes.make_document(1, version=3)]),
        lambda: index.remove(["d1"]),
        lambda: index.keep_only(["d1"]),
        index.sharpen,
        lambda: index.import_queries({"d1": ["q"]}, "simple"),
        lambda: index.augment("simple"),
        index.finish,
    ]


def test_two_creators_of_one_index(tmp_path: Path) -> None:
    """The slower creator leaves the other's index unchanged."""

    def embed(texts: list[str]) -> Doubles:  # called while the index is being created
        if not (tmp_path / "index").exists():
            with create(tmp_path / "index") as faster:
                faster.add([crashes.make_document(1)])
        return vectors_of(texts, "document")

    with pytest.raises(BadIndex, match="is an index already"):
        Index.create(tmp_path / "index", embedder=embed)
    with reopen(tmp_path / "index") as index:
        assert index.get("d1") == crashes.make_document(1)
        assert index.check() == []


def test_second_writing_thread_is_refused(tmp_path: Path) -> None:
    entered, gate = threading.Event(), threading.Event()

    class Waiting(Bag):
        def __call__(self, texts: Any, kind: str) -> Doubles:
            entered.set()
            assert gate.wait(60)
            return super().__call__(texts, kind)

    with create(tmp_path / "index", Waiting()) as index, ThreadPoolExecutor(1) as thread:
        adding = thread.submit(index.add, [crashes.make_document(1)])
        assert entered.wait(60)
        with reopen(index.path) as other:
            for writer in (index, other):
                with pytest.raises(IndexBusy, match=r"this process is writing .* another thread"):
                    writer.remove(["d1"])
        gate.set()
        assert adding.result().new == 1
        with reopen(index.path) as other:
            other.add([crashes.make_document(2)])
        assert len(index) == 2
        index.remove(["d1"])


def test_second_writing_process_is_refused_at_once(
    tmp_path: Path, forks: Forks, small: list[Checkpoint]
) -> None:
    op = OPS.index("import")
    path = shutil.copytree(small[op + 1].path, tmp_path / "index")
    ready, gate = tmp_path / "ready", tmp_path / "gate"
    holder = forks.start(crashes.keep_writing, path, ready, gate)
    wait_until(ready.exists)
    with reopen(path) as index:
        for write in write_operations(index):
            with pytest.raises(IndexBusy, match="another process is writing"):
                write()
        for method, scores in scores_by_method(index).items():  # reading works
            if method != "sharp":  # word statistics include the waiting documents
                assert_close(scores, small[op + 1].scores[method], 1e-6)
        assert index.get("d1") == crashes.make_document(1)
        gate.touch()
        assert forks.wait(holder) == 0
        assert index.unknown(["d50", "d51", "d52"]) == set()
        assert all_scores(index, "q").keys() >= {"d50", "d51", "d52"}
        index.add([crashes.make_document(1, version=3)])
        assert index.get("d1") == crashes.make_document(1, version=3)
        assert index.check() == []


def test_killed_writer_blocks_no_other_writer(
    tmp_path: Path, forks: Forks, small: list[Checkpoint]
) -> None:
    path = shutil.copytree(small[1].path, tmp_path / "index")
    ready = tmp_path / "ready"
    holder = forks.start(crashes.keep_writing, path, ready, tmp_path / "never")
    wait_until(ready.exists)
    with reopen(path) as index:
        with pytest.raises(IndexBusy):
            index.finish()
        forks.kill(holder)
        index.remove(["d1"])
        assert index.info()["waiting"] == 3  # stored by the killed writer
        index.finish()
        assert all_scores(index, "q").keys() >= {"d50", "d51", "d52"}


# -- readers ---------------------------------------------------------------------------------


@pytest.fixture
def watched(scratch: Path) -> Iterator[tuple[Index, Path]]:
    """An index with the first generation of the documents that a Watcher checks."""
    notes = scratch / "notes"
    with create(scratch / "index") as index:
        index.sharpen()
        index.add(crashes.member(0, at) for at in range(crashes.GROUP))
        index.add(crashes.anchor(0, at) for at in range(crashes.GROUP))
        crashes.note(notes, 0, -1, 0)
        yield index, notes


def test_readers_in_other_processes_see_only_complete_changes(
    tmp_path: Path, forks: Forks, watched: tuple[Index, Path]
) -> None:
    index, notes = watched
    end = tmp_path / "end"
    progress_files = [tmp_path / "seen1", tmp_path / "seen2"]
    readers = [forks.start(crashes.watch, index.path, notes, file, end) for file in progress_files]
    wait_until(lambda: all(file.exists() for file in progress_files))

    def enough() -> bool:
        return all(int(file.read_text() or 0) > 40 for file in progress_files)

    crashes.write_generations(index, notes, GENERATIONS, enough)
    end.touch()
    for reader in readers:
        assert forks.wait(reader) == 0
    assert enough()


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
def test_readers_in_threads_see_only_complete_changes(
    watched: tuple[Index, Path], shared: bool
) -> None:
    index, notes = watched
    end = threading.Event()
    readers = [index if shared else reopen(index.path) for _ in range(READERS)]
    watchers = [crashes.Watcher(reader, notes) for reader in readers]

    def watch(watcher: crashes.Watcher) -> None:
        while not end.is_set():
            watcher.look()

    def enough() -> bool:
        ended = any(future.done() for future in futures)  # by an error, which result() raises
        return ended or all(watcher.searches > 20 for watcher in watchers)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(READERS) as threads:
            futures = [threads.submit(watch, watcher) for watcher in watchers]
            try:
                crashes.write_generations(index, notes, GENERATIONS, enough)
            finally:
                end.set()
            for future in futures:
                future.result()
            assert enough()
    finally:
        sys.setswitchinterval(interval)
        for reader in readers:
            reader.close()


def test_threads_search_different_versions_independently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow search of an older version and a search of the newer one do not affect each other."""
    started, resume = threading.Event(), threading.Event()

    def slow_in_one_thread(*args: Any) -> Layout:
        if threading.current_thread() is not threading.main_thread():
            started.set()
            assert resume.wait(60)
        return Layout(*args)

    monkeypatch.setattr("strop.search.views.Layout", slow_in_one_thread)
    with create(tmp_path / "index") as index, reopen(tmp_path / "index") as writer:
        writer.add(crashes.make_document(i) for i in range(10))
        with reopen(tmp_path / "index") as other:
            old = all_scores(other, crashes.QUERY)
        with ThreadPoolExecutor(1) as thread:
            slow_search = thread.submit(all_scores, index, crashes.QUERY)
            assert started.wait(60)
            writer.remove(["d0", "d4"])
            writer.add([crashes.make_document(10)])
            new = all_scores(index, crashes.QUERY)
            resume.set()
            assert slow_search.result() == old
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


def test_threads_return_the_hits_of_a_single_thread(large: list[Checkpoint]) -> None:
    queries = [f"where grows alder{i}" for i in range(24)]
    query_vectors = vectors_of(queries, "query").astype(np.float32)
    all_options = [{"method": "trad"}, {"alpha": 0.5}, {"n": 1}, {"temperature": 1.0}]
    jobs = [(vector, options) for vector in query_vectors for options in all_options]
    with reopen(large[6].path) as index:
        expected = [index.search(vector[None], k=20, **options) for vector, options in jobs]  # type: ignore[arg-type]
    with reopen(large[6].path) as index, ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda job: index.search(job[0][None], k=20, **job[1]), jobs)
        for expected_hits, hits in zip(expected, found, strict=True):
            assert expected_hits.ids.tolist() == hits.ids.tolist()
            assert expected_hits.scores.tolist() == hits.scores.tolist()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="cannot count open files")
def test_ended_threads_leave_no_open_files(large: list[Checkpoint]) -> None:
    with reopen(large[1].path) as index:
        index.search(crashes.QUERY)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(20):
            thread = threading.Thread(target=index.search, args=(crashes.QUERY,))
            thread.start()
            thread.join()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4
