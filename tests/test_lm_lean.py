"""The lean client reads what servers may send, whole and in pieces."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.lm.lean import LeanClient, Refused, Unreachable, goes_direct


@contextmanager
def answering(*answers: bytes, piece: int = 65536, keep: bool = True) -> Iterator[str]:
    """A server that sends these bytes for the requests that come, in pieces of a size."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(10)

    def serve() -> None:
        left = list(answers)
        while left:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                while left and read_request(connection):
                    answer = left.pop(0)
                    for at in range(0, len(answer), piece):
                        connection.sendall(answer[at : at + piece])
                    if not keep:
                        break

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        listening.close()
        thread.join()


def read_request(connection: socket.socket) -> bool:
    seen = b""
    while b"\r\n\r\n" not in seen:
        come = connection.recv(65536)
        if not come:
            return False
        seen += come
    head, _, body = seen.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return True


def plain(body: bytes, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), extra, body)


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    sent = b"".join(b"%x;x=1\r\n%s\r\n" % (len(part), part) for part in parts)
    return (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent + b"0\r\nLater: 1\r\n\r\n"
    )


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=300), st.integers(1, 40), st.integers(1, 60), st.booleans())
def test_any_text_in_any_pieces(text: str, piece: int, size: int, whole: bool) -> None:
    body = text.encode("utf-8", "replace")
    first = plain(body) if whole else chunked(body, size)
    second = chunked(body, size) if whole else plain(body)
    with answering(b"HTTP/1.1 100 Continue\r\n\r\n" + first, second, piece=piece) as url:
        client = LeanClient(url, {"Authorization": "Bearer x"}, 10)
        for _ in range(2):  # on one connection
            assert client.post("/chat", body={"text": text.replace("\ud800", "")}) == body.decode()
        client.close()


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n{}", plain(b"[]"), keep=False) as url:
        client = LeanClient(url, {}, 10)
        assert client.post("/chat", body={}) == "{}"
        assert client.post("/chat", body={}) == "[]", "a closed connection is made anew"
        client.close()


def test_a_connection_closed_meanwhile_is_made_anew() -> None:
    with answering(plain(b"1"), plain(b"2"), plain(b"3"), keep=False) as url:
        client = LeanClient(url, {}, 10)
        for wanted in "123":
            assert client.post("/chat", body={}) == wanted
            sock = client._connection()._socket
            assert sock is not None
            assert select.select([sock], [], [], 10)[0], "the end has not come"
        client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    ],
)  # fmt: skip
def test_half_an_answer_is_none(answer: bytes) -> None:
    with answering(answer, keep=False) as url:
        client = LeanClient(url, {}, 10)
        with pytest.raises(Unreachable) as caught:
            client.post("/chat", body={})
        assert not caught.value.timeout
        client.close()


def test_refusals_and_silence() -> None:
    refused = b'HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nContent-Length: 7\r\n\r\n{"a":1}'
    with answering(refused) as url:
        client = LeanClient(url, {}, 10)
        with pytest.raises(Refused) as caught:
            client.post("/chat", body={})
        error = caught.value
        assert (error.status, error.body, error.headers["retry-after"]) == (429, {"a": 1}, "3")
        client.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = LeanClient(f"http://127.0.0.1:{silent.getsockname()[1]}", {}, 0.1)
        with pytest.raises(Unreachable) as waited:
            client.post("/chat", body={})
        assert waited.value.timeout
        client.close()


def test_proxies_are_left_to_the_vendors_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert goes_direct("https://api.openai.com/v1")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")
    assert not goes_direct("https://api.openai.com/v1")
    monkeypatch.setenv("no_proxy", "api.openai.com")
    assert goes_direct("https://api.openai.com/v1")
