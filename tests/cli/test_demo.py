from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

import pytest

from strop.cli.demo import read_questions, read_written
from strop.io.stdlib_docs import EVERYDAY, read_stdlib
from strop.types import Document

VERSIONS = (10, 11, 12, 13)

# Reads the corpus in an interpreter that has none of strop's dependencies.
READ = """
import hashlib, sys, types
from collections import namedtuple
package, values = types.ModuleType("strop"), types.ModuleType("strop.types")
package.__path__ = [sys.argv[1]]
values.Document = namedtuple("Document", "id text title metadata")
sys.modules["strop"], sys.modules["strop.types"] = package, values
from strop.io.stdlib_docs import read_stdlib
documents = read_stdlib()
print(hashlib.sha256(repr(documents).encode()).hexdigest())
print(*(document.id for document in documents), sep="\\n")
"""


def _interpreter(minor: int) -> str | None:
    """Find a Python 3.minor: this one, on the PATH, or in the folder of pyenv."""
    if sys.version_info[:2] == (3, minor):
        return sys.executable
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = [shutil.which(f"python3.{minor}"), *map(str, folder.glob(f"3.{minor}.*/bin/python3"))]
    for path in filter(None, paths):
        result = subprocess.run([path, "-V"], capture_output=True, text=True, check=False)
        if result.stdout.startswith(f"Python 3.{minor}."):
            return path
    return None


@cache
def _read(command: str, seed: str) -> tuple[str, frozenset[str]]:
    """Return a hash of the corpus and its ids, as another process reads it."""
    result = subprocess.run(
        [command, "-c", READ, str(resources.files("strop"))],
        env={**os.environ, "PYTHONHASHSEED": seed, "SOMETHING": seed},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    digest, *ids = result.stdout.split()
    return digest, frozenset(ids)


@pytest.fixture(scope="module")
def everyday() -> list[Document]:
    return read_stdlib(EVERYDAY)


@pytest.mark.parametrize("minor", VERSIONS)
def test_answers_exist_in_every_python_version(minor: int) -> None:
    """A version has all answers to a question in its corpus, or none of them."""
    command = _interpreter(minor)
    if command is None:
        pytest.skip(f"no Python 3.{minor} on this machine")
    _, ids = _read(command, "1")
    assert len(ids) > 5000
    answered = 0
    for query, answers in read_questions().qrels.items():
        assert answers.keys() <= ids or not answers.keys() & ids, query
        answered += answers.keys() <= ids
    assert answered >= 150


def test_the_corpus_has_functions_that_are_easily_confused() -> None:
    _, ids = _read(sys.executable, "1")
    for id_ in ("shutil.copy", "shutil.copy2", "shutil.copyfile", "str.split", "os.path.join"):
        assert id_ in ids
    assert {"pathlib.Path.mkdir", "random.choice", "bisect.bisect_left"} < ids


def test_every_process_reads_the_same_corpus() -> None:
    """Default values in the texts show no address, path or environment of a process."""
    assert _read(sys.executable, "1") == _read(sys.executable, "2")


def test_questions_are_well_formed() -> None:
    text = resources.files("strop.cli").joinpath("demo_questions.jsonl").read_text("utf-8")
    entries = [json.loads(line) for line in text.splitlines()]
    assert [entry["id"] for entry in entries] == [f"q{i:03}" for i in range(1, len(entries) + 1)]
    assert len({entry["question"].lower() for entry in entries}) == len(entries)
    for entry in entries:
        assert set(entry) == {"id", "question", "answers"}
        assert 3 <= len(entry["question"].split()) <= 18
        assert entry["answers"]


def test_written_queries_belong_to_texts_of_this_python_version(everyday: list[Document]) -> None:
    written = read_written(everyday)
    assert written.keys() == {"simple", "contrastive"}
    texts = {document.id: document for document in everyday}
    for lists in written.values():
        assert len(lists) > len(everyday) / 2
        assert lists.keys() <= texts.keys()
        assert all(query.strip() for queries in lists.values() for query in queries)
    changed = [replace(document, text=document.text + "!") for document in everyday]
    assert read_written(changed) == {"simple": {}, "contrastive": {}}


def test_no_written_query_equals_a_question(everyday: list[Document]) -> None:
    questions = {_normal(text) for text in read_questions(everyday).queries.values()}
    assert len(questions) >= 120
    for lists in read_written(everyday).values():
        assert not questions & {_normal(query) for queries in lists.values() for query in queries}


def _normal(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
