"""Queries written by a language model: plan, estimate, run, and go on after a stop.

A plan lists, document by document, the questions to the model. Those that have a stored reply
are not asked again. Every reply is committed as it comes; from the stored replies of a document
its list is made and handed to the index, which embeds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from strop.catalog import Catalog
from strop.errors import BadInput
from strop.lm import LM, Failure, Reply, Request, count_tokens
from strop.lm.prices import Price, price
from strop.prompts import SMALL_STOPS, PromptSettings, build_prompt, parse_reply
from strop.query_filters import apply_filters
from strop.reference_store import references_of
from strop.reply_store import (
    Provenance,
    known_replies,
    read_reply,
    reply_key,
    save_replies,
    spent_tokens,
)
from strop.types import Document, Progress

_TOKENS_PER_QUERY = 60
"""Of a reply, plan and tags included, before any reply was seen."""


@dataclass(frozen=True)
class GenerationSettings:
    """What is asked of the model, and how much it may answer.

    ``samples`` asks the same question several times, for small models that answer with one
    query.
    """

    prompt: PromptSettings = field(default_factory=PromptSettings)
    max_tokens: int = 2000
    temperature: float | None = None
    samples: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {**asdict(self), "prompt": self.prompt.to_json()}


@dataclass(frozen=True)
class Task:
    """All questions about one document."""

    number: int
    document: Document
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Estimate:
    """What a run would cost; ``cost`` and ``seconds`` are None where unknown."""

    documents: int
    calls: int
    stored: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    seconds: float | None
    host: str
    without_references: int


@dataclass
class Summary:
    """What a run did."""

    replies: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    lists: int = 0
    queries: int = 0
    unparsed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    stopped: str = ""


class Generation:
    """One generator's work on an index: the same settings always find the same replies."""

    def __init__(
        self,
        catalog: Catalog,
        lm: LM,
        settings: GenerationSettings,
        *,
        limit: int | None = None,
        given_price: Price | None = None,
    ) -> None:
        self._catalog = catalog
        self._lm = lm
        self._settings = settings
        self._limit = limit
        self._price = given_price or price(lm.name.partition(":")[2], host=lm.host)
        self._options = dict(lm.options)
        self._provenance = Provenance(lm.name, self._options, settings.to_json())

    @property
    def style(self) -> str:
        """The name of the set the queries go to."""
        return self._settings.prompt.style

    @property
    def set_settings(self) -> dict[str, Any]:
        """What the index keeps of where the set comes from."""
        return {
            "source": "lm", "kind": "query", "lm": self._lm.name, "options": self._keyed_options(),
            "settings": self._settings.to_json(),
        }  # fmt: skip

    # -- plan -----------------------------------------------------------------------------

    def tasks(self) -> Iterator[Task]:
        """Yield the questions about each document, in order."""
        style = self._settings.prompt.style
        for done, (number, document, _) in enumerate(self._catalog.all_documents()):
            if self._limit is not None and done >= self._limit:
                return
            references: list[Document] = []
            if style != "simple":
                selected = references_of(self._catalog, number)
                for one in selected.references if selected else ():
                    other = self._catalog.number_of(one.id)
                    references.append(self._catalog.document(other))
            yield Task(number, document, tuple(self._requests(document, references)))

    def _requests(self, document: Document, references: Sequence[Document]) -> Iterator[Request]:
        settings = self._settings
        for prompt in build_prompt(settings.prompt, document, references):
            for sample in range(settings.samples):
                parts = [
                    prompt.system, prompt.shared, prompt.rest, settings.max_tokens,
                    settings.temperature, sample,
                ]  # fmt: skip
                key = reply_key(self._lm.name, self._keyed_options(), parts)
                yield Request(
                    key, prompt.system, prompt.shared, prompt.rest, settings.max_tokens,
                    settings.temperature, stop=self._stops(),
                )  # fmt: skip

    def _keyed_options(self) -> dict[str, Any]:
        unkeyed: frozenset[str] = getattr(self._lm, "unkeyed_options", frozenset())
        return {key: value for key, value in self._options.items() if key not in unkeyed}

    def _stops(self) -> tuple[str, ...]:
        return SMALL_STOPS if self._settings.prompt.profile == "small" else ()

    def waiting(self) -> Iterator[tuple[Request, int]]:
        """Yield the questions without a stored reply, with the number of their document."""
        for task in self.tasks():
            keys = [request.key for request in task.requests]
            known = known_replies(self._catalog, keys)
            for request in task.requests:
                if request.key not in known:
                    yield request, task.number

    # -- estimate -------------------------------------------------------------------------

    def estimate(self) -> Estimate:
        """Return what the questions still open would cost, before asking any."""
        documents = calls = stored = given = without = 0
        for task in self.tasks():
            documents += 1
            without += not task.requests and bool(task.document.content)
            known = known_replies(self._catalog, [request.key for request in task.requests])
            stored += len(known)
            for request in task.requests:
                if request.key not in known:
                    calls += 1
                    given += count_tokens(request.system + request.shared + request.rest)
        count, usage, seconds = spent_tokens(self._catalog, self._lm.name)
        if count:
            per_call = usage.output_tokens / count
        else:
            most = self._settings.prompt.max_queries or 10
            per_call = min(self._settings.max_tokens, _TOKENS_PER_QUERY * most)
        got = round(calls * per_call)
        lanes = int(self._options.get("concurrency", 16))
        return Estimate(
            documents, calls, stored, given, got, self._cost(given, got, 0),
            calls * seconds / lanes if count else None, self._lm.host, without,
        )  # fmt: skip

    def _cost(self, given: int, got: int, cached: int) -> float | None:
        if self._price is None:
            return None
        return self._price.cost(given, got, cached)

    # -- run ------------------------------------------------------------------------------

    def run(
        self,
        *,
        budget: float | None = None,
        progress: Progress | None = None,
        total: int | None = None,
    ) -> Summary:
        """Ask what is open, keep each reply as it comes; stop before passing ``budget``."""
        if budget is not None and self._price is None:
            raise BadInput(
                f"the price of {self._lm.name} is not known, so a budget cannot be kept: give "
                "--price INPUT,OUTPUT in dollars per million tokens"
            )
        summary = Summary(cost=0.0 if self._price else None)
        numbers: dict[str, int] = {}
        reserved: dict[str, float] = {}

        def questions() -> Iterator[Request]:
            for request, number in self.waiting():
                if budget is not None:
                    worst = self._cost(
                        count_tokens(request.system + request.shared + request.rest),
                        request.max_tokens, 0,
                    ) or 0.0  # fmt: skip
                    if (summary.cost or 0.0) + sum(reserved.values()) + worst > budget:
                        summary.stopped = f"the budget of {budget:.2f} would be passed"
                        return
                    reserved[request.key] = worst
                numbers[request.key] = number
                yield request

        def keep(answer: Reply | Failure) -> None:
            number = numbers.pop(answer.key)
            reserved.pop(answer.key, None)
            if isinstance(answer, Failure):
                save_replies(self._catalog, [], [(answer, number)], self._provenance)
                summary.failures += 1
                summary.errors[answer.error] += 1
                return
            save_replies(self._catalog, [(answer, number)], [], self._provenance)
            usage = answer.usage
            summary.replies += 1
            summary.input_tokens += usage.input_tokens
            summary.output_tokens += usage.output_tokens
            summary.cached_tokens += usage.cached_tokens
            if self._price is not None:
                summary.cost = (summary.cost or 0.0) + self._price.cost(
                    usage.input_tokens, usage.output_tokens, usage.cached_tokens,
                    usage.written_tokens,
                )  # fmt: skip

        answers = self._lm.complete(questions())
        try:
            for answer in answers:
                keep(answer)
                if progress is not None and total:
                    progress("asking", summary.replies + summary.failures, total)
        finally:  # what is on its way when the run is stopped is paid for too
            for answer in answers.close():
                keep(answer)
        return summary

    # -- lists ----------------------------------------------------------------------------

    def lists(self, summary: Summary) -> Iterator[tuple[int, list[str]]]:
        """Yield (number, queries) of each document with a reply; count what was dropped."""
        prompt = self._settings.prompt
        for task in self.tasks():
            per_call = []
            for request in task.requests:
                reply = read_reply(self._catalog, request.key)
                if reply is None:
                    continue
                parsed = parse_reply(reply.text, prompt, truncated=reply.truncated)
                summary.unparsed += not parsed.queries
                per_call.append(parsed.queries)
            if not per_call:
                continue
            filtered = apply_filters(
                _in_turn(per_call), task.document.content, prompt.examples, most=prompt.max_queries
            )
            summary.dropped.update(filtered.dropped)
            queries = filtered.kept
            summary.lists += 1
            summary.queries += len(queries)
            yield task.number, queries


def _in_turn(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the first of each list, then the second of each, and so on: all references count."""
    longest = max(map(len, lists), default=0)
    return [texts[at] for at in range(longest) for texts in lists if at < len(texts)]
