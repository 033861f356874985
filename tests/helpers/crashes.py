"""Writers and readers in processes of their own, some of which are killed while they work.

As a script this is a server: it forks a child for each job, which is much faster than starting a
Python for each. ``Forks`` is its client. The jobs write to an index or search it; together the
changes of ``make_changes`` use every operation that writes.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import strop.storage.compaction
import strop.storage.database
import strop.storage.pipeline
import strop.storage.snapshot
import strop.storage.vectors
from helpers.fakes import (
    DIM,
    Bag,
    Doubles,
    all_scores,
    create,
    reopen,
    sharpened_score,
    vector_of,
    vectors_of,
)
from helpers.words import assert_words_match_texts
from strop import Document, Index, ReferenceSettings
from strop.common.arrays import Ints
from strop.embed import CachedEmbedder, load
from strop.errors import BadIndex
from strop.generate import GenerationSettings, PromptSettings
from strop.types import Vectors

CRASHED = 77

# -- changes of an index ---------------------------------------------------------------------

Op = Callable[[Index], object]


def make_document(i: int, version: int = 1, seen: int = 0) -> Document:
    text = f"Alder{i} birch{i % 7} cedar{version} grow. Here elm{i % 3} fir{version} grow too."
    return Document(f"d{i}", text, f"Trees {i % 5}" if i % 4 else "", {"seen": seen})


def make_queries(i: int, version: int) -> list[str]:
    return [f"where grows alder{i}", f"which birch{version}", f"why cedar{i % 3}"][: 1 + i % 3]


class Writer:
    """A language model that writes two queries; ``log`` gets a line for each call."""

    def __init__(self, log: Path | None) -> None:
        self._log = log

    def __call__(self, prompt: str) -> str:
        words = re.findall(r"alder\d+|elm\d+", prompt.lower())
        if self._log is not None:
            handle = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(handle, f"{zlib.crc32(prompt.encode())}\n".encode())
            os.close(handle)
        queries = [f"what tells {word} from the others" for word in dict.fromkeys(words)]
        return "".join(f"<PLAN>It names one.</PLAN><QUERY>{query}</QUERY>" for query in queries[:2])


def generate(index: Index, size: int, log: Path | None) -> None:
    settings = GenerationSettings(PromptSettings(style="contrastive"))
    index.generation(Writer(log), settings, name="writer", limit=min(size, 12)).run()


REFERENCES = ReferenceSettings(neighbors=8, smallest=2, largest=3, n_init=2)


def make_changes(size: int, log: Path | None = None) -> list[tuple[str, Op]]:
    """Return changes by name; each can be repeated after it was interrupted anywhere.

    ``log`` gets a line for each call of the language model.
    """
    later = size + max(2, size // 4)
    styled = {f"d{i}": make_queries(i, 1) for i in range(size) if i % 3}
    restyled = {f"d{i}": make_queries(i, 2 if i % 4 else 1) for i in range(size) if i % 3 == 1}
    updated = [make_document(i, version=2 if i % 2 else 1, seen=1) for i in range(1, later)]
    removed = {f"d{i}" for i in range(0, later, 5)}
    return [
        ("add", lambda index: index.add(make_document(i) for i in range(size))),
        ("sharpen", lambda index: index.sharpen()),
        ("import", lambda index: index.import_queries(styled, "simple")),
        ("references", lambda index: index.select_references(REFERENCES)),
        ("generate", lambda index: generate(index, size, log)),
        ("update", lambda index: index.add(updated)),
        ("import again", lambda index: index.import_queries(restyled, "simple")),
        ("expand", lambda index: index.augment("simple")),
        ("remove", lambda index: index.remove(sorted(removed - index.unknown(removed)))),
        ("references again", lambda index: index.select_references(REFERENCES)),
        ("sharpen anew", lambda index: index.sharpen(n=1)),
        ("compact", lambda index: index.compact()),
        ("revert", lambda index: index.add(make_document(i) for i in range(1, size) if i % 5)),
        ("rename", lambda index: has(index, "simple") and index.rename_set("simple", "plain")),
        ("drop", lambda index: has(index, "plain") and index.drop_set("plain")),
    ]


def has(index: Index, name: str) -> bool:
    return name in index.query_sets()


def known_ids(size: int) -> list[str]:
    return [f"d{i}" for i in range(2 * size + 2)]


# -- the state of an index -------------------------------------------------------------------

QUERY = "where grows alder3"


@dataclass(frozen=True)
class State:
    documents: dict[str, Document]
    lists: dict[str, dict[str, list[str]]]

    @staticmethod
    def of(index: Index, size: int) -> State:
        ids = known_ids(size)
        unknown = index.unknown(ids)
        here = [id_ for id_ in ids if id_ not in unknown]
        assert len(index) == len(here)
        lists: dict[str, dict[str, list[str]]] = {}
        for id_ in here:
            for style, texts in index.queries_of(id_).items():
                if texts:
                    lists.setdefault(style, {})[id_] = texts
        return State({id_: index.get(id_) for id_ in here}, lists)


EMPTY_STATE = State({}, {})


def outdated(index: Index) -> set[tuple[str, str]]:
    """Return the lists (style, id) that were written for another text of their document."""
    with closing(sqlite3.connect(index.path / "catalog.sqlite")) as connection:
        rows = connection.execute(
            "SELECT name, id FROM spans s JOIN sets USING (set_id) JOIN documents d USING (number)"
            " WHERE s.digest <> d.digest AND name <> 'sentences'"
        )
        return set(rows)


def assert_consistent(index: Index, size: int, before: State, after: State) -> None:
    """Check an index whose change from one state to another was interrupted.

    All documents are as before the change, or all are as after it. Each list is the old or the
    new one. Scores are those of the vectors of exactly these texts.
    """
    assert index.check() == []
    assert_words_match_texts(index)
    now = State.of(index, size)
    assert now.documents in (before.documents, after.documents)
    for style, lists in now.lists.items():
        for id_, texts in lists.items():
            old, new = (state.lists.get(style, {}).get(id_, []) for state in (before, after))
            assert texts in (old, new), (style, id_)
    for id_ in now.documents:
        selected = index.references_of(id_)
        assert selected is None or {x.id for x in selected.references} <= now.documents.keys()
    q = vector_of(QUERY, "query")
    plain = all_scores(index, QUERY, method="trad")
    sharp = all_scores(index, QUERY, words=0, feedback=0)
    unused = outdated(index)
    assert plain.keys() == sharp.keys()
    assert before.documents.keys() & now.documents.keys() <= plain.keys() <= now.documents.keys()
    for id_ in plain:
        # Until a document's new vector is stored, searches use the old one.
        versions = [state.documents[id_] for state in (before, after) if id_ in state.documents]
        vectors = [vector_of(document.content, "document") for document in versions]
        queries = np.concatenate(
            [
                vectors_of(lists.get(id_, []), "document" if style == "sentences" else "query")
                for style, lists in now.lists.items()
                if (style, id_) not in unused
            ]
            or [np.empty((0, DIM))]
        )
        assert any(abs(float(q @ d) - plain[id_]) < 1e-5 for d in vectors), id_
        scores = [sharpened_score(q, d, queries, 1.0, 0.1) for d in vectors]
        assert any(abs(score - sharp[id_]) < 1e-5 for score in scores), id_


# -- crashes at a chosen step ----------------------------------------------------------------


class Disk:
    """What a power cut leaves of the vectors: synced bytes, under synced names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = {file.name: file.stat().st_ino for file in folder.iterdir()}
        self._bytes = {file.stat().st_ino: file.read_bytes() for file in folder.iterdir()}

    def synced(self, handle: int) -> None:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            self._names = {file.name: file.stat().st_ino for file in self._folder.iterdir()}
        else:
            self._bytes[status.st_ino] = os.pread(handle, status.st_size, 0)

    def lose_power(self, folder: Path) -> None:
        """Reduce ``folder``, a copy of the folder of vectors, to what a power cut leaves."""
        for file in folder.iterdir():
            os.unlink(file)
        for file in folder.parent.glob("cache/*"):  # never synced
            file.write_bytes(file.read_bytes()[:-40])
        for name, inode in self._names.items():
            rest = b"\x7f" * 13  # unsynced bytes may follow
            (folder / name).write_bytes(self._bytes.get(inode, b"") + rest)


class Steps:
    """Counts the steps of writing and ends the process at one of them."""

    def __init__(self, last: int) -> None:
        self.left = last

    def __call__(self, spoil: Callable[[Path], object] | None = None, file: Path = Path()) -> None:
        """Count a step; ``spoil(file)`` leaves the file as a crash during a write does."""
        self.left -= 1
        if self.left == 0:
            if spoil is not None:
                spoil(file)
            os._exit(CRASHED)

    def synced(self, handle: int) -> None:
        """A file was synced."""

    def watch(self) -> None:
        """Count as steps: transactions, commits, appends of rows (also incomplete ones), syncs."""
        append, sync, writing = (
            strop.storage.vectors.append_rows, os.fsync, strop.storage.database.Database.writing,
        )  # fmt: skip
        copy, unlink = strop.storage.compaction.copy_rows, Path.unlink

        def append_rows(path: Path, committed: int, rows: Vectors) -> None:
            def half(path: Path) -> None:
                with open(path, "ab") as file:
                    file.truncate(committed * strop.storage.vectors.row_bytes(rows))
                    file.write(rows.tobytes()[: rows.nbytes // 2 - 1])

            self()
            self(half, path)
            append(path, committed, rows)
            self()

        def fsync(handle: int) -> None:
            self()
            sync(handle)
            self.synced(handle)
            self()

        @contextmanager
        def transaction(
            database: strop.storage.database.Database, searchable: bool = True
        ) -> Iterator[sqlite3.Connection]:
            self()
            with writing(database, searchable) as connection:
                yield connection
                self()
            self()

        def copied(
            rows: Vectors, start: Ints, count: Ints, path: Path, dtype: str | None
        ) -> object:
            self()
            self(lambda path: path.write_bytes(b"half of it"), path)
            found = copy(rows, start, count, path, dtype)
            self()
            return found

        def unlinked(path: Path, missing_ok: bool = False) -> None:
            self()
            unlink(path, missing_ok)
            self()

        strop.storage.pipeline.append_rows = append_rows  # type: ignore[attr-defined]
        strop.storage.compaction.copy_rows = copied  # type: ignore[assignment]
        Path.unlink = unlinked  # type: ignore[method-assign,assignment]
        os.fsync = fsync  # type: ignore[assignment]
        strop.storage.database.Database.writing = transaction  # type: ignore[assignment]

    def watch_statements(self) -> None:
        """Count as steps: every SQL statement, and replacing a file."""
        connect, replace, steps = sqlite3.connect, Path.replace, self

        class Stepping(sqlite3.Connection):
            def execute(self, *args: Any) -> sqlite3.Cursor:
                steps()
                return super().execute(*args)

            def executescript(self, script: str) -> sqlite3.Cursor:
                for statement in script.split(";\n"):
                    self.execute(statement)
                return self.cursor()

            def executemany(self, *args: Any) -> sqlite3.Cursor:
                found = super().executemany(*args)
                steps()
                return found

            def commit(self) -> None:
                super().commit()
                steps()

        def connected(*args: Any, **options: Any) -> sqlite3.Connection:
            return connect(*args, factory=Stepping, **options)

        def replaced(path: Path, target: Path) -> Path:
            steps()
            found = replace(path, target)
            steps()
            return found

        sqlite3.connect = connected  # type: ignore[assignment]
        Path.replace = replaced  # type: ignore[assignment,method-assign]


class Recorder(Steps):
    """Copies a folder at each step, as a process that is killed there leaves it.

    A copy has what was written to files, but no memory and no locks. Steps that change no byte
    share a copy. The copies are ``copies/1``, ``copies/2`` … With ``power``, a copy has only the
    vectors that a power cut leaves.
    """

    def __init__(self, folder: Path, copies: Path, power: bool) -> None:
        super().__init__(0)
        self._folder, self._copies = folder, copies
        self._disk = Disk(folder / "vectors") if power else None
        self._known: list[dict[str, bytes]] = []

    def __call__(self, spoil: Callable[[Path], object] | None = None, file: Path = Path()) -> None:
        self.left -= 1
        copy = self._copies / f"{len(self._known) + 1}"
        if not self._folder.exists():
            return
        shutil.copytree(self._folder, copy)
        if spoil is not None:
            spoil(copy / file.relative_to(self._folder))
        if self._disk is not None:
            self._disk.lose_power(copy / "vectors")
        content = contents(copy)
        if content in self._known:
            shutil.rmtree(copy)
        else:
            self._known.append(content)

    def synced(self, handle: int) -> None:
        if self._disk is not None:
            self._disk.synced(handle)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of the files of an index, without locks and SQLite's temporary -shm."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"]
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files
        if not file.name.endswith("-shm")
    }


# -- jobs ------------------------------------------------------------------------------------


def record(path: str, size: int, op: int, power: bool, copies: str) -> None:
    """Make one change and record what a crash at each of its steps leaves."""
    strop.storage.pipeline.FEWEST = strop.storage.pipeline.MOST = 3
    index = reopen(Path(path))
    recorder = Recorder(Path(path), Path(copies), power)
    recorder.watch()
    name, change = make_changes(size)[op]
    change(index)
    index.close()
    assert -recorder.left >= (3 if name == "remove" else 12)  # the number of steps


def follow(path: str, folder: str, last: int, log: str, pause: float) -> None:
    """Sync a folder, slowly, and crash at step ``last``; never if it is 0 or there are fewer."""
    strop.storage.pipeline.FEWEST = strop.storage.pipeline.MOST = 3
    with reopen(Path(path), Bag(Path(log), pause)) as index:
        if last:
            Steps(last).watch()
        index.sync(folder)


def record_creating(path: str, copies: str) -> None:
    """Create an index and record what a crash at each step leaves."""
    Recorder(Path(path), Path(copies), power=False).watch_statements()
    create(Path(path)).close()


def apply_changes(path: str, size: int, log: str, done: str, pause: float, model_log: str) -> None:
    """Make the remaining changes of ``make_changes``, slowly; ``done`` gets a line for each."""
    strop.storage.pipeline.FEWEST = strop.storage.pipeline.MOST = 16
    bag, notes = Bag(Path(log), pause), Path(done)
    if (Path(path) / "catalog.sqlite").exists():
        index = reopen(Path(path), bag)
    else:
        index = create(Path(path), bag)
    with index:
        index.finish()
        changes = make_changes(size, Path(model_log))
        for op in range(len(parts(notes)), len(changes)):
            changes[op][1](index)
            with notes.open("a") as file:
                file.write(f"{op}\n")


def parts(notes: Path) -> list[str]:
    return notes.read_text().split() if notes.exists() else []


def wide(texts: list[str]) -> Doubles:
    """Vectors so long that they are the first to exceed the space on a disk."""
    return np.tile(np.stack([vector_of(text, "document") for text in texts]), 64)


def fill_disk(path: str, room: int) -> None:
    """Write until files reach their size limit; a full disk fails in the same way."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    with Index.open(path, embedder=wide, name="wide") as index:
        with pytest.raises(BadIndex, match=r"make room.*strop finish"):
            index.add(make_document(i) for i in range(100))
        assert index.check() == []
        index.search("alder", k=3)


def keep_writing(path: str, ready: str, gate: str) -> None:
    """Stay in the middle of writing until the file ``gate`` exists."""

    class Waiting(Bag):
        def __call__(self, texts: Any, kind: str) -> Doubles:
            Path(ready).touch()
            while not Path(gate).exists():
                time.sleep(0.005)
            return super().__call__(texts, kind)

    with reopen(Path(path), Waiting()) as index:
        index.add([make_document(i) for i in range(50, 53)])


def build_cached(path: str, cache: str, log: str, count: int, last: int) -> None:
    """Add documents in one batch with a cached embedder and crash in its ``last``-th call."""
    strop.storage.pipeline.FEWEST = strop.storage.pipeline.MOST = count
    calls = iter(range(1, 1000))

    class Crashing(Bag):
        def __call__(self, texts: Any, kind: str) -> Doubles:
            vectors = super().__call__(texts, kind)
            if next(calls) == last:
                os._exit(CRASHED)
            return vectors

    embedder = CachedEmbedder(load(Crashing(Path(log)), name="bag", dim=DIM), cache)
    exists = (Path(path) / "catalog.sqlite").exists()
    with Index.open(path, embedder) if exists else Index.create(path, embedder) as index:
        index.add(make_document(i) for i in range(count))


GROUP = 6


def sentences(word: str, generation: int, at: int) -> list[str]:
    return [f"{word}{generation} stands{at} there.", f"Things fall{at} now."]


def member(generation: int, at: int) -> Document:
    return Document(f"g{generation}-{at}", " ".join(sentences("oak", generation, at)))


def anchor(generation: int, at: int) -> Document:
    return Document(f"anchor{at}", " ".join(sentences("mast", generation, at)))


class Watcher:
    """Searches, and checks that each search sees the index between two transactions.

    The writer adds a group of documents at a time, gives all anchors another text, removes an
    old group, and then writes the generations that it has finished to ``notes``.
    """

    def __init__(self, index: Index, notes: Path) -> None:
        self._index = index
        self._notes = notes
        self._moved = 0
        self.searches = 0

    def look(self) -> None:
        method = ("trad", "sharp")[self.searches % 2]
        added, removed, moved = self._noted()  # before the search, which must see them
        scores = all_scores(self._index, vector_of(QUERY, "query"), method=method)
        _, removed_since, moved_since = self._noted()
        found = {id_ for id_ in scores if not id_.startswith("anchor")}
        groups = {int(id_[1:].split("-")[0]) for id_ in found}
        assert found == {member(generation, at).id for generation in groups for at in range(GROUP)}
        assert min(groups) > removed, "what was removed is still found"
        # All but the group after the last one noted, which may be being removed.
        assert groups >= set(range(removed_since + 2, added + 1)), "what was added is not found"
        for generation in groups:
            ids = [member(generation, at).id for at in range(GROUP)]
            assert self._made_of(scores, method, ids, "oak", generation, generation)
        ids = [anchor(0, at).id for at in range(GROUP)]
        possible = range(max(moved, self._moved), moved_since + 2)
        seen = [
            generation
            for generation in possible
            if self._made_of(scores, method, ids, "mast", generation, generation)
            or self._made_of(scores, method, ids, "mast", generation, generation - 1)
        ]
        assert seen, "the anchors are of no generation, or of several"
        self._moved = seen[0]
        self.searches += 1

    def _noted(self) -> list[int]:
        return [int(part) for part in self._notes.read_text().split()]

    def _made_of(
        self, scores: dict[str, float], method: str, ids: list[str], word: str, own: int, lists: int
    ) -> bool:
        """Whether all scores are those of vectors and sentences of one generation each."""
        candidates = [plain_scores(word, own)]
        if method == "sharp":
            candidates.append(sharp_scores(word, own, lists))
        actual = np.array([scores[id_] for id_ in ids])
        return any(bool((np.abs(actual - candidate) <= 1e-5).all()) for candidate in candidates)


def group_vectors(word: str, own: int) -> list[Doubles]:
    return [vector_of(" ".join(sentences(word, own, at)), "document") for at in range(GROUP)]


@cache
def plain_scores(word: str, own: int) -> Doubles:
    return np.array([vector_of(QUERY, "query") @ d for d in group_vectors(word, own)])


@cache
def sharp_scores(word: str, own: int, lists: int) -> Doubles:
    q = vector_of(QUERY, "query")
    queries = [vectors_of(sentences(word, lists, at), "document") for at in range(GROUP)]
    pairs = zip(group_vectors(word, own), queries, strict=True)
    return np.array([sharpened_score(q, d, list_, 1.0, 0.1) for d, list_ in pairs])


def write_generations(index: Index, notes: Path, least: int, enough: Callable[[], bool]) -> None:
    """Write generations while watchers search; generation 0 exists already."""
    for generation in range(1, 1000):
        if generation > least and enough():
            break
        index.add(member(generation, at) for at in range(GROUP))
        index.add(anchor(generation, at) for at in range(GROUP))
        if generation >= 3:
            index.remove([member(generation - 3, at).id for at in range(GROUP)])
        note(notes, generation, generation - 3, generation)
        if generation % 5 == 0:
            index.compact()


def note(notes: Path, *numbers: int) -> None:
    fresh = notes.with_suffix(".new")
    fresh.write_text(" ".join(map(str, numbers)))
    fresh.replace(notes)


def watch(path: str, notes: str, seen: str, end: str) -> None:
    """Search until the file ``end`` exists; write the number of searches to ``seen``."""
    with reopen(Path(path)) as index:
        watcher = Watcher(index, Path(notes))
        while not Path(end).exists():
            watcher.look()
            Path(seen).write_text(str(watcher.searches))


def ask(path: str, url: str, slots: int) -> None:
    """Generate simple queries for every document with a language model."""
    settings = GenerationSettings(PromptSettings(style="simple"), max_tokens=100)
    with reopen(Path(path)) as index:
        index.generation(
            "openai:scripted", settings, base_url=url, concurrency=slots, backoff=0.01
        ).run()


_JOBS = (
    ask,
    record,
    record_creating,
    follow,
    apply_changes,
    fill_disk,
    keep_writing,
    build_cached,
    watch,
)
JOBS: dict[str, Callable[..., None]] = {job.__name__: job for job in _JOBS}


# -- the server and its client ---------------------------------------------------------------


def _child(request: dict[str, Any]) -> NoReturn:
    code = 0
    try:
        JOBS[request["job"]](*request["args"])
    except BaseException:
        Path(request["errors"]).write_text(traceback.format_exc())
        code = 1
    os._exit(code)


def write_caches_often() -> None:
    """Write the cache of spans after nearly every change, as large indexes do."""
    strop.storage.snapshot.LOG_LEAST, strop.storage.snapshot.LOG_SHARE = 3, 0.0


def warm_up() -> None:
    """Load compiled code once, not in every child."""
    with tempfile.TemporaryDirectory() as folder, create(Path(folder) / "index") as index:
        for _, op in make_changes(5):
            op(index)
        index.search(QUERY)


def serve() -> None:
    write_caches_often()
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:  # once here, not in every child
            importlib.import_module(request["load"])
            answer = 0
        elif "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _child(request)
        print(answer, flush=True)


def logged(log: Path) -> list[int]:
    """Return the numbers in a log: texts per call of an embedder, or hashes of prompts."""
    return [int(line) for line in log.read_text().split()] if log.exists() else []


class Forks:
    """Starts jobs in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "errors.txt"
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OPENBLAS_NUM_THREADS": "1",
                "STROP_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )
        self._running: set[int] = set()

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def load(self, module: str) -> None:
        """Import a module that all later jobs need."""
        self._ask({"load": module})

    def start(self, job: Callable[..., None], *args: object) -> int:
        """Start a job; return its process id."""
        arguments = [str(arg) if isinstance(arg, Path) else arg for arg in args]
        request = {"job": job.__name__, "args": arguments, "errors": str(self._errors)}
        pid = self._ask(request)
        self._running.add(pid)
        return pid

    def wait(self, pid: int) -> int:
        """Wait for a job; return its exit code, negative for the signal that ended it."""
        code = self._ask({"wait": pid})
        self._running.discard(pid)
        if code == 1:
            message = self._errors.read_text()
            self._errors.unlink()
            raise AssertionError(f"in the child:\n{message}")
        return code

    @property
    def has_failed(self) -> bool:
        """Whether a job has ended with an error, which ``wait`` raises."""
        return self._errors.exists()

    def run(self, job: Callable[..., None], *args: object) -> int:
        return self.wait(self.start(job, *args))

    def kill(self, pid: int) -> int:
        """Kill a job as the system would; return the exit code, 0 if it had ended before."""
        os.kill(pid, signal.SIGKILL)  # not waited for yet, so the pid is still its own
        return self.wait(pid)

    def close(self) -> None:
        for pid in self._running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


if __name__ == "__main__":
    serve()
