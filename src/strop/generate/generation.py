"""Queries written by a language model for an index: estimate, run, batches, files of requests.

Every reply is committed as it comes. After any stop the same generation continues with the
missing replies. Methods that only read (estimate, status, lists) take no lock.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from strop.errors import BadInput, ServiceError
from strop.generate import batches
from strop.generate.calls import Spending
from strop.generate.plan import Estimate, GenerationSettings, Plan, QueryList
from strop.lm import LM, load
from strop.lm.batches import Status, open_batches
from strop.lm.prices import Price
from strop.storage.intake import check_set_name
from strop.storage.workspace import Workspace
from strop.types import Progress


@dataclass(frozen=True)
class IndexSteps:
    """The steps of an index before and after the model's work."""

    choose_references: Callable[..., object]
    make_vectors: Callable[[Progress | None], None]
    contrast_rate: Callable[[str], float | None]


@dataclass
class Summary:
    """What a run did, and what the set holds afterwards."""

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
        """Return all of it as JSON values."""
        own = {name: value for name, value in vars(self).items() if name != "spending"}
        values = {**vars(self.spending), **own}
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in values.items()}


class Generation:
    """One model's work on one query set of an index.

    ``into`` is the set the queries go to, by default that of the style. ``limit`` plans for the
    first documents only, ``retry`` for what failed before. Lists that came from a file are kept
    unless ``replace`` is given: they cannot be restored.
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
        known = self._catalog.sets.all().get(self.name)
        if known is not None and known.settings["source"] == "file" and not replace:
            raise BadInput(
                f"the set {self.name!r} came from a file, and these queries would replace it: give "
                "them a set of their own (--set NAME, into=), or --replace it"
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
        """Return what the requests still open would cost. Takes no lock, chooses no references."""
        return self.plan.estimate(batch)

    def lists(self) -> Iterator[QueryList]:
        """Yield the queries of each document as the stored replies give them, and what was dropped.

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
        """Send requests without a reply, keep every reply, and embed the queries.

        Stops before ``budget`` (USD) could be exceeded. ``again`` sends although a batch may be
        running whose submission was cut off.
        """
        self.plan.calls.check_budget(budget)
        if not again:
            self._catalog.batches.refuse_cut_off(self.lm.name, "--again")
        with self._writing(progress):
            try:
                with self._catalog.replies.reserved():
                    spending = self.plan.run(budget=budget, progress=progress)
            except ServiceError:  # such as no money left: replies that were paid for are used
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
    ) -> batches.Submission:
        """Send open requests to the vendor's batch service, at half the price within a day.

        ``again`` sends although an earlier submission was cut off.
        """
        self.plan.calls.check_budget(budget)
        if not again:
            self._catalog.batches.refuse_cut_off(self.lm.name, "--batch submit --again")
        service = open_batches(self.lm)
        with self._writing(progress):
            return batches.submit(self._catalog, self.plan, service, budget)

    def status(self) -> list[Status]:
        """Ask the service about the batches that have not been collected. Takes no lock."""
        ids = [batch.id for batch in self._catalog.batches.open_for(self.lm.name)]
        return open_batches(self.lm).status(ids)

    def collect(
        self, *, again: bool = False, progress: Progress | None = None
    ) -> tuple[Summary, list[Status]]:
        """Keep the results of batches that have ended; also return those still running.

        ``again`` gives up batches that the service does not know.
        """
        with self._writing(progress):
            spending, running = batches.collect(self._catalog, self.plan, again)
            return self._store_lists(spending, progress), running

    # -- files ----------------------------------------------------------------------------

    def write_requests(self, path: str | os.PathLike[str], progress: Progress | None = None) -> int:
        """Write the open requests to a file for any service; return how many."""
        with self._writing(progress):
            return batches.write_request_file(self._catalog, self.plan, path)

    def read_replies(
        self, path: str | os.PathLike[str], progress: Progress | None = None
    ) -> Summary:
        """Keep the replies in a file of either vendor's form, and embed the queries."""
        with self._writing(progress):
            spending = batches.read_reply_file(self._catalog, self.plan, path)
            return self._store_lists(spending, progress)

    # -- storing --------------------------------------------------------------------------

    def _writing(self, progress: Progress | None) -> AbstractContextManager[None]:
        """Hold the writer's lock; references are chosen first if the style needs them."""
        if self.plan.settings.needs_references:
            self._steps.choose_references(progress=progress)
        return self._workspace.writing()

    def _store_lists(self, spending: Spending, progress: Progress | None) -> Summary:
        """Make the set from the stored replies, and embed it."""
        summary = Summary(spending)

        def answered() -> Iterator[tuple[int, list[str]]]:
            for answers in self.plan.lists():
                summary.dropped.update(reason for reason, _ in answers.dropped)
                summary.empty_replies += answers.empty_replies
                summary.in_batches += len(self._catalog.batches.outstanding(answers.missing))
                summary.refused += sum(self._catalog.replies.failed(answers.missing).values())
                if answers.replies:
                    summary.answered += 1
                    yield answers.number, answers.queries

        known = self._catalog.sets.all().get(self.name)
        summary.replaced_source = known.settings["source"] if known else ""
        summary.replaced = self._catalog.sets.store_generated(
            self.name, self._set_settings(), answered()
        )
        self._steps.make_vectors(progress)
        stored = self._catalog.sets.all().get(self.name)
        if stored is not None:  # there may be no query at all
            file = self._catalog.vectors.files()[stored.set_id]
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
