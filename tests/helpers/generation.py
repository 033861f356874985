"""A small index, a scripted service that writes queries for it, and what the catalog then holds."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

from helpers.commands import Ran, strop
from helpers.scripted_server import ScriptedServer, Seen, user_text

KEY = "sk-secret-of-the-tests"
TOPICS = (
    "apple orchards", "river dams", "stone bridges", "cloud chambers", "forest fires",
    "steam engines", "harbour pilots", "violin varnish", "salt mines", "glass furnaces",
    "wind tunnels", "paper mills",
)  # fmt: skip
IDS = [f"d{i}" for i in range(len(TOPICS))]


def record(i: int, more: str = "") -> dict[str, str]:
    """A document whose topic the service finds in the prompt."""
    topic = TOPICS[i]
    return {"id": f"d{i}", "text": f"Notes on {topic}, part {i}. They tell how {topic} work.{more}"}


def topics_in(prompt: str) -> list[str]:
    """The topics of the document and of the references in a prompt, in order."""
    return re.findall(r"Notes on ([a-z ]+), part", prompt)


def write(prompt: str) -> str:
    """Reply as asked: two queries, on the document's topic and the first reference's."""
    own, *others = topics_in(prompt)
    other = others[0] if others else "nothing"
    made = (f"how do {own} work", f"{own} explained without {other}")
    return "".join(f"<PLAN>It is about {own}.</PLAN><QUERY>{one}</QUERY>" for one in made)


def document_of(seen: Seen) -> str:
    """The id of the document that a call is about."""
    return f"d{TOPICS.index(topics_in(user_text(seen.body))[0])}"


def command(
    index: Path, server: ScriptedServer, *args: str | Path, lm: str = "openai:m"
) -> list[str]:
    """The arguments that have queries for an index written by the service."""
    url = server.root if lm.startswith("anthropic") else server.url
    quick = ("--lm-option", "retries=1", "--lm-option", "backoff=0.01")
    return [str(one) for one in ("queries", index, "--lm", lm, "--base-url", url, *quick, *args)]


def run(
    index: Path, server: ScriptedServer, *args: str | Path, lm: str = "openai:m", **more: Any
) -> Ran:
    """Have queries written; anything but success fails the test."""
    ran = strop(*command(index, server, *args, lm=lm), **more)
    assert ran.code == 0, ran.stderr
    return ran


def asked(server: ScriptedServer) -> int:
    """How many questions the service has got, each in a call of its own."""
    paths = ("/chat/completions", "/completions", "/v1/messages")
    return sum(seen.path.endswith(paths) for seen in server.seen)


def rows(index: Path, sql: str) -> list[tuple[Any, ...]]:
    """What the catalog says."""
    connection = sqlite3.connect(index / "catalog.sqlite")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def count(index: Path, table: str) -> int:
    """How many rows a table of the catalog has."""
    return int(rows(index, f"SELECT count(*) FROM {table}")[0][0])


def lists(index: Path, name: str) -> dict[str, list[str]]:
    """A set's queries by document."""
    from strop import Index

    with Index.open(index) as opened:
        return dict(opened.query_lists(name))


def everything(index: Path) -> bytes:
    """All bytes in the folder."""
    return b"".join(file.read_bytes() for file in sorted(index.rglob("*")) if file.is_file())
