"""The application: routes, the page's files, MCP, and the guard around all of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from strop.server import api, compatible, explore
from strop.server.agents import agent_server
from strop.server.errors import error_value
from strop.server.guard import Guard
from strop.server.openapi import document
from strop.server.routes import json_response, routes
from strop.server.service import Service
from strop.server.settings import LIMITS, Keys, Settings

log = logging.getLogger("strop.server")
PAGE = Path(__file__).parent / "page"
DESCRIBED = [*api.OPERATIONS, *compatible.OPERATIONS]
OPERATIONS = [*DESCRIBED, *explore.OPERATIONS]
"""Those of the page, ``explore``, change with it: they are not described."""


def make_app(service: Service, settings: Settings, keys: Keys) -> Starlette:
    """Return the ASGI application of a collection."""
    agents = agent_server(service)
    # Without sessions any of several processes can answer. The guard checks Host and Origin.
    mounted = agents.streamable_http_app(
        stateless_http=True, json_response=True, max_request_body_size=LIMITS.body,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )  # fmt: skip

    def warm_up() -> None:
        try:
            service.warm_up()
        except Exception as error:
            log.error("the collection cannot be searched", exc_info=error)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with agents.session_manager.run():
            # The end of the process does not wait for this thread, which may compile for long.
            warming = threading.Thread(target=warm_up, daemon=True)
            warming.start()
            yield
            if not warming.is_alive():  # else it is reading
                service.close()

    cors = Middleware(
        CORSMiddleware, allow_origins=[*settings.origins],
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["authorization", "content-type", "x-api-key"],
    )  # fmt: skip
    guard = Middleware(Guard, settings=settings, keys=keys)
    description = json_response(document(DESCRIBED)).body

    async def openapi(_: Request) -> Response:
        return Response(description, media_type="application/json")

    return Starlette(
        routes=[
            *routes(OPERATIONS, service),
            Route("/openapi.json", openapi),
            Route("/", _page),
            Route("/docs", _page),
            Mount("/page", StaticFiles(directory=PAGE)),
            *mounted.routes,
        ],
        middleware=[cors, guard] if settings.origins else [guard],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )


async def _page(_: Request) -> Response:
    return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: "no such path: see /docs", 405: "the path has no such method: see /docs"}
    value = error_value(error.status_code, message.get(error.status_code, error.detail))
    return json_response(value, error.status_code, **(error.headers or {}))
