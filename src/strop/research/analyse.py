"""Analyses of settings: sweeps, each query set alone, boost against perplexity."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints
from strop.errors import BadInput
from strop.evaluation.scoring import evaluate
from strop.index import Index
from strop.io.files import atomic_write
from strop.methods import METHODS, Method
from strop.research.perplexity import PerplexitySettings, perplexities
from strop.types import Dataset, Hits, Progress, Vectors

Doubles = NDArray[np.float64]
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
NUMBERS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50)
SWEPT = ("alpha", "temperature", "n", "sets")
"""The settings that can be varied."""
_TOP_DOCUMENTS = 100
_RESAMPLES = 1000
_QUERIES_PER_SEARCH = 16


@dataclass(frozen=True)
class Point:
    """Mean over queries at one setting, its change against plain search, 95% limits of the change.

    All values are in percent. ``fixed`` names the curve, ``x`` is the varied setting: a number, or
    the name of the query set that is used alone.
    """

    fixed: str
    x: float | str
    value: float
    change: float
    low: float
    high: float


@dataclass(frozen=True)
class Sweep:
    """One setting varied; ``plain`` is the value of plain search.

    ``in_use`` is the index's value of that setting, None if it has none; the curve at the
    index's other settings comes first.
    """

    what: str
    measure: str
    dataset: str
    queries: int
    plain: float
    points: tuple[Point, ...]
    in_use: float | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return the points as rows of a table."""
        values = ("value", "change", "low", "high")
        return [
            {"fixed": point.fixed, self.what: point.x}
            | {name: round(getattr(point, name), 4) for name in values}
            for point in self.points
        ]

    def summary(self) -> str:
        """Return the best point as a line of text."""
        best = max(self.points, key=lambda point: point.value)
        at = f"{self.what} {best.x}, {best.fixed}"
        return f"best {best.value:.2f} ({at}); plain {self.plain:.2f}"


def sweep(
    index: Index,
    dataset: Dataset,
    what: str,
    *,
    sets: Sequence[str] = (),
    measure: str = "nDCG@10",
    ignore_same_id: bool = False,
    progress: Progress | None = None,
) -> Sweep:
    """Vary alpha, temperature or n, or use each query set alone, at two fixed settings.

    The first is the index's own, the second the paper's, or another value if the index uses that
    one. To compare generators, import the file of each as a separate set.
    """
    if what not in SWEPT:
        raise BadInput(f"{what!r} cannot be swept: choose from {', '.join(SWEPT)}")
    index_method = index.method("sharp")
    set_names = tuple(sets or (what != "sets" and index_method.sets) or index.query_sets())
    base = replace(index_method, sets=set_names)
    methods: dict[tuple[str, Any], Method] = {}
    in_use = {"alpha": base.alpha, "temperature": base.temperature, "n": base.n}.get(what)
    for label, fixed in _fixed(what, base).items():
        for x in _values(index, what, set_names, in_use):
            settings: dict[str, Any] = {**fixed, what: (x,) if what == "sets" else x}
            methods[label, x] = replace(base, name=f"{label} {x}", **settings)
    report = evaluate(
        index, dataset, [METHODS["trad"], *methods.values()], measures=[measure],
        ignore_same_id=ignore_same_id, progress=progress,
    )  # fmt: skip
    per_query = {
        name: np.array(list(scores[measure].values())) for name, scores in report.per_query.items()
    }
    points = tuple(
        _point(label, x, per_query[method.name], per_query["trad"])
        for (label, x), method in methods.items()
    )
    plain = 100 * report.results["trad"][measure]
    return Sweep(what, measure, report.dataset, report.queries, plain, points, in_use)


def _fixed(what: str, base: Method) -> dict[str, dict[str, Any]]:
    """Return the fixed setting of each curve: the index's value, and another to compare with.

    For alpha that is 1, or 2 if the index has 1; for the temperature 1 (the paper's), or 0.1.
    """
    if what == "temperature":
        other_alpha = 1.0 if base.alpha != 1.0 else 2.0
        return {f"α = {alpha:g}": {"alpha": alpha} for alpha in (base.alpha, other_alpha)}
    own_temperature = base.temperature
    return {
        f"T = {T:g}": {"temperature": T}
        for T in (own_temperature, 1.0 if own_temperature != 1.0 else 0.1)
    }


def _values(index: Index, what: str, sets: Sequence[str], in_use: float | None) -> Sequence[Any]:
    if what == "n":
        longest = max(
            (len(texts) for name in sets for _, texts in index.query_lists(name)), default=1
        )
        return [*(n for n in NUMBERS if n < longest), longest]
    if what == "sets":
        return sets
    grid = ALPHAS if what == "alpha" else TEMPERATURES
    return sorted({*grid, *([in_use] if in_use and math.isfinite(in_use) else [])})


def _point(fixed: str, x: Any, values: Doubles, plain: Doubles) -> Point:
    change = 100 * (values - plain)
    mean = float(change.mean())
    error = 1.96 * float(change.std(ddof=1)) / math.sqrt(len(change)) if len(change) > 1 else 0.0
    return Point(fixed, x, 100 * float(values.mean()), mean, mean - error, mean + error)


# -- boost against perplexity -----------------------------------------------------------------


@dataclass(frozen=True)
class Correlation:
    """The correlation of perplexity and boost, over pairs of a query and a document of its hits.

    ``pearson`` is over all pairs; ``low`` and ``high`` are its 95% limits, by resampling documents.
    ``log_pearson`` is of the logarithm of the perplexity, which a few broken texts do not
    dominate. ``per_query`` is the mean of the correlations within each query.
    """

    pearson: float
    low: float
    high: float
    log_pearson: float
    per_query: float
    pairs: int
    queries: int
    documents: int
    of_documents: int
    lm: str
    max_tokens: int
    perplexity: tuple[float, ...]
    boost: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without the pairs."""
        values = asdict(self)
        del values["perplexity"], values["boost"]
        return values

    def summary(self) -> str:
        """Return the correlation as a line of text."""
        limits = f"95% limits {self.low:+.4f} to {self.high:+.4f}"
        documents = f"{self.documents:,} of {self.of_documents:,} documents"
        return f"Pearson {self.pearson:+.4f} ({limits}), {self.pairs:,} pairs, {documents}"

    def rows(self) -> list[dict[str, float]]:
        """Return the pairs as rows of a table."""
        return [
            {"perplexity": x, "boost": y} for x, y in zip(self.perplexity, self.boost, strict=True)
        ]


def boost_against_perplexity(
    index: Index,
    dataset: Dataset,
    method: str | Method,
    settings: PerplexitySettings,
    *,
    top: int = _TOP_DOCUMENTS,
    progress: Progress | None = None,
) -> Correlation:
    """Correlate, over each query's ``top`` documents, perplexity and cosine(q,d*) - cosine(q,d).

    The documents are those of plain search. The model reads a sample of ``settings.documents`` of
    them; pairs with other documents are left out.
    """
    chosen = index.method(method)
    if chosen.weighting != "softmax":
        raise BadInput(f"{chosen.name} has no d*: boost needs a method such as consharp or sharp")
    query_vectors = index.embed_queries(list(dataset.queries.values()))
    hits = index.search(query_vectors, min(top, len(index)), "trad", fields=())
    retrieved = sorted(set(hits.ids.ravel().tolist()))
    sample = retrieved
    if settings.documents < len(retrieved):
        rng = np.random.default_rng(settings.seed)
        drawn = rng.choice(len(retrieved), settings.documents, replace=False)
        sample = [retrieved[at] for at in sorted(drawn)]
    values = perplexities([index.get(id_).content for id_ in sample], settings, progress)
    number = {id_: at for at, id_ in enumerate(sample) if math.isfinite(values[at])}
    queries, documents, boosts = _boosts(index, query_vectors, hits, chosen, number)
    x = np.array(values)[documents]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(boosts) == 0:
        raise BadInput("too few documents to correlate: take a larger sample")
    low, high = _limits(x, boosts, documents, settings.seed)
    of_query = (queries == query for query in range(len(query_vectors)))
    within = [_pearson(x[pairs], boosts[pairs]) for pairs in of_query if pairs.sum() > 2]
    return Correlation(
        _pearson(x, boosts), low, high, _pearson(np.log(x), boosts),
        float(np.nanmean(within)) if within else math.nan, len(x), len(query_vectors),
        len(sample), len(retrieved), settings.lm, settings.max_tokens, tuple(x.tolist()),
        tuple(boosts.tolist()),
    )  # fmt: skip


def _boosts(
    index: Index, query_vectors: Vectors, hits: Hits, method: Method, number: Mapping[str, int]
) -> tuple[Ints, Ints, Doubles]:
    """Return query, document number and boost of each hit whose document has a number."""
    rows: list[tuple[int, int, float]] = []
    for query, (ids, scores) in enumerate(zip(hits.ids, hits.scores, strict=True)):
        if query % _QUERIES_PER_SEARCH == 0:  # every document's score for a few queries at a time
            query_batch = query_vectors[query : query + _QUERIES_PER_SEARCH]
            sharp_hits = index.search(query_batch, len(index), method, exact=True, fields=())
        row = query % _QUERIES_PER_SEARCH
        sharp_scores = dict(zip(sharp_hits.ids[row], sharp_hits.scores[row].tolist(), strict=True))
        rows += [
            (query, number[id_], sharp_scores[id_] - score)
            for id_, score in zip(ids, scores.tolist(), strict=True)
            if id_ in number
        ]
    queries, documents, boosts = np.array(rows, np.float64).reshape(-1, 3).T
    return queries.astype(np.int64), documents.astype(np.int64), boosts


def _pearson(x: Doubles, y: Doubles, weights: Doubles | None = None) -> float:
    """Return the (weighted) correlation; NaN if one of the variables is constant."""
    (xx, xy), (_, yy) = np.cov(x, y, ddof=0, aweights=weights)
    return float(xy / math.sqrt(xx * yy)) if xx * yy > 0 else math.nan


def _limits(x: Doubles, y: Doubles, document: NDArray[Any], seed: int) -> tuple[float, float]:
    """Return 95% limits of a correlation by resampling documents, with all pairs of each."""
    rng, documents = np.random.default_rng(seed), np.unique(document)
    correlations = []
    for _ in range(_RESAMPLES):
        counts = np.bincount(rng.choice(documents, len(documents)), minlength=documents[-1] + 1)
        correlations.append(_pearson(x, y, counts[document].astype(np.float64)))
    low, high = np.nanpercentile(correlations, [2.5, 97.5])
    return float(low), float(high)


# -- tables -----------------------------------------------------------------------------------


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, whose keys are the columns; the file is written completely or not at all."""
    rows = list(rows)
    with atomic_write(path) as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
