"""Feedback: the top documents are re-ranked by their similarity to the very best of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.methods import Method
from strop.search.formula import feedback_scores
from strop.search.scoring import best_of
from strop.types import Vectors

FEEDBACK_DEPTH = 50
"""This many of the best documents are re-ranked; with fewer there is no feedback."""


def ranked_first(k: int, method: Method, size: int) -> int:
    """Return how many of ``size`` documents a search for the best k has to rank at first."""
    return min(size, max(k, FEEDBACK_DEPTH) if method.feedback else k)


def with_feedback(
    ranked: tuple[Floats, Ints], vectors: Callable[[Ints], Vectors], method: Method, k: int
) -> tuple[Floats, Ints]:
    """Return the best k after feedback, line (8), of scores and places (queries, n), best first.

    ``vectors`` returns the documents' own vectors. Documents after those that are re-ranked stay
    after them, so the best k are the first of the best 2 k.
    """
    scores, places = ranked
    if not method.feedback or scores.shape[1] < FEEDBACK_DEPTH:
        return scores[:, :k], places[:, :k]
    scores, places = scores.copy(), places.copy()
    for top_scores, top_places in zip(
        scores[:, :FEEDBACK_DEPTH], places[:, :FEEDBACK_DEPTH], strict=True
    ):
        added = feedback_scores(top_scores, vectors(top_places))
        total = top_scores + np.float32(method.feedback) * added.astype(np.float32)
        top_scores[:], top_places[:] = best_of(total, top_places, FEEDBACK_DEPTH)
    last = scores[:, FEEDBACK_DEPTH - 1 : FEEDBACK_DEPTH]
    scores[:, FEEDBACK_DEPTH:] = np.minimum(scores[:, FEEDBACK_DEPTH:], last)
    return scores[:, :k], places[:, :k]
