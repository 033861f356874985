"""Calls to a language model, each paid for once: a reply is stored before it is used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from strop.common import interrupts
from strop.errors import BadInput, StropError
from strop.generate.templates import Prompt
from strop.lm import LM, Failure, Reply, Request, Usage, count_tokens
from strop.lm.prices import Price, price
from strop.storage.replies import Provenance, reply_key
from strop.types import Progress

AnswerOfDocument = tuple[Reply | Failure, int]
"""The result of a request, and the number of its document."""
Save = Callable[[list[tuple[Reply, int]], list[tuple[Failure, int]], Provenance], None]
"""Stores replies and failures, each with the number of its document, in one commit."""


@dataclass
class Spending:
    """Results and cost of calls; ``cost`` is in USD, None if the price is unknown."""

    replies: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    errors: Counter[str] = field(default_factory=Counter)
    stopped: str = ""
    """Why some requests were not sent, "" if all were."""
    next_cost: float = 0.0
    """USD that the next call can cost at most, if the budget ended the run."""
    unknown_replies: int = 0
    """Replies in a batch or a file that belong to no request of this index."""

    def over_budget(self, budget: float, next_cost: float) -> None:
        """Record that one more call could exceed the budget."""
        self.next_cost = next_cost
        self.stopped = (
            f"the next call can cost up to {next_cost:.2g} USD and exceed the budget of"
            f" {budget:g} USD"
        )

    def add(self, other: Spending) -> None:
        """Add the results and costs of other calls."""
        for name in ("replies", "failures", "input_tokens", "output_tokens", "cached_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if self.cost is not None:
            self.cost += other.cost or 0.0
        self.errors.update(other.errors)
        self.stopped = self.stopped or other.stopped


class Calls:
    """Calls one model for one purpose; ``settings`` are stored with each reply as provenance."""

    def __init__(
        self,
        lm: LM,
        settings: dict[str, Any],
        save: Save,
        given_price: Price | None = None,
        room_problem: Callable[[], StropError | None] = lambda: None,
    ) -> None:
        """``room_problem`` returns why no more replies can be stored, None if there is room."""
        self.lm = lm
        self.price = given_price or price(lm.name.partition(":")[2], host=lm.host)
        self._save, self._room_problem = save, room_problem
        unkeyed: frozenset[str] = getattr(lm, "unkeyed_options", frozenset())
        options = dict(lm.options)
        self.keyed_options = {key: value for key, value in options.items() if key not in unkeyed}
        """The options that, besides the model's name, change its replies."""
        self.keyed_options.update(getattr(lm, "identity", {}))
        self.provenance = Provenance(lm.name, options, settings)

    def request(
        self,
        prompt: Prompt,
        max_tokens: int,
        temperature: float | None,
        sample: int,
        stop: tuple[str, ...],
    ) -> Request:
        """Make a request; its key is a hash of everything that determines the reply."""
        parts = [prompt.system, prompt.shared, prompt.rest, max_tokens, temperature, sample]
        key = reply_key(self.lm.name, self.keyed_options, parts)
        return Request(
            key, prompt.system, prompt.shared, prompt.rest, max_tokens, temperature, stop
        )

    def run(
        self,
        requests: Iterable[tuple[Request, int]],
        *,
        budget: float | None = None,
        progress: Progress | None = None,
        total: int = 0,
    ) -> Spending:
        """Send (request, number of its document) pairs, no key twice; commit replies as they come.

        Ends before ``budget`` (USD) could be exceeded. Calls in flight count with their worst-case
        cost; when their true cost is known, there may be money for more calls. Whatever ends the
        run, it waits for calls in flight and stores their replies.
        """
        self.check_budget(budget)
        spending = self.no_spending()
        in_flight: dict[str, tuple[Request, int, float]] = {}
        """By key: a request, the number of its document, its worst-case cost."""
        unsent = iter(requests)
        arrived: list[Reply | Failure] = []

        def affordable() -> Iterator[Request]:
            """Yield requests until the next one could exceed the budget; it stays unsent."""
            nonlocal unsent
            for request, number in unsent:
                if problem := self._room_problem():
                    raise problem  # the run raises it once replies in flight are stored
                cost = 0.0 if budget is None else self.worst_case_cost(request)
                if budget is not None:
                    reserved = sum(worst_case for _, _, worst_case in in_flight.values())
                    if (spending.cost or 0.0) + reserved + cost > budget:
                        unsent = chain([(request, number)], unsent)
                        spending.over_budget(budget, cost)
                        return
                in_flight[request.key] = (request, number, cost)
                yield request

        def keep_arrived() -> None:
            # Answers that are not in flight any more were stored when an interrupt came.
            fresh = [answer for answer in arrived if answer.key in in_flight]
            self.keep([(answer, in_flight[answer.key][1]) for answer in fresh], spending)
            for answer in fresh:
                request, *_ = in_flight.pop(answer.key)
                if isinstance(answer, Reply) and answer.usage == Usage(0, 0) and self.price:
                    # The service gives no token counts; the budget needs an estimate.
                    tokens = count_tokens(request.prompt), count_tokens(answer.text)
                    spending.cost = (spending.cost or 0.0) + self.price.cost(*tokens)
            arrived.clear()
            if progress is not None and total:
                done = spending.replies + spending.failures
                progress(f"calling the model\t{_note(spending)}", done, total)

        while (first := next(batch := affordable(), None)) is not None:
            spending.stopped, spending.next_cost = "", 0.0
            with interrupts.deferred():
                self._send_until_exhausted(
                    chain([first], batch), arrived, keep_arrived, eager=budget is None
                )
            if not spending.stopped:
                break
        return spending

    def _send_until_exhausted(
        self,
        requests: Iterable[Request],
        arrived: list[Reply | Failure],
        keep_arrived: Callable[[], None],
        eager: bool,
    ) -> None:
        """Send requests until they end; add the answers to ``arrived`` and store them."""
        answers = self.lm.complete(requests)
        try:
            for answer in answers:
                # All answers that have arrived go into one commit: a disk sync takes longer than
                # handling a reply. Meanwhile the next calls are sent, unless a budget needs to
                # know the cost first.
                arrived += [answer, *answers.ready()]
                if eager:
                    answers.send_more()
                keep_arrived()
                interrupts.check()
        finally:  # calls in flight when the run is stopped are paid for too
            arrived += answers.close()
            keep_arrived()

    def no_spending(self) -> Spending:
        """Return an empty ``Spending``, which counts money if the price is known."""
        return Spending(cost=None if self.price is None else 0.0)

    def check_budget(self, budget: float | None) -> None:
        """Refuse a budget that cannot be enforced."""
        if budget is not None and math.isnan(budget):
            raise BadInput("the budget is nan: give a number of USD")
        if budget is not None and self.price is None:
            raise BadInput(
                f"the price of {self.lm.name} is not known, so a budget cannot be kept: give "
                "--price INPUT,OUTPUT in dollars per million tokens"
            )

    def worst_case_cost(self, request: Request, batch: bool = False) -> float:
        """Return the worst-case cost of a request in USD: all input tokens at the higher of the
        prices for plain input and for writing the cache, and the longest reply.
        """
        assert self.price is not None
        tokens = count_tokens(request.prompt)
        return max(
            self.price.cost(tokens, request.max_tokens, 0, written, batch=batch)
            for written in (0, tokens)
        )

    def keep(
        self,
        answers: list[AnswerOfDocument],
        spending: Spending,
        batch: bool = False,
        provenance: Provenance | None = None,
    ) -> None:
        """Commit answers with the numbers of their documents, and count them.

        ``provenance`` is given for answers from a batch or file, which may have other settings.
        """
        if not answers:
            return
        replies = [(answer, number) for answer, number in answers if isinstance(answer, Reply)]
        failures = [(answer, number) for answer, number in answers if isinstance(answer, Failure)]
        self._save(replies, failures, provenance or self.provenance)
        for failure, _ in failures:
            spending.failures += 1
            spending.errors[failure.error] += 1
        for reply, _ in replies:
            spending.replies += 1
            spending.input_tokens += reply.usage.input_tokens
            spending.output_tokens += reply.usage.output_tokens
            spending.cached_tokens += reply.usage.cached_tokens
            if spending.cost is not None:
                spending.cost += self.cost(reply.usage, batch) or 0.0

    def cost(self, usage: Usage, batch: bool = False) -> float | None:
        """Return the cost of tokens in USD, None if the price is unknown."""
        if self.price is None:
            return None
        return self.price.cost(
            usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.written_tokens,
            batch=batch,
        )  # fmt: skip


def _note(spending: Spending) -> str:
    tokens = spending.input_tokens + spending.output_tokens
    money = f"{tokens:,} tokens" if spending.cost is None else f"{spending.cost:.2f} USD"
    return money + (f", {spending.failures:,} failed" if spending.failures else "")
