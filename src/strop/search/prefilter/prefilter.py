"""Which documents are scored for a query: enough of them, as its own estimates tell.

Each step looks at the best rows by a cheap estimate and computes a better one for them. How much
the two differ, for this query, tells how far below the best a row can be that still belongs to the
best k; if rows above that were left out, they are looked at too. So a query close to stored vectors
is answered from few rows, and a query that is far from all of them from many.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.common.threads import in_parts
from strop.errors import IndexDamaged
from strop.methods import Method
from strop.search.layout import Layout
from strop.search.prefilter.codes import (
    differences_below,
    estimated_scores,
    query_planes,
    sign_products,
)
from strop.search.prefilter.table import CodeTable
from strop.search.scoring import best_of
from strop.types import Vectors

FEWEST = 64
"""Rows that are always estimated; a test of a small index may lower it."""
_MISSING, _USELESS = 0.1, 0.3
"""Codes are computed anew when this share of documents has none, or this share of them no use."""
_SAMPLE = 2048
THREADS_FROM = 100_000
"""Rows from which the threads share one query's scan of the signs."""
_LOOK_AT_ALL = float(np.finfo(np.float32).min)
"""Below every estimate."""
_DEVIATIONS = 5.0, 4.0
"""How many standard deviations of the difference between two estimates (signs to bytes, bytes to
exact) a row may be below the k-th best and still be looked at."""


def suits(method: Method, documents: int, k: int) -> bool:
    """Tell whether the codes describe what a method compares, and whether it is worth it."""
    described = method.sharpens and method.alpha > 0 and method.n is None and not method.whiten
    return described and documents >= 40 * k


class Prefilter:
    """A table of codes beside the layout it serves."""

    def __init__(self, table: CodeTable, layout: Layout, place_of: Ints) -> None:
        """``place_of`` has each row's place in the layout; -1: removed, changed or filtered out."""
        self.table, self.layout, self.place_of = table, layout, place_of
        self._useful, self._useless = np.flatnonzero(place_of >= 0), np.flatnonzero(place_of < 0)
        has_row = np.zeros(layout.size, np.bool_)
        has_row[place_of[self._useful]] = True
        self.without_row = np.flatnonzero(~has_row)
        self._rest = layout.only(self.without_row)

    @classmethod
    def of(cls, table: CodeTable, layout: Layout, sources: Ints) -> Prefilter:
        """Match the documents of a layout with rows by ``sources`` as those of the table."""
        at = np.searchsorted(sources[:, 0], np.ascontiguousarray(table.sources[:, 0]))
        same = at < len(sources)
        same[same] = (sources[at[same]] == table.sources[same]).all(axis=1)
        return cls(table, layout, np.where(same, at, -1))

    def only(self, places: Ints, layout: Layout) -> Prefilter:
        """Return it for a layout of some of the documents, those at ``places``."""
        at = np.full(self.layout.size + 1, -1, np.int64)  # the last one for rows of no place
        at[places] = np.arange(len(places))
        return Prefilter(self.table, layout, at[self.place_of])

    @property
    def spare(self) -> int:
        """So many documents may change before codes must be computed; below 0: now."""
        lacking = _MISSING * self.layout.size - len(self.without_row)
        return math.floor(min(lacking, _USELESS * len(self.table) - len(self._useless)))

    @property
    def usable(self) -> int:
        """How many rows are of documents of the layout."""
        return len(self._useful)

    def search(self, query_vectors: Vectors, method: Method, k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each query vector: scores and places, (n, k)."""
        best = np.empty((len(query_vectors), k), np.float32)
        places = np.empty((len(query_vectors), k), np.int64)
        rest = self._rest.scan(query_vectors, method, k) if len(self.without_row) else None
        alone = len(query_vectors) == 1

        def work(first: int, last: int) -> None:
            for q in range(first, last):
                scores, found = self.candidates(query_vectors[q], method, k, alone)
                if rest is not None:
                    scores = np.concatenate([scores, rest[0][q]])
                    found = np.concatenate([found, self.without_row[rest[1][q]]])
                best[q], places[q] = best_of(scores, found, k)

        in_parts(len(query_vectors), work)
        return best, places

    def candidates(
        self, query_vector: Vectors, method: Method, k: int, alone: bool = False
    ) -> tuple[Floats, Ints]:
        """Return exact scores and places of the likely best for one query vector (dim,)."""
        table, (planes, factors) = self.table, query_planes(query_vector)
        by_signs = np.empty(len(table), np.float32)

        def scan(first: int, last: int) -> None:
            sign_products(table.signs, table.sign_factors, planes, factors, first, last, by_signs)

        def estimate(rows: Ints) -> Floats:
            scores = np.empty(len(rows), np.float32)
            estimated_scores(
                query_vector, planes, factors, rows, *table.of_rows, float(method.alpha),
                method.softmax_temperature, scores,
            )  # fmt: skip
            return scores

        def exact(rows: Ints) -> Floats:
            return self.layout.rescore(query_vector, self.place_of[rows], method)

        if alone and len(table) >= THREADS_FROM:
            in_parts(len(table), scan)
        else:
            scan(0, len(table))
        by_signs[self._useless] = -np.inf
        cut, k = self._cut(by_signs, max(16 * FEWEST, 24 * k)), min(k, self.usable)
        rows, estimates = _look(by_signs, estimate, cut, k, _DEVIATIONS[0])
        cut = _nth_largest(estimates, FEWEST + 2 * k)
        best, scores = _look(estimates, lambda some: exact(rows[some]), cut, k, _DEVIATIONS[1])
        return scores, self.place_of[rows[best]]

    def _cut(self, values: Floats, n: int) -> float:
        """Return the value that about the n largest reach, from a sample of the useful rows."""
        step = max(1, min(len(self._useful) // _SAMPLE, n // 16))
        sample = values[self._useful[::step]] if len(self._useless) else values[::step]
        return _nth_largest(sample, max(1, n // step))


def _nth_largest(values: Floats, n: int) -> float:
    """Return the n-th largest value, the smallest if there are fewer."""
    at = max(0, len(values) - n)
    return float(np.partition(values, at)[at])


def _look(
    coarse: Floats, refine: Callable[[Ints], Floats], cut: float, k: int, deviations: float
) -> tuple[Ints, Floats]:
    """Return the rows that can be among the best k by a finer estimate, and that estimate.

    At first these are the rows whose coarse estimate is ``cut`` or more.
    """
    rows = np.flatnonzero(coarse >= cut)
    fine = refine(rows)
    lower = _lowest_of_best(coarse[rows], fine, k, deviations)
    if lower < cut:
        more = np.flatnonzero((coarse >= lower) & (coarse < cut))
        rows, fine = np.concatenate([rows, more]), np.concatenate([fine, refine(more)])
    if len(rows) < k:  # estimates that are no numbers
        raise IndexDamaged(
            "the search codes are damaged. To compute them again: strop check INDEX --repair"
        )
    return rows, fine


def _lowest_of_best(coarse: Floats, fine: Floats, k: int, deviations: float) -> float:
    """Return the lowest coarse estimate of a row that can be among the best k by the finer one.

    The lower half of the rows tells how the two differ: at the top are rows whose coarse estimate
    is too high, because that is how they came there. Of this only sums are compiled: numba takes
    ten seconds for ``partition``.
    """
    if len(fine) < max(1, k):
        return _LOOK_AT_ALL
    middle = _nth_largest(coarse, (len(coarse) + 1) // 2)
    mean, deviation = differences_below(coarse, fine, middle)
    return max(_LOOK_AT_ALL, _nth_largest(fine, k) - mean - deviations * deviation)
