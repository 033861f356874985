"""The OpenAPI document, generated from the operations and their models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from strop import __version__
from strop.server.models import ErrorReply
from strop.server.routes import Operation

_USUAL = (400, 401, 403, 421, 429, 503, 504)
_OF_BODIES = (408, 413, 415, 422)
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_MEANING = {
    400: "A value that cannot be used", 401: "No key, or one that is not known",
    403: "The key or the origin may not do this", 404: "No such document or store",
    405: "A published copy is not written to", 408: "The body did not arrive in time",
    409: "Another process writes", 413: "The body is too large", 415: "The body is not JSON",
    421: "An unknown Host", 422: "A body that does not fit the model",
    429: "Too many requests at the same time", 503: "Not ready", 504: "It took too long",
}  # fmt: skip


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    bodies = [one.body for one in operations if one.body]
    replies = [one.reply for one in operations if one.reply]
    wanted = [(model, "validation") for model in dict.fromkeys([*bodies, *replies, ErrorReply])]
    refs, schemas = models_json_schema(
        wanted,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        path = _PARAMETER.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "strop",
            "version": __version__,
            "description": 'Sharpened dense retrieval. Errors are {"error": {"message", …}}.',
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(one: Operation, refs: Any) -> dict[str, Any]:
    def content(model: type[BaseModel]) -> dict[str, Any]:
        return {"application/json": {"schema": refs[model, "validation"]}}

    good: dict[str, Any] = {"description": one.summary}
    if one.reply is not None:
        good["content"] = content(one.reply)
    elif one.path == "/metrics":
        good["content"] = {"text/plain": {"schema": {"type": "string"}}}
    statuses = sorted({*_USUAL, *(_OF_BODIES if one.body else ()), *one.errors})
    described: dict[str, Any] = {
        "operationId": one.handler.__name__,
        "summary": one.summary,
        "tags": [one.tag],
        "security": [] if one.access == "open" else [{"key": []}],
        "responses": {
            "200": good,
            **({"201": {**good, "description": "A new document"}} if one.created else {}),
            **{
                str(status): {"description": _MEANING[status], "content": content(ErrorReply)}
                for status in statuses
            },
        },
        "x-access": one.access,
    }
    if one.path == "/ready":
        described["responses"]["503"]["content"] = good["content"]
    if names := _PARAMETER.findall(one.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True,
             "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]  # fmt: skip
    if one.body is not None:
        described["requestBody"] = {"required": True, "content": content(one.body)}
    return described
