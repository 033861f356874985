"""Batches of a scripted service, and files of requests and replies in the vendors' formats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import keyed_server
from helpers.lm import KEY, FakeClock, both, request, requests
from helpers.scripted_server import ScriptedServer, Seen, answer, drop

from strop.errors import BadInput, ServiceError
from strop.lm import Failure, Reply, Request, Usage, load
from strop.lm.batch_files import custom_id, read_replies, write_requests
from strop.lm.batches import Batches, open_batches

OUTCOMES = ["succeeded", "errored", "invalid", "expired", "canceled", "missing"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with keyed_server(monkeypatch, KEY) as running:
        yield running


def service(
    server: ScriptedServer, family: str, requests: int | None = None, size: int | None = None
) -> Batches:
    """Return a batch service, with other limits than its own if they are given."""
    url = server.url if family == "openai" else server.root
    lm = load(f"{family}:m", base_url=url, timeout=5.0, retries=3, clock=FakeClock())
    batches = open_batches(lm)
    batches.most_requests = requests or batches.most_requests
    batches.most_bytes = size or batches.most_bytes
    return batches


def by_key(results: Any, sent: list[Request]) -> dict[str, Reply | Failure]:
    """Results by the keys of their requests; a result itself has a hash of the key."""
    keys_by_id = {custom_id(r.key): r.key for r in sent}
    pairs = [(keys_by_id[result.key], result) for result in results]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


# -- submit, status, collect -----------------------------------------------------------------


@both
def test_submit_status_and_collect(server: ScriptedServer, family: str) -> None:
    server.polls = 2
    batch_requests = [request(f"doc {i}/ü", temperature=0.5) for i in range(5)]
    batches = service(server, family)
    ((id_, names),) = batches.submit(batch_requests)
    assert (id_, names) == ("batch_0", [custom_id(r.key) for r in batch_requests])
    sent = server.batches["batch_0"]["requests"]
    assert dict(sent)[custom_id("doc 3/ü")] == batches.lm.body(batch_requests[3])
    for ended in (False, False, True):
        (status,) = batches.status([id_])
        assert (status.id, status.total, status.ended) == (id_, 5, ended)
    assert (status.succeeded, status.failed, status.error) == (5, 0, "")
    results = by_key(batches.collect(id_, names), batch_requests)
    assert len(results) == 5
    for key, reply in results.items():
        assert isinstance(reply, Reply)
        assert reply.text == f"reply to a document\nquestion {key}"
        assert reply.model.startswith("m-2026")
        assert reply.usage.output_tokens > 0
    # Everything goes to the service's own address, wherever its answers point.
    assert {seen.headers["host"] for seen in server.seen} == {f"127.0.0.1:{server.port}"}


@both
def test_a_batch_with_failures_of_every_kind(server: ScriptedServer, family: str) -> None:
    batch_requests = [request(outcome) for outcome in OUTCOMES]
    outcomes = {custom_id(outcome): outcome for outcome in OUTCOMES}
    server.outcome = lambda name: outcomes[name]
    server.polls = 0
    batches = service(server, family)
    ((id_, names),) = batches.submit(batch_requests)
    results = by_key(batches.collect(id_, names), batch_requests)
    assert set(results) == set(OUTCOMES)
    assert isinstance(results["succeeded"], Reply)
    failed = {key: r for key, r in results.items() if isinstance(r, Failure)}
    assert set(failed) == set(OUTCOMES) - {"succeeded"}
    assert [key for key, r in failed.items() if r.final] == ["invalid"]
    assert "errored, sorry" in failed["errored"].error
    assert "expired" in failed["expired"].error
    assert "cancel" in failed["canceled"].error
    assert "no result" in failed["missing"].error


@both
def test_an_unfinished_batch_has_no_results(server: ScriptedServer, family: str) -> None:
    server.polls = 100
    batches = service(server, family)
    ((id_, names),) = batches.submit(requests(3))
    assert list(batches.collect(id_, names)) == []


def test_a_batch_that_fails_as_a_whole(server: ScriptedServer) -> None:
    server.batch_error, server.polls = "Enqueued token limit reached", 0
    batches = service(server, "openai")
    ((id_, names),) = batches.submit(requests(2))
    (status,) = batches.status([id_])
    assert (status.state, status.ended, status.error) == (
        "failed", True, "Enqueued token limit reached",
    )  # fmt: skip
    results = list(batches.collect(id_, names))
    assert {r.key for r in results} == set(names)
    assert all(isinstance(r, Failure) and "Enqueued token limit" in r.error for r in results)


@both
def test_requests_are_split_by_the_limits(server: ScriptedServer, family: str) -> None:
    batches = service(server, family, requests=4)
    pulled = 0

    def source() -> Iterator[Request]:
        nonlocal pulled
        for item in requests(10):
            pulled += 1
            yield item

    submitted = batches.submit(source())
    first = next(submitted)
    assert pulled == 5
    assert list(server.batches) == [first[0]]  # yielded before the next batch is made
    rest = list(submitted)
    assert [len(names) for _, names in (first, *rest)] == [4, 4, 2]

    line = len(json.dumps({"custom_id": custom_id("k0"), "params": batches.lm.body(request("k0"))}))
    small = service(server, family, size=3 * line)
    sizes = [len(names) for _, names in small.submit(requests(7))]
    assert sum(sizes) == 7
    assert max(sizes) <= 3
    with pytest.raises(BadInput, match=r"'k0' has [\d,]+ bytes; the service takes 10"):
        list(service(server, family, size=10).submit(requests(1)))
    assert list(batches.submit([])) == []


def test_limits_of_the_services() -> None:
    from strop.lm.batches import AnthropicBatches, OpenAIBatches

    assert (OpenAIBatches.most_requests, OpenAIBatches.most_bytes) == (50_000, 200_000_000)
    assert (AnthropicBatches.most_requests, AnthropicBatches.most_bytes) == (100_000, 256_000_000)


@both
def test_two_requests_with_the_same_key(server: ScriptedServer, family: str) -> None:
    with pytest.raises(BadInput, match="two requests have the key 'k'"):
        list(service(server, family).submit([request("k"), request("k")]))
    assert not server.batches


# -- failures of the service -----------------------------------------------------------------


@both
def test_status_and_collect_are_retried(server: ScriptedServer, family: str) -> None:
    server.polls = 0
    batches = service(server, family)
    batch_requests = requests(3)
    ((id_, names),) = batches.submit(batch_requests)
    server.script.extend([answer(500), drop, answer(429, {}, retry_after="30")])
    assert batches.status([id_])[0].ended
    interrupted = [server.respond, answer(503), drop]
    server.script.extend(interrupted)
    assert len(list(batches.collect(id_, names))) == 3


@both
def test_a_batch_that_may_have_begun_is_not_sent_again(server: ScriptedServer, family: str) -> None:
    """If the answer is lost, the user has to decide; a refused batch is sent again."""

    def accept_and_drop(seen: Seen) -> Any:
        server.respond(seen)
        return drop(seen)

    upload = [server.respond] if family == "openai" else []
    server.script.extend([*upload, answer(429, {}, retry_after="5")])
    batches = service(server, family)
    assert len(list(batches.submit(requests(2)))) == 1
    assert len(server.batches) == 1
    server.script.extend([*upload, accept_and_drop])
    with pytest.raises(ServiceError, match=r"may have begun nevertheless.*list of batches"):
        list(batches.submit(requests(2)))
    assert len(server.batches) == 2
    server.script.extend([*upload, answer(200, {"object": "batch"})])
    with pytest.raises(ServiceError, match="sent no batch but"):
        list(batches.submit(requests(2)))


def test_an_upload_is_retried_as_a_whole(server: ScriptedServer) -> None:
    server.script.extend([drop, answer(500)])
    ((_, names),) = service(server, "openai").submit(requests(3))
    assert len(server.files) == 1
    (content,) = server.files.values()
    assert len(content.splitlines()) == 3
    assert len(names) == 3


@both
def test_a_wrong_key(server: ScriptedServer, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "sk-wrong"
    monkeypatch.setenv("STROP_API_KEY", wrong)
    batches = service(server, family)
    for call in (
        lambda: list(batches.submit(requests(1))),
        lambda: batches.status(["b"]),
        lambda: list(batches.collect("b", [])),
    ):
        with pytest.raises(ServiceError, match=r"401.*STROP_API_KEY") as caught:
            call()
        assert wrong not in str(caught.value)


@both
def test_malformed_results(server: ScriptedServer, family: str) -> None:
    server.polls = 0
    batches = service(server, family)
    ((id_, names),) = batches.submit(requests(1))
    nonsense = answer(200, b'{"half a li\n\n{"custom_id": "x"}\n7\n')
    server.script.extend([server.respond, nonsense])
    (failed,) = batches.collect(id_, names)
    assert isinstance(failed, Failure)
    assert not failed.final
    assert "sent no result but: 7" in failed.error


def test_a_function_has_no_batch_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="has no batch service"):
        open_batches(load(lambda prompt: prompt))


# -- files -----------------------------------------------------------------------------------


def test_custom_ids_are_valid_and_differ() -> None:
    keys = ["a", "A", "", "ü" * 500, "a b/c", "\ud800", "日本"]
    ids = [custom_id(key) for key in keys]
    assert len(set(ids)) == len(keys)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", id) for id in ids)
    assert custom_id("a") == ids[0]


def test_requests_in_openai_format(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    batch = [request("a", temperature=0.2), request("ü")]
    assert write_requests(path, batch, load("openai:gpt-x", extra={"reasoning_effort": "low"})) == 2
    first, second = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert first == {
        "custom_id": custom_id("a"),
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "gpt-x",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "a document\nquestion a"},
            ],
            "max_completion_tokens": 50,
            "temperature": 0.2,
            "reasoning_effort": "low",
        },
    }
    assert second["custom_id"] == custom_id("ü")


def test_requests_in_anthropic_format(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl.gz"
    assert write_requests(path, [request("a")], load("anthropic:claude-x")) == 1
    import gzip

    (record,) = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert set(record) == {"custom_id", "params"}
    assert record["params"]["model"] == "claude-x"
    assert record["params"]["system"][0]["cache_control"] == {"type": "ephemeral"}


def test_requests_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with pytest.raises(BadInput, match="two requests have the key"):
        write_requests(path, [request("a"), request("a")], load("openai:m"))
    with pytest.raises(BadInput, match="lone surrogate"):
        write_requests(path, [request("a", rest="\ud800")], load("openai:m"))
    assert not path.exists()


OPENAI_LINES = [
    {
        "id": "r1", "custom_id": "a", "error": None,
        "response": {
            "status_code": 200, "request_id": "q",
            "body": {
                "model": "gpt-x-1", "choices": [
                    {"finish_reason": "length", "message": {"content": "line\u2028break"}}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 2,
                          "prompt_tokens_details": {"cached_tokens": 4}},
            },
        },
    },
    {"custom_id": "b", "response": None, "error": {"code": "batch_expired", "message": "late"}},
    {"custom_id": "c", "error": None, "response": {
        "status_code": 400, "body": {"error": {"message": "too long", "code": "length"}}}},
    {"custom_id": "d", "error": None, "response": {"status_code": 429, "body": {"error": {}}}},
    {"custom_id": "e", "response": {"status_code": 200, "body": {"choices": []}}},
]  # fmt: skip
ANTHROPIC_LINES = [
    {"custom_id": "f", "result": {"type": "succeeded", "message": {
        "model": "claude-x-1", "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 2}}}},
    {"custom_id": "g", "result": {"type": "errored", "error": {
        "type": "error", "error": {"type": "invalid_request_error", "message": "no"}}}},
    {"custom_id": "h", "result": {"type": "expired"}},
    {"custom_id": "i", "result": {"type": "canceled"}},
    {"custom_id": "j", "result": {"type": "errored", "error": {"type": "overloaded_error"}}},
]  # fmt: skip


def test_replies_in_both_formats(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    lines = [*OPENAI_LINES, *ANTHROPIC_LINES]
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text(text, "utf-8")
    results = {result.key: result for result in read_replies(path)}
    assert results["a"] == Reply("a", "line\u2028break", True, "gpt-x-1", Usage(9, 2, 4), 0.0)
    assert results["f"] == Reply("f", "hello", False, "claude-x-1", Usage(9, 2), 0.0)
    failed = {key: r for key, r in results.items() if isinstance(r, Failure)}
    assert set(failed) == set("bcdeghij")
    assert {key for key, r in failed.items() if r.final} == {"c", "g"}
    assert failed["b"].error == "batch_expired: late"
    assert failed["c"].error == "length: too long"
    assert failed["g"].error == "invalid_request_error: no"
    assert failed["h"].error == "expired"


@pytest.mark.parametrize(
    "line", ['{"custom_id": "a"}', '{"result": {}}', '{"custom_id": "a", "response": null}']
)
def test_lines_that_are_not_results(tmp_path: Path, line: str) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text(json.dumps(ANTHROPIC_LINES[0]) + "\n" + line + "\n")
    with pytest.raises(BadInput, match=r"replies\.jsonl line 2: no result: expected custom_id"):
        list(read_replies(path))


@both
def test_files_have_the_format_of_submitted_batches(
    server: ScriptedServer, family: str, tmp_path: Path
) -> None:
    """What ``submit`` sends and what ``write_requests`` writes have the same form."""
    path = tmp_path / "requests.jsonl"
    write_requests(path, requests(2), load(f"{family}:m"))
    written = [json.loads(line) for line in path.read_text().splitlines()]
    list(service(server, family).submit(requests(2)))
    sent = dict(server.batches["batch_0"]["requests"])
    for record in written:
        body = record["body"] if family == "openai" else record["params"]
        if family == "openai":
            body["max_tokens"] = body.pop("max_completion_tokens")
        assert sent[record["custom_id"]] == body
