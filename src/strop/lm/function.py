"""Any function from a prompt to a text, as a language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strop.common.retries import CallFailed
from strop.common.secrets import one_line
from strop.common.specs import check_whole
from strop.errors import BadInput, StropError
from strop.lm.base import Answer, Request, Usage
from strop.lm.runner import BaseLM

PREFIX = "callable:"


class CallableLM(BaseLM):
    """Wraps ``f(prompt) -> text``, called from ``threads`` threads at a time.

    The prompt is the system text, a blank line and the user's text. An error that the
    function raises is a failure of that request; tokens are not counted.
    """

    unkeyed_options = frozenset({"threads"})

    def __init__(
        self, function: Callable[[str], str], *, name: str | None = None, threads: int = 1
    ) -> None:
        check_whole(threads=(threads, 1))
        default_name = getattr(function, "__qualname__", type(function).__qualname__)
        self.name = PREFIX + (name or default_name).removeprefix(PREFIX)
        self.options = {"threads": threads} if threads != 1 else {}
        self._function, self.concurrency = function, threads

    def _answer(self, request: Request) -> Answer:
        try:
            text: Any = self._function(request.prompt)
        except StropError:
            raise
        except Exception as error:
            message = one_line(f"{self.name} raised {type(error).__name__}: {error}")
            raise CallFailed(message, retryable=True) from error
        if not isinstance(text, str):
            raise BadInput(f"{self.name} returned {type(text).__name__}, not a string")
        return Answer(text, False, self.name, Usage(0, 0))
