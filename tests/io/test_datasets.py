"""Queries, judgements, datasets and runs; round trips; real collections."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
from helpers.commands import jsonl
from helpers.files import error_message, put, read_run
from hypothesis import given
from hypothesis import strategies as st

from strop.errors import BadInput
from strop.io import corpora as data
from strop.io.corpora import read_corpus
from strop.io.datasets import (
    read_dataset,
    read_qrels,
    read_queries,
    read_query_lists,
    write_run,
)
from strop.io.files import atomic_write
from strop.types import Document

# --- queries


def test_queries(tmp_path: Path) -> None:
    expected = {"2": "two\tparts", "1": "ünï"}
    lines = jsonl({"_id": "2", "text": "two\tparts"}, {"id": 1, "query": "ünï", "metadata": {}})
    for name in ("q.jsonl", "q.jsonl.gz", "q"):
        assert list(read_queries(put(tmp_path / name, lines)).items()) == list(expected.items())
    table = "2\ttwo\tparts\r\n\n1\tünï\n"
    for name in ("q.tsv", "q.tsv.gz", "topics"):
        assert list(read_queries(put(tmp_path / name, table)).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("q.jsonl", "oops", ["line 1", "not valid JSON"]),
        ("q.jsonl", '{"id": 1}', ["line 1", "'text' or 'query'", "'id'"]),
        ("q.jsonl", '{"id": 1, "text": 5}', ["line 1", "query is 5 (int)"]),
        ("q.jsonl", '{"id": 1, "text": " "}', ["line 1", "query '1' has no text"]),
        ("q.jsonl", '{"id": 1, "text": "\\ud83d"}', ["line 1", "surrogate"]),
        ("q.tsv", "1\tx\n2 y\n", ["line 2", "no tab", "'2 y'"]),
        ("q.tsv", "1\tx\n2\t \n", ["line 2", "query '2' has no text"]),
        ("q.tsv", "1\tx\n\ty\n", ["line 2", "id '' is empty"]),
        ("q.tsv", "1\tx\n\n1\ty\n", ["q.tsv line 3", "'1'", "q.tsv line 1"]),
        ("q.tsv", b"1\t\xe9\n", ["line 1, byte 3", "0xe9"]),
    ],
)
def test_bad_queries(tmp_path: Path, name: str, content: str | bytes, parts: list[str]) -> None:
    message = error_message(read_queries, put(tmp_path / name, content))
    for part in [name, *parts]:
        assert part in message


def test_query_lists(tmp_path: Path, stdin: Callable[[bytes], io.BytesIO]) -> None:
    lines = jsonl({"id": 1, "queries": [" a ", "b"]}, {"_id": "2", "queries": [], "model": "m"})
    path = put(tmp_path / "g.jsonl.gz", lines)
    assert list(read_query_lists(path)) == [
        (f"{path} line 1", "1", ["a", "b"]),
        (f"{path} line 2", "2", []),
    ]
    stdin(lines.encode())
    assert next(read_query_lists("-")) == ("standard input line 1", "1", ["a", "b"])


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"id": "d"}', "no field 'queries'; add it. Fields there are: 'id'"),
        ('{"queries": []}', "no field '_id' or 'id'"),
        ('{"id": "d", "queries": "one"}', "queries is 'one', not a list"),
        ('{"id": "d", "queries": ["a", " "]}', "query 2 of 'd' is blank"),
        ('{"id": "d", "queries": ["a", 3]}', "3 (int), not a string"),
        ('{"id": "d", "queries": ["\\ud800"]}', "surrogate"),
        ("[]", "array"),
    ],
)
def test_bad_query_lists(tmp_path: Path, line: str, part: str) -> None:
    message = error_message(read_query_lists, put(tmp_path / "g.jsonl", "\n" + line))
    assert "g.jsonl line 2" in message
    assert part in message


# --- judgements


def test_qrels_formats(tmp_path: Path) -> None:
    expected = {"q 1": {"d1": 2, "d 2": 0}, "q2": {"d1": -1}}
    rows = "q 1\td1\t2\nq 1\td 2\t0\n\nq2\td1\t-1\r\n"
    header = "query-id\tcorpus-id\tscore\n"
    assert read_qrels(put(tmp_path / "a.tsv", header + rows)) == expected
    assert read_qrels(put(tmp_path / "b.tsv.gz", rows)) == expected
    trec = "q1 0 d1 2\nq1\t0\td1\t2\nq2  Q0  d1  -1\n"
    assert read_qrels(put(tmp_path / "c.qrels", trec)) == {"q1": {"d1": 2}, "q2": {"d1": -1}}
    assert read_qrels(put(tmp_path / "d.tsv", "")) == {}


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("query-id\tcorpus-id\tscore\nq\td\t1.5\n", ["line 2", "'1.5'", "whole numbers"]),
        ("q 0 d high\n", ["line 1", "'high'"]),
        ("q 0 d 1\nq 0 d\n", ["line 2", "3 columns", "'q 0 d'"]),
        ("q d\n", ["line 1", "2 columns", "'q d'"]),
        ("q1\n", ["line 1", "1 columns"]),
        ("q\t\t1\n", ["line 1", "id '' is empty"]),
        ("q 0 d 1\nq 0 d 2\n", ["line 2", "'q'", "'d'", "grade 2", "1 before"]),
        (b"q 0 d\xff 1\n", ["line 1, byte 6", "0xff"]),
    ],
)
def test_bad_qrels(tmp_path: Path, content: str | bytes, parts: list[str]) -> None:
    message = error_message(read_qrels, put(tmp_path / "test.tsv", content))
    for part in ["test.tsv", *parts]:
        assert part in message


# --- datasets


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    lines = jsonl(*({"_id": id, "text": f"text of {id}"} for id in ("c", "b", "unjudged", "a")))
    put(folder / "queries.jsonl", lines)
    put(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\na\t1\t1\nb\t2\t0\nc\t3\t1\n")
    put(folder / "qrels" / "dev.tsv.gz", "b\t2\t1\n")
    return folder


def test_dataset(beir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = read_dataset(beir)
    assert dataset.name == "tiny"
    assert list(dataset.queries) == list(dataset.qrels) == ["c", "b", "a"]
    assert dataset.queries["b"] == "text of b"
    assert dataset.qrels["b"] == {"2": 0}
    monkeypatch.chdir(beir)
    assert read_dataset(".", "dev").qrels == {"b": {"2": 1}}
    assert read_dataset(".").name == "tiny"


def test_dataset_leaves_out_judged_queries_without_text(
    beir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(beir / "qrels" / "test.tsv", "gone\t1\t1\na\t1\t1\n")
    with caplog.at_level(logging.WARNING):
        assert list(read_dataset(beir).qrels) == ["a"]
    assert "1 of 2 queries" in caplog.text
    assert "'gone'" in caplog.text


def test_bad_datasets(beir: Path) -> None:
    message = error_message(read_dataset, beir, "train")
    assert "qrels/train.tsv" in message
    assert "dev, test" in message
    put(beir / "qrels" / "test.tsv", "x\t1\t1\ny\t1\t1\n")
    message = error_message(read_dataset, beir)
    for part in ("test.tsv", "none of its 2", "'x'", "queries.jsonl"):
        assert part in message
    (beir / "queries.jsonl").unlink()
    assert "queries.jsonl: cannot be read: No such file" in error_message(read_dataset, beir)
    assert "nowhere" in error_message(read_dataset, beir / "nowhere")
    (beir / "bare").mkdir()
    assert "splits here: none" in error_message(read_dataset, beir / "bare")


# --- runs and writing


def test_run_text(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    write_run(path, {"q1": iter([("d2", np.float32(0.1)), ("d1", 0.1)]), "none": []}, "strop")
    assert (
        path.read_text() == f"q1 Q0 d2 1 {float(np.float32(0.1))!r} strop\nq1 Q0 d1 2 0.1 strop\n"
    )


@pytest.mark.parametrize("word", ["a b", "a\tb", "", " a", "a\n", "a\u00a0b", "a\x1cb", "\ufeffa"])
def test_words_that_a_trec_file_cannot_contain(tmp_path: Path, word: str) -> None:
    path = put(tmp_path / "out.txt", "before")
    for write in (
        lambda: write_run(path, {word: [("d", 1.0)]}, "tag"),
        lambda: write_run(path, {"q": [("d", 1.0), (word, 0.5)]}, "tag"),
        lambda: write_run(path, {"q": [("d", 1.0)]}, word),
    ):
        message = error_message(write)
        assert repr(word) in message
        assert "out.txt" in message
        assert "white space" in message
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_other_values_that_a_run_cannot_contain(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    assert "surrogate" in error_message(write_run, path, {"q": [("\ud800", 1.0)]}, "t")
    assert "nan" in error_message(write_run, path, {"q": [("d", float("nan"))]}, "t")
    assert "'d' twice" in error_message(write_run, path, {"q": [("d", 1.0), ("d", 0.5)]}, "t")
    assert os.listdir(tmp_path) == []


def write_half_and_stop(file: TextIO) -> None:
    file.write("half")
    raise KeyboardInterrupt


def test_atomic_write_replaces_all_or_nothing(tmp_path: Path) -> None:
    path = put(tmp_path / "out.txt", "before")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as file:
        write_half_and_stop(file)
    assert path.read_text() == "before"
    with atomic_write(path) as file:
        file.write("ä\n")
        assert path.read_text() == "before"
    assert path.read_bytes() == "ä\n".encode()
    assert os.listdir(tmp_path) == ["out.txt"]


def test_atomic_write_follows_links_and_umask(tmp_path: Path) -> None:
    target = put(tmp_path / "target.txt", "before")
    link = tmp_path / "link.txt"
    link.symlink_to(target)
    with atomic_write(link) as file:
        file.write("after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    ordinary = put(tmp_path / "ordinary", "")
    assert target.stat().st_mode == ordinary.stat().st_mode


def test_atomic_write_gzip_depends_on_the_text_alone(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        with atomic_write(tmp_path / name) as file:
            file.write("text")
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"text"
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / "c.gz") as file:
        file.write(str(1 // 0))
    assert sorted(os.listdir(tmp_path)) == ["a.gz", "b.gz"]


def test_atomic_write_to_wrong_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not a regular file" in error_message(write_run, tmp_path, {}, "t")
    message = error_message(write_run, tmp_path / "nowhere" / "q.txt", {}, "t")
    assert "nowhere/q.txt: cannot be written: No such file" in message

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = error_message(write_run, tmp_path / "q.txt", {"q": [("d", 1.0)]}, "t")
    assert "q.txt: cannot be written: No space left" in message
    assert os.listdir(tmp_path) == []


# --- round trips

texts = st.text(st.characters(exclude_categories=["Cs"]))
cells = texts.map(lambda text: text.replace("\0", ""))  # Python 3.10 reads no NUL in CSV
ids = texts.filter(lambda text: bool(text.strip()) and "\0" not in text)
words = ids.filter(lambda text: text.split() == [text] and "\ufeff" not in text)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
names = texts.filter(lambda name: name not in ("_id", "id", "text", "title", "metadata"))
documents = st.builds(Document, ids, texts, texts, st.dictionaries(names, values, max_size=3))


@given(
    run=st.dictionaries(
        words, st.dictionaries(words, st.floats(allow_nan=False), min_size=1), max_size=4
    ),
    tag=words,
    name=st.sampled_from(["run.txt", "run.txt.gz"]),
)
def test_runs_round_trip(
    tmp_path: Path, run: dict[str, dict[str, float]], tag: str, name: str
) -> None:
    write_run(tmp_path / name, {query: ranked.items() for query, ranked in run.items()}, tag)
    loaded = read_run(tmp_path / name)
    assert [(q, list(r.items())) for q, r in loaded.items()] == [
        (q, list(r.items())) for q, r in run.items()
    ]


@given(
    qrels=st.dictionaries(words, st.dictionaries(words, st.integers(), min_size=1), max_size=4),
    name=st.sampled_from(["q.qrels", "q.tsv.gz"]),
)
def test_qrels_round_trip(tmp_path: Path, qrels: dict[str, dict[str, int]], name: str) -> None:
    with atomic_write(tmp_path / name) as file:
        for query, grades in qrels.items():
            file.writelines(f"{query} 0 {id_} {grade}\n" for id_, grade in grades.items())
    loaded = read_qrels(tmp_path / name)
    assert loaded == qrels
    assert list(loaded) == list(qrels)


@given(corpus=st.lists(documents, max_size=4), ascii=st.booleans(), nested=st.booleans())
def test_jsonl_corpora_round_trip(
    tmp_path: Path, corpus: list[Document], ascii: bool, nested: bool
) -> None:
    path = tmp_path / "c.jsonl.gz"
    with atomic_write(path) as file:
        for document in corpus:
            record: dict[str, Any] = {
                "_id": document.id,
                "title": document.title,
                "text": document.text,
            }
            record |= {"metadata": document.metadata} if nested else document.metadata
            file.write(json.dumps(record, ensure_ascii=ascii) + "\n")
    assert list(read_corpus(path)) == corpus


@given(corpus=st.lists(st.tuples(words, cells, cells), max_size=4), tabs=st.booleans())
def test_csv_corpora_round_trip(
    tmp_path: Path, corpus: list[tuple[str, str, str]], tabs: bool
) -> None:
    path = tmp_path / ("c.tsv" if tabs else "c.csv")
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, "excel-tab" if tabs else "excel", quoting=csv.QUOTE_ALL)
        writer.writerows([("id", "title", "text"), *corpus])
    assert [(d.id, d.title, d.text) for d in read_corpus(path)] == corpus


@given(content=st.binary(max_size=60), name=st.sampled_from([*data.FORMATS[1:5], "gz"]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / ("c.jsonl.gz" if name == "gz" else f"c.{name}")
    path.write_bytes(content)
    readers: list[Callable[[Path], Any]] = [read_queries, read_qrels, read_query_lists]
    for read in [read_corpus, *readers]:
        with suppress(BadInput):
            list(read(path))


# --- real collections


@pytest.mark.parametrize(
    ("name", "documents", "ids", "empty", "queries", "query_ids", "judged"),
    [
        ("scifact", 5183, ("4983", "198309074"), 0, 300, ("1", "1395"), 339),
        ("nfcorpus", 3633, ("MED-10", "MED-999"), 0, 323, ("PLAIN-2", "PLAIN-3472"), 12334),
        ("cranfield", 1400, ("1", "1400"), 2, 225, ("1", "225"), 1837),
    ],
)
def test_collections(
    collections: Path,
    name: str,
    documents: int,
    ids: tuple[str, str],
    empty: int,
    queries: int,
    query_ids: tuple[str, str],
    judged: int,
) -> None:
    if not (collections / name).is_dir():
        pytest.skip(f"no {name} among the real collections")
    corpus = list(read_corpus(collections / name))
    assert len(corpus) == len({document.id for document in corpus}) == documents
    assert (corpus[0].id, corpus[-1].id) == ids
    assert sum(not document.content for document in corpus) == empty
    dataset = read_dataset(collections / name)
    assert dataset.name == name
    assert len(dataset.queries) == len(dataset.qrels) == queries
    assert (next(iter(dataset.queries)), list(dataset.queries)[-1]) == query_ids
    assert sum(map(len, dataset.qrels.values())) == judged


def test_generated_queries(collections: Path) -> None:
    path = collections / "cranfield" / "generated" / "contrastive.jsonl"
    if not path.exists():
        pytest.skip("no generated queries among the real collections")
    lists = list(read_query_lists(path))
    assert (len(lists), sum(len(queries) for *_, queries in lists)) == (1400, 12368)
    assert (lists[0][1], lists[-1][1]) == ("1", "1400")
    assert lists[0][2][0].startswith("how does a propeller slipstream change the spanwise lift")
