"""Requests generated from the OpenAPI document, valid and invalid: no 5xx and no hang.

``STROP_REQUESTS`` sets the number of requests of the slow test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from helpers.strop_server import WRITE_KEY, RunningServer, serving
from hypothesis import HealthCheck, Phase, given, seed, settings

from strop.server import models
from strop.server.app import OPERATIONS
from strop.server.openapi import document

SHORT = 80
LONG = int(os.environ.get("STROP_REQUESTS", "20000"))
TIMEOUT = 60
"""Seconds. A slower request counts as hanging."""


@pytest.fixture
def writable(index: Path) -> Iterator[RunningServer]:
    with serving(index, keys=f"write:{WRITE_KEY}") as server:
        yield server


def _send_generated(server: RunningServer, total: int) -> int:
    """Send valid and invalid requests to every operation, about ``total``; return how many."""
    import schemathesis
    from schemathesis import GenerationMode

    schema = schemathesis.openapi.from_dict(document(OPERATIONS))  # those of the page, too
    sent = 0
    operations: list[Any] = [cast(Any, loaded).ok() for loaded in schema.get_all_operations()]
    assert len(operations) == len(OPERATIONS)
    with_input = [
        operation for operation in operations if operation.body or operation.path_parameters
    ]
    per_kind = total // (2 * len(with_input)) + 1
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and operation not in with_input:
                continue

            @seed(0)
            @settings(
                max_examples=per_kind, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                nonlocal sent
                sent += 1
                headers = {"authorization": f"Bearer {WRITE_KEY}"}
                reply = case.call(server.url, headers=headers, timeout=TIMEOUT)
                assert reply.status_code < 500 or case.path == "/ready", reply.text
                if reply.status_code >= 400 and reply.headers["content-type"][0] == "a":
                    models.ErrorReply.model_validate(reply.json())
                declared = case.operation.definition.raw["responses"]
                assert str(reply.status_code) in {*declared, "404", "405"}

            send()
    return sent


def test_generated_requests_are_answered(writable: RunningServer) -> None:
    assert _send_generated(writable, SHORT) >= SHORT
    assert _failures(writable) == []


@pytest.mark.slow
def test_many_generated_requests_are_answered(writable: RunningServer) -> None:
    assert _send_generated(writable, LONG) >= LONG
    assert _failures(writable) == []


def _failures(server: RunningServer) -> list[object]:
    lines = server.requests()
    return [line for line in lines if line["status"] >= 500 and line["route"] != "/ready"]
