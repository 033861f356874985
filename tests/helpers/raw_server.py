"""A server that answers with given bytes, valid HTTP or not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

Wrap = Callable[[socket.socket], socket.socket]


@dataclass
class RawServer:
    """The URL of a server and its counts of connections and requests."""

    url: str
    accepted: int = 0
    requests: int = 0
    hung_up: int = 0
    """How often the client hung up before all was sent."""


@contextmanager
def answering(
    *answers: bytes | Iterable[bytes],
    piece: int = 65536,
    keep: bool = True,
    wrap: Wrap | None = None,
) -> Iterator[RawServer]:
    """Answer the requests with ``answers`` in turn, sent in pieces of ``piece`` bytes.

    An answer can also be an iterable of pieces, of any length. With ``keep`` False the server
    closes the connection after each answer without notice.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(20)
    url = f"http{'s' if wrap else ''}://127.0.0.1:{listening.getsockname()[1]}/v1"
    server = RawServer(url)

    def serve() -> None:
        left = list(answers)
        while left:
            try:
                connection, _ = listening.accept()
                server.accepted += 1
                with wrap(connection) if wrap else connection as connection:
                    while left and read_request(connection):
                        server.requests += 1
                        _send(server, connection, left.pop(0), piece)
                        if not keep:
                            break
            except OSError:
                if listening.fileno() < 0:
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(30)
        assert not thread.is_alive()


def _send(
    server: RawServer, connection: socket.socket, answer: bytes | Iterable[bytes], piece: int
) -> None:
    if isinstance(answer, bytes):
        answer = [answer[at : at + piece] for at in range(0, len(answer), piece)]
    try:
        for part in answer:
            connection.sendall(part)
    except OSError:
        server.hung_up += 1
        raise


def read_request(connection: socket.socket) -> bool:
    """Read one request; False if there is none."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return False
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    while len(body) < length:
        body += connection.recv(65536)
    return True


def plain(body: bytes, extra: bytes = b"", status: bytes = b"200 OK") -> bytes:
    """An answer with a length."""
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), extra, body)


def chunked(body: bytes, size: int) -> bytes:
    """A chunked answer with a trailer."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    sent = b"".join(b"%x;x=1\r\n%s\r\n" % (len(part), part) for part in parts)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + sent + b"0\r\nLater: 1\r\n\r\n"
