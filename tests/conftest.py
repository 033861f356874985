"""What the tests of the command share: running it, and a small real corpus and index."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripted_server import ScriptedServer

from strop.cli import main
from strop.types import Document

# What makes rich colour its output or fold it at another width, whoever reads it.
_PLAIN = dict.fromkeys(("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"))


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it said."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Its standard output, all of which must be one JSON value."""
        assert self.code == 0, self.stderr
        return json.loads(self.stdout)


def strop(*args: str | Path, stdin: str | bytes | None = None) -> Ran:
    """Run the command in this process; what it does not handle is raised."""
    result = CliRunner(env=_PLAIN).invoke(
        main,
        [str(arg) for arg in args],
        prog_name="strop",
        input=stdin,
        catch_exceptions=False,
    )
    return Ran(result.exit_code, result.stdout, result.stderr)


def python_m_strop(*args: str | Path, cwd: Path | None = None, **more: Any) -> Ran:
    """Run the command in a process of its own."""
    env = {key: value for key, value in os.environ.items() if key not in _PLAIN}
    done = subprocess.run(
        [sys.executable, "-m", "strop", *map(str, args)],
        capture_output=True, text=True, encoding="utf-8", cwd=cwd, env=env, check=False, **more,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


def jsonl(*records: object) -> str:
    """Return records as JSON lines."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def beir(folder: Path, queries: dict[str, str], qrels: dict[str, dict[str, int]]) -> Path:
    """Write a dataset as a BEIR folder."""
    (folder / "qrels").mkdir(parents=True)
    lines = jsonl(*({"_id": id_, "text": text} for id_, text in queries.items()))
    (folder / "queries.jsonl").write_text(lines, "utf-8")
    rows = [f"{q}\t{d}\t{grade}\n" for q, grades in qrels.items() for d, grade in grades.items()]
    (folder / "qrels" / "test.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *rows]))
    return folder


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """Sixty docstrings of the standard library, many alike."""
    from strop.stdlib_docs import read_stdlib

    alike = ("os.path.", "shutil.", "str.")
    return [document for document in read_stdlib() if document.id.startswith(alike)][:60]


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
    from strop.demo import read_questions

    asked, here = read_questions(), {document.id for document in documents}
    qrels = {query: dict(found) for query, found in asked.qrels.items() if here >= found.keys()}
    queries = {query: asked.queries[query] for query in qrels}
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
    """An index of the documents with the sets ``sentences`` and ``simple``, to do with as you like.

    Made anew for each test, as a copy.
    """
    return Path(shutil.copytree(_built, tmp_path / "docs.index"))


@pytest.fixture(scope="session")
def collections() -> Path:
    """The folder of real collections; tests that need it skip where there is none."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("STROP_DATA") or root.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("real collections are not here; name their folder in STROP_DATA")
    return folder


# -- queries written by a service ---------------------------------------------------------------


@pytest.fixture(scope="session")
def _topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from asked import IDS, record

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
    from asked import KEY, write

    with keyed_server(monkeypatch, KEY) as running:
        running.text = write
        yield running


@contextmanager
def keyed_server(monkeypatch: pytest.MonkeyPatch, key: str) -> Iterator[ScriptedServer]:
    """A scripted server that wants a key, which is the only one in the environment."""
    # Nothing here is encrypted, and loading certificates takes longer than most of the tests.
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *given, **named: None)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STROP_API_KEY", key)
    with ScriptedServer() as running:
        running.key = key
        yield running
