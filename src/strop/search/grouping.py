"""From chunks to documents: the best k documents, each by its best chunk.

A document's score is that of its best chunk, so the best documents are those of the first chunks of
a ranking that is long enough. How long that is shows only afterwards: it is searched deeper until
it has chunks of k documents.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Snapshot

FIRST = 4
"""Chunks that are searched for each document wanted; then so many times more."""


class Groups:
    """Which document each chunk of the newest snapshot belongs to, read when it is wanted."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: tuple[int, Ints] = -1, np.empty(0, np.int64)

    def of(self, snapshot: Snapshot, places: Ints) -> Ints:
        """Return a number for the document of each place; within the snapshot's transaction."""
        version, known = self._known
        if version != snapshot.version or len(known) != len(snapshot.numbers):
            known = np.full(len(snapshot.numbers), -1, np.int64)
            self._known = snapshot.version, known
        new = np.unique(places[known[places] < 0])
        if len(new):
            wholes = self._catalog.documents.chunks.wholes(snapshot.numbers[new])
            known[new] = wholes
        groups: Ints = known[places]
        return groups


def best_documents(
    search: Callable[[int], tuple[Floats, Ints]],
    group: Callable[[Ints], Ints],
    k: int,
    size: int,
) -> tuple[Floats, Ints]:
    """Return scores and places (queries, k) of the best chunks of the best k documents.

    ``search(n)`` returns the best n of ``size`` chunks, ``group`` the document of each place.
    """
    depth = min(size, FIRST * k)
    while True:
        scores, places = search(depth)
        groups = group(places)
        firsts = [np.sort(np.unique(row, return_index=True)[1])[:k] for row in groups]
        fewest = min((len(one) for one in firsts), default=0)
        if fewest >= k or depth >= size:
            chosen = np.array([one[:fewest] for one in firsts], np.int64).reshape(
                len(firsts), fewest
            )
            return np.take_along_axis(scores, chosen, 1), np.take_along_axis(places, chosen, 1)
        depth = min(size, FIRST * depth)
