"""From chunks to documents: the best k documents, each by its best chunk.

A document's score is that of its best chunk, so the best documents are those of the first chunks of
a ranking that is long enough. The length is not known in advance: the search goes deeper until the
ranking has chunks of k documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.storage.catalog import Catalog

if TYPE_CHECKING:
    from strop.search.views import VersionCache

DEPTH_FACTOR = 4
"""The first search is for this many chunks per document; each further one for this many times
as many chunks."""


def group(catalog: Catalog, cache: VersionCache, places: Ints) -> Ints:
    """Return the number of the parent of the chunk at each place.

    Numbers are read from the catalog only once; call it in the snapshot's transaction.
    """
    cached_groups = cache.groups
    new = np.unique(places[cached_groups[places] < 0])
    if len(new):
        cached_groups[new] = catalog.documents.chunks.parents(cache.snapshot.numbers[new])
    groups: Ints = cached_groups[places]
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
    depth = min(size, DEPTH_FACTOR * k)
    while True:
        scores, places = search(depth)
        groups = group(places)
        firsts = [np.sort(np.unique(row, return_index=True)[1])[:k] for row in groups]
        fewest = min(map(len, firsts), default=0)
        if fewest >= k or depth >= size:
            chosen = np.array([row[:fewest] for row in firsts], np.int64).reshape(
                len(firsts), fewest
            )
            return np.take_along_axis(scores, chosen, 1), np.take_along_axis(places, chosen, 1)
        depth = min(size, DEPTH_FACTOR * depth)
