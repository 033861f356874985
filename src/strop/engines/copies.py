"""A reader's view of a published copy, and the documents that one search considers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.engines.base import Engine, PackedVectors
from strop.engines.parents import ParentDocuments
from strop.engines.vector_cache import VectorCache, checksum
from strop.errors import BadIndex
from strop.filters import Filter, Test
from strop.io.tokenizer import VERSION, Tokenizer
from strop.methods import Method, check_method, sharp_with
from strop.search.feedback import ranked_first, with_feedback
from strop.search.scoring import Fetched, best_of, score, search
from strop.search.words import DEPTH, QueryWordScores, Words, WordScorer, first_depth, fuse
from strop.storage.facets import select
from strop.storage.word_copies import WordCopy
from strop.storage.words import TEXT
from strop.types import Vectors

ROWS = 150
"""Minimum of nearest rows whose documents are scored: they contain 0.999 of the exact top ten."""
ROWS_PER_HIT, _ROWS_PER_RANKED = 15, 8
"""Minimum of rows for each requested hit, and for each document that feedback re-ranks. With 15 for
the latter, searches take half as long again and find 0.003 more."""
SCANNED = 500
"""Up to this number, all documents are scored: fetching them is as fast as a nearest-row search."""
AT_ONCE = 1000
"""Documents that an exact search scores at a time."""
_FILTERS = 8
"""Filters whose documents a copy caches."""
_MAX_CACHED = 2000
"""Maximum of documents of an exact search in memory."""
_QUERIES_AT_ONCE = 64
"""Queries of a search that share one cache of documents."""
CACHE_BYTES = 128_000_000
"""Maximum size of the vectors that searches of a copy keep for the next searches."""


class Copy:
    """A copy as it was when it was last read: its description, its documents, its words."""

    def __init__(
        self,
        engine: Engine,
        raw: bytes,
        about: dict[str, Any],
        words: dict[str, Any],
        previous: Copy | None,
    ) -> None:
        """``raw`` is the piece ``META``, ``about`` its content, ``words`` the state of the words.

        ``previous`` is an older view, whose words are used again.
        """
        self.engine, self.raw, self.about = engine, raw, about
        self.dim: int = about["embedder"]["dim"]
        self.sets: dict[str, dict[str, Any]] = {
            name: dict(set_) for name, set_ in about["sets"].items()
        }
        self.mixed = [name for name, set_ in self.sets.items() if set_["mixed"]]
        self.methods = {
            name: check_method(sharp_with(method)) for name, method in about["methods"].items()
        }
        self.default = self.methods[""]
        self.chosen: dict[str, Method] = {}
        """Methods by the names that callers used, checked against this copy."""
        if about["tokenizer"] != VERSION:
            raise BadIndex(
                f"{engine.address.shown} has words that another version of strop counted:"
                " publish it again"
            )
        self.tokenizer = Tokenizer(about["languages"])
        previous_words = None if previous is None else previous._word_copy
        self._word_copy: WordCopy = WordCopy(words, engine.read, previous_words)
        self._words: dict[tuple[str, ...], Words] = {}
        with_words = self._word_copy.sources([TEXT])[TEXT].entries.shape[1]
        every = engine.every()
        # Newer documents are used once their words are published.
        self.numbers = every[every < with_words]
        self._filters: OrderedDict[Filter, Ints] = OrderedDict()
        self.chunked = about["chunks"] is not None
        self.parents = ParentDocuments(engine)
        self._fields: set[str] = set()
        self.cache = self.new_cache()
        """Vectors of earlier searches, which the next ones need not fetch."""

    def new_cache(self) -> VectorCache:
        """Return an empty cache of vectors."""
        return VectorCache(self.dim, [int(set_["id"]) for set_ in self.sets.values()])

    def has(self, field: str) -> bool:
        """Return whether any document has a metadata field; an engine may read all documents."""
        if field not in self._fields:
            if not len(self.engine.passing(Test(field, "exists", "in", (None,)))):
                return False
            self._fields.add(field)
        return True

    def words(self, names: Sequence[str]) -> Words:
        """Return the words of the documents, with those of some query sets."""
        key = tuple(name for name in names if self.sets[name]["words"])
        if key not in self._words:
            ids = [TEXT, *(int(self.sets[name]["id"]) for name in key)]
            scores = WordScorer(self._word_copy.sources(ids))
            self._words[key] = Words(self.tokenizer, scores, self._word_copy.reading, self.numbers)
        return self._words[key]

    def store(self, filter_: Filter | None = None, exact: bool = False) -> CopyStore:
        """Return the documents that a filter selects, for one search."""
        if filter_ is None:
            return CopyStore(self, None, exact)
        if filter_ not in self._filters:
            numbers = select(filter_, self.parents if self.chunked else self.engine)
            self._filters[filter_] = np.flatnonzero(np.isin(self.numbers, numbers))
            while len(self._filters) > _FILTERS:
                self._filters.popitem(last=False)
        return CopyStore(self, self._filters[filter_], exact)


class CopyStore:
    """The documents that one search considers, as a ``scoring.Store``."""

    def __init__(self, copy: Copy, selected: Ints | None, exact: bool) -> None:
        """``selected`` are places in the copy, None for all documents."""
        self._copy, self._selected, self._exact = copy, selected, exact
        self.dim, self.tokenizer = copy.dim, copy.tokenizer
        self.numbers = copy.numbers if selected is None else copy.numbers[selected]
        self._cache = copy.new_cache()
        self._slots: dict[int, int] = {}
        """The cache slots of the vectors that this search uses, by number."""
        self._ids: dict[int, str] = {}
        self._unverified: dict[int, bytes] = {}
        """Checksums of vectors that this search took from the cache without reading the record."""
        self._word_scores: dict[str, QueryWordScores] = {}
        self.requested_hits: int | None = None
        """The number of requested hits, if a search ranks more documents for feedback."""

    def ids_of(self, places: Ints) -> list[str]:
        """Return the ids at some places."""
        numbers = self.numbers[places.ravel()].tolist()
        if missing := sorted({*numbers} - self._ids.keys()):
            self._ids |= self._copy.engine.ids(np.array(missing, np.int64))
        return [self._ids[number] for number in numbers]

    def names(self, method: Method) -> list[str]:
        """Return the names of the sets that a method mixes into documents."""
        if method.weighting == "none":
            return []
        return self._copy.mixed if method.sets is None else list(method.sets)

    def words(self, method: Method) -> Words:
        """Return the words that count for a method (``Views.words``)."""
        words = self._copy.words(self.names(method) or method.sets or ())
        return words if self._selected is None else words.only(self._selected)

    def _scores_of(self, text: str, method: Method) -> QueryWordScores:
        if text not in self._word_scores:
            self._word_scores[text] = self.words(method).of(text)
        return self._word_scores[text]

    # -- propose, fetch -------------------------------------------------------------------

    def scans(self, k: int) -> bool:
        """Return whether a search for the best k scores all documents."""
        return self._exact or len(self.numbers) <= max(SCANNED, 2 * k)

    def propose(
        self, query_vectors: Vectors, query_texts: Sequence[str], k: int, method: Method
    ) -> list[Ints]:
        """Return for each query the places of documents that can be among its best k."""
        hits = min(k, self.requested_hits or k)
        rows = max(ROWS, ROWS_PER_HIT * hits, _ROWS_PER_RANKED * k)
        own = method.weighting == "none" or not (method.alpha or method.weighting == "max")
        if own:  # each document has one row
            rows = max(k, ROWS // ROWS_PER_HIT)
        by_words = [np.empty(0, np.int64)] * len(query_vectors)
        if method.words and query_texts:
            depth = 2 * max(first_depth(hits), k)
            by_words = [self._scores_of(text, method).best(depth) for text in query_texts]
        among = None if self._selected is None else self.numbers
        all_rows = int(self._copy.about["rows"])
        self._cache, self._slots = self._copy.cache, {}
        proposed = []
        for query, word_matches in zip(query_vectors, by_words, strict=True):
            row_limit, extra = rows, self.numbers[word_matches]
            while True:
                near = self._copy.engine.nearest(
                    query, row_limit, own, among, extra, self._cache.slots
                )
                if len(near) >= k or row_limit >= 2 * all_rows:
                    break
                # The nearest rows belong to few documents. An engine may use only half of the rows.
                row_limit *= 4
            self._add_nearest(near)
            numbers = np.array(sorted(near), np.int64)
            places = np.searchsorted(self.numbers, numbers)
            places = places[self.numbers.take(places, mode="clip") == numbers]
            if len(places) < k:  # all others have no vectors: add any of them
                places = np.union1d(places, np.arange(min(len(self.numbers), 2 * k)))
            proposed.append(places)
        if self._copy.cache.nbytes > CACHE_BYTES:  # running searches keep the old cache
            self._copy.cache = self._copy.new_cache()
        return proposed

    def _add_nearest(self, near: Mapping[int, PackedVectors | None]) -> None:
        """Cache the vectors of documents; None means that they are in the cache already."""
        new, cache = dict[int, PackedVectors](), self._cache
        for number, record in near.items():
            slot = cache.slots.get(number)
            if record is None:
                assert slot is not None, "an engine returns None for cached documents only"
                if number not in self._slots:  # read for an earlier query of this search
                    self._use_cached(number, slot)
            elif slot is None or cache.records[slot][1] != checksum(record):
                new[number] = record
            else:
                self._slots[number], self._ids[number] = slot, record.id
        self._add(new)

    def _use_cached(self, number: int, slot: int) -> None:
        """Use vectors of the cache; all queries of a search must see the same ones."""
        self._slots[number] = slot
        self._ids[number], stored_sum = self._cache.records[slot]
        if self._unverified.setdefault(number, stored_sum) != stored_sum:
            raise KeyError(f"document {number} was replaced")

    def _add(self, records: Mapping[int, PackedVectors]) -> None:
        if records:
            self._slots |= self._cache.add(records)
            self._ids |= {number: record.id for number, record in records.items()}

    def fetch(self, places: Ints, query_texts: Sequence[str], method: Method) -> Fetched:
        """Return the vectors and word scores that scoring these documents needs."""
        slots = self._slots_of(self.numbers[places])
        ids = [int(self._copy.sets[name]["id"]) for name in self.names(method)]
        documents = self._cache.document_vectors(slots)
        queries, counts = self._cache.queries(slots, ids, method.n)
        fetched = Fetched(documents, queries, counts)
        if not query_texts or not method.words:
            return fetched
        word_scores = np.array([self._scores_of(text, method).at(places) for text in query_texts])
        return replace(fetched, word_scores=word_scores)

    def check_cached(self, numbers: Ints) -> None:
        """Raise KeyError if cached vectors of these documents differ from their records."""
        if doubtful := sorted(self._unverified.keys() & {*numbers.ravel().tolist()}):
            records = self._copy.engine.packed_vectors(np.array(doubtful))
            for number in doubtful:
                if self._unverified[number] != checksum(records[number]):
                    raise KeyError(f"document {number} was replaced")

    def documents(self, places: Ints) -> Vectors:
        """Return the documents' own vectors."""
        slots = self._slots_of(self.numbers[places])  # may replace the cache
        return self._cache.document_vectors(slots)

    def _slots_of(self, numbers: Ints) -> Ints:
        """Return the cache slots of documents; vectors that are not cached are fetched."""
        requested, cached = numbers.tolist(), self._cache.slots
        for number in requested:
            if number not in self._slots and number in cached:  # for another query of this search
                self._use_cached(number, cached[number])
        missing = [number for number in requested if number not in self._slots]
        if missing and len(self._slots) + len(missing) > _MAX_CACHED:
            self._cache, self._slots, missing = self._copy.new_cache(), {}, requested
        if missing:
            self._add(self._copy.engine.packed_vectors(np.array(missing, np.int64)))
        return np.array([self._slots[number] for number in requested], np.int64)

    def prefetch(self, numbers: Ints) -> None:
        """Read the vectors that ``fetch`` will need in one request."""
        self._slots_of(np.unique(numbers))

    # -- exact search ---------------------------------------------------------------------

    def scan(
        self, query_vectors: Vectors, query_texts: Sequence[str], k: int, method: Method
    ) -> tuple[Floats, Ints]:
        """Return the best k of all documents: scores and places, (queries, k)."""
        best = np.empty((len(query_vectors), 0), np.float32)
        places = np.empty((len(query_vectors), 0), np.int64)
        for at in range(0, len(self.numbers), AT_ONCE):
            batch = np.arange(at, min(at + AT_ONCE, len(self.numbers)))
            scores = score(query_vectors, self.fetch(batch, query_texts, method), method)
            batch_places = np.broadcast_to(batch, scores.shape)
            best, places = best_of(
                np.concatenate([best, scores], axis=1),
                np.concatenate([places, batch_places], axis=1),
                k,
            )
        return best, places


def rank(
    store: CopyStore, query_vectors: Vectors, texts: Sequence[str], k: int, method: Method
) -> tuple[Floats, Ints]:
    """Return the best k: scores and places (queries, k)."""
    size = len(store.numbers)
    k = min(k, size)
    fusing = method.bm25 == "fused"
    depth = min(max(k, DEPTH), size) if fusing else ranked_first(k, method, size)
    if len(query_vectors) > _QUERIES_AT_ONCE and not store.scans(depth):
        groups = (
            slice(at, at + _QUERIES_AT_ONCE)
            for at in range(0, len(query_vectors), _QUERIES_AT_ONCE)
        )
        rankings = [rank(store, query_vectors[group], texts[group], k, method) for group in groups]
        return (
            np.concatenate([scores for scores, _ in rankings]),
            np.concatenate([places for _, places in rankings]),
        )
    if method.bm25 == "only":
        return store.words(method).rank(texts, k)
    if method.bm25 == "no":
        store.requested_hits = k
        ranked = _ranked(store, query_vectors, texts, depth, method)
        return with_feedback(ranked, store.documents, method, k)
    store.requested_hits = None
    by_words = store.words(method).rank(texts, depth)
    dense = _ranked(store, query_vectors, (), depth, method)
    return fuse(dense, by_words, size, k)


def _ranked(
    store: CopyStore, query_vectors: Vectors, texts: Sequence[str], k: int, method: Method
) -> tuple[Floats, Ints]:
    """Return the best k by a method's dense score, with word scores if there are texts."""
    if store.scans(k):
        return store.scan(query_vectors, texts, k, method)
    rankings = search(store, query_vectors, texts, k, method)
    scores, places = (np.array([ranking[column] for ranking in rankings]) for column in (0, 1))
    shape = (len(query_vectors), k)
    return scores.astype(np.float32).reshape(shape), places.astype(np.int64).reshape(shape)
