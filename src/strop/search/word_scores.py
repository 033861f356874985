"""How much of a query's words each document has, from the words in the catalog.

BM25 is Lucene's, with k1 1.5 and b 0.75. A *word score* is a document's BM25 score divided by the
length of the query's own vector of term weights (words.py says why). In how many
documents a term occurs is counted while its postings are read. So it is exact for any combination
of sources, and removed documents have no part in it.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.search.scoring import largest
from strop.storage.word_reader import SourceWords, postings_of
from strop.storage.words import BLOCK, MOST, TEXT, Counts, Flags

K1, B = 1.5, 0.75
_COMPILED_FROM = 50_000
"""Documents from which it pays to load compiled code."""


class WordScorer:
    """Scores documents by the words of some sources at one moment."""

    def __init__(self, sources: Mapping[int, SourceWords]) -> None:
        """``sources`` by number; the documents are those that have words of their own text."""
        self._sources = sources
        self.documents = sources[TEXT].texts
        size = max(one.entries.shape[1] for one in sources.values())
        if size >= _COMPILED_FROM:  # whole blocks: compiled code must not write outside
            size = -(-size // BLOCK) * BLOCK
        lengths = np.zeros(size, np.float32)
        for one in sources.values():
            lengths[: one.entries.shape[1]] += one.entries[1]
        mean = sum(one.words for one in sources.values()) / max(self.documents, 1)
        self._norms = np.float32(K1 * B / (mean or 1)) * lengths + np.float32(K1 * (1 - B))

    def all(self, connection: sqlite3.Connection, terms: Sequence[str]) -> Floats:
        """Return the score of each document number, up to the last that has words."""
        size = len(self._norms)
        scores, totals = np.zeros(size, np.float32), np.zeros(size, np.uint8)
        count_term: Callable[..., int] = _count_term
        add_term: Callable[..., None] = _add_term
        if size >= _COMPILED_FROM:
            from strop.search import kernels

            count_term, add_term = kernels.count_term, kernels.add_term
        square = 0.0
        for term, times in Counter(terms).items():
            found = list(postings_of(connection, self._sources, term))
            holding = sum(
                count_term(totals[first:], places, counts, living)
                for first, places, counts, living in found
            )
            weight = math.log1p((self.documents - holding + 0.5) / (holding + 0.5)) * times
            square += weight * weight
            for first, places, _, _ in found:
                add_term(scores[first:], self._norms[first:], totals[first:], places, weight)
        scores /= np.float32(math.sqrt(square) or 1)
        return scores


def largest_scores(scores: Floats, k: int, least: float = 0.0) -> Ints:
    """Return the places of the k largest scores above 0 that reach ``least``, best first."""
    places = np.flatnonzero(scores >= max(_bound(scores, k), np.float32(least)))
    best: Ints = places[largest(scores[places], min(k, len(places)))]
    return best


def _count_term(totals: Counts, places: Ints, counts: Counts, living: Flags | None) -> int:
    """Add to how often documents have a term; return how many did not have it before."""
    if living is not None:
        which = living[places]
        places, counts = places[which], counts[which]
    before = totals[places]
    totals[places] = np.minimum(before.astype(np.uint16) + counts, MOST)
    return int((before == 0).sum())


def _add_term(scores: Floats, norms: Floats, totals: Counts, places: Ints, weight: float) -> None:
    """Add what a term gives to the documents that have it, and set their totals to 0."""
    often = totals[places].astype(np.float32)
    scores[places] += np.float32(weight) * often / (often + norms[places])
    totals[places] = 0


def _bound(scores: Floats, k: int) -> np.float32:
    """Return a value above 0 that at least k scores reach, or all above 0 do.

    The k-th of the first block: it spares sorting almost all of the others.
    """
    first = scores[:BLOCK]
    least = np.partition(first, len(first) - k)[len(first) - k] if k < len(first) else 0.0
    return max(np.float32(least), np.nextafter(np.float32(0), np.float32(1)))
