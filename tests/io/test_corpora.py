"""Reading corpora: formats, fields, locations, errors, memory."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import os
import random
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pytest
from helpers.commands import jsonl
from helpers.files import corpus_error, error_message, put

from strop.errors import BadInput, MissingExtra
from strop.io.corpora import read_corpus, read_corpus_with_locations
from strop.io.datasets import (
    read_qrels,
    read_queries,
    read_query_lists,
    write_run,
)
from strop.types import Document

# --- JSON lines and BEIR folders


def test_jsonl_fields_and_metadata(tmp_path: Path) -> None:
    path = put(
        tmp_path / "c.jsonl",
        jsonl(
            {"_id": "a", "title": "T", "text": "x", "year": 1960, "metadata": {"url": "u"}},
            {"id": 7, "text": ""},
            {"_id": "b", "id": "other", "text": "y", "title": None, "metadata": "plain"},
            {"_id": 1.5, "text": "z", "title": 1984, "year": 1, "metadata": {"year": 2}},
        ),
    )
    assert list(read_corpus(path)) == [
        Document("a", "x", "T", {"url": "u", "year": 1960}),
        Document("7", ""),
        Document("b", "y", "", {"id": "other", "metadata": "plain"}),
        Document("1.5", "z", "1984", {"year": 1}),
    ]


def test_locations_are_physical_lines_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = put(tmp_path / "c.ndjson", '\ufeff{"id":"a","text":"x"}\r\n\n  \n{"id":"b","text":"y"}')
    located = list(read_corpus_with_locations(path))
    assert [location for _, location in located] == [f"{path} line 1", f"{path} line 4"]
    assert [document.id for document, _ in located] == ["a", "b"]


@pytest.mark.parametrize("name", ["c.jsonl", "c.ndjson", "c.json", "C.JSONL", "c.jsonl.gz"])
def test_jsonl_suffixes(tmp_path: Path, name: str) -> None:
    path = put(tmp_path / name, jsonl({"id": "a", "text": "x"}))
    assert list(read_corpus(str(path))) == [Document("a", "x")]


def test_field_names_are_mapped(tmp_path: Path) -> None:
    path = put(tmp_path / "c.jsonl", jsonl({"key": 1, "id": 2, "body": "x", "head": "h"}))
    named = read_corpus(path, id_field="key", text_field="body", title_field="head")
    assert list(named) == [Document("1", "x", "h", {"id": 2})]
    assert "'nope'" in error_message(read_corpus, path, text_field="body", title_field="nope")


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_beir_folder(tmp_path: Path, name: str) -> None:
    corpus = put(tmp_path / name, jsonl({"_id": "1", "title": "t", "text": "x", "metadata": {}}))
    put(tmp_path / "readme.md", "# not a document")
    [(document, location)] = read_corpus_with_locations(tmp_path)
    assert (document, location) == (Document("1", "x", "t"), f"{corpus} line 1")
    assert list(read_corpus(tmp_path, format="beir")) == [document]
    assert [d.id for d in read_corpus(tmp_path, format="text")] == ["readme.md"]


def test_empty_corpora_are_no_error(tmp_path: Path) -> None:
    assert list(read_corpus(put(tmp_path / "c.jsonl", "\n \n"))) == []
    assert list(read_corpus(put(tmp_path / "c.csv", "id,text\n"))) == []


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"id": "a", "text" "x"}', ["column 20", "Expecting ':'", '"text" "x"', "jq -c"]),
        ('  {"id": "a",', ["column 14", "not valid JSON"]),
        ("17", ["17 is not a JSON object"]),
        ('"words"', ["'words' is not a JSON object"]),
        ('[{"id": "a"}]', ["array", "jq -c '.[]'"]),
        ('{"key": "a", "text": "x"}', ["'_id' or 'id'", "--id-field", "'key', 'text'"]),
        ('{"id": "a", "body": "x"}', ["'text'", "--text-field", "'id', 'body'"]),
        ('{"id": "a", "text": null, "body": 1}', ["text is null", "--text-field", "'body'"]),
        ('{"id": "a", "text": ["x"]}', ["text is ['x'] (list)", "--text-field"]),
        ('{"id": "a", "text": 3}', ["text is 3 (int)"]),
        ('{"id": "a", "text": "x", "title": ["t"]}', ["title is ['t']", "--title-field"]),
        ('{"id": "", "text": "x"}', ["id '' is empty"]),
        ('{"id": " ", "text": "x"}', ["id ' ' is empty"]),
        ('{"id": null, "text": "x"}', ["id is null", "strings or numbers"]),
        ('{"id": true, "text": "x"}', ["id is True (bool)"]),
        ('{"id": NaN, "text": "x"}', ["id is nan"]),
        ('{"id": {"$oid": "5"}, "text": "x"}', ["id is {'$oid': '5'} (dict)"]),
        ('{"id": "a\\u0000b", "text": "x"}', ["'a\\x00b'", "NUL"]),
        ('{"id": "\\ud83d", "text": "x"}', ["'\\ud83d'", "surrogate"]),
        ('{"id": "a", "text": "half \\ud83d of it"}', ["half \\ud83d of", "surrogate"]),
        ('{"id": "a", "text": "x", "m": ["\\udc00"]}', ["'\\udc00'", "surrogate"]),
        ('{"id": "a", "text": "x", "\\udc00": 1}', ["'\\udc00'", "surrogate"]),
        ('{"id": "a", "text": "x", "n": ' + "9" * 5000 + "}", ["too large", "5000"]),
        ('{"id": "a", "text": "x", "n": ' + "[" * 200_000, ["JSON too large"]),
        ('{"id": "' + "a" * 5000 + '"}', ["no field 'text'"]),
        ("x" * 5000, ["column 1:", "xxx"]),
    ],
)
def test_bad_json_lines(tmp_path: Path, line: str, parts: list[str]) -> None:
    message = corpus_error(
        tmp_path / "c.jsonl", jsonl({"id": "ok", "text": ""}) + "\n" + line + "\n"
    )
    assert message.startswith(f"{tmp_path / 'c.jsonl'} line 3")
    for part in parts:
        assert part in message


@pytest.mark.parametrize("depth", [50, 600, 3000])
def test_deep_values_are_stored_or_refused(tmp_path: Path, depth: int) -> None:
    # How deep is too deep, and whether for reading or for storing, depends on Python's version.
    nested = '{"id": "a", "text": "x", "n": ' + "[" * depth + "]" * depth + "}"
    path = put(tmp_path / "c.jsonl", nested)
    if depth == 50:
        json.dumps(next(read_corpus(path)).metadata)
    with suppress(BadInput):
        next(read_corpus(path))


def test_documents_before_a_bad_line_are_yielded(tmp_path: Path) -> None:
    documents = read_corpus(put(tmp_path / "c.jsonl", jsonl({"id": "a", "text": ""}) + "oops"))
    assert next(documents).id == "a"
    with pytest.raises(BadInput, match="line 2"):
        next(documents)


def test_long_lists_of_fields_are_cut(tmp_path: Path) -> None:
    message = corpus_error(
        tmp_path / "c.jsonl", jsonl({f"f{n}": 1 for n in range(500)} | {"id": 1})
    )
    assert "'f19', …" in message
    assert "f20" not in message


def test_wrong_encoding(tmp_path: Path) -> None:
    latin = jsonl({"id": "a", "text": ""}).encode() + '{"id": "b", "text": "é"}'.encode("latin1")
    message = corpus_error(tmp_path / "c.jsonl", latin)
    for part in ("c.jsonl line 2, byte 22", "0xe9", "iconv -f latin1 -t utf-8"):
        assert part in message
    assert "iconv -f utf-16" in corpus_error(tmp_path / "u.jsonl", '{"id": 1}'.encode("utf-16"))


def test_json_metadata_is_always_json(tmp_path: Path) -> None:
    path = put(tmp_path / "c.jsonl", '{"id":"a","text":"","n":[NaN,1e999,-Infinity],"o":{"x":NaN}}')
    [document] = read_corpus(path)
    assert document.metadata == {"n": [None, None, None], "o": {"x": None}}
    json.dumps(document.metadata, allow_nan=False)


# --- gzip


def test_gzip_damage(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = (json.dumps({"id": n, "text": rng.randbytes(40).hex()}) for n in range(500))
    packed = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "c.jsonl.gz"
    for damaged in (
        packed[: len(packed) // 2],
        packed[:10] + b"\xff" * 10 + packed[20:],
        packed[:-8] + b"\0" * 8,
        b'{"id": "a", "text": "not gzip"}',
    ):
        path.write_bytes(damaged)
        message = error_message(read_corpus, path)
        assert f"{path}: gzip data damaged or cut short" in message
    # Garbage from the middle may be noticed as such before the checksum shows it.
    path.write_bytes(packed[:5000] + bytes([packed[5000] ^ 255]) + packed[5001:])
    assert str(path) in error_message(read_corpus, path)


def test_gzip_without_the_suffix_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(gzip.compress(jsonl({"id": "a", "text": "x"}).encode()))
    assert list(read_corpus(path)) == [Document("a", "x")]


# --- CSV and TSV


def test_csv(tmp_path: Path) -> None:
    text = '\ufeff,id, text,title,lang\r\n0,a,"one, ""two""\nthree",T,en\r\n\r\n1,b,plain,,\r\n'
    path = put(tmp_path / "c.csv", text)
    (first, location), (second, second_location) = read_corpus_with_locations(path)
    assert first == Document("a", 'one, "two"\nthree', "T", {"column_1": 0, "lang": "en"})
    assert second == Document("b", "plain", "", {"column_1": 1, "lang": ""})
    assert (location, second_location) == (f"{path} line 2", f"{path} line 5")


@pytest.mark.parametrize("name", ["c.tsv", "c.tsv.gz"])
def test_tsv_with_named_fields(tmp_path: Path, name: str) -> None:
    path = put(tmp_path / name, "pid\tbody\n1\ta, b\n2\tc\n")
    documents = list(read_corpus(path, id_field="pid", text_field="body"))
    assert documents == [Document("1", "a, b"), Document("2", "c")]


def test_a_large_csv_field_leaves_the_limit_unchanged(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    path = put(tmp_path / "c.csv", "id,text\n1," + "x" * 5_000_000 + "\n2,y\n")
    documents = read_corpus(path)
    assert len(next(documents).text) == 5_000_000
    assert csv.field_size_limit() == limit
    assert next(documents).text == "y"


def test_csv_limit_is_restored_by_concurrent_readers(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    path = put(tmp_path / "c.csv", "id,text\n" + ("1," + "x" * 200_000 + "\n") * 30)
    counts: list[int] = []
    read: Callable[[], None] = lambda: counts.append(len(list(read_corpus(path))))  # noqa: E731
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [30] * 4
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (
            "id,text\n1,a\n2,b,extra\n",
            ["line 3", "3 fields", "the header has 2", "'extra'", "quotes"],
        ),
        ('id,text\n1,"a\nb"\n2,b,extra\n', ["line 4", "3 fields"]),
        ("", ["line 1", "header is empty"]),
        (" , \n1,a\n", ["line 1", "header is empty"]),
        ("id,text,id\n1,a,2\n", ["line 1", "two columns are named 'id'"]),
        ("id,body\n1,a\n", ["line 2", "'text'", "--text-field", "'body'"]),
        ("id,text\n1\n", ["line 2", "no field 'text'"]),
        ("id,text\n,a\n", ["line 2", "id '' is empty"]),
        ('id,text\n1,a\n2,"never closed\n3,c\n', ["line 3", "unexpected end", "double"]),
        ('id,text\n1,"a" b\n', ["line 2", "not a valid row"]),
        (b"id,text\n1,\xe9\n", ["line 2, byte 3", "0xe9", "iconv"]),
    ],
)
def test_bad_csv(tmp_path: Path, content: str | bytes, parts: list[str]) -> None:
    message = corpus_error(tmp_path / "c.csv", content)
    assert "c.csv" in message
    for part in parts:
        assert part in message


# --- Parquet


def test_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5)
    table = pa.table(
        {
            "id": pa.array([10, 11], pa.int64()),
            "title": pa.array(["T", None]),
            "text": pa.array(["x", "y"], pa.large_string()),
            "day": pa.array([moment.date(), None]),
            "moment": pa.array([1, None], pa.timestamp("ns", tz="UTC")),
            "clock": pa.array([moment.time(), None]),
            "price": pa.array([Decimal("1.50"), None]),
            "score": pa.array([float("nan"), 0.5]),
            "raw": pa.array([b"\xff\x00", b"text"]),
            "nested": pa.array([{"a": [1.0, float("inf")], "d": moment.date()}, None]),
            "pairs": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
        }
    )
    path = tmp_path / "c.parquet"
    pq.write_table(table, path)
    (first, location), (second, _) = read_corpus_with_locations(path)
    assert (first.id, first.title, first.text, location) == ("10", "T", "x", f"{path} row 1")
    assert first.metadata == {
        "day": "2024-01-02",
        "moment": "1970-01-01 00:00:00.000000001Z",
        "clock": "03:04:05",
        "price": "1.50",
        "score": None,
        "raw": "\\xff\x00",
        "nested": {"a": [1.0, None], "d": "2024-01-02"},
        "pairs": [["k", 1]],
    }
    assert (second.id, second.title, second.metadata["raw"]) == ("11", "", "text")
    json.dumps([first.metadata, second.metadata], allow_nan=False)


def test_bad_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["x", None]}), path)
    assert "c.parquet row 2: text is null" in error_message(read_corpus, path)
    assert "no field '_id'" not in error_message(read_corpus, path)
    assert "'nope'" in error_message(read_corpus, path, id_field="nope")
    content = path.read_bytes()
    for damaged in (
        content[: len(content) // 2],
        content[:100] + b"\0" * 60 + content[160:],
        b"",
        b"PAR1",
    ):
        path.write_bytes(damaged)
        message = error_message(read_corpus, path)
        assert "c.parquet: cannot be read as Parquet" in message
        assert "copy it again" in message
    assert "gunzip" in corpus_error(tmp_path / "d.parquet.gz", content)
    not_utf8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    pq.write_table(pa.table({"id": ["a"], "text": not_utf8}), path)
    assert "can't decode byte 0xff" in error_message(read_corpus, path)
    duplicate = pa.table([pa.array(["a"]), pa.array(["b"])], names=["id", "id"])
    pq.write_table(duplicate, path)
    assert "two columns are named 'id'" in error_message(read_corpus, path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"Reading Parquet .*'strop\[parquet\]'"):
        list(read_corpus(put(tmp_path / "c.parquet", "")))


# --- folders of texts


def test_folder_of_texts(tmp_path: Path) -> None:
    put(tmp_path / "b.md", "intro\n```sh\n# a comment\n```\n\n## The *title* ##\n\n# Later\n")
    put(tmp_path / "a.txt", "\ufeff# not a title\r\nline")
    put(tmp_path / "c.TXT.gz", "packed")
    put(tmp_path / "sub" / "z.md", "#hashtag, no heading\n")
    put(tmp_path / "sub" / "deep" / "ä.txt", "")
    put(tmp_path / "image.png", b"\xff\xd8")
    put(tmp_path / ".hidden.txt", "no")
    put(tmp_path / ".git" / "x.txt", "no")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path, target_is_directory=True)
    located = list(read_corpus_with_locations(tmp_path))
    assert [(d.id, d.title) for d, _ in located] == [
        ("a.txt", ""),
        ("b.md", "The *title*"),
        ("c.TXT", ""),
        ("sub/z.md", ""),
        ("sub/deep/ä.txt", ""),
    ]
    first, location = located[0]
    assert (first.text, location) == ("# not a title\r\nline", str(tmp_path / "a.txt"))
    assert located[2].document.text == "packed"


def test_folder_given_relatively(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "x" / "a.txt", "")
    monkeypatch.chdir(tmp_path / "x")
    assert [d.id for d in read_corpus(".")] == ["a.txt"]
    assert [d.id for d in read_corpus("../x/")] == ["a.txt"]


def test_bad_folders(tmp_path: Path) -> None:
    put(tmp_path / "empty" / "image.png", b"")
    message = error_message(read_corpus, tmp_path / "empty")
    for part in (str(tmp_path / "empty"), "corpus.jsonl", ".txt", ".md"):
        assert part in message
    assert "corpus.jsonl" in error_message(read_corpus, tmp_path / "empty", format="beir")
    put(tmp_path / "latin" / "a.txt", b"one\ntw\xf6\n")
    assert "a.txt line 2, byte 3: 0xf6" in error_message(read_corpus, tmp_path / "latin")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.txt").symlink_to(tmp_path / "nowhere")
    assert "a.txt: cannot be read" in error_message(read_corpus, tmp_path / "broken")


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems refuse such names")
def test_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb"):
        pass
    assert "surrogate" in error_message(read_corpus, tmp_path)


# --- paths and formats


def test_missing_file(tmp_path: Path) -> None:
    for name in ("no.jsonl", "no.csv", "no.parquet", "nosuffix"):
        message = error_message(read_corpus, tmp_path / name)
        assert f"{name}: cannot be read: No such file" in message
        assert "check the path" in message
    with pytest.raises(BadInput):  # at the call, before anything is iterated
        read_corpus(tmp_path / "no.jsonl")


def test_folder_for_a_file_and_file_for_a_folder(tmp_path: Path) -> None:
    for format in ("jsonl", "csv", "tsv", "parquet"):
        message = error_message(read_corpus, tmp_path, format=format)
        assert "is a folder" in message
        assert f"--format {format}" in message
    path = put(tmp_path / "c.jsonl", "")
    for format in ("beir", "text"):
        assert "c.jsonl: is a file" in error_message(read_corpus, path, format=format)
    for read in (read_queries, read_qrels, read_query_lists):
        assert "Is a directory" in error_message(read, tmp_path)


def test_unknown_formats(tmp_path: Path) -> None:
    path = put(tmp_path / "c.dat", jsonl({"id": "a", "text": "x"}))
    message = error_message(read_corpus, path)
    formats = (".jsonl", ".csv", ".tsv", ".parquet", ".gz", "BEIR", "folders of files", "--format")
    for part in ("c.dat", *formats):
        assert part in message
    assert list(read_corpus(path, format="jsonl")) == [Document("a", "x")]
    message = error_message(read_corpus, path, format="xml")
    assert "'xml'" in message
    assert "beir, jsonl, csv, tsv, parquet, text" in message


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX users")
def test_permission_denied() -> None:
    with tempfile.TemporaryDirectory() as name:  # unlike tmp_path, not below a private folder
        check_permission_denied(Path(name))


def check_permission_denied(parent: Path) -> None:
    parent.chmod(0o755)
    path = put(parent / "c.jsonl", "")
    folder = parent / "folder"
    put(folder / "closed" / "a.txt", "")
    path.chmod(0)
    (folder / "closed").chmod(0)
    root = os.geteuid() == 0
    if root:  # root may read everything
        os.seteuid(65534)
    try:
        messages = [error_message(read_corpus, path), error_message(read_corpus, folder)]
        unwritable = error_message(write_run, folder / "closed" / "run.txt", {}, "tag")
    finally:
        if root:
            os.seteuid(0)
        (folder / "closed").chmod(0o755)
    for name, message in zip(("c.jsonl", "folder/closed"), messages, strict=True):
        assert f"{name}: cannot be read: Permission denied" in message
        assert "permissions" in message
    assert "cannot be written: Permission denied" in unwritable


# --- standard input


def test_standard_input(stdin: Callable[[bytes], io.BytesIO]) -> None:
    lines = jsonl({"id": "a", "text": "x"}, {"id": "b", "text": "ü"}).encode()
    for content in (lines, gzip.compress(lines)):
        buffer = stdin(content)
        located = list(read_corpus_with_locations("-"))
        assert located[1] == (Document("b", "ü"), "standard input line 2")
        assert not buffer.closed
    stdin(b"id,text\n1,x\n")
    assert list(read_corpus("-", format="csv")) == [Document("1", "x")]
    stdin(b"")
    assert list(read_corpus("-")) == []


def test_bad_standard_input(stdin: Callable[[bytes], io.BytesIO]) -> None:
    stdin(b'\n{"id": 1}')
    assert error_message(read_corpus, "-").startswith("standard input line 2: no field 'text'")
    stdin(gzip.compress(b"x" * 1000)[:-9])
    assert error_message(read_corpus, "-").startswith("standard input: gzip data damaged")
    for format in ("beir", "text", "parquet"):
        assert f"cannot be read as {format}" in error_message(read_corpus, "-", format=format)


# --- memory


@pytest.mark.parametrize("name", ["c.jsonl.gz", "c.csv", "folder"])
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, name: str) -> None:
    text = "all work and no play makes jack a dull boy " * 100
    path = tmp_path / name
    if name == "folder":
        for number in range(250):
            put(path / f"{number}.txt", text * 10)
    elif name == "c.csv":
        put(path, "id,text\n" + "".join(f"{number},{text}\n" for number in range(2_500)))
    else:
        with gzip.open(path, "wt", compresslevel=1) as file:
            for number in range(2_500):
                file.write(json.dumps({"_id": number, "text": text, "n": number}) + "\n")
    documents = read_corpus(path)
    next(documents)  # imports and buffers are not the corpus's
    tracemalloc.start()
    try:
        size = sum(len(document.text) for document in documents)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 10_000_000
    assert peak < 1_000_000


def test_memory_does_not_grow_with_a_parquet_corpus(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "c.parquet"
    ids = [str(number) for number in range(10_000)]
    table = pa.table({"id": ids, "text": [f"{id} " + "dull boy " * 200 for id in ids]})
    pq.write_table(table, path, row_group_size=1000, use_dictionary=False)
    del table
    before = pa.total_allocated_bytes()
    peak = size = 0
    for document in read_corpus(path):
        size += len(document.text)
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert size > 15_000_000
    assert peak < 5_000_000
