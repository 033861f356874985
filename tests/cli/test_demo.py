from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from strop.cli.demo import admits, read_questions, read_written
from strop.io.stdlib_docs import EVERYDAY, read_stdlib


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    return {document.id: document.text for document in read_stdlib()}


def test_the_corpus_is_large_and_holds_what_is_easily_confused(documents: dict[str, str]) -> None:
    assert len(documents) > 5000
    for id_ in ("shutil.copy", "shutil.copy2", "shutil.copyfile", "str.split", "os.path.join"):
        assert id_ in documents
    assert "pathlib.Path.mkdir" in documents
    assert "random.choice" in documents
    assert "bisect.bisect_left" in documents


def test_every_process_reads_the_same() -> None:
    """No default value may print an address, a path or the environment of one process."""
    code = (
        "import hashlib; from strop.io.stdlib_docs import read_stdlib;"
        "print(hashlib.sha256(repr(read_stdlib()).encode()).hexdigest())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "SOMETHING": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_questions_have_answers_in_this_version(documents: dict[str, str]) -> None:
    questions = read_questions()
    assert len(questions.queries) >= 150
    missing = {
        (query, answer)
        for query, answers in questions.qrels.items()
        for answer in answers
        if answer not in documents and importlib.util.find_spec(answer.split(".")[0])
    }
    assert not missing


def test_excluded_questions_are_excluded_for_a_reason(documents: dict[str, str]) -> None:
    asked = read_questions().queries
    text = resources.files("strop.cli").joinpath("demo_questions.jsonl").read_text("utf-8")
    for entry in map(json.loads, text.splitlines()):
        if entry["id"] not in asked:
            assert not set(entry["answers"]) & set(documents), entry["id"]


def test_questions_are_well_formed() -> None:
    text = resources.files("strop.cli").joinpath("demo_questions.jsonl").read_text("utf-8")
    entries = [json.loads(line) for line in text.splitlines()]
    assert [entry["id"] for entry in entries] == [f"q{i:03}" for i in range(1, len(entries) + 1)]
    assert len({entry["question"].lower() for entry in entries}) == len(entries)
    for entry in entries:
        assert set(entry) <= {"id", "question", "answers", "versions"}
        assert 3 <= len(entry["question"].split()) <= 18
        assert entry["answers"]


def test_written_queries_are_for_the_texts_of_this_version() -> None:
    documents = read_stdlib(EVERYDAY)
    written = read_written(documents)
    assert written.keys() == {"simple", "contrastive"}
    texts = {document.id: document for document in documents}
    for lists in written.values():
        assert len(lists) > len(documents) / 2
        assert lists.keys() <= texts.keys()
        assert all(query.strip() for queries in lists.values() for query in queries)
    changed = [replace(document, text=document.text + "!") for document in documents]
    assert read_written(changed) == {"simple": {}, "contrastive": {}}


def test_no_written_query_is_a_question() -> None:
    documents = read_stdlib(EVERYDAY)
    questions = {_normal(text) for text in read_questions(documents).queries.values()}
    assert len(questions) >= 120
    for lists in read_written(documents).values():
        assert not questions & {_normal(query) for queries in lists.values() for query in queries}


def _normal(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


# Reads the ids of the corpus in an interpreter that has none of strop's dependencies.
IDS = """
import sys, types
from collections import namedtuple
package, values = types.ModuleType("strop"), types.ModuleType("strop.types")
package.__path__ = [sys.argv[1]]
values.Document = namedtuple("Document", "id text title metadata")
sys.modules["strop"], sys.modules["strop.types"] = package, values
from strop.io.stdlib_docs import read_stdlib
print(*(document.id for document in read_stdlib()), sep="\\n")
"""


def _interpreter(minor: int) -> str | None:
    """Find a Python 3.minor: on the path, or among those that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python3.{minor}"), *map(str, kept.glob(f"3.{minor}.*/bin/python3"))]
    for command in filter(None, found):
        out = subprocess.run([command, "-V"], capture_output=True, text=True, check=False)
        if out.stdout.startswith(f"Python 3.{minor}."):
            return command
    return None


@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_questions_are_true_of_every_version(minor: int) -> None:
    command = _interpreter(minor)
    if command is None:
        pytest.skip(f"no Python 3.{minor} on this machine")
    source = str(resources.files("strop"))
    out = subprocess.run(
        [command, "-c", IDS, source], capture_output=True, text=True, check=True, timeout=300
    )
    ids = set(out.stdout.split())
    asked = read_questions(version=(3, minor))
    wanted = {answer for answers in asked.qrels.values() for answer in answers}
    assert not wanted - ids
    text = resources.files("strop.cli").joinpath("demo_questions.jsonl").read_text("utf-8")
    for entry in map(json.loads, text.splitlines()):
        assert entry["id"] in asked.queries or not set(entry["answers"]) & ids, entry["id"]


def test_every_supported_version_has_enough_questions() -> None:
    for minor in (10, 11, 12, 13):
        assert len(read_questions(version=(3, minor)).queries) >= 150


@pytest.mark.parametrize(
    ("marker", "version", "fits"),
    [("", (3, 10), True), (">=3.11", (3, 10), False), (">=3.11", (3, 11), True),
     ("<3.13", (3, 12), True), ("<3.13", (3, 13), False), (">=3.9", (3, 10), True)],
)  # fmt: skip
def test_version_markers(marker: str, version: tuple[int, int], fits: bool) -> None:
    assert admits(marker, version) is fits
