"""BM25 over the documents' words: alone, fused with a dense ranking, or inside its score.

Inside the score it counts as the share of the query's words that a document has: its BM25 score
divided by the most any text could reach for this query. Rare words weigh more, and words that no
document has count as missing too. So a share lies between 0 and 1 like a cosine, means the same for
every query and corpus, and stays small where a query shares only a stray word with a document.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.errors import MissingExtra, StropError
from strop.methods import Method
from strop.search.formula import LOWEST
from strop.search.layout import Layout
from strop.search.scoring import best_of, largest, score
from strop.types import Vectors

DEPTH = 1000
"""How many documents of each ranking a fusion looks at."""
FIRST_DEPTH = 200
"""How many of each ranking are looked at first, where words are part of the score."""
_RRF = 60
"""Cormack et al.'s constant: a document at rank r of a list adds 1 / (60 + r)."""


def countable() -> bool:
    """Tell whether the extra that counts words is installed."""
    return bool(find_spec("bm25s") and find_spec("Stemmer"))


class MissingWords(MissingExtra):
    """The extra is not installed; a user may not know that ``sharp`` was tuned to count words."""

    def __init__(self) -> None:
        StropError.__init__(
            self,
            "counting words (bm25, hybrid, words=, or a sharp that was tuned to count words) needs"
            " an optional part: pip install 'strop[bm25]'. Without it use sharp:words=0, or"
            " strop tune INDEX --reset if sharp was tuned",
        )


class Words:
    """BM25 (Lucene's, k1 1.5, b 0.75) with English stop words and stems, made by bm25s."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Count the words of ``texts``, one a document."""
        try:
            import bm25s
            import Stemmer
        except ImportError:
            raise MissingWords from None
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it would tell each step
        self._split = bm25s.tokenize
        self._stems = Stemmer.Stemmer("english")
        split = self._tokens(list(texts))
        self._size = len(split)
        self._holding = Counter(word for words in split for word in set(words))
        self._model: Any = None
        if any(split):  # bm25s refuses a corpus without words
            self._model = bm25s.BM25()
            self._model.index(split, show_progress=False)

    def rank(self, queries: Sequence[str], k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each query: scores and places, (n, k).

        Documents that share no word with the query score 0 and come last.
        """
        k = min(k, self._size)
        best = np.zeros((len(queries), k), np.float32)
        places = np.zeros((len(queries), k), np.int64)
        for at, words in enumerate(self._tokens(list(queries))):
            scores = self._scores(words)
            places[at] = largest(scores, k)
            best[at] = scores[places[at]]
        return best, places

    def share(self, query: str) -> Floats:
        """Return how much of the query's words each document has, from 0 to 1 (size,)."""
        words = self._tokens([query])[0]
        most = sum(map(self._rarity, words))
        shares: Floats = self._scores(words) / np.float32(most or 1)
        return shares

    def _rarity(self, word: str) -> float:
        """Return what BM25 gives a word at most."""
        holding = self._holding[word]
        return math.log1p((self._size - holding + 0.5) / (holding + 0.5))

    def _scores(self, words: list[str]) -> Floats:
        if self._model is None or not words:
            return np.zeros(self._size, np.float32)
        scores: Floats = self._model.get_scores(words)
        return scores

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        if not texts:
            return []
        tokens: list[list[str]] = self._split(
            texts, stopwords="en", stemmer=self._stems, return_ids=False, show_progress=False
        )
        return tokens


def fuse(
    dense: tuple[Floats, Ints], words: tuple[Floats, Ints], size: int, k: int
) -> tuple[Floats, Ints]:
    """Fuse two rankings (scores, places) of the same queries by reciprocal rank: the best k.

    ``size`` is the number of documents. A document with no word of the query, or with the
    lowest dense score (it has no text), is not in that ranking.
    """
    k = min(k, size)
    best = np.zeros((len(dense[0]), k), np.float32)
    places = np.zeros((len(dense[0]), k), np.int64)
    for at in range(len(best)):
        total = np.zeros(size, np.float32)
        for (scores, ranked), least in ((dense, LOWEST), (words, 0.0)):
            worth = 1 / (_RRF + 1 + np.arange(ranked.shape[1], dtype=np.float32))
            counts = scores[at] > least
            total[ranked[at][counts]] += worth[counts]
        places[at] = largest(total, k)
        best[at] = total[places[at]]
    return best, places


Ranked = Callable[[Vectors, Method, int], tuple[Floats, Ints]]


def best_with_words(
    layout: Layout,
    words: Words,
    queries: Sequence[str],
    query_vectors: Vectors,
    method: Method,
    k: int,
    dense_search: Ranked | None = None,
) -> tuple[Floats, Ints]:
    """Return the best k documents by line (7): dense score + ``method.words`` * share of words.

    ``query_vectors`` (n, dim) stand for the queries. The dense ranking (exact, or that of
    ``dense_search``) and the ranking by words are followed to some depth. A document in neither
    scores at most the sum of their last scores; only where the k-th best is not above that, they
    are followed further.
    """
    size, k = layout.size, min(k, layout.size)
    moved = layout.moved(query_vectors, method)
    best = np.zeros((len(queries), k), np.float32)
    places = np.zeros((len(queries), k), np.int64)
    if layout.small:  # all are scored
        for at, dense in enumerate(score(moved, layout.fetched, method) if k else ()):
            total = dense + np.float32(method.words) * words.share(queries[at])
            places[at] = largest(total, k)
            best[at] = total[places[at]]
        return best, places
    exact = method if method.sharpens else replace(method, alpha=0.0, weighting="softmax")
    left, depth = np.arange(len(queries) if k else 0), min(size, max(FIRST_DEPTH, 2 * k))
    while len(left):
        search = dense_search or layout.scan
        scores, ranked = search(query_vectors[left], method, depth)
        undecided = []
        for row, at in enumerate(left.tolist()):
            shares = np.float32(method.words) * words.share(queries[at])
            first = largest(shares, depth)
            others = np.setdiff1d(first, ranked[row])
            found = np.concatenate([ranked[row], others])
            known = np.concatenate([scores[row], layout.rescore(moved[at], others, exact)])
            best[at], places[at] = best_of(known + shares[found], found, k)
            if depth < size and best[at, -1] <= scores[row, -1] + shares[first[-1]]:
                undecided.append(at)
        left, depth, dense_search = np.array(undecided, np.int64), min(size, 8 * depth), None
    return best, places
