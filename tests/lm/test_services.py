"""Requests to services, their replies, and retries and errors; over real sockets."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import pytest
from helpers.lm import KEY, FakeClock, both, failure, model, replies, request, requests
from helpers.scripted_server import Answer, ScriptedServer, Seen, answer, drop, hang, user_text

from strop.errors import BadInput, ServiceError
from strop.lm import Failure, Reply, Usage, load

# -- requests and replies --------------------------------------------------------------------


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


def test_openai_completions(server: ScriptedServer) -> None:
    lm = model(server, completion=True, extra={"seed": 3})
    assert replies(lm.complete([request(system="")])) == {"k": "reply to a document\nquestion k"}
    assert server.seen[0].path == "/v1/completions"
    assert server.bodies[0] == {
        "model": "m", "prompt": "a document\nquestion k", "max_tokens": 50, "seed": 3,
    }  # fmt: skip
    assert list(lm.complete([request()]))
    assert server.bodies[1]["prompt"] == "be brief\n\na document\nquestion k"


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


@pytest.mark.parametrize(
    ("shared", "rest", "texts", "marked"),
    [("", "q", ["q"], False), ("d", " ", ["d "], True), (" ", "q", [" q"], False)],
)
def test_anthropic_requests_have_no_blank_blocks(
    server: ScriptedServer, shared: str, rest: str, texts: list[str], marked: bool
) -> None:
    lm = model(server, "anthropic")
    replies(lm.complete([request(system="", shared=shared, rest=rest)]))
    (body,) = server.bodies
    content = body["messages"][0]["content"]
    assert [block["text"] for block in content] == texts
    assert ("cache_control" in content[0]) == marked
    assert "system" not in body


def test_openai_account_headers(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"OPENAI_ORG_ID": "openai-organization", "OPENAI_PROJECT_ID": "openai-project"}
    for variable in names:
        monkeypatch.delenv(variable, raising=False)
    replies(model(server, "openai").complete([request()]))
    assert not {*names.values()} & server.seen[0].headers.keys()
    for variable in names:
        monkeypatch.setenv(variable, f"the {variable}")
    lm = model(server, "openai")
    replies(lm.complete([request()]))
    assert {name: server.seen[1].headers[name] for name in names.values()} == {
        name: f"the {variable}" for variable, name in names.items()
    }
    assert "the OPENAI" not in repr(lm)


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


def test_bedrock_with_a_signature(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("botocore", reason="needs strop[bedrock]")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    lm = model(server, "anthropic", bedrock=True, region="eu-west-1")
    assert replies(lm.complete([request()])) == {"k": "reply to a document\nquestion k"}
    (seen,) = server.seen
    signature = seen.headers["authorization"]
    assert signature.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-west-1/bedrock/aws4_request" in signature
    assert KEY not in str(seen.headers)
    assert seen.body["anthropic_version"] == "bedrock-2023-05-31"
    assert "model" not in seen.body


@both
def test_truncated_replies(server: ScriptedServer, family: str) -> None:
    server.finish = "length" if family == "openai" else "max_tokens"
    (reply,) = model(server, family).complete([request()])
    assert reply.truncated
    server.text = lambda prompt: ""  # all tokens went into thinking
    failed = failure(model(server, family).complete([request()]))
    assert failed.final
    assert "reached max_tokens before any text" in failed.error
    assert len(server.seen) == 2, "an answer without text is paid for, too"


@both
def test_a_declined_request_is_final(server: ScriptedServer, family: str) -> None:
    server.finish = "content_filter" if family == "openai" else "refusal"
    failed = failure(model(server, family).complete([request()]))
    assert failed.final
    assert "declined" in failed.error
    assert len(server.seen) == 1


def test_max_completion_tokens_is_tried_if_max_tokens_is_refused(server: ScriptedServer) -> None:
    server.refused_field = "max_tokens"
    lm = model(server, concurrency=1)
    assert len(replies(lm.complete(requests(3)))) == 3
    assert ["max_tokens" in body for body in server.bodies] == [True, False, False, False]
    assert server.bodies[-1]["max_completion_tokens"] == 50
    assert load("openai:m").tokens_name == "max_completion_tokens"  # type: ignore[attr-defined]

    server.refused_field = "max_completion_tokens"
    assert len(replies(lm.complete(requests(2)))) == 2  # it tries the other name again


@both
def test_a_refused_temperature_stops_the_run(server: ScriptedServer, family: str) -> None:
    error = {"error": {"message": "`temperature` is deprecated for this model."}}
    server.act = answer(400, error)
    with pytest.raises(ServiceError, match=r"temperature.*leave it out"):
        list(model(server, family).complete([request(temperature=0.7)]))


# -- retryable failures ----------------------------------------------------------------------


@both
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_retryable_failures_are_retried(server: ScriptedServer, family: str, status: int) -> None:
    server.script.extend([answer(status, {"error": {"message": "not now"}})] * 2)
    assert len(replies(model(server, family).complete([request()]))) == 1
    assert len(server.seen) == 3


def cut_short(seen: Seen) -> Answer:
    return Answer(200, b'{"choices": [{"message": {"content": "x"}}]}', cut=20)


@both
@pytest.mark.parametrize("act", [drop, cut_short])
def test_dropped_connections_are_retried(
    server: ScriptedServer, family: str, act: Callable[[Seen], Answer]
) -> None:
    server.script.extend([act] * 4)
    assert len(replies(model(server, family).complete([request()]))) == 1
    assert len(server.seen) == 5


@both
def test_timeouts_are_retried(server: ScriptedServer, family: str) -> None:
    server.script.append(hang)
    start = time.monotonic()
    assert len(replies(model(server, family, timeout=1.0).complete([request()]))) == 1
    assert time.monotonic() - start >= 1.0
    assert len(server.seen) >= 2
    server.act = hang
    failed = failure(model(server, family, timeout=0.1, retries=1).complete([request()]))
    assert not failed.final
    assert "did not answer within 0.1 seconds; gave up after 2 tries" in failed.error


def test_an_unreachable_service_stops_the_run_soon() -> None:
    clock = FakeClock()
    lm = load("openai:m", base_url="http://127.0.0.1:9/v1", clock=clock, concurrency=1)
    with pytest.raises(ServiceError, match=r"127\.0\.0\.1:9 cannot be reached.*base_url right"):
        list(lm.complete(requests(50)))
    assert clock.time - 1000 < 4, "nobody waits long for a service that was never there"


@both
def test_the_last_failure_is_reported_when_retries_end(server: ScriptedServer, family: str) -> None:
    server.act = answer(503, {"error": {"message": "overloaded,\n sorry"}})
    clock = FakeClock()
    failed = failure(model(server, family, clock=clock, retries=4).complete([request()]))
    assert not failed.final
    assert "503: overloaded, sorry; gave up after 5 tries" in failed.error
    assert len(server.seen) == 5


MALFORMED = {
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
@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_replies_are_retried_twice(
    server: ScriptedServer, family: str, content: bytes
) -> None:
    malformed = answer(200, content)
    server.script.extend([malformed, malformed])
    assert len(replies(model(server, family).complete([request()]))) == 1
    server.seen.clear()
    server.act = malformed
    failed = failure(model(server, family).complete([request()]))
    assert not failed.final
    assert "gave up after 3 tries" in failed.error
    assert len(failed.error) < 400
    assert len(server.seen) == 3


def test_an_error_in_a_reply_that_claims_success(server: ScriptedServer) -> None:
    server.script.append(answer(200, {"error": {"code": 429, "message": "busy upstream"}}))
    server.script.append(answer(200, {"error": "odd"}))
    lm = model(server)
    assert len(replies(lm.complete([request()]))) == 1
    server.script.append(answer(200, {"error": {"code": 400, "message": "no such option"}}))
    assert failure(lm.complete([request()])).final


# -- waits between tries ---------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("headers", "seconds"), [({"retry_after": "0.4"}, 0.4), ({"retry_after_ms": "300"}, 0.3)]
)
def test_no_request_is_sent_before_retry_after(
    server: ScriptedServer, family: str, headers: dict[str, str], seconds: float
) -> None:
    header_lines = {name.replace("_", "-"): value for name, value in headers.items()}
    make_reply = server.openai_reply if family == "openai" else server.anthropic_reply
    server.script.append(lambda seen: Answer(429, {}, header_lines, delay=1.0))
    # These are in flight by then; the requests after them must wait although none was refused.
    server.script.extend([lambda seen: Answer(200, make_reply(seen.body), delay=1.6)] * 3)
    assert len(replies(model(server, family, concurrency=4).complete(requests(12)))) == 12
    refused = server.seen[0]
    later = [seen.at for seen in server.seen if seen.at > refused.answered]
    assert len(later) == 9
    assert min(later) >= refused.answered + seconds
    assert min(later) < refused.answered + seconds + 60


@both
def test_a_long_retry_after_stops_the_run(server: ScriptedServer, family: str) -> None:
    server.script.append(answer(429, {}, retry_after="7200"))
    with pytest.raises(ServiceError, match=r"7,200 seconds; resume"):
        list(model(server, family).complete([request()]))


def test_backoff_is_exponential_and_random(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        ranges.append((low, high))
        return high

    monkeypatch.setattr(random, "uniform", uniform)
    server.act = answer(500, {})
    clock = FakeClock()
    failure(model(server, clock=clock, backoff=2.0).complete([request()]))
    expected = [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert ranges == [(0, limit) for limit in expected]
    assert clock.waits == pytest.approx(expected)


# -- final failures ---------------------------------------------------------------


@both
@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_request_is_final_and_does_not_stop_the_run(
    server: ScriptedServer, family: str, status: int
) -> None:
    def refuse_k3(seen: Seen) -> Answer:
        if user_text(seen.body).endswith("k3"):
            return Answer(status, {"error": {"message": "too long"}})
        return server.respond(seen)

    server.act = refuse_k3
    results = {r.key: r for r in model(server, family, concurrency=1).complete(requests(6))}
    assert [key for key, r in results.items() if isinstance(r, Failure)] == ["k3"]
    failed = results["k3"]
    assert isinstance(failed, Failure)
    assert failed.final
    assert f"{status}: too long" in failed.error
    assert len(server.seen) == 6


@both
def test_an_unknown_model_stops_the_run(server: ScriptedServer, family: str) -> None:
    server.act = answer(404, {"error": {"message": "The model `m` does not exist"}})
    with pytest.raises(ServiceError, match=r"404: The model `m` does not exist"):
        list(model(server, family).complete(requests(100)))
    assert len(server.seen) <= 16


@both
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_stops_the_run_and_is_not_shown(
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
def test_a_wrong_key_is_reported(
    server: ScriptedServer, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "right"
    monkeypatch.setenv("STROP_API_KEY", "wrong")
    with pytest.raises(ServiceError, match=r"401.*\*\*\*.*STROP_API_KEY"):
        list(model(server, family).complete([request()]))
    monkeypatch.setenv("STROP_API_KEY", "right")
    assert len(replies(model(server, family).complete([request()]))) == 1


@both
def test_the_vendors_need_a_key(server: ScriptedServer, family: str) -> None:
    with pytest.raises(BadInput, match=rf"api\.{family}\.com needs a key; set .*_API_KEY"):
        load(f"{family}:m").complete([request()])


def test_strop_api_key_comes_first(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_exceeded_quota_stops_the_run(
    server: ScriptedServer, family: str, status: int, error: dict[str, str]
) -> None:
    server.act = answer(status, {"error": error})
    with pytest.raises(ServiceError, match="no money or quota"):
        list(model(server, family).complete(requests(100)))
    assert len(server.seen) <= 16


def test_replies_in_flight_come_before_the_error(server: ScriptedServer) -> None:
    def refuse_fourth(seen: Seen) -> Answer:
        if len(server.seen) == 4:  # the others have been sent by now
            return Answer(401, {"error": {"message": "no"}})
        return Answer(200, server.openai_reply(seen.body), delay=0.2)

    server.act = refuse_fourth
    run = model(server, concurrency=4).complete(requests(50))
    results: list[Reply | Failure] = []
    with pytest.raises(ServiceError, match="401"):
        results.extend(run)
    sent = {user_text(seen.body).split()[-1] for seen in server.seen[:3]}
    assert {result.key for result in results} == sent
    assert len(server.seen) == 4


@both
def test_a_request_that_cannot_be_encoded_fails_alone(server: ScriptedServer, family: str) -> None:
    bad = request("bad", rest="\ud800")
    results = list(model(server, family).complete([bad, request("good")]))
    (failed,) = (result for result in results if isinstance(result, Failure))
    assert (failed.key, failed.final, len(results)) == ("bad", True, 2)
    assert "cannot be sent" in failed.error
