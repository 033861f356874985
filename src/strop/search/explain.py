"""Why a document scores as it does: the part each of its stored queries played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.methods import Method
from strop.search.kernels import softmax
from strop.types import Vectors

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Moved:
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
    queries: list[Moved]
    words: float = 0.0


def explain(
    id_: str,
    asked: Vectors,
    document: Vectors,
    queries: Vectors,
    texts: Sequence[tuple[str, str]],
    method: Method,
    words: float = 0.0,
) -> Explanation:
    """Explain one document's score: asked (dim,), document (dim,), queries (n, dim).

    ``texts`` says of each query which set it is from and what it says; ``words`` is what the
    document's words added.
    """
    question = asked.astype(np.float64)
    own, rows = document.astype(np.float64), queries.astype(np.float64)
    plain, sims = float(question @ own), rows @ question
    if not len(rows):
        weights = moved = sims
    elif method.weighting == "max":
        weights = softmax(sims, 0.0)
        moved = weights * sims
    else:
        weights = softmax(sims, method.temperature)
        moved = _shares(plain, own, rows, sims, weights, method.alpha)
    parts = [
        Moved(name, text, float(s), float(w), float(m))
        for (name, text), s, w, m in zip(texts, sims, weights, moved, strict=True)
    ]
    parts.sort(key=lambda part: -abs(part.moved))
    return Explanation(id_, plain, plain + float(moved.sum()) + words, parts, words)


def _shares(
    plain: float, own: Doubles, rows: Doubles, sims: Doubles, weights: Doubles, alpha: float
) -> Doubles:
    """Return each query's share of the change of the score.

    With D = |d*| and plain score t, score - t = t (1 - cos(d, d*)) / D
    + sum_i alpha w_i (s_i - t cos(q_i, d*)) / D, exactly. The first part, the room made by
    turning the document's own vector, is shared out by weight.
    """
    built = own + alpha * (weights @ rows)
    length = float(np.linalg.norm(built))
    if length < 1e-10 * max(1.0, abs(alpha)):
        return -weights * plain  # the queries cancel the document: the score is 0
    pulled = alpha * weights * (sims - plain * (rows @ built) / length) / length
    turned = plain * (1 - float(own @ built) / length) / length
    return pulled + weights * turned
