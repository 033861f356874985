"""What services charge, as published, with where and when it was read; and what a call costs.

Prices change. ``Price`` can be given by hand, and what is not in the table is unknown, not free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from strop.errors import BadInput

BATCH_FACTOR = 0.5
"""What batch services charge of the price, at OpenAI and at Anthropic."""
_DATED = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d)$")


@dataclass(frozen=True)
class Price:
    """USD per million tokens; ``cached`` for those read from the service's cache.

    A price that is not published is taken to be that of other input.
    """

    input: float
    output: float
    cached: float | None = None
    written: float | None = None
    source: str = "given by hand"
    read: str = ""
    """The day on which the source was read."""
    host: str = ""
    """The service that has this price, if it is a service's."""

    def cost(
        self,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        written_tokens: int = 0,
        *,
        batch: bool = False,
    ) -> float:
        """USD for these tokens, counted as ``Usage`` does: the input includes the last two."""
        total = (
            max(input_tokens - cached_tokens - written_tokens, 0) * self.input
            + cached_tokens * (self.input if self.cached is None else self.cached)
            + written_tokens * (self.input if self.written is None else self.written)
            + output_tokens * self.output
        )
        return total / 1e6 * (BATCH_FACTOR if batch else 1.0)

    @classmethod
    def parse(cls, text: str) -> Price:
        """Read ``INPUT,OUTPUT`` or ``INPUT,OUTPUT,CACHED``, in USD per million tokens."""
        try:
            numbers = [float(part) for part in text.split(",")]
            if len(numbers) not in (2, 3) or not all(0 <= n < float("inf") for n in numbers):
                raise ValueError
        except ValueError:
            form = "INPUT,OUTPUT or INPUT,OUTPUT,CACHED in USD per million tokens: 0.10,0.50"
            raise BadInput(f"the price is {text!r}; write {form}") from None
        return cls(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None)


@cache
def known_prices() -> Mapping[str, Price]:
    """Return the prices in ``prices.json`` by model."""
    table = json.loads((files("strop.lm") / "prices.json").read_text("utf-8"))
    return {model: Price(**row, read=table["read"]) for model, row in table["models"].items()}


def price(model: str, *, host: str | None = None) -> Price | None:
    """The price of a model, None if unknown.

    ``model`` is a name such as ``gpt-5-mini``, with or without the date of a version.
    ``host`` is the service to call: the table holds for the model's vendor only.
    """
    for name in (model, _DATED.sub("", model)):
        if listed := known_prices().get(name):
            return listed if host in (None, listed.host) else None
    return None
