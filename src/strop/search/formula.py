"""The score, written out: the reference that every kernel is tested against.

For a user's query q, a document's vector d and its stored queries q_i, all of unit length::

    (1)  s_i  = q . q_i                              similarity of a stored query
    (2)  w    = softmax(s / T)                       weights; T 0 is the maximum, T infinite is 1/n
    (3)  d*   = d + alpha * sum_i w_i q_i            the sharpened document
    (4)  sharp  = q . d* / |d*|                      the paper's score, a cosine
    (5)  trad   = q . d                              plain retrieval: alpha 0, or no stored queries
    (6)  maxsim = q . d + max_i s_i
    (7)  score  = (4) or (5) + words * w            w: BM25 over the length of the query (words.py)
    (8)  score += feedback * spread * sum_j v_j cos(d - m, d_j - m)        among the best 50 only

d* is rarely built. With u_i = d . q_i and the Gram matrix G_ij = q_i . q_j, which do not depend on
the user's query, (4) is the same as::

    (4g) sharp = (q.d + alpha * sum w_i s_i) / sqrt(d.d + 2 alpha * sum w_i u_i + alpha^2 w'Gw)

In (8) m is the mean of the best documents' vectors, spread the standard deviation of their scores,
and v the softmax of the scores of the best 10 over half the spread. A document that is more similar
to these 10 than the others are gains: they show what is meant better than the query alone.

A vector of length zero (an empty text) has no direction: it gets the lowest value of a cosine, so
that it ranks last. Everything here is in double precision and for one document;
``KERNELS`` lists which line each faster form computes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.methods import Method

Doubles = NDArray[np.float64]

HARD_MAX = 1e-12
"""No two float32 cosines differ by so little: below this temperature softmax is the maximum."""
NEARLY_ZERO = 0.05
"""Below this squared length of d* line (4g) has too few digits in float32, and (4) is used."""
LOWEST = -1.0
"""The score of a document without a vector: the lowest value of a cosine."""
VANISHED = 1e-10
"""Up to this length, d* consists of rounding errors only."""
FEEDBACK_DOCUMENTS = 10
"""Line (8) compares each of the top documents with this many of the best ones."""
FEEDBACK_TEMPERATURE = 0.5
"""Temperature of the feedback weights, in standard deviations of the scores."""

KERNELS = {
    "kernels.unit_floats": "the unit length of stored rows, for all lines",
    "kernels.products_of_few": "(1) and (5), few queries",
    "kernels.products_of_few_stored": "(1) and (5), few queries, int8 rows",
    "kernels.gram_of_documents": "d.d, u and G of (4g)",
    "kernels.exp_of": "the exponential of (2)",
    "kernels.sharpened_block": "(2) and (4g), several queries, best k",
    "kernels.sharpened_at": "(1) to (4), some documents",
    "kernels.maxsim_block": "(6), and (5) without sets, best k",
    "kernels.offer": "the best k of any line",
    "scoring.score": "(1) to (6) with (4g), in numpy, all documents of a group; (4) for one query",
    "explain.explain": "(1) to (7), one document, and the share of each stored query",
    "folder.FolderStore": "(7), best k",
    "feedback.with_feedback": "(8), best k",
    "kernels.add_term": "the word score of (7), one term; in numpy words.WordScorer",
    "prefilter.codes.sign_products": "estimate of (5) with d + mean of q_i for d",
    "prefilter.codes.estimated_scores": "estimate of (1), (2) and (4g)",
}
"""Every faster form by its name in ``strop.search``, with the lines that it computes.

Outside of ``strop.search``, (1) to (4) are in ``engines/postgres_sql.py`` and ``engines/duckdb.py``
(SQL for users without strop), (1) to (5) and (7) in ``server/page/formula.js``, and (3) with equal
weights in ``engines/export.py``. ``engines/copies.py`` adds (7) to ``scoring.score``.
"""


def softmax(similarities: NDArray[np.floating], temperature: float) -> Doubles:
    """Line (2); at temperature 0, several equally large similarities share the weight."""
    values = np.asarray(similarities, np.float64)
    if temperature < HARD_MAX:  # the largest as float32 sees it, like the kernels
        rounded = values.astype(np.float32)
        weights = (rounded == rounded.max()).astype(np.float64)
    else:
        weights = np.exp((values - values.max()) / temperature)
    shares: Doubles = weights / weights.sum()
    return shares


def sharpened(document: Doubles, queries: Doubles, weights: Doubles, alpha: float) -> Doubles:
    """Line (3): document (dim,), queries (n, dim), weights (n,)."""
    return document + alpha * (weights @ queries)


def cosine(query_vector: Doubles, vector: Doubles, vanished: float = VANISHED) -> float:
    """Return q.v / |v|, and -1 for a vector without a direction."""
    length = float(np.linalg.norm(vector))
    return float(query_vector @ vector) / length if length > vanished else LOWEST


def reference(
    query_vector: NDArray[np.floating],
    document: NDArray[np.floating],
    queries: NDArray[np.floating],
    method: Method,
) -> float:
    """Return the score of one document: (dim,), (dim,), (n, dim); line (4), (5) or (6)."""
    q, d, rows = (np.asarray(x, np.float64) for x in (query_vector, document, queries))
    if method.weighting == "none" or not len(rows):
        if not d.any():
            return LOWEST
        return cosine(q, d) if method.sharpens else float(q @ d)
    similarities = rows @ q
    if method.weighting == "max":
        return float(q @ d + similarities.max())
    if not method.alpha:
        return cosine(q, d)
    weights = softmax(similarities, method.softmax_temperature)
    built = sharpened(d, rows, weights, method.alpha)
    return cosine(q, built, VANISHED * max(1.0, abs(method.alpha)))


def feedback_scores(scores: NDArray[np.floating], documents: NDArray[np.floating]) -> Doubles:
    """Return what line (8) adds at weight 1 to the top documents, best first: (n,), (n, dim)."""
    values, vectors = np.asarray(scores, np.float64), np.asarray(documents, np.float64)
    spread = float(values.std())
    if not 0 < spread < np.inf:  # all scores are equal; or NaN, from damaged vectors
        return np.zeros(len(values))
    centred = vectors - vectors.mean(axis=0)
    lengths = np.sqrt(np.einsum("nd,nd->n", centred, centred))
    # To unit length; 0 for a document without a vector.
    scale = vectors.any(axis=1) / np.maximum(lengths, VANISHED)
    best = slice(FEEDBACK_DOCUMENTS)
    weights = softmax(values[best], FEEDBACK_TEMPERATURE * spread)
    added: Doubles = spread * scale * (centred @ ((weights * scale[best]) @ centred[best]))
    return added
