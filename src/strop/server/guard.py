"""What every request passes: Host, Origin, key, and the headers of every reply; one log line each.

Pages of other sites cannot read from a server on this machine: their Origin is refused, and a
name that somebody else's DNS points here is not one of the hosts.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strop.server.errors import error_value
from strop.server.metrics import Metrics
from strop.server.settings import Access, Keys, Settings

log = logging.getLogger("strop.server")

OPEN = ("/health", "/ready", "/openapi.json", "/docs", "/", "/favicon.ico")
"""Paths without data of the collection; so are the files of the page."""
PAGE = "/page/"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: Settings, keys: Keys, metrics: Metrics) -> None:
        self._app, self._keys, self._metrics = app, keys, metrics
        self._hosts = {
            "localhost",
            settings.host.lower(),
            *(name.lower() for name in settings.hosts),
        }
        self._origins = {origin.rstrip("/").lower() for origin in settings.origins}
        self._open_to_read = not settings.public and not keys.read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on, log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        headers = Headers(scope=scope)

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                reply = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    reply.setdefault(name, value)
                reply.setdefault("cache-control", "no-store")
            await send(message)

        try:
            refusal = self._check(scope, headers)
            if refusal is None:
                await self._app(scope, receive, send_on)
            else:
                await refusal(scope, receive, send_on)
        finally:
            seconds = time.perf_counter() - began
            route = scope.get("state", {}).get("route") or _FIXED.get(scope["path"], "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.request(method, route, status, seconds)
            # The pattern, never the path: ids of documents are not logged, nor texts or keys.
            log.info(
                "request",
                extra={
                    "fields": {
                        "method": method, "route": route, "status": status,
                        "ms": round(1000 * seconds, 2),
                    }
                },
            )  # fmt: skip

    def _check(self, scope: Scope, headers: Headers) -> Response | None:
        """Return why a request is refused; else note in its state what it may do."""
        if len(headers.getlist("host")) != 1 or not self._known(headers["host"]):
            return _reply(421, "unknown Host: start the server with --allow-host NAME")
        origin = headers.get("origin")
        if origin is not None and not self._same_origin(origin, headers["host"]):
            return _reply(403, "pages of other origins may not call this server (--allow-origin)")
        if not _is_text(scope.get("raw_path") or b""):
            return _reply(400, "the path is not UTF-8")
        level = self._level(headers)
        if level is None:
            return _reply(401, "the key is not known", {"www-authenticate": "Bearer"})
        scope.setdefault("state", {})["access"] = level
        path = scope["path"]
        if level == "open" and path not in OPEN and not path.startswith(PAGE):
            return _reply(
                401, "give a key: Authorization: Bearer KEY", {"www-authenticate": "Bearer"}
            )
        return None

    def _known(self, host: str) -> bool:
        """An address cannot be somebody else's name for this machine; a name can."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _same_origin(self, origin: str, host: str) -> bool:
        origin = origin.lower().rstrip("/")
        scheme, _, address = origin.partition("://")
        own = scheme in ("http", "https") and address == host.lower()
        return own or origin in self._origins

    def _level(self, headers: Headers) -> Access | None:
        """Return what a request may do; None if it gives a key that is not known."""
        unkeyed: Access = "read" if self._open_to_read else "open"
        given = headers.get("x-api-key")
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if given is None and scheme.lower() == "bearer":
            given = value.strip()
        if given is None:
            return unkeyed
        level = self._keys.level(given)
        if level == "open":  # clients of OpenAI's API always send a key, if only a word
            return unkeyed if self._open_to_read else None
        return level


_FIXED = {path: path for path in (*OPEN, "/mcp")}
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))


def _is_text(raw_path: bytes) -> bool:
    """Tell whether the escapes of a path are UTF-8 without NUL: others would be replaced."""
    from urllib.parse import unquote_to_bytes

    try:
        return b"\0" not in unquote_to_bytes(raw_path).decode().encode()
    except UnicodeDecodeError:
        return False


def _reply(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(error_value(status, message))
    return Response(body, status, headers, media_type="application/json")


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; an exception is named, with the place, without values."""
        fields: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
            trace = record.exc_info[2]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None:
                code = trace.tb_frame.f_code
                fields["at"] = f"{code.co_filename}:{trace.tb_lineno}"
        return json.dumps(fields, ensure_ascii=True)


def log_to_stderr(level: str = "info") -> None:
    """Write the server's log lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("strop.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
