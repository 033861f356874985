"""Explains a document's score: how much each of its stored queries contributed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.methods import Method
from strop.search.formula import LOWEST, VANISHED, Doubles, cosine, sharpened, softmax
from strop.search.scoring import Fetched
from strop.types import Vectors


@dataclass(frozen=True)
class QueryContribution:
    """A stored query's share of a document's score; all ``moved`` add up to the change."""

    set: str
    text: str
    similarity: float
    weight: float
    moved: float


@dataclass(frozen=True)
class Explanation:
    """The parts of a document's score: ``plain`` + sum of ``moved`` + ``words`` = ``score``."""

    id: str
    plain: float
    score: float
    queries: list[QueryContribution]
    words: float = 0.0


@dataclass(frozen=True)
class ScoreInputs:
    """What a document's score is computed from: its ``vector`` (dim,), the vectors (n, dim) of its
    stored ``queries``, set and text of each, and the ``word_score`` of the user's query.
    """

    vector: Vectors
    queries: Vectors
    texts: Sequence[tuple[str, str]]
    word_score: float = 0.0


def score_inputs_of(
    fetched: Fetched, texts: Sequence[Sequence[tuple[str, str]]], word_scores: NDArray[np.floating]
) -> list[ScoreInputs]:
    """Return the score inputs of fetched documents, with set and text of their queries."""
    rows = np.split(fetched.queries, np.cumsum(fetched.counts)[:-1])
    each = zip(fetched.documents, rows, texts, word_scores.tolist(), strict=True)
    return [ScoreInputs(*inputs) for inputs in each]


def explain(id_: str, query_vector: Vectors, inputs: ScoreInputs, method: Method) -> Explanation:
    """Explain one document's score for a query (dim,), lines (1) to (7)."""
    arrays = (query_vector, inputs.vector, inputs.queries)
    q, document, rows = (array.astype(np.float64) for array in arrays)
    words = method.words * inputs.word_score
    plain, similarities = float(q @ document), rows @ q
    if not document.any():
        plain = LOWEST
    if not len(rows):
        weights = moved = similarities
    elif method.weighting == "max":
        weights = softmax(similarities, 0.0)
        moved = weights * (similarities + float(q @ document) - plain)
    else:
        weights = softmax(similarities, method.softmax_temperature)
        moved = _contributions(plain, q, document, rows, weights, method.alpha)
    contributions = [
        QueryContribution(name, text, float(s), float(w), float(m))
        for (name, text), s, w, m in zip(inputs.texts, similarities, weights, moved, strict=True)
    ]
    contributions.sort(key=lambda contribution: -abs(contribution.moved))
    return Explanation(id_, plain, plain + float(moved.sum()) + words, contributions, words)


def _contributions(
    plain: float, q: Doubles, document: Doubles, rows: Doubles, weights: Doubles, alpha: float
) -> Doubles:
    """Return each query's share of the change of the score.

    With D = |d*| and plain score t, score - t = t (1 - cos(d, d*)) / D
    + sum_i alpha w_i (s_i - t cos(q_i, d*)) / D, exactly. The first term, which comes from turning
    the document's own vector, is shared among the queries by their weights.
    """
    built = sharpened(document, rows, weights, alpha)
    length = float(np.linalg.norm(built))
    vanished = VANISHED * max(1.0, abs(alpha))
    if length <= vanished or not document.any():  # d* vanishes, or d is zero
        return weights * (cosine(q, built, vanished) - plain)
    pulled = alpha * weights * (rows @ q - plain * (rows @ built) / length) / length
    turned = plain * (1 - float(document @ built) / length) / length
    return pulled + weights * turned
