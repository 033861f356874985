"""User errors: one line that names the problem and the remedy, and nothing is damaged."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import CommandResult, beir, jsonl, strop

from strop.storage.database import Database
from strop.types import Document, Vectors

GOOD = [{"id": f"n{i}", "text": f"Note {i} about the weather at sea."} for i in range(5)]
QUERIES = ("copy a file", "join the parts of a path")


def failed(result: CommandResult, *parts: str | Path) -> str:
    """Return the one line of a user error, which must contain all ``parts``."""
    assert (result.code, result.stdout) == (1, ""), result
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    for part in parts:
        assert str(part) in result.stderr
    return result.stderr


def content(index: Path) -> dict[str, Any]:
    """Return the counts of an index and its answers to the queries."""
    info = strop("info", index, "--json").json
    counts = {key: info[key] for key in info if key not in ("path", "sizes")}
    answers = [strop("search", index, query, "-k", "100", "--json").json for query in QUERIES]
    return {**counts, "answers": answers}


@contextmanager
def assert_unchanged(index: Path) -> Iterator[None]:
    """Check that an index has the same content afterwards."""
    before = content(index)
    yield
    assert content(index) == before


@pytest.fixture(scope="module")
def intact(_built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An index that stays intact: commands fail on it, and change nothing."""
    path = Path(shutil.copytree(_built, tmp_path_factory.mktemp("intact") / "docs.index"))
    with assert_unchanged(path):
        yield path


def lines_with(at: int, line: str | bytes) -> bytes:
    """Return the good records as lines, one of them (from 1) replaced."""
    lines = jsonl(*GOOD).encode().splitlines()
    lines[at - 1] = line.encode() if isinstance(line, str) else line
    return b"\n".join(lines) + b"\n"


# -- corpora -----------------------------------------------------------------------------------

# A file's name, its content, and what the message must contain besides the path. Other errors of
# readers are in test_corpora.py.
CORPORA: dict[str, tuple[str, bytes, list[str]]] = {
    "empty": ("c.jsonl", b"", ["contains no documents"]),
    "only a header": ("c.csv", b"id,text\n", ["contains no documents"]),
    "malformed JSON": (
        "c.jsonl",
        lines_with(4, '{"id": "n3", "text": "half'),
        ["c.jsonl line 4", "not valid JSON", "column 22", "jq -c ."],
    ),
    "duplicate ids": (
        "c.jsonl",
        lines_with(5, '{"id": "n1", "text": "again"}'),
        ["c.jsonl line 5", "'n1'", "c.jsonl line 2", "--id-field"],
    ),
    "Latin-1": (
        "c.jsonl",
        lines_with(2, '{"id": "n1", "text": "caf\xe9"}'.encode("latin-1")),
        ["c.jsonl line 2, byte 26", "0xe9 is not UTF-8", "iconv -f latin1 -t utf-8"],
    ),
    "binary of no known name": ("photo.png", b"\x89PNG\r\n\x1a\n", ["--format", ".jsonl"]),
}


@pytest.mark.parametrize("case", CORPORA)
def test_a_bad_corpus_adds_and_builds_nothing(case: str, intact: Path, tmp_path: Path) -> None:
    name, data, parts = CORPORA[case]
    path = tmp_path / name
    path.write_bytes(data)
    parts = [str(path), *parts]
    failed(strop("add", intact, path), *parts)
    failed(strop("build", path, "-o", intact), *parts)
    new = tmp_path / "new" / "x.index"
    failed(strop("build", path, "-o", new), *parts)
    assert not new.exists()
    new.mkdir()  # a folder that was there before stays
    failed(strop("build", path, "-o", new, "--json"), *parts)
    assert list(new.iterdir()) == []


def test_a_missing_corpus(intact: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nothing.jsonl"
    failed(strop("add", intact, missing), missing, "No such file", "check the path")
    failed(strop("build", missing, "-o", tmp_path / "new"), missing, "No such file")
    assert not (tmp_path / "new").exists()


def test_empty_standard_input(tmp_path: Path) -> None:
    result = strop("build", "-", "-o", tmp_path / "new", stdin="")
    failed(result, "standard input contains no documents")
    assert not (tmp_path / "new").exists()


def test_a_folder_without_documents(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"\x89PNG")
    result = strop("build", tmp_path / "photos", "-o", tmp_path / "new")
    failed(result, tmp_path / "photos", "corpus.jsonl", ".txt, .md")


def test_a_missing_field(intact: Path, corpus: Path) -> None:
    failed(strop("add", intact, corpus, "--id-field", "key"), f"{corpus} line 1", "'key'")


def test_documents_without_text_are_stored_and_counted(index: Path) -> None:
    blank = [{"id": "e1", "text": ""}, {"id": "e2", "title": "", "text": ""}, GOOD[0]]
    result = strop("add", index, "-", "--json", stdin=jsonl(*blank))
    assert (result.json["new"], result.json["empty"], result.json["documents"]) == (3, 2, 63)
    assert (
        result.stderr == "warning: 2 documents without text: stored, but no search can match them\n"
    )
    assert strop("info", index, "--json").json["empty"] == 2
    hits = strop("search", index, "copy a file", "-k", "99", "--json").json["hits"]
    assert [(hit["id"], hit["score"]) for hit in hits[-2:]] == [("e1", -1.0), ("e2", -1.0)]


def test_a_document_of_a_megabyte(index: Path) -> None:
    text = " ".join(f"Part {i} tells of topic {i % 97} and more." for i in range(30_000))
    assert len(text) > 1_000_000
    result = strop("add", index, "-", "--json", stdin=jsonl({"id": "big", "text": text}))
    assert result.json["new"] == 1
    assert strop("search", index, "a topic", "-k", "1", "--json").json["hits"][0]["id"] == "big"
    stored = strop("show", index, "big", "--json").json["queries"]["sentences"]
    assert len(stored) == 100
    assert stored[-1].endswith("Part 29999 tells of topic 26 and more.")


# -- embedders ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--embedder", "wordlama"], ["unknown embedder 'wordlama'", "Did you mean wordllama?"]),
        (["--embedder", "MiniLM"], ["unknown embedder 'MiniLM'", "Did you mean minilm?"]),
        (["--option", "dim=100"], ["wordllama", "not 100"]),
    ],
)
def test_an_unknown_embedder_or_option(
    options: list[str], parts: list[str], corpus: Path, tmp_path: Path
) -> None:
    failed(strop("build", corpus, "-o", tmp_path / "new", *options), *parts)
    assert not (tmp_path / "new").exists()


def test_an_option_named_path_belongs_to_the_embedder(corpus: Path, tmp_path: Path) -> None:
    args = ["--embedder", "contriever", "--option", f"path={tmp_path}/no/model"]
    result = strop("build", corpus, "-o", tmp_path / "new", *args)
    failed(result, f"there is no folder {tmp_path}/no/model")


def test_a_missing_extra_is_reported_with_its_pip_command(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = strop("build", corpus, "--embedder", "minilm", "-o", tmp_path / "new")
    failed(result, "pip install 'strop[minilm]'")
    assert not (tmp_path / "new").exists()


def change_embedder(index: Path, **values: object) -> None:
    """Change the stored description of the embedder."""
    with closing_database(index) as database:
        (stored,) = database.execute("SELECT value FROM meta WHERE key = 'embedder'").fetchone()
        updated = json.dumps({**json.loads(stored), **values})
        database.execute("UPDATE meta SET value = ? WHERE key = 'embedder'", (updated,))


@contextmanager
def closing_database(index: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(index / "catalog.sqlite")
    with database:
        yield database
    database.close()


def test_the_index_of_another_embedder(index: Path, corpus: Path) -> None:
    with assert_unchanged(index):
        result = strop(
            "build", corpus, "-o", index, "--embedder", "wordllama", "--option", "dim=64"
        )
        failed(result, index, "'wordllama'", "dim 256, not 64", "build another index")
    change_embedder(index, name="st:some/model")
    result = strop("build", corpus, "-o", index, "--embedder", "wordllama")
    failed(result, index, "'st:some/model'", "'wordllama'", "do not mix")


def test_the_index_of_another_revision_of_the_embedder(index: Path, corpus: Path) -> None:
    change_embedder(index, revision="older")
    failed(strop("search", index, "copy"), index, "revision 'older', not ", "do not mix")
    failed(strop("add", index, "-", stdin=jsonl(*GOOD)), index, "revision 'older'")


# -- damage ------------------------------------------------------------------------------------


def test_the_index_of_a_newer_strop(index: Path, corpus: Path) -> None:
    with closing_database(index) as database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    for result in (strop("info", index), strop("search", index, "x"), strop("add", index, corpus)):
        failed(result, index, "format 99", "reads format 6", "install the strop that made it")


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2 - 100)


@pytest.mark.parametrize("damage", [_cut, Path.unlink], ids=["cut", "deleted"])
@pytest.mark.parametrize("name", ["documents.f32", "queries-2.i8"])
def test_lost_vectors_are_reported_and_repaired(
    damage: Callable[[Path], None], name: str, index: Path
) -> None:
    before = content(index)
    damage(index / "vectors" / name)
    failed(strop("search", index, "x"), index / "vectors" / name, f"strop check {index} --repair")
    result = strop("check", index)
    assert result.code == 1
    assert f"vectors/{name} holds " in result.stdout
    result = strop("check", index, "--repair")
    assert (result.code, result.stderr) == (0, "")
    assert f"vectors/{name} holds " in result.stdout
    assert result.stdout.endswith("\nRepaired\n")
    assert strop("check", index).stdout == "No damage found\n"
    assert content(index) == before


def test_all_vectors_lost(index: Path) -> None:
    before = content(index)
    shutil.rmtree(index / "vectors")
    failed(strop("search", index, "x"), f"strop check {index} --repair")
    assert strop("check", index, "--repair").code == 0
    assert content(index) == before


@pytest.mark.parametrize("data", [b"garbage\n" * 999, b""], ids=["garbage", "empty"])
def test_a_catalog_that_is_not_a_database(data: bytes, index: Path, corpus: Path) -> None:
    catalog = index / "catalog.sqlite"
    catalog.write_bytes(data)
    vectors = {file: file.read_bytes() for file in (index / "vectors").iterdir()}
    for args in (["info"], ["search", "x"], ["check"], ["check", "--repair"], ["add", str(corpus)]):
        verb, *more = args
        failed(strop(verb, index, *more), catalog, "build the index again")
    failed(strop("build", corpus, "-o", index), catalog, "build the index again")
    assert catalog.read_bytes() == data
    assert {file: file.read_bytes() for file in (index / "vectors").iterdir()} == vectors


# -- unusable folders --------------------------------------------------------------------------


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Drop the rights of root, who may write anything."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only(index: Path) -> Iterator[Path]:
    """An index in a folder that everyone may read and nobody may write."""
    top = Path(tempfile.mkdtemp())
    path = Path(shutil.copytree(index, top / "docs.index"))
    everything = [top, path, *path.rglob("*")]
    for entry in everything:
        entry.chmod(0o555 if entry.is_dir() else 0o444)
    yield path
    for entry in everything:
        entry.chmod(0o755)
    shutil.rmtree(top)


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no such mode")
def test_a_read_only_index_can_be_read_and_not_written(
    read_only: Path, index: Path, corpus: Path
) -> None:
    # This also loads every module; an unprivileged user may not be able to.
    expected = content(index)
    with as_unprivileged_user():
        actual = content(read_only)
        added = strop("add", read_only, "-", stdin=jsonl(*GOOD))
        removed = strop("remove", read_only, "shutil.move")
        built = strop("build", "-", "-o", read_only.parent / "new", stdin=jsonl(*GOOD))
        checked = strop("check", read_only)
    assert actual == expected
    assert checked.stdout == "No damage found\n"
    for result in (added, removed):
        failed(result, read_only, "cannot be written", "permissions")
    failed(built, read_only.parent / "new", "Permission denied")
    assert content(read_only) == expected


@pytest.mark.parametrize("verb", ["info", "search", "add", "remove", "show", "finish", "check"])
def test_an_index_that_is_a_file_or_missing(verb: str, corpus: Path, tmp_path: Path) -> None:
    file = tmp_path / "file.index"
    file.write_text("mine")
    more = {"search": ["x"], "add": [str(corpus)], "remove": ["x"], "show": ["x"]}.get(verb, [])
    failed(strop(verb, file, *more), f"{file} is not an index")
    assert file.read_text() == "mine"
    missing = tmp_path / "missing.index"
    failed(
        strop(verb, missing, *more), f"{missing} does not exist", f"strop build CORPUS -o {missing}"
    )
    assert not missing.exists()


def test_an_index_without_its_catalog(index: Path, corpus: Path) -> None:
    (index / "catalog.sqlite").unlink()
    before = sorted(index.rglob("*"))
    for verb in ("info", "check", "finish"):
        failed(strop(verb, index), index, "catalog.sqlite is gone", "in another folder")
    failed(strop("build", corpus, "-o", index), "another folder")
    assert sorted(index.rglob("*")) == before


def test_a_folder_of_collections(intact: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "corpus.jsonl").write_text('{"_id": "1", "text": "x"}\n')
    (tmp_path / "all" / "README.md").write_text("# What this is")
    failed(strop("add", intact, tmp_path / "all"), "one, two", tmp_path / "all" / "one")


def test_an_output_that_is_not_an_index(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.io.stdlib_docs.read_stdlib", list)  # reading it takes seconds
    file = tmp_path / "file"
    file.write_text("mine")
    failed(strop("build", corpus, "-o", file), file, "is not an index")
    failed(strop("demo", "-o", file), file, "is not an index")
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("mine")
    failed(strop("build", corpus, "-o", folder), folder, "is not an index", "another folder")
    failed(strop("demo", "-o", folder), folder, "is not an index", "another folder")
    failed(strop("info", folder), folder, "is not an index")
    assert file.read_text() == "mine"
    assert [entry.name for entry in folder.iterdir()] == ["chapter.tex"]
    assert (folder / "chapter.tex").read_text() == "mine"


def test_a_failed_build_keeps_the_files_of_its_output_folder(corpus: Path, tmp_path: Path) -> None:
    file = tmp_path / "project" / "vectors" / "theirs.npy"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"mine")
    failed(strop("build", corpus, "-o", tmp_path / "project"), "project exists and is not an index")
    assert [entry.name for entry in file.parent.iterdir()] == ["theirs.npy"]
    failed(strop("build", tmp_path / "none.jsonl", "-o", tmp_path / "project"))
    assert file.read_bytes() == b"mine"


def test_demo_does_not_overwrite_another_index(
    documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.io.stdlib_docs.read_stdlib", lambda _: documents)
    index = tmp_path / "mine.index"
    assert strop("build", "-", "-o", index, stdin=jsonl(*GOOD)).code == 0
    with assert_unchanged(index):
        failed(strop("demo", "-o", index), index)


# -- a full disk -------------------------------------------------------------------------------


def _full_catalog(monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    """Let the catalog grow by at most ``spare`` pages."""
    connect = Database.connect

    def limited(self: Database) -> sqlite3.Connection:
        connection = connect(self)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + spare}")
        return connection

    monkeypatch.setattr(Database, "connect", limited)


def test_no_room_in_the_catalog(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = jsonl(*({"id": f"m{i}", "text": f"Mooring {i}. " * 200} for i in range(100)))
    with assert_unchanged(index), monkeypatch.context() as patch:
        _full_catalog(patch, 20)
        failed(strop("add", index, "-", stdin=many), index, "full", "free some space")
        new = tmp_path / "new"
        failed(strop("build", "-", "-o", new, stdin=many), new, "full")
    assert not (tmp_path / "new").exists()
    assert strop("add", index, "-", "--json", stdin=many).json["new"] == 100


def _full_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Report a full disk after ``writes`` batches of vectors."""
    pipeline = importlib.import_module("strop.storage.pipeline")
    append, left = pipeline.append_rows, iter(range(writes))

    def limited(path: Path, committed: int, rows: Vectors) -> None:
        if next(left, None) is None:
            append(path, committed, rows[: len(rows) // 2])  # a part was written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(path, committed, rows)

    monkeypatch.setattr(pipeline, "append_rows", limited)


def assert_can_be_finished(
    index: Path, result: CommandResult, corpus: Path, tmp_path: Path
) -> None:
    """Check that a build stopped by a full disk can be finished and equals a complete one."""
    failed(result, index, "What was committed is safe", f"strop finish {index}")
    info = strop("info", index, "--json").json
    assert info["documents"] == 60
    assert info["waiting"] + info["sets"]["sentences"]["waiting"] > 0
    assert f"strop finish {index}" in strop("info", index).stdout
    assert strop("finish", index, "--json").json["documents"] == 60
    complete = tmp_path / "complete.index"
    assert strop("build", corpus, "-o", complete).code == 0
    assert content(index) == content(complete)
    assert strop("check", index).stdout == "No damage found\n"


@pytest.mark.parametrize("writes", [0, 1])
def test_no_room_for_vectors(
    writes: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "x.index"
    with monkeypatch.context() as patch:
        _full_after(patch, writes)
        result = strop("build", corpus, "-o", index)
    assert_can_be_finished(index, result, corpus, tmp_path)


def test_a_file_size_limit_of_the_system(corpus: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    options = "--query-vectors", "float32"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        result = strop("build", corpus, "-o", tmp_path / "x.index", *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # Whether the catalog or a vector file met the limit: the same command continues.
    index, complete = tmp_path / "x.index", tmp_path / "complete.index"
    failed(result, index, "What was committed is safe")
    for path in (index, complete):
        assert strop("build", corpus, "-o", path, *options).code == 0
    assert content(index) == content(complete)
    assert strop("check", index).stdout == "No damage found\n"


# -- searching, showing, removing --------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "remedy"), [("show", "ids are those of the corpus, or of a chunk"), ("remove", "")]
)
def test_an_unknown_document(verb: str, remedy: str, intact: Path) -> None:
    failed(strop(verb, intact, "shutil.kopy"), intact, "no document 'shutil.kopy'", remedy)


def test_one_unknown_id_among_good_ones_removes_none(intact: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("shutil.move\nshutil.kopy\n")
    failed(strop("remove", intact, "shutil.copy", "--file", ids), "'shutil.kopy'")
    failed(strop("remove", intact, "--file", tmp_path / "none.txt"), "none.txt", "No such file")
    ids.write_bytes(b"shutil.move\ncaf\xe9\n")
    failed(strop("remove", intact, "--file", ids), f"{ids} line 2", "not UTF-8")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--method", "blunt"], ["no method 'blunt'", "trad, sharp, simsharp"]),
        (["--method", "consharp"], ["no query set 'contrastive'", "sentences, simple",
                                    "strop queries INDEX --file FILE --set contrastive"]),
        (["--method", "docexp"], ["no query set 'contrastive'"]),
        (["--method", "sharp:beta=1"], ["'beta' is not one of: alpha, temperature (T), sets, n"]),
        (["--method", "sharp:alpha=big"], ["'big' is no value for alpha"]),
        (["--method", "sharp:n=0"], ["n must be 1 or more", "not 0"]),
        (["--method", "doc2query:sets=simple+sentences"], ["one set, not of 2"]),
        (["--sets", "simple+hard"], ["no query set 'hard'", "sentences, simple"]),
        (["--temperature", "-1"], ["temperature must be 0", "-1"]),
        (["--alpha", "nan"], ["alpha must be a finite number, not nan"]),
        (["--method", "trad", "--explain"], ["trad uses no stored queries"]),
    ],
    ids=lambda value: " ".join(value) if "--" in value[0] else "",
)  # fmt: skip
def test_invalid_methods(options: list[str], parts: list[str], intact: Path) -> None:
    result = strop("search", intact, "copy", *options)
    failed(result, *(part.replace("INDEX", str(intact)) for part in parts))


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_query(text: str, intact: Path) -> None:
    failed(strop("search", intact, text), "the query is empty")


def test_a_method_without_any_query_set(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "x.index"
    assert strop("build", corpus, "-o", index, "--queries", "none").code == 0
    result = strop("search", index, "x", "--method", "sharp")
    failed(result, "sharp needs a query set", f"strop queries {index} --style sentences")


# -- query sets --------------------------------------------------------------------------------


def test_a_bad_file_of_queries_changes_nothing(intact: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists.jsonl"
    good = {"id": "shutil.copy", "queries": ["a good one"]}
    lists.write_text(jsonl(good, {"id": "shutil.move", "queries": ["a", " "]}))
    result = strop("queries", intact, "--file", lists, "--set", "simple")
    failed(result, f"{lists} line 2", "query 2", "blank")


def test_queries_for_unknown_documents_only(intact: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists.jsonl"
    lists.write_text(jsonl({"id": "d1", "queries": ["a"]}, {"id": "d2", "queries": ["b"]}))
    result = strop("queries", intact, "--file", lists, "--set", "hard")
    failed(result, "none of the ids is a document of this index", f"{lists} line 1", "'d1'")
    lists.write_text("")
    failed(strop("queries", intact, "--file", lists, "--set", "hard"), "no lists")
    result = strop("queries", intact, "--file", tmp_path / "none.jsonl", "--set", "hard")
    failed(result, "none.jsonl", "No such file")
    result = strop("queries", intact, "--file", lists, "--set", "my style")
    failed(result, "'my style' cannot name a set")


# -- scoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--methods", "trad,blunt"], ["no method 'blunt'"]),
        (["--methods", "consharp"], ["no query set 'contrastive'"]),
        (["--methods", ","], ["no method to evaluate"]),
        (["--measures", "nDGC@10"], ["no measure 'nDGC@10'", "nDCG@10, R@50"]),
        (["--measures", "nDCG@ten"], ["no measure 'nDCG@ten'"]),
        (["--measures", ","], ["no measure was given"]),
        (["--exclude-queries", "q000,q999"], ["'q000' cannot be excluded", "questions"]),
        (["--baseline", "bm25"], ["baseline 'bm25' is not one of: trad, sharp"]),
        (["--split", "dev"], ["qrels/dev.tsv", "splits here: test"]),
    ],
    ids=lambda value: " ".join(value) if "--" in value[0] else "",
)
def test_invalid_evaluations(
    options: list[str], parts: list[str], intact: Path, dataset: Path
) -> None:
    failed(strop("eval", intact, dataset, *options, "--json"), *parts)


def test_the_index_of_another_corpus(intact: Path, tmp_path: Path) -> None:
    other = beir(tmp_path / "sea", {"q": "the tides"}, {"q": {"d1": 1, "d2": 1}})
    failed(strop("eval", intact, other), "none of the 2 relevant documents of sea", intact, "'d1'")


@pytest.mark.parametrize(
    ("file", "text", "parts"),
    [
        ("queries.jsonl", '{"_id": "other", "text": "a"}\n', ["same collection"]),
        ("qrels/test.tsv", "q1\tshutil.copy\thigh\n", ["line 1", "'high' is no grade"]),
    ],
)
def test_a_dataset_that_cannot_be_read(
    file: str, text: str, parts: list[str], intact: Path, tmp_path: Path
) -> None:
    folder = beir(tmp_path / "questions", {"q1": "copy"}, {"q1": {"shutil.copy": 1}})
    (folder / file).write_text(text)
    failed(strop("eval", intact, folder), folder / file, *parts)
    failed(strop("eval", intact, tmp_path / "nowhere"), tmp_path / "nowhere", "no such folder")


def test_ids_that_a_run_file_cannot_contain(index: Path, tmp_path: Path) -> None:
    strop("add", index, "-", stdin=jsonl({"id": "two words", "text": "copy"}))
    folder = beir(tmp_path / "questions", {"q1": "copy"}, {"q1": {"shutil.copy": 1}})
    result = strop("eval", index, folder, "--run-out", tmp_path / "runs")
    failed(result, "'two words'", "white space")
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_intact_index_has_all_documents(intact: Path, documents: list[Document]) -> None:
    """The content that the tests above compare is not empty."""
    stored = content(intact)
    assert stored["documents"] == len(documents) == 60
    assert [len(answer["hits"]) for answer in stored["answers"]] == [60, 60]
