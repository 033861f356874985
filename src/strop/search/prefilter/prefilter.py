"""Chooses which documents are scored for a query; their number depends on its estimates.

Each step takes the best rows by a cheap estimate and computes a better one for them. How much the
two differ for this query shows how low the cheap estimate of one of the best k can be; if rows
above that were left out, they are examined too. So a query close to stored vectors is answered
from few rows, and a query far from all of them from many.
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
"""At least this many rows are estimated; a test of a small index may lower it."""
_MISSING, _OBSOLETE = 0.1, 0.3
"""Codes are recomputed if this share of documents has none, or this share of codes is obsolete."""
_SAMPLE = 2048
THREADS_FROM = 100_000
"""From this many rows on, several threads share one query's scan of the signs."""
_NO_BOUND = float(np.finfo(np.float32).min)
"""Below every estimate."""
_DEVIATIONS = 5.0, 4.0
"""A row is examined if it is at most this many standard deviations of the difference between two
estimates (signs to bytes, bytes to exact) below the k-th best."""


def suits(method: Method, documents: int, k: int) -> bool:
    """Return whether a method can use the codes, and whether this saves time."""
    applicable = method.sharpens and method.alpha > 0 and method.n is None
    return applicable and documents >= 40 * k


class Prefilter:
    """A table of codes, matched with a layout."""

    def __init__(self, table: CodeTable, layout: Layout, place_of: Ints) -> None:
        """``place_of`` has each row's place in the layout; -1: removed, changed or filtered out."""
        self.table, self.layout, self.place_of = table, layout, place_of
        self._valid, self._obsolete = np.flatnonzero(place_of >= 0), np.flatnonzero(place_of < 0)
        has_row = np.zeros(layout.size, np.bool_)
        has_row[place_of[self._valid]] = True
        self.without_row = np.flatnonzero(~has_row)
        self._uncoded = layout.only(self.without_row)

    @classmethod
    def of(cls, table: CodeTable, layout: Layout, sources: Ints) -> Prefilter:
        """Match the documents of a layout with rows by ``sources`` as those of the table."""
        at = np.searchsorted(sources[:, 0], np.ascontiguousarray(table.sources[:, 0]))
        same = at < len(sources)
        same[same] = (sources[at[same]] == table.sources[same]).all(axis=1)
        return cls(table, layout, np.where(same, at, -1))

    def only(self, places: Ints, layout: Layout) -> Prefilter:
        """Return the prefilter for a layout of some of the documents, those at ``places``."""
        at = np.full(self.layout.size + 1, -1, np.int64)  # the last for rows without a place
        at[places] = np.arange(len(places))
        return Prefilter(self.table, layout, at[self.place_of])

    @property
    def spare(self) -> int:
        """How many documents may change before codes must be computed; below 0: now."""
        missing = _MISSING * self.layout.size - len(self.without_row)
        return math.floor(min(missing, _OBSOLETE * len(self.table) - len(self._obsolete)))

    @property
    def usable(self) -> int:
        """The number of rows that belong to documents of the layout."""
        return len(self._valid)

    def search(self, query_vectors: Vectors, method: Method, k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each query vector: scores and places, (n, k)."""
        best = np.empty((len(query_vectors), k), np.float32)
        places = np.empty((len(query_vectors), k), np.int64)
        uncoded = self._uncoded.scan(query_vectors, method, k) if len(self.without_row) else None
        alone = len(query_vectors) == 1

        def work(first: int, last: int) -> None:
            for q in range(first, last):
                scores, likely = self.candidates(query_vectors[q], method, k, alone)
                if uncoded is not None:
                    scores = np.concatenate([scores, uncoded[0][q]])
                    likely = np.concatenate([likely, self.without_row[uncoded[1][q]]])
                best[q], places[q] = best_of(scores, likely, k)

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
        by_signs[self._obsolete] = -np.inf
        cut, k = self._cut(by_signs, max(16 * FEWEST, 24 * k)), min(k, self.usable)
        rows, estimates = _refine_best(by_signs, estimate, cut, k, _DEVIATIONS[0])
        cut = _nth_largest(estimates, FEWEST + 2 * k)
        best, scores = _refine_best(
            estimates, lambda some: exact(rows[some]), cut, k, _DEVIATIONS[1]
        )
        return scores, self.place_of[rows[best]]

    def _cut(self, values: Floats, n: int) -> float:
        """Return a value that about n rows reach, estimated from a sample of the valid rows."""
        step = max(1, min(len(self._valid) // _SAMPLE, n // 16))
        sample = values[self._valid[::step]] if len(self._obsolete) else values[::step]
        return _nth_largest(sample, max(1, n // step))


def _nth_largest(values: Floats, n: int) -> float:
    """Return the n-th largest value, the smallest if there are fewer."""
    at = max(0, len(values) - n)
    return float(np.partition(values, at)[at])


def _refine_best(
    coarse: Floats, refine: Callable[[Ints], Floats], cut: float, k: int, deviations: float
) -> tuple[Ints, Floats]:
    """Return the rows that can be among the best k by a finer estimate, and that estimate.

    At first these are the rows whose coarse estimate is ``cut`` or more.
    """
    rows = np.flatnonzero(coarse >= cut)
    fine = refine(rows)
    lower = _lowest_of_best(coarse[rows], fine, k, deviations)
    if lower < cut:
        others = np.flatnonzero((coarse >= lower) & (coarse < cut))
        rows, fine = np.concatenate([rows, others]), np.concatenate([fine, refine(others)])
    if len(rows) < k:  # estimates are NaN
        raise IndexDamaged(
            "the search codes are damaged. To compute them again: strop check INDEX --repair"
        )
    return rows, fine


def _lowest_of_best(coarse: Floats, fine: Floats, k: int, deviations: float) -> float:
    """Return the lowest coarse estimate of a row that can be among the best k by the finer one.

    The lower half of the rows shows how the two differ: the top rows are biased, because rows whose
    coarse estimate is too high get there. Only the sums are compiled: numba takes ten seconds to
    compile ``partition``.
    """
    if len(fine) < max(1, k):
        return _NO_BOUND
    middle = _nth_largest(coarse, (len(coarse) + 1) // 2)
    mean, deviation = differences_below(coarse, fine, middle)
    return max(_NO_BOUND, _nth_largest(fine, k) - mean - deviations * deviation)
