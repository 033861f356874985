"""The grid: every query method with every scoring method, on one dataset."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.engines.published import Published
from strop.errors import BadInput
from strop.evaluation.scoring import Report, Run, evaluate, select_queries, significance
from strop.expand.methods import QueryMethod
from strop.expand.refining import Refined
from strop.index import Index
from strop.io.datasets import read_dataset
from strop.lm.prices import Price
from strop.methods import Method
from strop.types import Dataset, Progress

NONE = "none"
"""The name for queries without refinement."""


@dataclass(frozen=True)
class Grid:
    """What ``evaluate_grid`` measured, by query method and scoring method.

    ``reports`` has the scoring methods side by side for each query method, tested against each
    other; ``p_values[query method][scoring method][measure]`` tests a query method against
    ``none`` under the same scoring method, corrected by Holm's method over the query methods. It
    is empty if ``none`` was not measured.
    """

    reports: Mapping[str, Report]
    steps: Mapping[str, QueryMethod | None]
    refined: Mapping[str, Refined]
    p_values: Mapping[str, Mapping[str, Mapping[str, float]]]

    @property
    def first(self) -> Report:
        """The first of the reports, for values that all have in common."""
        return next(iter(self.reports.values()))

    def runs(self) -> Iterator[tuple[str, Run]]:
        """Yield every ranking with its name."""
        for step, report in self.reports.items():
            for method, run in report.runs.items():
                yield method if step == NONE else f"{step}.{method}", run

    def to_json(self, per_query: bool = False) -> dict[str, Any]:
        """Return the figures as JSON values, without the runs."""
        common = self.first.to_json()
        return {
            **{name: common[name] for name in ("dataset", "queries", "baseline", "settings")},
            "judged_documents_missing": self.first.missing,
            "query_methods": {name: self._row(name, per_query) for name in self.reports},
        }

    def _row(self, name: str, per_query: bool) -> dict[str, Any]:
        report, step = self.reports[name], self.steps[name]
        row: dict[str, Any] = {"results": report.results, "p_values": report.p_values}
        if name in self.p_values:
            row["p_values_against_none"] = self.p_values[name]
        if step is not None:
            row["lm"] = {"name": step.model.name, "options": dict(step.model.options)}
            row["settings"] = step.to_json()
            row["expansion"] = self.refined[name].to_json()
        return {**row, **({"per_query": report.per_query} if per_query else {})}


def evaluate_grid(
    index: Index | Published,
    dataset: Dataset | str | os.PathLike[str],
    methods: Sequence[str | Method],
    expand: Mapping[str, QueryMethod | None],
    *,
    exclude: Sequence[str] = (),
    limit: int | None = None,
    ignore_same_id: bool = False,
    budget: float | None = None,
    price: Price | None = None,
    progress: Progress | None = None,
    **how: Any,
) -> Grid:
    """Score every method with every query method; None leaves the queries unchanged.

    ``budget`` (USD) is for all query methods together. ``how`` is passed to ``evaluate``.
    """
    if not expand:
        raise BadInput("no query method to evaluate was given")
    if not isinstance(dataset, Dataset):
        dataset = read_dataset(dataset)
    dataset = select_queries(dataset, exclude, limit)
    if any(expand.values()) and isinstance(index, Published):
        raise BadInput("a language model refines queries of an index folder, not of a copy")
    if any(expand.values()):  # report mistakes before anything is paid for
        evaluate(index, dataset, methods, limit=1, progress=progress, **how)
        for step in expand.values():
            if step is not None and hasattr(step, "first_pass"):
                index.method(step.first_pass)
    ids, texts = list(dataset.queries), list(dataset.queries.values())
    refined: dict[str, Refined] = {}
    reports: dict[str, Report] = {}
    for name, step in expand.items():
        query_vectors = None
        if step is not None and isinstance(index, Index):
            refined[name] = index.refine(
                texts, step, leave_out=ids if ignore_same_id else None, budget=budget,
                price=price, progress=progress,
            )  # fmt: skip
            query_vectors = refined[name].vectors
            if budget is not None:
                budget -= refined[name].spending.cost or 0.0
        reports[name] = evaluate(
            index, dataset, methods, ignore_same_id=ignore_same_id, query_vectors=query_vectors,
            progress=progress, **how,
        )  # fmt: skip
    return Grid(reports, dict(expand), refined, _against_none(reports))


def _against_none(reports: Mapping[str, Report]) -> dict[str, dict[str, dict[str, float]]]:
    p_values: dict[str, dict[str, dict[str, float]]] = {}
    if NONE not in reports:
        return p_values
    for method in reports[NONE].results:
        values = {name: report.per_query[method] for name, report in reports.items()}
        for name, tested in significance(values, NONE).items():
            p_values.setdefault(name, {})[method] = tested
    return p_values
