"""What reaches a terminal: nothing that steers it, at the right width, in its encoding."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from helpers.commands import beir, jsonl, strop
from hypothesis import given
from hypothesis import strategies as st

from strop.cli.main import main
from strop.cli.tables import print_explained
from strop.common.text import counted, escape_controls

# ESC, BEL, DEL, the one-character form of ESC [, bidirectional override and isolate, a tag.
STEERING = "\x1b[31m \x07 \x7f \x9b31m \u202e \u2066 \U000e0001"
ESCAPED = r"\u001b[31m \u0007 \u007f \u009b31m \u202e \u2066 \udb40\udc01"


def steers(text: str) -> list[str]:
    """Return the characters of a text that could steer a terminal."""
    return [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf")]


@given(st.text())
def test_escaping_leaves_nothing_that_steers_and_nothing_else_out(text: str) -> None:
    shown = escape_controls(text)
    assert not steers(shown)
    kept = [c for c in text if not steers(c)]
    assert list(escape_controls("".join(kept))) == kept
    document = json.dumps([text], ensure_ascii=False)
    assert json.loads(escape_controls(document)) == [text]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """An index whose document tries to steer the terminal wherever it is shown."""
    document = {"id": f"d {STEERING}", "title": f"title {STEERING}", "text": f"A text. {STEERING}"}
    document |= {f"key {STEERING}": f"value {STEERING}"}
    path = tmp_path / "hostile.index"
    assert strop("build", "-", "-o", path, stdin=jsonl(document)).code == 0
    lists = jsonl({"id": document["id"], "queries": [f"a query {STEERING}"]})
    ran = strop("queries", path, "--file", "-", "--style", "simple", stdin=lists)
    assert ran.code == 0
    return path


def test_no_document_steers_the_terminal(hostile: Path, tmp_path: Path) -> None:
    id_ = f"d {STEERING}"
    folder = beir(tmp_path / "data", {f"q{STEERING}": "a text"}, {f"q{STEERING}": {id_: 1}})
    calls: list[tuple[list[str | Path], list[str]]] = [
        (["show", hostile, id_], ["d", "title", "A text.", "key", "value", "a query"]),
        (["search", hostile, "a text"], ["d", "title", "A text."]),
        (["search", hostile, "a text", "--explain"], ["d", "a query"]),
    ]
    for args, parts in calls:
        ran = strop(*args)
        assert (ran.code, steers(ran.stdout), ran.stderr) == (0, [], "")
        for part in parts:
            assert f"{part} {ESCAPED}" in ran.stdout
        as_json = strop(*args, "--json")
        assert steers(as_json.stdout) == []
        assert id_ in (as_json.json.get("id"), *(hit["id"] for hit in as_json.json.get("hits", [])))
    ran = strop("eval", hostile, folder, "--json", "--per-query")
    assert (ran.code, steers(ran.stdout + ran.stderr)) == (0, [])


def test_no_argument_steers_the_terminal(hostile: Path, tmp_path: Path) -> None:
    odd = tmp_path / f"no {STEERING}.jsonl"
    for args in (
        [f"polish{STEERING}"],
        [f"--{STEERING}"],
        ["search", hostile, "x", f"--{STEERING}"],
        ["search", hostile, "x", "--method", f"x{STEERING}"],
        ["search", hostile, "x", "-k", STEERING],
        ["show", hostile, STEERING],
        ["add", hostile, odd],
        ["info", odd],
        ["remove", hostile, STEERING],
        ["eval", hostile, odd],
        ["build", hostile, "-o", hostile, "--option", STEERING],
        ["references", hostile, "--k", STEERING],
    ):
        ran = strop(*args)
        assert ran.code in (1, 2), args
        assert steers(ran.stdout + ran.stderr) == [], args
        assert "u009b31m" in ran.stderr or "x9b31m" in ran.stderr, args


def test_no_line_of_a_bad_corpus_steers_the_terminal(hostile: Path, tmp_path: Path) -> None:
    for name, content in (
        ("c.jsonl", json.dumps({"id": "x", STEERING: "y"}, ensure_ascii=False)),
        ("c.csv", f"id,text,{STEERING},{STEERING}\n"),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
        ran = strop("add", hostile, tmp_path / name)
        assert (ran.code, steers(ran.stderr)) == (1, [])


def test_windows_line_ends_are_line_ends(tmp_path: Path) -> None:
    index = tmp_path / "x.index"
    strop("build", "-", "-o", index, stdin=jsonl({"id": "1", "text": "One line.\r\nTwo.\rOver"}))
    assert "One line.\nTwo.\\u000dOver\n" in strop("show", index, "1").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_bars_are_for_terminals_and_leave_the_json_alone(corpus: Path, tmp_path: Path) -> None:
    said, seen = _on_a_terminal("-m", "strop", "build", corpus, "-o", tmp_path / "x", "--json")
    assert json.loads(said)["new"] == 60
    assert b"embedding documents" in seen
    assert b"embedding sentences" in seen


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize(("step", "unit"), [(1000, rb"\d/s\b"), (0.01, rb"\d\.\d/min\b")])
def test_bars_show_a_rate(step: float, unit: bytes) -> None:
    program = f"""
import time
from strop.cli.messages import progress_bars
with progress_bars() as show:
    for at in range(6):
        show("work", at * {step}, 6 * {step})
        time.sleep(0.1)
"""
    assert re.search(unit, _on_a_terminal("-c", program)[1])


def _on_a_terminal(*args: str | Path) -> tuple[bytes, bytes]:
    """Run Python with a terminal as its standard error; return both outputs."""
    import pty

    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, *args], stdout=subprocess.PIPE, stderr=theirs, check=True,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while part := _read(ours):
        seen += part
    os.close(ours)
    return done.stdout, seen


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # Linux says so when the other side is closed
        return b""


def test_texts_are_shown_as_they_are(tmp_path: Path) -> None:
    odd = "[bold]no markup[/] :smile: \x1b[31mno colour\x07 C:\\"
    shown = "[bold]no markup[/] :smile: \\u001b[31mno colour\\u0007 C:\\"
    document = {"id": "[id] :x:", "title": "[i]t[/i]", "text": odd, "kind": "[dim]:heart:"}
    index = tmp_path / "odd.index"
    assert strop("build", "-", "-o", index, stdin=jsonl(document)).code == 0
    for verb, asked in (("show", "[id] :x:"), ("search", "no")):
        out = strop(verb, index, asked).stdout
        assert shown in out
        assert "[id] :x:" in out
        assert "[i]t[/i]" in out
    assert "kind: [dim]:heart:" in strop("show", index, "[id] :x:").stdout
    explained = strop("search", index, "no", "--explain").stdout
    assert shown in explained
    assert "similarity: cosine" in explained
    assert strop("show", index, "[id] :x:", "--json").json["text"] == odd


def test_without_stored_texts_no_column_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    explanation = {"plain": 0.5, "score": 0.5, "words": 0.0, "feedback": 0.0, "queries": []}
    row = {"rank": 1, "id": "d", "title": "", "score": 0.5, "explanation": explanation}
    print_explained([row])
    output = capsys.readouterr().out
    assert "0.5000 plain" in output
    assert "moved" not in output


def test_piped_lines_are_not_folded(tmp_path: Path) -> None:
    long = "word " * 3000
    index = tmp_path / "long.index"
    strop("build", "-", "-o", index, stdin=jsonl({"id": "x" * 300, "text": long}))
    lines = strop("show", index, "x" * 300).stdout.splitlines()
    assert lines[1].rstrip() == long.rstrip()
    assert any("x" * 300 in line for line in strop("search", index, "word").stdout.splitlines())


def test_any_encoding_of_the_terminal_will_do(tmp_path: Path) -> None:
    text = "naïve → 🙂"
    index = tmp_path / "x.index"
    strop("build", "-", "-o", index, stdin=jsonl({"id": "1", "text": text}))
    for encoding, more in (("ascii", []), ("cp1252", ["--json"])):
        done = CliRunner(charset=encoding).invoke(main, ["show", str(index), "1", *more])
        assert (done.exit_code, done.stderr_bytes) == (0, b"")
        if more:
            assert json.loads(done.stdout_bytes.decode("cp1252"))["text"] == text
        else:
            assert rb"na\xefve \u2192 \U0001f642" in done.stdout_bytes


def test_piped_output_has_the_width_of_columns(tmp_path: Path) -> None:
    index = tmp_path / "long.index"
    strop("build", "-", "-o", index, stdin=jsonl({"id": "x", "text": "word " * 300}))
    for verb in (["show", str(index), "x"], ["search", str(index), "word"], ["info", str(index)]):
        done = CliRunner(env={"COLUMNS": "50"}).invoke(main, verb, catch_exceptions=False)
        assert max(map(len, done.stdout.splitlines())) <= 50
        assert len(done.stdout.splitlines()) > 3


def test_help_is_complete_at_80_columns() -> None:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["--help"])
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "..." not in done.stdout.partition("Build an index:")[2]
    shown = "".join(done.stdout.split())  # lines are broken at spaces and hyphens
    for verb in main.commands.values():
        assert verb.help is not None
        assert "".join(verb.help.partition("\n\n")[0].split()) in shown, verb.name


def test_help_tells_every_default_in_one_style() -> None:
    inner = main.commands["cluster"].commands.values()  # type: ignore[attr-defined]
    for verb in (*main.commands.values(), *inner):
        # With the command's own settings: click remembers the help option it first made.
        shown = verb.get_help(click.Context(verb, **main.context_settings))
        assert "default: (" not in shown, verb.name
        for option in verb.params:
            assert not (getattr(option, "help", None) or "").endswith("]"), option.name
        if verb.name == "search":
            assert "[default: all]" in shown


def test_a_count_has_its_noun_in_the_right_number() -> None:
    assert counted(1, "document") == "1 document"
    assert counted(2000, "document") == "2,000 documents"
    assert counted(0, "query") == "0 queries"
    assert counted(1, "query") == "1 query"


def test_a_hit_shows_its_passage_and_its_title_once(tmp_path: Path) -> None:
    text = f"# Wings lift\n\n{'More words here. ' * 9}Drag slows ships. {'The end. ' * 30}"
    rows = [{"id": "1", "title": "Wings lift", "text": text}, {"id": "2", "text": "Hulls."}]
    index = tmp_path / "x.index"
    strop("build", "-", "-o", index, stdin=jsonl(*rows))
    shown = strop("search", index, "what slows ships", "-k", "1").stdout
    assert shown.count("Wings lift") == 1
    assert "Drag slows ships." in " ".join(shown.split())
    assert "No document matches" in strop("search", index, "wings", "--where", '$id="3"').stdout
    some = strop("search", index, "wings", "--json", "--fields", "id,score", "--fields", "title")
    assert some.json["hits"][0].keys() == {"rank", "id", "score", "title"}
    assert "'foo' is not one of" in strop("search", index, "wings", "--fields", "id,foo").stderr
    alone = strop("search", index, "wings", "--fields", "id")
    assert (alone.code, "give --json too" in alone.stderr) == (2, True)
