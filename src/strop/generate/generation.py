"""Queries written by a language model for an index: estimate, run, batches, files of requests.

Every reply is committed as it comes. After any stop the same generation continues with the
missing replies. Every submission of a batch is recorded, so that nothing is paid for twice.
Methods that only read (estimate, status, lists) take no lock.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from strop.errors import BadInput, ServiceError
from strop.generate.calls import Spending
from strop.generate.plan import Estimate, GenerationSettings, Plan, QueryList
from strop.lm import LM, Failure, Reply, Request, load
from strop.lm.batch_files import custom_id, read_replies, write_requests
from strop.lm.batches import MayHaveBegun, Status, open_batches
from strop.lm.prices import Price
from strop.storage.intake import check_set_name
from strop.storage.replies import Provenance
from strop.storage.workspace import Workspace
from strop.types import Progress

_REPLIES_PER_COMMIT = 500
"""Replies of a batch or a file that are stored in one commit."""


@dataclass(frozen=True)
class IndexSteps:
    """The steps of an index before and after the model's work."""

    choose_references: Callable[..., object]
    make_vectors: Callable[[Progress | None], None]
    contrast_rate: Callable[[str], float | None]


@dataclass(frozen=True)
class Submission:
    """The submitted batches: the number of requests by batch id.

    ``stopped`` is the reason why some requests were not sent, "" if all were.
    """

    batches: dict[str, int]
    stopped: str = ""
    next_cost: float = 0.0
    """USD that the next request can cost at most, if the budget ended the submission."""


@dataclass
class Summary:
    """What a run did, and the content of the query set afterwards."""

    spending: Spending
    documents: int = 0
    queries: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Queries and replies that were dropped, by reason."""
    answered: int = 0
    """Documents with a stored reply."""
    empty_replies: int = 0
    """Replies without any query."""
    contrast: float | None = None
    replaced: int = 0
    replaced_source: str = ""
    in_batches: int = 0
    refused: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON values."""
        counts = {name: value for name, value in vars(self).items() if name != "spending"}
        values = {**vars(self.spending), **counts}
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in values.items()}


class Generation:
    """One model's work on one query set of an index.

    ``into`` is the set that receives the queries, by default the one named like the style.
    ``limit`` plans for the first documents only, ``retry`` for requests that failed before. Lists
    that came from a file are kept unless ``replace`` is given: they cannot be restored.
    """

    def __init__(
        self,
        workspace: Workspace,
        steps: IndexSteps,
        lm: str | LM | Callable[[str], str],
        settings: GenerationSettings | None = None,
        *,
        into: str | None = None,
        limit: int | None = None,
        price: Price | None = None,
        retry: bool = False,
        replace: bool = False,
        **options: Any,
    ) -> None:
        settings = settings or GenerationSettings()
        self._workspace, self._steps = workspace, steps
        self._catalog = workspace.catalog
        self.name = into or settings.prompt.style
        check_set_name(self.name)
        existing_set = self._catalog.sets.all().get(self.name)
        if existing_set is not None and existing_set.settings["source"] == "file" and not replace:
            raise BadInput(
                f"the set {self.name!r} came from a file, and these queries would replace it: give "
                "them a set of their own (--set NAME; in Python into=NAME), or --replace it"
            )
        self.plan = Plan(
            self._catalog, load(lm, **options), settings, limit=limit, price=price, retry=retry
        )

    @property
    def lm(self) -> LM:
        """The model that writes the queries."""
        return self.plan.lm

    @property
    def style(self) -> str:
        """The kind of queries: contrastive, simple or negative."""
        return self.plan.settings.prompt.style

    def estimate(self, batch: bool = False) -> Estimate:
        """Return what the open requests would cost. Takes no lock, chooses no references."""
        return self.plan.estimate(batch)

    def lists(self) -> Iterator[QueryList]:
        """Yield the queries that the stored replies give for each document, and what was dropped.

        Takes no lock and changes nothing.
        """
        return self.plan.lists()

    def run(
        self,
        *,
        budget: float | None = None,
        again: bool = False,
        progress: Progress | None = None,
    ) -> Summary:
        """Send requests without a reply, store every reply, and embed the queries.

        Stops before ``budget`` (USD) could be exceeded. ``again`` sends requests even if a batch
        may be running whose submission was interrupted.
        """
        self.plan.calls.check_budget(budget)
        if not again:
            self._catalog.batches.check_no_lost_batch(self.lm.name, "--again")
        with self._writing(progress):
            try:
                with self._catalog.replies.reserved():
                    spending = self.plan.run(budget=budget, progress=progress)
            except ServiceError:  # for example no money left: paid replies are used
                self._store_lists(Spending(), progress)
                raise
            return self._store_lists(spending, progress)

    # -- batches --------------------------------------------------------------------------

    def submit(
        self,
        *,
        budget: float | None = None,
        again: bool = False,
        progress: Progress | None = None,
    ) -> Submission:
        """Send open requests to the vendor's batch service, at half the price within a day.

        Each batch is recorded as soon as the service has accepted it. ``again`` sends requests
        even if an earlier submission was interrupted.
        """
        self.plan.calls.check_budget(budget)
        recorded = self._catalog.batches
        if not again:
            recorded.check_no_lost_batch(self.lm.name, "--batch submit --again")
        service = open_batches(self.lm)
        spending = self.plan.calls.no_spending()
        sent: dict[str, tuple[str, int]] = {}
        submitted = {}
        with self._writing(progress):
            recorded.mark_sending(self.lm.name)
            try:
                for id, names in service.submit(
                    _recording_custom_ids(self._affordable(budget, spending), sent)
                ):
                    try:
                        batch_requests = {name: sent.pop(name) for name in names}
                        recorded.record(id, batch_requests, self.plan.calls.provenance)
                    except Exception as error:
                        raise MayHaveBegun(
                            f"batch {id} has begun and could not be recorded ({error}). When that "
                            "is repaired and the batch has ended, download its results: "
                            "--replies-in FILE"
                        ) from error
                    submitted[id] = len(names)
            except MayHaveBegun:
                raise  # sending the same requests again could be paid for twice
            except Exception:  # the service answered with an error: nothing is running
                recorded.mark_sending(None)
                raise
            recorded.mark_sending(None)
        return Submission(submitted, spending.stopped, spending.next_cost)

    def _affordable(
        self, budget: float | None, spending: Spending
    ) -> Iterator[tuple[Request, int]]:
        """Yield open requests until their worst-case cost would exceed the budget."""
        total = 0.0
        for request, number in self.plan.open_requests():
            if budget is not None:
                cost = self.plan.calls.worst_case_cost(request, batch=True)
                total += cost
                if total > budget:
                    spending.over_budget(budget, cost)
                    return
            yield request, number

    def status(self) -> list[Status]:
        """Return the state of the batches that have not been collected. Takes no lock."""
        ids = [batch.id for batch in self._catalog.batches.open_for(self.lm.name)]
        return open_batches(self.lm).status(ids)

    def collect(
        self, *, again: bool = False, progress: Progress | None = None
    ) -> tuple[Summary, list[Status]]:
        """Store the results of batches that have ended; return a summary and the running batches.

        Requests that failed or expired in a batch are open again. ``again`` gives up batches that
        the service does not know.
        """
        service, recorded = open_batches(self.lm), self._catalog.batches
        spending = self.plan.calls.no_spending()
        states = []
        with self._writing(progress):
            for batch in recorded.open_for(self.lm.name):
                try:
                    states += service.status([batch.id])
                except ServiceError as error:
                    if error.status != 404:
                        raise
                    # The service may have deleted an old batch, or it belongs to another account:
                    # only the user can decide to send, and pay for, the same requests again.
                    message = f"batch {batch.id} is not known there: {error}"
                    if again:
                        recorded.collected(batch.id)
                    else:
                        message += (
                            " (another key or address? If it is lost: --batch collect --again)"
                        )
                    spending.errors[message] += 1
            for state in states:
                if state.ended:
                    results = service.collect(state.id, recorded.names_in(state.id))
                    self._store_answers(results, spending, batch=True)
                    recorded.collected(state.id)
            summary = self._store_lists(spending, progress)
        return summary, [state for state in states if not state.ended]

    # -- files ----------------------------------------------------------------------------

    def write_requests(self, path: str | os.PathLike[str], progress: Progress | None = None) -> int:
        """Write the open requests to a file in the vendor's form; return how many."""
        sent: dict[str, tuple[str, int]] = {}
        with self._writing(progress):
            written = write_requests(
                path, _recording_custom_ids(self.plan.open_requests(), sent), self.lm
            )
            self._catalog.batches.record_file(sent, self.plan.calls.provenance)
        return written

    def read_replies(
        self, path: str | os.PathLike[str], progress: Progress | None = None
    ) -> Summary:
        """Store the replies in a file of either vendor's format, and embed the queries.

        If a line is malformed, no reply is stored.
        """
        spending = self.plan.calls.no_spending()
        with self._writing(progress):
            with self._catalog.writing(searchable=False):  # standard input can be read only once
                if self._store_answers(read_replies(path), spending, batch=False):
                    # These replies are of a batch that was not recorded.
                    self._catalog.batches.mark_sending(None)
            return self._store_lists(spending, progress)

    # -- storing --------------------------------------------------------------------------

    def _store_answers(
        self, answers: Iterable[Reply | Failure], spending: Spending, *, batch: bool
    ) -> bool:
        """Store answers by the custom ids of their requests, each with its own provenance.

        Returns whether some answer requests of this plan that are not recorded as sent.
        """
        answers = iter(answers)
        planned: dict[str, tuple[str, int, Provenance]] = {}
        unrecorded = False
        while group := list(islice(answers, _REPLIES_PER_COMMIT)):
            sent = self._catalog.batches.requests([answer.key for answer in group])
            if len(sent) < len({answer.key for answer in group}):
                planned = planned or {
                    custom_id(request.key): (request.key, task.number, self.plan.calls.provenance)
                    for task in self.plan.tasks()
                    for request in task.requests
                }
                unrecorded |= any(one.key in planned and one.key not in sent for one in group)
                sent = {**planned, **sent}
            stored_keys = self._catalog.replies.known(
                [sent[answer.key][0] for answer in group if answer.key in sent]
            )
            kept: dict[str, tuple[Reply | Failure, int, Provenance]] = {}
            for answer in group:
                if answer.key not in sent:
                    spending.unknown_replies += 1
                    continue
                key, number, provenance = sent[answer.key]
                earlier = kept.get(key)
                if key in stored_keys or (earlier and isinstance(earlier[0], Reply)):
                    continue  # it is stored already
                kept[key] = (replace(answer, key=key), number, provenance)
            by_provenance: dict[str, list[tuple[Reply | Failure, int, Provenance]]] = {}
            for entry in kept.values():
                by_provenance.setdefault(repr(entry[2]), []).append(entry)
            for entries in by_provenance.values():
                pairs = [(answer, number) for answer, number, _ in entries]
                self.plan.calls.keep(pairs, spending, batch=batch, provenance=entries[0][2])
        return unrecorded

    def _writing(self, progress: Progress | None) -> AbstractContextManager[None]:
        """Return the writer's lock; references are chosen first if the style needs them."""
        if self.plan.settings.needs_references:
            self._steps.choose_references(progress=progress)
        return self._workspace.writing()

    def _store_lists(self, spending: Spending, progress: Progress | None) -> Summary:
        """Build the query set from the stored replies, and embed it."""
        summary = Summary(spending)

        def query_lists() -> Iterator[tuple[int, list[str]]]:
            for query_list in self.plan.lists():
                summary.dropped.update(reason for reason, _ in query_list.dropped)
                summary.empty_replies += query_list.empty_replies
                summary.in_batches += len(self._catalog.batches.outstanding(query_list.missing))
                summary.refused += sum(self._catalog.replies.failed(query_list.missing).values())
                if query_list.replies:
                    summary.answered += 1
                    yield query_list.number, query_list.queries

        old_set = self._catalog.sets.all().get(self.name)
        summary.replaced_source = old_set.settings["source"] if old_set else ""
        summary.replaced = self._catalog.sets.store_generated(
            self.name, self._set_settings(), query_lists()
        )
        self._steps.make_vectors(progress)
        new_set = self._catalog.sets.all().get(self.name)
        if new_set is not None:  # there may be no query at all
            file = self._catalog.vectors.files()[new_set.set_id]
            summary.documents, summary.queries = file.lists, file.live
            summary.contrast = self._steps.contrast_rate(self.name)
        return summary

    def _set_settings(self) -> dict[str, Any]:
        """Return the source of the set, which the index stores."""
        return {
            "source": "lm", "kind": "query", "lm": self.lm.name,
            "options": self.plan.calls.keyed_options,
            "settings": self.plan.settings.to_json(),
        }  # fmt: skip


def _recording_custom_ids(
    requests: Iterable[tuple[Request, int]], sent: dict[str, tuple[str, int]]
) -> Iterator[Request]:
    """Yield requests; add the key and the document of each to ``sent``, by its custom id."""
    for request, number in requests:
        sent[custom_id(request.key)] = (request.key, number)
        yield request
