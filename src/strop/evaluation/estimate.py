"""Evaluation without labels: stored queries are used as test queries.

Each query that was written for a document should find that document. Queries must not search an
index sharpened by their own set, or the best method is the one that finds copies. So the queries of
each generated set search an index that is sharpened by the other sets only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from strop.errors import BadInput
from strop.evaluation.scoring import MEASURES, Report, evaluate, report_of
from strop.index import Index
from strop.methods import Method
from strop.search.sampling import sample_queries
from strop.types import Dataset, Progress, Vectors

METHODS = ("trad", "bm25", "hybrid", "sharp")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class HeldOut:
    """Stored queries of one set, the documents they were written for, and the sets to search."""

    name: str
    ids: Sequence[str]
    texts: Sequence[str]
    vectors: Vectors
    mix: tuple[str, ...]


def held_out(index: Index, names: Sequence[str], mix: Sequence[str], limit: int) -> list[HeldOut]:
    """Return at most ``limit`` queries of each set, which search the other sets of ``mix``."""
    return [
        HeldOut(
            name,
            *sample_queries(index.searcher, name, limit),
            tuple(other for other in mix if other != name),
        )
        for name in names
    ]


def written_sets(index: Index) -> tuple[str, ...]:
    """Return the names of the query sets that can test others: all except sentences."""
    mixed = index.query_sets()
    sets = (set_ for set_ in index.sets if set_.source != "sentences")
    return tuple(set_.name for set_ in sets if set_.name in mixed)


def estimate(
    index: Index,
    methods: Sequence[str] = METHODS,
    *,
    measures: Sequence[str] = MEASURES,
    queries: int = 1000,
    progress: Progress | None = None,
    **settings: Any,
) -> Report:
    """Compare methods by at most ``queries`` stored queries of each generated set.

    A query has one relevant document, the one it was written for. So the values mean little,
    and gains are larger or smaller than users will see; docs/evaluation.md compares them with
    labels. Each method mixes its sets without the one whose queries search. ``settings`` as in
    ``evaluate``.
    """
    written, every = written_sets(index), index.query_sets()
    if not written or len(every) < 2:
        raise BadInput(
            f"{index.path}: an estimate needs two query sets, at least one of them generated or"
            " imported; name a dataset with labels, or add queries: strop queries --help"
        )
    reports = []
    for group in held_out(index, written, every, queries):
        if not group.ids:
            continue
        keys = [f"{group.name} {at}" for at in range(len(group.ids))]
        data = Dataset(
            f"stored queries: {', '.join(written)}",
            dict(zip(keys, group.texts, strict=True)),
            {key: {id_: 1} for key, id_ in zip(keys, group.ids, strict=True)},
        )
        chosen = [_without(index.method(spec, **settings), spec, group.mix) for spec in methods]
        reports.append(
            evaluate(
                index, data, chosen, measures=measures, query_vectors=group.vectors,
                progress=progress,
            )
        )  # fmt: skip
    if not reports:
        raise BadInput(f"{index.path} has no stored query yet: strop finish {index.path}")
    return _joined(reports)


def _without(method: Method, name: str, others: tuple[str, ...]) -> Method:
    """Return a method that mixes only sets of ``others``."""
    if method.augmented is not None:
        raise BadInput(f"{name} appends stored queries to the texts: it needs labelled queries")
    if method.sets is None:
        return replace(method, name=name, sets=others)
    sets = tuple(set_name for set_name in method.sets if set_name in others)
    if method.sets and not sets:
        raise BadInput(f"{name} mixes the set alone that would test it: it needs labelled queries")
    return replace(method, name=name, sets=sets)


def _joined(reports: Sequence[Report]) -> Report:
    """Join reports that compare the same methods on different queries."""
    first = reports[0]
    per_query = {
        name: {
            measure: _united(report.per_query[name][measure] for report in reports)
            for measure in first.measures
        }
        for name in first.results
    }
    runs = {name: _united(report.runs[name] for report in reports) for name in first.results}
    seconds = {name: sum(report.seconds[name] for report in reports) for name in first.results}
    return report_of(
        first.dataset, first.baseline, per_query, runs, seconds, first.settings, first.missing
    )


def _united(mappings: Iterable[Mapping[str, _Value]]) -> dict[str, _Value]:
    return {key: value for mapping in mappings for key, value in mapping.items()}
