"""The OpenAPI document, generated from the operations and their models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from strop import __version__
from strop.server.errors import STATUSES
from strop.server.models import ErrorReply
from strop.server.routes import Operation

_USUAL = (400, 401, 403, 421, 429, 503, 504)
_OF_BODIES = (408, 413, 415, 422)
_OF_WRITES = (405, 409)
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    models = [model for one in operations for model in (one.body, one.reply) if model]
    models = list(dict.fromkeys([*models, ErrorReply]))
    refs, schemas = TypeAdapter.json_schemas(
        [(model, "validation", TypeAdapter(model)) for model in models],
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
    def content(model: Any) -> dict[str, Any]:
        return {"application/json": {"schema": refs[model, "validation"]}}

    good: dict[str, Any] = {"description": one.summary}
    if one.reply is not None:
        good["content"] = content(one.reply)
    elif one.path == "/metrics":
        good["content"] = {"text/plain": {"schema": {"type": "string"}}}
    statuses = {*_USUAL, *one.errors}
    statuses.update(_OF_BODIES if one.body else (), _OF_WRITES if one.access == "write" else ())
    described: dict[str, Any] = {
        "operationId": one.handler.__name__,
        "summary": one.summary,
        "tags": [one.tag],
        "security": [] if one.access == "open" else [{"key": []}],
        "responses": {
            "200": good,
            **({"201": {**good, "description": "A new document"}} if one.method == "PUT" else {}),
            **{
                str(status): {"description": STATUSES[status][1], "content": content(ErrorReply)}
                for status in sorted(statuses)
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
