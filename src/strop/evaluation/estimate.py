"""Evaluation without labels: stored queries stand in for users'.

Each query that was written for a document should find that document. A set must not be searched by
its own queries, or the best method is the one that finds copies. So the queries of each generated
set search an index that is sharpened by the other sets alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strop.errors import BadInput
from strop.evaluation.scoring import MEASURES, Report, evaluate, mean_values, significance
from strop.index import Index
from strop.methods import Method
from strop.search.sampling import sample_queries
from strop.types import Dataset, Progress

METHODS = ("trad", "bm25", "hybrid", "sharp")


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

    A query has one right document, the one it was written for. So the values themselves say little,
    and gains come out larger or smaller than users will see; docs/tuning.md compares them with
    labels. Each method mixes its sets without the one whose queries search. ``settings`` as in
    ``evaluate``.
    """
    every = index.query_sets()
    written = [one.name for one in index.sets if one.source != "sentences" and one.name in every]
    if not written or len(every) < 2:
        raise BadInput(
            f"{index.path} has no query set that could test another one: name a dataset with"
            " labels, or have queries written (strop queries --help)"
        )
    parts = []
    for name in written:
        others = tuple(one for one in every if one != name)
        ids, texts, vectors = sample_queries(index.searcher, name, queries)
        if not ids:
            continue
        keys = [f"{name} {at}" for at in range(len(ids))]
        data = Dataset(
            f"stored queries: {', '.join(written)}",
            dict(zip(keys, texts, strict=True)),
            {key: {id_: 1} for key, id_ in zip(keys, ids, strict=True)},
        )
        chosen = [_without(index.method(spec, **settings), spec, others) for spec in methods]
        parts.append(
            evaluate(
                index, data, chosen, measures=measures, query_vectors=vectors, progress=progress
            )
        )
    if not parts:
        raise BadInput(f"{index.path} has no stored query yet: strop finish {index.path}")
    return _joined(parts)


def _without(method: Method, name: str, others: tuple[str, ...]) -> Method:
    """Return a method that mixes only what may be mixed."""
    if method.augmented is not None:
        raise BadInput(f"{name} appends stored queries to the texts: it needs labelled queries")
    if method.sets is None:
        return replace(method, name=name, sets=others)
    sets = tuple(one for one in method.sets if one in others)
    if method.sets and not sets:
        raise BadInput(f"{name} mixes the set alone that would test it: it needs labelled queries")
    return replace(method, name=name, sets=sets)


def _joined(parts: Sequence[Report]) -> Report:
    """Return one report of several that compare the same methods on different queries."""
    first = parts[0]
    per_query: dict[str, dict[str, dict[str, float]]] = {
        name: {measure: {} for measure in first.measures} for name in first.results
    }
    runs: dict[str, dict[str, Any]] = {name: {} for name in first.results}
    for part in parts:
        for name, values in part.per_query.items():
            runs[name].update(part.runs[name])
            for measure, of in values.items():
                per_query[name][measure].update(of)
    return replace(
        first,
        queries=sum(part.queries for part in parts),
        results=mean_values(per_query),
        per_query=per_query,
        p_values=significance(per_query, first.baseline),
        runs=runs,
        seconds={name: sum(part.seconds[name] for part in parts) for name in runs},
    )
