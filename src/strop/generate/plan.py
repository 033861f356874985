"""The requests for each document, their cost, and the queries in the replies.

A plan lists the requests document by document. Requests with a stored reply are not sent again.
The query list of a document is built from its stored replies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, zip_longest
from typing import Any

from strop.common.specs import check_temperature
from strop.generate.calls import Calls, Spending
from strop.generate.filters import apply_filters
from strop.generate.parsing import parse_reply
from strop.generate.prompts import SMALL_STOPS, PromptSettings, build_prompt
from strop.lm import LM, Reply, Request, Usage, count_tokens
from strop.lm.base import THIS_PROCESS
from strop.lm.prices import Price
from strop.methods import check_count
from strop.storage.catalog import Catalog
from strop.types import Document, Progress

EXPECTED_REFERENCES = 4
"""Assumed number of references per document until they are chosen (Cranfield: 4.0)."""
# Assumptions until the first reply: queries in a reply, tokens of one query with its plan and tags,
# seconds before a reply begins, tokens per second of a service (output) and of a small local model
# (output, input).
_QUERIES_PER_CALL = 8
_TOKENS_PER_QUERY = {"simple": 25, "contrastive": 65, "negative": 65}
_SECONDS_TO_FIRST_TOKEN, _OUTPUT_SPEED, _INPUT_SPEED = 1.0, 60, 1000

_DOCUMENTS_PER_READ = 8
"""Documents read at a time, with their requests; more would delay calls in flight."""


@dataclass(frozen=True)
class GenerationSettings:
    """Which queries the model writes, and how long its replies may be.

    ``samples`` sends each prompt several times, for small models that write one query.
    """

    prompt: PromptSettings = field(default_factory=PromptSettings)
    max_tokens: int = 2000
    temperature: float | None = None
    samples: int = 1

    def __post_init__(self) -> None:
        check_count("max_tokens", self.max_tokens)
        check_count("samples", self.samples)
        check_temperature(self.temperature)

    @property
    def needs_references(self) -> bool:
        """Whether the prompts show references."""
        return self.prompt.style != "simple"

    def prompt_for(self, references: int) -> PromptSettings:
        """Divide the limit of queries among several calls: each gets its share and one more."""
        prompt = self.prompt
        if not self.needs_references or prompt.packed or prompt.max_queries is None:
            return prompt
        share = math.ceil(prompt.max_queries / max(1, references)) + 1
        return replace(prompt, max_queries=min(prompt.max_queries, share))

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {**asdict(self), "prompt": self.prompt.to_json()}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> GenerationSettings:
        """Return the settings that ``to_json`` returned."""
        prompt = {key: value for key, value in saved["prompt"].items() if key != "prompts"}
        return cls(**{**saved, "prompt": PromptSettings(**prompt)})


@dataclass(frozen=True)
class Task:
    """All requests for one document."""

    number: int
    document: Document
    references: tuple[Document, ...]
    chosen: bool
    """Whether its references have been chosen; true if it needs none."""
    requests: tuple[Request, ...]
    shown: tuple[tuple[int, ...], ...]
    """For each request the positions of the references in its prompt."""


@dataclass(frozen=True)
class Estimate:
    """What a run would cost; ``cost`` (USD) is None if the price is unknown."""

    documents: int
    calls: int
    stored: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    seconds: float
    guessed: bool
    """True if the model has not replied yet: length of replies and speed are rules of thumb."""
    host: str
    without_references: int
    unchosen_references: int
    """Documents whose references are not chosen: each counts with ``EXPECTED_REFERENCES``."""
    cut_documents: int
    """Documents longer than ``document_chars``."""
    packed: Estimate | None = None
    """The same with all references of a document in one call."""


@dataclass(frozen=True)
class QueryList:
    """The queries that the stored replies give for one document."""

    number: int
    document: Document
    queries: list[str]
    against: list[tuple[Document, ...]]
    """For each query the references it was written against."""
    dropped: list[tuple[str, str]]
    """(reason, query or reply)"""
    replies: int
    empty_replies: int
    missing: list[str]
    """The keys of requests without a reply."""


class Plan:
    """The requests of one model and one style; equal settings always find the same replies.

    ``retry`` sends only the requests that failed before; otherwise requests with a final failure
    are left out.
    """

    def __init__(
        self,
        catalog: Catalog,
        lm: LM,
        settings: GenerationSettings,
        *,
        limit: int | None = None,
        price: Price | None = None,
        retry: bool = False,
    ) -> None:
        if limit is not None:
            check_count("limit", limit)
        self._catalog = catalog
        self._limit, self._retry = limit, retry
        self.lm, self.settings = lm, settings
        replies = catalog.replies
        self.calls = Calls(lm, settings.to_json(), replies.save, price, replies.room_problem)

    # -- requests -------------------------------------------------------------------------

    def tasks(self) -> Iterator[Task]:
        """Yield the requests for each document, in order."""
        for position, (number, document, _) in enumerate(
            self._catalog.documents.all(_DOCUMENTS_PER_READ)
        ):
            if self._limit is not None and position >= self._limit:
                return
            references: list[Document] = []
            selected = (
                self._catalog.references.of(number) if self.settings.needs_references else None
            )
            for reference in selected.references if selected else ():
                reference_number = self._catalog.documents.number_of(reference.id)
                references.append(self._catalog.documents.get(reference_number))
            chosen = selected is not None or not self.settings.needs_references
            yield make_task(self.calls, self.settings, number, document, tuple(references), chosen)

    def _requests_to_send(self, tasks: Sequence[Task]) -> list[tuple[Request, int]]:
        """Return the requests to send, each once, with the number of their first document."""
        requests: dict[str, tuple[Request, int]] = {}
        for task in tasks:
            for request in task.requests:
                requests.setdefault(request.key, (request, task.number))
        with self._catalog.reading():
            replies, batches = self._catalog.replies, self._catalog.batches
            done = replies.known(requests) | batches.outstanding(requests)
            failed = replies.failed(requests)
        return [
            request
            for key, request in requests.items()
            if key not in done and (key in failed if self._retry else not failed.get(key, False))
        ]

    def open_requests(self) -> Iterator[tuple[Request, int]]:
        """Yield the requests to send now, with the number of their document.

        Each is yielded once: documents with equal texts share one request, whether or not it has
        been answered when the next of these documents is read.
        """
        tasks, seen = self.tasks(), set[str]()
        while True:
            with self._catalog.reading():  # one transaction for several documents is faster
                group = list(islice(tasks, _DOCUMENTS_PER_READ))
                requests = self._requests_to_send(group)
            for request, number in requests:
                if request.key not in seen:
                    seen.add(request.key)
                    yield request, number
            if not group:
                return

    def run(self, *, budget: float | None = None, progress: Progress | None = None) -> Spending:
        """Send open requests, store each reply as it arrives; stop before exceeding ``budget``."""
        total = sum(1 for _ in self.open_requests()) if progress is not None else 0
        return self.calls.run(self.open_requests(), budget=budget, progress=progress, total=total)

    # -- estimate -------------------------------------------------------------------------

    def estimate(self, batch: bool = False) -> Estimate:
        """Return what the open requests would cost. Only reads, and chooses no references."""
        documents = calls = stored = input_tokens = output_tokens = 0
        without_references = unchosen_references = cut_documents = 0
        count, usage, seconds = self._catalog.replies.totals(self.lm.name, self.settings.to_json())
        text_limit = self.settings.prompt.text_limit
        for task in self.tasks():
            documents += 1
            cut_documents += text_limit is not None and len(task.document.content) > text_limit
            if task.chosen or not task.document.content:
                requests = [request for request, _ in self._requests_to_send([task])]
                without_references += not task.requests and bool(task.document.content)
                stored += len(
                    self._catalog.replies.known([request.key for request in task.requests])
                )
            else:  # references are likely to be about as long as their document
                unchosen_references += 1
                expected_references = (task.document,) * EXPECTED_REFERENCES
                task = make_task(
                    self.calls,
                    self.settings,
                    task.number,
                    task.document,
                    expected_references,
                    chosen=False,
                )
                requests = list(task.requests)
            calls += len(requests)
            input_tokens += sum(count_tokens(request.prompt) for request in requests)
            output_tokens += len(requests) * expected_output(self.settings, len(task.references))
        if count:
            output_tokens = round(calls * usage.output_tokens / count)
        if not seconds:
            seconds = self._expected_seconds(input_tokens, output_tokens, calls)
        concurrency = min(int(getattr(self.lm, "concurrency", 1)), calls or 1)
        packed = None
        if self.settings.needs_references and not self.settings.prompt.packed:
            packed_settings = replace(
                self.settings, prompt=replace(self.settings.prompt, packed=True)
            )
            packed = Plan(
                self._catalog, self.lm, packed_settings, limit=self._limit, price=self.calls.price,
                retry=self._retry,
            ).estimate(batch)  # fmt: skip
        cost = self.calls.cost(Usage(input_tokens, output_tokens), batch)
        return Estimate(
            documents, calls, stored, input_tokens, output_tokens, cost,
            calls * seconds / concurrency, not count, self.lm.host, without_references,
            unchosen_references, cut_documents, packed,
        )  # fmt: skip

    def _expected_seconds(self, input_tokens: int, output_tokens: int, calls: int) -> float:
        output_seconds = output_tokens / max(1, calls) / _OUTPUT_SPEED
        if self.lm.host == THIS_PROCESS:  # a small local model reads input slowly too
            return output_seconds + input_tokens / max(1, calls) / _INPUT_SPEED
        return _SECONDS_TO_FIRST_TOKEN + output_seconds

    # -- replies --------------------------------------------------------------------------

    def lists(self) -> Iterator[QueryList]:
        """Yield the queries in the stored replies of each document, in order."""
        for task in self.tasks():
            yield read_task(task, self.settings.prompt, self._catalog.replies.read)


def expected_output(settings: GenerationSettings, references: int) -> int:
    """Return how many tokens a reply is likely to have, by rule of thumb."""
    prompt = settings.prompt_for(references)
    queries = 1 if prompt.profile == "small" else prompt.max_queries or _QUERIES_PER_CALL
    return min(settings.max_tokens, queries * _TOKENS_PER_QUERY[prompt.style])


def make_task(
    calls: Calls,
    settings: GenerationSettings,
    number: int,
    document: Document,
    references: tuple[Document, ...],
    chosen: bool = True,
) -> Task:
    """Return all requests for one document."""
    prompt = settings.prompt_for(len(references))
    single = settings.needs_references and not prompt.packed
    stop = SMALL_STOPS if prompt.profile == "small" else ()
    requests, shown = [], []
    for at, text in enumerate(build_prompt(prompt, document, references)):
        for sample in range(settings.samples):
            requests.append(
                calls.request(text, settings.max_tokens, settings.temperature, sample, stop)
            )
            shown.append((at,) if single else tuple(range(len(references))))
    return Task(number, document, references, chosen, tuple(requests), tuple(shown))


def read_task(task: Task, prompt: PromptSettings, read: Callable[[str], Reply | None]) -> QueryList:
    """Return the queries in the replies for a document; ``read`` returns a reply by its key."""
    per_reply: list[list[tuple[str, tuple[int, ...]]]] = []
    dropped: list[tuple[str, str]] = []
    missing = []
    for request, shown in zip(task.requests, task.shown, strict=True):
        reply = read(request.key)
        if reply is None:
            missing.append(request.key)
            continue
        parsed = parse_reply(reply.text, prompt, reply.truncated, len(task.references))
        dropped += parsed.dropped
        per_reply.append(
            [
                (query, (against or shown) if prompt.packed else shown)
                for query, against in zip(parsed.queries, parsed.against, strict=True)
            ]
        )
    # The first query of each reply, then the second of each, and so on: a limit on the number of
    # queries then keeps queries against all references.
    pooled = [pair for rank in zip_longest(*per_reply) for pair in rank if pair is not None]
    filtered = apply_filters(
        [query for query, _ in pooled], task.document.content, prompt.examples,
        limit=prompt.max_queries,
    )  # fmt: skip
    against = [
        tuple(task.references[at] for at in pooled[position][1]) for position in filtered.positions
    ]
    return QueryList(
        task.number, task.document, filtered.kept, against, dropped + filtered.dropped,
        len(per_reply), sum(not queries for queries in per_reply), missing,
    )  # fmt: skip
