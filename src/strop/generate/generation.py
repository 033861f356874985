"""Queries written by a language model: plan, estimate, run, and go on after a stop.

A plan lists, document by document, the questions to the model. Those that have a stored reply
are not asked again. Every reply is committed as it comes; from the stored replies of a document
its list is made and handed to the index, which embeds it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from strop.errors import BadInput
from strop.generate.asking import Asking, Spent
from strop.generate.prompts import SMALL_STOPS, PromptSettings, build_prompt, parse_reply
from strop.generate.query_filters import apply_filters
from strop.lm import LM, Request, Usage, count_tokens
from strop.lm.base import THIS_PROCESS
from strop.lm.prices import Price
from strop.storage.catalog import Catalog
from strop.storage.replies import reply_key
from strop.types import Document, Progress

# Before any reply was seen: tokens of one query with its plan and tags, seconds before a reply
# begins, and tokens a second, written and read, of a service and of a small model run here.
_TOKENS_PER_QUERY = {"simple": 25, "contrastive": 65, "negative": 65}
_SECONDS_BEFORE, _TOKENS_WRITTEN, _TOKENS_READ = 1.0, 60, 1000

_TOGETHER = 8
"""Documents read, and their questions looked up, at a time; more would hold up calls under way."""


@dataclass(frozen=True)
class GenerationSettings:
    """What is asked of the model, and how much it may answer.

    ``prompt.max_queries`` bounds what a document keeps. ``samples`` asks the same question
    several times, for small models that answer with one query.
    """

    prompt: PromptSettings = field(default_factory=PromptSettings)
    max_tokens: int = 2000
    temperature: float | None = None
    samples: int = 1

    def __post_init__(self) -> None:
        for name in ("max_tokens", "samples"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise BadInput(f"temperature must be 0 or more, not {self.temperature}")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {**asdict(self), "prompt": self.prompt.to_json()}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> GenerationSettings:
        """Return the settings that ``to_json`` gave."""
        prompt = {key: value for key, value in saved["prompt"].items() if key != "prompts"}
        return cls(**{**saved, "prompt": PromptSettings(**prompt)})


@dataclass(frozen=True)
class Task:
    """All questions about one document; ``shown`` are the references each is about."""

    number: int
    document: Document
    references: tuple[Document, ...]
    requests: tuple[Request, ...]
    shown: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Estimate:
    """What a run would cost; ``cost`` (USD) is None where the price is unknown.

    ``guessed``: the model has not answered yet, so lengths and speed are rules of thumb.
    """

    documents: int
    calls: int
    stored: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    seconds: float
    guessed: bool
    host: str
    without_references: int


@dataclass(frozen=True)
class Made:
    """One document's queries; ``against`` are the references that each was told apart from."""

    number: int
    document: Document
    queries: list[str]
    against: list[tuple[Document, ...]]


@dataclass
class Summary:
    """What a run did, and what the stored replies made of the set."""

    spent: Spent
    lists: int = 0
    queries: int = 0
    unparsed: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    unverified: int = 0
    contrast: float | None = None
    replaced: int = 0
    replaced_source: str = ""
    in_batches: int = 0
    refused: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        own = {name: value for name, value in vars(self).items() if name != "spent"}
        told = {**vars(self.spent), **own}
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in told.items()}


class Generation:
    """One generator's work on an index: the same settings always find the same replies.

    ``into`` is the set the queries go to, by default that of the style. ``retry`` asks just the
    questions that failed before; else those that failed for good are left alone.
    """

    def __init__(
        self,
        catalog: Catalog,
        lm: LM,
        settings: GenerationSettings,
        *,
        into: str | None = None,
        limit: int | None = None,
        given_price: Price | None = None,
        retry: bool = False,
        verify: bool = False,
    ) -> None:
        if limit is not None and limit < 1:
            raise BadInput(f"limit must be 1 or more, not {limit}")
        self._catalog = catalog
        self._limit = limit
        self._retry = retry
        self.settings = settings
        self.lm = lm
        self.name = into or settings.prompt.style
        self.verify = verify
        self.asking = Asking(catalog, lm, settings.to_json(), given_price)

    @property
    def style(self) -> str:
        """What kind of queries is asked for."""
        return self.settings.prompt.style

    @property
    def set_settings(self) -> dict[str, Any]:
        """What the index keeps of where the set comes from."""
        return {
            "source": "lm", "kind": "query", "lm": self.lm.name,
            "options": self.asking.keyed_options, "settings": self.settings.to_json(),
            "verify": self.verify,
        }  # fmt: skip

    # -- plan -----------------------------------------------------------------------------

    def tasks(self) -> Iterator[Task]:
        """Yield the questions about each document, in order."""
        for done, (number, document, _) in enumerate(self._catalog.documents.all(_TOGETHER)):
            if self._limit is not None and done >= self._limit:
                return
            references: list[Document] = []
            if self.settings.prompt.style != "simple":
                selected = self._catalog.references.of(number)
                for one in selected.references if selected else ():
                    other = self._catalog.documents.number_of(one.id)
                    references.append(self._catalog.documents.get(other))
            yield self._task(number, document, tuple(references))

    def _task(self, number: int, document: Document, references: tuple[Document, ...]) -> Task:
        prompt, requests, shown = self._prompt(len(references)), [], []
        for at, one in enumerate(build_prompt(prompt, document, references)):
            alone = prompt.style != "simple" and not prompt.packed
            for sample in range(self.settings.samples):
                parts = [
                    one.system, one.shared, one.rest, self.settings.max_tokens,
                    self.settings.temperature, sample,
                ]  # fmt: skip
                requests.append(
                    Request(
                        reply_key(self.lm.name, self.asking.keyed_options, parts),
                        one.system,
                        one.shared,
                        one.rest,
                        self.settings.max_tokens,
                        self.settings.temperature,
                        stop=SMALL_STOPS if prompt.profile == "small" else (),
                    )
                )
                shown.append((at,) if alone else tuple(range(len(references))))
        return Task(number, document, references, tuple(requests), tuple(shown))

    def _prompt(self, references: int) -> PromptSettings:
        """Ask in each of several calls for a share of what is wanted, and one to spare."""
        prompt = self.settings.prompt
        if prompt.style == "simple" or prompt.packed or prompt.max_queries is None:
            return prompt
        share = math.ceil(prompt.max_queries / max(1, references)) + 1
        return replace(prompt, max_queries=min(prompt.max_queries, share))

    def open_questions(self, tasks: Sequence[Task]) -> list[tuple[Request, int]]:
        """Return those questions that are to be asked, with the number of their document.

        Equal ones are one, the first document's.
        """
        questions: dict[str, tuple[Request, int]] = {}
        for task in tasks:
            for request in task.requests:
                questions.setdefault(request.key, (request, task.number))
        with self._catalog.reading():
            done = self._catalog.replies.known(questions) | self._catalog.batches.outstanding(
                questions
            )
            failed = self._catalog.replies.failed(questions)
        return [
            question
            for key, question in questions.items()
            if key not in done and (key in failed if self._retry else not failed.get(key, False))
        ]

    def waiting(self) -> Iterator[tuple[Request, int]]:
        """Yield the questions to be asked now, with the number of their document.

        Each comes once: documents of one text are one question, whether or not the first of them
        has been answered by the time the next is looked up.
        """
        tasks, given = self.tasks(), set[str]()
        while True:
            with self._catalog.reading():  # a transaction for several documents is quicker
                part = list(islice(tasks, _TOGETHER))
                found = self.open_questions(part)
            for request, number in found:
                if request.key not in given:
                    given.add(request.key)
                    yield request, number
            if not part:
                return

    # -- estimate -------------------------------------------------------------------------

    def estimate(self, batch: bool = False) -> Estimate:
        """Return what the questions still open would cost, before asking any."""
        documents = calls = stored = given = got = without = 0
        count, usage, seconds = self._catalog.replies.spent(self.lm.name, self.settings.to_json())
        for task in self.tasks():
            documents += 1
            without += not task.requests and bool(task.document.content)
            asked = [request for request, _ in self.open_questions([task])]
            stored += len(self._catalog.replies.known([one.key for one in task.requests]))
            calls += len(asked)
            given += sum(count_tokens(request.prompt) for request in asked)
            got += len(asked) * self._guessed_output(len(task.references))
        if count:
            got = round(calls * usage.output_tokens / count)
        if not seconds:
            seconds = self._guessed_seconds(given, got, calls)
        cost = self.asking.cost(Usage(given, got), batch)
        lanes = int(getattr(self.lm, "concurrency", 1))
        return Estimate(
            documents, calls, stored, given, got, cost, calls * seconds / min(lanes, calls or 1),
            not count, self.lm.host, without,
        )  # fmt: skip

    def _guessed_output(self, references: int) -> int:
        prompt = self._prompt(references)
        wanted = 1 if prompt.profile == "small" else prompt.max_queries or 10
        return min(self.settings.max_tokens, wanted * _TOKENS_PER_QUERY[prompt.style])

    def _guessed_seconds(self, given: int, got: int, calls: int) -> float:
        written = got / max(1, calls) / _TOKENS_WRITTEN
        if self.lm.host == THIS_PROCESS:  # reading takes long too
            return written + given / max(1, calls) / _TOKENS_READ
        return _SECONDS_BEFORE + written

    # -- run ------------------------------------------------------------------------------

    def run(self, *, budget: float | None = None, progress: Progress | None = None) -> Spent:
        """Ask what is open, keep each reply as it comes; stop before passing ``budget``."""
        total = sum(1 for _ in self.waiting()) if progress is not None else 0
        return self.asking.ask(self.waiting(), budget=budget, progress=progress, total=total)

    # -- lists ----------------------------------------------------------------------------

    def lists(self, summary: Summary) -> Iterator[Made]:
        """Yield the queries of each document with a reply; count what was dropped."""
        most, examples = self.settings.prompt.max_queries, self.settings.prompt.examples
        for task in self.tasks():
            per_call = self._parsed(task, summary)
            if not per_call:
                continue
            found = _in_turn(per_call)
            filtered = apply_filters(
                [query for query, _ in found], task.document.content, examples, most=most
            )
            summary.dropped.update(filtered.dropped)
            against = [
                tuple(task.references[at] for at in found[place][1]) for place in filtered.positions
            ]
            yield Made(task.number, task.document, filtered.kept, against)

    def _parsed(self, task: Task, summary: Summary) -> list[list[tuple[str, tuple[int, ...]]]]:
        """Return (query, positions of its references) lists, one for each reply."""
        per_call, missing = [], []
        for request, shown in zip(task.requests, task.shown, strict=True):
            reply = self._catalog.replies.read(request.key)
            if reply is None:
                missing.append(request.key)
                continue
            prompt = self.settings.prompt
            parsed = parse_reply(reply.text, prompt, reply.truncated, len(task.references))
            summary.unparsed += not parsed.queries
            summary.problems.update(parsed.problems)
            per_call.append(
                [
                    (query, (against or shown) if prompt.packed else shown)
                    for query, against in zip(parsed.queries, parsed.against, strict=True)
                ]
            )
        summary.in_batches += len(self._catalog.batches.outstanding(missing))
        summary.refused += sum(self._catalog.replies.failed(missing).values())
        return per_call


def _in_turn(
    lists: Sequence[Sequence[tuple[str, tuple[int, ...]]]],
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the first of each list, then the second of each, and so on: all references count."""
    longest = max(map(len, lists), default=0)
    return [texts[at] for at in range(longest) for texts in lists if at < len(texts)]
