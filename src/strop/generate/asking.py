"""Questions to a language model, each paid for once: what is answered is kept before it is used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from strop.common import interrupts
from strop.errors import BadInput
from strop.lm import LM, Failure, Reply, Request, Usage, count_tokens
from strop.lm.prices import Price, price
from strop.storage.catalog import Catalog
from strop.storage.replies import Provenance
from strop.types import Progress


@dataclass
class Spent:
    """What was answered and what it cost; ``cost`` is in USD, None where the price is unknown."""

    replies: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    errors: Counter[str] = field(default_factory=Counter)
    stopped: str = ""
    """Why not all was asked, if not all was."""
    unknown: int = 0
    """Answers, brought by a batch or a file, to what was not asked here."""


class Asking:
    """Asks one model for one purpose; ``settings`` are kept with each reply as its provenance."""

    def __init__(
        self, catalog: Catalog, lm: LM, settings: dict[str, Any], given_price: Price | None = None
    ) -> None:
        self._catalog = catalog
        self.lm = lm
        self.price = given_price or price(lm.name.partition(":")[2], host=lm.host)
        unkeyed: frozenset[str] = getattr(lm, "unkeyed_options", frozenset())
        options = dict(lm.options)
        self.keyed_options = {key: value for key, value in options.items() if key not in unkeyed}
        self.keyed_options.update(getattr(lm, "identity", {}))
        """What of the model, besides its name, changes what it says."""
        self.provenance = Provenance(lm.name, options, settings)

    def ask(
        self,
        questions: Iterable[tuple[Request, int]],
        *,
        budget: float | None = None,
        progress: Progress | None = None,
        total: int = 0,
    ) -> Spent:
        """Ask (request, number of its document) pairs; commit replies as they come.

        Ends before ``budget`` (USD) could be passed, counting what is under way at its dearest.
        Whatever ends the run, what was on its way is waited for and kept.
        """
        self.check_budget(budget)
        spent = self.nothing_spent()
        asked: dict[str, tuple[Request, int]] = {}
        dearest: dict[str, float] = {}

        left = iter(questions)
        held: list[tuple[Request, int]] = []

        def affordable() -> Iterator[Request]:
            """Yield until the next could pass the budget; that one is held."""
            for request, number in chain(_emptied(held), left):
                if request.key in asked:  # documents of one text are one question
                    continue
                if budget is not None and self.price is not None:
                    most = self.dearest(request)
                    if (spent.cost or 0.0) + sum(dearest.values()) + most > budget:
                        held.append((request, number))
                        spent.stopped = (
                            f"the next question could cost {most:.2g} USD and pass the budget of"
                            f" {budget:g} USD"
                        )
                        return
                    dearest[request.key] = most
                asked[request.key] = (request, number)
                yield request

        come: list[Reply | Failure] = []

        def keep() -> None:
            # Those that are not in there were kept when an interrupt came.
            fresh = [answer for answer in come if answer.key in asked]
            self.keep([(answer, asked[answer.key][1]) for answer in fresh], spent)
            for answer in fresh:
                request, _ = asked.pop(answer.key)
                dearest.pop(answer.key, None)
                if isinstance(answer, Reply) and answer.usage == Usage(0, 0) and self.price:
                    # The service does not say: a budget must count all the same.
                    tokens = count_tokens(request.prompt), count_tokens(answer.text)
                    spent.cost = (spent.cost or 0.0) + self.price.cost(*tokens)
            come.clear()
            if progress is not None and total:
                progress(f"asking\t{self._note(spent)}", spent.replies + spent.failures, total)

        # Calls under way are counted at their dearest. Once they are back they cost what they
        # cost, and there may be money for more.
        while (first := next(requests := affordable(), None)) is not None:
            spent.stopped = ""
            with interrupts.deferred():
                self._round(chain([first], requests), come, keep, eager=budget is None)
            if not held:
                break
        return spent

    def _round(
        self,
        requests: Iterable[Request],
        come: list[Reply | Failure],
        keep: Callable[[], None],
        eager: bool,
    ) -> None:
        """Ask until the requests end; what comes is put into ``come`` and kept."""
        answers = self.lm.complete(requests)
        try:
            for answer in answers:
                # All that is there goes into one commit, for a disk's sync costs more than a
                # reply; the next are under way meanwhile, if what these cost does not matter.
                come += [answer, *answers.ready()]
                if eager:
                    answers.send_more()
                keep()
                interrupts.check()
        finally:  # what is on its way when the run is stopped, or was being kept, is paid for too
            come += answers.close()
            keep()

    def nothing_spent(self) -> Spent:
        """Return an empty account, which counts money where the price is known."""
        return Spent(cost=None if self.price is None else 0.0)

    def check_budget(self, budget: float | None) -> None:
        """Refuse a budget that could not be kept."""
        if budget is not None and math.isnan(budget):
            raise BadInput("the budget is nan: give a number of USD")
        if budget is not None and self.price is None:
            raise BadInput(
                f"the price of {self.lm.name} is not known, so a budget cannot be kept: give "
                "--price INPUT,OUTPUT in dollars per million tokens"
            )

    def dearest(self, request: Request, batch: bool = False) -> float:
        """USD that a request can cost at most: all written to the cache, the longest reply."""
        assert self.price is not None
        given = count_tokens(request.prompt)
        return max(
            self.price.cost(given, request.max_tokens, 0, written, batch=batch)
            for written in (0, given)
        )

    def keep(
        self,
        answers: list[tuple[Reply | Failure, int]],
        spent: Spent,
        batch: bool = False,
        provenance: Provenance | None = None,
    ) -> None:
        """Commit answers with the numbers of their documents, and count them.

        ``provenance`` if they come from a batch or file, which may be of other settings.
        """
        if not answers:
            return
        replies = [(one, number) for one, number in answers if isinstance(one, Reply)]
        failures = [(one, number) for one, number in answers if isinstance(one, Failure)]
        self.save(replies, failures, provenance or self.provenance)
        for failure, _ in failures:
            spent.failures += 1
            spent.errors[failure.error] += 1
        for reply, _ in replies:
            spent.replies += 1
            spent.input_tokens += reply.usage.input_tokens
            spent.output_tokens += reply.usage.output_tokens
            spent.cached_tokens += reply.usage.cached_tokens
            if spent.cost is not None:
                spent.cost += self.cost(reply.usage, batch) or 0.0

    def save(
        self,
        replies: list[tuple[Reply, int]],
        failures: list[tuple[Failure, int]],
        provenance: Provenance,
    ) -> None:
        """Commit replies and failures."""
        self._catalog.replies.save(replies, failures, provenance)

    def cost(self, usage: Usage, batch: bool = False) -> float | None:
        """USD for tokens, None where the price is unknown."""
        if self.price is None:
            return None
        return self.price.cost(
            usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.written_tokens,
            batch=batch,
        )  # fmt: skip

    @staticmethod
    def _note(spent: Spent) -> str:
        tokens = spent.input_tokens + spent.output_tokens
        money = f"{tokens:,} tokens" if spent.cost is None else f"{spent.cost:.2f} USD"
        return money + (f", {spent.failures:,} failed" if spent.failures else "")


def _emptied(held: list[tuple[Request, int]]) -> Iterator[tuple[Request, int]]:
    while held:
        yield held.pop()
