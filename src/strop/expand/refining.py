"""One refinement of queries under way: what is asked, what came, how long it took."""

from __future__ import annotations

import heapq
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.errors import BadIndex, BadInput, IndexDamaged
from strop.expand.prompts import (
    SMALL_STOPS,
    Ask,
    build_question,
    read_passage,
    read_verdict,
    task_named,
)
from strop.generate.asking import Asking, Spent
from strop.generate.prompts import Prompt
from strop.lm import Failure, Price, Reply, Request
from strop.storage.catalog import Catalog
from strop.storage.replies import Provenance, reply_key
from strop.types import Progress, Vectors

if TYPE_CHECKING:  # they stand below
    from strop.expand.methods import QueryMethod
    from strop.index import Index

Seconds = NDArray[np.float64]

_NO_DOCUMENT = 0
"""The number with which replies about queries are kept: documents count from 1."""
_VERDICT_TOKENS = 16


class Candidate(NamedTuple):
    """A document of the first pass: its id, its text, and its own vector (dim,)."""

    id: str
    text: str
    vector: Vectors


@dataclass(frozen=True)
class Refined:
    """What became of a list of queries.

    ``vectors`` (n, dim) are for ``Index.search``. ``failed`` says of queries, by position, why
    they were left as they are; ``defaulted`` are those for which no candidate was relevant
    (ReDE-RF). ``seconds`` (n,) is how long the calls of each query take when it is alone, those
    answered earlier included as long as they took then; in ``seconds_now`` these count nothing.
    ``stored`` of the replies were answered earlier.
    """

    vectors: Vectors
    failed: Mapping[int, str]
    defaulted: tuple[int, ...]
    seconds: Seconds
    seconds_now: Seconds
    stored: int
    spent: Spent

    def told(self) -> str:
        """Say how many queries could not be refined, and why the first could not."""
        return (
            f"{len(self.failed):,} of {len(self.vectors):,} queries could not be expanded and are "
            f"searched as they are (first: {next(iter(self.failed.values()))})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return all but the vectors as JSON values."""
        return {
            "queries": len(self.vectors),
            "failed": len(self.failed),
            "no_relevant_candidate": len(self.defaulted),
            "replies_stored": self.stored,
            "replies_now": self.spent.replies,
            "failures": self.spent.failures,
            "errors": dict(self.spent.errors),
            "stopped": self.spent.stopped,
            "input_tokens": self.spent.input_tokens,
            "output_tokens": self.spent.output_tokens,
            "cost": self.spent.cost,
            "seconds_per_query": {
                "stored_as_they_took": _mean_and_p95(self.seconds),
                "stored_as_nothing": _mean_and_p95(self.seconds_now),
            },
        }


class Run:
    """One refinement under way. A method reads its parts and fills ``found``."""

    def __init__(
        self,
        step: QueryMethod,
        index: Index,
        catalog: Catalog,
        queries: list[str],
        leave_out: Sequence[str] | None,
        budget: float | None,
        price: Price | None,
        progress: Progress | None,
    ) -> None:
        self.step, self.index, self.queries = step, index, queries
        self.count = len(queries)
        if leave_out is not None and len(leave_out) != self.count:
            raise BadInput(f"leave_out has {len(leave_out):,} ids for {self.count:,} queries")
        self._leave_out, self._budget, self._progress = leave_out, budget, progress
        self.task = task_named(step.task)
        self._asking = _Remembering(catalog, step.model, step.to_json(), price)
        self._lanes = int(getattr(step.model, "concurrency", 1))
        self.spent = self._asking.nothing_spent()
        self.stored = 0
        self.failed: dict[int, str] = {}
        self.defaulted: tuple[int, ...] = ()
        self.found: dict[int, NDArray[np.floating[Any]]] = {}
        self.seconds, self.seconds_now = np.zeros(self.count), np.zeros(self.count)
        self.candidates: list[list[Candidate]] = [[] for _ in queries]
        with self.timed():
            self.plain = index.embed_queries(queries)
        self.failed.update(
            (place, "the query is empty") for place, text in enumerate(queries) if not text.strip()
        )

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count work on all queries at once, such as embedding, for each of them equally."""
        began = time.perf_counter()
        yield
        each = (time.perf_counter() - began) / max(1, self.count)
        self.seconds += each
        self.seconds_now += each

    def search(self, method: str, k: int) -> None:
        """Find the candidates of each query."""
        with self.timed():
            self.candidates = self.index.candidates(self.plain, k, method, self._leave_out)
        for place, found in enumerate(self.candidates):
            if not found:
                self.failed.setdefault(place, "the first pass found no document")

    def passages(
        self, ask: Ask, places: Iterable[int], samples: int
    ) -> Iterator[tuple[int, Vectors]]:
        """Yield of each query the vectors of the passages written for it."""
        texts = dict(self.texts(ask, places, samples))
        with self.timed():
            flat = self.index.embed_documents([text for of in texts.values() for text in of])
        for place, of in texts.items():
            yield place, flat[: len(of)]
            flat = flat[len(of) :]

    def texts(
        self, ask: Ask, places: Iterable[int], samples: int
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield of each query the passages written for it; without one, it has failed."""
        step, questions = self.step, {}
        for place in places:
            if place not in self.failed:
                shown = [one.text for one in self.candidates[place]] if ask == "answer" else []
                questions[place] = [self._prompt(ask, place, shown)] * samples
        answers = self._ask(questions, step.max_tokens, step.temperature)
        for place, replies in answers.items():
            read = (read_passage(reply.text, self.task) for reply in replies if reply is not None)
            if passages := [text for text in read if text]:
                yield place, passages
            else:
                self.failed.setdefault(place, "no reply held a passage")

    def verdicts(self) -> Iterator[tuple[int, list[tuple[Candidate, bool]]]]:
        """Yield of each query its candidates and whether they were found relevant."""
        questions = {
            place: [self._prompt("verdict", place, [one.text]) for one in self.candidates[place]]
            for place in range(self.count)
            if place not in self.failed
        }
        cold = None if self.step.temperature is None else 0.0
        for place, replies in self._ask(questions, _VERDICT_TOKENS, cold).items():
            said = [None if reply is None else read_verdict(reply.text) for reply in replies]
            if all(verdict is None for verdict in said):
                self.failed.setdefault(place, "no reply said Yes or No")
                continue
            yield (
                place,
                [(one, bool(yes)) for one, yes in zip(self.candidates[place], said, strict=True)],
            )

    def _prompt(self, ask: Ask, place: int, candidates: Sequence[str]) -> Prompt:
        step = self.step
        return build_question(
            ask, self.task, self.queries[place], candidates, profile=step.profile,
            words=max(20, step.max_tokens * 3 // 5), examples=step.examples,
            candidate_chars=getattr(step, "candidate_chars", 0),
        )  # fmt: skip

    def _ask(
        self, questions: Mapping[int, Sequence[Prompt]], max_tokens: int, temperature: float | None
    ) -> dict[int, list[Reply | None]]:
        """Return the replies to each query's questions; what is stored is not asked again."""
        requests: dict[int, list[Request]] = {}
        stop = SMALL_STOPS if self.step.profile == "small" else ()
        asking = self._asking
        for place, prompts in questions.items():
            requests[place] = []
            times: dict[Prompt, int] = {}
            for prompt in prompts:
                sample = times[prompt] = times.get(prompt, -1) + 1
                parts = [*asdict(prompt).values(), max_tokens, temperature, sample]
                key = reply_key(asking.lm.name, asking.keyed_options, parts)
                requests[place].append(
                    Request(
                        key, prompt.system, prompt.shared, prompt.rest, max_tokens, temperature,
                        stop,
                    )
                )  # fmt: skip
        wanted = {request.key: request for of in requests.values() for request in of}
        asking.recall(wanted)
        open_ = [request for key, request in wanted.items() if key not in asking.replies]
        self.stored += len(wanted) - len(open_)
        left = None if self._budget is None else self._budget - (self.spent.cost or 0.0)
        now = asking.ask(
            ((request, _NO_DOCUMENT) for request in open_),
            budget=left, progress=self._progress, total=len(open_),
        )  # fmt: skip
        _add(self.spent, now)
        fresh = {request.key for request in open_}
        for place, of in requests.items():
            came = [asking.replies[one.key] for one in of if one.key in asking.replies]
            self.seconds[place] += _elapsed([one.seconds for one in came], self._lanes)
            self.seconds_now[place] += _elapsed(
                [one.seconds for one in came if one.key in fresh], self._lanes
            )
            if not came:
                why = [asking.errors[one.key] for one in of if one.key in asking.errors]
                self.failed[place] = (why or [now.stopped or "it was not asked about"])[0]
        return {
            place: [asking.replies.get(one.key) for one in of]
            for place, of in requests.items()
            if place not in self.failed
        }

    def refined(self) -> Refined:
        """Return what was found; the plain vector where nothing was."""
        vectors = self.plain.copy()
        for place, vector in self.found.items():
            length = float(np.linalg.norm(vector))
            if length > 1e-6:  # else what was written and the query cancel each other
                vectors[place] = vector / length
            elif self.plain[place].any():
                self.failed.setdefault(place, "what was written cancels the query")
        return Refined(
            vectors, self.failed, self.defaulted, self.seconds, self.seconds_now, self.stored,
            self.spent,
        )  # fmt: skip


class _Remembering(Asking):
    """Keeps replies in memory too: an index that cannot be written is no reason to do without."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.replies: dict[str, Reply] = {}
        self.errors: dict[str, str] = {}
        self._warned = False

    def recall(self, keys: Iterable[str]) -> None:
        """Take up the stored replies among ``keys``."""
        with self._catalog.reading():
            for key in keys:
                if key not in self.replies and (reply := self._catalog.replies.read(key)):
                    self.replies[key] = reply

    def save(
        self,
        replies: list[tuple[Reply, int]],
        failures: list[tuple[Failure, int]],
        provenance: Provenance,
    ) -> None:
        """Commit replies and failures if that is possible."""
        self.replies.update((reply.key, reply) for reply, _ in replies)
        self.errors.update((failure.key, failure.error) for failure, _ in failures)
        try:
            super().save(replies, failures, provenance)
        except IndexDamaged:
            raise
        except BadIndex as error:
            if not self._warned:
                self._warned = True
                warnings.warn(f"replies are used but not kept: {error}", stacklevel=2)


def _elapsed(seconds: Sequence[float], lanes: int) -> float:
    """Return how long calls take that are begun in order, ``lanes`` at a time."""
    ends = [0.0] * lanes
    for one in seconds:
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)


def _mean_and_p95(seconds: Seconds) -> dict[str, float]:
    if not len(seconds):
        return {"mean": 0.0, "p95": 0.0}
    return {"mean": float(np.mean(seconds)), "p95": float(np.percentile(seconds, 95))}


def _add(total: Spent, more: Spent) -> None:
    for name in ("replies", "failures", "input_tokens", "output_tokens", "cached_tokens"):
        setattr(total, name, getattr(total, name) + getattr(more, name))
    if total.cost is not None:
        total.cost += more.cost or 0.0
    total.errors.update(more.errors)
    total.stopped = total.stopped or more.stopped
