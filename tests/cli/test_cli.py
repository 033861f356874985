"""The command line: the text and JSON output of every verb, exit codes, errors."""

from __future__ import annotations

import csv
import importlib.util
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ir_measures
import pytest
from filelock import FileLock
from helpers.commands import CommandResult, beir, jsonl, python_m_strop, strop
from helpers.files import read_run

from strop import Index, __version__
from strop.cli.demo import read_questions
from strop.cli.main import main
from strop.errors import MissingExtra
from strop.io.datasets import read_qrels, read_queries
from strop.io.stdlib_docs import EVERYDAY, read_stdlib
from strop.storage.pipeline import Pipeline
from strop.types import Document

SETTINGS = "sharp:alpha=2:temperature=0.1:sets=simple+sentences:n=5"
NEW = {"id": "pathlib.Path.touch", "text": "Create this file if it does not exist."}


# -- the output of every verb ------------------------------------------------------------------

# Of each verb: its arguments, words in its text output, keys in its JSON output.
VERBS: dict[str, tuple[list[str], str, set[str]]] = {
    "build": (["CORPUS", "-o", "NEW"], "60 documents (60 new)", {"new", "documents", "queries"}),
    "add": (["INDEX", "MORE"], "61 documents (1 new)", {"new", "changed", "unchanged", "empty"}),
    "remove": (["INDEX", "shutil.move"], "removed 1 document; 59 left", {"removed", "documents"}),
    "info": (["INDEX"], "wordllama, 256 dimensions", {"documents", "sets", "embedder", "format"}),
    "show": (["INDEX", "shutil.move"], "Recursively move a file", {"id", "title", "queries"}),
    "queries": (["INDEX", "--style", "sentences", "--n", "2"], "set sentences:", {"set", "n"}),
    "sets": (["INDEX"], "sentences", {"sets"}),
    "references": (["INDEX", "--neighbors", "20"], "of 60 documents", {"chosen", "documents"}),
    "search": (["INDEX", "move a folder"], "shutil.move", {"query", "method", "hits"}),
    "eval": (["INDEX", "DATASET"], "nDCG@10", {"dataset", "queries", "results", "baseline"}),
    "tune": (
        ["INDEX", "--queries", "20"],
        "sharp",
        {"method", "taken", "why", "queries", "gain", "low", "high"},
    ),
    "finish": (["INDEX"], "60 documents, sharpened by", {"documents", "queries"}),
    "check": (["INDEX"], "No damage found", {"problems", "repaired"}),
    "compact": (["INDEX"], "freed", {"freed_bytes", "sizes"}),
    "trust": (["INDEX"], "Nothing", {"trusted"}),
}


def test_every_verb_is_listed_here() -> None:
    tested_elsewhere = {
        "analyse", "cluster", "demo", "export", "mcp", "publish", "report", "reproduce", "serve",
        "triplets",
    }  # fmt: skip
    assert {*VERBS, *tested_elsewhere} == set(main.commands)


@pytest.fixture
def args_of(index: Path, corpus: Path, dataset: Path, tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a function that gives the arguments of a verb, with real paths."""
    more = tmp_path / "more.jsonl"
    more.write_text(jsonl(NEW))
    paths = {"INDEX": index, "CORPUS": corpus, "DATASET": dataset, "MORE": more}
    paths["NEW"] = tmp_path / "new.index"
    return lambda verb: [verb, *(str(paths.get(arg, arg)) for arg in VERBS[verb][0])]


@pytest.mark.parametrize("verb", VERBS)
def test_text_output(verb: str, args_of: Callable[[str], list[str]]) -> None:
    result = strop(*args_of(verb))
    assert (result.code, result.stderr) == (0, "")
    assert VERBS[verb][1] in result.stdout
    with pytest.raises(json.JSONDecodeError):
        json.loads(result.stdout)


@pytest.mark.parametrize("verb", VERBS)
def test_json_output(verb: str, args_of: Callable[[str], list[str]]) -> None:
    result = strop(*args_of(verb), "--json")
    assert result.json.keys() >= VERBS[verb][2]
    assert result.stderr == ""


def test_version_and_short_help() -> None:
    assert strop("--version").stdout == f"strop, version {__version__}\n"
    assert "Build an index:" in strop("-h").stdout


# -- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", main.commands)
def test_help(verb: str) -> None:
    result = strop(verb, "--help")
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: strop {verb} ")
    assert "--json" in result.stdout or verb in {"cluster", "mcp", "serve"}


def test_help_imports_no_heavy_package() -> None:
    code = """if True:
        import sys
        from strop.cli.main import main
        for verb in main.commands:
            main([verb, "--help"], standalone_mode=False)
        heavy = {"torch", "numba", "numpy", "rich", "httpx", "transformers", "scipy", "ir_measures"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage:") == len(main.commands)


# -- exit codes and errors ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["polish"],
        ["build", "CORPUS"],
        ["build", "CORPUS", "-o", "NEW", "--format", "xml"],
        ["build", "CORPUS", "-o", "NEW", "--queries", "llm"],
        ["build", "CORPUS", "-o", "NEW", "--option", "dim"],
        ["build", "CORPUS", "-o", "NEW", "--option", "cache=true"],
        ["remove", "INDEX"],
        ["show", "INDEX"],
        ["search", "INDEX"],
        ["search", "INDEX", "x", "-k", "0"],
        ["search", "INDEX", "x", "-k", "many"],
        ["search", "INDEX", "x", "--alpha", "strong"],
        ["queries", "INDEX"],
        ["queries", "INDEX", "--style", "simple"],
        ["queries", "INDEX", "--style", "sentences", "--file", "CORPUS"],
        ["queries", "INDEX", "--style", "sentences", "--n", "0"],
        ["eval", "INDEX", "DATASET", "--run-out", "CORPUS"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2(
    args: list[str], index: Path, corpus: Path, dataset: Path, tmp_path: Path
) -> None:
    paths = {"INDEX": index, "CORPUS": corpus, "DATASET": dataset, "NEW": tmp_path / "new"}
    result = strop(*(paths.get(arg, arg) for arg in args))
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage:")
    assert "\nError: " in result.stderr
    assert not paths["NEW"].exists()


def test_an_error_is_one_line_on_stderr_and_exits_with_1(tmp_path: Path) -> None:
    result = python_m_strop("info", tmp_path / "none.index", "--json")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert f"strop build CORPUS -o {tmp_path / 'none.index'}" in result.stderr


def test_a_message_of_several_lines_is_joined(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Index) -> None:
        from strop.errors import ServiceError

        raise ServiceError("the server said:\n  [red]no[/] :warning:\n")

    monkeypatch.setattr(Index, "info", fail)
    assert strop("info", index) == CommandResult(
        1, "", "error: the server said:   [red]no[/] :warning:\n"
    )


def test_an_os_error_prints_no_traceback(index: Path, dataset: Path) -> None:
    result = strop("eval", index, dataset, "--run-out", index / "catalog.sqlite" / "runs")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr == f"error: {index / 'catalog.sqlite' / 'runs'}: Not a directory\n"


def test_ctrl_c_exits_with_130(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: Index, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Index, "finish", stop)
    result = strop("finish", index)
    assert (result.code, result.stdout) == (130, "")
    assert result.stderr.startswith("stopped.")


def test_a_closed_pipe_prints_no_error(index: Path) -> None:
    command = [sys.executable, "-m", "strop", "show", str(index), "shutil.move"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""


def test_a_second_writer_is_refused_and_readers_are_not(index: Path, corpus: Path) -> None:
    with FileLock(index / "writer.lock"):
        result = strop("add", index, corpus)
        assert (result.code, result.stdout) == (1, "")
        assert f"another process is writing to {index}" in result.stderr
        assert len(strop("search", index, "copy", "--json").json["hits"]) == 10


# -- pipes -------------------------------------------------------------------------------------


def test_only_the_result_is_piped(corpus: Path, tmp_path: Path) -> None:
    text = corpus.read_text("utf-8")
    result = python_m_strop("build", "-", "-o", "docs.index", cwd=tmp_path, input=text)
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith("60 documents (60 new), sharpened by ")
    assert result.stdout.endswith(" in docs.index\n")
    assert result.stdout.count("\n") == 1


# -- build: formats and options ----------------------------------------------------------------

ROWS = [
    {"id": "a1", "title": "Copying", "text": "Copy a file and its permissions.", "year": "1999"},
    {"id": "b2", "title": "Moving", "text": "Move a folder, with all\nthat is in it.", "year": "1"},
    {"id": "c3", "title": "Deleting", "text": 'Delete a "tree" of folders.', "year": "2020"},
]


def test_build_reads_the_format_that_the_options_describe(tmp_path: Path) -> None:
    with open(tmp_path / "docs.data", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerows([("key", "headline", "body", "year"), *(row.values() for row in ROWS)])
    fields = ["--id-field", "key", "--text-field", "body", "--title-field", "headline"]
    options = ["--format", "csv", "--delimiter", ";", *fields]
    index = tmp_path / "x.index"
    assert strop("build", tmp_path / "docs.data", "-o", index, *options, "--json").json["new"] == 3
    for row in ROWS:
        shown = strop("show", index, row["id"], "--json").json
        assert {key: shown[key] for key in ("id", "title", "text")} | shown["metadata"] == {
            **row, "year": int(row["year"])  # a number in CSV
        }  # fmt: skip


def test_build_reads_standard_input(tmp_path: Path) -> None:
    index = tmp_path / "x.index"
    assert strop("build", "-", "-o", index, "--json", stdin=jsonl(*ROWS)).json["new"] == 3
    added = strop("add", index, "-", "--json", stdin=jsonl(NEW)).json
    assert (added["new"], added["documents"]) == (1, 4)


def test_build_sets_the_language_of_keyword_matching(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    strop("build", corpus, "-o", path, "--language", "german", "--queries", "none")
    with Index.open(path) as index:
        assert index.catalog.words.tokenizer().languages["latin"] == "german"
    again = strop("build", corpus, "-o", path, "--language", "dutch")
    assert again.code == 2
    assert "keeps its language for stemming" in again.stderr


# -- build and add: unchanged and changed documents --------------------------------------------


def test_a_second_build_changes_nothing(index: Path, corpus: Path) -> None:
    before = {file.name: file.read_bytes() for file in (index / "vectors").iterdir()}
    again = strop("build", corpus, "-o", index, "--json").json
    assert (again["new"], again["changed"], again["unchanged"]) == (0, 0, 60)
    assert {file.name: file.read_bytes() for file in (index / "vectors").iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="modes and links")
@pytest.mark.parametrize("linked", [False, True])
def test_a_failed_build_does_not_change_an_empty_folder(linked: bool, tmp_path: Path) -> None:
    folder, output = tmp_path / "folder", tmp_path / "given"
    folder.mkdir(mode=0o700)
    (tmp_path / "docs.jsonl").write_text("no JSON")
    if linked:
        output.symlink_to(folder)
    before = folder.stat()
    result = strop("build", tmp_path / "docs.jsonl", "-o", output if linked else folder)
    assert result.code == 1
    after = folder.stat()
    assert (after.st_ino, after.st_mode, [*folder.iterdir()]) == (before.st_ino, before.st_mode, [])
    assert output.is_symlink() == linked
    new = tmp_path / "new"
    assert strop("build", tmp_path / "docs.jsonl", "-o", new).code == 1
    assert not new.exists()


def test_build_updates_only_changed_documents(index: Path, corpus: Path, tmp_path: Path) -> None:
    lines = corpus.read_text("utf-8").splitlines()
    record = json.loads(lines[30])
    record["text"] = "Polish the brass of the ship until it shines. Then take a rest."
    lines[30] = json.dumps(record)
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join([*lines, json.dumps(NEW)]), "utf-8")
    before = (index / "vectors" / "documents.f32").read_bytes()
    info = strop("build", changed, "-o", index, "--json").json
    assert (info["new"], info["changed"], info["unchanged"], info["documents"]) == (1, 1, 59, 61)
    after = (index / "vectors" / "documents.f32").read_bytes()
    assert after[: len(before)] == before
    assert len(after) - len(before) == 2 * 256 * 4
    hits = strop("search", index, "polish the brass", "-k", "1", "--json").json["hits"]
    assert hits[0]["id"] == record["_id"]
    stored = strop("show", index, record["_id"], "--json").json["queries"]["sentences"]
    assert stored == [record["title"], record["text"].split(". ")[0] + ".", "Then take a rest."]


def test_a_second_build_keeps_settings_and_embedder(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "x.index"
    assert strop("build", corpus, "-o", index, "--option", "dim=64").code == 0
    assert strop("queries", index, "--style", "sentences", "--n", "1").code == 0
    again = strop("build", corpus, "-o", index, "--json").json
    assert again["queries"] == {"sentences": 60}
    assert strop("info", index, "--json").json["embedder"]["dim"] == 64
    int8 = strop("build", corpus, "-o", index, "--query-vectors", "int8")
    assert (int8.code, f"strop compact {index} --query-vectors int8" in int8.stderr) == (2, True)
    language = strop("build", corpus, "-o", index, "--language", "german")
    assert (language.code, "keeps its language for stemming" in language.stderr) == (2, True)
    assert "vectors" not in language.stderr


def test_build_without_queries_searches_with_trad(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "x.index"
    built = strop("build", corpus, "-o", index, "--queries", "none", "--json").json
    assert built["queries"] == {}
    assert strop("search", index, "copy", "--json").json["method"] == "trad"
    again = strop("build", corpus, "-o", index, "--json").json
    assert (again["unchanged"], list(again["queries"])) == (60, ["sentences"])
    assert strop("search", index, "copy", "--json").json["method"] == "sharp"


# -- remove, show, queries, finish, check ------------------------------------------------------


def test_remove_by_id_by_file_and_from_standard_input(index: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("shutil.copy2\n\n  shutil.move\nshutil.copy2\n")
    report = strop("remove", index, "str.center", "--file", ids, "--json").json
    assert report == {"removed": 3, "documents": 57}
    assert strop("remove", index, "--file", "-", "--json", stdin="shutil.copy\n").json == {
        "removed": 1,
        "documents": 56,
    }
    hits = strop("search", index, "copy a file", "-k", "60", "--json").json["hits"]
    assert len(hits) == 56
    assert not {"shutil.copy2", "shutil.move", "shutil.copy"} & {hit["id"] for hit in hits}


def test_all_documents_can_be_removed(index: Path, documents: list[Document]) -> None:
    assert strop("remove", index, *(document.id for document in documents)).code == 0
    assert strop("search", index, "copy", "--json").json["hits"] == []
    assert strop("info", index, "--json").json["documents"] == 0


def test_show_has_the_document_and_its_queries(index: Path, documents: list[Document]) -> None:
    doc = documents[7]
    shown = strop("show", index, doc.id, "--json").json
    assert (shown["id"], shown["title"], shown["text"]) == (doc.id, doc.title, doc.text)
    assert shown["queries"]["simple"][0] == f"what is {doc.id} for"
    assert shown["queries"]["sentences"][0] == doc.title
    output = strop("show", index, doc.id).stdout
    assert doc.text.splitlines()[-1] in output
    assert f"  - what is {doc.id} for" in output


def test_queries_replace_and_report_unknown_ids(index: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists.jsonl"
    lists.write_text(
        jsonl(
            {"id": "shutil.move", "queries": ["put a file elsewhere", "rename", "relocate"]},
            {"id": "nowhere", "queries": ["x"]},
        )
    )
    args = ["--set", "contrastive", "--n", "2", "--json"]
    result = strop("queries", index, "--file", lists, *args)
    report = result.json
    assert report["set"] == "contrastive"
    assert (report["queries"], report["documents"], report["unknown_ids"]) == (2, 1, 1)
    assert result.stderr.startswith("warning: left out 1 list of an unknown id")
    assert "nowhere" in result.stderr
    assert result.stderr.count("\n") == 1
    stored = strop("show", index, "shutil.move", "--json").json["queries"]["contrastive"]
    assert stored == ["put a file elsewhere", "rename"]
    other = jsonl({"id": "shutil.move", "queries": ["carry"]})
    strop("queries", index, "--file", "-", "--style", "contrastive", stdin=other)
    stored = strop("show", index, "shutil.move", "--json").json["queries"]["contrastive"]
    assert stored == ["carry"]


def test_outdated_queries_are_reported_and_can_be_kept(index: Path, tmp_path: Path) -> None:
    file, changed = tmp_path / "queries.jsonl", tmp_path / "changed.jsonl"
    file.write_text(jsonl({"id": "shutil.move", "queries": ["what is it"]}))
    changed.write_text(jsonl({"id": "shutil.move", "text": "Something else."}))
    assert strop("queries", index, "--file", file, "--set", "mine").code == 0
    assert strop("add", index, changed).code == 0
    output = " ".join(strop("info", index).stdout.split())
    assert "1 list older than its text" in output
    assert f"strop queries {index} --set mine --file FILE" in output
    assert "--keep-queries" in output
    assert strop("add", index, changed, "--keep-queries", "--json").json["unchanged"] == 1
    assert "older than" not in strop("info", index).stdout


def test_augmented_documents_are_no_query_set_and_need_no_finish(index: Path) -> None:
    report = strop("search", index, "copy", "--method", "doc2query", "--json").json
    assert len(report["hits"]) == 10
    added = strop("add", index, "-", "--json", stdin=jsonl(NEW)).json
    assert set(added["queries"]) == {"sentences", "simple"}
    assert "augmented:" not in strop("finish", index).stdout
    assert "waiting" not in strop("info", index).stdout


def test_check_and_repair_report_damage(index: Path) -> None:
    file = index / "vectors" / "documents.f32"
    os.truncate(file, 256 * 4 * 10 + 7)
    result = strop("check", index)
    assert (result.code, result.stderr) == (1, "")
    first, last = result.stdout.splitlines()
    assert first == "vectors/documents.f32 holds 10 of 60 vectors"
    assert f"strop check {index} --repair" in last
    result = strop("check", index, "--json")
    assert (result.code, json.loads(result.stdout)) == (
        1,
        {"problems": [first], "repaired": False, "waiting": 0, "refused": []},
    )
    assert strop("check", index, "--repair", "--json").json == {
        "problems": [first],
        "repaired": True,
        "waiting": 0,
        "refused": [],
    }
    assert strop("check", index).stdout == "No damage found\n"


def test_check_reports_what_waits(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "run", stop)
        record = json.dumps({"id": "new", "text": "What came last."})
        assert strop("add", index, "-", stdin=record).code != 0
    assert strop("check", index, "--json").json["waiting"] > 0
    first, last = strop("check", index).stdout.splitlines()
    assert first == "No damage found"
    assert f"strop finish {index}" in last
    strop("finish", index)
    assert strop("check", index).stdout == "No damage found\n"


def test_build_and_info_give_the_same_size(corpus: Path, tmp_path: Path) -> None:
    built = strop("build", corpus, "-o", tmp_path / "x.index").stdout
    size = re.search(r"([\d.]+ [kM]?B) in ", built)
    assert size is not None
    assert f"{size[1]}, " in strop("info", tmp_path / "x.index").stdout


# -- search ------------------------------------------------------------------------------------


def test_search_warns_of_what_waits_to_be_embedded(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "x.index"
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "run", stop)
        assert strop("build", corpus, "-o", path, "--queries", "none").code == 130
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as outside of tests, where it is no error
        result = strop("search", path, "copy a file", "--method", "trad")
    assert result.code == 0
    assert "60 of its documents and query lists wait to be embedded" in result.stderr
    assert f"strop finish {path}" in result.stderr
    assert result.stderr.count("\n") == 1
    strop("finish", path)
    assert strop("search", path, "copy a file", "--method", "trad").stderr == ""


def _hits(index: Path, *options: str, query: str = "copy a file and its times") -> list[Any]:
    hits = strop("search", index, query, "-k", "60", "--json", *options).json["hits"]
    return [(hit["id"], hit["score"]) for hit in hits]


def test_search_returns_all_hits_or_the_first_k(index: Path, documents: list[Document]) -> None:
    all_hits = _hits(index)
    assert sorted(id_ for id_, _ in all_hits) == sorted(document.id for document in documents)
    scores = [score for _, score in all_hits]
    assert scores == sorted(scores, reverse=True)
    top = strop("search", index, "copy a file and its times", "-k", "3", "--json").json
    assert top["query"] == "copy a file and its times"
    assert [hit["rank"] for hit in top["hits"]] == [1, 2, 3]
    assert [(hit["id"], hit["score"]) for hit in top["hits"]] == all_hits[:3]


@pytest.mark.usefixtures("without_words")
def test_options_equal_the_settings_of_a_method_spec(index: Path) -> None:
    options = ["--alpha", "2", "--temperature", "0.1", "--sets", "simple+sentences", "--n", "5"]
    assert _hits(index, *options) == _hits(index, "--method", SETTINGS)
    assert _hits(index, *options) != _hits(index)
    weakest, plain = _hits(index, "--alpha", "0"), _hits(index, "--method", "trad")
    assert dict(weakest) == pytest.approx(dict(plain), abs=1e-5)
    for other in (["--temperature", "inf"], ["--sets", "simple"], ["--n", "1"], ["--alpha", "3"]):
        assert _hits(index, *other) != _hits(index), other


@pytest.mark.parametrize("options", [[], ["--method", SETTINGS], ["--method", "maxsim"],
                                     ["--method", "simsharp", "--temperature", "0"]])  # fmt: skip
def test_explained_contributions_add_up_to_the_score(index: Path, options: list[str]) -> None:
    args = ["search", str(index), "remove a whole folder", "-k", "5", "--explain", *options]
    report = strop(*args, "--json").json
    assert len(report["hits"]) == 5
    for hit in report["hits"]:
        parts = hit["explanation"]
        assert parts["id"] == hit["id"]
        assert len(parts["queries"]) >= 2
        total = parts["plain"] + sum(query["moved"] for query in parts["queries"]) + parts["words"]
        assert total == pytest.approx(parts["score"], abs=1e-4)
        assert parts["score"] + parts["feedback"] == pytest.approx(hit["score"], abs=1e-4)
    if "maxsim" in options or "simsharp" in options:  # without feedback
        assert max(abs(hit["explanation"]["feedback"]) for hit in report["hits"]) < 1e-4
    output = strop(*args).stdout
    first = report["hits"][0]
    assert f"1. {first['id']}  {first['title']}\n" in output
    assert f"{first['explanation']['plain']:.4f} plain" in output
    assert output.count("similarity: cosine of this text and the query") == 1  # below all hits


# -- eval --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_words")
def test_eval_json_output(index: Path, dataset: Path) -> None:
    methods = f"trad,sharp,simsharp,maxsim,doc2query,{SETTINGS}"
    result = strop(
        "eval", index, dataset, "--methods", methods, "--measures", "nDCG@10,RR@5", "--json"
    )
    report = result.json
    assert report["dataset"] == "questions"
    assert report["queries"] == len(read_queries(dataset / "queries.jsonl")) >= 5
    assert list(report["results"]) == methods.split(",")
    for values in report["results"].values():
        assert list(values) == ["nDCG@10", "RR@5"]
        assert all(0 < value <= 1 for value in values.values())
    assert report["baseline"] == "trad"
    assert "per_query" not in report
    assert report["settings"][SETTINGS] == {
        "sets": ["simple", "sentences"], "n": 5, "alpha": 2.0, "temperature": 0.1
    }  # fmt: skip


def test_eval_options_equal_the_settings_of_a_method_spec(index: Path, dataset: Path) -> None:
    options = ["--alpha", "2", "--temperature", "0.1", "--sets", "simple+sentences", "--n", "5"]
    by_option = strop("eval", index, dataset, "--methods", "sharp", *options, "--json").json
    by_spec = strop("eval", index, dataset, "--methods", SETTINGS, "--json").json
    assert by_option["results"]["sharp"] == by_spec["results"][SETTINGS]
    assert by_option["settings"]["sharp"] == by_spec["settings"][SETTINGS]


def test_two_names_of_a_measure_have_the_same_value(index: Path, dataset: Path) -> None:
    measures = ["--methods", "trad", "--measures", "AP@50,MAP@50", "--json"]
    values = strop("eval", index, dataset, *measures).json["results"]["trad"]
    assert values["AP@50"] == values["MAP@50"] > 0


def test_eval_prints_percentages_and_changes(index: Path, dataset: Path) -> None:
    report = strop("eval", index, dataset, "--json").json
    output = strop("eval", index, dataset, "--baseline", "sharp").stdout
    for name in ("trad", "sharp"):
        assert f"{100 * report['results'][name]['nDCG@10']:.2f}" in output
    change = report["results"]["trad"]["nDCG@10"] - report["results"]["sharp"]["nDCG@10"]
    assert f"{100 * change:+.2f}" in output
    assert "change against sharp" in output
    assert f"nDCG@10 {100 * change:+.1f} points (95% interval " in output.splitlines()[-1]
    assert "interval" not in strop("eval", index, dataset, "--methods", "trad").stdout


def test_written_runs_score_the_same_in_ir_measures(
    index: Path, dataset: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "new" / "runs"
    args = ["--methods", f"trad,{SETTINGS}", "--run-out", str(runs), "--json"]
    report = strop("eval", index, dataset, *args).json
    qrels = read_qrels(dataset / "qrels" / "test.tsv")
    written = sorted(runs.iterdir())
    assert [file.name for file in written] == [
        "questions.sharp_alpha-2_temperature-0.1_sets-simple+sentences_n-5.trec",
        "questions.trad.trec",
    ]
    for name, file in zip([SETTINGS, "trad"], written, strict=True):
        run = read_run(file)
        assert run.keys() == qrels.keys()
        assert {len(ranked) for ranked in run.values()} == {50}
        measure = ir_measures.parse_measure("nDCG@10")
        value = ir_measures.calc_aggregate([measure], qrels, run)[measure]
        assert value == pytest.approx(report["results"][name]["nDCG@10"], abs=1e-9)


def test_eval_can_ignore_queries_and_documents_of_the_same_id(
    index: Path, documents: list[Document], tmp_path: Path
) -> None:
    queries = {document.id: document.text for document in documents[:8]}
    qrels = {id_: {documents[-1 - at].id: 1} for at, id_ in enumerate(queries)}
    folder = beir(tmp_path / "same", queries, qrels)
    args = ["--methods", "trad", "--measures", "R@59", "--run-out", str(tmp_path), "--json"]
    assert strop("eval", index, folder, *args).code == 0
    run = read_run(tmp_path / "same.trad.trec")
    assert all(next(iter(ranked)) == query for query, ranked in run.items())
    exclusions = ["--ignore-same-id", "--exclude-queries", documents[0].id]
    report = strop("eval", index, folder, *args, *exclusions).json
    assert report["queries"] == 7
    assert report["results"]["trad"]["R@59"] == 1.0  # the relevant document is one of the other 59
    for query, ranked in read_run(tmp_path / "same.trad.trec").items():
        assert query not in ranked
        assert len(ranked) == 59


def test_eval_warns_of_missing_relevant_documents(index: Path, dataset: Path) -> None:
    missing = next(iter(next(iter(read_qrels(dataset / "qrels" / "test.tsv").values()))))
    strop("remove", index, missing)
    result = strop("eval", index, dataset, "--json")
    assert result.json["judged_documents_missing"] == 1
    assert result.stderr.startswith("warning: 1 relevant document of questions not in the index")


def test_a_warning_of_the_library_is_one_line(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # as outside of tests: pytest adds its own
    folder = beir(
        tmp_path / "half",
        {"q1": "copy a file"},
        {"q1": {"shutil.copy": 1}, "q2": {"shutil.move": 1}},
    )
    result = strop("eval", index, folder, "--json")
    assert result.json["queries"] == 1
    assert result.stderr.startswith("warning: ")
    assert "1 of 2 queries are not in" in result.stderr
    assert result.stderr.count("\n") == 1


# -- demo --------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Document]:
    """The demo documents that answer its questions; the whole corpus takes long to embed."""
    ids = {id_ for relevant in read_questions().qrels.values() for id_ in relevant}
    documents = [document for document in read_stdlib(EVERYDAY) if document.id in ids]
    monkeypatch.setattr("strop.io.stdlib_docs.read_stdlib", lambda _: documents)
    return documents


def test_demo(answers: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints a table, three changes and two commands to try; a second run reuses its index."""
    folder = tmp_path / "py docs.index"
    result = strop("demo", "-o", folder)
    assert (result.code, result.stderr) == (0, "")
    names = ["plain", "BM25", "rank fusion", "BM25 with the queries", "strop, sentences only",
             "strop"]  # fmt: skip
    for name in names:
        assert re.search(rf"^ {name}  +\d\d\.\d\d", result.stdout, re.MULTILINE)
    assert result.stdout.count("moved by\n") == 3
    search, serve = result.stdout.rstrip().splitlines()[-2:]
    assert serve.endswith(f"serve '{folder}'")
    searched = subprocess.run(shlex.split(search), capture_output=True, text=True, check=False)
    assert (searched.returncode, searched.stderr) == (0, "")
    assert searched.stdout.startswith("1. ")
    assert searched.stdout.count("stored text") == 10
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    without_extra = strop("demo", "-o", folder).stdout.rstrip().splitlines()
    assert without_extra[-3] == serve
    assert without_extra[-1] == str(MissingExtra("strop serve", "serve"))
    assert without_extra[-1].endswith(f"{sys.executable} -m pip install 'strop[serve]'")
    again = strop("demo", "-o", folder, "--json")
    assert again.stderr == ""
    assert again.json["dataset"] == "python docs"
    assert again.json["documents"] == len(answers) > 150
    assert again.json["queries"] >= 120
    assert list(again.json["results"]) == names
    for change in again.json["changes"]:
        assert change["text"] in read_questions().queries.values()
        assert change["before"] != change["after"]


def test_the_console_script_is_installed() -> None:
    from importlib.metadata import entry_points

    (script,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "strop"]
    assert script.load() is main
    assert importlib.util.find_spec("strop.__main__") is not None


def test_search_where(tmp_path: Path) -> None:
    """Metadata is shown, filters hits, and is in the JSON; all conditions must hold."""
    corpus = tmp_path / "corpus.jsonl"
    rows = [
        {"id": f"d{at}", "text": f"cats {at}", "year": 2018 + at, "metadata": {"tags": ["a", at]}}
        for at in range(5)
    ]
    corpus.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    index = tmp_path / "index"
    assert strop("build", corpus, "--output", index).code == 0
    shown = strop("show", index, "d3")
    assert "year: 2021" in shown.stdout
    assert strop("show", index, "d3", "--json").json["metadata"] == {"year": 2021, "tags": ["a", 3]}

    def search(*conditions: str) -> dict[str, Any]:
        options = [part for condition in conditions for part in ("--where", condition)]
        hits = strop("search", index, "cats", *options, "--json").json["hits"]
        return {hit["id"]: hit["metadata"] for hit in hits}

    assert search("year>=2021") == {
        "d3": {"year": 2021, "tags": ["a", 3]}, "d4": {"year": 2022, "tags": ["a", 4]},
    }  # fmt: skip
    assert search("year>=2021", "tags=4").keys() == {"d4"}
    assert search('{"$or": [{"year": 2018}, {"$id": "d1"}]}', "tags=a").keys() == {"d0", "d1"}
    assert search("year<2000") == {}
    incomplete = strop("search", index, "cats", "--where", "year")
    assert incomplete.code == 1
    assert "write FIELD=VALUE" in incomplete.stderr
    doubled = strop("search", index, "cats", "--where", "year==2021")
    assert doubled.code == 1
    assert "quote it: 'year=\"=2021\"'" in doubled.stderr


def test_a_published_copy_in_a_file_needs_its_url_scheme(tmp_path: Path) -> None:
    copy = tmp_path / "copy.duckdb"
    copy.write_bytes(b"")
    result = strop("search", copy, "cats")
    assert (result.code, result.stdout) == (1, "")
    assert f"write duckdb://{copy}" in result.stderr
