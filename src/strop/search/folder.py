"""The documents of a view, ranked by propose, fetch, score (scoring.py).

``FolderStore`` proposes everything if the index is small. If it is large, it proposes the documents
with the best estimates of the prefilter and the best word scores. ``FolderStore.best``, which
users' searches call, does the same steps in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.methods import Method
from strop.search.feedback import ranked_first, with_feedback
from strop.search.layout import Layout
from strop.search.scoring import Fetched
from strop.search.words import DEPTH, Words, best_with_words, first_depth, fuse
from strop.types import Vectors

if TYPE_CHECKING:
    from strop.search.prefilter.prefilter import Prefilter


@dataclass(frozen=True)
class FolderStore:
    """The documents of a view as a ``scoring.Store``."""

    layout: Layout
    prefilter: Prefilter | None
    words: Words | None

    def propose(
        self, query_vectors: Vectors, query_texts: Sequence[str], k: int, method: Method
    ) -> list[Ints]:
        """Return for each query the places of documents that can be among its best k."""
        every_place = np.arange(self.layout.size)
        if self.prefilter is None:
            return [every_place] * len(query_vectors)
        depth = first_depth(k) if self.words else k
        proposals = []
        for at, query_vector in enumerate(query_vectors):
            places = self.prefilter.search(query_vector[None], method, depth)[1][0]
            if self.words:
                places = np.union1d(places, self.words.of(query_texts[at]).best(depth))
            proposals.append(np.sort(places))
        return proposals

    def fetch(self, places: Ints, query_texts: Sequence[str], method: Method) -> Fetched:
        """Return what scoring these documents needs."""
        fetched = self.layout.fetch(places)
        if self.words is None:
            return fetched
        word_scores = np.array([self.words.of(text).at(places) for text in query_texts])
        return replace(fetched, word_scores=word_scores)

    def best(
        self,
        query_vectors: Vectors,
        query_texts: Sequence[str],
        k: int,
        method: Method,
        compared: list[Ints] | None = None,
    ) -> tuple[Floats, Ints]:
        """Return the best k documents for each query: scores and places, (n, k).

        ``compared`` collects the places of documents that feedback compares: the hits' scores
        depend on their vectors.
        """
        layout, k = self.layout, min(k, self.layout.size)

        def documents(places: Ints) -> Vectors:
            if compared is not None:
                compared.append(places)
            return layout.documents(places)

        if method.bm25 == "no":
            ranked = self._ranked(query_vectors, query_texts, k, method)
            return with_feedback(ranked, documents, method, k)
        assert self.words is not None
        depth = max(k, DEPTH)
        by_words = self.words.rank(query_texts, depth)
        if method.bm25 == "only":
            return by_words[0][:, :k], by_words[1][:, :k]
        dense = layout.scan(query_vectors, method, depth)
        return fuse(dense, by_words, layout.size, k)

    def _ranked(
        self, query_vectors: Vectors, query_texts: Sequence[str], k: int, method: Method
    ) -> tuple[Floats, Ints]:
        """Return the best k, or as many as feedback re-ranks."""
        layout, depth = self.layout, ranked_first(k, method, self.layout.size)
        approximate = None if self.prefilter is None else self.prefilter.search
        if self.words is None:
            return (approximate or layout.scan)(query_vectors, method, depth)
        return best_with_words(
            layout, self.words, query_texts, query_vectors, method, depth, approximate,
            k if approximate else depth,
        )  # fmt: skip
