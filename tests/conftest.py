"""Shared fixtures: a small real corpus and index, a scripted service, real collections."""

from __future__ import annotations

import gc
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from helpers.commands import beir, jsonl, keyed_server, strop
from helpers.scripted_server import ScriptedServer
from hypothesis import HealthCheck, settings
from numba.core.dispatcher import Dispatcher

from strop.types import Document

# On a busy machine drawing examples can take long, which is no failure. Fixtures that examples
# share are read-only, or folders for new files.
settings.register_profile(
    "strop",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("strop")

# Frameworks read these when imported: no telemetry, no results reported as warnings.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = os.environ["LANGSMITH_TRACING"] = "false"
os.environ["PT_TEST_TRANSFORMER_REPORTS"] = "0"


# Commits wait for the disk, so temporary files are in memory if there is room.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Off until all tests are collected: imports allocate much and free little.
gc.disable()

# Tests of published copies that run on every engine by default; the others run on PostgreSQL.
ON_EVERY_ENGINE = {
    "test_a_copy_ranks_like_its_folder",
    "test_split_documents",
    "test_only_changes_are_published",
}


def pytest_collection_finish() -> None:
    """Exclude the objects of imported frameworks from garbage collection: they stay."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Let the garbage collector free everything at the end."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most tests of the contract suite on other engines to the slow run."""
    for item in items:
        call = getattr(item, "callspec", None)
        engine = call.params.get("url") if call and item.path.parent.name == "engines" else None
        if engine in (None, "postgresql"):
            continue
        if engine == "qdrant" or getattr(item, "originalname", "") not in ON_EVERY_ENGINE:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def own_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A configuration folder for the tests, so that the user's consents do not change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session", autouse=True)
def compiling_in_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile each kernel in one process only; the others read it from numba's cache."""
    compile_ = Dispatcher.compile
    folder = request.config.rootpath / ".pytest_cache"  # shared by all runs, like numba's cache
    folder.mkdir(exist_ok=True)
    turn = FileLock(folder / "compiling.lock")

    def in_turn(self: Any, signature: Any) -> Any:
        with turn:
            return compile_(self, signature)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dispatcher, "compile", in_turn)
        yield


@pytest.fixture
def anyio_backend() -> str:
    """Tests with the mark ``anyio`` run on asyncio."""
    return "asyncio"


@pytest.fixture
def without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off words and feedback by default, for tests of vectors alone."""
    monkeypatch.setattr("strop.methods.FEEDBACK", 0.0)
    monkeypatch.setattr("strop.methods.WORDS", {})
    monkeypatch.setattr("strop.methods.WORDS_OTHERS", 0.0)
    monkeypatch.setattr("strop.methods.WORDS_UNKNOWN_LANGUAGE", 0.0)


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """Sixty docstrings of the standard library, many of them similar."""
    from strop.io.stdlib_docs import EVERYDAY, read_stdlib

    alike = ("os.path.", "shutil.", "str.")
    return [document for document in read_stdlib(EVERYDAY) if document.id.startswith(alike)][:60]


@pytest.fixture(scope="session")
def corpus(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents as JSON lines."""
    path = tmp_path_factory.mktemp("corpus") / "docs.jsonl"
    path.write_text(
        jsonl(*({"_id": d.id, "title": d.title, "text": d.text} for d in documents)), "utf-8"
    )
    return path


@pytest.fixture(scope="session")
def dataset(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's questions that these documents answer."""
    from strop.cli.demo import read_questions

    questions, ids = read_questions(), {document.id for document in documents}
    qrels = {
        query: dict(grades) for query, grades in questions.qrels.items() if ids >= grades.keys()
    }
    queries = {query: questions.queries[query] for query in qrels}
    return beir(tmp_path_factory.mktemp("dataset") / "questions", queries, qrels)


@pytest.fixture(scope="session")
def _built(
    documents: list[Document], corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("built") / "docs.index"
    assert strop("build", corpus, "-o", path).code == 0
    lists = jsonl(
        *(
            {"id": d.id, "queries": [f"what is {d.id} for", d.text.splitlines()[-1], "how"]}
            for d in documents
        )
    )
    assert strop("queries", path, "--file", "-", "--style", "simple", stdin=lists).code == 0
    return path


@pytest.fixture
def index(_built: Path, tmp_path: Path) -> Path:
    """An index with the sets ``sentences`` and ``simple``, a copy for each test."""
    return Path(shutil.copytree(_built, tmp_path / "docs.index"))


@pytest.fixture(scope="session")
def collections() -> Path:
    """The folder of real collections; tests that need it are skipped without it."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("STROP_DATA") or root.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("real collections are not here; name their folder in STROP_DATA")
    return folder


# -- queries written by a service ---------------------------------------------------------------


@pytest.fixture(scope="session")
def _topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from helpers.generation import IDS, record

    folder = tmp_path_factory.mktemp("topics")
    (folder / "docs.jsonl").write_text(jsonl(*(record(i) for i in range(len(IDS)))), "utf-8")
    path = folder / "topics.index"
    assert strop("build", folder / "docs.jsonl", "-o", path, "--queries", "none").code == 0
    return path


@pytest.fixture
def topics(_topics: Path, tmp_path: Path) -> Path:
    """An index of twelve short documents without any query set, a copy for each test."""
    return Path(shutil.copytree(_topics, tmp_path / "topics.index"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A service that writes queries for these documents; its key is in the environment."""
    from helpers.generation import KEY, write

    with keyed_server(monkeypatch, KEY) as running:
        running.text = write
        yield running


# -- files --------------------------------------------------------------------------------------


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], io.BytesIO]:
    """Feed bytes to standard input."""

    def feed(content: bytes) -> io.BytesIO:
        buffer = io.BytesIO(content)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(buffer))
        return buffer

    return feed
