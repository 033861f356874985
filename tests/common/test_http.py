"""The HTTP client: bodies, gzip, limits, timeouts, redirects, proxies and TLS."""

from __future__ import annotations

import cProfile
import gzip
import json
import random
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any

import httpcore
import pytest
from helpers.raw_server import Wrap, answering, chunked, plain, read_request
from helpers.scripted_server import Answer, ScriptedServer, Seen
from hypothesis import given, settings
from hypothesis import strategies as st

import strop.common.transport
from strop.common.http import HEAD_BYTES, Client
from strop.common.retries import CallFailed, Clock, ConcurrencyLimit, Policy, call_with_retries
from strop.embed import load as load_embedder
from strop.errors import BadInput, ServiceError
from strop.lm import Failure, Request
from strop.lm import load as load_lm


def client(url: str, timeout: float = 20.0, **more: Any) -> Client:
    return Client(url, {"Authorization": "Bearer x"}, timeout, **more)


def failed(url: str, timeout: float = 20.0, limit: int = 1000) -> CallFailed:
    with client(url, timeout) as calling, pytest.raises(CallFailed) as caught:
        calling.post("/chat", {}, limit)
    assert caught.value.__cause__ is None
    return caught.value


def call_service(caller: str, url: str, **options: Any) -> Any:
    """Call a service through a model or an embedder; return the result."""
    if caller == "embedder":
        return load_embedder("api:m", base_url=url, **options).embed(["text"], "query")
    request = Request("k", "", "text", "", 5, None)
    return list(load_lm("openai:m", base_url=url, **options).complete([request]))


# -- bodies ----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.text(max_size=300), st.integers(1, 40), st.integers(1, 60), st.booleans())
def test_replies_in_any_pieces_are_read(text: str, piece: int, size: int, whole: bool) -> None:
    body = json.dumps(text).encode()
    first = plain(body) if whole else chunked(body, size)
    second = chunked(body, size) if whole else plain(body)
    with_continue = b"HTTP/1.1 100 Continue\r\n\r\n" + first
    with answering(with_continue, second, piece=piece) as server, client(server.url) as calling:
        for _ in range(2):
            assert calling.post("/chat", {"text": text}) == text
        assert server.accepted == 1


def test_a_body_without_a_length_ends_at_the_end_of_the_connection() -> None:
    with (
        answering(b"HTTP/1.1 200 OK\r\n\r\n{}", plain(b"[]"), keep=False) as server,
        client(server.url) as calling,
    ):
        assert calling.post("/chat", {}) == {}
        assert calling.post("/chat", {}) == []
        assert server.accepted == 2, "a closed connection is made anew"


def test_a_connection_closed_without_notice_is_reopened() -> None:
    """The next call may use the connection before its end is seen; then it is repeated."""
    with answering(plain(b"1"), plain(b"2"), plain(b"3"), keep=False) as server:
        with client(server.url) as calling:
            limit, policy = ConcurrencyLimit(1, Clock()), Policy(backoff=0.001)
            for expected in (1, 2, 3):
                assert (
                    call_with_retries(lambda: calling.post("/chat", {}), limit, policy) == expected
                )
        assert server.accepted == server.requests == 3


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        (plain(b"1"), True), (plain(b"1", b"Connection: close\r\n"), False),
        (plain(b"1").replace(b"1.1", b"1.0"), False),
        (plain(b"1", status=b"500 Oh"), True), (plain(b"1", status=b"429 Slow"), True),
    ],
)  # fmt: skip
def test_connections_are_reused_when_allowed(reply: bytes, kept: bool) -> None:
    with answering(reply, plain(b"2")) as server, client(server.url) as calling:
        with suppress(CallFailed):  # an error status is a reply, too
            assert calling.post("/chat", {}) == 1
        assert calling.post("/chat", {}) == 2
        assert server.accepted == (1 if kept else 2)


@pytest.mark.parametrize(
    "reply",
    [
        b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_incomplete_replies_are_retryable_errors(reply: bytes) -> None:
    with answering(reply, keep=False) as server:
        failure = failed(server.url)
    assert failure.retryable
    assert not failure.unreachable, "something was sent"
    assert "broke off" in str(failure)


def test_an_unreachable_service() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    failure = failed(f"http://127.0.0.1:{port}")
    assert failure.unreachable
    assert f"127.0.0.1:{port} cannot be reached" in str(failure)
    assert "Connection refused" in str(failure)
    assert failed("http://no-such-host.invalid").unreachable


def test_an_error_reply_nested_too_deeply() -> None:
    with answering(plain(b"[" * 50_000, status=b"500 Oh")) as server:
        failure = failed(server.url)
    assert (failure.status, failure.retryable) == (500, True)
    assert len(str(failure)) < 300


def test_error_replies_name_the_refused_fields() -> None:
    bodies = [
        b'{"error": {"message": "no", "param": "max_tokens"}}',
        b'{"detail": [{"loc": ["body", "max_tokens"], "msg": "extra"}, 7, {"loc": {}}]}',
        b'{"error": {"message": "max_tokens is too low", "param": ["max_tokens"]}}',
    ]
    answers = [plain(body, status=b"400 No") for body in bodies]
    fields = []
    with answering(*answers) as server, client(server.url) as calling:
        for _ in bodies:
            with pytest.raises(CallFailed) as caught:
                calling.post("/chat", {})
            fields.append("max_tokens" in caught.value.fields)
    assert fields == [True, True, False]


def test_long_requests_and_replies() -> None:
    """Bodies longer than all buffers, so that sending blocks for a while."""
    long = json.dumps("x" * 8_000_000).encode()
    with (
        answering(plain(long), chunked(long, 70_000)) as server,
        client(server.url) as calling,
    ):
        for _ in range(2):
            assert calling.post("/chat", {"text": "z" * 8_000_000}) == "x" * 8_000_000
        assert server.accepted == 1


def test_a_reply_before_the_request_is_complete() -> None:
    """A service may refuse a long request without reading it."""

    def refuse(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(plain(b"", status=b"413 Long"))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 20):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=refuse, args=(listening,))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with client(url) as calling, pytest.raises(CallFailed) as caught:
            calling.post("/chat", {"text": "z" * 20_000_000})
        thread.join()
    assert caught.value.status == 413


# -- gzip ------------------------------------------------------------------------------------

ZIPPED = b"Content-Encoding: gzip\r\n"


def test_gzip_bodies_are_read() -> None:
    body = json.dumps("long " * 300_000).encode()
    refused = plain(gzip.compress(b'{"error": {"message": "not so"}}', mtime=0), ZIPPED, b"400 No")
    answers = (plain(gzip.compress(body, mtime=0), ZIPPED), refused, plain(b"1"))
    with answering(*answers, piece=700) as server, client(server.url) as calling:
        assert calling.post("/chat", {}) == "long " * 300_000
        with pytest.raises(CallFailed, match="400: not so"):
            calling.post("/chat", {})
        assert calling.post("/chat", {}) == 1
        assert server.accepted == 1


@pytest.mark.parametrize("extra", [b"junk", gzip.compress(b"2", mtime=0)])
def test_bytes_after_a_gzip_body_are_ignored(extra: bytes) -> None:
    body = gzip.compress(json.dumps("0" * 600_000).encode(), mtime=0)
    with answering(plain(body + extra, ZIPPED)) as server, client(server.url) as calling:
        assert calling.post("/chat", {}) == "0" * 600_000


@pytest.mark.parametrize(
    ("body", "encoding", "message"),
    [
        (gzip.compress(b"\0" * 50_000_000, mtime=0), b"gzip", "more than 1,000 bytes"),
        (gzip.compress(b'{"a": 1}', mtime=0)[:-9], b"gzip", "half a body"),
        (b"not zipped at all", b"gzip", "damaged body"),
        (b"\x0b\x02", b"br", "encoded as br"),
        (gzip.compress(b"1", mtime=0), b"gzip, gzip", "encoded as gzip, gzip"),
    ],
)
def test_invalid_gzip_bodies_are_malformed(body: bytes, encoding: bytes, message: str) -> None:
    with answering(plain(body, b"Content-Encoding: %s\r\n" % encoding)) as server:
        failure = failed(server.url)
    assert message in str(failure)
    assert failure.malformed


# -- limits and timeouts ---------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"4\r\nabcd\r\n" * 2000),
    "small chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 2000),
    "a body": (HEAD + b"\r\n", b"x" * 20_000),
    "a long body": (HEAD + b"Content-Length: 9000000000000\r\n\r\n", b"x" * 20_000),
    "zeros in gzip": (
        HEAD + ZIPPED + b"Transfer-Encoding: chunked\r\n\r\n",
        b"3e8\r\n%s\r\n" % gzip.compress(random.Random(1).randbytes(2000))[:1000],
    ),
    "headers": (HEAD, b"X-More: %s\r\n" % (b"y" * 5000)),
    "one header": (HEAD + b"X-Long: ", b"y" * 20_000),
    "announcements": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 500),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_replies_are_cut_off(kind: str) -> None:
    first, more = ENDLESS[kind]
    sent = 0

    def stream() -> Iterator[bytes]:
        nonlocal sent
        yield first
        for part in repeat(more):
            sent += len(part)
            yield part

    with answering(stream()) as server:
        failure = failed(server.url, timeout=60.0, limit=20_000)
        assert failure.retryable
    assert server.hung_up == 1
    # Bytes in the buffers of the connection count as sent.
    assert sent < HEAD_BYTES + 20_000 * 8 + 20_000_000


@pytest.mark.parametrize(
    "reply",
    [plain(b'"%s"' % (b"x" * 400)), chunked(b'"%s"' % (b"x" * 400), 1), HEAD + b"X: " * 300,
     b"HTTP/1.1 100 Continue\r\n\r\n" * 40],
    ids=["body", "chunks", "headers", "announcements"],
)  # fmt: skip
def test_a_slow_reply_ends_at_the_timeout(reply: bytes) -> None:
    """Each byte arrives in time; all of them would take twenty times the timeout."""

    def slowly() -> Iterator[bytes]:
        for at in range(len(reply)):
            time.sleep(0.05)
            yield reply[at : at + 1]

    with answering(slowly()) as server:
        failure = failed(server.url, timeout=1.0)
    assert "did not answer within 1 seconds" in str(failure)
    assert failure.retryable
    assert server.hung_up == 1


def test_no_reply_ends_at_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        failure = failed(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1)
    assert "did not answer within 0.1 seconds" in str(failure)
    assert not failure.unreachable, "it may have been taken and paid for"


def test_a_reply_already_received_is_read_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the process or the machine was suspended while waiting."""

    class Stopwatch:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

    arrived, clock = threading.Event(), Stopwatch()
    connect = httpcore.SyncBackend.connect_tcp

    class Late(httpcore.NetworkStream):
        def __init__(self, stream: httpcore.NetworkStream) -> None:
            self.stream = stream

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            assert arrived.wait(20)
            return self.stream.read(min(max_bytes, 10_000), timeout)

        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            self.stream.write(buffer, timeout)

        def close(self) -> None:
            self.stream.close()

        def get_extra_info(self, info: str) -> Any:
            return self.stream.get_extra_info(info)

    monkeypatch.setattr(
        httpcore.SyncBackend, "connect_tcp", lambda *args, **kwargs: Late(connect(*args, **kwargs))
    )
    monkeypatch.setattr(strop.common.transport, "time", clock)

    def stream_reply() -> Iterator[bytes]:
        yield plain(json.dumps("paid for " * 8000).encode())
        clock.now += 5000
        arrived.set()

    with answering(stream_reply()) as server, client(server.url) as calling:
        assert calling.post("/chat", {}) == "paid for " * 8000


# -- redirects and proxies -------------------------------------------------------------------


def redirect(status: int, to: str) -> Callable[[Seen], Answer]:
    return lambda seen: Answer(status, {}, {"location": to})


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("caller", ["model", "embedder"])
def test_redirects_to_another_host_are_refused(caller: str, status: int) -> None:
    with ScriptedServer() as ours, ScriptedServer() as other:
        ours.act = redirect(status, f"{other.url}/chat/completions?key=1")
        with pytest.raises(ServiceError, match=rf"redirects to {other.root}.*as base_url"):
            call_service(caller, ours.url)
        assert len(ours.seen) == 1
        assert not other.seen


def test_redirects_within_the_service_are_followed() -> None:
    with ScriptedServer() as server, client(server.url) as calling:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        server.script.append(redirect(307, "/v1/completions/../chat/completions"))
        server.script.append(redirect(308, f"{server.root}/v1/chat/completions"))
        assert calling.post("/elsewhere", body)["choices"]
        assert [json.loads(seen.raw) for seen in server.seen] == [body] * 3

        server.script.append(redirect(302, "/v1/new"))
        with pytest.raises(ServiceError, match=r"302: its address is http://.*/v1/new"):
            calling.post("/old", body)
        server.script.append(redirect(302, "/v1/files/f"))
        server.files["f"] = b"7"
        assert calling.get("/old") == 7

        server.seen.clear()
        server.act = redirect(307, "/v1/round")
        with pytest.raises(ServiceError, match="redirects in a circle"):
            calling.post("/round", body)
        assert len(server.seen) == 4


def test_proxies_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with ScriptedServer() as proxy, answering(plain(b"1")) as direct:
        monkeypatch.setenv("http_proxy", f"http://me:word@127.0.0.1:{proxy.port}")
        proxy.act = lambda seen: Answer(200, 7)
        with client("http://model.invalid/v1") as calling:
            assert calling.post("/chat", {}) == 7
        assert proxy.seen[0].path == "http://model.invalid/v1/chat"
        assert "basic" in proxy.seen[0].headers["proxy-authorization"].lower()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with client(direct.url) as calling:
            assert calling.post("/chat", {}) == 1
        assert len(proxy.seen) == 1


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://host/v1", "http://", "http://[::1", "http://host:99999999", 7, None],
)
def test_invalid_urls_are_refused(url: Any) -> None:
    from strop.common.http import checked_url

    with pytest.raises(BadInput, match="must be like http://"):
        checked_url(url, "KEY")
    with pytest.raises(BadInput, match="password; put the key in KEY"):
        checked_url("https://me:pass@host/v1", "KEY")


# -- TLS -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    key, file = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(
            [*command, *names, "-keyout", str(key), "-out", str(file)],
            check=True, capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("needs openssl to make a certificate")
    return key, file


@pytest.fixture
def wrapped(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Wrap:
    """TLS for the server, with a certificate that the client trusts."""
    key, file = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return lambda connection: context.wrap_socket(connection, server_side=True)


def test_calls_over_tls(wrapped: Wrap) -> None:
    body = json.dumps("abc" * 500_000).encode()  # many records
    answers = plain(b"1"), chunked(body, 50_000), plain(body), plain(b"4")
    with answering(*answers, wrap=wrapped) as server, client(server.url) as calling:
        assert calling.post("/chat", {}) == 1
        for _ in range(2):
            assert calling.post("/chat", {"text": "z" * 4_000_000}) == "abc" * 500_000
        assert calling.post("/chat", {}) == 4
        assert server.accepted == 1


def test_an_incomplete_reply_over_tls(wrapped: Wrap) -> None:
    answers = plain(b"1234")[:-1], plain(b"5")
    with (
        answering(*answers, keep=False, wrap=wrapped) as server,
        client(server.url) as calling,
    ):
        with pytest.raises(CallFailed, match="broke off"):
            calling.post("/chat", {})
        assert calling.post("/chat", {}) == 5


def test_an_untrusted_certificate_is_refused(
    wrapped: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with answering(plain(b"1"), wrap=wrapped) as server:
        failure = failed(server.url)
        assert server.requests == 0
    assert failure.unreachable
    assert "certificate verify failed" in str(failure)


# -- models and embedders --------------------------------------------------------------------


@pytest.mark.parametrize("caller", ["model", "embedder"])
@pytest.mark.parametrize("kind", ["slow", "endless"])
def test_models_and_embedders_have_the_same_limits(caller: str, kind: str) -> None:
    def stream() -> Iterator[bytes]:
        yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        part = b"1\r\n \r\n" if kind == "slow" else b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
        for piece in repeat(part):
            time.sleep(0.02 if kind == "slow" else 0)
            yield piece

    options: dict[str, Any] = {"retries": 0, "timeout": 1.0 if kind == "slow" else 60.0}
    message = "did not answer within 1 seconds" if kind == "slow" else "sent more than"
    with answering(stream()) as server:
        if caller == "model":
            (failure,) = call_service(caller, server.url, **options)
            assert isinstance(failure, Failure)
            assert message in failure.error
        else:
            with pytest.raises(ServiceError, match=message):
                call_service(caller, server.url, **options)


def test_calls_run_concurrently() -> None:
    """A connection without a reply does not block the others."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with client(url) as calling:
            results: list[Any] = []
            threads = [
                threading.Thread(target=lambda: results.append(calling.post("/chat", {})))
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            connections = [listening.accept()[0] for _ in range(3)]
            for connection in connections:
                assert read_request(connection)
            for number in (1, 0, 2):
                connections[number].sendall(plain(b"%d" % number))
            for thread in threads:
                thread.join(20)
            assert sorted(results) == [0, 1, 2]
        for connection in connections:
            assert connection.recv(1) == b"", "nothing is left open"
            connection.close()


def test_the_cost_of_a_call_does_not_grow_with_connections() -> None:
    """A connection pool once scanned all connections for each of them on every call."""

    def steps(calling: Client) -> int:
        profile = cProfile.Profile()
        profile.runcall(calling.post, "/chat/completions", body)
        return sum(entry.callcount for entry in profile.getstats())

    body = {"model": "m", "messages": [{"role": "user", "content": "text"}]}
    with ScriptedServer() as server, client(server.url) as calling:
        calling.post("/chat/completions", body)
        alone = steps(calling)
        server.latency = 1.0
        threads = [
            threading.Thread(target=calling.post, args=("/chat/completions", body))
            for _ in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert server.most_active > 4, "there are many connections by now"
        server.latency = 0.0
        assert steps(calling) < 1.5 * alone
