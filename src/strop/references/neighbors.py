"""Nearest neighbours of every document among the other documents, by cosine.

Up to a few hundred thousand documents the search is exact. Above that, documents are grouped into
cells, and each is compared with the cells nearest to it only. In both cases a fast float32 pass
proposes a few more candidates than needed, and products in double precision, summed in a fixed
order, rank them. So the lists depend on the vectors alone, not on block sizes or threads, and
updated lists are equal to those of a fresh run.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats, Ints
from strop.common.compiled import compiled
from strop.common.threads import in_parts
from strop.errors import BadInput
from strop.types import Progress, Vectors

APPROXIMATE_ABOVE = 300_000
"""With more documents than this, ``auto`` means ``cells``."""
BLOCK = 4096
"""Rows compared at once."""
PROBES = 24
"""Cells with which each document is compared."""
SPARE = 16
"""Candidates beyond those needed: float32 may misorder the last places."""
ROUNDING = 4e-6
"""An upper bound of the error of a float32 product of unit vectors."""
_PRODUCTS_AT_ONCE = 25_000_000
_POINTS_PER_CELL = 40
_ROUNDS = 8
"""KMeans uses this many points per cell, and this many rounds: cells may be rough."""

Mask = NDArray[np.bool_]
Candidates = NDArray[np.int32]
"""(n, wide) rows proposed for each of n rows, -1 for none; ``best`` has their products."""


class Neighbors(NamedTuple):
    """The neighbours of each row, most similar first, of equally similar ones the earlier row.

    ``rows`` (n, k) int64, -1 after the last; ``similarities`` (n, k) float32.
    """

    rows: Ints
    similarities: Floats


def nearest_neighbors(
    vectors: Vectors, k: int = 100, *, method: str = "auto", progress: Progress | None = None
) -> Neighbors:
    """Return the k nearest other rows of every row of ``vectors`` (n, dim), unit rows.

    A zero row has no neighbours and is no neighbour. ``method`` is ``exact``, ``cells``
    (approximate) or ``auto``, which chooses by the number of rows.
    """
    if k < 1:
        raise BadInput(f"the number of neighbours must be 1 or more, not {k}")
    method = resolve_method(method, len(vectors))
    usable, every_row = nonzero_rows(vectors), np.arange(len(vectors))
    if method == "cells":
        centres = rough_centres(vectors, max(1, int(np.sqrt(len(vectors)))))
        probed = probed_cells(vectors, centres, PROBES)
        return neighbors_in_cells(vectors, usable, every_row, k, probed[:, 0], probed, progress)
    best, candidates = _empty_lists(len(vectors), k, usable)
    _propose_from_all(vectors, usable, best, candidates, progress)
    return rank(vectors, usable, every_row, candidates, k, best)


def resolve_method(method: str, size: int) -> str:
    """Return ``exact`` or ``cells``: what ``method`` means for ``size`` documents."""
    if method not in ("auto", "exact", "cells"):
        raise BadInput(f"no method {method!r} to find neighbours: use auto, exact or cells")
    if method != "auto":
        return method
    return "cells" if size > APPROXIMATE_ABOVE else "exact"


def neighbors_of(vectors: Vectors, usable: Mask, targets: Ints, k: int) -> Neighbors:
    """Return the exact neighbours of the rows ``targets`` only, among all ``usable`` rows."""
    best, candidates = _empty_lists(len(targets), k, usable)
    propose(vectors, usable, targets, np.arange(len(vectors)), best, candidates)
    return rank(vectors, usable, targets, candidates, k, best)


def neighbors_in_cells(
    vectors: Vectors,
    usable: Mask,
    targets: Ints,
    k: int,
    cell_of: NDArray[np.int32],
    probed: NDArray[np.int32],
    progress: Progress | None = None,
) -> Neighbors:
    """Return the neighbours of the rows ``targets`` among the rows of the cells that each probes.

    ``cell_of`` (n,) is the cell of every row, ``probed`` (targets, probes) the cells to compare.
    """
    best, candidates = _empty_lists(len(targets), k, usable)
    members, visitors = _by_cell(cell_of), _by_cell(probed.ravel())
    for done, (cell, places) in enumerate(visitors.items(), 1):
        others, lists = members.get(cell, targets[:0]), np.sort(places // probed.shape[1])
        propose(vectors, usable, targets[lists], others, best, candidates, lists)
        if progress is not None:
            progress("finding neighbours", done, len(visitors))
    return rank(vectors, usable, targets, candidates, k)


def _by_cell(cell_of: NDArray[np.int32]) -> dict[int, Ints]:
    """Return the places of each cell in ``cell_of``, in order."""
    order = np.argsort(cell_of, kind="stable")
    cells, first = np.unique(cell_of[order], return_index=True)
    return dict(zip(cells.tolist(), np.split(order, first[1:]), strict=True))


def rough_centres(points: Vectors, cells: int) -> Vectors:
    """Return unit centres (cells, dim): a few rounds of KMeans on a sample of the points."""
    step = max(1, len(points) // (cells * _POINTS_PER_CELL))
    sample = np.ascontiguousarray(points[::step])
    centres = sample[np.linspace(0, len(sample) - 1, cells).astype(np.int64)].copy()
    for _ in range(_ROUNDS):
        sums = np.zeros_like(centres)
        _add_rows(sample, nearest_centres(sample, centres), sums)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centres)
    return np.asarray(centres, np.float32)


def nearest_centres(points: Vectors, centres: Vectors) -> Ints:
    """Return for each point the number of the centre with the largest product."""
    nearest = np.empty(len(points), np.int64)
    for at in range(0, len(points), 8192):
        nearest[at : at + 8192] = np.argmax(points[at : at + 8192] @ centres.T, axis=1)
    return nearest


def probed_cells(points: Vectors, centres: Vectors, probes: int) -> NDArray[np.int32]:
    """Return for each point the ``probes`` cells with the nearest centres, the nearest first."""
    probed = np.empty((len(points), min(probes, len(centres))), np.int32)
    for at in range(0, len(points), 8192):
        probed[at : at + 8192] = largest(points[at : at + 8192] @ centres.T, probes)
    return probed


def largest(values: Vectors, count: int) -> Ints:
    """Return where the ``count`` largest values of each row are, the largest first."""
    count = min(count, values.shape[1])
    unordered = np.argpartition(-values, max(0, count - 1), axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(values, unordered, 1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(unordered, order, 1))


def nonzero_rows(vectors: Vectors) -> Mask:
    """Return for each row whether it has a value other than zero."""
    nonzero: Mask = np.einsum("ij,ij->i", vectors, vectors) > 0
    return nonzero


def _empty_lists(count: int, k: int, usable: Mask) -> tuple[Floats, Candidates]:
    """Return empty lists of candidates: a few more than needed, no more than exist."""
    wide = max(0, min(k + SPARE, int(usable.sum()) - 1))
    return np.full((count, wide), -np.inf, np.float32), np.full((count, wide), -1, np.int32)


def propose(
    vectors: Vectors, usable: Mask, targets: Ints, others: Ints, best: Floats,
    candidates: Candidates, lists: Ints | None = None,
) -> None:  # fmt: skip
    """Compare the rows ``targets`` with the rows ``others``: the nearest become their candidates.

    The candidates of ``targets[i]`` are in row ``lists[i]``, by default in row i.
    """
    lists = np.arange(len(targets)) if lists is None else lists
    for at in range(0, len(targets) if best.shape[1] else 0, BLOCK):
        rows, row_lists = targets[at : at + BLOCK], lists[at : at + BLOCK]
        row_vectors = vectors[rows]
        for first in range(0, len(others), BLOCK):
            block = others[first : first + BLOCK]
            products = row_vectors @ vectors[block].T
            merge = partial(_merge_rows, products, usable, rows, block, row_lists, best, candidates)
            in_parts(len(rows), merge)


def _propose_from_all(
    points: Vectors, usable: Mask, best: Floats, candidates: Candidates, progress: Progress | None
) -> None:
    """Compare all rows with all, each pair once: one block of products serves both sides."""
    blocks = [np.arange(a, min(a + BLOCK, len(points))) for a in range(0, len(points), BLOCK)]
    done, total = 0, len(blocks) * (len(blocks) + 1) // 2
    for at, rows in enumerate(blocks if best.shape[1] else ()):
        row_vectors = points[rows]
        for others in blocks[at:]:
            products = row_vectors @ points[others].T
            pair = products, usable, rows, others
            in_parts(len(rows), partial(_merge_rows, *pair, rows, best, candidates))
            if others is not rows:
                in_parts(len(others), partial(_merge_columns, *pair, best, candidates))
            done += 1
        if progress is not None:
            progress("finding neighbours", done, total)


def rank(
    points: Vectors,
    usable: Mask,
    targets: Ints,
    candidates: Candidates,
    k: int,
    best: Floats | None = None,
) -> Neighbors:
    """Return the first k candidates of each target row, ranked in double precision.

    With ``best``, rows whose last neighbour may be equal to a candidate that was left out (many
    equal vectors) are compared with all rows.
    """
    ranked = Neighbors(
        np.full((len(targets), k), -1, np.int64), np.zeros((len(targets), k), np.float32)
    )
    wide = candidates.shape[1]
    if not wide:
        return ranked
    uncertain = [targets[:0]]
    for first in range(0, len(targets), BLOCK):
        part = slice(first, first + BLOCK)
        rows = candidates[part]
        scores = np.full(rows.shape, -np.inf)
        in_parts(len(rows), partial(_exact_products, points, targets[part], rows, scores))
        order = np.lexsort((rows, -scores), axis=1)[:, :k]
        rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
        ranked.rows[part, : order.shape[1]] = rows
        ranked.similarities[part, : order.shape[1]] = np.where(rows >= 0, scores, 0)
        if best is not None and wide < usable.sum() - 1:
            last = np.where(rows >= 0, scores, np.inf).min(axis=1)
            uncertain.append(first + np.flatnonzero(last <= best[part, -1] + ROUNDING))
    _rank_all(points, usable, targets, np.concatenate(uncertain), ranked)
    return ranked


def _rank_all(points: Vectors, usable: Mask, targets: Ints, which: Ints, ranked: Neighbors) -> None:
    """Rank all rows for ``targets[which]``; equal rows are multiplied only once."""
    if not len(which):
        return
    first_equal = _first_equal(points)
    step = max(1, _PRODUCTS_AT_ONCE // len(points))
    k = min(ranked.rows.shape[1], int(usable.sum()) - 1)
    for at in range(0, len(which), step):
        block = which[at : at + step]
        products = points[targets[block]] @ points.T
        products[:, ~usable] = -np.inf
        products[np.arange(len(block)), targets[block]] = -np.inf
        lowest = np.partition(products, -k, axis=1)[:, -k] - 2 * ROUNDING
        for i, row_products, bound in zip(block, products, lowest, strict=True):
            others = np.flatnonzero(row_products >= bound)
            distinct, copy_of = np.unique(first_equal[others], return_inverse=True)
            scores = np.empty((1, len(distinct)))
            _exact_products(
                points, targets[i : i + 1], distinct[None].astype(np.int32), scores, 0, 1
            )
            scores = scores[0, copy_of]
            order = np.lexsort((others, -scores))[:k]
            ranked.rows[i, :k] = others[order]
            ranked.similarities[i, :k] = scores[order]


def _first_equal(points: Vectors) -> Ints:
    """Return for each row the first row that is equal to it."""
    rows = np.ascontiguousarray(points).view(f"V{points.shape[1] * points.itemsize}").ravel()
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    equal: Ints = first[which].astype(np.int64)
    return equal


@compiled()
def _insert(best: Floats, candidates: Candidates, score: float, row: int) -> None:
    """Insert a row that scores more than the last one of a list, best first."""
    at = best.shape[0] - 1
    while at > 0 and best[at - 1] < score:
        best[at] = best[at - 1]
        candidates[at] = candidates[at - 1]
        at -= 1
    best[at] = score
    candidates[at] = row


@compiled()
def _merge_rows(
    products: Floats, usable: Mask, rows: Ints, others: Ints, lists: Ints, best: Floats,
    candidates: Candidates, first: int, last: int,
) -> None:  # fmt: skip
    """Merge products (rows, others) into the lists of ``rows``; the list of rows[i] is lists[i]."""
    k = best.shape[1]
    for i in range(first, last):
        row, at = rows[i], lists[i]
        if not usable[row]:
            continue
        for j in range(len(others)):
            if products[i, j] > best[at, k - 1] and others[j] != row and usable[others[j]]:
                _insert(best[at], candidates[at], products[i, j], others[j])


@compiled()
def _merge_columns(
    products: Floats, usable: Mask, rows: Ints, others: Ints, best: Floats, candidates: Candidates,
    first: int, last: int,
) -> None:  # fmt: skip
    """Merge products (rows, others), by column, into the lists of ``others[first:last]``."""
    k = best.shape[1]
    worst = np.full(last - first, np.inf, np.float32)
    for j in range(first, last):
        if usable[others[j]]:
            worst[j - first] = best[others[j], k - 1]
    for i in range(len(rows)):
        if not usable[rows[i]]:
            continue
        for j in range(first, last):
            if products[i, j] > worst[j - first]:
                to = others[j]
                _insert(best[to], candidates[to], products[i, j], rows[i])
                worst[j - first] = best[to, k - 1]


@compiled()
def _exact_products(
    points: Vectors, targets: Ints, candidates: Candidates, scores: NDArray[np.float64],
    first: int, last: int,
) -> None:  # fmt: skip
    """Write products of each target row with its candidates, summed in one fixed order."""
    for i in range(first, last):
        for at in range(candidates.shape[1]):
            other = candidates[i, at]
            if other < 0:
                continue
            total = 0.0
            for c in range(points.shape[1]):
                total += float(points[targets[i], c]) * float(points[other, c])
            scores[i, at] = total


@compiled()
def _add_rows(points: Vectors, cell_of: Ints, sums: Vectors) -> None:
    """Add each point to the row of its cell in ``sums``."""
    for r in range(len(points)):
        for c in range(points.shape[1]):
            sums[cell_of[r], c] += points[r, c]
