"""The contrast rate's arithmetic."""

from __future__ import annotations

import numpy as np

from strop.search.contrast import nearer_own


def test_nearer_own_compares_with_every_reference() -> None:
    queries = np.array([[1, 0], [0, 1], [0.8, 0.6], [0.6, 0.6]], np.float32)
    own = np.array([2, 0], np.float32)
    references = np.array([[0, 3], [0.1, 0.1]], np.float32)
    assert nearer_own(queries, own, references).tolist() == [True, False, False, False]
    assert nearer_own(queries, own, references[:1]).tolist() == [True, False, True, False]
    assert nearer_own(queries, own, references[:0]).all()
    assert not len(nearer_own(queries[:0], own, references))
