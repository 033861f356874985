"""Checks of every request: Host, Origin, key; headers of every reply; one log line per request.

Pages of other sites cannot read from a server on this machine: their Origin is refused, and so is
a Host name that an attacker's DNS points to this machine.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import sys
import time
import traceback
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strop.server import metrics
from strop.server.errors import error_value
from strop.server.settings import Access, Keys, Settings, level_of

log = logging.getLogger("strop.server")

_OPEN = ("/health", "/ready", "/openapi.json", "/docs", "/", "/favicon.ico")
"""Paths without data of the collection, open to all; the files of the page are open too."""
_PAGE = "/page/"
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: Settings, keys: Keys) -> None:
        self._app, self._keys = app, keys
        self._hosts = {name.lower() for name in ("localhost", settings.host, *settings.hosts)}
        self._origins = {origin.rstrip("/").lower() for origin in settings.origins}
        self._open_to_read = not settings.public and not any(level == "read" for level, _ in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on, log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                reply = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    reply.setdefault(name, value)
            await send(message)

        try:
            answer = self._refusal(scope) or self._app
            await answer(scope, receive, send_on)
        finally:
            seconds = time.perf_counter() - began
            path = scope["path"] if scope["path"] in (*_OPEN, "/mcp") else "other"
            route = scope.get("state", {}).get("route", path)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            # The pattern, never the path: ids of documents are not logged, nor texts or keys.
            metrics.REQUESTS.labels(method, route, status).inc()
            metrics.REQUEST_SECONDS.labels(route).observe(seconds)
            fields = {"method": method, "route": route, "status": status}
            log.info("request", extra={"fields": {**fields, "ms": round(1000 * seconds, 2)}})

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the reply that refuses a request, None if it may pass; set its access level."""
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) != 1 or not self._is_known_host(headers["host"]):
            return _reply(421, "unknown Host: start the server with --allow-host NAME")
        origin = headers.get("origin")
        if origin is not None and not self._same_origin(origin, headers["host"]):
            return _reply(403, "pages of other origins may not call this server (--allow-origin)")
        if not _is_text(scope.get("raw_path") or b""):
            return _reply(400, "the path is not UTF-8")
        level = self._level(headers)
        if level is None:
            return _reply(401, "the key is not known")
        scope.setdefault("state", {})["access"] = level
        path = scope["path"]
        if level == "open" and path not in _OPEN and not path.startswith(_PAGE):
            return _reply(401, "give a key: Authorization: Bearer KEY")
        return None

    def _is_known_host(self, host: str) -> bool:
        """Return whether a Host is allowed: a listed name, or any IP address.

        DNS of an attacker can point a name to this machine, but cannot change an address.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _same_origin(self, origin: str, host: str) -> bool:
        origin = origin.lower().rstrip("/")
        scheme, _, address = origin.partition("://")
        is_own_origin = scheme in ("http", "https") and address == host.lower()
        return is_own_origin or origin in self._origins

    def _level(self, headers: Headers) -> Access | None:
        """Return the access level of a request; None if its key is not known."""
        unkeyed: Access = "read" if self._open_to_read else "open"
        key = headers.get("x-api-key")
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if key is None and scheme.lower() == "bearer":
            key = value.strip()
        if key is None:
            return unkeyed
        level = level_of(key, self._keys)
        if level == "open":  # clients of OpenAI's API always send a key, if only a word
            return unkeyed if self._open_to_read else None
        return level


def _is_text(raw_path: bytes) -> bool:
    """Return whether a path is UTF-8 without NUL once unescaped: other bytes would be replaced."""
    try:
        return "\0" not in unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        return False


def _reply(status: int, message: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(error_value(status, message), status, headers)


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; of an exception only the class and the code line."""
        fields: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
            for place in traceback.extract_tb(record.exc_info[2], limit=-1):  # where it was raised
                fields["at"] = f"{place.filename}:{place.lineno}"
        return json.dumps(fields, ensure_ascii=True)


def log_to_stderr() -> None:
    """Write the server's log lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("strop.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
