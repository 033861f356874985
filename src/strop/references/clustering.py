"""KMeans and silhouette of few points from their distances alone. Compiled, no I/O, no state.

A hundred neighbours span at most a hundred dimensions, whatever the embedder's, and all that
KMeans and silhouette need are squared distances. With ``S_ci`` the sum of point i's squared
distances to the n points of cluster c, and ``Q_c`` the sum of ``S_ci`` over its members, the
squared distance of point i to the centroid of c is ``S_ci / n - Q_c / (2 n^2)``. A point that
changes its cluster changes two rows of S, so later rounds cost next to nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.common.compiled import compiled
from strop.types import Vectors

Floats = NDArray[np.float32]
Labels = NDArray[np.int32]

_MOST_ROUNDS = 300


@compiled(reorder=True)
def squared_distances(points: Vectors, out: Floats) -> None:
    """Fill ``out`` (m, m) with the squared distances of points (m, dim); exactly 0 for twins."""
    m, dim = points.shape
    for i in range(m):
        out[i, i] = 0
        j = i + 1
        while j + 4 <= m:  # four at a time: each value of point i is loaded once for all
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

    ``draws`` (restarts, at least 1 + (k - 1) * trials) are uniform numbers for the k-means++
    seeding: the first chooses the first centre, then ``trials`` candidates are weighed for each
    further one. The labels of the best restart go to ``best_labels`` (m,). A cluster left empty
    takes the point farthest from its centroid; it stays empty only if no point is off its centroid.
    """
    m = distances.shape[0]
    restarts = draws.shape[0]
    centres = np.empty(k, np.int64)
    closest = np.empty(m, np.float32)
    attempt = np.empty(m, np.float32)
    chosen = np.empty(m, np.float32)
    summed = np.empty(m, np.float64)
    sums = np.empty((k, m), np.float32)
    counts = np.empty(k, np.int64)
    inside = np.empty(k, np.float64)
    nearest = np.empty(m, np.float32)
    labels = np.empty(m, np.int32)
    moved = np.empty(m, np.int32)
    lowest = np.inf
    for restart in range(restarts):
        # Seeding.
        first = min(int(draws[restart, 0] * m), m - 1)
        centres[0] = first
        total = 0.0
        for i in range(m):
            closest[i] = distances[first, i]
        at_draw = 1
        for c in range(1, k):
            total = 0.0
            for i in range(m):
                total += closest[i]
                summed[i] = total
            least = np.inf
            for _ in range(trials):
                want = draws[restart, at_draw] * total
                at_draw += 1
                candidate = min(np.searchsorted(summed, want), m - 1)
                left = np.float32(0)
                row = distances[candidate]
                for i in range(m):
                    attempt[i] = min(closest[i], row[i])
                    left += attempt[i]
                if left < least:
                    least = left
                    centres[c] = candidate
                    chosen[:] = attempt
            closest[:] = chosen
        # First assignment: to the centres themselves.
        row = distances[centres[0]]
        for i in range(m):
            nearest[i] = row[i]
            labels[i] = 0
        for c in range(1, k):
            row = distances[centres[c]]
            for i in range(m):
                closer = row[i] < nearest[i]
                nearest[i] = row[i] if closer else nearest[i]
                labels[i] = c if closer else labels[i]
        counts[:] = 0
        for i in range(m):
            counts[labels[i]] += 1
        _fill_empty(labels, counts, nearest)
        sums[:] = 0
        for j in range(m):
            target = sums[labels[j]]
            row = distances[j]
            for i in range(m):
                target[i] += row[i]
        # Rounds.
        for _ in range(_MOST_ROUNDS):
            inside[:] = 0
            for i in range(m):
                inside[labels[i]] += sums[labels[i], i]
            nearest[:] = np.inf
            for c in range(k):
                if counts[c] == 0:
                    continue
                scale = np.float32(1.0 / counts[c])
                shift = np.float32(inside[c] / (2.0 * counts[c] * counts[c]))
                row = sums[c]
                for i in range(m):
                    value = row[i] * scale - shift
                    closer = value < nearest[i]
                    nearest[i] = value if closer else nearest[i]
                    moved[i] = c if closer else moved[i]
            counts[:] = 0
            for i in range(m):
                counts[moved[i]] += 1
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
        inertia = 0.0
        for i in range(m):
            inertia += max(nearest[i], np.float32(0))
        if inertia < lowest:
            lowest = inertia
            best_labels[:] = labels
    return lowest


@compiled()
def _fill_empty(labels: Labels, counts: NDArray[np.int64], nearest: Floats) -> None:
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

    A point's value is (b - a) / max(a, b), with a its mean distance to the others of its
    cluster and b the least mean distance to another cluster; 0 for a point alone in its
    cluster. The values go to ``of_points`` (m,). With fewer than two clusters it is -1.
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
