"""Ctrl-C at any moment of a run: every reply of the service is stored."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.scripted_server import ScriptedServer

from strop import Index
from strop.common import interrupts
from strop.generate import GenerationSettings, PromptSettings

TIMES = int(os.environ.get("STROP_INTERRUPTS", "12"))
pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGINT, usual)


@pytest.mark.parametrize("concurrency", [8, 64])
def test_replies_before_an_interrupt_are_stored(tmp_path: Path, concurrency: int) -> None:
    rng = random.Random(concurrency)
    settings = GenerationSettings(PromptSettings(style="simple"))
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    interrupted = 0
    for at in range(TIMES):
        with (
            ScriptedServer(latency=0.01) as server,
            Index.create(tmp_path / str(at), lambda texts: np.ones((len(texts), 4))) as index,
        ):
            server.text = lambda prompt: "<query>what is it</query>"
            index.add({"id": str(i), "text": f"Text number {i}."} for i in range(200))
            options: dict[str, Any] = {"base_url": server.url, "concurrency": concurrency}
            plan = index.generation("openai:scripted", settings, **options).plan
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.01, 0.15))
            try:
                plan.run()
                # Only now: the timer may interrupt until the last moment of the run.
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            plan = index.generation("openai:scripted", settings, **options).plan
            assert 200 - sum(1 for _ in plan.open_requests()) == len(server.seen)
    assert interrupted


def test_the_first_interrupt_is_deferred_and_a_later_one_is_not() -> None:
    reached = []

    def interrupted() -> None:
        with interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
            reached.append("after the first")
            with pytest.raises(KeyboardInterrupt):
                interrupts.check()
            interrupts.check()  # raised once only
            signal.raise_signal(signal.SIGINT)
            reached.append("after another")
            signal.raise_signal(signal.SIGINT)
            reached.append("never")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == ["after the first", "after another"]
    interrupts.check()  # no interrupt is pending
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_without_a_check_is_raised_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        signal.raise_signal(signal.SIGINT)


def test_another_signal_handler_is_not_replaced() -> None:
    calls = []
    signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    with interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
    assert calls == [1]


def test_half_a_surrogate_pair_does_not_lose_the_reply(tmp_path: Path) -> None:
    settings = GenerationSettings(PromptSettings(style="simple"))
    with (
        ScriptedServer() as server,
        Index.create(tmp_path / "index", lambda texts: np.ones((len(texts), 4))) as index,
    ):
        server.text = lambda prompt: "<query>what is \ud83d</query>"
        index.add({"id": str(i), "text": f"Text number {i}."} for i in range(40))
        plan = index.generation("openai:scripted", settings, base_url=server.url)
        assert plan.run().spending.replies == 40
