"""Syncing a folder: only files that changed are read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from helpers.commands import strop
from helpers.documents import docx, html, notebook, pdf
from helpers.fakes import Bag

from strop import Index
from strop.errors import BadInput
from strop.io.folders import File, read_file
from strop.types import Changes, Document


def write(path: Path, content: bytes | str, age: float = 100.0) -> None:
    """Write a file that was last modified some seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    modified = time.time() - age
    os.utime(path, (modified, modified))


def write_all_kinds(folder: Path, n: int) -> None:
    """Write files of all kinds, in subfolders."""
    contents = (
        lambda text: f"---\nlang: en\n---\n# {text}\n\nBody of {text}.\n",
        lambda text: f"{text}. Second sentence.",
        lambda text: html(text, "Heading", f"About {text}."),
        lambda text: notebook(text, f"x = '{text}'"),
        lambda text: docx(text, f"A letter about {text}."),
        lambda text: pdf(text, f"A paper about {text}."),
    )
    suffixes = ("md", "txt", "html", "ipynb", "docx", "pdf")
    for at in range(n):
        kind = at % len(contents)
        write(folder / f"part{at % 7}" / f"f{at}.{suffixes[kind]}", contents[kind](f"topic {at}"))


def test_sync_of_150_files_reads_only_the_changed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, bag = tmp_path / "files", Bag()
    write_all_kinds(folder, 150)
    with Index.create(tmp_path / "index", bag) as index:
        index.sharpen()
        index.add([{"id": "other", "text": "from elsewhere"}])
        assert index.sync(folder) == Changes(150, 0, 0, 0)
        assert len(index) == 151
        version, n_embedded = index.catalog.settings.number("version"), bag.count
        assert index.sync(folder) == Changes(0, 0, 150, 0)
        assert bag.count == n_embedded
        write(folder / "part0" / "f0.md", "# Another topic\n\nAnother body.\n", 50)
        (folder / "part1" / "f1.txt").unlink()
        write(folder / "new" / "file.txt", "Wholly new.", 50)
        read: list[str] = []

        def record_and_read(file: File, most: int) -> Document:
            read.append(file.id)
            return read_file(file, most)

        monkeypatch.setattr("strop.storage.workspace.read_file", record_and_read)
        assert index.sync(folder) == Changes(1, 1, 148, 0, removed=1)
        assert sorted(read) == ["new/file.txt", "part0/f0.md"]
        changed_rows = index.catalog.vectors.changes(version)
        assert changed_rows is not None
        assert sum(last - first + 1 for first, last in changed_rows.tolist()) <= 2 * 3
        assert bag.count - n_embedded < 10
        assert index.unknown(["part1/f1.txt", "new/file.txt", "other"]) == {"part1/f1.txt"}
        assert index.search("wholly new", k=1).ids.tolist() == [["new/file.txt"]]
        assert index.check() == []


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "files" / "a.txt", "aaaa", age=0)
    with Index.create(tmp_path / "index", Bag()) as index:
        index.sync(tmp_path / "files")
        status = (tmp_path / "files" / "a.txt").stat()
        (tmp_path / "files" / "a.txt").write_text("bbbb")  # of the same size, in the same tick
        os.utime(tmp_path / "files" / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
        assert index.sync(tmp_path / "files").changed == 1
        assert index.get("a.txt").text == "bbbb"


def test_sync_restores_documents_changed_in_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    for name in "abc":
        write(folder / f"{name}.txt", f"text {name}")
    with Index.create(tmp_path / "index", Bag()) as index:
        index.sync(folder)
        index.remove(["a.txt"])
        index.add([{"id": "b.txt", "text": "other text"}])
        assert index.sync(folder) == Changes(1, 1, 1, 0)
        assert index.get("b.txt").text == "text b"
        index.remove(["a.txt", "b.txt"])
        (folder / "a.txt").unlink()
        assert index.sync(folder, remove=False) == Changes(1, 0, 1, 0)


def test_two_folders_and_a_moved_folder(tmp_path: Path) -> None:
    write(tmp_path / "one" / "a.txt", "text a")
    write(tmp_path / "two" / "b.txt", "text b")
    with Index.create(tmp_path / "index", Bag()) as index:
        index.sync(tmp_path / "one")
        index.sync(tmp_path / "two")
        assert index.ids() == ["a.txt", "b.txt"]
        write(tmp_path / "two" / "a.txt", "another a")
        with pytest.raises(BadInput, match=r"document 'a\.txt' came from .*one, which has"):
            index.sync(tmp_path / "two")
        (tmp_path / "two" / "a.txt").unlink()
        (tmp_path / "one").rename(tmp_path / "moved")
        assert index.sync(tmp_path / "moved") == Changes(0, 0, 1, 0)
        (tmp_path / "moved" / "a.txt").rename(tmp_path / "moved" / "c.txt")
        assert index.sync(tmp_path / "moved") == Changes(1, 0, 0, 0, removed=1)
        assert index.ids() == ["b.txt", "c.txt"]


def test_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "files" / "a.txt", "text a")
    write(tmp_path / "files" / "b.txt", "text b")
    with Index.create(tmp_path / "index", Bag()) as index:
        index.sync(tmp_path / "files")
        (tmp_path / "files" / "a.txt").unlink()
        write(tmp_path / "files" / "c.txt", b"\xff")
        with pytest.raises(BadInput, match=r"c\.txt line 1"):
            index.sync(tmp_path / "files")
        assert index.ids() == ["a.txt", "b.txt"]
        write(tmp_path / "files" / "c.txt", "text c")
        assert index.sync(tmp_path / "files") == Changes(1, 0, 1, 0, removed=1)


def test_add_command_syncs_a_folder(tmp_path: Path) -> None:
    folder, index = tmp_path / "files", tmp_path / "index"
    for name in ("a.md", "b.txt", "drafts/c.txt"):
        write(folder / name, f"Text of {name}.")
    built = strop("build", folder, "-o", index, "--chunk", "50:10", "--exclude", "drafts", "--json")
    assert built.json["new"] == 2
    (folder / "a.md").unlink()
    assert strop("add", index, folder, "--exclude", "drafts", "--json").json["removed"] == 0
    result = strop("add", index, folder, "--exclude", "drafts", "--sync", "--wait", "5")
    assert "1 document (1 unchanged, 1 removed)" in result.stdout
    assert strop("add", index, index / "catalog.sqlite", "--format", "jsonl", "--sync").code == 2
    output = strop("show", index, "b.txt")
    assert "chunks (1)" in output.stdout
    assert "b.txt#0  0 to" in output.stdout
    assert "chunks" in strop("info", index).stdout
    hits = strop("search", index, "text", "--chunks", "--json").json["hits"]
    assert [hit["id"] for hit in hits] == ["b.txt#0"]
    assert hits[0]["chunk"]["document"] == "b.txt"
    result = strop("build", folder, "-o", index, "--chunk", "60:10")
    assert result.code == 2
    assert "keeps its chunks (50:10)" in result.stderr
