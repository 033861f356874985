"""A run that is killed over and over asks nothing twice that was answered, and loses nothing."""

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
    running = Forks(tmp_path)
    yield running
    running.close()


def written(prompt: str) -> str:
    """What the model says to a prompt: always the same, and different for each."""
    word = next(word for word in prompt.split() if word.startswith("alder"))
    return f"<QUERY>where grows {word}</QUERY><QUERY>how tall is {word}</QUERY>"


def stored(path: Path) -> dict[str, str]:
    with sqlite3.connect(path / "catalog.sqlite") as connection:
        return dict(connection.execute("SELECT key, text FROM replies"))


def wait_for(server: ScriptedServer, count: int) -> bool:
    """Wait until the server has seen so many requests; say whether it has."""
    patience = time.monotonic() + 120
    while len(server.seen) < count and time.monotonic() < patience:
        time.sleep(0.002)
    return len(server.seen) >= count


def answers(server: ScriptedServer, most: int) -> Callable[[Seen], Answer]:
    """Answer so many requests, and none that comes later."""
    return lambda seen: server.respond(seen) if len(server.seen) <= most else hang(seen)


def settled(server: ScriptedServer) -> int:
    """How many requests the server has seen, once it knows that its client is gone."""
    count = -1
    while server.open or count < len(server.seen):  # one may still wait to be accepted
        count = len(server.seen)
        time.sleep(0.03)
    return count


def test_kills_lose_nothing_and_ask_nothing_twice(
    tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "STROP_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    index, whole = tmp_path / "index", tmp_path / "whole"
    size = 10 * KILLS
    with create(index) as made:
        made.add(Document(f"d{i}", f"Here alder{i} grows, and birch{i % 7}.") for i in range(size))
    shutil.copytree(index, whole)
    forks.load("strop.common.transport")
    chance = random.Random(4)
    lives: list[list[str]] = []
    with ScriptedServer(latency=0.01) as server:
        server.text = written
        for _ in range(KILLS):
            before = len(server.seen)
            server.act = answers(server, before + 8)  # then it waits to be killed
            pid = forks.start(ask, index, server.url, SLOTS)
            assert wait_for(server, before + chance.randint(1, 8)) or forks.has_failed
            time.sleep(chance.uniform(0, 0.02))
            assert forks.kill(pid) == -9, "the run was over before it could be killed"
            after = settled(server)
            lives.append([user_text(seen.body) for seen in server.seen[before:after]])
        before = len(server.seen)
        server.act = server.respond
        assert forks.run(ask, index, server.url, SLOTS) == 0
        lives.append([user_text(seen.body) for seen in server.seen[before:]])
        asked = Counter(prompt for life in lives for prompt in life)
        assert len(asked) == size
        for at, life in enumerate(lives):
            later = {prompt for others in lives[at + 1 :] for prompt in others}
            assert len(set(life)) == len(life), "one process asked the same twice"
            # In flight: calls under way, and replies whose commit had not ended.
            assert len(later & set(life)) <= 2 * SLOTS, "more was asked again than was in flight"
        before = len(server.seen)
        assert forks.run(ask, index, server.url, SLOTS) == 0
        assert len(server.seen) == before, "a complete run asked something"
        assert forks.run(ask, whole, server.url, SLOTS) == 0
    assert stored(index) == stored(whole)
    assert len(stored(index)) == size
