"""Scoring: several methods side by side on one dataset, with significance."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats
from strop.common.text import counted
from strop.engines.published import Published
from strop.errors import BadInput
from strop.index import Index
from strop.io.datasets import read_dataset
from strop.methods import Method
from strop.search.reranking import (
    FIELDS,
    RERANKED,
    Reranker,
    load_reranker,
    reranked,
    split_rerank,
)
from strop.types import Dataset, Progress, Vectors

MEASURES = ("nDCG@10", "R@50", "AP@50")
_DEEPEST = 1000
"""Search depth for a measure without a cut-off."""
_SMALLEST = np.float32(1e-30)
_DRAWS = 2000
"""Samples of the bootstrap."""

Run = Mapping[str, Sequence[tuple[str, float]]]


@dataclass(frozen=True)
class Report:
    """What ``evaluate`` measured; values are between 0 and 1.

    ``p_values`` are of two-sided paired t-tests against ``baseline``, corrected by Holm's
    method over the methods compared in the same measure. ``runs`` are the rankings, without ties.
    ``gated`` is the same report without the generated queries whose cosine to a test query is
    ``leak_gate`` or more; ``left_out`` counts these by set.
    """

    dataset: str
    queries: int
    measures: tuple[str, ...]
    baseline: str
    results: Mapping[str, Mapping[str, float]]
    per_query: Mapping[str, Mapping[str, Mapping[str, float]]]
    p_values: Mapping[str, Mapping[str, float]]
    runs: Mapping[str, Run]
    seconds: Mapping[str, float]
    settings: Mapping[str, Method]
    missing: int
    leak_gate: float | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    gated: Report | None = None

    def to_json(self, per_query: bool = False) -> dict[str, Any]:
        """Return the figures as JSON values, without the runs."""
        report = {
            "dataset": self.dataset,
            "queries": self.queries,
            "results": self.results,
            "baseline": self.baseline,
            "p_values": self.p_values,
            "seconds": self.seconds,
            "settings": {name: _settings(method) for name, method in self.settings.items()},
            "judged_documents_missing": self.missing,
            **({"per_query": self.per_query} if per_query else {}),
        }
        if self.gated is None:
            return report
        gated = self.gated.to_json(per_query).items()
        values = {key: value for key, value in gated if key in ("results", "p_values", "per_query")}
        gate = {"cosine": self.leak_gate, "left_out": self.left_out}
        return {**report, "leak_gate": gate | values}

    def gain(self, method: str, measure: str | None = None) -> tuple[float, float, float]:
        """Return a method's gain over the baseline and its 95% interval, in percentage points."""
        measure = measure or self.measures[0]
        values, base = (self.per_query[name][measure] for name in (method, self.baseline))
        gains = np.array([values[query] - base[query] for query in base])
        return 100 * float(gains.mean()), *bootstrap_interval(gains)

    @property
    def compared(self) -> list[str]:
        """The methods that are compared with the baseline."""
        return [name for name in self.results if name != self.baseline]

    def conclusion(self, method: str) -> str:
        """Return a sentence on whether a method beats the baseline, and how certain that is."""
        mean, low, high = self.gain(method)
        verdict = f"{method} and {self.baseline} do not differ clearly here"
        if low > 0 or high < 0:
            verdict = f"{method} ranks {'better' if low > 0 else 'worse'} than {self.baseline} here"
        return (
            f"{verdict}: {self.measures[0]} {mean:+.1f} points (95% interval {low:+.1f} to"
            f" {high:+.1f}, {counted(self.queries, 'query')})."
        )


def bootstrap_interval(gains: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the mean, in percent."""
    rng, size = np.random.default_rng(0), len(gains)
    at_once = max(1, 10_000 // max(1, size))  # draws at a time, for the processor's cache
    batches = (min(at_once, _DRAWS - at) for at in range(0, _DRAWS, at_once))
    means = [gains[rng.integers(0, size, (draws, size))].mean(axis=1) for draws in batches]
    low, high = np.percentile(100 * np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def evaluate(
    index: Index | Published,
    dataset: Dataset | str | os.PathLike[str],
    methods: Sequence[str | Method] = ("trad", "sharp"),
    *,
    measures: Sequence[str] = MEASURES,
    exclude: Sequence[str] = (),
    limit: int | None = None,
    ignore_same_id: bool = False,
    query_vectors: Vectors | None = None,
    baseline: str | None = None,
    leak_gate: float | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Report:
    """Score methods on a dataset (or its folder); the first is the baseline unless one is named.

    ``exclude`` drops queries by id, ``limit`` keeps the first of the others. ``ignore_same_id``
    leaves out a document whose id equals the query's, as in ArguAna, where each query is itself a
    document. ``query_vectors`` (n, dim) replace the queries' own vectors. ``settings`` such as
    ``alpha`` are for methods whose spec does not set them. With a ``leak_gate`` everything is
    scored again without the generated queries whose cosine to any test query is at least that. A
    published copy is searched as its users search it; an index folder exactly.
    ``rerank:of=sharp:model=NAME`` re-ranks the best 50 of a method by a cross-encoder.
    """
    if leak_gate is not None and not 0 < leak_gate <= 1:
        raise BadInput(f"the leak gate is a cosine above 0 and up to 1, not {leak_gate}")
    if not isinstance(dataset, Dataset):
        dataset = read_dataset(dataset)
    dataset = select_queries(dataset, exclude, limit)
    parsed = _parse_measures(measures)
    chosen, rerankers = _resolved_methods(index, methods, settings)
    baseline = baseline or next(iter(chosen))
    if baseline not in chosen:
        raise BadInput(f"baseline {baseline!r} is not one of: {', '.join(chosen)}")
    missing = _judged_but_missing(index, dataset)
    if isinstance(index, Published) and leak_gate is not None:
        raise BadInput("a leak gate needs the index folder, not a published copy")
    for method in chosen.values():
        if method.augmented is not None and isinstance(index, Index):
            index.augment(method.augmented, progress)
    vectors = query_vectors
    if vectors is None:
        vectors = index.embed_queries(list(dataset.queries.values()))
    ignored = {query: {*dataset.excluded.get(query, ())} for query in dataset.queries}
    if ignore_same_id:
        ignored = {query: {*ids, query} for query, ids in ignored.items()}
    depth = max(measure.params.get("cutoff") or _DEEPEST for measure in parsed.values())

    def score(view: Index | Published, note: str) -> Report:
        runs: dict[str, Run] = {}
        seconds: dict[str, float] = {}
        for at, (name, method) in enumerate(chosen.items(), 1):
            began = time.perf_counter()
            runs[name] = _run(view, dataset, method, vectors, ignored, depth, rerankers.get(name))
            seconds[name] = time.perf_counter() - began
            if progress is not None:
                progress(f"scoring methods{note}", at, len(chosen))
        per_query = {name: _values(parsed, dataset, run) for name, run in runs.items()}
        return report_of(dataset.name, baseline, per_query, runs, seconds, chosen, missing)

    report = score(index, "")
    if leak_gate is None or isinstance(index, Published):
        return report
    view, left_out = index.without_leaks(vectors, leak_gate)
    gated = score(view, " without leaks")
    return replace(report, leak_gate=leak_gate, left_out=left_out, gated=gated)


def report_of(
    dataset: str,
    baseline: str,
    per_query: Mapping[str, Mapping[str, Mapping[str, float]]],
    runs: Mapping[str, Run],
    seconds: Mapping[str, float],
    settings: Mapping[str, Method],
    missing: int,
) -> Report:
    """Return a report with the means and the p-values of the values per query."""
    results = {
        name: {measure: float(np.mean([*values.values()])) for measure, values in measured.items()}
        for name, measured in per_query.items()
    }
    return Report(
        dataset, len(runs[baseline]), tuple(per_query[baseline]), baseline, results, per_query,
        significance(per_query, baseline), runs, seconds, settings, missing,
    )  # fmt: skip


def _resolved_methods(
    index: Index | Published, methods: Sequence[str | Method], settings: Mapping[str, Any]
) -> tuple[dict[str, Method], dict[str, Reranker]]:
    """Return the methods by name, with the settings of this index, and their rerankers."""
    chosen, rerankers = {}, {}
    for spec in methods:
        if isinstance(spec, Method):
            chosen[spec.name] = index.method(spec)
        elif spec.startswith("rerank:"):
            first, model = split_rerank(spec)
            chosen[spec] = index.method(first, **settings)
            rerankers[spec] = load_reranker(model)
        else:
            chosen[spec] = index.method(spec, **settings)
    if not chosen:
        raise BadInput("no method to evaluate was given")
    if len(chosen) < len(methods):
        raise BadInput("two methods have the same name: give each its own")
    return chosen, rerankers


def _run(
    index: Index | Published,
    dataset: Dataset,
    method: Method,
    vectors: Vectors,
    ignored: Mapping[str, Set[str]],
    depth: int,
    reranker: Reranker | None = None,
) -> Run:
    """Search all queries; return the best ``depth`` documents of each, best first."""
    texts, deeper = list(dataset.queries.values()), depth + max(map(len, ignored.values()))
    k, fields = (deeper, ()) if reranker is None else (max(deeper, RERANKED), FIELDS)
    exact = isinstance(index, Index)
    hits = index.search(texts, k, method, vectors=vectors, exact=exact, fields=fields)
    if reranker is not None:
        hits = reranked(hits, texts, reranker, deeper)
    run = {}
    for query, ids, scores in zip(dataset.queries, hits.ids, hits.scores, strict=True):
        pairs = [
            (id_, score) for id_, score in zip(ids.tolist(), decreasing(scores), strict=True)
            if id_ not in ignored[query]
        ]  # fmt: skip
        run[query] = pairs[:depth]
    return run


def decreasing(scores: Sequence[float] | Floats) -> list[float]:
    """Return scores, best first, lowered as little as possible so that each is below the previous.

    trec_eval orders documents by their scores as 32-bit floats, and of equal scores it puts the
    larger id first. Without ties it keeps the order of the search.
    """
    lowered: list[float] = []
    previous = np.float32(np.inf)
    for score in np.asarray(scores, np.float32):
        if not score < previous:
            # Near 0 the next float is so small that some processors treat it as 0.
            score = min(np.nextafter(previous, np.float32(-np.inf)), previous - _SMALLEST)
        lowered.append(float(score))
        previous = score
    return lowered


def select_queries(
    dataset: Dataset, exclude: Sequence[str] = (), limit: int | None = None
) -> Dataset:
    """Return a dataset without the queries named, and with the first ``limit`` of the others."""
    if limit is not None and limit < 1:
        raise BadInput(f"limit must be 1 or more, not {limit}")
    unknown = [id_ for id_ in exclude if id_ not in dataset.queries]
    if unknown:
        raise BadInput(f"query {unknown[0]!r} cannot be excluded: {dataset.name} has no such query")
    kept = [id_ for id_ in dataset.queries if id_ not in set(exclude)][:limit]
    queries = {id_: dataset.queries[id_] for id_ in kept}
    if not queries:
        raise BadInput(f"{dataset.name} has no test queries left to score")
    return replace(dataset, queries=queries)


def _parse_measures(names: Sequence[str]) -> dict[str, Any]:
    import ir_measures

    parsed = {}
    for name in names:
        try:
            measure = ir_measures.parse_measure(name)
        except (ValueError, NameError, SyntaxError, TypeError, KeyError) as error:
            raise BadInput(
                f"no measure {name!r}: write them like {', '.join(MEASURES)}, P@5, RR@10, Success@1"
            ) from error
        if measure.params.get("cutoff", 1) < 1:  # trec_eval would end the process
            raise BadInput(f"measure {name!r} looks at no document: its cut-off must be 1 or more")
        parsed[name] = measure
    if not parsed:
        raise BadInput("no measure was given")
    return parsed


def _judged_but_missing(index: Index | Published, dataset: Dataset) -> int:
    relevant = {
        id_
        for query in dataset.queries
        for id_, grade in dataset.qrels.get(query, {}).items()
        if grade > 0
    }
    missing = index.unknown(relevant)
    if relevant and len(missing) == len(relevant):
        raise BadInput(
            f"none of the {len(relevant):,} relevant documents of {dataset.name} is in "
            f"{index.path} (first: {min(missing)!r}): is it the index of another corpus?"
        )
    return len(missing)


def _values(parsed: Mapping[str, Any], dataset: Dataset, run: Run) -> dict[str, dict[str, float]]:
    """Return {measure: {query: value}}; a query without a value scores zero."""
    import ir_measures

    names: dict[str, list[str]] = {}
    for name, measure in parsed.items():  # AP@50 and MAP@50 are one measure
        names.setdefault(str(measure), []).append(name)
    values = {name: dict.fromkeys(dataset.queries, 0.0) for name in parsed}
    qrels = {query: dict(dataset.qrels.get(query, {})) for query in dataset.queries}
    scores = {query: dict(pairs) for query, pairs in run.items()}
    try:
        for result in ir_measures.iter_calc(list(parsed.values()), qrels, scores):
            for name in names[str(result.measure)]:
                values[name][result.query_id] = float(result.value)
    except Exception as error:  # a measure whose tool is not installed
        raise BadInput(f"cannot compute {', '.join(parsed)}: {error}") from error
    return values


def significance(
    per_query: Mapping[str, Mapping[str, Mapping[str, float]]], baseline: str
) -> dict[str, dict[str, float]]:
    """Return p-values of ``per_query[name][measure][query]`` against one of the names."""
    from scipy.stats import ttest_rel

    others = [name for name in per_query if name != baseline]
    p_values: dict[str, dict[str, float]] = {name: {} for name in others}
    for measure, base in per_query[baseline].items():
        raw = {}
        for name in others:
            pairs = np.array([(per_query[name][measure][query], base[query]) for query in base])
            if len(pairs) < 2 or np.ptp(pairs[:, 0] - pairs[:, 1]) == 0:
                raw[name] = 1.0  # no spread, no test
            else:
                raw[name] = float(ttest_rel(pairs[:, 0], pairs[:, 1]).pvalue)
        for name, p_value in holm(raw).items():
            p_values[name][measure] = p_value
    return p_values


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values for several comparisons (Holm's step-down method)."""
    corrected, largest = {}, 0.0
    for at, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - at) * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


def _settings(method: Method) -> dict[str, Any]:
    """Return a method's settings as JSON, which has no infinity."""
    settings: dict[str, Any] = {"bm25": method.bm25} if method.bm25 != "no" else {}
    settings |= {"words": method.words} if method.words else {}
    if method.weighting == "none":
        return settings | ({"augmented": method.augmented} if method.augmented else {})
    temperature = "inf" if math.isinf(method.temperature) else method.temperature
    settings |= {"sets": method.sets or "all", "n": method.n}
    settings |= {"feedback": method.feedback} if method.feedback else {}
    if method.weighting == "softmax":
        settings |= {"alpha": method.alpha, "temperature": temperature}
    return settings
