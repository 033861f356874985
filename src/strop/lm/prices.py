"""The cost of calls: tokens, estimated without a tokenizer, and the prices that services publish.

Prices change: the table has source and date of each. ``Price`` can be given by hand. A model that
is not in the table has an unknown price; it is not free.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from strop.errors import BadInput

BATCH_FACTOR = 0.5
"""Price of a batch relative to the normal price, at OpenAI and at Anthropic."""
_DATED = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d)$")


@dataclass(frozen=True)
class Price:
    """USD per million tokens; ``cached`` for those read from the service's cache.

    If the price of cached or written tokens is not published, that of other input is used.
    """

    input: float
    output: float
    cached: float | None = None
    written: float | None = None
    source: str = "given by hand"
    read: str = ""
    """The day on which the source was read."""
    host: str = ""
    """The service that has this price; "" for a price given by hand."""

    def cost(
        self,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        written_tokens: int = 0,
        *,
        batch: bool = False,
    ) -> float:
        """Return the cost in USD, counted as in ``Usage``: input includes cached and written."""
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
    """Return the price of a model, None if unknown.

    ``model`` is a name such as ``gpt-5-mini``, with or without the date of a version.
    ``host`` is the service to call: the table is valid for the model's vendor only.
    """
    for name in (model, _DATED.sub("", model)):
        if listed := known_prices().get(name):
            return listed if host in (None, listed.host) else None
    return None


# Tokens per character. Vocabularies differ by a third and more between vendors and generations;
# these are in the upper half of today's tokenizers, so that cost estimates are rather too high.
_LATIN = 0.25
_RATES = (
    (re.compile(r"[\u00c0-\u024f\u1e00-\u1eff]+"), 0.8),  # Latin letters with accents
    (re.compile(r"[\u0370-\u03ff\u0400-\u052f]+"), 0.4),  # Greek, Cyrillic
    (re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]+"), 0.5),  # Hebrew, Arabic
    (re.compile(r"[\u0900-\u0dff]+"), 0.6),  # Devanagari and the other scripts of India
    (re.compile(r"[\u0e00-\u109f\u1780-\u17ff]+"), 0.7),  # Thai, Lao, Tibetan, Burmese, Khmer
    (re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]+"), 1.0),  # Korean
    (re.compile(r"[\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"),
     1.2),  # Chinese, Japanese
    (re.compile(r"[\U00010000-\U0001ffff]+"), 2.0),  # emoji, rare scripts
)  # fmt: skip


def count_tokens(text: str) -> int:
    """Estimate the tokens of a text: a quarter per Latin character, more in other scripts.

    It is an estimate for prices and limits, without any vendor's tokenizer: for English prose
    usually within a quarter of what a service counts, further off for code, tables and other
    scripts.
    """
    if not text:
        return 0
    if text.isascii():
        return math.ceil(len(text) * _LATIN)
    total, latin = 0.0, len(text)
    for script, rate in _RATES:
        characters = sum(map(len, script.findall(text)))
        total += characters * rate
        latin -= characters
    return math.ceil(total + latin * _LATIN)
