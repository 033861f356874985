"""Runs of many calls at a time: order, bounds, ends and interrupts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.lm import both, model, replies, requests, serving
from helpers.scripted_server import Answer, ScriptedServer, Seen, user_text

from strop.common.retries import Policy
from strop.lm import Failure, Reply, Request
from strop.lm.runner import Run


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with serving(monkeypatch) as running:
        yield running


# -- how many at a time ----------------------------------------------------------------------


@both
def test_concurrency_is_used_and_bounded(server: ScriptedServer, family: str) -> None:
    server.latency = 0.05
    assert len(replies(model(server, family, concurrency=5).complete(requests(40)))) == 40
    assert server.most_active == 5
    assert len(server.seen) == 40


@both
def test_rate_limits_lower_the_number_and_success_raises_it(
    server: ScriptedServer, family: str
) -> None:
    most = 3

    def limited(seen: Seen) -> Answer:
        if server.active > most:
            return Answer(529 if family == "anthropic" else 429, {}, delay=0.002)
        good = server.openai_reply if family == "openai" else server.anthropic_reply
        return Answer(200, good(seen.body), delay=0.01)

    server.act = limited
    run = model(server, family, concurrency=16).complete(requests(400))
    limits = []
    for count, result in enumerate(run):
        assert isinstance(result, Reply)
        limits.append(run.limit)
        if count == 200:
            most = 100  # room for everybody again
    assert len(limits) == 400
    settled = limits[60:200]
    assert min(settled) <= most
    assert max(settled) <= 5
    assert limits[-1] == 16
    refused = len(server.seen) - 400
    assert refused < 100


def test_requests_are_pulled_here_and_no_further_than_needed(server: ScriptedServer) -> None:
    server.latency = 0.005
    pulled, here = 0, threading.get_ident()

    def source() -> Iterator[Request]:
        nonlocal pulled
        for item in requests(60):
            assert threading.get_ident() == here
            pulled += 1
            yield item

    run = model(server, concurrency=4).complete(source())
    assert pulled == 0
    for count, _ in enumerate(run):
        assert pulled - count <= 4
        if count == 5:
            time.sleep(0.1)
            assert pulled - count <= 4
    assert pulled == 60


def test_of_many_at_a_time_some_wait_in_line(server: ScriptedServer) -> None:
    server.latency = 0.1
    pulled = 0

    def source() -> Iterator[Request]:
        nonlocal pulled
        for item in requests(200):
            pulled += 1
            yield item

    run = model(server, concurrency=40).complete(source())
    keys = set()
    for result in run:
        for come in (result, *run.ready()):
            assert isinstance(come, Reply)
            keys.add(come.key)
        run.send_more()
        assert pulled - len(keys) <= 60
    assert len(keys) == pulled == len(server.seen) == 200
    assert server.most_active <= 40


def test_each_reply_comes_as_soon_as_it_is_there(server: ScriptedServer) -> None:
    def slow_first(seen: Seen) -> Answer:
        slow = user_text(seen.body).endswith("k0")
        return Answer(200, server.openai_reply(seen.body), delay=0.5 if slow else 0.001)

    server.act = slow_first
    keys = [result.key for result in model(server, concurrency=2).complete(requests(10))]
    assert keys[-1] == "k0"
    assert len(keys) == 10


def test_ending_the_requests_ends_the_run_without_loss(server: ScriptedServer) -> None:
    server.latency = 0.02
    stop = False

    def source() -> Iterator[Request]:
        for item in requests(1000):
            if stop:
                return
            yield item

    got = 0
    for result in model(server, concurrency=8).complete(source()):
        assert isinstance(result, Reply)
        got += 1
        stop = got >= 20
    assert 20 <= got <= 28
    assert got == len(server.seen)


def test_an_error_in_the_requests_comes_after_the_replies(server: ScriptedServer) -> None:
    server.latency = 0.02

    def source() -> Iterator[Request]:
        yield from requests(3)
        raise KeyError("no more")

    got: list[Reply | Failure] = []
    with pytest.raises(KeyError, match="no more"):
        got.extend(model(server).complete(source()))
    assert len(got) == 3


@both
def test_closing_hands_over_what_was_on_its_way(server: ScriptedServer, family: str) -> None:
    pulled: list[str] = []

    def source() -> Iterator[Request]:
        for item in requests(100):
            pulled.append(item.key)
            yield item

    def act(seen: Seen) -> Answer:
        if user_text(seen.body).endswith(("k3", "k4")):
            return Answer(503, {})
        good = server.openai_reply if family == "openai" else server.anthropic_reply
        return Answer(200, good(seen.body), delay=0.2)

    server.act = act
    lm = model(server, family, concurrency=6, backoff=60.0)
    run: Run = lm.complete(source())
    first = [next(run) for _ in range(4)]
    deadline = time.monotonic() + 60
    while len(server.seen) < len(first) + 2 + 2 and time.monotonic() < deadline:
        time.sleep(0.005)  # until two more are on their way, besides the two refused
    start = time.monotonic()
    rest = run.close()
    assert time.monotonic() - start < 30  # it does not wait for the next try
    assert sorted(r.key for r in (*first, *rest)) == sorted(pulled)
    waited = [r for r in rest if isinstance(r, Failure)]
    sent = {user_text(seen.body).split()[-1] for seen in server.seen}
    assert {r.key for r in waited} == {"k3", "k4"} | (set(pulled) - sent)
    assert not any(r.final for r in waited)
    assert sum(isinstance(r, Reply) for r in rest) >= 2
    assert run.close() == []
    assert list(run) == []
    calls = len(server.seen)
    time.sleep(0.15)
    assert len(server.seen) == calls
    assert not [thread for thread in threading.enumerate() if thread.name == "strop-lm"]


def test_an_interrupt_loses_nothing(server: ScriptedServer) -> None:
    server.held = True
    main = threading.get_ident()

    def interrupt() -> None:
        while len(server.seen) < 5:
            time.sleep(0.005)
        signal.pthread_kill(main, signal.SIGINT)

    # A process started in the background of a script ignores the signal.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = model(server, concurrency=5).complete(requests(50))
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            next(run)
    finally:
        signal.signal(signal.SIGINT, usual)
        server.held = False
    assert sorted(replies(run.close())) == ["k0", "k1", "k2", "k3", "k4"]


def test_a_run_that_is_dropped_sends_nothing_more(server: ScriptedServer) -> None:
    server.latency = 0.2
    run = model(server, concurrency=3).complete(requests(50))
    next(run)
    del run
    for thread in threading.enumerate():
        if thread.name == "strop-lm":
            thread.join(60)
    assert len(server.seen) <= 3


def test_closing_a_run_that_was_about_to_fail(server: ScriptedServer) -> None:
    server.act = lambda seen: Answer(401, {"error": {"message": "no"}}, delay=0.1)
    pulled = requests(3)
    run = model(server, concurrency=3).complete(pulled)
    run.send_more()
    time.sleep(0.05)
    rest = run.close()
    assert sorted(r.key for r in rest) == ["k0", "k1", "k2"]
    assert all(isinstance(r, Failure) and not r.final for r in rest)


def test_a_mistake_in_the_program_is_not_hidden() -> None:
    def call(asked: Request) -> Any:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        list(Run(requests(5), call, concurrency=2, policy=Policy()))
