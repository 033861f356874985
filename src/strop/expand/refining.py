"""One refinement of queries: the calls to the model, the vectors that result, the time it takes."""

from __future__ import annotations

import heapq
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.errors import BadIndex, BadInput, DiskFull, IndexDamaged
from strop.expand.prompts import (
    SMALL_STOPS,
    Purpose,
    expansion_prompt,
    read_passage,
    read_verdict,
    task_named,
)
from strop.filters import Filter
from strop.generate.calls import Calls, Spending
from strop.generate.templates import Prompt
from strop.lm import Failure, Price, Reply, Request
from strop.search.searcher import Searcher
from strop.storage.replies import Provenance
from strop.types import Kind, Progress, Vectors

if TYPE_CHECKING:  # that module imports this one
    from strop.expand.methods import QueryMethod

Embed = Callable[[list[str], Kind], Vectors]
Seconds = NDArray[np.float64]

_NO_DOCUMENT = 0
"""Replies about queries are stored with this number: numbers of documents begin at 1."""
_VERDICT_TOKENS = 16


class Candidate(NamedTuple):
    """A document of the first pass: its text and its own vector (dim,)."""

    text: str
    vector: Vectors


@dataclass(frozen=True)
class Refined:
    """The result for a list of queries.

    ``vectors`` (n, dim) are for ``Index.search``. ``failed`` gives, by position, the reason why a
    query is left unchanged; ``no_relevant`` are those for which no candidate was relevant
    (ReDE-RF). ``seconds`` (n,) is how long the calls of each query take if it is the only one;
    stored replies count with the time they took. ``stored`` is the number of stored replies used.
    """

    vectors: Vectors
    failed: Mapping[int, str]
    no_relevant: tuple[int, ...]
    seconds: Seconds
    stored: int
    spending: Spending

    def failure_message(self) -> str:
        """Return how many queries could not be refined, and why the first could not."""
        return (
            f"{len(self.failed):,} of {len(self.vectors):,} queries could not be expanded and are "
            f"searched as they are (first: {next(iter(self.failed.values()))})"
        )

    def warned(self) -> Refined:
        """Return this result; warn the caller's caller if queries could not be refined."""
        if self.failed:
            warnings.warn(self.failure_message(), stacklevel=3)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return all values except the vectors as JSON values."""
        seconds = self.seconds if len(self.seconds) else np.zeros(1)
        mean, p95 = np.mean(seconds), np.percentile(seconds, 95)
        return {
            "queries": len(self.vectors),
            "failed": len(self.failed),
            "no_relevant_candidate": len(self.no_relevant),
            "replies_stored": self.stored,
            "replies_now": self.spending.replies,
            "failures": self.spending.failures,
            "errors": dict(self.spending.errors),
            "stopped": self.spending.stopped,
            "input_tokens": self.spending.input_tokens,
            "output_tokens": self.spending.output_tokens,
            "cost": self.spending.cost,
            "seconds_per_query": {"mean": float(mean), "p95": float(p95)},
        }


class Refinement:
    """One refinement in progress. A method reads its parts and fills ``refined_vectors``."""

    def __init__(
        self,
        method: QueryMethod,
        searcher: Searcher,
        embed: Embed,
        queries: list[str],
        *,
        where: Filter | None,
        leave_out: Sequence[str] | None,
        budget: float | None,
        price: Price | None,
        progress: Progress | None,
    ) -> None:
        self.queries, self.count = queries, len(queries)
        if leave_out is not None and len(leave_out) != self.count:
            raise BadInput(f"leave_out has {len(leave_out):,} ids for {self.count:,} queries")
        self._method, self._searcher, self.embed = method, searcher, embed
        self._where, self._leave_out = where, leave_out
        self._budget, self._progress = budget, progress
        self._task = task_named(method.task)
        self._stored_replies = searcher.catalog.replies
        self._calls = Calls(
            method.model, method.to_json(), self._save, price, self._stored_replies.room_problem
        )
        self._replies: dict[str, Reply] = {}
        self._errors: dict[str, str] = {}
        self._unsaved = False
        self._at_once = int(getattr(method.model, "concurrency", 1))
        self._spending = self._calls.no_spending()
        self._stored = 0
        self._seconds = np.zeros(self.count)
        self._candidates: list[list[Candidate]] = [[] for _ in queries]
        self.failed: dict[int, str] = {}
        self.no_relevant: tuple[int, ...] = ()
        self.refined_vectors: dict[int, NDArray[np.floating[Any]]] = {}
        with self.timed():
            self.query_vectors = self.embed(queries, "query")
        self.failed.update(
            (place, "the query is empty") for place, text in enumerate(queries) if not text.strip()
        )

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Divide the time of work on all queries at once, such as embedding, among them equally."""
        began = time.perf_counter()
        yield
        self._seconds += (time.perf_counter() - began) / max(1, self.count)

    def search(self, method: str, k: int) -> None:
        """Find each query's candidates: the best k rows except those of the document left out."""
        searcher, documents = self._searcher, self._searcher.catalog.documents
        chosen = searcher.method(method)
        with self.timed(), searcher.catalog.reading():
            left_out = [self._rows_left_out(place) for place in range(self.count)]
            depth = k + max(map(len, left_out), default=0)
            hits = searcher.search(
                self.query_vectors, self.queries, depth, chosen, where=self._where
            )
            for place, ids in enumerate(hits.ids.tolist()):
                shown = [id_ for id_ in ids if documents.number_of(id_) not in left_out[place]]
                for id_ in shown[:k]:
                    text = documents.get(documents.number_of(id_)).content
                    self._candidates[place].append(Candidate(text, searcher.vector_of(id_)))
                if not shown:
                    self.failed.setdefault(place, "the first pass found no document")

    def _rows_left_out(self, place: int) -> set[int]:
        """Return the rows of the document that a query must not see: itself or its chunks."""
        documents = self._searcher.catalog.documents
        if self._leave_out is None or documents.unknown(self._leave_out[place : place + 1]):
            return set()
        return set(documents.numbers_of(self._leave_out[place]))

    def passages(
        self, purpose: Purpose, places: Iterable[int], samples: int
    ) -> Iterator[tuple[int, Vectors]]:
        """Yield for each query the vectors of the passages written for it."""
        texts = dict(self.texts(purpose, places, samples))
        with self.timed():
            flat = self.embed([text for group in texts.values() for text in group], "document")
        for place, group in texts.items():
            yield place, flat[: len(group)]
            flat = flat[len(group) :]

    def texts(
        self, purpose: Purpose, places: Iterable[int], samples: int
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield for each query the passages written for it; a query without one has failed."""
        prompts = {}
        for place in places:
            if place not in self.failed:
                candidates = self._candidates[place] if purpose == "answer" else []
                shown = [candidate.text for candidate in candidates]
                prompts[place] = [self._prompt(purpose, place, shown)] * samples
        replies = self._call(prompts, self._method.max_tokens, self._method.temperature)
        for place, group in replies.items():
            read = (read_passage(reply.text, self._task) for reply in group if reply is not None)
            if passages := [text for text in read if text]:
                yield place, passages
            else:
                self.failed.setdefault(place, "no reply held a passage")

    def verdicts(self) -> Iterator[tuple[int, list[tuple[Candidate, bool]]]]:
        """Yield for each query its candidates and whether they were judged relevant."""
        prompts = {
            place: [self._prompt("verdict", place, [document.text]) for document in documents]
            for place, documents in enumerate(self._candidates)
            if place not in self.failed
        }
        temperature = None if self._method.temperature is None else 0.0
        for place, replies in self._call(prompts, _VERDICT_TOKENS, temperature).items():
            verdicts = [None if reply is None else read_verdict(reply.text) for reply in replies]
            if all(verdict is None for verdict in verdicts):
                self.failed.setdefault(place, "no reply said Yes or No")
                continue
            pairs = zip(self._candidates[place], verdicts, strict=True)
            yield place, [(document, bool(verdict)) for document, verdict in pairs]

    def _prompt(self, purpose: Purpose, place: int, candidates: Sequence[str]) -> Prompt:
        method = self._method
        return expansion_prompt(
            purpose, self._task, self.queries[place], candidates, profile=method.profile,
            words=max(20, method.max_tokens * 3 // 5), examples=method.examples,
        )  # fmt: skip

    def _call(
        self, prompts: Mapping[int, Sequence[Prompt]], max_tokens: int, temperature: float | None
    ) -> dict[int, list[Reply | None]]:
        """Return the replies to each query's prompts; stored ones are not requested again."""
        requests: dict[int, list[Request]] = {}
        stop = SMALL_STOPS if self._method.profile == "small" else ()
        for place, query_prompts in prompts.items():
            samples: dict[Prompt, Iterator[int]] = defaultdict(count)
            requests[place] = [
                self._calls.request(prompt, max_tokens, temperature, next(samples[prompt]), stop)
                for prompt in query_prompts
            ]
        needed = {request.key: request for group in requests.values() for request in group}
        with self._searcher.catalog.reading():
            for key in needed.keys() - self._replies.keys():
                if reply := self._stored_replies.read(key):
                    self._replies[key] = reply
        missing = [request for key, request in needed.items() if key not in self._replies]
        self._stored += len(needed) - len(missing)
        budget = self._budget
        with self._reserved() if missing else nullcontext():
            spending = self._calls.run(
                ((request, _NO_DOCUMENT) for request in missing),
                budget=None if budget is None else budget - (self._spending.cost or 0.0),
                progress=self._progress, total=len(missing),
            )  # fmt: skip
        self._spending.add(spending)
        for place, group in requests.items():
            keys = [request.key for request in group]
            arrived = [self._replies[key] for key in keys if key in self._replies]
            self._seconds[place] += _elapsed([reply.seconds for reply in arrived], self._at_once)
            if not arrived:
                errors = [self._errors[key] for key in keys if key in self._errors]
                self.failed[place] = (errors or [spending.stopped or "no call was made"])[0]
        return {
            place: [self._replies.get(request.key) for request in group]
            for place, group in requests.items()
            if place not in self.failed
        }

    @contextmanager
    def _reserved(self) -> Iterator[None]:
        """Reserve disk space, unless the index cannot be written at all."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._stored_replies.reserved())
            except BadIndex as error:
                if isinstance(error, DiskFull):
                    raise
            yield

    def _save(
        self,
        replies: list[tuple[Reply, int]],
        failures: list[tuple[Failure, int]],
        provenance: Provenance,
    ) -> None:
        """Store replies and failures, only in memory if the index cannot be written."""
        self._replies.update((reply.key, reply) for reply, _ in replies)
        self._errors.update((failure.key, failure.error) for failure, _ in failures)
        try:
            self._stored_replies.save(replies, failures, provenance)
        except BadIndex as error:
            if isinstance(error, DiskFull | IndexDamaged):  # a full disk: they are in the reserve
                raise
            if not self._unsaved:
                self._unsaved = True
                warnings.warn(f"replies are used but not kept: {error}", stacklevel=2)

    def result(self) -> Refined:
        """Return the refined vectors; for queries without one, the query's own vector."""
        vectors = self.query_vectors.copy()
        for place, vector in self.refined_vectors.items():
            length = float(np.linalg.norm(vector))
            if length > 1e-6:  # else the passages and the query cancel each other
                vectors[place] = vector / length
            elif self.query_vectors[place].any():
                self.failed.setdefault(place, "the passages cancel the query")
        return Refined(
            vectors, self.failed, self.no_relevant, self._seconds, self._stored, self._spending
        )


def _elapsed(seconds: Sequence[float], at_once: int) -> float:
    """Return how long calls take if they begin in order, ``at_once`` at a time."""
    ends = [0.0] * at_once
    for duration in seconds:
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
