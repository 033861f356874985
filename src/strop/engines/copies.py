"""A reader's view of a published copy, and the documents that one search considers.

A document's *number* identifies it in the copy. Its *place* is its position among the documents of
a search (``ranking.Store``), its *slot* that of its vectors in a cache. A *row* is one vector in
the engine: that of a document or of one of its stored queries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
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
from strop.search.folder import first_depth
from strop.search.scoring import Fetched, best_of, score
from strop.search.words import QueryWordScores, Words, WordScorer
from strop.storage.facets import select
from strop.storage.word_copies import WordCopy
from strop.storage.words import TEXT
from strop.types import Vectors

ROWS = 150
"""At least this many nearest rows are proposed: they contain 0.999 of the exact top ten."""
ROWS_PER_HIT, _ROWS_PER_RANKED = 15, 8
"""At least this many rows for each requested hit, and for each document that feedback re-ranks.
With 15 for the latter, searches take half as long again and find 0.003 more."""
_OWN_ROWS = 10
"""At least this many documents are proposed if only their own vectors count."""
SCANNED = 500
"""Up to this number, all documents are scored: fetching them is as fast as a nearest-row search."""
AT_ONCE = 1000
"""Documents that an exact search scores at a time."""
_FILTERS = 8
"""Filters whose documents a copy caches."""
MAX_FETCHED = 2000
"""Maximum number of documents that one search keeps in memory, unless it proposed them."""
QUERIES_AT_ONCE = 64
"""Queries that are ranked together; they share a cache of vectors, which feedback needs too."""
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
        size_of_words = self._word_copy.sources([TEXT])[TEXT].entries.shape[1]
        every = engine.every()
        # Newer documents are used once their words are published.
        self.numbers = every[every < size_of_words]
        self._filters: OrderedDict[Filter, Ints] = OrderedDict()
        self.is_split = about["chunks"] is not None
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

    def store_for(
        self, method: Method, filter_: Filter | None = None, exact: bool = False
    ) -> CopyStore:
        """Return the documents that a filter selects, for one search."""
        if filter_ is None:
            return CopyStore(self, method, None, exact)
        if filter_ not in self._filters:
            numbers = select(filter_, self.parents if self.is_split else self.engine)
            self._filters[filter_] = np.flatnonzero(np.isin(self.numbers, numbers))
            while len(self._filters) > _FILTERS:
                self._filters.popitem(last=False)
        return CopyStore(self, method, self._filters[filter_], exact)


class CopyStore:
    """The documents that one search considers, as a ``ranking.Store``."""

    def __init__(self, copy: Copy, method: Method, selected: Ints | None, exact: bool) -> None:
        """``selected`` are places in the copy, None for all documents."""
        self.method = method
        self._copy, self._selected, self._exact = copy, selected, exact
        self.dim, self.tokenizer = copy.dim, copy.tokenizer
        self.numbers = copy.numbers if selected is None else copy.numbers[selected]
        self._cache = copy.new_cache()
        self._slots: dict[int, int] = {}
        """The cache slots of the vectors that this search uses, by number."""
        self._ids: dict[int, str] = {}
        self._unverified: dict[int, bytes] = {}
        """Checksums of vectors that this search took from the cache without reading the record."""

    @property
    def size(self) -> int:
        """The number of documents."""
        return len(self.numbers)

    def ids_of(self, places: Ints) -> list[str]:
        """Return the ids at some places."""
        numbers = self.numbers[places.ravel()].tolist()
        if missing := sorted({*numbers} - self._ids.keys()):
            self._ids |= self._copy.engine.ids(np.array(missing, np.int64))
        return [self._ids[number] for number in numbers]

    @property
    def set_names(self) -> list[str]:
        """The names of the sets that the method mixes into documents."""
        if self.method.weighting == "none":
            return []
        return self._copy.mixed if self.method.sets is None else list(self.method.sets)

    @cached_property
    def words(self) -> Words:
        """The words that count for the method (``Views.words``)."""
        words = self._copy.words(self.set_names or self.method.sets or ()).with_cache({})
        return words if self._selected is None else words.only(self._selected)

    # -- propose, fetch, score ------------------------------------------------------------

    def best(
        self, query_vectors: Vectors, texts: Sequence[str], k: int, depth: int
    ) -> tuple[Floats, Ints]:
        """Return the best ``depth`` documents for each query: ``ranking.Store.best``."""
        word_scores = [self.words.of(text) for text in texts]
        if self.scans(depth):
            return self._scan(query_vectors, word_scores, depth)
        return self._nearest(query_vectors, word_scores, k, depth)

    def scans(self, depth: int) -> bool:
        """Return whether a search for the best ``depth`` scores all documents."""
        return self._exact or self.size <= max(SCANNED, 2 * depth)

    def _scan(
        self, query_vectors: Vectors, word_scores: Sequence[QueryWordScores], depth: int
    ) -> tuple[Floats, Ints]:
        """Return the best of all documents: scores and places, (queries, depth)."""
        best = np.empty((len(query_vectors), 0), np.float32)
        places = np.empty((len(query_vectors), 0), np.int64)
        for at in range(0, self.size, AT_ONCE):
            batch = np.arange(at, min(at + AT_ONCE, self.size))
            scores = score(query_vectors, self.fetch(batch), self.method)
            if word_scores:
                of_batch = np.array([one.at(batch) for one in word_scores])
                scores += np.float32(self.method.words) * of_batch
            batch_places = np.broadcast_to(batch, scores.shape)
            best, places = best_of(
                np.concatenate([best, scores], axis=1),
                np.concatenate([places, batch_places], axis=1),
                depth,
            )
        return best, places

    def _nearest(
        self, query_vectors: Vectors, word_scores: Sequence[QueryWordScores], k: int, depth: int
    ) -> tuple[Floats, Ints]:
        """Return the best of the proposed documents: scores and places, (queries, depth)."""
        by_words = [of_words.best(2 * max(first_depth(k), depth)) for of_words in word_scores]
        best = np.empty((len(query_vectors), depth), np.float32)
        best_places = np.empty((len(query_vectors), depth), np.int64)
        for at, places in enumerate(self._propose(query_vectors, by_words, k, depth)):
            fetched = self.fetch(places)
            scores = score(query_vectors[at : at + 1], fetched, self.method, once=True)[0]
            if word_scores:
                scores += np.float32(self.method.words) * word_scores[at].at(places)
            best[at], best_places[at] = best_of(scores, places, depth)
        return best, best_places

    def _propose(
        self, query_vectors: Vectors, by_words: Sequence[Ints], k: int, depth: int
    ) -> list[Ints]:
        """Return for each query the places of documents that can be among its best.

        ``by_words`` has, for each query or for none, the places with the best word scores.
        """
        method = self.method
        own = method.weighting == "none" or not (method.alpha or method.weighting == "max")
        if own:  # only the documents' own vectors count: one row for each
            rows = max(depth, _OWN_ROWS)
        else:
            rows = max(ROWS, ROWS_PER_HIT * k, _ROWS_PER_RANKED * depth)
        among = None if self._selected is None else self.numbers
        all_rows = int(self._copy.about["rows"])
        self._cache, self._slots = self._copy.cache, {}
        proposed = []
        for at, query in enumerate(query_vectors):
            row_limit = rows
            extra = self.numbers[by_words[at]] if by_words else np.empty(0, np.int64)
            while True:
                near = self._copy.engine.nearest(
                    query, row_limit, own, among, extra, self._cache.slots
                )
                if len(near) >= depth or row_limit >= 2 * all_rows:
                    break
                # The nearest rows belong to few documents. An engine may use only half of the rows.
                row_limit *= 4
            self._add_nearest(near)
            numbers = np.array(sorted(near), np.int64)
            places = np.searchsorted(self.numbers, numbers)
            # Without documents that the search does not consider.
            places = places[self.numbers.take(places, mode="clip") == numbers]
            if len(places) < depth:  # all others have no vectors: add any of them
                places = np.union1d(places, np.arange(min(self.size, 2 * depth)))
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

    def fetch(self, places: Ints) -> Fetched:
        """Return the vectors that scoring these documents needs."""
        slots = self._slots_of(self.numbers[places])
        ids = [int(self._copy.sets[name]["id"]) for name in self.set_names]
        documents = self._cache.document_vectors(slots)
        return Fetched(documents, *self._cache.queries(slots, ids, self.method.n))

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
        if missing and len(self._slots) + len(missing) > MAX_FETCHED:
            self._cache, self._slots, missing = self._copy.new_cache(), {}, requested
        if missing:
            self._add(self._copy.engine.packed_vectors(np.array(missing, np.int64)))
        return np.array([self._slots[number] for number in requested], np.int64)

    def prefetch(self, numbers: Ints) -> None:
        """Read the vectors that ``fetch`` will need in one request."""
        self._slots_of(np.unique(numbers))
