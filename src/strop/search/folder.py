"""The documents of a view, ranked: all of them where the index is small, else candidates.

Propose, fetch and score (scoring.py) are done in one pass here: that is what users wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strop.common.arrays import Floats, Ints
from strop.methods import Method
from strop.search.feedback import ranked_first, with_feedback
from strop.search.layout import Layout
from strop.search.words import DEPTH, Words, best_with_words, fuse
from strop.types import Vectors

if TYPE_CHECKING:
    from strop.search.prefilter.prefilter import Prefilter


@dataclass(frozen=True)
class Folder:
    """The documents of a view, what proposes candidates among them, and their words."""

    layout: Layout
    prefilter: Prefilter | None
    words: Words | None

    def best(
        self,
        query_vectors: Vectors,
        query_texts: Sequence[str],
        k: int,
        method: Method,
        compared: list[Ints] | None = None,
    ) -> tuple[Floats, Ints]:
        """Return the best k documents for each query: scores and places, (n, k).

        ``query_vectors`` are as they are compared (``Layout.moved``). ``compared`` gets the places
        of the documents that feedback compares: the scores of hits rest on their vectors too.
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
        """Return the best k, or as many as feedback ranks again."""
        layout, first = self.layout, ranked_first(k, method, self.layout.size)
        approximate = None if self.prefilter is None else self.prefilter.search
        if self.words is None:
            return (approximate or layout.scan)(query_vectors, method, first)
        return best_with_words(
            layout, self.words, query_texts, query_vectors, method, first, approximate,
            k if approximate else first,
        )  # fmt: skip
