"""Starts the server: one process or several, with limits on slow clients and a clean stop."""

from __future__ import annotations

import os
import socket
import tempfile
from asyncio import Transport
from collections.abc import Callable

import uvicorn
from pydantic import TypeAdapter
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from strop.errors import BadInput
from strop.opening import connect
from strop.server.guard import log_to_stderr
from strop.server.metrics import SHARED
from strop.server.settings import LIMITS, Settings, read_keys

_VARIABLE = "STROP_SERVE"
_SETTINGS = TypeAdapter(Settings)
"""Passes the settings to the serving processes, in an environment variable."""
_HEADER_SECONDS = 10.0
"""How long a client may take to send the head of a request."""
_STOP_SECONDS = 20


def serve(
    settings: Settings, workers: int = 1, announce: Callable[[], None] = lambda: None
) -> None:
    """Serve until the process is stopped; running requests are answered first.

    ``announce`` is called after keys, address and collection have been checked.
    """
    read_keys(settings)
    _check_address(settings.host, settings.port)
    connect(settings.collection).close()  # an error now, not in each process
    announce()
    log_to_stderr()
    with tempfile.TemporaryDirectory(prefix="strop-metrics-") as folder:
        os.environ[_VARIABLE] = _SETTINGS.dump_json(settings).decode()
        if workers > 1:
            os.environ[SHARED] = folder
        uvicorn.run(
            "strop.server.run:create",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=workers,
            http=HeaderTimeoutProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=LIMITS.connections,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )


def _check_address(host: str, port: int) -> None:
    """Refuse an address at which the server cannot listen, before anything is loaded."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in addresses:
            socket.create_server(address, family=family).close()
    except OSError as error:
        # create_server adds the address to the text of the error, which would repeat it.
        reason: object = error.strerror or error
        if error.errno is not None and not isinstance(error, socket.gaierror):
            reason = os.strerror(error.errno)
        raise BadInput(
            f"cannot serve at {host}, port {port}: {reason}. Choose another with"
            " --port (0 takes a free one) or --host"
        ) from None


def create() -> Starlette:
    """Make the application in a process that serves; called by uvicorn."""
    from strop.server.app import make_app
    from strop.server.service import Service, capture_filter_warnings

    capture_filter_warnings()
    log_to_stderr()
    settings = _SETTINGS.validate_json(os.environ[_VARIABLE])
    service = Service(settings.collection)
    return make_app(service, settings, read_keys(settings))


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """Closes connections if the headers of a request do not arrive in time.

    uvicorn waits forever for a client that sends a header now and then.
    """

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._waiting.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start to wait for the remaining headers of a request."""
        super().on_message_begin()
        self._waiting.cancel()
        self._wait()

    def on_headers_complete(self) -> None:
        """Stop waiting: the body has a separate time limit."""
        self._waiting.cancel()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(_HEADER_SECONDS, self.transport.close)


def serve_agent(place: str) -> None:
    """Serve one agent over standard input and output until it closes them."""
    import anyio

    from strop.server.agents import agent_server
    from strop.server.service import Service, capture_filter_warnings

    capture_filter_warnings()
    service = Service(place)

    async def run() -> None:
        try:
            await agent_server(service).run_stdio_async()
        finally:
            service.close()

    anyio.run(run)
