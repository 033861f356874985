"""Lean calls from one thread: what servers may send, whole and in pieces, and when they do not."""

from __future__ import annotations

import select
import selectors
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.lm.gate import Clock, Gate, Steps, Stopped
from strop.lm.lean import Connection, Refused, Site, Unreachable, goes_direct
from strop.lm.loop import Loop, Mistake


class LeanClient:
    """Makes one call after the other, or several at a time, by a loop in a thread."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        timeout: float,
        concurrency: int = 8,
        clock: Clock | None = None,
    ) -> None:
        self.loop = Loop(Site(url, headers, timeout))
        self.gate = Gate(concurrency, clock or Clock())
        self.todo: SimpleQueue[Any] = SimpleQueue()
        self.done: SimpleQueue[Any] = SimpleQueue()
        self.thread = threading.Thread(
            target=self.loop.work, args=(self.todo, self.done, self.gate), daemon=True
        )
        self.thread.start()

    def begin(self, path: str, body: Any) -> None:
        self.todo.put(self._steps(path, body))
        self.loop.wake()

    def _steps(self, path: str, body: Any) -> Steps[Any]:
        try:
            entered = yield 0.0
        except Exception as error:
            return error
        try:
            return (yield path, body)
        except Exception as error:
            return error
        finally:
            self.gate.leave(entered, ok=True)

    def take(self) -> Any:
        return self.done.get(timeout=20)

    def post(self, path: str, body: Any) -> str:
        self.begin(path, body)
        come = self.take()
        if isinstance(come, Exception):
            raise come
        assert isinstance(come, str)
        return come

    def close(self) -> None:
        self.todo.put(None)
        self.loop.wake()
        self.thread.join(20)
        assert not self.thread.is_alive()


Wrap = Callable[[socket.socket], socket.socket]


@dataclass
class Answering:
    """Where a server is, and how many connections it has accepted."""

    url: str
    accepted: int = 0


@contextmanager
def answering(
    *answers: bytes, piece: int = 65536, keep: bool = True, wrap: Wrap | None = None
) -> Iterator[Answering]:
    """A server that sends these bytes for the requests that come, in pieces of a size."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(10)
    url = f"http{'s' if wrap else ''}://127.0.0.1:{listening.getsockname()[1]}/v1"
    server = Answering(url)

    def serve() -> None:
        left = list(answers)
        while left:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            server.accepted += 1
            with wrap(connection) if wrap else connection as connection:
                while left and read_request(connection):
                    answer = left.pop(0)
                    for at in range(0, len(answer), piece):
                        connection.sendall(answer[at : at + piece])
                    if not keep:
                        break

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
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
    with answering(b"HTTP/1.1 100 Continue\r\n\r\n" + first, second, piece=piece) as server:
        client = LeanClient(server.url, {"Authorization": "Bearer x"}, 10)
        for _ in range(2):
            assert client.post("/chat", body={"text": text.replace("\ud800", "")}) == body.decode()
        assert server.accepted == 1
        client.close()


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n{}", plain(b"[]"), keep=False) as server:
        client = LeanClient(server.url, {}, 10)
        assert client.post("/chat", body={}) == "{}"
        assert client.post("/chat", body={}) == "[]"
        assert server.accepted == 2, "a closed connection is made anew"
        client.close()


def test_a_connection_closed_meanwhile_is_made_anew() -> None:
    with answering(plain(b"1"), plain(b"2"), plain(b"3"), keep=False) as server:
        client = LeanClient(server.url, {}, 10)
        for wanted in "123":
            assert client.post("/chat", body={}) == wanted
            # Whether the thread has noticed the end by now or notices it when it sends.
            for connection in list(client.loop._idle):
                with suppress(ValueError):
                    assert select.select([connection.socket], [], [], 10)[0]
        assert server.accepted == 3
        client.close()


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (plain(b"1"), True), (plain(b"1", b"Connection: close\r\n"), False),
        (plain(b"1").replace(b"1.1", b"1.0"), False),
        (plain(b"1", b"Connection: keep-alive\r\n").replace(b"1.1", b"1.0"), True),
    ],
)  # fmt: skip
def test_which_connections_are_kept(answer: bytes, kept: bool) -> None:
    with answering(answer, plain(b"2")) as server:
        client = LeanClient(
            server.url, {}, 10, concurrency=1
        )  # the second goes out as the first is back
        client.begin("/chat", {})
        client.begin("/chat", {})
        assert sorted(client.take() for _ in range(2)) == ["1", "2"]
        assert server.accepted == (1 if kept else 2)
        client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_half_an_answer_is_none(answer: bytes) -> None:
    with answering(answer, keep=False) as server:
        client = LeanClient(server.url, {}, 10)
        with pytest.raises(Unreachable) as caught:
            client.post("/chat", body={})
        assert not caught.value.timeout
        client.close()


def test_refusals_and_silence() -> None:
    refused = b'HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nContent-Length: 7\r\n\r\n{"a":1}'
    with answering(refused) as server:
        client = LeanClient(server.url, {}, 10)
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


def test_a_refusal_that_is_nested_too_deeply() -> None:
    deep = "[" * 100_000
    with answering(b"HTTP/1.1 500 Oh\r\nContent-Length: 100000\r\n\r\n" + deep.encode()) as server:
        client = LeanClient(server.url, {}, 10)
        with pytest.raises(Refused) as caught:
            client.post("/chat", body={})
        assert caught.value.body == deep
        client.close()


def test_a_refusal_keeps_the_connection_and_others_are_not_held_up() -> None:
    refused = b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno"
    with answering(refused, plain(b"1")) as server:  # it accepts no second connection meanwhile
        client = LeanClient(server.url, {}, 10)
        with pytest.raises(Refused):
            client.post("/chat", body={})
        assert client.post("/chat", body={}) == "1"
        assert server.accepted == 1
        client.close()


def test_a_text_that_cannot_be_sent() -> None:
    with answering(plain(b"1")) as server:
        client = LeanClient(server.url, {}, 10)
        with pytest.raises(UnicodeError):
            client.post("/chat", body={"text": "\ud800"})
        assert client.post("/chat", body={}) == "1"
        client.close()


def test_calls_that_end_at_once_make_room() -> None:
    """All is in line before the thread looks, and nobody wakes it afterwards."""
    with answering(plain(b"1")) as server:
        client = LeanClient(server.url, {}, 10, concurrency=1)
        wrong = {"text": "\ud800"}
        for body in ({}, wrong, wrong):
            client.todo.put(client._steps("/chat", body))
        client.todo.put(None)
        client.loop.wake()
        come = [client.take() for _ in range(3)]
        assert sorted(type(one).__name__ for one in come) == ["UnicodeEncodeError"] * 2 + ["str"]
        client.thread.join(20)
        assert not client.thread.is_alive()


def test_a_stop_ends_all_that_wait() -> None:
    client = LeanClient("http://127.0.0.1:9", {}, 10, concurrency=1)
    client.gate.stop()
    for _ in range(3):
        client.todo.put(client._steps("/chat", {}))
    client.todo.put(None)
    client.loop.wake()
    assert [type(client.take()) for _ in range(3)] == [Stopped] * 3
    client.thread.join(20)
    assert not client.thread.is_alive()


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = LeanClient(f"http://127.0.0.1:{port}", {}, 10)
    with pytest.raises(Unreachable, match="ConnectionRefused") as caught:
        client.post("/chat", body={})
    assert not caught.value.timeout
    client.close()


def test_long_bodies_both_ways() -> None:
    """Longer than any buffer on the way, so that sending stops for a while."""
    with answering(plain(b"x" * 8_000_000), chunked(b"y" * 3_000_000, 70_000)) as server:
        client = LeanClient(server.url, {}, 10)
        assert client.post("/chat", body={"text": "z" * 8_000_000}) == "x" * 8_000_000
        assert client.post("/chat", body={"text": "z" * 8_000_000}) == "y" * 3_000_000
        assert server.accepted == 1
        client.close()


def test_an_answer_before_the_request_is_out() -> None:
    """A service may refuse what is too long without reading it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = LeanClient(f"http://127.0.0.1:{listening.getsockname()[1]}", {}, 10)
        client.begin("/chat", {"text": "z" * 20_000_000})
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 413 Long\r\nContent-Length: 0\r\n\r\n")
            come = client.take()
            assert isinstance(come, Refused)
            assert come.status == 413
            assert not client.loop._idle, "half a request is still in it"
        client.close()


def test_progress_is_no_silence() -> None:
    """What comes bit by bit may take longer than the timeout in all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = LeanClient(f"http://127.0.0.1:{listening.getsockname()[1]}", {}, 0.5)
        client.begin("/chat", {})
        connection, _ = listening.accept()
        with connection:
            assert read_request(connection)
            for byte in plain(b"1234567890"):
                connection.sendall(bytes([byte]))
                time.sleep(0.02)
            assert client.take() == "1234567890"
            client.begin("/chat", {})
            assert read_request(connection)
            connection.sendall(plain(b"1234567890")[:-1])
            come = client.take()
            assert isinstance(come, Unreachable)
            assert come.timeout
        client.close()


def test_calls_wait_for_each_other_nowhere() -> None:
    """A silent connection holds up none of the others, and all go on at the same time."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = LeanClient(f"http://127.0.0.1:{listening.getsockname()[1]}", {}, 10, 3)
        for _ in range(4):
            client.begin("/chat", {})
        connections = [listening.accept()[0] for _ in range(3)]
        for connection in connections:
            assert read_request(connection)
        connections[1].sendall(plain(b"second"))
        assert client.take() == "second"
        assert read_request(connections[1]), "the fourth call goes out when a place is free"
        for connection, body in zip(connections, (b"first", b"fourth", b"third"), strict=True):
            connection.sendall(plain(body))
        assert sorted(client.take() for _ in range(3)) == ["first", "fourth", "third"]
        client.close()
        for connection in connections:
            assert connection.recv(1) == b"", "nothing is left open"
            connection.close()


def test_a_stop_waits_for_what_is_on_its_way_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = LeanClient(f"http://127.0.0.1:{listening.getsockname()[1]}", {}, 10, 1)
        for _ in range(3):
            client.begin("/chat", {})
        connection, _ = listening.accept()
        with connection:
            assert read_request(connection)
            client.gate.stop()
            client.loop.wake()
            connection.sendall(plain(b"paid for"))
            come = [client.take() for _ in range(3)]
        assert [one for one in come if not isinstance(one, Stopped)] == ["paid for"]
        client.close()


def test_a_mistake_in_the_loop_ends_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Loop) -> None:
        raise ZeroDivisionError("a bug")

    with answering(plain(b"1")) as server:
        client = LeanClient(server.url, {}, 10)
        assert client.post("/chat", body={}) == "1"
        monkeypatch.setattr(Loop, "_give_up", broken)
        for _ in range(2):  # the second comes when it is all over
            with pytest.raises(Mistake, match="ZeroDivisionError: a bug") as caught:
                client.post("/chat", body={})
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
        client.close()


def test_a_mistake_after_the_last_call_was_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Loop, connection: Connection) -> None:
        raise ZeroDivisionError("a bug")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = LeanClient(f"http://127.0.0.1:{listening.getsockname()[1]}", {}, 10)
        client.todo.put(client._steps("/chat", {}))
        client.todo.put(None)
        client.loop.wake()
        connection, _ = listening.accept()
        with connection:
            assert read_request(connection)
            monkeypatch.setattr(Loop, "_read", broken)
            connection.sendall(plain(b"1"))
            assert isinstance(client.take(), Mistake)
        client.thread.join(20)
        assert not client.thread.is_alive()


def test_a_mistake_ends_a_call_that_would_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Loop) -> None:
        raise ZeroDivisionError("a bug")

    def stubborn() -> Steps[str]:
        try:
            yield 0.0
        except Mistake:
            with suppress(Stopped):
                yield 0.0
        return "ended"

    monkeypatch.setattr(Loop, "_take_up", broken)
    client = LeanClient("http://127.0.0.1:9", {}, 10)
    client.todo.put(stubborn())
    assert client.take() == "ended"
    client.close()


class HeldClock(Clock):
    """Sees news only when a test lets it."""

    def __init__(self) -> None:
        self.go, self.holds = threading.Event(), threading.Event()
        self.late = 0.0

    def watch(
        self, selector: selectors.BaseSelector, seconds: float | None, silence: float | None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.go.is_set():
            self.holds.set()
        self.go.wait(20)
        if self.late:  # as after a process was stopped while it waited
            time.sleep(self.late)
            self.late = 0.0
            return []
        return super().watch(selector, seconds, silence)


@contextmanager
def held(
    timeout: float, concurrency: int = 8
) -> Iterator[tuple[LeanClient, HeldClock, socket.socket, socket.socket]]:
    """A client that waits for its clock after a request; the server, and its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        clock = HeldClock()
        clock.go.set()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client = LeanClient(url, {}, timeout, concurrency, clock)
        client.begin("/chat", {})
        connection, _ = listening.accept()
        with connection:
            assert read_request(connection)
            clock.go.clear()
            client.loop.wake()
            assert clock.holds.wait(20)
            yield client, clock, listening, connection
        client.close()


def test_an_answer_that_is_here_is_taken_however_late() -> None:
    with held(timeout=0.5) as (client, clock, _, connection):
        connection.sendall(plain(b"paid for"))
        clock.late = 0.7
        clock.go.set()
        assert client.take() == "paid for"


def test_a_service_that_hangs_up_without_saying_so() -> None:
    """The next call waits already, and would be lost on the connection that has just answered."""
    with held(timeout=10, concurrency=1) as (client, clock, listening, connection):
        client.begin("/chat", {})
        connection.sendall(plain(b"1"))
        connection.shutdown(socket.SHUT_RDWR)
        clock.go.set()
        again, _ = listening.accept()
        with again:
            assert read_request(again)
            again.sendall(plain(b"2"))
            assert [client.take(), client.take()] == ["1", "2"]


def test_an_idle_connection_is_not_watched_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request leaves completely in the moment in which its refusal comes."""
    begin = Connection.begin

    def without_room(self: Connection, message: bytes) -> None:
        begin(self, message)
        self.blocked = True

    monkeypatch.setattr(Connection, "begin", without_room)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        clock = HeldClock()
        clock.go.set()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client = LeanClient(url, {}, 10, clock=clock)
        send = Loop._send

        def held_then_sent(self: Loop, *given: Any) -> None:
            clock.go.clear()
            send(self, *given)

        monkeypatch.setattr(Loop, "_send", held_then_sent)
        client.begin("/chat", {})
        connection, _ = listening.accept()
        with connection:
            assert read_request(connection)
            connection.sendall(b"HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n")
            clock.go.set()
            assert isinstance(client.take(), Refused)
            (idle,) = client.loop._idle
            assert client.loop._selector.get_key(idle.socket).events == selectors.EVENT_READ
            client.close()


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Connections are not made before this is set."""
    made, connect = threading.Event(), Site.connect

    def slowly(self: Site) -> Connection:
        assert made.wait(20)
        return connect(self)

    monkeypatch.setattr(Site, "connect", slowly)
    yield made
    made.set()


def test_a_stop_does_not_wait_for_connections(unreachable: threading.Event) -> None:
    client = LeanClient("http://127.0.0.1:9", {}, 60, concurrency=40)
    for _ in range(40):  # more than there are helpers
        client.begin("/chat", {})
    client.gate.stop()
    client.loop.wake()
    assert [type(client.take()) for _ in range(40)] == [Stopped] * 40
    client.close()


def test_nothing_is_sent_after_a_stop(unreachable: threading.Event) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = LeanClient(f"http://127.0.0.1:{listening.getsockname()[1]}", {}, 60)
        client.begin("/chat", {})
        while not client.loop._connecting:
            time.sleep(0.001)
        client.gate.stop()  # of which the thread hears when there is a connection
        unreachable.set()
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(1) == b""
        assert isinstance(client.take(), Stopped)
        client.close()


def test_waiting_for_a_connection_counts_as_silence(unreachable: threading.Event) -> None:
    client = LeanClient("http://127.0.0.1:9", {}, 0.1)
    client.begin("/chat", {})
    come = client.take()
    assert isinstance(come, Unreachable)
    assert come.timeout
    client.close()


def test_helpers_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one helper all goes on, each call once; without any a call fails."""
    start, allowed = threading.Thread.start, 0

    def few(self: threading.Thread) -> None:
        nonlocal allowed
        if self.name == "strop-connect":
            allowed -= 1
            if allowed < 0:
                raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", few)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = LeanClient(f"http://127.0.0.1:{listening.getsockname()[1]}", {}, 10)
        client.begin("/chat", {})
        assert isinstance(client.take(), RuntimeError)
        allowed = 1
        for _ in range(3):
            client.begin("/chat", {})
        connections = [listening.accept()[0] for _ in range(3)]
        for connection in connections:
            with connection:
                assert read_request(connection)
                connection.sendall(plain(b"1"))
        assert [client.take() for _ in range(3)] == ["1"] * 3
        client.close()
        assert client.done.empty()


def test_an_interrupted_bell_rings_again() -> None:
    class Interrupted:
        def send(self, data: bytes) -> None:
            raise KeyboardInterrupt

    client = LeanClient("http://127.0.0.1:9", {}, 10)
    while client.loop._bell is None:
        time.sleep(0.001)
    bell, client.loop._bell = client.loop._bell, cast(socket.socket, Interrupted())
    with pytest.raises(KeyboardInterrupt):
        client.loop.wake()
    assert not client.loop._rung
    client.loop._bell = bell
    client.close()


@pytest.fixture
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wrap:
    """Encryption for the server, by a certificate that is trusted here."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return lambda connection: context.wrap_socket(connection, server_side=True)


def test_encrypted(wrapped: Wrap) -> None:
    body = bytes(range(32, 127)) * 30_000  # many records, of which one event may bring several
    answers = plain(b"1"), chunked(body, 50_000), plain(body), plain(b"4")
    with answering(*answers, wrap=wrapped) as server:
        client = LeanClient(server.url, {}, 10)
        assert client.post("/chat", body={}) == "1"
        for _ in range(2):
            assert client.post("/chat", body={"text": "z" * 4_000_000}) == body.decode()
        assert client.post("/chat", body={}) == "4"
        assert server.accepted == 1
        client.close()


def test_encrypted_and_cut_short(wrapped: Wrap) -> None:
    with answering(plain(b"1234")[:-1], plain(b"5"), keep=False, wrap=wrapped) as server:
        client = LeanClient(server.url, {}, 10)
        with pytest.raises(Unreachable, match="hung up"):
            client.post("/chat", body={})
        assert client.post("/chat", body={}) == "5"
        client.close()


def test_a_certificate_that_nobody_vouches_for(
    wrapped: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = LeanClient(f"https://127.0.0.1:{listening.getsockname()[1]}", {}, 10)
        client.begin("/chat", {})
        with pytest.raises(ssl.SSLError):
            wrapped(listening.accept()[0])
        come = client.take()
        assert isinstance(come, Unreachable)
        assert "certificate verify failed" in str(come)
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
