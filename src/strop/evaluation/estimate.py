"""Evaluation without labels: stored queries stand in for users'.

Each query that was written for a document should find that document. A set must not be searched by
its own queries, or the best method is the one that finds copies. So the queries of each generated
set search an index that is sharpened by the other sets alone.
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


def held_out(index: Index, names: Sequence[str], among: Sequence[str], most: int) -> list[HeldOut]:
    """Return at most so many queries of each set, to search the other sets of ``among``."""
    return [
        HeldOut(
            name,
            *sample_queries(index.searcher, name, most),
            tuple(other for other in among if other != name),
        )
        for name in names
    ]


def written_sets(index: Index) -> tuple[str, ...]:
    """Return the names of the query sets that can test others: all but sentences."""
    mixed = index.query_sets()
    return tuple(one.name for one in index.sets if one.source != "sentences" and one.name in mixed)


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
    and gains come out larger or smaller than users will see; docs/evaluation.md compares them with
    labels. Each method mixes its sets without the one whose queries search. ``settings`` as in
    ``evaluate``.
    """
    written, every = written_sets(index), index.query_sets()
    if not written or len(every) < 2:
        raise BadInput(
            f"{index.path} has no query set that could test another one: name a dataset with"
            " labels, or have queries written (strop queries --help)"
        )
    parts = []
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
        parts.append(
            evaluate(
                index, data, chosen, measures=measures, query_vectors=group.vectors,
                progress=progress,
            )
        )  # fmt: skip
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
    per_query = {
        name: {
            measure: _united(part.per_query[name][measure] for part in parts)
            for measure in first.measures
        }
        for name in first.results
    }
    runs = {name: _united(part.runs[name] for part in parts) for name in first.results}
    seconds = {name: sum(part.seconds[name] for part in parts) for name in first.results}
    return report_of(
        first.dataset, first.baseline, per_query, runs, seconds, first.settings, first.missing
    )


def _united(parts: Iterable[Mapping[str, _Value]]) -> dict[str, _Value]:
    return {key: value for part in parts for key, value in part.items()}
