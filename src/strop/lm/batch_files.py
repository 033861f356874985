"""Files of requests and of replies, in the formats of both vendors' batch services."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from strop.common.http import RETRYABLE
from strop.common.retries import CallFailed
from strop.common.secrets import one_line, storable
from strop.errors import BadInput
from strop.io.files import Record, atomic_write, field_names, json_records, short
from strop.lm.anthropic import read_anthropic
from strop.lm.base import LM, Answer, Failure, Reply, Request
from strop.lm.openai import OpenAILM, read_openai
from strop.lm.service import ServiceLM

_FINAL_TYPES = frozenset(
    {
        "authentication_error", "invalid_request_error", "not_found_error", "permission_error",
        "request_too_large",
    }
)  # fmt: skip


def custom_id(key: str) -> str:
    """Return the id of a request at a batch service: a hash of its key.

    Services allow 64 letters, digits, _ and -. Replies of batches have it as their key; the
    caller stores the mapping.
    """
    return "s" + hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=24).hexdigest()


def write_requests(path: str | os.PathLike[str], requests: Iterable[Request], lm: LM) -> int:
    """Write requests as JSON lines, as batch services read them; return their number.

    The format is that of the model's vendor, or OpenAI's if the model has no service.
    """
    service = lm
    if not isinstance(service, ServiceLM):
        service = OpenAILM(f"openai:{lm.name.partition(':')[2] or lm.name}")
    seen: set[str] = set()
    with atomic_write(path) as file:
        for request in requests:
            file.write(request_line(service, request, seen))
    return len(seen)


def request_line(lm: ServiceLM, request: Request, seen: set[str]) -> str:
    """Return one request as a line, and add its id to ``seen``."""
    name = custom_id(request.key)
    if name in seen:
        raise BadInput(f"two requests have the key {short(request.key)}; keys must differ")
    seen.add(name)
    record: Record = {"custom_id": name}
    if lm.endpoint:
        record |= {"method": "POST", "url": lm.endpoint, "body": lm.body(request)}
    else:
        record["params"] = lm.body(request)
    line = json.dumps(record, ensure_ascii=False) + "\n"
    try:
        line.encode()
    except UnicodeEncodeError as error:
        problem = f"a lone surrogate, not UTF-8, at {error.start}"
        raise BadInput(f"request {short(request.key)}: {problem}; remove it") from None
    return line


def read_replies(path: str | os.PathLike[str]) -> Iterator[Reply | Failure]:
    """Read a file of results in either vendor's format; keys are those of ``custom_id``."""
    for where, record in json_records(path):
        try:
            yield read_result(record)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None


def read_result(record: Any) -> Reply | Failure:
    """Read one result; ``BadInput`` if it has neither vendor's format."""
    fields = as_object(record)
    name, result = fields.get("custom_id"), fields.get("result")
    response, error = fields.get("response"), fields.get("error")
    is_openai = isinstance(response, dict) or isinstance(error, dict)
    if not isinstance(name, str) or not (isinstance(result, dict) or is_openai):
        expected = "custom_id with response (OpenAI) or result (Anthropic)"
        actual = f"there are {field_names(fields)}" if fields else f"this is {short(record)}"
        raise BadInput(f"no result: expected {expected}; {actual}")
    key = storable(name)
    try:
        if isinstance(result, dict):
            answer = _anthropic_result(result)
        else:
            answer = _openai_result(as_object(response), as_object(error))
    except CallFailed as failure:
        return Failure(key, str(failure), not failure.retryable, 0.0)
    return Reply(key, *answer, 0.0)


def _openai_result(response: Record, error: Record) -> Answer:
    status = response.get("status_code")
    if status == 200 and not error:
        return read_openai(response.get("body"), "the batch")
    inner = error or as_object(as_object(response.get("body")).get("error"))
    code, message = inner.get("code") or status or "error", inner.get("message", "")
    refused = type(status) is int and 400 <= status < 500 and status not in RETRYABLE
    raise CallFailed(one_line(f"{code}: {message}"), retryable=not refused)


def _anthropic_result(result: Record) -> Answer:
    kind = result.get("type")
    if kind == "succeeded":
        return read_anthropic(result.get("message"), "the batch")
    error = as_object(result.get("error"))
    inner = as_object(error.get("error")) or error  # the error may be nested in a response
    error_type, message = str(inner.get("type") or kind), inner.get("message", "")
    message = one_line(f"{error_type}: {message}".rstrip(": "))
    raise CallFailed(message, retryable=error_type not in _FINAL_TYPES)


def as_object(value: Any) -> Record:
    """Return a JSON object unchanged, an empty one for any other value."""
    return value if isinstance(value, dict) else {}
