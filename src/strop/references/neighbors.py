"""Nearest neighbours of every document among the others, by cosine.

Exact for corpora up to a few hundred thousand; above, rows are grouped into cells and compared
with the nearest cells only. Either way a fast float32 pass proposes a few more candidates than
wanted and a slow double-precision one decides between them, always in the same order of
operations: the lists depend on the vectors alone, not on block sizes or threads, and are the
same whether made at once or kept up to date after each change.
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
from strop.references.cells import nearest_centres, rough_centres
from strop.types import Progress, Vectors

APPROXIMATE_ABOVE = 300_000
_SPARE = 16
"""Candidates beyond those wanted: float32 may misorder the last places."""
ROUNDING = 4e-6
"""More than a float32 product of unit vectors is ever wrong by."""
_PRODUCTS_AT_ONCE = 25_000_000


Mask = NDArray[np.bool_]


class Neighbors(NamedTuple):
    """For each row its neighbours, most similar first (of equals the earlier row).

    ``rows`` (n, k) int64, -1 where there are no more; ``similarities`` (n, k) float32.
    """

    rows: Ints
    similarities: Floats


def nearest_neighbors(
    vectors: Vectors,
    k: int = 100,
    *,
    method: str = "auto",
    memory: int = 500_000_000,
    probes: int = 24,
    progress: Progress | None = None,
) -> Neighbors:
    """Return the k nearest other rows of every row of ``vectors`` (n, dim), unit rows.

    A row of zeros has no neighbours and is nobody's. ``method`` is ``exact``, ``cells``
    (approximate, comparing with the ``probes`` nearest cells) or ``auto``, which chooses by
    size. ``memory`` bounds the bytes of temporary blocks.
    """
    if method not in ("auto", "exact", "cells"):
        raise BadInput(f"no method {method!r} to find neighbours: use auto, exact or cells")
    if k < 1:
        raise BadInput(f"the number of neighbours must be 1 or more, not {k}")
    if method == "auto":
        method = "cells" if len(vectors) > APPROXIMATE_ABOVE else "exact"
    usable = filled_rows(vectors)
    best, rows = _room(len(vectors), k, usable)
    if best.shape[1]:
        if method == "exact":
            _propose_from_all(vectors, usable, best, rows, memory, progress)
        else:
            _propose_from_cells(vectors, usable, best, rows, memory, probes, progress)
    everyone = np.arange(len(vectors))
    return decide(vectors, usable, everyone, best, rows, k, exact=method == "exact")


def neighbors_of(vectors: Vectors, usable: Mask, wanted: Ints, k: int) -> Neighbors:
    """Return the exact neighbours of the rows ``wanted`` alone, among all ``usable`` rows."""
    best, rows = _room(len(wanted), k, usable)
    if best.shape[1]:
        asked, slots = vectors[wanted], np.arange(len(wanted))
        for first in range(0, len(vectors), 8192):
            others = np.arange(first, min(first + 8192, len(vectors)))
            products = asked @ vectors[first : first + 8192].T
            in_parts(
                len(wanted),
                partial(_keep_rows, products, usable, wanted, others, slots, best, rows),
            )
    return decide(vectors, usable, wanted, best, rows, k, exact=True)


def filled_rows(vectors: Vectors) -> Mask:
    """Tell which rows are not all zero."""
    found: Mask = np.einsum("ij,ij->i", vectors, vectors) > 0
    return found


def _room(count: int, k: int, usable: Mask) -> tuple[Floats, NDArray[np.int32]]:
    """Return empty lists of candidates: a few more than wanted, no more than there are."""
    wide = max(0, min(k + _SPARE, int(usable.sum()) - 1))
    return np.full((count, wide), -np.inf, np.float32), np.full((count, wide), -1, np.int32)


def _propose_from_all(
    points: Vectors,
    usable: Mask,
    best: Floats,
    rows: NDArray[np.int32],
    memory: int,
    progress: Progress | None,
) -> None:
    """Compare all with all, each pair once: the block below the diagonal is the one above."""
    n = len(points)
    side = int(max(64, min(n, np.sqrt(memory / 4), 4096)))
    starts = range(0, n, side)
    done, total = 0, len(starts) * (len(starts) + 1) // 2
    for a in starts:
        left = points[a : a + side]
        for b in range(a, n, side):
            products = left @ points[b : b + side].T
            mine, others = np.arange(a, a + len(left)), np.arange(b, b + products.shape[1])
            in_parts(
                len(left), partial(_keep_rows, products, usable, mine, others, mine, best, rows)
            )
            if b > a:
                in_parts(
                    products.shape[1],
                    partial(keep_columns, products, usable[a:], usable[b:], a, best[b:], rows[b:]),
                )
            done += 1
        if progress is not None:
            progress("finding neighbours", done, total)


def _propose_from_cells(
    points: Vectors,
    usable: Mask,
    best: Floats,
    rows: NDArray[np.int32],
    memory: int,
    probes: int,
    progress: Progress | None,
) -> None:
    """Compare each row with those of the nearest cells of a rough clustering."""
    cells = max(1, int(np.sqrt(len(points))))
    centres = rough_centres(points, cells)
    cell_of = nearest_centres(points, centres)
    members = np.argsort(cell_of, kind="stable").astype(np.int64)
    edges = np.searchsorted(cell_of[members], np.arange(cells + 1))
    near = np.argsort(-(centres @ centres.T), axis=1, kind="stable")[:, :probes]
    for cell in range(cells):
        mine = members[edges[cell] : edges[cell + 1]]
        if not len(mine):
            continue
        lists = [members[edges[other] : edges[other + 1]] for other in {cell, *near[cell].tolist()}]
        others = np.sort(np.concatenate(lists))
        step = max(1, memory // 8 // max(1, len(mine)))
        for at in range(0, len(others), step):
            part = others[at : at + step]
            products = points[mine] @ points[part].T
            in_parts(len(mine), partial(_keep_rows, products, usable, mine, part, mine, best, rows))
        if progress is not None:
            progress("finding neighbours", cell + 1, cells)


def decide(
    points: Vectors,
    usable: Mask,
    asked: Ints,
    best: Floats,
    rows: NDArray[np.int32],
    k: int,
    exact: bool,
) -> Neighbors:
    """Order the candidates by products in double precision; where that is not safe, all rows."""
    found = Neighbors(np.full((len(asked), k), -1, np.int64), np.zeros((len(asked), k), np.float32))
    unsafe = np.zeros(len(asked), np.bool_)
    if best.shape[1]:
        in_parts(
            len(asked),
            partial(_order, points, asked, best, rows, found.rows, found.similarities, unsafe),
        )
    # Candidates that cannot be told from those left out (twins by the dozen): compare with all.
    again = np.flatnonzero(unsafe)
    if exact and len(again) and best.shape[1] < usable.sum() - 1:
        twin_of = _first_equal(points)
        step = max(1, _PRODUCTS_AT_ONCE // len(points))
        for first in range(0, len(again), step):
            part = again[first : first + step]
            products = points[asked[part]] @ points.T
            in_parts(
                len(part),
                partial(
                    _compare_with_all,
                    points, usable, asked, part, products, twin_of, found.rows, found.similarities,
                ),
            )  # fmt: skip
    return found


def _first_equal(points: Vectors) -> Ints:
    """Return for each row the first that is equal to it."""
    rows = np.ascontiguousarray(points).view(f"V{points.shape[1] * points.itemsize}").ravel()
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    found: Ints = first[which].astype(np.int64)
    return found


@compiled()
def _insert(best: Floats, rows: NDArray[np.int32], score: float, row: int) -> None:
    at = best.shape[0] - 1
    while at > 0 and best[at - 1] < score:
        best[at] = best[at - 1]
        rows[at] = rows[at - 1]
        at -= 1
    best[at] = score
    rows[at] = row


@compiled()
def _keep_rows(
    products: Floats,
    usable: Mask,
    asked: Ints,
    others: Ints,
    slots: Ints,
    best: Floats,
    rows: NDArray[np.int32],
    first: int,
    last: int,
) -> None:
    """Merge products (asked, others) into the best so far of each asked row but itself.

    The list of ``asked[i]`` is at ``slots[i]``.
    """
    k = best.shape[1]
    for i in range(first, last):
        row, slot = asked[i], slots[i]
        if not usable[row]:
            continue
        for j in range(len(others)):
            if products[i, j] > best[slot, k - 1] and others[j] != row and usable[others[j]]:
                _insert(best[slot], rows[slot], products[i, j], others[j])


@compiled()
def keep_columns(
    products: Floats,
    usable_asked: Mask,
    usable_others: Mask,
    shift: int,
    best: Floats,
    rows: NDArray[np.int32],
    first: int,
    last: int,
) -> None:
    """Do the same for the others: their products with the asked rows stand in columns.

    ``shift`` is added to the number of an asked row.
    """
    k = best.shape[1]
    worst = best[first:last, k - 1].copy()
    for j in range(first, last):
        if not usable_others[j]:
            worst[j - first] = np.inf
    for i in range(products.shape[0]):
        if not usable_asked[i]:
            continue
        for j in range(first, last):
            if products[i, j] > worst[j - first]:
                _insert(best[j], rows[j], products[i, j], i + shift)
                worst[j - first] = best[j, k - 1]


@compiled()
def _product(points: Vectors, a: int, b: int) -> float:
    """Return a.b in double precision, summed in one fixed order whatever the machine."""
    total = 0.0
    for at in range(points.shape[1]):
        total += float(points[a, at]) * float(points[b, at])
    return total


@compiled()
def _place(scores: NDArray[np.float64], rows: Ints, count: int, score: float, row: int) -> int:
    """Insert into a list of at most len(scores), best first, of equals the earlier row first."""
    k = len(scores)
    if count == k and (score < scores[k - 1] or (score == scores[k - 1] and row > rows[k - 1])):
        return count
    at = count if count < k else k - 1
    while at > 0 and (scores[at - 1] < score or (scores[at - 1] == score and rows[at - 1] > row)):
        scores[at] = scores[at - 1]
        rows[at] = rows[at - 1]
        at -= 1
    scores[at] = score
    rows[at] = row
    return min(count + 1, k)


@compiled()
def _order(
    points: Vectors, asked: Ints, best: Floats, candidates: NDArray[np.int32], rows: Ints,
    similarities: Floats, unsafe: NDArray[np.bool_], first: int, last: int,
) -> None:  # fmt: skip
    k, wide = rows.shape[1], best.shape[1]
    scores = np.empty(k, np.float64)
    for i in range(first, last):
        count = 0
        for at in range(wide):
            if candidates[i, at] >= 0:
                score = _product(points, asked[i], candidates[i, at])
                count = _place(scores, rows[i], count, score, candidates[i, at])
        for at in range(count):
            similarities[i, at] = scores[at]
        unsafe[i] = count > 0 and scores[count - 1] <= best[i, wide - 1] + ROUNDING


@compiled()
def _compare_with_all(
    points: Vectors, usable: Mask, asked: Ints, which: Ints, products: Floats, twin_of: Ints,
    rows: Ints, similarities: Floats, first: int, last: int,
) -> None:  # fmt: skip
    """Order all rows; in double precision those that float32 products do not rule out.

    Equal rows have equal products, so each is multiplied once.
    """
    k = rows.shape[1]
    scores = np.empty(k, np.float64)
    known = np.empty(len(points), np.float64)
    for at in range(first, last):
        i = which[at]
        known[:] = np.nan
        count = 0
        for other in range(len(points)):
            if other == asked[i] or not usable[other]:
                continue
            if count == k and products[at, other] + ROUNDING < scores[k - 1]:
                continue
            twin = twin_of[other]
            if np.isnan(known[twin]):
                known[twin] = _product(points, asked[i], twin)
            count = _place(scores, rows[i], count, known[twin], other)
        for place in range(count):
            similarities[i, place] = scores[place]
