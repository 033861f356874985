"""Contrastive references: the neighbours that a document's queries must distinguish it from.

For each document: find its nearest neighbours, cluster them by KMeans for each k of a range, take
the k with the best mean silhouette, and from each cluster the neighbour nearest the centroid.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strop.common.arrays import Floats, Ints, read_only, unit_rows
from strop.common.compiled import compiled, copy_to
from strop.common.threads import in_parts
from strop.references.clustering import Labels, kmeans, silhouette, squared_distances
from strop.references.neighbors import nearest_neighbors
from strop.references.settings import ReferenceSettings, seeding_trials
from strop.types import Progress, Vectors

_AT_ONCE = 1024
"""Documents between two reports of progress."""


class References(NamedTuple):
    """References of n documents, at most ``largest`` each, most similar first.

    ``rows`` (n, largest) int64, -1 after the last; ``similarities`` (n, largest) float32 to the
    document; ``cluster_sizes`` (n, largest) int64; ``silhouettes`` (n,) float32, the mean
    silhouette of the clusters (0 if there are none).
    """

    rows: Ints
    similarities: Floats
    cluster_sizes: Ints
    silhouettes: Floats


def select_references(
    vectors: ArrayLike,
    settings: ReferenceSettings | None = None,
    *,
    method: str = "auto",
    progress: Progress | None = None,
) -> References:
    """Choose the references of every row of ``vectors`` (n, dim), scaled to unit length.

    A document with at most ``smallest`` neighbours gets them all as references. If all neighbours
    are equal, it gets the first ``smallest``. A zero row gets none.
    """
    settings = settings or ReferenceSettings()
    points = unit_rows(np.asarray(vectors))
    near = nearest_neighbors(points, settings.neighbors, method=method, progress=progress)
    return choose_references(points, near.rows, near.similarities, settings, progress=progress)


def choose_references(
    vectors: Vectors,
    neighbors: Ints,
    similarities: Floats,
    settings: ReferenceSettings,
    progress: Progress | None = None,
) -> References:
    """Choose among known ``neighbors`` (documents, m), rows of ``vectors``, -1 for none."""
    n = len(neighbors)
    chosen = References(
        np.full((n, settings.largest), -1, np.int64),
        np.zeros((n, settings.largest), np.float32),
        np.zeros((n, settings.largest), np.int64),
        np.zeros(n, np.float32),
    )
    vectors, draws = read_only(vectors), settings.draws()  # vectors in files are read-only
    trials = np.array([seeding_trials(k) for k in range(settings.smallest, settings.largest + 1)])
    for at in range(0, n, _AT_ONCE):
        part = slice(at, at + _AT_ONCE)
        in_parts(
            len(neighbors[part]),
            partial(
                _choose, vectors, neighbors[part], similarities[part], settings.smallest, draws,
                trials, chosen.rows[part], chosen.similarities[part], chosen.cluster_sizes[part],
                chosen.silhouettes[part],
            ),
        )  # fmt: skip
        if progress is not None:
            progress("choosing references", min(at + _AT_ONCE, n), n)
    return chosen


@compiled()
def _choose(
    vectors: Vectors, neighbors: Ints, similarities: Floats, smallest: int,
    draws: NDArray[np.float64], trials: Ints, rows: Ints, row_similarities: Floats, sizes: Ints,
    silhouettes: Floats, first: int, last: int,
) -> None:  # fmt: skip
    """Choose the references of the documents ``first:last``."""
    for document in range(first, last):
        m = 0
        while m < neighbors.shape[1] and neighbors[document, m] >= 0:
            m += 1
        labels, squares = np.empty(m, np.int32), np.empty((m, m), np.float32)
        k = 0
        if m > smallest:
            points = np.empty((m, vectors.shape[1]), np.float32)
            for at in range(m):
                copy_to(points[at], vectors[neighbors[document, at]])
            squared_distances(points, squares)
            k, silhouettes[document] = _best_clusters(squares, smallest, draws, trials, labels)
        if k == 0:  # too few neighbours to cluster, or all are equal: the first are taken
            for at in range(min(m, smallest)):
                rows[document, at] = neighbors[document, at]
                row_similarities[document, at] = similarities[document, at]
                sizes[document, at] = 1
            continue
        nearest, counts = _nearest_to_centroids(squares, labels, k)
        chosen = 0
        for at in range(m):  # in order of similarity
            if nearest[labels[at]] == at:
                rows[document, chosen] = neighbors[document, at]
                row_similarities[document, chosen] = similarities[document, at]
                sizes[document, chosen] = counts[labels[at]]
                chosen += 1


@compiled()
def _best_clusters(
    squares: Floats, smallest: int, draws: NDArray[np.float64], trials: Ints, best_labels: Labels
) -> tuple[int, float]:
    """Write the labels of the k with the best silhouette; return k and it, or (0, 0.0)."""
    m = len(squares)
    lengths = np.sqrt(squares)
    labels = np.empty(m, np.int32)
    of_points = np.empty(m, np.float32)
    best, best_k = -1.0, 0
    for at in range(min(len(trials), m - smallest)):
        k = smallest + at
        kmeans(squares, k, trials[at], draws[at], labels)
        value = silhouette(lengths, labels, k, of_points)
        if value > best:
            best, best_k = value, k
            copy_to(best_labels, labels)
    return best_k, best if best_k else 0.0


@compiled()
def _nearest_to_centroids(squares: Floats, labels: Labels, k: int) -> tuple[Ints, Ints]:
    """Return for each cluster the point nearest its centroid, and its number of points.

    A point's distance to its centroid grows with the sum of its squared distances to the members.
    """
    m = len(labels)
    sums = np.zeros(m, np.float32)
    counts = np.zeros(k, np.int64)
    nearest = np.full(k, -1, np.int64)
    for at in range(m):
        c = labels[at]
        for other in range(m):
            if labels[other] == c:
                sums[at] += squares[at, other]
        counts[c] += 1
        if nearest[c] < 0 or sums[at] < sums[nearest[c]]:
            nearest[c] = at
    return nearest, counts
