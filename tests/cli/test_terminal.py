"""Terminal output: control characters are escaped; line widths, progress bars, encodings."""

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
CONTROLS = "\x1b[31m \x07 \x7f \x9b31m \u202e \u2066 \U000e0001"
ESCAPED = r"\u001b[31m \u0007 \u007f \u009b31m \u202e \u2066 \udb40\udc01"


def control_characters(text: str) -> list[str]:
    """Return the characters of a text that a terminal could interpret."""
    return [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf")]


@given(st.text())
def test_escaping_replaces_control_characters_and_nothing_else(text: str) -> None:
    shown = escape_controls(text)
    assert not control_characters(shown)
    kept = [c for c in text if not control_characters(c)]
    assert list(escape_controls("".join(kept))) == kept
    document = json.dumps([text], ensure_ascii=False)
    assert json.loads(escape_controls(document)) == [text]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """An index with control characters in every field of its document."""
    document = {"id": f"d {CONTROLS}", "title": f"title {CONTROLS}", "text": f"A text. {CONTROLS}"}
    document |= {f"key {CONTROLS}": f"value {CONTROLS}"}
    path = tmp_path / "hostile.index"
    assert strop("build", "-", "-o", path, stdin=jsonl(document)).code == 0
    lists = jsonl({"id": document["id"], "queries": [f"a query {CONTROLS}"]})
    result = strop("queries", path, "--file", "-", "--style", "simple", stdin=lists)
    assert result.code == 0
    return path


def test_documents_are_shown_without_control_characters(hostile: Path, tmp_path: Path) -> None:
    id_ = f"d {CONTROLS}"
    folder = beir(tmp_path / "data", {f"q{CONTROLS}": "a text"}, {f"q{CONTROLS}": {id_: 1}})
    calls: list[tuple[list[str | Path], list[str]]] = [
        (["show", hostile, id_], ["d", "title", "A text.", "key", "value", "a query"]),
        (["search", hostile, "a text"], ["d", "title", "A text."]),
        (["search", hostile, "a text", "--explain"], ["d", "a query"]),
    ]
    for args, parts in calls:
        result = strop(*args)
        assert (result.code, control_characters(result.stdout), result.stderr) == (0, [], "")
        for part in parts:
            assert f"{part} {ESCAPED}" in result.stdout
        as_json = strop(*args, "--json")
        assert control_characters(as_json.stdout) == []
        assert id_ in (as_json.json.get("id"), *(hit["id"] for hit in as_json.json.get("hits", [])))
    result = strop("eval", hostile, folder, "--json", "--per-query")
    assert (result.code, control_characters(result.stdout + result.stderr)) == (0, [])


def test_arguments_are_shown_without_control_characters(hostile: Path, tmp_path: Path) -> None:
    odd = tmp_path / f"no {CONTROLS}.jsonl"
    for args in (
        [f"polish{CONTROLS}"],
        [f"--{CONTROLS}"],
        ["search", hostile, "x", f"--{CONTROLS}"],
        ["search", hostile, "x", "--method", f"x{CONTROLS}"],
        ["search", hostile, "x", "-k", CONTROLS],
        ["show", hostile, CONTROLS],
        ["add", hostile, odd],
        ["info", odd],
        ["remove", hostile, CONTROLS],
        ["eval", hostile, odd],
        ["build", hostile, "-o", hostile, "--option", CONTROLS],
        ["references", hostile, "--k", CONTROLS],
    ):
        result = strop(*args)
        assert result.code in (1, 2), args
        assert control_characters(result.stdout + result.stderr) == [], args
        assert "u009b31m" in result.stderr or "x9b31m" in result.stderr, args


def test_corpus_errors_are_shown_without_control_characters(hostile: Path, tmp_path: Path) -> None:
    for name, content in (
        ("c.jsonl", json.dumps({"id": "x", CONTROLS: "y"}, ensure_ascii=False)),
        ("c.csv", f"id,text,{CONTROLS},{CONTROLS}\n"),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
        result = strop("add", hostile, tmp_path / name)
        assert (result.code, control_characters(result.stderr)) == (1, [])


def test_windows_line_ends_are_not_escaped(tmp_path: Path) -> None:
    index = tmp_path / "x.index"
    strop("build", "-", "-o", index, stdin=jsonl({"id": "1", "text": "One line.\r\nTwo.\rOver"}))
    assert "One line.\nTwo.\\u000dOver\n" in strop("show", index, "1").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_progress_bars_are_not_in_the_json(corpus: Path, tmp_path: Path) -> None:
    stdout, stderr = _in_terminal("-m", "strop", "build", corpus, "-o", tmp_path / "x", "--json")
    assert json.loads(stdout)["new"] == 60
    assert b"embedding documents" in stderr
    assert b"embedding sentences" in stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize(("step", "unit"), [(1000, rb"\d/s\b"), (0.01, rb"\d\.\d/min\b")])
def test_progress_bars_show_a_rate(step: float, unit: bytes) -> None:
    program = f"""
import time
from strop.cli.messages import progress_bars
with progress_bars() as show:
    for at in range(6):
        show("work", at * {step}, 6 * {step})
        time.sleep(0.1)
"""
    assert re.search(unit, _in_terminal("-c", program)[1])


def _in_terminal(*args: str | Path) -> tuple[bytes, bytes]:
    """Run Python with a terminal as its standard error; return both outputs."""
    import pty

    reader, terminal = pty.openpty()
    result = subprocess.run(
        [sys.executable, *args], stdout=subprocess.PIPE, stderr=terminal, check=True,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    stderr = b""
    while chunk := _read(reader):
        stderr += chunk
    os.close(reader)
    return result.stdout, stderr


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # raised by Linux when the other side is closed
        return b""


def test_markup_in_texts_is_not_interpreted(tmp_path: Path) -> None:
    text = "[bold]no markup[/] :smile: \x1b[31mno colour\x07 C:\\"
    shown = "[bold]no markup[/] :smile: \\u001b[31mno colour\\u0007 C:\\"
    document = {"id": "[id] :x:", "title": "[i]t[/i]", "text": text, "kind": "[dim]:heart:"}
    index = tmp_path / "odd.index"
    assert strop("build", "-", "-o", index, stdin=jsonl(document)).code == 0
    for verb, argument in (("show", "[id] :x:"), ("search", "no")):
        output = strop(verb, index, argument).stdout
        assert shown in output
        assert "[id] :x:" in output
        assert "[i]t[/i]" in output
    assert "kind: [dim]:heart:" in strop("show", index, "[id] :x:").stdout
    explained = strop("search", index, "no", "--explain").stdout
    assert shown in explained
    assert "similarity: cosine" in explained
    assert strop("show", index, "[id] :x:", "--json").json["text"] == text


def test_without_stored_texts_no_column_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    explanation = {"plain": 0.5, "score": 0.5, "words": 0.0, "feedback": 0.0, "queries": []}
    row = {"rank": 1, "id": "d", "title": "", "score": 0.5, "explanation": explanation}
    print_explained([row])
    output = capsys.readouterr().out
    assert "0.5000 plain" in output
    assert "moved" not in output


def test_piped_lines_are_not_wrapped(tmp_path: Path) -> None:
    long = "word " * 3000
    index = tmp_path / "long.index"
    strop("build", "-", "-o", index, stdin=jsonl({"id": "x" * 300, "text": long}))
    lines = strop("show", index, "x" * 300).stdout.splitlines()
    assert lines[1].rstrip() == long.rstrip()
    assert any("x" * 300 in line for line in strop("search", index, "word").stdout.splitlines())


def test_the_encoding_of_the_terminal_is_used(tmp_path: Path) -> None:
    text = "naïve → 🙂"
    index = tmp_path / "x.index"
    strop("build", "-", "-o", index, stdin=jsonl({"id": "1", "text": text}))
    for encoding, options in (("ascii", []), ("cp1252", ["--json"])):
        result = CliRunner(charset=encoding).invoke(main, ["show", str(index), "1", *options])
        assert (result.exit_code, result.stderr_bytes) == (0, b"")
        if options:
            assert json.loads(result.stdout_bytes.decode("cp1252"))["text"] == text
        else:
            assert rb"na\xefve \u2192 \U0001f642" in result.stdout_bytes


def test_piped_output_is_as_wide_as_columns_says(tmp_path: Path) -> None:
    index = tmp_path / "long.index"
    strop("build", "-", "-o", index, stdin=jsonl({"id": "x", "text": "word " * 300}))
    for verb in (["show", str(index), "x"], ["search", str(index), "word"], ["info", str(index)]):
        result = CliRunner(env={"COLUMNS": "50"}).invoke(main, verb, catch_exceptions=False)
        assert max(map(len, result.stdout.splitlines())) <= 50
        assert len(result.stdout.splitlines()) > 3


def test_help_is_complete_at_80_columns() -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["--help"])
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "..." not in result.stdout.partition("Build an index:")[2]
    shown = "".join(result.stdout.split())  # lines are broken at spaces and hyphens
    for verb in main.commands.values():
        assert verb.help is not None
        assert "".join(verb.help.partition("\n\n")[0].split()) in shown, verb.name


def test_help_shows_all_defaults_in_the_same_style() -> None:
    inner = main.commands["cluster"].commands.values()  # type: ignore[attr-defined]
    for verb in (*main.commands.values(), *inner):
        # With the command's own settings: click caches the first help option it makes.
        shown = verb.get_help(click.Context(verb, **main.context_settings))
        assert "default: (" not in shown, verb.name
        for option in verb.params:
            assert not (getattr(option, "help", None) or "").endswith("]"), option.name
        if verb.name == "search":
            assert "[default: all]" in shown


def test_counted_nouns_are_singular_or_plural() -> None:
    assert counted(1, "document") == "1 document"
    assert counted(2000, "document") == "2,000 documents"
    assert counted(0, "query") == "0 queries"
    assert counted(1, "query") == "1 query"


def test_a_hit_shows_its_title_once_and_its_passage(tmp_path: Path) -> None:
    text = f"# Wings lift\n\n{'More words here. ' * 9}Drag slows ships. {'The end. ' * 30}"
    rows = [{"id": "1", "title": "Wings lift", "text": text}, {"id": "2", "text": "Hulls."}]
    index = tmp_path / "x.index"
    strop("build", "-", "-o", index, stdin=jsonl(*rows))
    shown = strop("search", index, "what slows ships", "-k", "1").stdout
    assert shown.count("Wings lift") == 1
    assert "Drag slows ships." in " ".join(shown.split())
    assert "No document matches" in strop("search", index, "wings", "--where", '$id="3"').stdout
    fields = strop("search", index, "wings", "--json", "--fields", "id,score", "--fields", "title")
    assert fields.json["hits"][0].keys() == {"rank", "id", "score", "title"}
    assert "'foo' is not one of" in strop("search", index, "wings", "--fields", "id,foo").stderr
    without_json = strop("search", index, "wings", "--fields", "id")
    assert (without_json.code, "give --json too" in without_json.stderr) == (2, True)
