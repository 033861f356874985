"""The queries that gained and lost most by a method, and the documents whose moves explain it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from strop.evaluation.scoring import Report
from strop.index import Index
from strop.search.explain import QueryContribution
from strop.types import Dataset

DEPTH = 50
"""Ranks after this one are not compared."""


@dataclass(frozen=True)
class Move:
    """A document whose rank changed; a rank of None is after the first 50.

    ``why`` are the stored queries that moved it most, ``words`` is what keyword matching added.
    """

    id: str
    relevant: bool
    before: int | None
    after: int | None
    why: tuple[QueryContribution, ...] = ()
    words: float = 0.0


@dataclass(frozen=True)
class Change:
    """A query, its value with the baseline and with the method, and the moves that explain it.

    For a query that gained, these are the relevant documents that rose most. For one that lost,
    the relevant document that fell most and the irrelevant one that rose most.
    """

    query: str
    text: str
    before: float
    after: float
    moves: tuple[Move, ...]


def largest_changes(
    index: Index, dataset: Dataset, report: Report, method: str, limit: int
) -> tuple[list[Change], list[Change]]:
    """Return up to ``limit`` queries that gained most, and that lost most, with explanations.

    Method and baseline are compared by the report's first measure.
    """
    measure = report.measures[0]
    before, after = (report.per_query[name][measure] for name in (report.baseline, method))
    order = sorted(before, key=lambda query: after[query] - before[query])
    lost = [query for query in order[:limit] if after[query] < before[query]]
    gained = [query for query in order[::-1][:limit] if after[query] > before[query]]

    def explained(query: str) -> Change:
        moves = tuple(_moves(index, dataset, report, method, query, after[query] > before[query]))
        values = 100 * before[query], 100 * after[query]
        return Change(query, dataset.queries[query], *values, moves)

    return [explained(query) for query in gained], [explained(query) for query in lost]


def _moves(
    index: Index, dataset: Dataset, report: Report, method: str, query: str, gained: bool
) -> Iterator[Move]:
    """Yield the moves that best explain a query's change, with their reasons."""
    old, new = (
        {id_: rank for rank, (id_, _) in enumerate(report.runs[name][query][:DEPTH], 1)}
        for name in (report.baseline, method)
    )
    grades, settings = dataset.qrels.get(query, {}), report.settings[method]

    def rise(id_: str) -> float:
        return 1 / new.get(id_, DEPTH + 1) - 1 / old.get(id_, DEPTH + 1)

    relevant = [id_ for id_, grade in grades.items() if grade > 0 and id_ in {**old, **new}]
    if gained:
        ids = sorted(relevant, key=rise, reverse=True)[:2]
    else:
        others = [id_ for id_ in list(new)[:10] if grades.get(id_, 0) <= 0]
        ids = sorted(relevant, key=rise)[:1] + sorted(others, key=rise, reverse=True)[:1]
    for id_ in ids:
        move = Move(id_, grades.get(id_, 0) > 0, old.get(id_), new.get(id_))
        if settings.weighting != "none" and settings.bm25 == "no":  # else there are no reasons
            explanation = index.explain(dataset.queries[query], id_, settings)
            top = tuple(explanation.queries[:3])
            move = replace(move, why=top, words=explanation.words)
        yield move
