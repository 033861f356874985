"""What a reader knows of a published copy, and the part of it that one search looks at."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.engines.base import Engine, PackedVectors
from strop.engines.parents import ParentDocuments
from strop.engines.publish import WHITENING
from strop.engines.vector_cache import VectorCache, checksum
from strop.errors import BadIndex
from strop.filters import Filter, Test
from strop.io.tokenizer import VERSION, Tokenizer
from strop.methods import Method, check_method, sharp_with
from strop.search.feedback import ranked_first, with_feedback
from strop.search.scoring import Fetched, best_of, score, search
from strop.search.whitening import Whitening
from strop.search.words import DEPTH, QueryWordScores, Words, WordScorer, first_depth, fuse
from strop.storage.facets import select
from strop.storage.word_copies import WordCopy
from strop.storage.words import TEXT
from strop.types import Vectors

ROWS = 150
"""The least nearest rows whose documents are scored: they hold 0.999 of the exact best ten."""
ROWS_PER_HIT, _ROWS_PER_RANKED = 15, 8
"""Rows for each hit that is wanted, and for each document that feedback ranks again: at least so
many. With 15 for the latter searches take half as long again, and find 0.003 more."""
SCANNED = 500
"""Up to so many documents are all scored: fetching them is as fast as asking which."""
AT_ONCE = 1000
_WHITENED = 4
"""So many times more rows where whitening changes their order."""
_FILTERS = 8
_HELD = 2000
"""So many documents of an exact search are held in memory."""
_QUERIES_AT_ONCE = 64
"""So many queries of a search share the documents that are held."""
REMEMBERED_BYTES = 128_000_000
"""Vectors of documents that searches of a copy scored, for the next ones."""


class Copy:
    """A copy as it was when it was looked at: what it is, its documents, its words."""

    def __init__(
        self,
        engine: Engine,
        raw: bytes,
        about: dict[str, Any],
        words: dict[str, Any],
        before: Copy | None,
    ) -> None:
        """``raw`` and ``about`` are what the copy says it is, ``words`` the state of its words."""
        self.engine, self.raw, self.about = engine, raw, about
        self.dim: int = about["embedder"]["dim"]
        self.sets: dict[str, dict[str, Any]] = {
            name: dict(of) for name, of in about["sets"].items()
        }
        self.mixed = [name for name, of in self.sets.items() if of["mixed"]]
        self.methods = {name: check_method(sharp_with(of)) for name, of in about["methods"].items()}
        self.default = self.methods[""]
        self.chosen: dict[str, Method] = {}
        """Methods by the names that callers gave, checked against this copy."""
        if about["tokenizer"] != VERSION:
            raise BadIndex(
                f"{engine.address.shown} has words that another version of strop counted:"
                " publish it again"
            )
        self.tokenizer = Tokenizer(about["languages"])
        older = None if before is None else before._copied
        self._copied: WordCopy = WordCopy(words, engine.read, older)
        self._words: dict[tuple[str, ...], Words] = {}
        known = self._copied.sources([TEXT])[TEXT].entries.shape[1]
        every = engine.every()
        self.numbers = every[every < known]  # later ones come with their words
        self._filters: OrderedDict[Filter, Ints] = OrderedDict()
        self.chunked = about["chunks"] is not None
        self.wholes = ParentDocuments(engine)
        self._map: Whitening | None = None
        self._fields: set[str] = set()
        self.remembered = self.nothing_held()
        """The vectors of the last searches, which the next ones need not fetch."""

    def nothing_held(self) -> VectorCache:
        """Return what holds no vectors yet."""
        return VectorCache(self.dim, [int(of["id"]) for of in self.sets.values()])

    def has(self, field: str) -> bool:
        """Tell whether any document has a field of metadata; an engine may look at all of them."""
        if field not in self._fields:
            if not len(self.engine.passing(Test(field, "exists", "in", (None,)))):
                return False
            self._fields.add(field)
        return True

    def whitening(self) -> Whitening:
        """Return the map of the default method, read when it is first needed."""
        if self._map is None:
            self._map = Whitening.read(self.engine.read([WHITENING])[WHITENING], self.dim)
        return self._map

    def words(self, names: Sequence[str]) -> Words:
        """Return the words of the documents, with those of some query sets."""
        key = tuple(name for name in names if self.sets[name]["words"])
        if key not in self._words:
            ids = [TEXT, *(int(self.sets[name]["id"]) for name in key)]
            scores = WordScorer(self._copied.sources(ids))
            self._words[key] = Words(self.tokenizer, scores, self._copied.reading, self.numbers)
        return self._words[key]

    def part(self, filter_: Filter | None = None, exact: bool = False) -> CopyStore:
        """Return the documents that a filter selects, for one search."""
        if filter_ is None:
            return CopyStore(self, None, exact)
        if filter_ not in self._filters:
            numbers = select(filter_, self.wholes if self.chunked else self.engine)
            self._filters[filter_] = np.flatnonzero(np.isin(self.numbers, numbers))
            while len(self._filters) > _FILTERS:
                self._filters.popitem(last=False)
        return CopyStore(self, self._filters[filter_], exact)


class CopyStore:
    """The documents that one search looks at, as a ``scoring.Store``."""

    def __init__(self, copy: Copy, selected: Ints | None, exact: bool) -> None:
        """``selected`` are places in the copy, None for all of it."""
        self._copy, self._selected, self._exact = copy, selected, exact
        self.dim, self.tokenizer = copy.dim, copy.tokenizer
        self.numbers = copy.numbers if selected is None else copy.numbers[selected]
        self._held = copy.nothing_held()
        self._slots: dict[int, int] = {}
        """Where the vectors of this search are, by number."""
        self._ids: dict[int, str] = {}
        self._unread: dict[int, bytes] = {}
        """The checksums of vectors that this search did not read: they were remembered."""
        self._word_scores: dict[str, QueryWordScores] = {}
        self.hits: int | None = None
        """How many hits are wanted of a search that ranks more documents, for feedback."""

    def ids_of(self, places: Ints) -> list[str]:
        """Return the ids at some places."""
        numbers = self.numbers[places.ravel()].tolist()
        if unread := sorted({*numbers} - self._ids.keys()):
            self._ids |= self._copy.engine.ids(np.array(unread, np.int64))
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
        """Tell whether a search for the best k scores all documents."""
        return self._exact or len(self.numbers) <= max(SCANNED, 2 * k)

    def propose(
        self, query_vectors: Vectors, query_texts: Sequence[str], k: int, method: Method
    ) -> list[Ints]:
        """Return for each query the places of documents that can be among its best k."""
        hits = min(k, self.hits or k)
        rows = max(ROWS, ROWS_PER_HIT * hits, _ROWS_PER_RANKED * k)
        own = method.weighting == "none" or not (method.alpha or method.weighting == "max")
        if own:  # each document has one row
            rows = max(k, ROWS // ROWS_PER_HIT)
        if method.whiten:  # the rows of the engine are not whitened
            query_vectors = self._copy.whitening().before(query_vectors)
            rows *= _WHITENED
        by_words = [np.empty(0, np.int64)] * len(query_vectors)
        if method.words and query_texts:
            most = 2 * max(first_depth(hits), k)
            by_words = [self._scores_of(text, method).best(most) for text in query_texts]
        among = None if self._selected is None else self.numbers
        most = int(self._copy.about["rows"])
        self._held, self._slots = self._copy.remembered, {}
        found = []
        for query, wanted in zip(query_vectors, by_words, strict=True):
            asked, also = rows, self.numbers[wanted]
            while True:
                near = self._copy.engine.nearest(query, asked, own, among, also, self._held.slots)
                if len(near) >= k or asked >= 2 * most:
                    break
                # Few documents have the nearest rows. An engine may look at half of those wanted.
                asked *= 4
            self._hold(near)
            numbers = np.array(sorted(near), np.int64)
            places = np.searchsorted(self.numbers, numbers)
            places = places[self.numbers.take(places, mode="clip") == numbers]
            if len(places) < k:  # the others have no vectors: any of them
                places = np.union1d(places, np.arange(min(len(self.numbers), 2 * k)))
            found.append(places)
        if self._copy.remembered.nbytes > REMEMBERED_BYTES:  # searches at work keep what they have
            self._copy.remembered = self._copy.nothing_held()
        return found

    def _hold(self, near: Mapping[int, PackedVectors | None]) -> None:
        """Hold the vectors of documents; None is one whose vectors are held already."""
        new, held = dict[int, PackedVectors](), self._held
        for number, one in near.items():
            slot = held.slots.get(number)
            if one is None:
                assert slot is not None, "an engine leaves out what is known only"
                if number not in self._slots:  # read for an earlier query of this search
                    self._take_unread(number, slot)
            elif slot is None or held.records[slot][1] != checksum(one):
                new[number] = one
            else:
                self._slots[number], self._ids[number] = slot, one.id
        self._add(new)

    def _take_unread(self, number: int, slot: int) -> None:
        """Take vectors that were read before; all queries of a search must see the same ones."""
        self._slots[number] = slot
        self._ids[number], known = self._held.records[slot]
        if self._unread.setdefault(number, known) != known:
            raise KeyError(f"document {number} was replaced")

    def _add(self, found: Mapping[int, PackedVectors]) -> None:
        if found:
            self._slots |= self._held.add(found)
            self._ids |= {number: one.id for number, one in found.items()}

    def fetch(self, places: Ints, query_texts: Sequence[str], method: Method) -> Fetched:
        """Return what scoring these documents needs."""
        slots = self._slots_of(self.numbers[places])
        ids = [int(self._copy.sets[name]["id"]) for name in self.names(method)]
        own = self._held.own(slots)
        queries, counts = self._held.queries(slots, ids, method.n)
        if method.whiten:
            own, queries = map(self._copy.whitening().apply, (own, queries))
        fetched = Fetched(own, queries, counts)
        if not query_texts or not method.words:
            return fetched
        word_scores = np.array([self._scores_of(text, method).at(places) for text in query_texts])
        return replace(fetched, word_scores=word_scores)

    def check_remembered(self, numbers: Ints) -> None:
        """Raise KeyError if the remembered vectors of documents are not those of their records."""
        if doubtful := sorted(self._unread.keys() & {*numbers.ravel().tolist()}):
            found = self._copy.engine.found(np.array(doubtful))
            for number in doubtful:
                if self._unread[number] != checksum(found[number]):
                    raise KeyError(f"document {number} was replaced")

    def documents(self, places: Ints, method: Method) -> Vectors:
        """Return the documents' own vectors."""
        slots = self._slots_of(self.numbers[places])  # may begin to hold anew
        own = self._held.own(slots)
        return self._copy.whitening().apply(own) if method.whiten else own

    def _slots_of(self, numbers: Ints) -> Ints:
        """Return where the vectors of documents are held; they are fetched if they are not."""
        wanted, held = numbers.tolist(), self._held.slots
        for number in wanted:
            if number not in self._slots and number in held:  # of other queries of this search
                self._take_unread(number, held[number])
        missing = [number for number in wanted if number not in self._slots]
        if missing and len(self._slots) + len(missing) > _HELD:
            self._held, self._slots, missing = self._copy.nothing_held(), {}, wanted
        if missing:
            self._add(self._copy.engine.found(np.array(missing, np.int64)))
        return np.array([self._slots[number] for number in wanted], np.int64)

    def hold(self, numbers: Ints) -> None:
        """Fetch at once what ``fetch`` will want of some documents."""
        self._slots_of(np.unique(numbers))

    # -- everything -----------------------------------------------------------------------

    def scan(
        self, query_vectors: Vectors, query_texts: Sequence[str], k: int, method: Method
    ) -> tuple[Floats, Ints]:
        """Return the best k of all documents: scores and places, (queries, k)."""
        best = np.empty((len(query_vectors), 0), np.float32)
        places = np.empty((len(query_vectors), 0), np.int64)
        for at in range(0, len(self.numbers), AT_ONCE):
            some = np.arange(at, min(at + AT_ONCE, len(self.numbers)))
            scores = score(query_vectors, self.fetch(some, query_texts, method), method)
            here = np.broadcast_to(some, scores.shape)
            best, places = best_of(
                np.concatenate([best, scores], axis=1), np.concatenate([places, here], axis=1), k
            )
        return best, places


def rank(
    part: CopyStore, transformed: Vectors, texts: Sequence[str], k: int, method: Method
) -> tuple[Floats, Ints]:
    """Return the best k: scores and places (queries, k)."""
    size = len(part.numbers)
    k = min(k, size)
    fusing = method.bm25 == "fused"
    depth = min(max(k, DEPTH), size) if fusing else ranked_first(k, method, size)
    if len(transformed) > _QUERIES_AT_ONCE and not part.scans(depth):
        groups = (
            slice(at, at + _QUERIES_AT_ONCE) for at in range(0, len(transformed), _QUERIES_AT_ONCE)
        )
        found = [rank(part, transformed[some], texts[some], k, method) for some in groups]
        return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])
    if method.bm25 == "only":
        return part.words(method).rank(texts, k)
    if method.bm25 == "no":
        part.hits = k
        ranked = _ranked(part, transformed, texts, depth, method)
        return with_feedback(ranked, partial(part.documents, method=method), method, k)
    part.hits = None
    by_words = part.words(method).rank(texts, depth)
    dense = _ranked(part, transformed, (), depth, method)
    return fuse(dense, by_words, size, k)


def _ranked(
    part: CopyStore, query_vectors: Vectors, texts: Sequence[str], k: int, method: Method
) -> tuple[Floats, Ints]:
    """Return the best k by a method's dense score, and words where texts are given."""
    if part.scans(k):
        return part.scan(query_vectors, texts, k, method)
    found = search(part, query_vectors, texts, k, method)
    scores, places = (np.array([one[at] for one in found]) for at in (0, 1))
    shape = (len(query_vectors), k)
    return scores.astype(np.float32).reshape(shape), places.astype(np.int64).reshape(shape)


def transformed_queries(copy: Copy, query_vectors: Vectors, method: Method) -> Vectors:
    """Return query vectors as they are compared (``Layout.transformed``)."""
    return copy.whitening().apply(query_vectors) if method.whiten else query_vectors
