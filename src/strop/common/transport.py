"""Connections whose calls are bounded in time and bytes as a whole, headers included.

httpx bounds each read and each write, so a service that sends a byte now and then never times
out. Here the stream below HTTP knows the deadline of the call that uses it. Imported only when a
service is called.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

ERRORS = (
    httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError,
    httpcore.UnsupportedProtocol, OSError,
)  # fmt: skip
TIMEOUT = httpcore.TimeoutException
NOT_CONNECTED = (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.ProxyError)

_IDLE = 30.0
_GRACE = 1.0
_AT_HAND = 0.02
"""Seconds. After the deadline only bytes that have arrived are read: such a reply is paid for,
even if this process reads it late."""


class TooLong(Exception):
    """The response has more bytes than allowed."""


class _Bounds(threading.local):
    """Time and bytes left for the call of this thread."""

    deadline = grace = float("inf")
    room = float("inf")

    def left(self, timeout: float | None, late: type[Exception]) -> float:
        """Seconds for the next step."""
        now = time.monotonic()
        left = self.deadline - now
        if left <= 0:
            self.grace = min(self.grace, now + _GRACE)
            if now >= self.grace:
                raise late("the call took too long")
            left = _AT_HAND
        return left if timeout is None else min(timeout, left)


_bounds = _Bounds()


@contextmanager
def bounded(seconds: float, head: int) -> Iterator[None]:
    """Bound the call that this thread makes: its time, and the bytes before its body."""
    _bounds.deadline, _bounds.grace = time.monotonic() + seconds, float("inf")
    _bounds.room = head
    try:
        yield
    finally:
        _bounds.deadline = _bounds.grace = _bounds.room = float("inf")


def allow(count: int) -> None:
    """Allow ``count`` more bytes, for the body."""
    _bounds.room = count


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._stream.read(max_bytes, _bounds.left(timeout, httpcore.ReadTimeout))
        _bounds.room -= len(data)
        if _bounds.room < 0:
            raise TooLong
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _bounds.left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _bounds.left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.SyncBackend):
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _bounds.left(timeout, httpcore.ConnectTimeout)
        return _Stream(super().connect_tcp(host, port, left, local_address, socket_options))


class Transport(httpx.BaseTransport):
    """Calls to one address, through the proxy and by the certificates that the environment names.

    Each call has a connection of its own, which a later call reuses. A pool of many connections
    would check all of them at the start and end of every call.
    """

    def __init__(self, url: str) -> None:
        secure = urlsplit(url).scheme == "https"
        options: dict[str, Any] = {
            "ssl_context": httpx.create_ssl_context() if secure else None,
            "max_connections": 1,
            "keepalive_expiry": _IDLE,
            "network_backend": _Backend(),
        }
        self._open: Callable[[], httpcore.ConnectionPool]
        named = proxy_of(url)
        if named is None:
            self._open = partial(httpcore.ConnectionPool, **options)
        else:
            proxy = httpx.Proxy(named if "://" in named else f"http://{named}")
            socks = proxy.url.scheme.startswith("socks")
            kind = httpcore.SOCKSProxy if socks else httpcore.HTTPProxy
            self._open = partial(kind, str(proxy.url), proxy.raw_auth, **options)
        self._all: list[httpcore.ConnectionPool] = []
        self._free: deque[httpcore.ConnectionPool] = deque()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the body of the response is read from its stream, which is closed."""
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self._open()
            self._all.append(connection)
        release = partial(self._free.append, connection)
        try:
            response = connection.handle_request(
                httpcore.Request(
                    request.method,
                    httpcore.URL(
                        scheme=request.url.raw_scheme,
                        host=request.url.raw_host,
                        port=request.url.port,
                        target=request.url.raw_path,
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        except BaseException:
            release()
            raise
        body = _Body(response, release)
        return httpx.Response(response.status, headers=response.headers, stream=body)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._all:
            connection.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response, release: Callable[[], None]) -> None:
        self._response, self._release = response, release

    def __iter__(self) -> Iterator[bytes]:
        return self._response.iter_stream()

    def close(self) -> None:
        try:
            self._response.close()
        finally:
            self._release()


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address, None if it is called directly."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return None if proxy is None or proxy_bypass(parts.hostname or "") else proxy
