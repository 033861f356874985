"""What services charge, as published, with where and when it was read; and what a call costs.

Prices change. ``Price`` can be given by hand, and what is not in the table is unknown, not free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from strop.errors import BadInput
from strop.lm.tokens import count_tokens

__all__ = ["BATCH_FACTOR", "PRICES", "READ", "VENDORS", "Price", "count_tokens", "price"]

READ = "2026-11-15"
"""When the pages named in the table were read, as archived; none carries a date of its own.

Prices are the standard ones for short prompts: services ask more for prompts above 100,000 tokens
or so, in some regions, and for faster processing.
"""

BATCH_FACTOR = 0.5
"""What batch services charge of the price, at OpenAI and at Anthropic."""

VENDORS = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}

_OPENAI = "https://developers.openai.com/api/docs/models/"
_CLAUDE = "https://platform.claude.com/docs/en/about-claude/pricing"
_CLAUDE_MODEL = "https://platform.claude.com/docs/zh-CN/models/"

_Row = tuple[str, str, float, float, float | None, float | None, str]
# vendor, model, USD per million tokens: input, output, read from cache, written to cache; source
_TABLE: tuple[_Row, ...] = (
    ("openai", "gpt-6-luna", 0.10, 0.50, 0.01, 0.125,
     "https://developers.openai.com/ja-JP/api/docs/models/gpt-6-luna"),
    ("openai", "gpt-6-sol", 2.00, 10.00, 0.20, 2.50,
     "https://github.com/merefield/codexometer/releases/tag/v0.18.4"),
    ("openai", "gpt-6.1-sol", 2.00, 10.00, 0.10, None,
     "https://docs.apiyi.com/en/news/gpt-6-1-sol-launch.md"),
    ("openai", "gpt-5.6-luna", 0.20, 1.20, 0.02, 0.25, _OPENAI + "gpt-5.6-luna"),
    ("openai", "gpt-5.5", 5.00, 30.00, None, None, "https://developers.openai.com/docs/models"),
    ("openai", "gpt-5.4", 2.50, 15.00, None, None, "https://developers.openai.com/docs/models"),
    ("openai", "gpt-5.4-mini", 0.75, 4.50, None, None,
     "https://developers.openai.com/docs/models"),
    ("openai", "gpt-5-mini", 0.25, 2.00, 0.025, None,
     "https://developers.openai.com/ko-KR/api/docs/models/gpt-5-mini"),
    ("openai", "gpt-4.1", 2.00, 8.00, 0.50, None,
     "https://gist.github.com/ei-grad/9a7c000f3487bc01221c7bb5e2b3d74a"),
    ("openai", "gpt-4.1-mini", 0.40, 1.60, 0.10, None,
     "https://vercel.com/ai-gateway/models/gpt-4.1-mini/api"),
    ("openai", "gpt-4.1-nano", 0.10, 0.40, 0.025, None,
     "https://developers.openai.com/ko-KR/api/docs/models/gpt-4.1-nano"),
    ("openai", "gpt-4o", 2.50, 10.00, 1.25, None,
     "https://docs.rs/crate/openai-models/0.1.1/source/src/lib.rs"),
    ("openai", "gpt-4o-mini", 0.15, 0.60, 0.075, None,
     "https://docs.rs/crate/openai-models/0.1.1/source/src/lib.rs"),
    ("anthropic", "claude-opus-5-5", 4.00, 20.00, 0.20, 5.00, _CLAUDE_MODEL + "opus-5-5/overview"),
    ("anthropic", "claude-opus-5", 5.00, 25.00, 0.50, 6.25, _CLAUDE),
    ("anthropic", "claude-opus-4-8", 5.00, 25.00, 0.50, 6.25, _CLAUDE),
    ("anthropic", "claude-opus-4-7", 5.00, 25.00, 0.50, 6.25, _CLAUDE),
    ("anthropic", "claude-opus-4-6", 5.00, 25.00, 0.50, 6.25, _CLAUDE),
    ("anthropic", "claude-opus-4-5", 5.00, 25.00, 0.50, 6.25, _CLAUDE),
    ("anthropic", "claude-sonnet-5-5", 2.00, 10.00, 0.20, 2.50,
     _CLAUDE_MODEL + "sonnet-5-5/overview"),
    ("anthropic", "claude-sonnet-5", 2.00, 10.00, 0.20, 2.50, _CLAUDE_MODEL + "sonnet-5/overview"),
    ("anthropic", "claude-sonnet-4-6", 3.00, 15.00, 0.30, 3.75,
     "https://docs.rs/synaps/0.10.2/synaps_cli/pricing/index.html"),
    ("anthropic", "claude-sonnet-4-5", 3.00, 15.00, 0.30, 3.75,
     "https://docs.rs/synaps/0.10.2/synaps_cli/pricing/index.html"),
    ("anthropic", "claude-haiku-5-5", 0.10, 0.50, 0.01, 0.125,
     "https://github.com/TheKrush/PromptFuel/releases"),
    ("anthropic", "claude-haiku-4-5", 1.00, 5.00, 0.10, 1.25,
     "https://docs.rs/synaps/0.10.2/synaps_cli/pricing/index.html"),
)  # fmt: skip
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


PRICES: Mapping[str, Price] = {
    model: Price(input, output, cached, written, source, READ)
    for _, model, input, output, cached, written, source in _TABLE
}
_VENDOR_OF = {row[1]: row[0] for row in _TABLE}


def price(
    model: str, *, host: str | None = None, given: Mapping[str, Price] | None = None
) -> Price | None:
    """The price of a model, None if unknown.

    ``model`` is a name such as ``gpt-4.1-mini``, with or without the date of a version.
    ``host`` is where it would be called: elsewhere than at its vendor's the table says nothing.
    ``given`` holds prices that come before the table's.
    """
    names = (model, _DATED.sub("", model))
    for name in names:
        if given and name in given:
            return given[name]
    for name in names:
        if name in PRICES:
            return PRICES[name] if host in (None, VENDORS[_VENDOR_OF[name]]) else None
    return None
