"""Generation by batch services, at half the price within a day, and by files of requests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from strop.errors import ServiceError
from strop.generate.asking import Spent
from strop.generate.generation import Generation
from strop.lm import Failure, Reply, Request
from strop.lm.batches import MayHaveBegun, Status, open_batches
from strop.lm.lines import Form, custom_id, read_replies, write_requests
from strop.storage.catalog import Catalog
from strop.storage.replies import Provenance

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
        self._plan.asking.check_budget(budget)
        if not again:
            self._catalog.batches.refuse_cut_off(self._plan.lm.name, "--batch submit --again")
        service = open_batches(self._plan.lm)
        meant: dict[str, tuple[str, int]] = {}
        stopped: list[str] = []
        batches = {}

        def requests() -> Iterator[Request]:
            dearest = 0.0
            for request, number in self._plan.waiting():
                if budget is not None:
                    dearest += self._plan.asking.dearest(request, batch=True)
                    if dearest > budget:
                        stopped.append(f"the budget of {budget:g} USD could be passed")
                        return
                meant[custom_id(request.key)] = (request.key, number)
                yield request

        self._catalog.batches.mark_sending(self._plan.lm.name)
        try:
            for batch in service.submit(requests()):
                sent = {name: meant.pop(name) for name in batch.custom_ids}
                provenance = self._plan.asking.provenance
                try:
                    self._catalog.batches.record(batch.id, sent, provenance)
                except Exception as error:
                    raise MayHaveBegun(
                        f"batch {batch.id} has begun and could not be written down ({error}). When "
                        f"that is mended: --batch collect --batch-id {batch.id}"
                    ) from error
                batches[batch.id] = len(sent)
        except MayHaveBegun:
            raise  # sending the same again could be paid for twice
        except Exception:
            # An error was answered: nothing is on its way.
            self._catalog.batches.mark_sending(None)
            raise
        self._catalog.batches.mark_sending(None)
        return Sent(batches, "".join(stopped))

    def status(self) -> list[Status]:
        """Ask how far the batches are that have not been collected."""
        known = self._catalog.batches.open_for(self._plan.lm.name)
        return open_batches(self._plan.lm).status([batch.id for batch in known])

    def collect(
        self, given: str | None = None, *, again: bool = False
    ) -> tuple[Spent, list[Status]]:
        """Keep what has come of batches that have ended; return it and those still running.

        What failed or expired there can be asked again. ``given`` is the id of a batch that was
        not written down. ``again`` gives up batches that the service does not know.
        """
        service = open_batches(self._plan.lm)
        spent = self._plan.asking.nothing_spent()
        known = self._catalog.batches.open_for(self._plan.lm.name)
        recorded = {batch.id for batch in known}
        states = []
        for id_ in [given] if given else [batch.id for batch in known]:
            try:
                states += service.status([id_])
            except ServiceError as error:
                if id_ not in recorded or "answered 404" not in str(error):
                    raise
                # Services forget batches after a while, but do not know those of another account
                # either: only the user can say whether to ask, and pay for, the same again.
                told = f"batch {id_} is not known there: {error}"
                if again:
                    self._catalog.batches.collected(id_)
                else:
                    told += " (another key or address? If it is lost: --batch collect --again)"
                spent.errors[told] += 1
        for state in states:
            if not state.ended:
                continue
            here = state.id in recorded
            if state.error and not here:
                raise ServiceError(f"batch {state.id} {state.state}: {state.error}")
            names = self._catalog.batches.names_in(state.id) if here else []
            answers = service.collect({state.id: names})
            take_answers(self._catalog, self._plan, answers, spent, batch=True)
            if here:
                self._catalog.batches.collected(state.id)
            else:
                self._catalog.batches.mark_sending(None)
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
    completion = bool(getattr(plan.lm, "completion", False))
    written = write_requests(path, requests(), model, form, extra=extra, completion=completion)
    catalog.batches.record_file(meant, plan.asking.provenance)
    return written


def read_reply_file(catalog: Catalog, plan: Generation, path: str | os.PathLike[str]) -> Spent:
    """Keep the replies in a file of either vendor's form; with a line of no form, none."""
    spent = plan.asking.nothing_spent()
    with catalog.writing(searchable=False):  # standard input can be read only once
        take_answers(catalog, plan, read_replies(path), spent, batch=False)
    return spent


def take_answers(
    catalog: Catalog,
    plan: Generation,
    answers: Iterable[Reply | Failure],
    spent: Spent,
    *,
    batch: bool,
) -> None:
    """Keep answers that go by the names of their requests, each with the provenance of its own."""
    answers = iter(answers)
    planned = None
    while part := list(islice(answers, _AT_ONCE)):
        meant = catalog.batches.requests([answer.key for answer in part])
        if len(meant) < len(part):
            planned = planned or {
                custom_id(request.key): (request.key, task.number, plan.asking.provenance)
                for task in plan.tasks()
                for request in task.requests
            }
            meant = {**planned, **meant}
        known = catalog.replies.known([meant[one.key][0] for one in part if one.key in meant])
        kept: dict[str, tuple[Reply | Failure, int, Provenance]] = {}
        for answer in part:
            if answer.key not in meant:
                spent.unknown += 1
                continue
            key, number, provenance = meant[answer.key]
            earlier = kept.get(key)
            if key in known or (earlier and isinstance(earlier[0], Reply)):
                continue  # it was kept before
            kept[key] = (replace(answer, key=key), number, provenance)
        by_source: dict[str, list[tuple[Reply | Failure, int, Provenance]]] = {}
        for one in kept.values():
            by_source.setdefault(repr(one[2]), []).append(one)
        for same in by_source.values():
            pairs = [(answer, number) for answer, number, _ in same]
            plan.asking.keep(pairs, spent, batch=batch, provenance=same[0][2])
