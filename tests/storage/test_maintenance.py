"""Checking, repair, compaction, upgrade, and snapshots that follow the catalog."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from helpers.crashes import QUERY, REFERENCES, make_document, make_queries
from helpers.fakes import DIM, Bag, all_scores, assert_close, create, reopen

import strop.storage.compaction
from strop import Index
from strop.errors import BadIndex, IndexDamaged
from strop.methods import METHODS
from strop.storage.database import Database
from strop.storage.sidecar import read_arrays, write_arrays
from strop.storage.snapshot import Snapshot, load_snapshot

SIZE = 40
ROW = DIM * 4


@pytest.fixture
def bag() -> Bag:
    return Bag()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents, sentences and imported queries; references; some changed and some removed."""
    path = tmp_path_factory.mktemp("whole") / "index"
    with create(path) as made:
        made.sharpen()
        made.add(make_document(i) for i in range(SIZE))
        made.import_queries({f"d{i}": make_queries(i, 1) for i in range(SIZE)}, "simple")
        made.add(make_document(i, version=2) for i in range(0, SIZE, 3))
        made.import_queries({f"d{i}": make_queries(i, 2) for i in range(0, SIZE, 4)}, "simple")
        made.remove([f"d{i}" for i in range(0, SIZE, 5)])
        made.select_references(REFERENCES)
    return path


@pytest.fixture
def index(whole: Path, tmp_path: Path, bag: Bag) -> Iterator[Index]:
    """A copy of ``whole``, to change."""
    with reopen(shutil.copytree(whole, tmp_path / "index"), bag) as copy:
        yield copy


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << at % 8]))


def lines(index: Index, set_id: int) -> list[tuple[int, int, int, int]]:
    return [tuple(line) for line in index.catalog.vectors.spans(set_id).tolist()]


# -- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_id", [0, 1, 2])
def test_a_flipped_bit_is_found_and_only_its_vectors_are_embedded_again(
    index: Index, bag: Bag, set_id: int
) -> None:
    before = all_scores(index, QUERY)
    file = index.catalog.vectors.files()[set_id]
    path = index.path / "vectors" / file.name
    rng = random.Random(set_id)
    for _ in range(5):
        number, start, count, _ = rng.choice(lines(index, set_id))
        row = start + rng.randrange(count)
        flip(path, row * ROW + rng.randrange(ROW))
        (problem,) = index.check()
        assert problem.startswith(f"vectors/{file.name}: rows {row} to {row} are not what was")
        bag.count = 0
        assert index.check(repair=True) == [problem]
        assert bag.count == count
        assert index.check() == []
        assert_close(all_scores(index, QUERY), before, 1e-6)
        file = index.catalog.vectors.files()[set_id]  # written anew
        path = index.path / "vectors" / file.name
        assert number in {line[0] for line in lines(index, set_id)}


def test_damage_in_unused_rows_is_reported_and_removed_by_compaction(index: Index) -> None:
    used = {line[1] for line in lines(index, 0)}
    unused = next(row for row in range(SIZE) if row not in used)
    flip(index.path / "vectors" / "documents.f32", unused * ROW)
    (problem,) = index.check()
    assert problem.endswith("they belong to 0 documents")
    index.compact()
    assert index.check() == []


def test_compaction_refuses_to_copy_damage(index: Index) -> None:
    (_, start, *_), *_ = lines(index, 0)
    flip(index.path / "vectors" / "documents.f32", start * ROW + 7)
    with pytest.raises(IndexDamaged, match=r"documents.f32 is damaged in rows .*--repair"):
        index.compact()
    assert len(index.check()) == 1


@pytest.mark.parametrize("name", ["documents.f32", "queries-1.f32", "queries-2.f32"])
@pytest.mark.parametrize("left", [None, 0, 3 * ROW, 10 * ROW + 17])
def test_files_missing_or_cut_short(index: Index, name: str, left: int | None) -> None:
    before, references = all_scores(index, QUERY), index.references_of("d1")
    path = index.path / "vectors" / name
    rows = path.stat().st_size // ROW
    if left is None:
        path.unlink()
    else:
        os.truncate(path, left)
    with reopen(index.path) as again:
        (problem,) = again.check()
        assert problem == f"vectors/{name} holds {(left or 0) // ROW} of {rows} vectors"
        assert again.check(repair=True) == [problem]
        assert again.check() == []
        assert_close(all_scores(again, QUERY), before, 1e-6)
        again.select_references(REFERENCES)
        assert again.references_of("d1") == references


def damage(index: Index, sql: str) -> None:
    with index.catalog.writing() as connection:
        connection.execute(sql)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE spans SET start = 9999 WHERE set_id = 0 AND number = 3", "impossible rows"),
        ("UPDATE spans SET start = 0 WHERE set_id = 1", "impossible rows"),
        ("UPDATE spans SET count = count + 1 WHERE set_id = 2 AND number = 3", "impossible rows"),
        (f"UPDATE spans SET count = {2**63 - 1} WHERE set_id = 0", "impossible rows"),
        (f"UPDATE spans SET count = {-(2**63)} WHERE number = 3", "impossible rows"),
        ("DELETE FROM spans WHERE set_id = 0 AND number = 3", "have no vector and wait for none"),
        ("DELETE FROM spans WHERE set_id = 1 AND number = 3", "have no sentences and wait"),
        ("UPDATE meta SET value = 7 WHERE key = 'documents'", "are counted as 7"),
        ("UPDATE files SET live = live + 1 WHERE set_id = 2", "miscounted"),
        ("UPDATE files SET lists = 0 WHERE set_id = 0", "miscounted"),
    ],
)
def test_contradictions_in_the_catalog(index: Index, sql: str, message: str) -> None:
    before, info = all_scores(index, QUERY), index.info()
    damage(index, sql)
    problems = index.check()
    assert any(message in problem for problem in problems), problems
    assert index.check(repair=True) == problems
    assert index.check() == []
    with reopen(index.path) as again:
        assert_close(all_scores(again, QUERY), before, 1e-6)
        for key in ("documents", "waiting", "sets"):
            assert again.info()[key] == info[key]


def test_a_lost_entry_of_an_sqlite_index_is_rebuilt(index: Index) -> None:
    # The index is filled while its definition says the opposite, then that is put back.
    for old, new in (("WHERE empty", "WHERE NOT empty"), ("WHERE NOT empty", "WHERE empty")):
        with closing(sqlite3.connect(index.path / "catalog.sqlite")) as connection:
            connection.execute("PRAGMA writable_schema=ON")
            changed = connection.execute(
                "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'empty_documents'",
                (old, new),
            )
            assert changed.rowcount == 1
            connection.commit()
        if "NOT" in new:
            with closing(sqlite3.connect(index.path / "catalog.sqlite")) as connection:
                connection.execute("REINDEX empty_documents")
                connection.commit()
    index.close()
    with reopen(index.path) as again:
        (problem,) = again.check()
        assert problem.startswith("catalog.sqlite: ")
        assert again.check(repair=True) == [problem]
        assert again.check() == []


def test_nothing_is_written_if_sqlite_indexes_cannot_be_rebuilt(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pages of the file are damaged, new rows could overwrite texts."""
    (_, start, *_), *_ = lines(index, 0)
    flip(index.path / "vectors" / "documents.f32", start * ROW)
    rows, problem = Database.rows, [("row 7 missing from index",)]
    monkeypatch.setattr(
        Database, "rows", lambda *sql: problem if "integrity" in sql[1] else rows(*sql)
    )
    problems = index.check()
    assert len(problems) == 2
    catalog = (index.path / "catalog.sqlite").read_bytes()
    with pytest.raises(IndexDamaged, match=r"row 7 missing from index.* cannot be rebuilt"):
        index.check(repair=True)
    assert index.check() == problems
    assert (index.path / "catalog.sqlite").read_bytes() == catalog


def test_a_damaged_cache_is_ignored(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.storage.snapshot.LOG_LEAST", 0)
    index.add([make_document(99)])
    (cache,) = (index.path / "cache").iterdir()
    with reopen(index.path) as again:
        before = all_scores(again, QUERY)
    whole = cache.read_bytes()
    for at in (0, 16, 30, 100, len(whole) // 2, len(whole) - 70):
        cache.write_bytes(whole)
        flip(cache, at)
        with reopen(index.path) as again:
            assert all_scores(again, QUERY) == before
    for size in (0, 5, 22, len(whole) - 1):
        cache.write_bytes(whole[:size])
        with reopen(index.path) as again:
            assert all_scores(again, QUERY) == before
            assert again.check() == []  # a power cut may leave this: no damage


def test_a_cache_that_differs_from_the_catalog_is_detected(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.storage.snapshot.LOG_LEAST", 0)
    index.add([make_document(99)])
    (cache,) = (index.path / "cache").iterdir()
    cached = read_arrays(cache)
    assert cached is not None
    arrays, about = {name: array.copy() for name, array in cached[0].items()}, cached[1]
    arrays["0"][0] = arrays["0"][0][::-1]  # valid, but with swapped rows of documents
    cache.unlink()
    write_arrays(cache, arrays, about)
    with reopen(index.path) as again:
        assert again.check() == ["the cache of spans differs from the catalog"]
        again.check(repair=True)
    with reopen(index.path) as again:
        assert again.check() == []
        assert_close(all_scores(again, QUERY), all_scores(index, QUERY), 1e-6)


# -- compaction --------------------------------------------------------------------------------


def test_compaction_frees_waste_and_changes_nothing_else(index: Index, bag: Bag) -> None:
    before = {way: all_scores(index, QUERY, method=way) for way in ("trad", "sharp", "maxsim")}
    references = {id_: index.references_of(id_) for id_ in index.ids()}
    lists = {id_: index.queries_of(id_) for id_ in index.ids()}
    bag.count = 0
    wasted = index.info()["sizes"]["waste"]
    rows = {set_id: file.live for set_id, file in index.catalog.vectors.files().items()}
    assert wasted > 10 * ROW
    with reopen(index.path) as reader:
        old = {way: all_scores(reader, QUERY, method=way) for way in before}
        seen = reader.searcher.views.snapshot().documents
        mapped = index.path / "vectors" / index.catalog.vectors.files()[0].name
        assert mapped.exists()
        assert index.compact() > 0
        assert bag.count == 0
        assert not mapped.exists()  # but the reader still has it mapped
        assert (seen.vectors[seen.start] ** 2).sum() > 1
        assert {way: all_scores(reader, QUERY, method=way) for way in before} == old
    for searched in (index, reopen(index.path)):
        for way, scores in before.items():
            assert_close(all_scores(searched, QUERY, method=way), scores, 1e-6)
        assert {id_: searched.references_of(id_) for id_ in searched.ids()} == references
        assert {id_: searched.queries_of(id_) for id_ in searched.ids()} == lists
        assert searched.check() == []
    searched.close()
    for set_id, file in index.catalog.vectors.files().items():
        assert file.rows == file.live == rows[set_id]
        assert (index.path / "vectors" / file.name).stat().st_size == file.rows * ROW
    assert index.select_references(REFERENCES) == 0  # the same vectors in other files
    assert index.info()["sizes"]["waste"] < wasted
    index.add([make_document(1, version=3), make_document(77)])
    assert index.check() == []
    index.compact()
    assert index.check() == []
    assert len(list((index.path / "vectors").iterdir())) == 3


def test_compaction_shrinks_the_catalog(index: Index) -> None:
    index.add({"id": f"long{i}", "text": "alder " * 500} for i in range(300))
    index.remove([f"long{i}" for i in range(300)])
    before = index.info()["sizes"]
    index.compact()
    after = index.info()["sizes"]
    assert before["catalog"] > 3 * after["catalog"]
    assert after["waste"] < before["waste"] / 10
    assert index.check() == []


def test_compaction_without_waste_writes_no_file(index: Index) -> None:
    index.compact()
    names = {file.name for file in (index.path / "vectors").iterdir()}
    index.compact()
    assert {file.name for file in (index.path / "vectors").iterdir()} == names


def test_a_disk_too_full_for_compaction(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    before = all_scores(index, QUERY)
    copy = strop.storage.compaction.copy_rows
    for fails in (1, 2, 3):
        calls = iter(range(1, 10))

        def full(*given: object, calls: Iterator[int] = calls, fails: int = fails) -> object:
            made = copy(*given)  # type: ignore[arg-type]
            if next(calls) == fails:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return made

        monkeypatch.setattr(strop.storage.compaction, "copy_rows", full)
        with pytest.raises(BadIndex, match="make room"):
            index.compact()
        monkeypatch.setattr(strop.storage.compaction, "copy_rows", copy)
        assert len(list((index.path / "vectors").iterdir())) == 3
        assert index.check() == []
        assert_close(all_scores(index, QUERY), before, 1e-6)
        index.add([make_document(200 + fails)])
        index.remove([f"d{200 + fails}"])  # so that every file has waste again
    index.compact()
    assert index.check() == []


def test_files_of_stopped_writers_are_deleted_by_the_next_writer(index: Index) -> None:
    stray = [index.path / "vectors" / "documents.7.f32", index.path / "cache" / f"spans-{7:032x}"]
    for file in stray:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"left")
    assert index.info()["sizes"]["left_over"] == 4
    index.finish()
    assert not any(file.exists() for file in stray)


def test_a_read_that_began_before_compaction_succeeds(index: Index) -> None:
    """Its transaction names deleted files; the read starts again."""
    before = all_scores(index, QUERY)
    with reopen(index.path) as reader, reader.catalog.reading():
        assert reader.catalog.settings.get("version")  # from here on it sees this state
        index.compact()
        assert_close(all_scores(reader, QUERY), before, 1e-6)


# -- sizes -------------------------------------------------------------------------------------


def test_sizes_by_kind(index: Index) -> None:
    sizes = index.info()["sizes"]
    on_disk = {
        file.relative_to(index.path).as_posix(): file.stat().st_size
        for file in index.path.rglob("*")
        if file.is_file() and file.name != "writer.lock"
    }
    assert sizes["total"] == sum(on_disk.values())
    assert sizes["documents"] == on_disk["vectors/documents.f32"]
    assert sizes["sets"]["sentences"] == on_disk["vectors/queries-1.f32"]
    assert sizes["per_document"] == sizes["total"] / len(index)
    unused = sum(file.rows - file.live for file in index.catalog.vectors.files().values())
    assert sizes["waste"] >= unused * ROW > 0


# -- snapshots ---------------------------------------------------------------------------------


def are_equal(one: Snapshot, other: Snapshot) -> bool:
    assert one.version == other.version
    assert one.sets.keys() == other.sets.keys()
    pairs = [(one.documents, other.documents)]
    pairs += [(one.sets[name], other.sets[name]) for name in one.sets]
    return (
        np.array_equal(one.numbers, other.numbers)
        and all(
            np.array_equal(getattr(a, what), getattr(b, what))
            for a, b in pairs
            for what in ("start", "count", "vector_version")
        )
        and all(np.array_equal(a.vectors[a.start], b.vectors[b.start]) for a, b in pairs)
    )


@pytest.mark.parametrize("seed", range(3))
def test_an_updated_snapshot_equals_a_fresh_one(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.storage.snapshot.LOG_LEAST", 12)
    rng = random.Random(seed)
    kinds = set()
    with create(tmp_path / "index") as index:
        catalog, here = index.catalog, set[int]()
        followed = rarely = load_snapshot(catalog)

        def add() -> None:
            few = rng.sample(range(30), rng.randint(1, 6))
            index.add(make_document(i, version=rng.randint(1, 3)) for i in few)
            here.update(few)

        def remove() -> None:
            few = rng.sample(sorted(here), min(len(here), rng.randint(1, 3)))
            index.remove([f"d{i}" for i in few])
            here.difference_update(few)

        def ask() -> None:
            few = rng.sample(sorted(here), min(len(here), 4))
            style = rng.choice(["simple", "other"])
            if few:
                index.import_queries(
                    {f"d{i}": make_queries(i, rng.randint(1, 9)) for i in few}, style
                )

        def sharpen() -> None:
            index.sharpen(n=rng.randint(1, 2))

        def compact() -> None:
            index.compact()

        steps: list[Callable[[], None]] = [add, add, remove, ask, sharpen, compact]
        for at in range(40):
            rng.choice(steps)()
            followed = load_snapshot(catalog, followed)
            name = catalog.settings.sidecar("spans")
            cached = load_snapshot(catalog)
            catalog.settings.put_sidecar("spans", None)
            whole = load_snapshot(catalog)
            catalog.settings.put_sidecar("spans", name)
            assert are_equal(followed, whole)
            assert are_equal(cached, whole)
            kinds.add((name is None, catalog.vectors.changes(rarely.version) is None))
            if at % 7 == 0:
                rarely = load_snapshot(catalog, rarely)
                assert are_equal(rarely, whole)
        assert index.check() == []
    assert (False, False) in kinds
    assert (False, True) in kinds  # too old to be followed


def test_changes_without_vectors_keep_the_search_structures(index: Index) -> None:
    index.search(QUERY)
    before = index.searcher.views.of(METHODS["trad"])
    with index.catalog.writing():
        pass
    index.search(QUERY)
    after = index.searcher.views.of(METHODS["trad"])
    assert after.snapshot.version > before.snapshot.version
    assert after.snapshot.documents is before.snapshot.documents
    assert after.layout is before.layout


def test_a_search_of_an_unchanged_index_reads_only_the_version_and_its_hits(index: Index) -> None:
    index.search("otter fish", 3)
    statements: list[str] = []
    with index.catalog.reading() as connection:  # this thread's connection
        connection.set_trace_callback(statements.append)
    index.search("otter fish", 3)
    connection.set_trace_callback(None)
    tables = {words[words.index("FROM") + 1] for words in map(str.split, statements) if words[1:]}
    assert tables == {"meta", "documents", "queries", "word_segments"}
    assert statements.count("BEGIN") == 2  # none is open while an embedder works
    vectors = index.embed_queries("otter fish")
    statements.clear()
    connection.set_trace_callback(statements.append)
    index.search(vectors, 3)
    connection.set_trace_callback(None)
    assert statements.count("BEGIN") == 1
