"""The contrast rate: how many queries of a set the embedder places nearer their own document."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import unit_rows
from strop.search.layout import Layout
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Snapshot
from strop.types import Vectors

_SAMPLE = 2000
"""Documents that are looked at."""


def contrast_rate(
    catalog: Catalog, snapshot: Snapshot, layout: Layout, negative: bool
) -> float | None:
    """Return the share of a set's queries nearer their document than all its references.

    ``layout`` is of that set alone. Queries of ``negative`` sets should be nearer a reference.
    An even sample of the documents is used; None if none of them has references.
    """
    numbers = snapshot.numbers
    place_of = {number: place for place, number in enumerate(numbers.tolist())}
    masks = []
    for place in range(0, len(numbers), max(1, len(numbers) // _SAMPLE)):
        selected = catalog.references.of(int(numbers[place]))
        if selected is None or not selected.references:
            continue
        others = [catalog.documents.number_of(one.id) for one in selected.references]
        vectors = [layout.document(place_of[number]) for number in others if number in place_of]
        own, queries = layout.document(place), layout.queries(place)
        mask = nearer_own(queries, own, np.array(vectors, np.float32))
        masks.append(~mask if negative else mask)
    return float(np.concatenate(masks).mean()) if sum(map(len, masks)) else None


def nearer_own(
    query_vectors: Vectors, own_vector: Vectors, reference_vectors: Vectors
) -> NDArray[np.bool_]:
    """Say of each query whether it is nearer its own document than every reference.

    Shapes: (queries, dim), (dim,), (references, dim). Without references each is.
    """
    if not len(reference_vectors):
        return np.ones(len(query_vectors), np.bool_)
    own = query_vectors @ unit_rows(own_vector[None])[0]
    others = query_vectors @ unit_rows(reference_vectors).T
    nearer: NDArray[np.bool_] = own > others.max(axis=1)
    return nearer
