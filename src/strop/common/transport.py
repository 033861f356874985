"""Connections whose calls are bounded in time and bytes as a whole, headers included.

httpx bounds each read and each write, so a service that sends one byte at a time, slowly, never
times out. Here the stream below HTTP has the deadline of the call that uses it. This module is
imported only when a service is called.
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

_IDLE_SECONDS = 30.0
"""How long an unused connection is kept."""
_GRACE_SECONDS = 1.0
_ARRIVED_SECONDS = 0.02
"""For ``_GRACE_SECONDS`` after the deadline, each read waits only this long: it gets bytes that
have arrived. Their reply is paid for, even if this process reads it late."""


class TooLong(Exception):
    """The response has more bytes than allowed."""


class _Bounds(threading.local):
    """The time and bytes that the call of this thread may still use."""

    deadline = grace_end = float("inf")
    bytes_left = float("inf")

    def seconds_left(self, timeout: float | None, late: type[Exception]) -> float:
        """Return the seconds for the next step; raise ``late`` if there are none."""
        now = time.monotonic()
        seconds = self.deadline - now
        if seconds <= 0:
            self.grace_end = min(self.grace_end, now + _GRACE_SECONDS)
            if now >= self.grace_end:
                raise late("the call took too long")
            seconds = _ARRIVED_SECONDS
        return seconds if timeout is None else min(timeout, seconds)


_bounds = _Bounds()


@contextmanager
def bounded(seconds: float, head_bytes: int) -> Iterator[None]:
    """Bound the call that this thread makes: its time, and the bytes before its body."""
    _bounds.deadline, _bounds.grace_end = time.monotonic() + seconds, float("inf")
    _bounds.bytes_left = head_bytes
    try:
        yield
    finally:
        _bounds.deadline = _bounds.grace_end = _bounds.bytes_left = float("inf")


def allow_bytes(count: int) -> None:
    """Allow ``count`` bytes from now on, for the body."""
    _bounds.bytes_left = count


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._stream.read(max_bytes, _bounds.seconds_left(timeout, httpcore.ReadTimeout))
        _bounds.bytes_left -= len(data)
        if _bounds.bytes_left < 0:
            raise TooLong
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _bounds.seconds_left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        seconds = _bounds.seconds_left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, seconds))

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
        seconds = _bounds.seconds_left(timeout, httpcore.ConnectTimeout)
        return _Stream(super().connect_tcp(host, port, seconds, local_address, socket_options))


class Transport(httpx.BaseTransport):
    """Calls to one address, with the proxy and the certificates that the environment names.

    Calls at the same time use different connections, which later calls reuse. A pool of many
    connections would check all of them at the start and end of every call.
    """

    def __init__(self, url: str) -> None:
        secure = urlsplit(url).scheme == "https"
        options: dict[str, Any] = {
            "ssl_context": httpx.create_ssl_context() if secure else None,
            "max_connections": 1,
            "keepalive_expiry": _IDLE_SECONDS,
            "network_backend": _Backend(),
        }
        self._open: Callable[[], httpcore.ConnectionPool]
        proxy_url = proxy_of(url)
        if proxy_url is None:
            self._open = partial(httpcore.ConnectionPool, **options)
        else:
            proxy = httpx.Proxy(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
            socks = proxy.url.scheme.startswith("socks")
            kind = httpcore.SOCKSProxy if socks else httpcore.HTTPProxy
            self._open = partial(kind, str(proxy.url), proxy.raw_auth, **options)
        self._all: list[httpcore.ConnectionPool] = []
        self._free: deque[httpcore.ConnectionPool] = deque()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. The caller reads the body from the response's stream, and closes it."""
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
    """Return the proxy that the environment names for an address, None if there is none."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return None if proxy is None or proxy_bypass(parts.hostname or "") else proxy
