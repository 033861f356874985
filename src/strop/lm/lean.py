"""HTTP at a tenth of the processor time of the vendors' clients: send JSON, read a text.

Those spend over a millisecond on each call, which at hundreds of calls a second is more than a
core. Whatever else they do (proxies, signing, files), they go on doing. Nothing here waits, apart
from connecting: ``lm/loop`` knows when there is something to read or room to write.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Generator, Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_LONGEST_HEAD = 100_000
_A_MOMENT = 1.0
_AT_A_TIME = 65536
_AS_JSON = json.JSONEncoder(ensure_ascii=False)
_NOTHING_YET = (BlockingIOError, ssl.SSLWantReadError)
Reading = Generator[None, bytes, Any]
"""Is sent the bytes that come, none at their end."""


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

    @classmethod
    def because(cls, error: Exception) -> Unreachable:
        """The same as a connection's error says."""
        return cls(f"{type(error).__name__}: {error}", isinstance(error, TimeoutError))


def goes_direct(url: str) -> bool:
    """Whether an address is called without a proxy, which this knows nothing of."""
    parts = urlsplit(url)
    proxies = getproxies()
    if not proxies.get(parts.scheme) and not proxies.get("all"):
        return True
    return bool(proxy_bypass(parts.hostname or ""))


class Site:
    """Where calls go, and what each is told; ``timeout`` is how long one may be silent."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._address = (parts.hostname or "", parts.port or (443 if secure else 80))
        self._base = parts.path.rstrip("/")
        self.timeout = timeout
        all_headers = {"Host": parts.netloc, **headers, "Content-Type": "application/json"}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        self._context = _trusting() if secure else None

    def message(self, path: str, body: Any) -> bytes:
        """The bytes that send JSON to a path below the address."""
        data = _AS_JSON.encode(body).encode()
        head = f"POST {self._base}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(data)}"
        return head.encode() + b"\r\n\r\n" + data

    def connect(self) -> Connection:
        """Make a connection; this waits."""
        made = socket.create_connection(self._address, self.timeout)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                made = self._context.wrap_socket(made, server_hostname=self._address[0])
        except BaseException:
            made.close()
            raise
        return Connection(made)


class Connection:
    """A kept connection that never waits; ``OSError`` or ``ValueError`` for what is no answer."""

    def __init__(self, made: socket.socket) -> None:
        made.setblocking(False)
        self.socket = made
        self.blocked = False
        """Whether there is something to send and no room for it."""
        self.kept = True
        """Whether it can be used again."""
        self._requests = 0
        self._begun = 0.0
        self._secure = isinstance(made, ssl.SSLSocket)
        self._unsent = memoryview(b"")
        self._reader = _Reader()
        self._reading: Reading | None = None

    def is_quiet(self) -> bool:
        """Whether nothing has come that was not asked for; it could only be the end."""
        try:
            self.socket.recv(1)
        except _NOTHING_YET:
            return True
        except OSError:
            pass
        return False

    @property
    def proven(self) -> bool:
        """Whether it has been used again before, and this moment: then nobody need look at it."""
        return self._requests > 1 and time.monotonic() - self._begun < _A_MOMENT

    def begin(self, message: bytes) -> None:
        """Send a request, or as much of it as there is room for."""
        self._requests, self._begun = self._requests + 1, time.monotonic()
        self._unsent = memoryview(message)
        self._reading = self._reader.answer()
        next(self._reading)
        self._send()

    def go_on(self) -> str | None:
        """Send and read what can be; return the text once the answer is complete.

        ``Refused`` if the service says no.
        """
        assert self._reading is not None
        self.blocked = False
        if self._unsent:
            self._send()
        while True:
            try:
                come = self.socket.recv(_AT_A_TIME)
            except _NOTHING_YET:
                return None
            except ssl.SSLWantWriteError:
                self.blocked = True
                return None
            try:
                self._reading.send(come)
            except StopIteration as end:
                return self._answered(*end.value)
            if not self._secure:  # the rest announces itself; what is encrypted may be here already
                return None

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            self.blocked = True
        except ssl.SSLWantReadError:
            pass

    def _answered(self, status: int, headers: dict[str, str], said: bytes) -> str:
        self._reading = None
        unasked = self._unsent or self._reader.rest
        self.kept = not unasked and headers["connection"].lower() != "close"
        text = said.decode("utf-8", "replace")
        if status // 100 != 2:
            raise Refused(status, _body(text), headers)
        return text

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


class _Reader:
    """Reads one answer after the other from bytes that come in any pieces."""

    def __init__(self) -> None:
        self.rest = b""

    def answer(self) -> Reading:
        """Return status, headers by lower-case name, and body."""
        while True:
            status, headers = _head((yield from self._until(b"\r\n\r\n")))
            if status >= 200:  # before, it was only to say that more is to come
                break
        length = headers.get("content-length")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = yield from self._chunks()
        elif length is not None:
            body = yield from self._exactly(int(length))
        else:
            body = b"" if status in (204, 304) else (yield from self._to_the_end())
            headers["connection"] = "close"
        return status, headers, body

    def _more(self) -> Reading:
        come = yield
        if not come:
            raise ConnectionResetError("the service hung up before its answer was complete")
        return come

    def _until(self, mark: bytes) -> Reading:
        while mark not in self.rest:
            if len(self.rest) > _LONGEST_HEAD:
                raise ValueError("no answer of HTTP")
            self.rest += yield from self._more()
        found, _, self.rest = self.rest.partition(mark)
        return found

    def _exactly(self, count: int) -> Reading:
        if count < 0:
            raise ValueError(f"an answer of {count} bytes")
        parts, have = [self.rest], len(self.rest)
        while have < count:
            parts.append((yield from self._more()))
            have += len(parts[-1])
        whole = b"".join(parts)
        self.rest = whole[count:]
        return whole[:count]

    def _chunks(self) -> Reading:
        parts = []
        while size := int((yield from self._until(b"\r\n")).partition(b";")[0], 16):
            parts.append((yield from self._exactly(size)))
            if (yield from self._until(b"\r\n")):
                raise ValueError("a piece of an answer is longer than it says")
        while (yield from self._until(b"\r\n")):  # headers behind the body
            pass
        return b"".join(parts)

    def _to_the_end(self) -> Reading:
        parts, self.rest = [self.rest], b""
        while come := (yield):
            parts.append(come)
        return b"".join(parts)


def _trusting() -> ssl.SSLContext:
    """The certificates that the vendors' clients trust."""
    import httpx

    return httpx.create_ssl_context()


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    protocol, _, told = first.partition(" ")
    if not protocol.startswith("HTTP/1.") or not told[:3].isdigit():
        raise ValueError(f"no answer of HTTP but {first[:80]!r}")
    # Older servers hang up after each answer, newer ones only if they say so.
    headers = {"connection": "close" if protocol == "HTTP/1.0" else "keep-alive"}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(told[:3]), headers


def _body(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or nested too deeply for any
        return text or None
