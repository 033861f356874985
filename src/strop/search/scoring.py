"""Scores of documents whose vectors were fetched, in numpy, and the order of scores.

``score`` serves small folders and published copies. Large folders are scored by compiled code
(layout.py) that computes the same lines of ``formula.py``.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.common.threads import one_blas_thread
from strop.methods import Method
from strop.search.formula import HARD_MAX, LOWEST, NEARLY_ZERO, reference
from strop.types import Vectors

_QUERIES_AT_ONCE = 64
_THREADS_FROM = 8
_EQUAL = np.float32(5e-7)
"""Scores that differ by at most this much count as equal. Two documents with the same text can
differ by as much, and their order would depend on the order in which a processor adds."""


@dataclass(frozen=True)
class Fetched:
    """What scoring n documents needs: ``documents`` (n, dim), their ``queries`` (rows, dim) one
    document after the other, and ``counts`` (n,) of these.
    """

    documents: Vectors
    queries: Vectors
    counts: Ints

    @cached_property
    def has(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Flags of the places of ``padded`` (n, longest) that contain a query."""
        longest = int(self.counts.max(initial=0))
        return np.arange(longest) < self.counts[:, None]

    @cached_property
    def padded(self) -> Vectors:
        """The queries (n, longest, dim), with zeros after a document's last query."""
        rows = np.zeros((*self.has.shape, self.documents.shape[1]), np.float32)
        rows[self.has] = self.queries
        return rows

    @cached_property
    def gram(self) -> tuple[Floats, Floats, Floats]:
        """Return d.d (n,), u (n, longest) and G (n, longest, longest) of line (4g)."""
        d, rows = self.documents, self.padded
        return (
            np.einsum("nd,nd->n", d, d),
            np.einsum("nd,nmd->nm", d, rows),
            rows @ rows.transpose(0, 2, 1),
        )


def score(
    query_vectors: Vectors, fetched: Fetched, method: Method, *, once: bool = False
) -> Floats:
    """Return the scores (queries, n) of fetched documents, lines (1) to (6) of formula.py.

    ``once``: these documents were fetched for one query, so d* is built instead of Gram matrices.
    """
    if once and method.sharpens and method.alpha and fetched.counts.any():
        blocks = [_sharpened(query_vector, fetched, method)[None] for query_vector in query_vectors]
    else:
        # For few queries BLAS's threads cost more than they save on a busy machine (docs/log.md).
        with one_blas_thread() if len(query_vectors) < _THREADS_FROM else nullcontext():
            blocks = [
                _score(query_vectors[at : at + _QUERIES_AT_ONCE], fetched, method)
                for at in range(0, len(query_vectors), _QUERIES_AT_ONCE)
            ]
    return np.concatenate([np.empty((0, len(fetched.documents)), np.float32), *blocks])


def _sharpened(q: Vectors, fetched: Fetched, method: Method) -> Floats:
    """Compute lines (1) to (5) for one query (dim,) by building d*: scores (n,)."""
    from scipy.sparse import csr_array  # importing takes 0.2 s; not for small folders

    # Not by BLAS: starting and limiting its threads takes longer than these products.
    sims: Floats = np.einsum("nd,d->n", fetched.queries, q)
    plain: Floats = np.einsum("nd,d->n", fetched.documents, q)
    queried = fetched.counts > 0
    counts = fetched.counts[queried]
    begin = np.cumsum(counts) - counts
    peak = np.repeat(np.maximum.reduceat(sims, begin), counts)
    weights, keep, add = _weights(sims, peak, method)
    weights *= add / np.repeat(np.add.reduceat(weights, begin), counts)
    ends, columns = np.append(begin, len(sims)), np.arange(len(sims))
    built = csr_array((weights, columns, ends), (len(begin), len(sims))) @ fetched.queries
    built += keep * fetched.documents[queried]
    squared_norm = np.einsum("nd,nd->n", built, built)
    scores = plain
    scores[~queried & ~fetched.documents.any(axis=1)] = LOWEST
    products = np.einsum("nd,d->n", built, q)
    scores[queried] = products / np.sqrt(np.maximum(squared_norm, np.float32(NEARLY_ZERO)))
    for at in np.flatnonzero(squared_norm <= NEARLY_ZERO).tolist():
        place = int(np.flatnonzero(queried)[at])
        own_queries = fetched.queries[begin[at] : begin[at] + counts[at]]
        scores[place] = reference(q, fetched.documents[place], own_queries, method)
    return scores


def _score(q: Vectors, fetched: Fetched, method: Method) -> Floats:
    """Compute lines (1) to (6); shapes are (queries, n, longest)."""
    plain: Floats = q @ fetched.documents.T
    unused = method.weighting == "none" or (method.sharpens and not method.alpha)
    queried = (fetched.counts > 0) & (not unused)
    plain[:, ~fetched.documents.any(axis=1) & ~queried] = LOWEST
    if not queried.any():
        return plain
    rows = fetched.padded
    sims = (q @ rows.reshape(-1, rows.shape[2]).T).reshape(len(q), *rows.shape[:2])
    peak = np.where(fetched.has, sims, -np.inf).max(axis=2, keepdims=True)
    peak[:, ~queried] = 0
    if method.weighting == "max":
        best: Floats = plain + peak[:, :, 0]
        return best
    sims = np.where(fetched.has, sims, peak)
    weights, keep, add = _weights(sims, peak, method)
    weights *= fetched.has
    weights /= np.maximum(weights.sum(axis=2, keepdims=True), np.float32(1e-30))
    self_dots, doc_dots, gram = fetched.gram
    square = np.einsum("qnm,qnm->qn", np.matmul(weights[:, :, None], gram)[:, :, 0], weights)
    along = np.einsum("qnm,nm->qn", weights, doc_dots)
    squared_norm = keep * keep * self_dots + 2 * keep * add * along
    squared_norm += add * add * square
    numerator = keep * plain + add * np.einsum("qnm,qnm->qn", weights, sims)
    scores: Floats = numerator / np.sqrt(np.maximum(squared_norm, np.float32(NEARLY_ZERO)))
    scores[:, ~queried] = plain[:, ~queried]
    begin = np.cumsum(fetched.counts) - fetched.counts
    for at, place in np.argwhere((squared_norm <= NEARLY_ZERO) & queried).tolist():
        own_queries = fetched.queries[begin[place] : begin[place] + fetched.counts[place]]
        scores[at, place] = reference(q[at], fetched.documents[place], own_queries, method)
    return scores


def _weights(sims: Floats, peak: Floats, method: Method) -> tuple[Floats, np.float32, np.float32]:
    """Return the weights of line (2) before division by their sum, and two factors.

    These are the factors of d and of its queries in d*. They are scaled so that neither alpha nor
    its square can overflow.
    """
    if method.softmax_temperature < HARD_MAX:
        weights = (sims == peak).astype(np.float32)
    else:
        weights = np.exp((sims - peak) / np.float32(method.softmax_temperature))
    scale = max(1.0, abs(method.alpha))
    return weights, np.float32(1.0 / scale), np.float32(method.alpha / scale)


def best_of(scores: Floats, places: Ints, k: int) -> tuple[Floats, Ints]:
    """Return the best k along the last axis; of equal scores the earlier document comes first."""
    order = np.lexsort((places, -scores), axis=-1)
    if scores.ndim == 1:  # called many times in a search, so it must be fast
        scores, places = scores[order], places[order]
    else:
        scores = np.take_along_axis(scores, order, -1)
        places = np.take_along_axis(places, order, -1)
    return scores[..., :k], _in_order(scores, places)[..., :k]


def _in_order(scores: Floats, places: Ints) -> Ints:
    """Return places, best first, with those of equal scores in ascending order."""
    with np.errstate(invalid="ignore"):  # the difference of two infinite scores
        equal = scores[..., :-1] - scores[..., 1:] <= _EQUAL
    if not equal.any():
        return places
    group = np.zeros(places.shape, np.int64)
    np.cumsum(~equal, axis=-1, out=group[..., 1:])
    ordered: Ints = np.take_along_axis(places, np.lexsort((places, group), axis=-1), -1)
    return ordered


def best_of_all(scores: Floats, k: int) -> tuple[Floats, Ints]:
    """Return the best k of all documents by their scores (n,): scores and places."""
    places = largest(scores, k)
    best = scores[places]
    return best, _in_order(best, places)


def largest(scores: Floats, k: int) -> Ints:
    """Return the places of the k largest of scores (n,), best first; of equal ones the earlier.

    NaN, which only damaged vectors cause, counts as the largest: returned rows are verified.
    """
    scores = np.where(np.isnan(scores), np.inf, scores)
    chosen = np.arange(len(scores))
    if k < len(scores):
        edge = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > edge)
        chosen = np.concatenate([above, np.flatnonzero(scores == edge)[: k - len(above)]])
    places: Ints = chosen[np.lexsort((chosen, -scores[chosen]))]
    return places
