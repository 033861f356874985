"""Errors as replies: the status of each, and a message without anything private."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import ValidationError

from strop.errors import (
    BadIndex,
    BadInput,
    IndexBusy,
    ServiceError,
    StropError,
    TextRefused,
)

STATUSES = {
    400: ("invalid_request_error", "A value that cannot be used"),
    401: ("authentication_error", "No key, or one that is not known"),
    403: ("permission_error", "The key or the origin may not do this"),
    404: ("not_found_error", "No such document or store"),
    405: ("not_supported", "A published copy is not written to"),
    408: ("timeout_error", "The body did not arrive in time"),
    409: ("conflict_error", "Another process writes"),
    413: ("request_too_large", "The body is too large"),
    415: ("unsupported_media_type", "The body is not JSON"),
    421: ("wrong_host", "An unknown Host"),
    422: ("invalid_request_error", "A body that does not fit the model"),
    429: ("rate_limit_error", "Too many requests at the same time"),
    500: ("internal_error", "An error of the server"),
    502: ("embedder_error", "The embedder's service failed"),
    503: ("index_error", "Not ready"),
    504: ("timeout_error", "It took too long"),
}
"""The type of an error's reply, and the meaning of the status."""


class Refused(StropError):
    """A request that is refused with this status."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


def error_value(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error's reply."""
    kind, _ = STATUSES.get(status, STATUSES[400])
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def problem(error: Exception) -> tuple[int, str, str | None]:
    """Return the status, the message and the request's faulty field of an error."""
    if isinstance(error, Refused):
        return error.status, str(error), error.param
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, (BadInput, TextRefused)):
        return 400, str(error), None
    if isinstance(error, IndexBusy):
        return 409, "another process writes to the index: try again later", None
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return 504, "the search took too long: ask for fewer queries or a smaller k", None
    if isinstance(error, ServiceError):
        return 502, "the embedder's service failed: see the server's log", None
    if isinstance(error, BadIndex):
        return 503, "the index cannot be read: see the server's log, and run strop check", None
    return 500, "an error of the server: see its log", None


def _invalid(error: ValidationError) -> tuple[int, str, str | None]:
    """Report the first problem, without the value, which may be long or secret."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        return 400, f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}", None
    message = first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return 422, f"{place}: {message}{more}" if place else f"{message}{more}", place or None
