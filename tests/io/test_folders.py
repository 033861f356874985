"""Folders of files: which are read, the text of each kind, what is refused."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.documents import docx, html, notebook, pdf

from strop.errors import BadInput, MissingExtra
from strop.io.corpora import read_corpus
from strop.types import Document


def read_single(path: Path, content: bytes) -> Document:
    path.write_bytes(content)
    (document,) = read_corpus(path.parent)
    return document


def test_every_kind_of_file(tmp_path: Path) -> None:
    files = {
        "page.html": html("A page", "Wings", "Lift & drag."),
        "book.ipynb": notebook("A notebook", "print(1)"),
        "letter.docx": docx("A letter", "Dear reader, <hello>."),
        "paper.pdf": pdf("A paper", "Wings lift planes."),
        "notes.rst": b"Title\n=====\n\nText.\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (0, 1_700_000_000))
    documents = {document.id: document for document in read_corpus(tmp_path)}
    assert documents.keys() == files.keys()
    assert {document.title for document in documents.values()} == {
        "A page", "A notebook", "A letter", "A paper", "",
    }  # fmt: skip
    assert documents["page.html"].text == "## Wings\n\nLift & drag.\n\n* one\n* two\n"
    assert documents["book.ipynb"].text == "# A notebook\n\nBody.\n\n```\nprint(1)\n```\n"
    assert documents["letter.docx"].text == "# A letter\n\nDear reader, <hello>.\n"
    assert documents["paper.pdf"].text == "Wings lift planes."
    for name, document in documents.items():
        assert document.metadata == {"path": name, "modified": "2023-11-14T22:13:20Z"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.pdf", b"%PDF-1.4 and nothing more"),
        ("a.docx", b"no zip"),
        ("a.docx", docx("a", "b")[:300]),
        ("a.ipynb", b"{}"),
        ("a.ipynb", b"{"),
    ],
)
def test_a_damaged_file_is_named_with_a_remedy(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(BadInput, match=rf"{name}: cannot be read as .*--exclude") as info:
        read_single(tmp_path / name, content)
    assert "\n" not in str(info.value)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(docx("a", "b"))
    with zipfile.ZipFile(tmp_path / "a.docx", "a", zipfile.ZIP_DEFLATED) as package:
        package.writestr("word/bomb.xml", b"0" * 5_000_000)
    with pytest.raises(BadInput, match=r"a\.docx: its unpacked content is longer than 400,000"):
        list(read_corpus(tmp_path, max_document_bytes=100_000))
    (tmp_path / "a.docx").unlink()
    (tmp_path / "a.html").write_bytes(html("t", "h", "x" * 2000))
    with pytest.raises(BadInput, match=r"a\.html: the file is longer than 1,000"):
        list(read_corpus(tmp_path, max_document_bytes=1000))


def test_files_that_need_a_missing_extra_are_skipped_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("strop.io.folders.can_convert", lambda kind: kind == ".ipynb")
    (tmp_path / "a.pdf").write_bytes(pdf("t", "x"))
    with pytest.raises(MissingExtra, match=r"strop\[files\]"):
        list(read_corpus(tmp_path))
    (tmp_path / "b.md").write_text("text")
    assert [document.id for document in read_corpus(tmp_path)] == ["b.md"]
    hint = f"{sys.executable} -m pip install 'strop[files]'"
    assert f"1 file not read: .pdf; to read such files: {hint}" in caplog.text


def test_patterns_select_files(tmp_path: Path) -> None:
    for name in ("a.md", "b.txt", "drafts/c.md", "docs/d.md", "docs/drafts/e.txt", "docs/f.md.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"" if not name.endswith("gz") else b"\x1f\x8b")

    def ids(**patterns: list[str]) -> list[str]:
        from strop.io.folders import files_in

        return [file.id for file in files_in(str(tmp_path), **patterns)]

    assert ids(include=["*.md"]) == ["a.md", "docs/d.md", "docs/f.md", "drafts/c.md"]
    assert ids(exclude=["drafts"]) == ["a.md", "b.txt", "docs/d.md", "docs/f.md"]
    assert ids(include=["docs/*"], exclude=["docs/*.txt"]) == ["docs/d.md", "docs/f.md"]
    assert ids(include=["*.txt", "drafts"]) == ["b.txt", "docs/drafts/e.txt", "drafts/c.md"]
    with pytest.raises(BadInput, match="nothing to read that --include and --exclude leave"):
        ids(include=["*.pdf"])
    (tmp_path / "c.jsonl").write_text('{"id": "a", "text": "b"}')
    with pytest.raises(BadInput, match="are for folders"):
        list(read_corpus(tmp_path / "c.jsonl", include=["*"]))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["2020", "1999"], [2020, 1999]),
        (["1.5", "-2"], [1.5, -2]),
        (["2020", ""], [2020, None]),
        (["", ""], ["", ""]),
        (["2020", "n/a"], ["2020", "n/a"]),
        (["007", "8"], ["007", "8"]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
        (["1e3", "2"], [1000.0, 2]),
        (["1_000", "2"], ["1_000", "2"]),
        (["٣", "2"], ["٣", "2"]),
        (["nan", "1"], ["nan", "1"]),
    ],
)
def test_columns_of_numbers(tmp_path: Path, column: list[str], expected: list[object]) -> None:
    rows = "".join(f"{at},text,{value}\n" for at, value in enumerate(column))
    (tmp_path / "a.csv").write_text("id,text,value\n" + rows, "utf-8")
    documents = list(read_corpus(tmp_path / "a.csv"))
    assert [document.metadata["value"] for document in documents] == expected
    assert [type(document.metadata["value"]) for document in documents] == [
        type(value) for value in expected
    ]
    assert [document.id for document in documents] == ["0", "1"]


def test_files_of_other_kinds_are_counted_and_read_if_included(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.md", "b.py", "c.py", "Makefile"):
        (tmp_path / name).write_text(f"text of {name}")
    assert [document.id for document in read_corpus(tmp_path)] == ["a.md"]
    assert "3 files of other kinds not read: .py (2), without extension (1)" in caplog.text
    assert "--include '*.py' --include '*.md' reads these two only" in caplog.text
    caplog.clear()
    documents = read_corpus(tmp_path, include=["*.py", "*.md"])
    assert [document.id for document in documents] == ["a.md", "b.py", "c.py"]
    assert caplog.text == ""
