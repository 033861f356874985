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
from numpy.typing import NDArray

from strop.common.arrays import Floats, Ints
from strop.search.scoring import largest
from strop.storage.word_reader import Postings, SourceWords, pooled_postings
from strop.storage.words import BLOCK, TEXT

K1, B = 1.5, 0.75
_COMPILED_FROM = 50_000


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
        scores = np.zeros(len(self._norms), np.float32)
        (keep, add), square = _kernels(len(scores)), 0.0
        for term, times in Counter(terms).items():
            found = [keep(one) for one in pooled_postings(connection, self._sources, term)]
            holding = sum(len(one.places) for one in found)
            weight = math.log1p((self.documents - holding + 0.5) / (holding + 0.5)) * times
            square += weight * weight
            for block, places, counts, _ in found:
                here = slice(block * BLOCK, (block + 1) * BLOCK)
                add(scores[here], self._norms[here], places, counts, weight)
        scores /= np.float32(math.sqrt(square) or 1)
        return scores


def largest_scores(scores: Floats, k: int, least: float = 0.0) -> Ints:
    """Return the places of the k largest scores above 0 that reach ``least``, best first."""
    places = np.flatnonzero(scores >= max(_bound(scores, k), np.float32(least)))
    best: Ints = places[largest(scores[places], min(k, len(places)))]
    return best


def _kernels(size: int) -> tuple[Callable[[Postings], Postings], Callable[..., None]]:
    """Return what drops postings that do not count, and what adds up a term's postings.

    It is compiled code only where it pays to load it.
    """
    if size < _COMPILED_FROM:
        return _keep_living, _add_term
    from strop.search.word_kernels import add_term, keep_living

    def keep(postings: Postings) -> Postings:
        block, places, counts, living = postings
        if living is None:
            return postings
        return Postings(block, *keep_living(places, counts, living), None)

    return keep, add_term


def _keep_living(postings: Postings) -> Postings:
    block, places, counts, living = postings
    if living is None:
        return postings
    which = living[places]
    return Postings(block, places[which], counts[which], None)


def _add_term(
    scores: Floats,
    norms: Floats,
    places: NDArray[np.uint16],
    counts: NDArray[np.uint8],
    weight: float,
) -> None:
    """Add what a term gives to the documents of one block that have it."""
    often = counts.astype(np.float32)
    scores[places] += np.float32(weight) * often / (often + norms[places])


def _bound(scores: Floats, k: int) -> np.float32:
    """Return a value above 0 that at least k scores reach, or all above 0 do.

    The k-th of the first block: it spares sorting almost all of the others.
    """
    first = scores[:BLOCK]
    least = np.partition(first, len(first) - k)[len(first) - k] if k < len(first) else 0.0
    return max(np.float32(least), np.nextafter(np.float32(0), np.float32(1)))
