"""Requests that go to a batch service, at half the price within a day, or to a file.

Every submission is recorded, so that nothing is paid for twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from strop.errors import ServiceError
from strop.generate.calls import Spending
from strop.generate.plan import Plan
from strop.lm import Failure, Reply, Request
from strop.lm.batches import Batches, MayHaveBegun, Status, open_batches
from strop.lm.lines import custom_id, read_replies, write_requests
from strop.storage.catalog import Catalog
from strop.storage.replies import Provenance

_AT_ONCE = 500


@dataclass(frozen=True)
class Submission:
    """The batches sent, by id, with their numbers of requests; why not all, if not all."""

    batches: dict[str, int]
    stopped: str = ""
    next_cost: float = 0.0
    """USD that the next request can cost at most, if the budget ended the submission."""


def submit(catalog: Catalog, plan: Plan, service: Batches, budget: float | None) -> Submission:
    """Send open requests; each batch is recorded as soon as the service has taken it."""
    sent: dict[str, tuple[str, int]] = {}
    spending = plan.calls.no_spending()
    submitted = {}

    def affordable() -> Iterator[tuple[Request, int]]:
        total = 0.0
        for request, number in plan.open_requests():
            if budget is not None:
                cost = plan.calls.worst_case_cost(request, batch=True)
                total += cost
                if total > budget:
                    spending.over_budget(budget, cost)
                    return
            yield request, number

    catalog.batches.mark_sending(plan.lm.name)
    try:
        for batch in service.submit(_noted(affordable(), sent)):
            names = {name: sent.pop(name) for name in batch.custom_ids}
            try:
                catalog.batches.record(batch.id, names, plan.calls.provenance)
            except Exception as error:
                raise MayHaveBegun(
                    f"batch {batch.id} has begun and could not be recorded ({error}). When that is "
                    "repaired and the batch has ended, download its results: --replies-in FILE"
                ) from error
            submitted[batch.id] = len(names)
    except MayHaveBegun:
        raise  # sending the same again could be paid for twice
    except Exception:
        # The service answered with an error: nothing is running.
        catalog.batches.mark_sending(None)
        raise
    catalog.batches.mark_sending(None)
    return Submission(submitted, spending.stopped, spending.next_cost)


def collect(catalog: Catalog, plan: Plan, again: bool) -> tuple[Spending, list[Status]]:
    """Keep the results of batches that have ended; also return those still running.

    Requests that failed or expired there are open again.
    """
    service = open_batches(plan.lm)
    spending = plan.calls.no_spending()
    states = []
    for batch in catalog.batches.open_for(plan.lm.name):
        try:
            states += service.status([batch.id])
        except ServiceError as error:
            if error.status != 404:
                raise
            # Services forget batches after a while, but do not know those of another account
            # either: only the user can decide to send, and pay for, the same again.
            message = f"batch {batch.id} is not known there: {error}"
            if again:
                catalog.batches.collected(batch.id)
            else:
                message += " (another key or address? If it is lost: --batch collect --again)"
            spending.errors[message] += 1
    for state in states:
        if state.ended:
            names = catalog.batches.names_in(state.id)
            _keep(catalog, plan, service.collect(state.id, names), spending, batch=True)
            catalog.batches.collected(state.id)
    return spending, [state for state in states if not state.ended]


def write_request_file(catalog: Catalog, plan: Plan, path: str | os.PathLike[str]) -> int:
    """Write open requests as JSON lines in the vendor's form; return how many."""
    sent: dict[str, tuple[str, int]] = {}
    written = write_requests(path, _noted(plan.open_requests(), sent), plan.lm)
    catalog.batches.record_file(sent, plan.calls.provenance)
    return written


def _noted(
    requests: Iterable[tuple[Request, int]], sent: dict[str, tuple[str, int]]
) -> Iterator[Request]:
    """Yield requests; add the key and the document of each to ``sent``, by its custom id."""
    for request, number in requests:
        sent[custom_id(request.key)] = (request.key, number)
        yield request


def read_reply_file(catalog: Catalog, plan: Plan, path: str | os.PathLike[str]) -> Spending:
    """Keep the replies in a file of either vendor's form; with a malformed line, none."""
    spending = plan.calls.no_spending()
    with catalog.writing(searchable=False):  # standard input can be read only once
        if _keep(catalog, plan, read_replies(path), spending, batch=False):
            catalog.batches.mark_sending(None)  # these are of a batch that was not recorded
    return spending


def _keep(
    catalog: Catalog,
    plan: Plan,
    answers: Iterable[Reply | Failure],
    spending: Spending,
    *,
    batch: bool,
) -> bool:
    """Keep answers by the names of their requests, each with its own provenance.

    Returns whether some were for requests of this plan that are not recorded as sent.
    """
    answers = iter(answers)
    planned: dict[str, tuple[str, int, Provenance]] = {}
    unrecorded = False
    while part := list(islice(answers, _AT_ONCE)):
        sent = catalog.batches.requests([answer.key for answer in part])
        if len(sent) < len({answer.key for answer in part}):
            planned = planned or {
                custom_id(request.key): (request.key, task.number, plan.calls.provenance)
                for task in plan.tasks()
                for request in task.requests
            }
            unrecorded |= any(answer.key in planned and answer.key not in sent for answer in part)
            sent = {**planned, **sent}
        known = catalog.replies.known(
            [sent[answer.key][0] for answer in part if answer.key in sent]
        )
        kept: dict[str, tuple[Reply | Failure, int, Provenance]] = {}
        for answer in part:
            if answer.key not in sent:
                spending.unknown_replies += 1
                continue
            key, number, provenance = sent[answer.key]
            earlier = kept.get(key)
            if key in known or (earlier and isinstance(earlier[0], Reply)):
                continue  # it was kept before
            kept[key] = (replace(answer, key=key), number, provenance)
        by_source: dict[str, list[tuple[Reply | Failure, int, Provenance]]] = {}
        for entry in kept.values():
            by_source.setdefault(repr(entry[2]), []).append(entry)
        for same in by_source.values():
            pairs = [(answer, number) for answer, number, _ in same]
            plan.calls.keep(pairs, spending, batch=batch, provenance=same[0][2])
    return unrecorded
