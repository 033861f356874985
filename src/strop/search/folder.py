"""The documents of an index folder as a store (``ranking.Store``).

With a prefilter, its best documents and those with the best word scores are candidates; without
one, all documents are. Vectors are memory-mapped, so compiled code fetches and scores in one pass
(layout.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.methods import Method
from strop.search.layout import Layout
from strop.search.scoring import best_of, best_of_all, score
from strop.search.words import QueryWordScores, Words
from strop.types import Vectors

if TYPE_CHECKING:
    from strop.search.prefilter.prefilter import Prefilter

FIRST_DEPTH = 50
"""If words count, at least this many documents of the dense ranking are examined first."""
_APPROXIMATE_DEPTH, _DEPTH_FACTOR = 20, 1.5
"""The depth for the prefilter, whose time grows with it: at least the first number, and ``depth``
times the second."""
_RESCORED_FACTOR, _RESCORED = 20, 1000
"""At most this many documents are scored because of their words: the first number times the depth
of the dense ranking, or the second number if that is larger."""


def first_depth(k: int) -> int:
    """Return the depth to which the dense ranking is computed at first, for the best k."""
    return max(FIRST_DEPTH, 2 * k)


@dataclass(frozen=True)
class FolderStore:
    """The documents of a layout; ``prefilter`` is None if all are to be scored."""

    layout: Layout
    method: Method
    words: Words | None = None
    prefilter: Prefilter | None = None
    compared: list[Ints] = field(default_factory=list)
    """The places of documents that feedback compared: the hits' scores depend on their vectors."""

    @property
    def size(self) -> int:
        """The number of documents."""
        return self.layout.size

    def documents(self, places: Ints) -> Vectors:
        """Return the documents' own vectors (n, dim)."""
        self.compared.append(places)
        return self.layout.documents(places)

    def best(
        self, query_vectors: Vectors, texts: Sequence[str], k: int, depth: int
    ) -> tuple[Floats, Ints]:
        """Return the best ``depth`` documents for each query: ``ranking.Store.best``."""
        if texts:
            return self._best_with_words(query_vectors, texts, k, depth)
        return self._best_by_vector(query_vectors, depth)

    def _best_by_vector(self, query_vectors: Vectors, depth: int) -> tuple[Floats, Ints]:
        """Return the best without words; exact, unless there is a prefilter."""
        search = self.layout.scan if self.prefilter is None else self.prefilter.search
        return search(query_vectors, self.method, depth)

    def _best_with_words(
        self, query_vectors: Vectors, texts: Sequence[str], k: int, depth: int
    ) -> tuple[Floats, Ints]:
        """Return the best by line (7): dense score + ``method.words`` * word score.

        The dense ranking is computed to some depth. A document after it scores at most the
        ranking's last score + ``method.words`` * its own word score. The word scores of all
        documents are known, so those that can be among the best are scored too. If they are too
        many, an exact ranking is computed again to a greater depth. A ranking by the prefilter is
        not: a document that is missed would need nearly the last dense score and nearly the largest
        word score. With a prefilter only the best k are complete in this sense; the others are the
        best of the documents that were scored.
        """
        assert self.words is not None
        best = np.zeros((len(texts), depth), np.float32)
        places = np.zeros((len(texts), depth), np.int64)
        if not depth:
            return best, places
        if self.layout.small:  # all documents are scored
            for at, total in enumerate(score(query_vectors, self.layout.fetched, self.method)):
                total += np.float32(self.method.words) * self.words.scores(texts[at])
                best[at], places[at] = best_of_all(total, depth)
            return best, places
        exact = self.prefilter is None
        complete = depth if exact else k
        examined = first_depth(depth)
        if not exact:
            examined = max(_APPROXIMATE_DEPTH, 2 * complete, int(_DEPTH_FACTOR * depth))
        pending, examined = np.arange(len(texts)), min(self.size, examined)
        while len(pending):
            scores, ranked = self._best_by_vector(query_vectors[pending], examined)
            undecided, limit = [], max(_RESCORED_FACTOR * examined, _RESCORED)
            for row, at in enumerate(pending.tolist()):
                dense, word_scores = (scores[row], ranked[row]), self.words.of(texts[at])
                best[at], places[at], missed = self._merge_candidates(
                    query_vectors[at], dense, word_scores, (complete, depth), limit
                )
                if missed and exact and examined < self.size:
                    undecided.append(at)
            pending, examined = np.array(undecided, np.int64), min(self.size, 8 * examined)
        return best, places

    def _merge_candidates(
        self,
        query_vector: Vectors,
        dense: tuple[Floats, Ints],
        word_scores: QueryWordScores,
        sizes: tuple[int, int],
        limit: int,
    ) -> tuple[Floats, Ints, bool]:
        """Return the best by line (7), of the documents of a dense ranking and of others.

        ``sizes`` are how many of the best must be complete, and how many to return. Of the
        documents outside the ranking, at most about ``limit`` are scored. Also returns whether
        others could be among those that must be complete.
        """
        complete, depth = sizes
        method, weight, (dense_scores, places) = self.method, np.float32(self.method.words), dense
        sharpened = method if method.sharpens else replace(method, alpha=0.0, weighting="softmax")
        total = dense_scores + weight * word_scores.at(places)
        last = float(dense_scores[-1])

        def add(others: Ints) -> None:
            nonlocal total, places
            others = np.setdiff1d(others, places)
            scores = self.layout.rescore(query_vector, others, sharpened)
            scores += weight * word_scores.at(others)
            total, places = np.concatenate([total, scores]), np.concatenate([places, others])

        def needed() -> float:
            """Return the word score that makes a document after the ranking one of the best."""
            best = float(best_of(total, places, complete)[0][-1])
            return (best - last) / float(weight)

        add(word_scores.best(len(dense_scores)))
        others = word_scores.best(limit + 1, needed())
        add(others[:limit])
        missed = len(others) > limit and bool(word_scores.at(others[limit:])[0] >= needed())
        return *best_of(total, places, depth), missed
