"""What goes wrong at the user's side: one line that says what and how to mend it, no harm done."""

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


def failed(ran: CommandResult, *said: str | Path) -> str:
    """Return the one line of an error of the user's, which must say all of ``said``."""
    assert (ran.code, ran.stdout) == (1, ""), ran
    assert ran.stderr.startswith("error: "), ran.stderr
    assert ran.stderr.count("\n") == 1, ran.stderr
    for part in said:
        assert str(part) in ran.stderr
    return ran.stderr


def content(index: Path) -> dict[str, Any]:
    """Return what an index holds and answers."""
    about = strop("info", index, "--json").json
    held = {key: about[key] for key in about if key not in ("path", "sizes")}
    answers = [strop("search", index, query, "-k", "100", "--json").json for query in QUERIES]
    return {**held, "answers": answers}


@contextmanager
def unharmed(index: Path) -> Iterator[None]:
    """Check that an index is the same afterwards."""
    before = content(index)
    yield
    assert content(index) == before


@pytest.fixture(scope="module")
def steady(_built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An index that commands fail on; it is the same after all of them."""
    path = Path(shutil.copytree(_built, tmp_path_factory.mktemp("steady") / "docs.index"))
    with unharmed(path):
        yield path


def lines_with(at: int, line: str | bytes) -> bytes:
    """Return the good records as lines, one of them (from 1) replaced."""
    lines = jsonl(*GOOD).encode().splitlines()
    lines[at - 1] = line.encode() if isinstance(line, str) else line
    return b"\n".join(lines) + b"\n"


# -- corpora -----------------------------------------------------------------------------------

# A file's name, its content, and what the message must name besides the file. What else readers
# refuse, and how they say it, is in test_corpora.py.
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
def test_a_bad_corpus_adds_and_builds_nothing(case: str, steady: Path, tmp_path: Path) -> None:
    name, data, said = CORPORA[case]
    path = tmp_path / name
    path.write_bytes(data)
    said = [str(path), *said]
    failed(strop("add", steady, path), *said)
    failed(strop("build", path, "-o", steady), *said)
    new = tmp_path / "new" / "x.index"
    failed(strop("build", path, "-o", new), *said)
    assert not new.exists()
    new.mkdir()  # a folder that was there before stays
    failed(strop("build", path, "-o", new, "--json"), *said)
    assert list(new.iterdir()) == []


def test_a_missing_corpus(steady: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nothing.jsonl"
    failed(strop("add", steady, missing), missing, "No such file", "check the path")
    failed(strop("build", missing, "-o", tmp_path / "new"), missing, "No such file")
    assert not (tmp_path / "new").exists()


def test_nothing_on_standard_input(tmp_path: Path) -> None:
    ran = strop("build", "-", "-o", tmp_path / "new", stdin="")
    failed(ran, "standard input contains no documents")
    assert not (tmp_path / "new").exists()


def test_a_folder_with_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"\x89PNG")
    ran = strop("build", tmp_path / "photos", "-o", tmp_path / "new")
    failed(ran, tmp_path / "photos", "corpus.jsonl", ".txt, .md")


def test_a_field_that_is_not_there(steady: Path, corpus: Path) -> None:
    failed(strop("add", steady, corpus, "--id-field", "key"), f"{corpus} line 1", "'key'")


def test_documents_without_text_are_kept_and_counted(index: Path) -> None:
    blank = [{"id": "e1", "text": ""}, {"id": "e2", "title": "", "text": ""}, GOOD[0]]
    ran = strop("add", index, "-", "--json", stdin=jsonl(*blank))
    assert (ran.json["new"], ran.json["empty"], ran.json["documents"]) == (3, 2, 63)
    assert ran.stderr == "warning: 2 documents without text: stored, but no search can match them\n"
    assert strop("info", index, "--json").json["empty"] == 2
    hits = strop("search", index, "copy a file", "-k", "99", "--json").json["hits"]
    assert [(hit["id"], hit["score"]) for hit in hits[-2:]] == [("e1", -1.0), ("e2", -1.0)]


def test_a_document_of_a_megabyte(index: Path) -> None:
    text = " ".join(f"Part {i} tells of topic {i % 97} and more." for i in range(30_000))
    assert len(text) > 1_000_000
    ran = strop("add", index, "-", "--json", stdin=jsonl({"id": "big", "text": text}))
    assert ran.json["new"] == 1
    assert strop("search", index, "a topic", "-k", "1", "--json").json["hits"][0]["id"] == "big"
    stored = strop("show", index, "big", "--json").json["queries"]["sentences"]
    assert len(stored) == 100
    assert stored[-1].endswith("Part 29999 tells of topic 26 and more.")


# -- embedders ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--embedder", "wordlama"], ["unknown embedder 'wordlama'", "Did you mean wordllama?"]),
        (["--embedder", "MiniLM"], ["unknown embedder 'MiniLM'", "Did you mean minilm?"]),
        (["--option", "dim=100"], ["wordllama", "not 100"]),
    ],
)
def test_an_unknown_embedder_or_option(
    options: list[str], said: list[str], corpus: Path, tmp_path: Path
) -> None:
    failed(strop("build", corpus, "-o", tmp_path / "new", *options), *said)
    assert not (tmp_path / "new").exists()


def test_an_option_named_path_is_the_embedders(corpus: Path, tmp_path: Path) -> None:
    args = ["--embedder", "contriever", "--option", f"path={tmp_path}/no/model"]
    ran = strop("build", corpus, "-o", tmp_path / "new", *args)
    failed(ran, f"there is no folder {tmp_path}/no/model")


def test_a_missing_extra_names_the_line_to_type(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    ran = strop("build", corpus, "--embedder", "minilm", "-o", tmp_path / "new")
    failed(ran, "pip install 'strop[minilm]'")
    assert not (tmp_path / "new").exists()


def made_by(index: Path, **values: object) -> None:
    """Change what an index says of its embedder."""
    with closing_database(index) as database:
        (found,) = database.execute("SELECT value FROM meta WHERE key = 'embedder'").fetchone()
        changed = json.dumps({**json.loads(found), **values})
        database.execute("UPDATE meta SET value = ? WHERE key = 'embedder'", (changed,))


@contextmanager
def closing_database(index: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(index / "catalog.sqlite")
    with database:
        yield database
    database.close()


def test_the_index_of_another_embedder(index: Path, corpus: Path) -> None:
    with unharmed(index):
        ran = strop("build", corpus, "-o", index, "--embedder", "wordllama", "--option", "dim=64")
        failed(ran, index, "'wordllama'", "dim 256, not 64", "build another index")
    made_by(index, name="st:some/model")
    ran = strop("build", corpus, "-o", index, "--embedder", "wordllama")
    failed(ran, index, "'st:some/model'", "'wordllama'", "do not mix")


def test_the_index_of_another_revision_of_the_embedder(index: Path, corpus: Path) -> None:
    made_by(index, revision="older")
    failed(strop("search", index, "copy"), index, "revision 'older', not ", "do not mix")
    failed(strop("add", index, "-", stdin=jsonl(*GOOD)), index, "revision 'older'")


# -- damage ------------------------------------------------------------------------------------


def test_the_index_of_a_newer_strop(index: Path, corpus: Path) -> None:
    with closing_database(index) as database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    for ran in (strop("info", index), strop("search", index, "x"), strop("add", index, corpus)):
        failed(ran, index, "format 99", "reads format 6", "install the strop that made it")


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2 - 100)


@pytest.mark.parametrize("damage", [_cut, Path.unlink], ids=["cut", "deleted"])
@pytest.mark.parametrize("name", ["documents.f32", "queries-2.i8"])
def test_lost_vectors_are_named_and_made_again(
    damage: Callable[[Path], None], name: str, index: Path
) -> None:
    before = content(index)
    damage(index / "vectors" / name)
    failed(strop("search", index, "x"), index / "vectors" / name, f"strop check {index} --repair")
    ran = strop("check", index)
    assert ran.code == 1
    assert f"vectors/{name} holds " in ran.stdout
    ran = strop("check", index, "--repair")
    assert (ran.code, ran.stderr) == (0, "")
    assert f"vectors/{name} holds " in ran.stdout
    assert ran.stdout.endswith("\nRepaired\n")
    assert strop("check", index).stdout == "No damage found\n"
    assert content(index) == before


def test_all_vectors_lost(index: Path) -> None:
    before = content(index)
    shutil.rmtree(index / "vectors")
    failed(strop("search", index, "x"), f"strop check {index} --repair")
    assert strop("check", index, "--repair").code == 0
    assert content(index) == before


@pytest.mark.parametrize("data", [b"garbage\n" * 999, b""], ids=["garbage", "empty"])
def test_a_catalog_that_is_none(data: bytes, index: Path, corpus: Path) -> None:
    catalog = index / "catalog.sqlite"
    catalog.write_bytes(data)
    vectors = {file: file.read_bytes() for file in (index / "vectors").iterdir()}
    for args in (["info"], ["search", "x"], ["check"], ["check", "--repair"], ["add", str(corpus)]):
        verb, *more = args
        failed(strop(verb, index, *more), catalog, "build the index again")
    failed(strop("build", corpus, "-o", index), catalog, "build the index again")
    assert catalog.read_bytes() == data
    assert {file: file.read_bytes() for file in (index / "vectors").iterdir()} == vectors


# -- folders that cannot be used ---------------------------------------------------------------


@contextmanager
def nobody() -> Iterator[None]:
    """Have no special rights: root may write anything."""
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
    """An index in a folder that all may read and none may write."""
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
    expected = content(index)  # also loads every module, which nobody might not be able to
    with nobody():
        found = content(read_only)
        added = strop("add", read_only, "-", stdin=jsonl(*GOOD))
        removed = strop("remove", read_only, "shutil.move")
        built = strop("build", "-", "-o", read_only.parent / "new", stdin=jsonl(*GOOD))
        checked = strop("check", read_only)
    assert found == expected
    assert checked.stdout == "No damage found\n"
    for ran in (added, removed):
        failed(ran, read_only, "cannot be written", "permissions")
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


def test_an_index_whose_catalog_is_gone(index: Path, corpus: Path) -> None:
    (index / "catalog.sqlite").unlink()
    before = sorted(index.rglob("*"))
    for verb in ("info", "check", "finish"):
        failed(strop(verb, index), index, "catalog.sqlite is gone", "in another folder")
    failed(strop("build", corpus, "-o", index), "another folder")
    assert sorted(index.rglob("*")) == before


def test_a_folder_of_collections(steady: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "corpus.jsonl").write_text('{"_id": "1", "text": "x"}\n')
    (tmp_path / "all" / "README.md").write_text("# What this is")
    failed(strop("add", steady, tmp_path / "all"), "one, two", tmp_path / "all" / "one")


def test_an_output_that_is_something_else(
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


def test_an_output_that_holds_vectors_of_something_else(corpus: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "project" / "vectors" / "theirs.npy"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"mine")
    failed(strop("build", corpus, "-o", tmp_path / "project"), "project exists and is not an index")
    assert [entry.name for entry in theirs.parent.iterdir()] == ["theirs.npy"]


def test_a_build_that_failed_deletes_nothing_it_did_not_make(tmp_path: Path) -> None:
    theirs = tmp_path / "project" / "vectors" / "theirs.npy"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"mine")
    failed(strop("build", tmp_path / "none.jsonl", "-o", tmp_path / "project"))
    assert theirs.read_bytes() == b"mine"


def test_the_demo_keeps_off_an_index_of_something_else(
    documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.io.stdlib_docs.read_stdlib", lambda _: documents)
    mine = tmp_path / "mine.index"
    assert strop("build", "-", "-o", mine, stdin=jsonl(*GOOD)).code == 0
    with unharmed(mine):
        failed(strop("demo", "-o", mine), mine)


# -- a full disk -------------------------------------------------------------------------------


def _full_catalog(monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    """Let the catalog grow by ``spare`` pages and no more."""
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
    with unharmed(index), monkeypatch.context() as patch:
        _full_catalog(patch, 20)
        failed(strop("add", index, "-", stdin=many), index, "full", "free some space")
        new = tmp_path / "new"
        failed(strop("build", "-", "-o", new, stdin=many), new, "full")
    assert not (tmp_path / "new").exists()
    assert strop("add", index, "-", "--json", stdin=many).json["new"] == 100


def _full_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Let ``writes`` batches of vectors through; then the disk is full."""
    pipeline = importlib.import_module("strop.storage.pipeline")
    append, left = pipeline.append_rows, iter(range(writes))

    def limited(path: Path, committed: int, rows: Vectors) -> None:
        if next(left, None) is None:
            append(path, committed, rows[: len(rows) // 2])  # some of it went through
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(path, committed, rows)

    monkeypatch.setattr(pipeline, "append_rows", limited)


def _goes_on(index: Path, ran: CommandResult, corpus: Path, tmp_path: Path) -> None:
    """Check that a build that found no room can be finished, and is as good as any."""
    failed(ran, index, "What was committed is safe", f"strop finish {index}")
    stopped = strop("info", index, "--json").json
    assert stopped["documents"] == 60
    assert stopped["waiting"] + stopped["sets"]["sentences"]["waiting"] > 0
    assert f"strop finish {index}" in strop("info", index).stdout
    assert strop("finish", index, "--json").json["documents"] == 60
    whole = tmp_path / "whole.index"
    assert strop("build", corpus, "-o", whole).code == 0
    assert content(index) == content(whole)
    assert strop("check", index).stdout == "No damage found\n"


@pytest.mark.parametrize("writes", [0, 1])
def test_no_room_for_vectors(
    writes: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "x.index"
    with monkeypatch.context() as patch:
        _full_after(patch, writes)
        ran = strop("build", corpus, "-o", index)
    _goes_on(index, ran, corpus, tmp_path)


def test_a_real_limit_of_the_system(corpus: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    large = "--query-vectors", "float32"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        ran = strop("build", corpus, "-o", tmp_path / "x.index", *large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # Whichever file met the limit, the catalog or one of vectors: the same command continues.
    index, whole = tmp_path / "x.index", tmp_path / "whole.index"
    failed(ran, index, "What was committed is safe")
    for path in (index, whole):
        assert strop("build", corpus, "-o", path, *large).code == 0
    assert content(index) == content(whole)
    assert strop("check", index).stdout == "No damage found\n"


# -- searching, showing, removing --------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "remedy"), [("show", "ids are those of the corpus, or of a chunk"), ("remove", "")]
)
def test_an_unknown_document(verb: str, remedy: str, steady: Path) -> None:
    failed(strop(verb, steady, "shutil.kopy"), steady, "no document 'shutil.kopy'", remedy)


def test_one_unknown_id_among_good_ones_removes_none(steady: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("shutil.move\nshutil.kopy\n")
    failed(strop("remove", steady, "shutil.copy", "--file", ids), "'shutil.kopy'")
    failed(strop("remove", steady, "--file", tmp_path / "none.txt"), "none.txt", "No such file")
    ids.write_bytes(b"shutil.move\ncaf\xe9\n")
    failed(strop("remove", steady, "--file", ids), f"{ids} line 2", "not UTF-8")


@pytest.mark.parametrize(
    ("options", "said"),
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
def test_a_method_that_cannot_be(options: list[str], said: list[str], steady: Path) -> None:
    ran = strop("search", steady, "copy", *options)
    failed(ran, *(part.replace("INDEX", str(steady)) for part in said))


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_query(text: str, steady: Path) -> None:
    failed(strop("search", steady, text), "the query is empty")


def test_a_method_without_any_query_set(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "x.index"
    assert strop("build", corpus, "-o", index, "--queries", "none").code == 0
    ran = strop("search", index, "x", "--method", "sharp")
    failed(ran, "sharp needs a query set", f"strop queries {index} --style sentences")


# -- query sets --------------------------------------------------------------------------------


def test_a_bad_file_of_queries_changes_nothing(steady: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists.jsonl"
    good = {"id": "shutil.copy", "queries": ["a good one"]}
    lists.write_text(jsonl(good, {"id": "shutil.move", "queries": ["a", " "]}))
    ran = strop("queries", steady, "--file", lists, "--set", "simple")
    failed(ran, f"{lists} line 2", "query 2", "blank")


def test_queries_for_no_document_here(steady: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists.jsonl"
    lists.write_text(jsonl({"id": "d1", "queries": ["a"]}, {"id": "d2", "queries": ["b"]}))
    ran = strop("queries", steady, "--file", lists, "--set", "hard")
    failed(ran, "none of the ids is a document of this index", f"{lists} line 1", "'d1'")
    lists.write_text("")
    failed(strop("queries", steady, "--file", lists, "--set", "hard"), "no lists")
    ran = strop("queries", steady, "--file", tmp_path / "none.jsonl", "--set", "hard")
    failed(ran, "none.jsonl", "No such file")
    ran = strop("queries", steady, "--file", lists, "--set", "my style")
    failed(ran, "'my style' cannot name a set")


# -- scoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
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
def test_scoring_that_cannot_be(
    options: list[str], said: list[str], steady: Path, dataset: Path
) -> None:
    failed(strop("eval", steady, dataset, *options, "--json"), *said)


def test_the_index_of_another_corpus(steady: Path, tmp_path: Path) -> None:
    other = beir(tmp_path / "sea", {"q": "the tides"}, {"q": {"d1": 1, "d2": 1}})
    failed(strop("eval", steady, other), "none of the 2 relevant documents of sea", steady, "'d1'")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("queries.jsonl", '{"_id": "other", "text": "a"}\n', ["same collection"]),
        ("qrels/test.tsv", "q1\tshutil.copy\thigh\n", ["line 1", "'high' is no grade"]),
    ],
)
def test_a_dataset_that_cannot_be_read(
    file: str, text: str, said: list[str], steady: Path, tmp_path: Path
) -> None:
    folder = beir(tmp_path / "questions", {"q1": "copy"}, {"q1": {"shutil.copy": 1}})
    (folder / file).write_text(text)
    failed(strop("eval", steady, folder), folder / file, *said)
    failed(strop("eval", steady, tmp_path / "nowhere"), tmp_path / "nowhere", "no such folder")


def test_ids_that_a_run_file_cannot_hold(index: Path, tmp_path: Path) -> None:
    strop("add", index, "-", stdin=jsonl({"id": "two words", "text": "copy"}))
    folder = beir(tmp_path / "questions", {"q1": "copy"}, {"q1": {"shutil.copy": 1}})
    ran = strop("eval", index, folder, "--run-out", tmp_path / "runs")
    failed(ran, "'two words'", "white space")
    assert list((tmp_path / "runs").iterdir()) == []


def test_documents_of_an_index_are_the_sixty(steady: Path, documents: list[Document]) -> None:
    """What the tests above compare is really there."""
    held = content(steady)
    assert held["documents"] == len(documents) == 60
    assert [len(answer["hits"]) for answer in held["answers"]] == [60, 60]
