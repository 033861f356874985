"""What stored vectors tell of an embedder: whether it knows the language, and the contrast rate.

An embedder of English gives all Hindi texts much the same vector. Then words have to count more
(``methods.default_methods``). The stored vectors tell, without labels and without embedding: does
it find documents by their sentences? The contrast rate says how many queries of a set it places
nearer their own document than any reference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import as_floats, unit_rows
from strop.search.layout import Layout
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Snapshot
from strop.types import Vectors

_AMONG, _SENTENCES = 1000, 200
"""So many documents are compared with a sentence of so many of them."""
_LEAST = 100
"""Fewer documents with several sentences say too little."""
_KNOWN = 0.33
"""The share that is found by an embedder that knows the texts. docs/log.md has those measured."""
_CONTRASTED = 2000
"""Documents whose queries are looked at for the contrast rate."""


def lacks_language(snapshot: Snapshot, sentences: str) -> bool:
    """Tell whether fewer documents are nearest to a sentence of their own than can be expected.

    Of many documents, the first 2^n are looked at, so that a few more do not change the answer.
    """
    spans, own, size = snapshot.sets[sentences], snapshot.documents, len(snapshot.numbers)
    if size > _AMONG:
        size = 1 << (size.bit_length() - 1)
    among = np.unique(np.linspace(0, size - 1, min(size, _AMONG)).astype(np.int64))
    several = np.flatnonzero(spans.count[among] > 1)
    if len(several) < _LEAST:
        return False
    sampled = several[np.unique(np.linspace(0, len(several) - 1, _SENTENCES).astype(np.int64))]
    places = among[sampled]
    documents = unit_rows(as_floats(own.vectors[own.start[among]]))
    # Not the first sentence, which may be the title.
    middle = spans.start[places] + spans.count[places] // 2
    cosines = unit_rows(as_floats(spans.vectors[middle])) @ documents.T
    nearest = cosines.max(axis=1) <= cosines[np.arange(len(sampled)), sampled] + 1e-6
    return bool(nearest.mean() < _KNOWN)


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
    for place in range(0, len(numbers), max(1, len(numbers) // _CONTRASTED)):
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
