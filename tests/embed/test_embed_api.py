"""The API embedder against a real HTTP server on the loopback interface."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.embedding_server import (
    DIM,
    KEY,
    Handler,
    Server,
    answer,
    expected,
    good,
    items,
    serve,
    vector,
)

from strop.embed import load
from strop.errors import BadInput, ServiceError


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("STROP_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    yield from serve()


def api(server: Server, **options: Any) -> Any:
    return load("api:m", **{"base_url": server.url, "backoff": 0.001, "timeout": 5.0, **options})


def test_requests_follow_the_protocol(server: Server) -> None:
    vectors = api(server).embed(["one", "two"], "document")
    np.testing.assert_allclose(vectors, expected(["one", "two"]), atol=1e-6)
    assert server.requests == [{"model": "m", "input": ["one", "two"], "encoding_format": "float"}]
    assert server.paths == ["/v1/embeddings"]
    assert "authorization" not in {name.lower() for name in server.headers[0]}


def test_prompts_input_type_and_dimensions_are_sent(server: Server) -> None:
    embedder = api(
        server,
        prompts={"query": "q: "},
        input_type={"query": "search_query", "document": "search_document"},
        dimensions=DIM,
    )
    embedder.embed(["x"], kind="query")
    embedder.embed(["x"], kind="document")
    query, document = server.requests
    assert query["input"] == ["q: x"]
    assert document["input"] == ["x"]
    assert query["input_type"] == "search_query"
    assert document["input_type"] == "search_document"
    assert query["dimensions"] == DIM
    assert (embedder.prompt("query"), embedder.prompt("document")) == ("q: ", "")


def test_base64_and_shuffled_replies_are_read(server: Server) -> None:
    def shuffled(handler: Handler, body: dict[str, Any]) -> None:
        data = items(body["input"])
        for item in data:
            packed = np.array(item["embedding"], "<f4").tobytes()
            item["embedding"] = base64.b64encode(packed).decode()
        handler.reply(200, {"data": data[::-1]})

    server.default = shuffled
    texts = [f"text {i}" for i in range(10)]
    np.testing.assert_allclose(api(server).embed(texts, "query"), expected(texts), atol=1e-6)


def test_replies_without_index_are_read_in_order(server: Server) -> None:
    server.default = lambda handler, body: handler.reply(
        200, {"data": [{"embedding": vector(text)} for text in body["input"]]}
    )
    np.testing.assert_allclose(
        api(server).embed(["a", "b"], "query"), expected(["a", "b"]), atol=1e-6
    )


# Retries and their waits are tested in tests/lm/test_services.py.


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_retryable_failures_are_repeated(server: Server, status: int) -> None:
    server.script = [answer(status, {"error": {"message": "not now"}})] * 2
    np.testing.assert_allclose(api(server).embed(["a"], "query"), expected(["a"]), atol=1e-6)
    assert len(server.requests) == 3


def test_after_the_last_retry_the_error_quotes_the_reply(server: Server) -> None:
    server.default = answer(503, {"error": {"message": "overloaded, sorry"}})
    with pytest.raises(ServiceError, match=r"127\.0\.0\.1.*503.*overloaded, sorry.*3 tries"):
        api(server, retries=2).embed(["a"], "query")
    assert len(server.requests) == 3


def test_a_request_that_times_out_is_repeated(server: Server) -> None:
    done = threading.Event()

    def hang(handler: Handler, body: dict[str, Any]) -> None:
        done.wait(60)

    server.script = [hang]
    vectors = api(server, timeout=1.0).embed(["a"], "query")
    assert not done.is_set()
    done.set()
    np.testing.assert_allclose(vectors, expected(["a"]), atol=1e-6)


def test_a_very_long_retry_after_is_an_error(server: Server) -> None:
    server.script = [answer(429, {}, Retry_After="86400")]
    with pytest.raises(ServiceError, match=r"86,400 seconds; resume"):
        api(server).embed(["a"], "query")


def test_an_unreachable_server_is_an_error() -> None:
    embedder = load("api:m", base_url="http://127.0.0.1:9/v1", retries=1, backoff=0.001)
    with pytest.raises(ServiceError, match=r"127\.0\.0\.1:9 cannot be reached.*2 tries"):
        embedder.embed(["a"], "query")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>It works!</html>", "It works!"),
        (b"", "sent no JSON but: nothing"),
        ([], "did not send embeddings"),
        ({"object": "list"}, "object"),
        ({"data": [{"index": 0}]}, "did not send embeddings"),
        ({"data": [{"index": 0, "embedding": "%%%"}]}, "did not send embeddings"),
        ({"data": [{"index": 0, "embedding": ["a"]}]}, "did not send embeddings"),
        ({"data": [{"index": 0, "embedding": []}]}, "without numbers"),
        ({"data": []}, "0 embeddings for 1 texts"),
        ({"data": items(["a", "b"])}, "2 embeddings for 1 texts"),
        ({"data": [{"index": 7, "embedding": [1.0]}]}, "numbered"),
        ({"data": [{"index": 0, "embedding": None}]}, "without numbers|did not send"),
        ({"data": "x" * 5000}, "did not send embeddings"),
    ],
)
def test_malformed_replies_are_retried_and_reported(
    server: Server, content: Any, message: str
) -> None:
    server.default = answer(200, content)
    with pytest.raises(ServiceError, match=message) as caught:
        api(server).embed(["a"], "query")
    assert "127.0.0.1" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert len(server.requests) == 3

    server.default, server.script = good, [answer(200, content)]
    np.testing.assert_allclose(api(server).embed(["a"], "query"), expected(["a"]), atol=1e-6)


def test_vectors_of_another_dimension_are_refused(server: Server) -> None:
    embedder = api(server)
    embedder.embed(["a"], "query")
    server.default = answer(200, {"data": [{"index": 0, "embedding": [1.0, 2.0]}]})
    with pytest.raises(ServiceError, match=f"2 numbers where {DIM} were expected"):
        embedder.embed(["b"], "query")


def test_nan_from_a_server_is_retried_and_reported(server: Server) -> None:
    server.script = [answer(200, b'{"data": [{"index": 0, "embedding": [NaN, 1.0]}]}')]
    np.testing.assert_allclose(api(server).embed(["a"], "query"), expected(["a"]), atol=1e-6)
    server.default = answer(200, b'{"data": [{"index": 0, "embedding": [NaN, 1.0]}]}')
    with pytest.raises(ServiceError, match="NaN"):
        api(server).embed(["a"], "query")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_fails_at_once_and_is_not_printed(
    server: Server, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.default = answer(status, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    embedder = api(server)
    with pytest.raises(ServiceError, match="STROP_API_KEY or OPENAI_API_KEY") as caught:
        embedder.embed(["a"], "query")
    assert len(server.requests) == 1
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    for output in (str(caught.value), repr(embedder), json.dumps(embedder.options)):
        assert KEY not in output


def test_strop_api_key_has_priority(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    monkeypatch.setenv("STROP_API_KEY", KEY)
    api(server).embed(["a"], "query")
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_text_that_is_too_long_is_found_and_named(server: Server, status: int) -> None:
    def picky(handler: Handler, body: dict[str, Any]) -> None:
        if any(len(text) > 1000 for text in body["input"]):
            handler.reply(status, {"error": {"message": "maximum context length exceeded"}})
        else:
            good(handler, body)

    server.default = picky
    texts = [f"text {i}" for i in range(8)]
    texts[5] = "far too long " * 100
    with pytest.raises(ServiceError, match=r"maximum context length.*far too long.*max_chars"):
        api(server).embed(texts, "document")
    assert {"text 0", "text 4"} <= set(server.sent)

    server.requests.clear()
    vectors = api(server, max_chars=1000).embed(texts, "document")
    cut = [text[:1000] for text in texts]
    np.testing.assert_allclose(vectors, expected(cut), atol=1e-6)


def test_batches_too_large_for_the_server_are_halved(server: Server) -> None:
    def small(handler: Handler, body: dict[str, Any]) -> None:
        if len(body["input"]) > 3:
            handler.reply(413, b"Payload Too Large")
        else:
            good(handler, body)

    server.default = small
    texts = [f"text {i}" for i in range(20)]
    np.testing.assert_allclose(api(server).embed(texts, "query"), expected(texts), atol=1e-6)


def test_batches_are_limited_in_texts_and_characters(server: Server) -> None:
    texts = [f"text {i}" for i in range(10)] + ["x" * 150_000, "y" * 150_000, "z"]
    api(server, batch_size=4).embed(texts, "query")
    sizes = sorted(len(request["input"]) for request in server.requests)
    assert sizes == [2, 3, 4, 4]
    assert max(sum(map(len, request["input"])) for request in server.requests) < 200_000


def test_blank_texts_are_never_sent(server: Server) -> None:
    vectors = api(server).embed(["", "a", " \n\t"], "query")
    assert server.sent == ["a"]
    assert not vectors[[0, 2]].any()
    np.testing.assert_allclose(vectors[1:2], expected(["a"]), atol=1e-6)


def test_concurrency_is_used_and_limited(server: Server) -> None:
    barrier = threading.Barrier(3, timeout=60)

    def together(handler: Handler, body: dict[str, Any]) -> None:
        barrier.wait()
        good(handler, body)

    server.default = together
    texts = [f"text {i}" for i in range(24)]
    vectors = api(server, batch_size=2, concurrency=3).embed(texts, "query")
    np.testing.assert_allclose(vectors, expected(texts), atol=1e-6)
    assert server.most_active == 3


def test_a_failure_cancels_requests_not_yet_sent(server: Server) -> None:
    server.default = answer(401, {"error": {"message": "no"}})
    with pytest.raises(ServiceError):
        api(server, batch_size=1, concurrency=2).embed([f"t {i}" for i in range(50)], "query")
    assert len(server.requests) < 10


def test_a_failure_ends_the_waits_of_other_requests(server: Server) -> None:
    def by_text(handler: Handler, body: dict[str, Any]) -> None:
        if body["input"] == ["bad"]:
            time.sleep(0.1)
            handler.reply(401, {})
        else:
            handler.reply(429, {}, Retry_After="60")

    server.default = by_text
    start = time.monotonic()
    with pytest.raises(ServiceError, match="401"):
        api(server, batch_size=1).embed(["bad", "slow"], "query")
    assert time.monotonic() - start < 30


def test_dim_is_found_by_one_request(server: Server) -> None:
    embedder = api(server)
    assert not server.requests
    assert embedder.dim == DIM
    assert embedder.dim == DIM
    assert len(server.requests) == 1
    assert api(server, dimensions=8).dim == 8
    assert len(server.requests) == 1


def test_options_recreate_the_embedder(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    first = load("api:m", prompts={"query": "q: "}, batch_size=3, max_chars=50)
    assert first.options["base_url"] == server.url
    monkeypatch.delenv("OPENAI_BASE_URL")
    again = load(first.name, **json.loads(json.dumps(first.options)))
    assert (again.name, again.options) == (first.name, first.options)
    texts = ["a" * 100, "b"]
    np.testing.assert_array_equal(again.embed(texts, "query"), first.embed(texts, "query"))


def test_the_transport_can_be_replaced() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url == "https://api.openai.com/v1/embeddings"
        return httpx.Response(200, json={"data": items(json.loads(request.content)["input"])})

    embedder = load("api:m", transport=httpx.MockTransport(respond))
    np.testing.assert_allclose(embedder.embed(["a"], "query"), expected(["a"]), atol=1e-6)
    assert embedder.options == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "localhost:8000"}, "http://"),
        ({"base_url": "https://me:pass@host/v1"}, "password"),
        ({"batch_size": 0}, "batch_size"),
        ({"concurrency": 0}, "concurrency"),
        ({"retries": -1}, "retries"),
        ({"prompts": {"passage": "x"}}, "passage"),
        ({"input_type": {"q": "x"}}, "input_type"),
        ({"model": "x"}, "has no option 'model'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load("api:m", **options)
