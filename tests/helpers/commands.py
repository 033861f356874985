"""Running the command line, small datasets, a scripted service that needs a key."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from helpers.scripted_server import ScriptedServer
from strop.cli.main import main

# Variables that make rich color its output or wrap it at another width.
_PLAIN = dict.fromkeys(("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"))


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Its standard output, all of which must be one JSON value."""
        assert self.code == 0, self.stderr
        return json.loads(self.stdout)


def strop(*args: str | Path, stdin: str | bytes | None = None) -> CommandResult:
    """Run the command in this process; what it does not handle is raised."""
    result = CliRunner(env=_PLAIN).invoke(
        main,
        [str(arg) for arg in args],
        prog_name="strop",
        input=stdin,
        catch_exceptions=False,
    )
    return CommandResult(result.exit_code, result.stdout, result.stderr)


def python_m_strop(*args: str | Path, cwd: Path | None = None, **options: Any) -> CommandResult:
    """Run the command in a process of its own."""
    env = {key: value for key, value in os.environ.items() if key not in _PLAIN}
    process = subprocess.run(
        [sys.executable, "-m", "strop", *map(str, args)],
        capture_output=True, text=True, encoding="utf-8", cwd=cwd, env=env, check=False, **options,
    )  # fmt: skip
    return CommandResult(process.returncode, process.stdout, process.stderr)


def jsonl(*records: object) -> str:
    """Return records as JSON lines."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def beir(folder: Path, queries: dict[str, str], qrels: dict[str, dict[str, int]]) -> Path:
    """Write a dataset as a BEIR folder."""
    (folder / "qrels").mkdir(parents=True)
    lines = jsonl(*({"_id": id_, "text": text} for id_, text in queries.items()))
    (folder / "queries.jsonl").write_text(lines, "utf-8")
    rows = [f"{q}\t{d}\t{grade}\n" for q, grades in qrels.items() for d, grade in grades.items()]
    (folder / "qrels" / "test.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *rows]))
    return folder


@contextmanager
def keyed_server(monkeypatch: pytest.MonkeyPatch, key: str) -> Iterator[ScriptedServer]:
    """A scripted server that needs a key, and an environment with this key only."""
    # Nothing here is encrypted, and loading certificates takes longer than most of the tests.
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *args, **options: None)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STROP_API_KEY", key)
    with ScriptedServer() as running:
        running.key = key
        yield running
