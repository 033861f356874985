"""Calls over kept connections at a fifth of the processor time of the vendors' clients.

Those spend over a millisecond on each call, which at hundreds of calls a second is more than a
core. This does one thing: send JSON, read a text. Whatever else they do (proxies, signing,
files), they go on doing.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


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
        self._host, self._port = parts.hostname or "", parts.port
        self._base = parts.path.rstrip("/")
        self._timeout = timeout
        self._headers = {**headers, "Content-Type": "application/json", "Accept": "*/*"}
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        self._local = threading.local()
        self._made: list[http.client.HTTPConnection] = []

    def post(self, path: str, *, body: Any, cast_to: type[str] = str) -> str:
        """Send JSON to a path below the address; return the text that came."""
        data = json.dumps(body, ensure_ascii=False).encode()
        connection = self._connection()
        try:
            connection.request("POST", self._base + path, data, self._headers)
            response = connection.getresponse()
            said = response.read()
        except TimeoutError as error:
            connection.close()
            raise Unreachable(str(error), timeout=True) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(f"{type(error).__name__}: {error}", timeout=False) from None
        text = said.decode("utf-8", "replace")
        if response.status // 100 != 2:
            headers = {name.lower(): value for name, value in response.getheaders()}
            raise Refused(response.status, _body(text), headers)
        return text

    def _connection(self) -> http.client.HTTPConnection:
        """This thread's connection, made anew if the service has closed it meanwhile."""
        known: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if known is None:
            if self._context is None:
                known = http.client.HTTPConnection(self._host, self._port, self._timeout)
            else:
                known = http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._timeout, context=self._context
                )
            self._local.connection = known
            self._made.append(known)
        if known.sock is not None and _has_news(known.sock):
            known.close()  # nothing was asked: it can only be the end
        return known

    def close(self) -> None:
        """Close every thread's connection."""
        for connection in self._made:
            connection.close()


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
