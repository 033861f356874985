"""The one way to search: ``rank``, for an index folder and for a published copy.

A *store* has the documents that one search considers, and the method. ``Store.best`` proposes
candidates, fetches their vectors and scores them, lines (1) to (7) of ``formula.py``: how it finds
candidates is its own matter, the scores are not. ``rank`` does what no store may do differently:
fusion by rank, and feedback, line (8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.methods import Method
from strop.search.feedback import ranked_first, with_feedback
from strop.search.formula import LOWEST
from strop.search.scoring import largest
from strop.search.words import Words
from strop.types import Vectors

FUSED_DEPTH = 1000
"""How many documents of each ranking are fused."""
_RRF = 60
"""Cormack et al.'s constant: a document at rank r of a list adds 1 / (60 + r)."""


class Store(Protocol):
    """The documents that one search considers; a *place* is a position in it, 0 to ``size`` - 1."""

    @property
    def method(self) -> Method:
        """The method of the search."""

    @property
    def size(self) -> int:
        """The number of documents."""

    @property
    def words(self) -> Words | None:
        """The words of the documents; None only if the method counts none."""

    def best(
        self, query_vectors: Vectors, texts: Sequence[str], k: int, depth: int
    ) -> tuple[Floats, Ints]:
        """Propose, fetch, score: return the best ``depth`` documents for each query.

        Returns exact scores and places (n, depth), best first. Words count if there are ``texts``.
        ``k`` is the number of hits. Documents after the best ``k`` can become hits by feedback
        only, so a store may find them from fewer candidates.
        """

    def documents(self, places: Ints) -> Vectors:
        """Return the documents' own vectors (n, dim)."""


def rank(store: Store, query_vectors: Vectors, texts: Sequence[str], k: int) -> tuple[Floats, Ints]:
    """Return the best k documents for each query: scores and places, (n, k)."""
    method, k = store.method, min(k, store.size)
    if method.bm25 == "no":
        depth = ranked_first(k, method, store.size)
        ranked = store.best(query_vectors, texts if method.words else (), k, depth)
        return with_feedback(ranked, store.documents, method, k)
    assert store.words is not None, "a method that ranks by BM25 counts words"
    if method.bm25 == "only":
        return store.words.rank(texts, k)
    depth = min(max(k, FUSED_DEPTH), store.size)
    dense = store.best(query_vectors, (), depth, depth)
    return fuse(dense, store.words.rank(texts, depth), store.size, k)


def fuse(
    dense: tuple[Floats, Ints], words: tuple[Floats, Ints], size: int, k: int
) -> tuple[Floats, Ints]:
    """Fuse two rankings (scores, places) of the same queries by reciprocal rank; return the best k.

    ``size`` is the number of documents. A document with no word of the query, or with the
    lowest dense score (it has no text), is not in that ranking.
    """
    k = min(k, size)
    best = np.zeros((len(dense[0]), k), np.float32)
    places = np.zeros((len(dense[0]), k), np.int64)
    for at in range(len(best)):
        total = np.zeros(size, np.float32)
        for (scores, ranked), floor in ((dense, LOWEST), (words, 0.0)):
            by_rank = 1 / (_RRF + 1 + np.arange(ranked.shape[1], dtype=np.float32))
            counts = scores[at] > floor
            total[ranked[at][counts]] += by_rank[counts]
        places[at] = largest(total, k)
        best[at] = total[places[at]]
    return best, places
