"""Calls over kept connections at a tenth of the processor time of the vendors' clients.

Those spend over a millisecond on each call, which at hundreds of calls a second is more than a
core. This does one thing: send JSON, read a text. Whatever else they do (proxies, signing,
files), they go on doing.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_LONGEST_HEAD = 100_000


class Refused(Exception):
    """The service answered with another status than success; ``body`` is what it said."""

    def __init__(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(f"status {status}")
        self.status, self.body, self.headers = status, body, headers


class Unreachable(Exception):
    """No answer came; ``timeout`` says whether it was waited for in vain."""

    def __init__(self, message: str, timeout: bool) -> None:
        super().__init__(message)
        self.timeout = timeout


def goes_direct(url: str) -> bool:
    """Whether an address is called without a proxy, which this knows nothing of."""
    parts = urlsplit(url)
    proxies = getproxies()
    if not proxies.get(parts.scheme) and not proxies.get("all"):
        return True
    return bool(proxy_bypass(parts.hostname or ""))


class LeanClient:
    """``post`` and ``close`` of a vendor's client; each thread has a connection of its own."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._address = (parts.hostname or "", parts.port or (443 if secure else 80))
        self._base = parts.path.rstrip("/")
        self._timeout = timeout
        all_headers = {"Host": parts.netloc, **headers, "Content-Type": "application/json"}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        self._context = _trusting() if secure else None
        self._local = threading.local()
        self._made: list[_Connection] = []

    def post(self, path: str, *, body: Any, cast_to: type[str] = str) -> str:
        """Send JSON to a path below the address; return the text that came."""
        data = json.dumps(body, ensure_ascii=False).encode()
        head = f"POST {self._base}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(data)}"
        connection = self._connection()
        try:
            status, headers, said = connection.exchange(head.encode() + b"\r\n\r\n" + data)
        except TimeoutError as error:
            connection.close()
            raise Unreachable(str(error), timeout=True) from None
        except (OSError, ValueError) as error:
            connection.close()
            raise Unreachable(f"{type(error).__name__}: {error}", timeout=False) from None
        text = said.decode("utf-8", "replace")
        if status // 100 != 2:
            raise Refused(status, _body(text), headers)
        return text

    def _connection(self) -> _Connection:
        known: _Connection | None = getattr(self._local, "connection", None)
        if known is None:
            known = _Connection(self._address, self._timeout, self._context)
            self._local.connection = known
            self._made.append(known)
        return known

    def close(self) -> None:
        """Close every thread's connection."""
        for connection in self._made:
            connection.close()


class _Connection:
    """One kept connection; ``ValueError`` for what is no answer."""

    def __init__(
        self, address: tuple[str, int], timeout: float, context: ssl.SSLContext | None
    ) -> None:
        self._address, self._timeout, self._context = address, timeout, context
        self._socket: socket.socket | None = None
        self._rest = b""

    def exchange(self, message: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send a request; return status, headers by lower-case name, and body of the answer."""
        if self._socket is not None and (self._rest or _has_news(self._socket)):
            self.close()  # nothing was asked: it can only be the end
        if self._socket is None:
            self._socket = self._connected()
        self._socket.sendall(message)
        while True:
            status, headers = _head(self._until(b"\r\n\r\n"))
            if status >= 200:  # before, it was only to say that more is to come
                break
        length = headers.get("content-length")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = b"".join(self._chunks())
        elif length is not None:
            body = self._exactly(int(length))
        else:
            body = b"" if status in (204, 304) else self._to_the_end()
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, body

    def _connected(self) -> socket.socket:
        made = socket.create_connection(self._address, self._timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            return made
        return self._context.wrap_socket(made, server_hostname=self._address[0])

    def _more(self) -> bytes:
        assert self._socket is not None
        come = self._socket.recv(65536)
        if not come:
            raise ConnectionResetError("the service hung up before its answer was complete")
        return come

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            if len(self._rest) > _LONGEST_HEAD:
                raise ValueError("no answer of HTTP")
            self._rest += self._more()
        found, _, self._rest = self._rest.partition(mark)
        return found

    def _exactly(self, count: int) -> bytes:
        parts, have = [self._rest], len(self._rest)
        while have < count:
            parts.append(self._more())
            have += len(parts[-1])
        whole = b"".join(parts)
        self._rest = whole[count:]
        return whole[:count]

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._until(b"\r\n").partition(b";")[0], 16):
            yield self._exactly(size)
            self._until(b"\r\n")
        while self._until(b"\r\n"):  # headers behind the body
            pass

    def _to_the_end(self) -> bytes:
        assert self._socket is not None
        parts, self._rest = [self._rest], b""
        while come := self._socket.recv(65536):
            parts.append(come)
        self.close()
        return b"".join(parts)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._rest = None, b""


def _trusting() -> ssl.SSLContext:
    """The certificates that the vendors' clients trust."""
    import httpx

    return httpx.create_ssl_context()


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    protocol, _, told = first.partition(" ")
    if not protocol.startswith("HTTP/1.") or not told[:3].isdigit():
        raise ValueError(f"no answer of HTTP but {first[:80]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(told[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _has_news(sock: socket.socket) -> bool:
    if hasattr(select, "poll"):
        waiting = select.poll()
        waiting.register(sock, select.POLLIN)
        return bool(waiting.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


def _body(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text or None
