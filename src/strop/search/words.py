"""BM25 over the documents' words: alone, fused with a dense ranking, or inside its score.

Inside the score it counts as a product of two vectors of terms, like the cosine beside it: the
query's, with the weight of each term (its rarity), scaled to length one, and the document's, with
values from 0 to 1 that grow with how often the term occurs. So the weight of words means the same
for queries of any length, words that no document has count as missing too, and a document's score
does not depend on what other documents score.

BM25 is Lucene's, with k1 1.5 and b 0.75. A *word score* is a document's BM25 score divided by the
length of the query's own vector of term weights. In how many documents a term occurs is counted
while its postings are read. So it is exact for any combination of sources, and removed documents
have no part in it.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.io.languages import SAMPLE, detect_languages
from strop.io.tokenizer import Tokenizer
from strop.methods import Method
from strop.search.formula import LOWEST
from strop.search.layout import Layout
from strop.search.scoring import best_of, best_of_all, largest, score
from strop.storage.word_reader import SourceWords, count_in_memory, load_source, postings_of
from strop.storage.words import BLOCK, MOST, TEXT, Counts, Flags
from strop.types import Vectors

K1, B = 1.5, 0.75
_COMPILED_FROM = 50_000
"""Documents from which it pays to load compiled code."""
DEPTH = 1000
"""How many documents of each ranking a fusion looks at."""
FIRST_DEPTH = 50
"""The least documents of the dense ranking that are looked at first, where words count."""
_APPROXIMATE_DEPTH, _BEYOND = 20, 1.5
"""The same where an approximate search ranks, whose time grows with the depth; and so many times
the documents that are wanted."""
_SCORED = 20, 1000
"""So many times the depth of the dense ranking, and at least so many documents, are scored because
of their words."""
REMEMBERED_BYTES = 500_000_000
"""Word scores of queries that are remembered where many searches have the same queries."""
_RRF = 60
"""Cormack et al.'s constant: a document at rank r of a list adds 1 / (60 + r)."""


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
    first = scores[:BLOCK]  # at least k reach its k-th score: it spares sorting almost all others
    kth = np.partition(first, len(first) - k)[len(first) - k] if k < len(first) else 0.0
    bound = max(np.float32(least), np.float32(kth), np.nextafter(np.float32(0), np.float32(1)))
    places = np.flatnonzero(scores >= bound)
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


@dataclass(frozen=True)
class QueryWordScores:
    """The word score of each document for one query, from 0 to 1."""

    by_number: Floats
    numbers: Ints
    """The document number of each place, ascending."""
    whole: bool
    """Whether these are all documents: some may wait for their vectors, or be filtered out."""

    def at(self, places: Ints) -> Floats:
        """Return the word scores of the documents at these places."""
        scores: Floats = self.by_number[self.numbers[places]]
        return scores

    def best(self, k: int, least: float = 0.0) -> Ints:
        """Return the places of the k largest scores above 0, best first, that reach ``least``."""
        if not self.whole:
            return largest_scores(self.by_number[self.numbers], k, least)
        places: Ints = np.searchsorted(self.numbers, largest_scores(self.by_number, k, least))
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
        """``reading`` some terms is a transaction in which they are as ``scorer`` knows them.

        ``numbers`` are those of the documents at each place.
        """
        self._tokenizer, self._scorer = tokenizer, scorer
        self._reading, self._numbers = reading, numbers
        self._remembered: dict[tuple[WordScorer, str], Floats] | None = None

    def of(self, query: str) -> QueryWordScores:
        """Return the word scores of a query."""
        known = self._remembered
        scores = None if known is None else known.get((self._scorer, query))
        if scores is None:
            terms = self._tokenizer.query(query)
            with self._reading(terms) as connection:
                scores = self._scorer.all(connection, terms)
            if known is not None and (1 + len(known)) * scores.nbytes <= REMEMBERED_BYTES:
                known[self._scorer, query] = scores
        whole = len(self._numbers) == self._scorer.documents
        return QueryWordScores(scores, self._numbers, whole)

    def remembering(self, known: dict[tuple[WordScorer, str], Floats]) -> Words:
        """Return them with a memory of word scores that other words may share."""
        words = copy(self)
        words._remembered = known
        return words

    def scores(self, query: str) -> Floats:
        """Return the word score of the document at each place (size,)."""
        return self.of(query).at(np.arange(len(self._numbers)))

    def only(self, places: Ints) -> Words:
        """Return the words of some of the documents; how rare a word is stays as it is."""
        part = copy(self)
        part._numbers = self._numbers[places]
        return part

    def rank(self, queries: Sequence[str], k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each query: word scores and places, (n, k).

        Documents that share no word with the query score 0 and come last.
        """
        k = min(k, len(self._numbers))
        best = np.zeros((len(queries), k), np.float32)
        places = np.zeros((len(queries), k), np.int64)
        for at, query in enumerate(queries):
            scores = self.of(query)
            found = scores.best(k)
            if len(found) < k:
                found = largest(scores.at(np.arange(len(self._numbers))), k)
            places[at], best[at] = found, scores.at(found)
        return best, places


def count_words(texts: Iterable[str], tokenizer: Tokenizer | None = None) -> Words:
    """Count the words of texts in memory, one text a document.

    Without a tokenizer, the languages of the texts are detected from the first ones.
    """
    given = list(texts)
    tokenizer = tokenizer or Tokenizer(detect_languages(given[:SAMPLE]))
    connection = count_in_memory(map(tokenizer.document, given))
    scorer = WordScorer({TEXT: load_source(connection, TEXT)})
    return Words(tokenizer, scorer, lambda _: nullcontext(connection), np.arange(len(given)))


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


def first_depth(k: int) -> int:
    """Return how far the dense ranking is followed at first for the best k."""
    return max(FIRST_DEPTH, 2 * k)


Ranked = Callable[[Vectors, Method, int], tuple[Floats, Ints]]


def best_with_words(
    layout: Layout,
    words: Words,
    queries: Sequence[str],
    query_vectors: Vectors,
    method: Method,
    k: int,
    approximate: Ranked | None = None,
    sure: int | None = None,
) -> tuple[Floats, Ints]:
    """Return the best k documents by line (7): dense score + ``method.words`` * word score.

    ``query_vectors`` (n, dim) are as they are compared (``Layout.transformed``). The dense ranking
    is followed to some depth. A document behind it scores at most its last score + ``method.words``
    * its own word score. The word scores of all documents are known: those documents that can be
    among the best k are scored. Where these are too many, the exact ranking is followed further.
    ``approximate`` is a search that takes the place of the exact one. It is not followed further: a
    document missed then would need nearly the last dense score and nearly the largest word score.
    Only the best ``sure`` are looked for in this way, the others are the best of those scored.
    """
    size, k = layout.size, min(k, layout.size)
    sure = min(sure or k, k)
    best = np.zeros((len(queries), k), np.float32)
    places = np.zeros((len(queries), k), np.int64)
    if layout.small:  # all are scored
        for at, dense in enumerate(score(query_vectors, layout.fetched, method) if k else ()):
            total = dense + np.float32(method.words) * words.scores(queries[at])
            best[at], places[at] = best_of_all(total, k)
        return best, places
    depth = first_depth(k)
    if approximate is not None:
        depth = max(_APPROXIMATE_DEPTH, 2 * sure, int(_BEYOND * k))
    left, depth = np.arange(len(queries) if k else 0), min(size, depth)
    while len(left):
        scores, ranked = (approximate or layout.scan)(query_vectors[left], method, depth)
        undecided, most = [], max(_SCORED[0] * depth, _SCORED[1])
        for row, at in enumerate(left.tolist()):
            dense, word_scores = (scores[row], ranked[row]), words.of(queries[at])
            best[at], places[at], missed = _merge_candidates(
                layout, query_vectors[at], dense, word_scores, method, (sure, k), most
            )
            if missed and approximate is None and depth < size:
                undecided.append(at)
        left, depth = np.array(undecided, np.int64), min(size, 8 * depth)
    return best, places


def _merge_candidates(
    layout: Layout,
    query_vector: Vectors,
    dense: tuple[Floats, Ints],
    word_scores: QueryWordScores,
    method: Method,
    wanted: tuple[int, int],
    most: int,
) -> tuple[Floats, Ints, bool]:
    """Return the best with words, of the documents of a dense ranking and others.

    ``wanted`` is how many must be right, and how many to return. Of the others, at most about
    ``most`` are scored; tells whether more could be among those that must be right.
    """
    sure, k = wanted
    exact = method if method.sharpens else replace(method, alpha=0.0, weighting="softmax")
    weight, (known, found) = np.float32(method.words), dense
    total = known + weight * word_scores.at(found)
    last = float(known[-1])

    def add(others: Ints) -> None:
        nonlocal total, found
        others = np.setdiff1d(others, found)
        scores = layout.rescore(query_vector, others, exact) + weight * word_scores.at(others)
        total, found = np.concatenate([total, scores]), np.concatenate([found, others])

    def least() -> float:
        """Return the word score that a document behind the ranking needs to be among the best."""
        best = float(best_of(total, found, sure)[0][-1])
        return (best - last) / float(weight)

    add(word_scores.best(len(known)))
    others = word_scores.best(most + 1, least())
    add(others[:most])
    missed = len(others) > most and bool(word_scores.at(others[most:])[0] >= least())
    return *best_of(total, found, k), missed
