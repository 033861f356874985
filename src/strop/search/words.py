"""BM25 over the documents' words, and the word score: BM25 made to be added to a cosine.

The word score is a product of two vectors of terms, like the cosine that it is added to. The
query's vector has the weight of each term (its rarity) and is scaled to length one. The document's
vector has values from 0 to 1 that grow with how often the term occurs. So the weight of words means
the same for queries of any length, words that no document has count as missing, and a document's
score does not depend on the scores of other documents.

BM25 is Lucene's, with k1 1.5 and b 0.75. A *word score* is a document's BM25 score divided by the
length of the query's vector of term weights. The document frequency of a term is counted while its
postings are read. So it is exact for any combination of sources, and removed documents are not
counted.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.io.languages import SAMPLE, detect_languages
from strop.io.tokenizer import Tokenizer
from strop.search.scoring import largest
from strop.storage.word_reader import SourceWords, count_in_memory, load_source, postings_of
from strop.storage.words import BLOCK, MOST, TEXT, Counts, Flags

K1, B = 1.5, 0.75
_COMPILED_FROM = 50_000
"""From this many documents on, compiled code saves more time than loading it takes."""
CACHED_SCORES_BYTES = 500_000_000
"""Memory for the word scores of queries, if many searches have the same queries."""


class WordScorer:
    """Scores documents by the words of some sources, as they are in one version of an index."""

    def __init__(self, sources: Mapping[int, SourceWords]) -> None:
        """``sources`` by number; the documents are those in the source ``TEXT``."""
        self._sources = sources
        self.documents = sources[TEXT].texts
        size = max(source.entries.shape[1] for source in sources.values())
        if size >= _COMPILED_FROM:  # whole blocks: compiled code must not write outside
            size = -(-size // BLOCK) * BLOCK
        lengths = np.zeros(size, np.float32)
        for source in sources.values():
            lengths[: source.entries.shape[1]] += source.entries[1]
        mean = sum(source.words for source in sources.values()) / max(self.documents, 1)
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
            postings = list(postings_of(connection, self._sources, term))
            frequency = sum(
                count_term(totals[first:], places, counts, living)
                for first, places, counts, living in postings
            )
            weight = math.log1p((self.documents - frequency + 0.5) / (frequency + 0.5)) * times
            square += weight * weight
            for first, places, _, _ in postings:
                add_term(scores[first:], self._norms[first:], totals[first:], places, weight)
        scores /= np.float32(math.sqrt(square) or 1)
        return scores


def largest_scores(scores: Floats, k: int, min_score: float = 0.0) -> Ints:
    """Return the places of the k largest scores above 0 and from ``min_score``, best first."""
    first = scores[:BLOCK]  # k scores reach its k-th score: almost all others need no sorting
    kth = np.partition(first, len(first) - k)[len(first) - k] if k < len(first) else 0.0
    bound = max(np.float32(min_score), np.float32(kth), np.nextafter(np.float32(0), np.float32(1)))
    places = np.flatnonzero(scores >= bound)
    best: Ints = places[largest(scores[places], min(k, len(places)))]
    return best


def _count_term(totals: Counts, places: Ints, counts: Counts, living: Flags | None) -> int:
    """Add term counts to the documents' totals; return how many documents had no count before."""
    if living is not None:
        alive = living[places]
        places, counts = places[alive], counts[alive]
    previous = totals[places]
    totals[places] = np.minimum(previous.astype(np.uint16) + counts, MOST)
    return int((previous == 0).sum())


def _add_term(scores: Floats, norms: Floats, totals: Counts, places: Ints, weight: float) -> None:
    """Add a term's BM25 score to the documents that contain it, and set their totals to 0."""
    frequencies = totals[places].astype(np.float32)
    scores[places] += np.float32(weight) * frequencies / (frequencies + norms[places])
    totals[places] = 0


@dataclass(frozen=True)
class QueryWordScores:
    """The word score of each document for one query, from 0 to 1."""

    by_number: Floats
    numbers: Ints
    """The document number of each place, ascending."""
    complete: bool
    """Whether these are all documents: some may have no vector yet, or be filtered out."""

    def at(self, places: Ints) -> Floats:
        """Return the word scores of the documents at these places."""
        scores: Floats = self.by_number[self.numbers[places]]
        return scores

    def best(self, k: int, min_score: float = 0.0) -> Ints:
        """Return the places of the k largest scores above 0 and from ``min_score``, best first."""
        if not self.complete:
            return largest_scores(self.by_number[self.numbers], k, min_score)
        numbers = largest_scores(self.by_number, k, min_score)
        places: Ints = np.searchsorted(self.numbers, numbers)
        return places


class Words:
    """The words of the documents of a view, in the catalog or counted in memory."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        scorer: WordScorer,
        reading: Callable[[Sequence[str]], AbstractContextManager[sqlite3.Connection]],
        numbers: Ints,
    ) -> None:
        """``reading(terms)`` is a transaction that sees these terms in the version of ``scorer``.

        ``numbers`` has the number of the document at each place.
        """
        self._tokenizer, self._scorer = tokenizer, scorer
        self._reading, self._numbers = reading, numbers
        self._cache: dict[tuple[WordScorer, str], Floats] | None = None

    def of(self, query: str) -> QueryWordScores:
        """Return the word scores of a query."""
        cache = self._cache
        scores = None if cache is None else cache.get((self._scorer, query))
        if scores is None:
            terms = self._tokenizer.query(query)
            with self._reading(terms) as connection:
                scores = self._scorer.all(connection, terms)
            if cache is not None and (1 + len(cache)) * scores.nbytes <= CACHED_SCORES_BYTES:
                cache[self._scorer, query] = scores
        complete = len(self._numbers) == self._scorer.documents
        return QueryWordScores(scores, self._numbers, complete)

    def with_cache(self, cache: dict[tuple[WordScorer, str], Floats]) -> Words:
        """Return a copy that keeps word scores in ``cache``, which others may share."""
        words = copy(self)
        words._cache = cache
        return words

    def scores(self, query: str) -> Floats:
        """Return the word score of the document at each place (size,)."""
        return self.of(query).at(np.arange(len(self._numbers)))

    def only(self, places: Ints) -> Words:
        """Return the words of some of the documents; term weights stay those of all documents."""
        words = copy(self)
        words._numbers = self._numbers[places]
        return words

    def rank(self, queries: Sequence[str], k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each query: word scores and places, (n, k).

        Documents that share no word with the query score 0 and come last.
        """
        k = min(k, len(self._numbers))
        best = np.zeros((len(queries), k), np.float32)
        places = np.zeros((len(queries), k), np.int64)
        for at, query in enumerate(queries):
            scores = self.of(query)
            ranked = scores.best(k)
            if len(ranked) < k:
                ranked = largest(scores.at(np.arange(len(self._numbers))), k)
            places[at], best[at] = ranked, scores.at(ranked)
        return best, places


def count_words(texts: Iterable[str], tokenizer: Tokenizer | None = None) -> Words:
    """Count the words of texts in memory; each text is a document.

    Without a tokenizer, the languages of the texts are detected from the first ones.
    """
    documents = list(texts)
    tokenizer = tokenizer or Tokenizer(detect_languages(documents[:SAMPLE]))
    connection = count_in_memory(map(tokenizer.document, documents))
    scorer = WordScorer({TEXT: load_source(connection, TEXT)})
    return Words(tokenizer, scorer, lambda _: nullcontext(connection), np.arange(len(documents)))
