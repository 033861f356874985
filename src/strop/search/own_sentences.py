"""Whether an embedder knows the language of an index: does it find documents by their sentences?

An embedder of English gives all Hindi texts much the same vector. Then words have to count more
(``methods.default_methods``). The stored vectors tell, without labels and without embedding.
"""

from __future__ import annotations

import numpy as np

from strop.common.arrays import as_floats, unit_rows
from strop.storage.snapshot import Snapshot

_AMONG, _SAMPLE = 1000, 200
"""So many documents are compared with a sentence of so many of them."""
_LEAST = 100
"""Fewer documents with several sentences say too little."""
_KNOWN = 0.33
"""The share that is found by an embedder that knows the texts. docs/log.md has those measured."""


def is_blind(snapshot: Snapshot, sentences: str) -> bool:
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
    sampled = several[np.unique(np.linspace(0, len(several) - 1, _SAMPLE).astype(np.int64))]
    places = among[sampled]
    documents = unit_rows(as_floats(own.vectors[own.start[among]]))
    # Not the first sentence, which may be the title.
    middle = spans.start[places] + spans.count[places] // 2
    cosines = unit_rows(as_floats(spans.vectors[middle])) @ documents.T
    nearest = cosines.max(axis=1) <= cosines[np.arange(len(sampled)), sampled] + 1e-6
    return bool(nearest.mean() < _KNOWN)
