"""The compiled passes over the postings of a term; word_scores.py has the same in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats
from strop.common.compiled import compiled


@compiled()
def add_term(
    scores: Floats,
    norms: Floats,
    places: NDArray[np.uint16],
    counts: NDArray[np.uint8],
    weight: float,
) -> None:
    """Add what a term gives to the documents of one block that have it."""
    for at in range(len(places)):
        place, often = places[at], np.float32(counts[at])
        scores[place] += np.float32(weight) * often / (often + norms[place])


@compiled()
def keep_living(
    places: NDArray[np.uint16], counts: NDArray[np.uint8], living: NDArray[np.bool_]
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Return the postings of documents that count; ``living`` has all places of a block."""
    kept_places, kept_counts, kept = np.empty_like(places), np.empty_like(counts), 0
    for at in range(len(places)):
        kept_places[kept] = places[at]
        kept_counts[kept] = counts[at]
        kept += living[places[at]]
    return kept_places[:kept], kept_counts[:kept]
