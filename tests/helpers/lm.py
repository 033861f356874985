"""Requests, a key, models of a scripted server, and a clock whose waits take no time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from helpers.scripted_server import ScriptedServer
from strop.common.retries import Clock
from strop.lm import Failure, Reply, Request, load

_VARIABLES = (
    "STROP_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_BEARER_TOKEN_BEDROCK",
)  # fmt: skip
both = pytest.mark.parametrize("family", ["openai", "anthropic"])
KEY = "sk-very-secret-0123456789"


class FakeClock(Clock):
    """Waits take no time and are recorded."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.time

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        if seconds is None:
            condition.wait(5)
            return
        self.waits.append(seconds)
        until = self.time + seconds
        condition.wait(0.0005)  # let other threads run
        self.time = max(self.time, until)


def request(key: str = "k", **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "key": key, "system": "be brief", "shared": "a document\n", "rest": f"question {key}",
        "max_tokens": 50, "temperature": None,
    }  # fmt: skip
    return Request(**{**fields, **changes})


def requests(count: int) -> list[Request]:
    return [request(f"k{i}") for i in range(count)]


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A scripted server, and an environment without keys and addresses."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer() as running:
        yield running


def model(server: ScriptedServer, family: str = "openai", **options: Any) -> Any:
    """A model of the server, which retries after short waits."""
    url = server.url if family == "openai" else server.root
    return load(f"{family}:m", **{"base_url": url, "backoff": 0.001, "timeout": 5.0, **options})


def replies(results: Iterable[Reply | Failure]) -> dict[str, str]:
    """The texts by key; all results must be replies."""
    texts = {}
    for result in results:
        assert isinstance(result, Reply), result
        assert result.key not in texts
        texts[result.key] = result.text
    return texts


def failure(results: Iterable[Reply | Failure]) -> Failure:
    """The only result, which must be a failure."""
    (result,) = list(results)
    assert isinstance(result, Failure), result
    assert "\n" not in result.error
    assert result.seconds >= 0
    return result
