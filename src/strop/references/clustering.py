"""KMeans and silhouette of a few points, computed from their distances only.

KMeans and silhouette need only squared distances, so for a hundred neighbours the embedder's
dimension does not matter. Let ``S_ci`` be the sum of the squared distances of point i to the n
points of cluster c, and ``Q_c`` the sum of ``S_ci`` over the members of c. The squared distance of
point i to the centroid of c is then ``S_ci / n - Q_c / (2 n^2)``. A point that changes its cluster
changes two rows of S, so later rounds are cheap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.common.compiled import compiled, copy_to
from strop.types import Vectors

Floats = NDArray[np.float32]
Labels = NDArray[np.int32]

_MAX_ROUNDS = 300


@compiled(reorder=True)
def squared_distances(points: Vectors, out: Floats) -> None:
    """Fill ``out`` (m, m) with the squared distances of points (m, dim); 0 for equal ones."""
    m, dim = points.shape
    for i in range(m):
        out[i, i] = 0
        j = i + 1
        while j + 4 <= m:  # four at a time, so that each value of point i is loaded once
            a = np.float32(0)
            b = np.float32(0)
            c = np.float32(0)
            d = np.float32(0)
            for at in range(dim):
                x = points[i, at]
                a += (x - points[j, at]) * (x - points[j, at])
                b += (x - points[j + 1, at]) * (x - points[j + 1, at])
                c += (x - points[j + 2, at]) * (x - points[j + 2, at])
                d += (x - points[j + 3, at]) * (x - points[j + 3, at])
            out[i, j] = out[j, i] = a
            out[i, j + 1] = out[j + 1, i] = b
            out[i, j + 2] = out[j + 2, i] = c
            out[i, j + 3] = out[j + 3, i] = d
            j += 4
        while j < m:
            a = np.float32(0)
            for at in range(dim):
                x = points[i, at]
                a += (x - points[j, at]) * (x - points[j, at])
            out[i, j] = out[j, i] = a
            j += 1


@compiled(reorder=True)
def kmeans(
    distances: Floats, k: int, trials: int, draws: NDArray[np.float64], best_labels: Labels
) -> float:
    """Cluster m points into k by their squared distances (m, m); return the inertia.

    ``draws`` (runs, at least 1 + (k - 1) * trials) are uniform random numbers for the k-means++
    seeding, one row for each run. The labels of the best run go to ``best_labels`` (m,). An empty
    cluster gets the point farthest from its centroid; it stays empty only if every point is at its
    centroid.
    """
    m = distances.shape[0]
    centres = np.empty(k, np.int64)
    labels = np.empty(m, np.int32)
    nearest = np.empty(m, np.float32)
    counts = np.empty(k, np.int64)
    # Space for all runs: allocating it in each takes a tenth of the time.
    rows, cumulated = np.empty((3, m), np.float32), np.empty(m, np.float64)
    sums, moved = np.empty((k, m), np.float32), np.empty(m, np.int32)
    lowest = np.inf
    for run in range(draws.shape[0]):
        _seed(distances, trials, draws[run], centres, rows, cumulated)
        _assign(distances, centres, labels, nearest, counts)
        _refine(distances, labels, nearest, counts, sums, moved)
        inertia = 0.0
        for i in range(m):
            inertia += max(nearest[i], np.float32(0))
        if inertia < lowest:
            lowest = inertia
            copy_to(best_labels, labels)
    return lowest


@compiled(reorder=True)
def _seed(
    distances: Floats, trials: int, draws: NDArray[np.float64], centres: NDArray[np.int64],
    rows: Floats, cumulated: NDArray[np.float64],
) -> None:  # fmt: skip
    """Choose points as first centres by k-means++: for each, the best of ``trials`` candidates.

    ``rows`` (3, m) and ``cumulated`` (m,) are space to work in.
    """
    m = distances.shape[0]
    closest, trial, best_trial = rows[0], rows[1], rows[2]
    centres[0] = min(int(draws[0] * m), m - 1)
    copy_to(closest, distances[centres[0]])
    at_draw = 1
    for c in range(1, len(centres)):
        total = 0.0
        for i in range(m):
            total += closest[i]
            cumulated[i] = total
        lowest = np.inf
        for _ in range(trials):
            candidate = min(np.searchsorted(cumulated, draws[at_draw] * total), m - 1)
            at_draw += 1
            row = distances[candidate]
            inertia = np.float32(0)
            for i in range(m):
                trial[i] = min(closest[i], row[i])
                inertia += trial[i]
            if inertia < lowest:
                lowest = inertia
                centres[c] = candidate
                copy_to(best_trial, trial)
        copy_to(closest, best_trial)


@compiled()
def _assign(
    distances: Floats, centres: NDArray[np.int64], labels: Labels, nearest: Floats,
    counts: NDArray[np.int64],
) -> None:  # fmt: skip
    """Assign each point to the nearest of the points ``centres``."""
    m = distances.shape[0]
    labels[:] = 0
    copy_to(nearest, distances[centres[0]])
    for c in range(1, len(centres)):
        row = distances[centres[c]]
        for i in range(m):
            closer = row[i] < nearest[i]
            nearest[i] = row[i] if closer else nearest[i]
            labels[i] = c if closer else labels[i]
    _count(labels, counts)
    _fill_empty(labels, counts, nearest)


@compiled(reorder=True)
def _refine(
    distances: Floats, labels: Labels, nearest: Floats, counts: NDArray[np.int64], sums: Floats,
    moved: Labels,
) -> None:  # fmt: skip
    """Move points to the nearest centroid until none moves.

    ``sums`` (k, m) becomes S of the formula above, ``moved`` (m,) is space to work in.
    """
    m, k = len(labels), len(counts)
    within = np.empty(k, np.float64)
    sums[:] = 0
    for j in range(m):
        target, row = sums[labels[j]], distances[j]
        for i in range(m):
            target[i] += row[i]
    for _ in range(_MAX_ROUNDS):
        within[:] = 0
        for i in range(m):
            within[labels[i]] += sums[labels[i], i]
        nearest[:] = np.inf
        for c in range(k):
            if counts[c] == 0:
                continue
            scale = np.float32(1.0 / counts[c])
            shift = np.float32(within[c] / (2.0 * counts[c] * counts[c]))
            row = sums[c]
            for i in range(m):
                value = row[i] * scale - shift
                closer = value < nearest[i]
                nearest[i] = value if closer else nearest[i]
                moved[i] = c if closer else moved[i]
        _count(moved, counts)
        _fill_empty(moved, counts, nearest)
        changed = False
        for j in range(m):
            old, new = labels[j], moved[j]
            if old != new:
                changed = True
                labels[j] = new
                source, target, row = sums[old], sums[new], distances[j]
                for i in range(m):
                    source[i] -= row[i]
                    target[i] += row[i]
        if not changed:
            break


@compiled()
def _count(labels: Labels, counts: NDArray[np.int64]) -> None:
    counts[:] = 0
    for label in labels:
        counts[label] += 1


@compiled()
def _fill_empty(labels: Labels, counts: NDArray[np.int64], nearest: Floats) -> None:
    """Give each empty cluster the point farthest from its centroid."""
    for c in range(len(counts)):
        if counts[c] > 0:
            continue
        farthest = -1
        for i in range(len(labels)):
            if counts[labels[i]] < 2 or nearest[i] <= 1e-12:
                continue
            if farthest < 0 or nearest[i] > nearest[farthest]:
                farthest = i
        if farthest >= 0:
            counts[labels[farthest]] -= 1
            labels[farthest] = c
            counts[c] = 1
            nearest[farthest] = 0


@compiled(reorder=True)
def silhouette(lengths: Floats, labels: Labels, k: int, of_points: Floats) -> float:
    """Return the mean silhouette of labelled points from their distances (m, m), not squared.

    The silhouette of a point is (b - a) / max(a, b), with a its mean distance to the others of
    its cluster and b the least mean distance to another cluster; it is 0 for a point alone in its
    cluster. The values go to ``of_points`` (m,). With fewer than two clusters the mean is -1.
    """
    m = lengths.shape[0]
    sums = np.zeros((k, m), np.float32)
    counts = np.zeros(k, np.int64)
    for j in range(m):
        target = sums[labels[j]]
        row = lengths[j]
        counts[labels[j]] += 1
        for i in range(m):
            target[i] += row[i]
    filled = 0
    for c in range(k):
        filled += counts[c] > 0
    if filled < 2:
        of_points[:] = 0
        return -1.0
    total = 0.0
    for i in range(m):
        own = labels[i]
        of_points[i] = 0
        if counts[own] > 1:
            a = sums[own, i] / (counts[own] - 1)
            b = np.float32(np.inf)
            for c in range(k):
                if c != own and counts[c] > 0:
                    b = min(b, sums[c, i] / counts[c])
            larger = max(a, b)
            if larger > 0:
                of_points[i] = (b - a) / larger
        total += of_points[i]
    return float(total / m)
