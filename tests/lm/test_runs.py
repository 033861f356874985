"""Runs of concurrent calls: order, limits, ends and interrupts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.lm import both, model, replies, requests
from helpers.scripted_server import Answer, ScriptedServer, Seen, user_text

from strop.common.retries import Policy
from strop.lm import Failure, Reply, Request
from strop.lm.runner import Run

# -- concurrency -----------------------------------------------------------------------------


@both
def test_concurrency_is_used_and_not_exceeded(server: ScriptedServer, family: str) -> None:
    server.latency = 0.05
    assert len(replies(model(server, family, concurrency=5).complete(requests(40)))) == 40
    assert server.most_active == 5
    assert len(server.seen) == 40


@both
def test_rate_limits_lower_concurrency_and_success_raises_it(
    server: ScriptedServer, family: str
) -> None:
    capacity = 3

    def limited(seen: Seen) -> Answer:
        if server.active > capacity:
            return Answer(529 if family == "anthropic" else 429, {}, delay=0.002)
        make_reply = server.openai_reply if family == "openai" else server.anthropic_reply
        return Answer(200, make_reply(seen.body), delay=0.01)

    server.act = limited
    run = model(server, family, concurrency=16).complete(requests(400))
    limits = []
    for count, result in enumerate(run):
        assert isinstance(result, Reply)
        limits.append(run.limit)
        if count == 200:
            capacity = 100  # no rate limit any more
    assert len(limits) == 400
    settled = limits[60:200]
    assert min(settled) <= capacity
    assert max(settled) <= 5
    assert limits[-1] == 16
    refused = len(server.seen) - 400
    assert refused < 100


def test_requests_are_read_lazily_in_the_callers_thread(server: ScriptedServer) -> None:
    server.latency = 0.005
    n_read, thread = 0, threading.get_ident()

    def source() -> Iterator[Request]:
        nonlocal n_read
        for item in requests(60):
            assert threading.get_ident() == thread
            n_read += 1
            yield item

    run = model(server, concurrency=4).complete(source())
    assert n_read == 0
    for count, _ in enumerate(run):
        assert n_read - count <= 4
        if count == 5:
            time.sleep(0.1)
            assert n_read - count <= 4
    assert n_read == 60


def test_send_more_reads_a_few_requests_ahead(server: ScriptedServer) -> None:
    server.latency = 0.1
    n_read = 0

    def source() -> Iterator[Request]:
        nonlocal n_read
        for item in requests(200):
            n_read += 1
            yield item

    run = model(server, concurrency=40).complete(source())
    keys = set()
    for result in run:
        for reply in (result, *run.ready()):
            assert isinstance(reply, Reply)
            keys.add(reply.key)
        run.send_more()
        assert n_read - len(keys) <= 60
    assert len(keys) == n_read == len(server.seen) == 200
    assert server.most_active <= 40


def test_replies_come_in_order_of_arrival(server: ScriptedServer) -> None:
    def slow_first(seen: Seen) -> Answer:
        slow = user_text(seen.body).endswith("k0")
        return Answer(200, server.openai_reply(seen.body), delay=0.5 if slow else 0.001)

    server.act = slow_first
    keys = [result.key for result in model(server, concurrency=2).complete(requests(10))]
    assert keys[-1] == "k0"
    assert len(keys) == 10


def test_a_run_ends_with_its_requests_and_loses_no_reply(server: ScriptedServer) -> None:
    server.latency = 0.02
    stop = False

    def source() -> Iterator[Request]:
        for item in requests(1000):
            if stop:
                return
            yield item

    n_replies = 0
    for result in model(server, concurrency=8).complete(source()):
        assert isinstance(result, Reply)
        n_replies += 1
        stop = n_replies >= 20
    assert 20 <= n_replies <= 28
    assert n_replies == len(server.seen)


def test_an_error_in_the_requests_comes_after_the_replies(server: ScriptedServer) -> None:
    server.latency = 0.02

    def source() -> Iterator[Request]:
        yield from requests(3)
        raise KeyError("no more")

    results: list[Reply | Failure] = []
    with pytest.raises(KeyError, match="no more"):
        results.extend(model(server).complete(source()))
    assert len(results) == 3


@both
def test_closing_a_run_returns_the_replies_in_flight(server: ScriptedServer, family: str) -> None:
    read: list[str] = []

    def source() -> Iterator[Request]:
        for item in requests(100):
            read.append(item.key)
            yield item

    def act(seen: Seen) -> Answer:
        if user_text(seen.body).endswith(("k3", "k4")):
            return Answer(503, {})
        make_reply = server.openai_reply if family == "openai" else server.anthropic_reply
        return Answer(200, make_reply(seen.body), delay=0.2)

    server.act = act
    lm = model(server, family, concurrency=6, backoff=60.0)
    run: Run = lm.complete(source())
    first = [next(run) for _ in range(4)]
    deadline = time.monotonic() + 60
    while len(server.seen) < len(first) + 2 + 2 and time.monotonic() < deadline:
        time.sleep(0.005)  # until two more are in flight, besides the two refused
    start = time.monotonic()
    rest = run.close()
    assert time.monotonic() - start < 30  # it does not wait for a retry
    assert sorted(r.key for r in (*first, *rest)) == sorted(read)
    failures = [r for r in rest if isinstance(r, Failure)]
    sent = {user_text(seen.body).split()[-1] for seen in server.seen}
    assert {r.key for r in failures} == {"k3", "k4"} | (set(read) - sent)
    assert not any(r.final for r in failures)
    assert sum(isinstance(r, Reply) for r in rest) >= 2
    assert run.close() == []
    assert list(run) == []
    n_calls = len(server.seen)
    time.sleep(0.15)
    assert len(server.seen) == n_calls
    assert not [thread for thread in threading.enumerate() if thread.name == "strop-lm"]


def test_an_interrupt_loses_no_reply(server: ScriptedServer) -> None:
    server.paused = True
    main_thread = threading.get_ident()

    def interrupt() -> None:
        while len(server.seen) < 5:
            time.sleep(0.005)
        signal.pthread_kill(main_thread, signal.SIGINT)

    # A process that a script starts in the background ignores SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = model(server, concurrency=5).complete(requests(50))
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            next(run)
    finally:
        signal.signal(signal.SIGINT, handler)
        server.paused = False
    assert sorted(replies(run.close())) == ["k0", "k1", "k2", "k3", "k4"]


def test_a_deleted_run_sends_no_more_requests(server: ScriptedServer) -> None:
    server.latency = 0.2
    run = model(server, concurrency=3).complete(requests(50))
    next(run)
    del run
    for thread in threading.enumerate():
        if thread.name == "strop-lm":
            thread.join(60)
    assert len(server.seen) <= 3


def test_closing_a_run_before_a_fatal_error(server: ScriptedServer) -> None:
    server.act = lambda seen: Answer(401, {"error": {"message": "no"}}, delay=0.1)
    sent = requests(3)
    run = model(server, concurrency=3).complete(sent)
    run.send_more()
    time.sleep(0.05)
    rest = run.close()
    assert sorted(r.key for r in rest) == ["k0", "k1", "k2"]
    assert all(isinstance(r, Failure) and not r.final for r in rest)


def test_a_bug_in_a_call_is_raised() -> None:
    def call(request: Request) -> Any:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        list(Run(requests(5), call, concurrency=2, policy=Policy()))
