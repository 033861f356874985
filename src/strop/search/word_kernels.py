"""The compiled passes over the postings of a term; word_scores.py has the same in numpy."""

from __future__ import annotations

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.common.compiled import compiled
from strop.storage.words import MOST, Counts, Flags


@compiled()
def count_term(totals: Counts, places: Ints, counts: Counts, living: Flags | None) -> int:
    """Add to how often documents have a term; return how many did not have it before."""
    new = 0
    for at in range(len(places)):
        place = places[at]
        if living is None or living[place]:
            before = totals[place]
            new += before == 0
            totals[place] = min(np.uint16(before) + np.uint16(counts[at]), MOST)
    return new


@compiled()
def add_term(scores: Floats, norms: Floats, totals: Counts, places: Ints, weight: float) -> None:
    """Add what a term gives to the documents that have it, and set their totals to 0."""
    for at in range(len(places)):
        place = places[at]
        often = np.float32(totals[place])
        if often:
            scores[place] += np.float32(weight) * often / (often + norms[place])
            totals[place] = 0
