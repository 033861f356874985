"""Why a document scores as it does: the part each of its stored queries played."""

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
    """One stored query's part in a document's score; the ``moved`` of all add up to the change."""

    set: str
    text: str
    similarity: float
    weight: float
    moved: float


@dataclass(frozen=True)
class Explanation:
    """Why a document scores as it does: ``plain`` + sum of ``moved`` + ``words`` = ``score``."""

    id: str
    plain: float
    score: float
    queries: list[QueryContribution]
    words: float = 0.0


@dataclass(frozen=True)
class ScoreInputs:
    """What a document's score is made of: its ``vector`` (dim,), the vectors (n, dim) of its
    stored ``queries``, set and text of each, and the ``word_score`` of the query's words.
    """

    vector: Vectors
    queries: Vectors
    texts: Sequence[tuple[str, str]]
    word_score: float = 0.0


def score_inputs_of(
    fetched: Fetched, texts: Sequence[Sequence[tuple[str, str]]], word_scores: NDArray[np.floating]
) -> list[ScoreInputs]:
    """Return the terms of fetched documents, with set and text of their queries."""
    rows = np.split(fetched.queries, np.cumsum(fetched.counts)[:-1])
    each = zip(fetched.documents, rows, texts, word_scores.tolist(), strict=True)
    return [ScoreInputs(*of) for of in each]


def explain(id_: str, query_vector: Vectors, terms: ScoreInputs, method: Method) -> Explanation:
    """Explain one document's score for a query (dim,), lines (1) to (7)."""
    arrays = (query_vector, terms.vector, terms.queries)
    q, own, rows = (array.astype(np.float64) for array in arrays)
    words = method.words * terms.word_score
    plain, similarities = float(q @ own), rows @ q
    if not own.any():
        plain = LOWEST
    if not len(rows):
        weights = moved = similarities
    elif method.weighting == "max":
        weights = softmax(similarities, 0.0)
        moved = weights * (similarities + float(q @ own) - plain)
    else:
        weights = softmax(similarities, method.softmax_temperature)
        moved = _parts(plain, q, own, rows, weights, method.alpha)
    parts = [
        QueryContribution(name, text, float(s), float(w), float(m))
        for (name, text), s, w, m in zip(terms.texts, similarities, weights, moved, strict=True)
    ]
    parts.sort(key=lambda part: -abs(part.moved))
    return Explanation(id_, plain, plain + float(moved.sum()) + words, parts, words)


def _parts(
    plain: float, q: Doubles, own: Doubles, rows: Doubles, weights: Doubles, alpha: float
) -> Doubles:
    """Return each query's part of the change of the score.

    With D = |d*| and plain score t, score - t = t (1 - cos(d, d*)) / D
    + sum_i alpha w_i (s_i - t cos(q_i, d*)) / D, exactly. The first term, which comes from turning
    the document's own vector, is divided by weight.
    """
    built = sharpened(own, rows, weights, alpha)
    length = float(np.linalg.norm(built))
    vanished = VANISHED * max(1.0, abs(alpha))
    if length <= vanished or not own.any():  # the queries cancel the document, or are all there is
        return weights * (cosine(q, built, vanished) - plain)
    pulled = alpha * weights * (rows @ q - plain * (rows @ built) / length) / length
    turned = plain * (1 - float(own @ built) / length) / length
    return pulled + weights * turned
