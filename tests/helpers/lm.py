"""Requests, a key and a clock whose waits take no time."""

from __future__ import annotations

import selectors
import threading
from typing import Any

from strop.lm import Request
from strop.lm.gate import Clock

KEY = "sk-very-secret-0123456789"


class FakeClock(Clock):
    """Waits take no time, and are written down."""

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
        condition.wait(0.0005)  # the others get their turn
        self.time = max(self.time, until)

    def watch(
        self, selector: selectors.BaseSelector, seconds: float | None, silence: float | None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        if seconds is None:
            return selector.select(silence)
        self.waits.append(seconds)
        until = self.time + seconds
        come = selector.select(0.0005)
        self.time = max(self.time, until)
        return come


def request(key: str = "k", **changes: Any) -> Request:
    given: dict[str, Any] = {
        "key": key, "system": "be brief", "shared": "a document\n", "rest": f"question {key}",
        "max_tokens": 50, "temperature": None,
    }  # fmt: skip
    return Request(**{**given, **changes})


def requests(count: int) -> list[Request]:
    return [request(f"k{i}") for i in range(count)]
