"""Contrastive references: the neighbours a document is to be told apart from.

For each document: its nearest neighbours, KMeans on them for each k of a range, the k with the
best mean silhouette, and from each cluster the neighbour nearest the centroid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strop.common.arrays import Floats, Ints, unit_rows
from strop.common.compiled import compiled
from strop.common.threads import in_parts
from strop.errors import BadInput
from strop.references.clustering import kmeans, silhouette, squared_distances
from strop.references.neighbors import nearest_neighbors
from strop.types import Progress, Vectors

_AT_ONCE = 1024
"""Documents between two reports of progress."""


@dataclass(frozen=True)
class ReferenceSettings:
    """How references are chosen; the defaults are the paper's.

    The same ``seed`` serves every document, so a document's references depend on its
    neighbours alone and not on its place in the corpus.
    """

    neighbors: int = 100
    smallest: int = 3
    largest: int = 10
    restarts: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.smallest <= self.largest:
            raise BadInput(
                f"k must be a range from 2 or more up, such as 3:10, not "
                f"{self.smallest}:{self.largest}"
            )
        if self.neighbors < 1 or self.restarts < 1:
            raise BadInput("the numbers of neighbours and of restarts must be 1 or more")

    def draws(self) -> NDArray[np.float64]:
        """Return the random numbers for every k: (number of k, restarts, draws)."""
        sizes = range(self.smallest, self.largest + 1)
        widest = 1 + (self.largest - 1) * _trials(self.largest)
        made = np.zeros((len(sizes), self.restarts, widest))
        for at, k in enumerate(sizes):
            needed = 1 + (k - 1) * _trials(k)
            generator = np.random.RandomState(self.seed)
            made[at, :, :needed] = generator.random_sample((self.restarts, needed))
        return made


class References(NamedTuple):
    """References of n documents, at most ``largest`` each, most similar first.

    ``rows`` (n, largest) int64, -1 behind the last; ``similarities`` (n, largest) float32 to the
    document; ``cluster_sizes`` (n, largest) int64; ``silhouettes`` (n,) float32, the mean of the
    clustering they are from (0 where none was made).
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
    memory: int = 500_000_000,
    progress: Progress | None = None,
) -> References:
    """Choose the references of every row of ``vectors`` (n, dim), made unit rows.

    A document with no more neighbours than the smallest k has them all as references; one whose
    neighbours are all equal has as many as the smallest k, the first. A row of zeros has none.
    """
    settings = settings or ReferenceSettings()
    points = unit_rows(np.asarray(vectors))
    near = nearest_neighbors(
        points, settings.neighbors, method=method, memory=memory, progress=progress
    )
    return choose_references(points, near.rows, near.similarities, settings, progress=progress)


def choose_references(
    vectors: Vectors,
    neighbors: Ints,
    similarities: Floats,
    settings: ReferenceSettings,
    progress: Progress | None = None,
) -> References:
    """Choose among known neighbours: rows of ``vectors`` (documents, m), -1 for none."""
    n = len(neighbors)
    chosen = References(
        np.full((n, settings.largest), -1, np.int64),
        np.zeros((n, settings.largest), np.float32),
        np.zeros((n, settings.largest), np.int64),
        np.zeros(n, np.float32),
    )
    draws = settings.draws()
    trials = np.array([_trials(k) for k in range(settings.smallest, settings.largest + 1)])
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


def _trials(k: int) -> int:
    """Return how many candidates are weighed for each centre, as scikit-learn does."""
    return 2 + int(np.log(k))


@compiled()
def _take_first(
    document: int, neighbors: Ints, similarities: Floats, rows: Ints, of_rows: Floats,
    sizes: Ints, count: int,
) -> None:  # fmt: skip
    """Take the nearest neighbours as they are, where there is nothing to cluster."""
    for at in range(count):
        rows[document, at] = neighbors[document, at]
        of_rows[document, at] = similarities[document, at]
        sizes[document, at] = 1


@compiled()
def _choose(
    vectors: Vectors, neighbors: Ints, similarities: Floats, smallest: int,
    draws: NDArray[np.float64], trials: Ints, rows: Ints, of_rows: Floats, sizes: Ints,
    silhouettes: Floats, first: int, last: int,
) -> None:  # fmt: skip
    largest = smallest + len(trials) - 1
    for document in range(first, last):
        m = 0
        while m < neighbors.shape[1] and neighbors[document, m] >= 0:
            m += 1
        if m <= smallest:
            _take_first(document, neighbors, similarities, rows, of_rows, sizes, m)
            continue
        points = np.empty((m, vectors.shape[1]), np.float32)
        for at in range(m):
            points[at] = vectors[neighbors[document, at]]
        squares = np.empty((m, m), np.float32)
        squared_distances(points, squares)
        lengths = np.sqrt(squares)
        labels = np.empty(m, np.int32)
        kept = np.empty(m, np.int32)
        of_points = np.empty(m, np.float32)
        best, best_k = -1.0, 0
        for k in range(smallest, min(largest, m - 1) + 1):
            at = k - smallest
            kmeans(squares, k, trials[at], draws[at], labels)
            value = silhouette(lengths, labels, k, of_points)
            if value > best:
                best, best_k = value, k
                kept[:] = labels
        if best_k == 0:  # all neighbours are equal: no clusters to speak of
            _take_first(document, neighbors, similarities, rows, of_rows, sizes, smallest)
            continue
        silhouettes[document] = best
        # A point's distance to its centroid grows with its squared distances to the members.
        away = np.zeros(m, np.float32)
        counts = np.zeros(best_k, np.int64)
        nearest = np.full(best_k, -1, np.int64)
        for at in range(m):
            for other in range(m):
                if kept[other] == kept[at]:
                    away[at] += squares[at, other]
            c = kept[at]
            counts[c] += 1
            if nearest[c] < 0 or away[at] < away[nearest[c]]:
                nearest[c] = at
        taken = 0
        for at in range(m):  # in order of similarity
            if nearest[kept[at]] == at:
                rows[document, taken] = neighbors[document, at]
                of_rows[document, taken] = similarities[document, at]
                sizes[document, taken] = counts[kept[at]]
                taken += 1
