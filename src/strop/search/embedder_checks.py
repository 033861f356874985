"""What stored vectors show about an embedder: whether it knows the language, and the contrast rate.

An embedder for English gives all Hindi texts nearly the same vector. Then words have to count more
(``methods.default_methods``). The stored vectors show, without labels and without embedding,
whether it finds documents by their sentences. The contrast rate is the share of a set's queries
that it places nearer to their own document than to any reference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import as_floats, unit_rows
from strop.search.layout import Layout
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Snapshot
from strop.types import Vectors

_DOCUMENTS, _SENTENCES = 1000, 200
"""This many documents are compared with this many sentences, each of another document."""
_MIN_DOCUMENTS = 100
"""With fewer documents that have several sentences, nothing is concluded."""
_MIN_SHARE = 0.33
"""An embedder that knows the language finds at least this share; docs/log.md has the figures."""
_CONTRASTED = 2000
"""About this many documents are examined for the contrast rate."""


def lacks_language(snapshot: Snapshot, sentences: str) -> bool:
    """Return whether fewer sentences are nearest to their own document than can be expected.

    Of many documents, only the first 2^n are used, so that a few new ones do not change the answer.
    """
    spans, documents, size = snapshot.sets[sentences], snapshot.documents, len(snapshot.numbers)
    if size > _DOCUMENTS:
        size = 1 << (size.bit_length() - 1)
    pool = np.unique(np.linspace(0, size - 1, min(size, _DOCUMENTS)).astype(np.int64))
    several = np.flatnonzero(spans.count[pool] > 1)
    if len(several) < _MIN_DOCUMENTS:
        return False
    sampled = several[np.unique(np.linspace(0, len(several) - 1, _SENTENCES).astype(np.int64))]
    places = pool[sampled]
    pool_vectors = unit_rows(as_floats(documents.vectors[documents.start[pool]]))
    # Not the first sentence, which may be the title.
    middle = spans.start[places] + spans.count[places] // 2
    cosines = unit_rows(as_floats(spans.vectors[middle])) @ pool_vectors.T
    nearest = cosines.max(axis=1) <= cosines[np.arange(len(sampled)), sampled] + 1e-6
    return bool(nearest.mean() < _MIN_SHARE)


def contrast_rate(
    catalog: Catalog, snapshot: Snapshot, layout: Layout, negative: bool
) -> float | None:
    """Return the share of a set's queries nearer to their document than to all its references.

    ``layout`` has that set only. Queries of ``negative`` sets should be nearer to a reference.
    An even sample of the documents is used; None if none of them has references.
    """
    numbers = snapshot.numbers
    place_of = {number: place for place, number in enumerate(numbers.tolist())}
    masks = []
    for place in range(0, len(numbers), max(1, len(numbers) // _CONTRASTED)):
        selected = catalog.references.of(int(numbers[place]))
        if selected is None or not selected.references:
            continue
        references = [catalog.documents.number_of(one.id) for one in selected.references]
        vectors = [layout.document(place_of[number]) for number in references if number in place_of]
        document, queries = layout.document(place), layout.queries(place)
        mask = nearer_own(queries, document, np.array(vectors, np.float32))
        masks.append(~mask if negative else mask)
    return float(np.concatenate(masks).mean()) if sum(map(len, masks)) else None


def nearer_own(
    query_vectors: Vectors, own_vector: Vectors, reference_vectors: Vectors
) -> NDArray[np.bool_]:
    """Return for each query whether it is nearer to its own document than to every reference.

    Shapes: (queries, dim), (dim,), (references, dim). Without references all are True.
    """
    if not len(reference_vectors):
        return np.ones(len(query_vectors), np.bool_)
    own_products = query_vectors @ unit_rows(own_vector[None])[0]
    reference_products = query_vectors @ unit_rows(reference_vectors).T
    nearer: NDArray[np.bool_] = own_products > reference_products.max(axis=1)
    return nearer
