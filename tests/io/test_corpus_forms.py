"""Limits on lines and documents, delimiters of CSV files, front matter of Markdown files."""

from __future__ import annotations

import gzip
import logging
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.commands import strop

from strop.errors import BadInput
from strop.io.corpora import read_corpus
from strop.types import Document

# -- limits ------------------------------------------------------------------------------------


def test_a_gzip_bomb_of_one_line_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"id": "x", "text": "')
        for _ in range(100):
            file.write(b"a" * 1_000_000)
        file.write(b'"}\n')
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=r"line 1: the line is longer than 1,000,000 bytes"):
            list(read_corpus(path, max_document_bytes=1_000_000))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(BadInput, match=r"longer than 64,000,000 bytes; .*--max-document-bytes"):
        list(read_corpus(path))


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_line_may_be_as_long_as_the_limit(tmp_path: Path, end: str) -> None:
    line = '{"id": "x", "text": "é"}'
    path = tmp_path / "c.jsonl"
    path.write_bytes((line + end).encode())
    size = len(line.encode())
    assert list(read_corpus(path, max_document_bytes=size)) == [Document("x", "é")]
    with pytest.raises(BadInput, match=r"c\.jsonl line 1: the line is longer than"):
        list(read_corpus(path, max_document_bytes=size - 1))


def test_a_text_file_has_the_limit_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word\n" * 100)
    assert len(list(read_corpus(tmp_path, max_document_bytes=500))) == 1
    with pytest.raises(BadInput, match=r"a\.txt: the file is longer than 499 bytes"):
        list(read_corpus(tmp_path, max_document_bytes=499))


def test_a_row_of_several_lines_has_the_limit_too(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text('id,text\n1,short\n2,"' + "never closed\n" * 100)
    with pytest.raises(BadInput, match=r"c\.csv line 3: the row is longer than 200 bytes"):
        list(read_corpus(path, max_document_bytes=200))


def test_a_row_of_parquet_has_the_limit_too(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "c.parquet"
    table = pyarrow.table({"id": ["a", "b"], "text": ["short", "long " * 100]})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    with pytest.raises(BadInput, match=r"c\.parquet row 2: the row is longer than 200 bytes"):
        list(read_corpus(path, max_document_bytes=200))


def test_the_build_command_has_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "x", "text": "some words"}\n')
    result = strop("build", path, "-o", tmp_path / "x", "--max-document-bytes", "20")
    assert (result.code, (tmp_path / "x").exists()) == (1, False)
    assert f"{path} line 1: the line is longer than 20 bytes" in result.stderr
    assert "--max-document-bytes" in result.stderr
    assert strop("build", path, "-o", tmp_path / "x").code == 0


# -- delimiters --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "id;title;text\n1;T;a, b, c\n",
        "id;text;title\n1;a, b, c;T\n",
        '"id";"title, or none";"text";"title"\n1;x;"a, b, c";T\n',
        "id|title|text\n1|T|a, b, c\n",
        "id\ttitle\ttext\n1\tT\ta, b, c\n",
        'id,title,text\n1,T,"a, b, c"\n',
        'id,"title",text,"a;b;c;d;e"\n1,T,"a, b, c",x\n',
        "\ufeffid;title;text\r\n1;T;a, b, c\r\n",
    ],
)
def test_the_header_determines_the_delimiter(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(content, encoding="utf-8")
    (document,) = read_corpus(path)
    assert (document.id, document.title, document.text) == ("1", "T", "a, b, c")


def test_named_fields_determine_the_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("key,a;body\nx,1;hello\n")
    (document,) = read_corpus(path, id_field="key,a", text_field="body")
    assert (document.id, document.text) == ("x,1", "hello")


def test_the_delimiter_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("id:text\n1:a;b\n")
    (document,) = read_corpus(path, delimiter=":")
    assert document.text == "a;b"
    for options in (["--delimiter", ":"], ["--delimiter", "tab"], ["--delimiter", "::"]):
        result = strop("build", path, "-o", tmp_path / options[1].replace(":", "c"), *options)
        assert result.code == (0 if options[1] == ":" else 1)
    with pytest.raises(BadInput, match="for csv and tsv"):
        read_corpus(tmp_path, delimiter=";")


# -- front matter ------------------------------------------------------------------------------

NOTE = """---
title: "Sharp: a note"
tags: [search, vectors]
authors:
  - Ada
  - Alan
date: 2024-05-01
draft: false
weight: 3
---
# Another heading

Body.
"""


def _note(tmp_path: Path, text: str) -> Document:
    (tmp_path / "note.md").write_bytes(text.encode("utf-8"))
    (document,) = read_corpus(tmp_path)
    return _without_file(document)


def _without_file(document: Document) -> Document:
    """Return the document without the metadata of its file: path and modification time."""
    metadata = {**document.metadata}
    assert metadata.pop("path") == document.id
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata.pop("modified"))
    return replace(document, metadata=metadata)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_front_matter_is_metadata_not_text(tmp_path: Path, end: str) -> None:
    document = _note(tmp_path, NOTE.replace("\n", end))
    assert document.title == "Sharp: a note"
    assert document.text == "# Another heading\n\nBody.\n".replace("\n", end)
    assert document.metadata == {
        "tags": ["search", "vectors"],
        "authors": ["Ada", "Alan"],
        "date": "2024-05-01",
        "draft": False,
        "weight": 3,
    }


def test_a_heading_is_the_title_if_none_is_given(tmp_path: Path) -> None:
    document = _note(tmp_path, "---\nlang: en\n...\nText first.\n## A heading\n")
    assert (document.title, document.metadata) == ("A heading", {"lang": "en"})


@pytest.mark.parametrize(
    "text",
    [
        "---\nA rule, then text.\n---\nMore.\n",
        "---\ntitle: never closed\n",
        "Text.\n---\ntitle: too late\n---\n",
        "---\n- a\n- list\n---\n",
        "---\n---\nText.\n",
    ],
)
def test_blocks_that_are_not_front_matter_are_text(tmp_path: Path, text: str) -> None:
    document = _note(tmp_path, text)
    assert (document.text, document.metadata) == (text, {})


@pytest.mark.parametrize(
    ("block", "warning"),
    [
        ("title: Foo: bar\n", "line 2"),
        ("x: 1\ntitle: {{name}}\n", "line 3"),
        ("date: 2024-13-45\n", "line 2"),
        ("a: &a [x]\nb: *a\n", "aliases are not supported"),
        ("a: !!python/object/apply:os.system [true]\n", "line 2"),
        ("a: " + "[" * 500 + "]" * 500 + "\n", "line 2"),
    ],
)
def test_bad_front_matter_is_text_with_a_warning(
    tmp_path: Path, block: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"---\n{block}---\nBody.\n"
    with caplog.at_level(logging.WARNING):
        document = _note(tmp_path, text)
    assert (document.text, document.metadata) == (text, {})
    assert "note.md" in caplog.text
    assert warning in caplog.text


def test_text_files_have_no_front_matter(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(NOTE)
    document = _without_file(*read_corpus(tmp_path))
    assert (document.text, document.title, document.metadata) == (NOTE, "", {})
