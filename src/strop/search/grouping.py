"""From chunks to documents: the best k documents, each by its best chunk.

A document's score is that of its best chunk, so the best documents are those of the first chunks of
a ranking that is long enough. How long that is shows only afterwards: it is searched deeper until
it has chunks of k documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.storage.catalog import Catalog

if TYPE_CHECKING:
    from strop.search.views import VersionCache

FIRST = 4
"""Chunks that are searched for each document wanted; then so many times more."""


def group(catalog: Catalog, cache: VersionCache, places: Ints) -> Ints:
    """Return a number for the document of the chunk at each place; in the snapshot's transaction.

    They are read from the catalog only once.
    """
    known_groups = cache.groups
    new = np.unique(places[known_groups[places] < 0])
    if len(new):
        known_groups[new] = catalog.documents.chunks.wholes(cache.snapshot.numbers[new])
    groups: Ints = known_groups[places]
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
