"""Texts and prompts of a small index, the command that generates queries, and catalog queries."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

from helpers.commands import CommandResult, strop
from helpers.scripted_server import ScriptedServer, Seen, user_text

KEY = "sk-secret-of-the-tests"
TOPICS = (
    "apple orchards", "river dams", "stone bridges", "cloud chambers", "forest fires",
    "steam engines", "harbour pilots", "violin varnish", "salt mines", "glass furnaces",
    "wind tunnels", "paper mills",
)  # fmt: skip
IDS = [f"d{i}" for i in range(len(TOPICS))]


def record(i: int, more: str = "") -> dict[str, str]:
    """A document; the service reads its topic in the prompt."""
    topic = TOPICS[i]
    return {"id": f"d{i}", "text": f"Notes on {topic}, part {i}. They tell how {topic} work.{more}"}


def topics_in(prompt: str) -> list[str]:
    """The topics of the document and the references in a prompt, in order."""
    return re.findall(r"Notes on ([a-z ]+), part", prompt)


def write(prompt: str) -> str:
    """Reply with two queries on the topics of the document and of its first reference."""
    own, *others = topics_in(prompt)
    other = others[0] if others else "nothing"
    queries = (f"how do {own} work", f"{own} explained without {other}")
    return "".join(f"<PLAN>It is about {own}.</PLAN><QUERY>{query}</QUERY>" for query in queries)


def document_of(seen: Seen) -> str:
    """The id of the document that a request is about."""
    return f"d{TOPICS.index(topics_in(user_text(seen.body))[0])}"


def command(
    index: Path, server: ScriptedServer, *args: str | Path, lm: str = "openai:m"
) -> list[str]:
    """The arguments that generate queries for an index with the scripted service."""
    url = server.root if lm.startswith("anthropic") else server.url
    options = ("--lm-option", "retries=1", "--lm-option", "backoff=0.01")
    return [str(arg) for arg in ("queries", index, "--lm", lm, "--base-url", url, *options, *args)]


def run(
    index: Path, server: ScriptedServer, *args: str | Path, lm: str = "openai:m", **more: Any
) -> CommandResult:
    """Generate queries; the command must succeed."""
    result = strop(*command(index, server, *args, lm=lm), **more)
    assert result.code == 0, result.stderr
    return result


def count_requests(server: ScriptedServer) -> int:
    """The number of requests to the language model."""
    paths = ("/chat/completions", "/completions", "/v1/messages")
    return sum(seen.path.endswith(paths) for seen in server.seen)


def rows(index: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of the catalog."""
    connection = sqlite3.connect(index / "catalog.sqlite")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def count_rows(index: Path, table: str) -> int:
    """The number of rows of a table of the catalog."""
    return int(rows(index, f"SELECT count(*) FROM {table}")[0][0])


def query_lists(index: Path, name: str) -> dict[str, list[str]]:
    """The queries of a set, by document."""
    from strop import Index

    with Index.open(index) as opened:
        return dict(opened.query_lists(name))


def folder_bytes(index: Path) -> bytes:
    """The bytes of all files in a folder."""
    return b"".join(file.read_bytes() for file in sorted(index.rglob("*")) if file.is_file())
