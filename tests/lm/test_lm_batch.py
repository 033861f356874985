"""Batch services by the vendors' clients against a scripted service; files of their forms."""

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

FATES = ["succeeded", "errored", "invalid", "expired", "canceled", "missing"]


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


def by_key(results: Any, asked: list[Request]) -> dict[str, Reply | Failure]:
    """Results by the keys of their requests, which the caller has to remember."""
    keys = {custom_id(r.key): r.key for r in asked}
    got = [(keys[result.key], result) for result in results]
    assert len(dict(got)) == len(got)
    return dict(got)


# -- the life of a batch ---------------------------------------------------------------------


@both
def test_a_batch_from_beginning_to_end(server: ScriptedServer, family: str) -> None:
    server.polls = 2
    asked = [request(f"doc {i}/ü", temperature=0.5) for i in range(5)]
    batches = service(server, family)
    ((id_, names),) = batches.submit(asked)
    assert (id_, names) == ("batch_0", [custom_id(r.key) for r in asked])
    sent = server.batches["batch_0"]["requests"]
    assert dict(sent)[custom_id("doc 3/ü")] == batches.lm.body(asked[3])
    for ended in (False, False, True):
        (status,) = batches.status([id_])
        assert (status.id, status.total, status.ended) == (id_, 5, ended)
    assert (status.succeeded, status.failed, status.error) == (5, 0, "")
    got = by_key(batches.collect(id_, names), asked)
    assert len(got) == 5
    for key, reply in got.items():
        assert isinstance(reply, Reply)
        assert reply.text == f"reply to a document\nquestion {key}"
        assert reply.model.startswith("m-2026")
        assert reply.usage.output_tokens > 0
    # Everything goes to the service's own address, wherever its answers point.
    assert {seen.headers["host"] for seen in server.seen} == {f"127.0.0.1:{server.port}"}


@both
def test_what_comes_of_a_batch_that_half_fails(server: ScriptedServer, family: str) -> None:
    asked = [request(fate) for fate in FATES]
    fates = {custom_id(fate): fate for fate in FATES}
    server.fate = lambda name: fates[name]
    server.polls = 0
    batches = service(server, family)
    ((id_, names),) = batches.submit(asked)
    got = by_key(batches.collect(id_, names), asked)
    assert set(got) == set(FATES)
    assert isinstance(got["succeeded"], Reply)
    failed = {key: r for key, r in got.items() if isinstance(r, Failure)}
    assert set(failed) == set(FATES) - {"succeeded"}
    assert [key for key, r in failed.items() if r.final] == ["invalid"]
    assert "errored, sorry" in failed["errored"].error
    assert "expired" in failed["expired"].error
    assert "cancel" in failed["canceled"].error
    assert "no result" in failed["missing"].error


@both
def test_an_unfinished_batch_yields_nothing_yet(server: ScriptedServer, family: str) -> None:
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
    got = list(batches.collect(id_, names))
    assert {r.key for r in got} == set(names)
    assert all(isinstance(r, Failure) and "Enqueued token limit" in r.error for r in got)


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
    assert list(server.batches) == [first[0]]  # known before the next is made
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


def test_the_services_own_limits() -> None:
    from strop.lm.batches import AnthropicBatches, OpenAIBatches

    assert (OpenAIBatches.most_requests, OpenAIBatches.most_bytes) == (50_000, 200_000_000)
    assert (AnthropicBatches.most_requests, AnthropicBatches.most_bytes) == (100_000, 256_000_000)


@both
def test_two_requests_of_one_key(server: ScriptedServer, family: str) -> None:
    with pytest.raises(BadInput, match="two requests have the key 'k'"):
        list(service(server, family).submit([request("k"), request("k")]))
    assert not server.batches


# -- when the service stumbles ---------------------------------------------------------------


@both
def test_looking_and_fetching_are_repeated(server: ScriptedServer, family: str) -> None:
    server.polls = 0
    batches = service(server, family)
    asked = requests(3)
    ((id_, names),) = batches.submit(asked)
    server.script.extend([answer(500), drop, answer(429, {}, retry_after="30")])
    assert batches.status([id_])[0].ended
    cut = [server.respond, answer(503), drop]
    server.script.extend(cut)
    assert len(list(batches.collect(id_, names))) == 3


@both
def test_a_batch_is_never_begun_twice_by_accident(server: ScriptedServer, family: str) -> None:
    """Who cannot know whether it was begun asks the user; who was surely refused tries again."""

    def taken_but_unsaid(seen: Seen) -> Any:
        server.respond(seen)
        return drop(seen)

    upload = [server.respond] if family == "openai" else []
    server.script.extend([*upload, answer(429, {}, retry_after="5")])
    batches = service(server, family)
    assert len(list(batches.submit(requests(2)))) == 1
    assert len(server.batches) == 1
    server.script.extend([*upload, taken_but_unsaid])
    with pytest.raises(ServiceError, match=r"may have begun nevertheless.*list of batches"):
        list(batches.submit(requests(2)))
    assert len(server.batches) == 2
    server.script.extend([*upload, answer(200, {"object": "batch"})])
    with pytest.raises(ServiceError, match="sent no batch but"):
        list(batches.submit(requests(2)))


def test_an_upload_is_repeated_whole(server: ScriptedServer) -> None:
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
def test_results_that_make_no_sense(server: ScriptedServer, family: str) -> None:
    server.polls = 0
    batches = service(server, family)
    ((id_, names),) = batches.submit(requests(1))
    nonsense = answer(200, b'{"half a li\n\n{"custom_id": "x"}\n7\n')
    server.script.extend([server.respond, nonsense])
    (failed,) = batches.collect(id_, names)
    assert isinstance(failed, Failure)
    assert not failed.final
    assert "sent no result but: 7" in failed.error


def test_who_has_no_batch_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="has no batch service"):
        open_batches(load(lambda prompt: prompt))


# -- files -----------------------------------------------------------------------------------


def test_custom_ids_are_allowed_everywhere_and_differ() -> None:
    keys = ["a", "A", "", "ü" * 500, "a b/c", "\ud800", "日本"]
    ids = [custom_id(key) for key in keys]
    assert len(set(ids)) == len(keys)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", id) for id in ids)
    assert custom_id("a") == ids[0]


def test_requests_in_openais_form(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    asked = [request("a", temperature=0.2), request("ü")]
    assert write_requests(path, asked, load("openai:gpt-x", extra={"reasoning_effort": "low"})) == 2
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


def test_requests_in_anthropics_form(tmp_path: Path) -> None:
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


def test_replies_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    lines = [*OPENAI_LINES, *ANTHROPIC_LINES]
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text(text, "utf-8")
    got = {result.key: result for result in read_replies(path)}
    assert got["a"] == Reply("a", "line\u2028break", True, "gpt-x-1", Usage(9, 2, 4), 0.0)
    assert got["f"] == Reply("f", "hello", False, "claude-x-1", Usage(9, 2), 0.0)
    failed = {key: r for key, r in got.items() if isinstance(r, Failure)}
    assert set(failed) == set("bcdeghij")
    assert {key for key, r in failed.items() if r.final} == {"c", "g"}
    assert failed["b"].error == "batch_expired: late"
    assert failed["c"].error == "length: too long"
    assert failed["g"].error == "invalid_request_error: no"
    assert failed["h"].error == "expired"


@pytest.mark.parametrize(
    "line", ['{"custom_id": "a"}', '{"result": {}}', '{"custom_id": "a", "response": null}']
)
def test_lines_that_are_no_results(tmp_path: Path, line: str) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text(json.dumps(ANTHROPIC_LINES[0]) + "\n" + line + "\n")
    with pytest.raises(BadInput, match=r"replies\.jsonl line 2: no result: expected custom_id"):
        list(read_replies(path))


@both
def test_a_file_that_a_service_would_take(
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
