"""Generation by batch services, at half the price within a day, and by files of requests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from strop import batch_store
from strop.asking import Spent
from strop.catalog import Catalog
from strop.errors import BadInput
from strop.generate import Generation
from strop.lm import Failure, Reply, Request, count_tokens
from strop.lm.batches import Status, open_batches
from strop.lm.lines import Form, custom_id, read_replies, write_requests
from strop.reply_store import known_replies

_AT_ONCE = 500


@dataclass(frozen=True)
class Sent:
    """What went out: batches by id with their numbers of requests; why not all, if not all."""

    batches: dict[str, int]
    stopped: str = ""


class BatchGeneration:
    """A plan's questions by way of a batch service. The index's writer lock must be held."""

    def __init__(self, catalog: Catalog, plan: Generation) -> None:
        self._catalog = catalog
        self._plan = plan

    def submit(self, *, budget: float | None = None, again: bool = False) -> Sent:
        """Send what is open; each batch is written down as soon as the service has taken it.

        ``again`` sends although an earlier submission was cut off on its way.
        """
        if budget is not None and self._plan.asking.price is None:
            raise BadInput(
                f"the price of {self._plan.lm.name} is not known, so a budget cannot be kept: "
                "give --price INPUT,OUTPUT in dollars per million tokens"
            )
        since = batch_store.cut_off_since(self._catalog)
        if since is not None and not again:
            raise BadInput(
                f"a batch was on its way when the program ended ({since}), and may be running: "
                "look at the service's list. If it is there: --batch collect --batch-id ID. If "
                "not: --batch submit --again"
            )
        service = open_batches(self._plan.lm)
        meant: dict[str, tuple[str, int]] = {}
        stopped: list[str] = []
        batches = {}

        def requests() -> Iterator[Request]:
            dearest = 0.0
            for request, number in self._plan.waiting():
                if budget is not None and self._plan.asking.price is not None:
                    given = count_tokens(request.prompt)
                    most = self._plan.asking.price.cost(given, request.max_tokens, batch=True)
                    dearest += most
                    if dearest > budget:
                        stopped.append(f"the budget of {budget:.2f} USD could be passed")
                        return
                meant[custom_id(request.key)] = (request.key, number)
                yield request

        batch_store.mark_sending(self._catalog, self._plan.lm.name)
        try:
            for batch in service.submit(requests()):
                sent = {name: meant.pop(name) for name in batch.custom_ids}
                provenance = self._plan.asking.provenance
                batch_store.record_sent(self._catalog, batch.id, sent, provenance)
                batches[batch.id] = len(sent)
        except Exception:
            # An error was answered: nothing is on its way, or the message says what may be.
            batch_store.mark_sending(self._catalog, None)
            raise
        batch_store.mark_sending(self._catalog, None)
        return Sent(batches, "".join(stopped))

    def status(self) -> list[Status]:
        """Ask how far the batches are that have not been collected."""
        known = batch_store.open_batches_of(self._catalog, self._plan.lm.name)
        return open_batches(self._plan.lm).status([batch.id for batch in known])

    def collect(self, given: str | None = None) -> tuple[Spent, list[Status]]:
        """Keep what has come of batches that have ended; return it and those still running.

        What failed or expired there can be asked again. ``given`` is the id of a batch that was
        not written down.
        """
        service = open_batches(self._plan.lm)
        spent = Spent(cost=None if self._plan.asking.price is None else 0.0)
        known = batch_store.open_batches_of(self._catalog, self._plan.lm.name)
        states = service.status([given] if given else [batch.id for batch in known])
        for state in states:
            if not state.ended:
                continue
            names = [] if given else batch_store.names_in(self._catalog, state.id)
            answers = service.collect({state.id: names})
            unknown = take_answers(self._catalog, self._plan, answers, spent, batch=True)
            if unknown:
                spent.errors[f"{unknown:,} results are of no question asked here"] += 1
            if given:
                batch_store.mark_sending(self._catalog, None)
            else:
                batch_store.collected(self._catalog, state.id)
        return spent, [state for state in states if not state.ended]


def write_request_file(catalog: Catalog, plan: Generation, path: str | os.PathLike[str]) -> int:
    """Write what is open as JSON lines in the vendor's form; how many."""
    form: Form = "anthropic" if plan.lm.name.startswith("anthropic:") else "openai"
    meant: dict[str, tuple[str, int]] = {}

    def requests() -> Iterator[Request]:
        for request, number in plan.waiting():
            meant[custom_id(request.key)] = (request.key, number)
            yield request

    model = plan.lm.name.partition(":")[2] or plan.lm.name
    extra = dict(getattr(plan.lm, "extra", {}))
    written = write_requests(path, requests(), model, form, extra=extra)
    batch_store.record_sent(catalog, batch_store.FILE, meant, plan.asking.provenance)
    return written


def read_reply_file(
    catalog: Catalog, plan: Generation, path: str | os.PathLike[str]
) -> tuple[Spent, int]:
    """Keep the replies in a file of either vendor's form; return them and how many are unknown."""
    spent = Spent(cost=None if plan.asking.price is None else 0.0)
    for _ in read_replies(path):  # all of it is read before any is kept: all or nothing
        pass
    return spent, take_answers(catalog, plan, read_replies(path), spent, batch=False)


def take_answers(
    catalog: Catalog,
    plan: Generation,
    answers: Iterable[Reply | Failure],
    spent: Spent,
    *,
    batch: bool,
) -> int:
    """Keep answers that go by the names of their requests; return how many were not asked here."""
    answers = iter(answers)
    unknown, planned = 0, None
    while part := list(islice(answers, _AT_ONCE)):
        meant = batch_store.meant_by(catalog, [answer.key for answer in part])
        if len(meant) < len(part):
            planned = planned or {
                custom_id(request.key): (request.key, task.number)
                for task in plan.tasks()
                for request in task.requests
            }
            meant = {**planned, **meant}
        known = known_replies(catalog, [meant[one.key][0] for one in part if one.key in meant])
        kept: list[tuple[Reply | Failure, int]] = []
        for answer in part:
            if answer.key not in meant:
                unknown += 1
                continue
            key, number = meant[answer.key]
            if key not in known:  # else it was kept before
                kept.append((replace(answer, key=key), number))
        plan.asking.keep(kept, spent, batch=batch)
    return unknown
