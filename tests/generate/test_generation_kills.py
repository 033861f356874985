"""A run that is killed many times loses no reply and sends no answered request again."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.crashes import Forks, ask
from helpers.fakes import create
from helpers.scripted_server import Answer, ScriptedServer, Seen, hang, user_text

from strop import Document

KILLS = int(os.environ.get("STROP_KILLS", "30"))
SLOTS = 4


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    jobs = Forks(tmp_path)
    yield jobs
    jobs.close()


def reply_text(prompt: str) -> str:
    """The reply to a prompt: a fixed one, different for each prompt."""
    word = next(word for word in prompt.split() if word.startswith("alder"))
    return f"<QUERY>where grows {word}</QUERY><QUERY>how tall is {word}</QUERY>"


def stored_replies(path: Path) -> dict[str, str]:
    with sqlite3.connect(path / "catalog.sqlite") as connection:
        return dict(connection.execute("SELECT key, text FROM replies"))


def wait_for_requests(server: ScriptedServer, count: int) -> bool:
    """Wait until the server has had ``count`` requests; return whether it has."""
    deadline = time.monotonic() + 120
    while len(server.seen) < count and time.monotonic() < deadline:
        time.sleep(0.002)
    return len(server.seen) >= count


def answer_first(server: ScriptedServer, count: int) -> Callable[[Seen], Answer]:
    """Answer the first ``count`` requests and let the later ones hang."""
    return lambda seen: server.respond(seen) if len(server.seen) <= count else hang(seen)


def count_after_disconnect(server: ScriptedServer) -> int:
    """The number of requests that the server has had, once its client has disconnected."""
    count = -1
    while server.open or count < len(server.seen):  # one may still wait to be accepted
        count = len(server.seen)
        time.sleep(0.03)
    return count


def test_kills_lose_no_reply_and_repeat_no_answered_request(
    tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "STROP_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    index, undisturbed = tmp_path / "index", tmp_path / "whole"
    size = 10 * KILLS
    with create(index) as built:
        built.add(Document(f"d{i}", f"Here alder{i} grows, and birch{i % 7}.") for i in range(size))
    shutil.copytree(index, undisturbed)
    forks.load("strop.common.transport")
    rng = random.Random(4)
    runs: list[list[str]] = []
    with ScriptedServer(latency=0.01) as server:
        server.text = reply_text
        for _ in range(KILLS):
            before = len(server.seen)
            server.act = answer_first(server, before + 8)  # then it waits to be killed
            pid = forks.start(ask, index, server.url, SLOTS)
            assert wait_for_requests(server, before + rng.randint(1, 8)) or forks.has_failed
            time.sleep(rng.uniform(0, 0.02))
            assert forks.kill(pid) == -9, "the run was over before it could be killed"
            after = count_after_disconnect(server)
            runs.append([user_text(seen.body) for seen in server.seen[before:after]])
        before = len(server.seen)
        server.act = server.respond
        assert forks.run(ask, index, server.url, SLOTS) == 0
        runs.append([user_text(seen.body) for seen in server.seen[before:]])
        sent = Counter(prompt for prompts in runs for prompt in prompts)
        assert len(sent) == size
        for at, prompts in enumerate(runs):
            later = {prompt for other in runs[at + 1 :] for prompt in other}
            assert len(set(prompts)) == len(prompts), "one process asked the same twice"
            # In flight: requests not answered yet, and replies not committed yet.
            assert len(later & set(prompts)) <= 2 * SLOTS, "more was asked again than was in flight"
        before = len(server.seen)
        assert forks.run(ask, index, server.url, SLOTS) == 0
        assert len(server.seen) == before, "a complete run asked something"
        assert forks.run(ask, undisturbed, server.url, SLOTS) == 0
    assert stored_replies(index) == stored_replies(undisturbed)
    assert len(stored_replies(index)) == size
