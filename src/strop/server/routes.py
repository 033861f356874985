"""Operations: path, access level, models and handler; and how a request becomes a reply.

The router and the OpenAPI document are generated from the same list.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from strop.common.secrets import one_line
from strop.server.errors import Refused, error_value, problem
from strop.server.service import Service
from strop.server.settings import LIMITS, Access

log = logging.getLogger("strop.server")


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    ``handler`` gets the service and, by name, the parameters of the path and the ``body``, whose
    model is its annotation. One that is not async only reads, in a thread. ``errors`` are statuses
    besides the usual ones.
    """

    method: str
    path: str
    handler: Callable[..., Any]
    tag: str
    reply: Any = None
    """The type of a good reply."""
    access: Access = "read"
    errors: tuple[int, ...] = ()

    @property
    def summary(self) -> str:
        """What it does: the first line of its handler's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")

    @cached_property
    def body(self) -> type[BaseModel] | None:
        """The model of the request's body."""
        return get_type_hints(self.handler).get("body")


def routes(operations: list[Operation], service: Service) -> list[Route]:
    """Return the routes of the operations, those of one path together."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [_route(path, by_method, service) for path, by_method in by_path.items()]


def _route(path: str, operations: dict[str, Operation], service: Service) -> Route:
    async def endpoint(request: Request) -> Response:
        request.scope["state"]["route"] = path
        method = "GET" if request.method == "HEAD" else request.method
        return await answer(service, request, operations[method])

    return Route(path, endpoint, methods=list(operations))


async def answer(service: Service, request: Request, operation: Operation) -> Response:
    """Handle a request; every error becomes a reply."""
    try:
        if operation.access == "write" and request.scope["state"]["access"] != "write":
            raise Refused(403, "writing needs a write key (STROP_API_KEYS of the server)")
        arguments = dict(request.path_params)
        if operation.body is not None:
            arguments["body"] = operation.body.model_validate_json(await _content(request))
        if inspect.iscoroutinefunction(operation.handler):
            value = await operation.handler(service, **arguments)
        else:
            value = await service.read(operation.handler, service, **arguments)
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception as error:
        return _failed(service, error)
    return value if isinstance(value, Response) else json_response(value)


def json_response(value: Any, status: int = 200, **headers: str) -> Response:
    """Return a reply with JSON values; NaN and infinity, which JSON does not have, become null."""
    content = to_json(value, inf_nan_mode="null")
    return Response(content, status, headers, media_type="application/json")


def _failed(service: Service, error: Exception) -> Response:
    status, message, param = problem(error)
    if status >= 500:
        # The message of a StropError contains no text of a document and no key; other messages may.
        about = {"message": one_line(error)} if status in (502, 503) else {}
        log.error("failed", exc_info=error, extra={"fields": about})
    headers = {"retry-after": "1"} if status in (409, 429, 503) else {}
    return json_response(error_value(status, service.public(message), param), status, **headers)


async def _content(request: Request) -> bytes:
    """Read a body of JSON, with limits on its size and on the time it may take to arrive."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A form of another site cannot send JSON without a CORS preflight.
    if kind != "application/json":
        raise Refused(415, "send JSON: Content-Type: application/json")
    too_large = Refused(413, f"the body is larger than {LIMITS.body:,} bytes: send less at a time")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > LIMITS.body:
        raise too_large

    async def read() -> bytes:
        content = bytearray()
        async for piece in request.stream():
            content += piece
            if len(content) > LIMITS.body:
                raise too_large
        return bytes(content)

    try:
        return await asyncio.wait_for(read(), LIMITS.seconds)
    except asyncio.TimeoutError:
        raise Refused(408, "the body did not arrive in time") from None
