"""Parsing of replies: any JSON gives a reply or an error of strop, and keys are masked."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.lm import KEY, both, failure, model, request, requests
from helpers.scripted_server import Answer, ScriptedServer, answer
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.common.retries import CallFailed
from strop.embed import load as load_embedder
from strop.errors import BadInput, ServiceError, StropError
from strop.lm import Failure, Reply, Usage
from strop.lm.anthropic import read_anthropic
from strop.lm.base import MOST_TOKENS
from strop.lm.batch_files import read_replies, read_result
from strop.lm.batches import open_batches
from strop.lm.openai import read_openai

NAMES = st.sampled_from(
    "choices message content text type model usage finish_reason refusal prompt_tokens "
    "completion_tokens prompt_tokens_details cached_tokens input_tokens output_tokens stop_reason "
    "custom_id result response error status_code body code data index embedding status errors "
    "processing_status request_counts total succeeded output_file_id id".split()
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from(["text", "succeeded", "errored", "length", "max_tokens", "\ud800", 200, 429]),
)  # fmt: skip
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=15,
)
COUNTS = st.dictionaries(NAMES, LEAVES | st.dictionaries(NAMES, LEAVES, max_size=2), max_size=6)


def check_values(usage: Usage, *texts: str) -> None:
    counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.written_tokens)
    assert all(type(count) is int and 0 <= count <= 3 * MOST_TOKENS for count in counts)
    for text in texts:
        text.encode()


@settings(max_examples=400)
@given(JSON)
def test_random_json_is_a_reply_a_failure_or_bad_input(body: Any) -> None:
    for read in (read_openai, read_anthropic):
        with suppress(CallFailed):
            answered = read(body, "host")
            check_values(answered.usage, answered.text, answered.model)
    for record in (body, {**body, "custom_id": "a"} if isinstance(body, dict) else body):
        with suppress(BadInput):  # as a line in the results of a batch
            result = read_result(record)
            result.key.encode()
            if isinstance(result, Reply):
                check_values(result.usage, result.text, result.model)
            else:
                result.error.encode()


@settings(max_examples=200)
@given(COUNTS, JSON)
def test_a_reply_is_kept_whatever_its_usage_and_model(usage: Any, name: Any) -> None:
    """Its text was paid for, so malformed fields do not matter."""
    choice = {"message": {"content": "text"}, "finish_reason": "stop"}
    body = {"choices": [choice], "content": "text", "usage": usage, "model": name}
    for read in (read_openai, read_anthropic):
        answered = read(body, "host")
        assert answered.text == "text"
        check_values(answered.usage, answered.model)


@settings(max_examples=100)
@given(st.lists(st.text(max_size=20) | JSON.map(json.dumps), max_size=4))
def test_random_reply_files(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path: Path = tmp_path_factory.mktemp("replies") / "replies.jsonl"
    path.write_text("\n".join(lines), "utf-8", errors="replace")
    with suppress(BadInput):
        for result in read_replies(path):
            assert isinstance(result, Reply | Failure)


@both
def test_random_json_about_a_batch(server: ScriptedServer, family: str) -> None:
    batches = open_batches(model(server, family, retries=0))

    @settings(max_examples=60)
    @given(st.dictionaries(NAMES, JSON, max_size=6) | JSON, st.lists(JSON, max_size=3))
    def check(body: Any, results: list[Any]) -> None:
        ended = {"status": "completed", "processing_status": "ended", "output_file_id": "f"}
        lines = "\n".join(json.dumps(result) for result in results).encode()
        server.act = lambda seen: Answer(
            200,
            lines if "content" in seen.path or "results" in seen.path
            else body | ended if isinstance(body, dict) else body,
        )  # fmt: skip
        with suppress(StropError):
            (status,) = batches.status(["b/../x?y"])
            assert status.id == "b/../x?y"
            assert min(status.total, status.succeeded, status.failed) >= 0
            collected = list(batches.collect("b/../x?y", ["a"]))
            assert all(isinstance(result, Reply | Failure) for result in collected)
        with suppress(StropError):
            list(batches.submit(requests(1)))
        for seen in server.seen:
            assert "/../" not in seen.path
            assert "?" not in seen.path
        server.seen.clear()

    check()


@settings(max_examples=80)
@given(JSON, st.integers(1, 3))
def test_random_json_is_embeddings_or_a_service_error(body: Any, count: int) -> None:
    import httpx

    content = json.dumps(body).encode()
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=content))
    embedder = load_embedder("api:m", transport=transport, backoff=0.0001, retries=1)
    with suppress(ServiceError):
        assert embedder.embed(["a"] * count, "query").shape[0] == count


# -- token counts ----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("count", [2**63, -5, float("nan"), float("inf"), "12", True, [], 1e300])
def test_impossible_token_counts(server: ScriptedServer, family: str, count: Any) -> None:
    """Such a usage is ignored and the tokens are estimated: a budget must still hold."""
    server.usage = lambda body: {
        "prompt_tokens": 10, "completion_tokens": count, "input_tokens": 10, "output_tokens": count,
    }  # fmt: skip
    (reply,) = model(server, family).complete([request()])
    assert isinstance(reply, Reply)
    assert reply.usage == Usage(0, 0)
    assert len(server.seen) == 1


# -- keys in replies and errors --------------------------------------------------------------

ECHOES = {
    "plain": KEY,
    "url": "".join(f"%{ord(c):02x}" for c in KEY),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "escaped twice": "".join(f"\\u{ord(c):04x}" for c in KEY),
}


def unescaped_too(text: str) -> str:
    """A text, and the text with its escapes undone."""
    unescaped = text.encode().decode("unicode_escape", "replace")
    return text + unescaped


@both
@pytest.mark.parametrize("form", ECHOES)
def test_an_echoed_key_is_masked_in_replies(
    server: ScriptedServer, family: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STROP_API_KEY", KEY)
    echo = ECHOES[form]
    server.text = lambda prompt: f"your key is {echo}!"
    good = server.openai_reply if family == "openai" else server.anthropic_reply
    server.act = lambda seen: Answer(200, good(seen.body) | {"model": f"model-{echo}"})
    (reply,) = model(server, family).complete([request()])
    assert isinstance(reply, Reply)
    assert (reply.text, reply.model) == ("your key is ***!", "model-***")


@both
@pytest.mark.parametrize("form", ECHOES)
@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_an_echoed_key_is_masked_in_errors(
    server: ScriptedServer, family: str, form: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STROP_API_KEY", KEY)
    echo = ECHOES[form]
    server.act = answer(status, {"error": {"message": f"wrong: {echo}", "code": echo}})
    try:
        message = failure(model(server, family, retries=0).complete([request()])).error
    except ServiceError as error:
        message = str(error)
    assert "wrong: ***" in message
    assert echo not in message


@both
def test_an_echoed_key_is_masked_in_malformed_json(
    server: ScriptedServer, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STROP_API_KEY", KEY)
    escaped = "".join(f"\\u{ord(c):04x}" for c in KEY)
    server.act = answer(200, f'{{"model": "{escaped}", "x": {KEY}'.encode())
    message = failure(model(server, family, retries=0).complete([request()])).error
    assert KEY not in unescaped_too(message)
    assert "***" in message


def test_an_echoed_key_is_masked_in_batch_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    body = {"model": KEY, "choices": [{"message": {"content": f"it is {KEY}"}}]}
    reply = read_result({"custom_id": "a", "response": {"status_code": 200, "body": body}})
    assert reply == Reply("a", "it is ***", False, "***", Usage(0, 0), 0.0)
    error = {"type": "errored", "error": {"type": KEY, "message": f"not {KEY}"}}
    failed = read_result({"custom_id": "a", "result": error})
    assert isinstance(failed, Failure)
    assert failed.error == "***: not ***"
