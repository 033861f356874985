"""What a reader knows of a published copy, and the part of it that one search looks at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.engines.base import Engine, Stored
from strop.engines.held import Held
from strop.engines.publish import FORMAT, WHITENING, WORDS
from strop.engines.wholes import Whole, read_wholes
from strop.errors import BadIndex, BadInput
from strop.filters import Filter, Test
from strop.io.tokenizer import VERSION, Tokenizer
from strop.methods import Method, check_method, sharp_with
from strop.search.feedback import ranked_first, with_feedback
from strop.search.scoring import Fetched, best_of, score, search
from strop.search.whitening import Whitening
from strop.search.words import DEPTH, QueryWordScores, Words, WordScorer, first_depth, fuse
from strop.storage.facets import select
from strop.storage.intake import checked_record
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
"""Filters whose documents are remembered."""
HELD = 2000
"""So many documents of a search that scores all are held in memory."""
_QUERIES_AT_ONCE = 64
"""So many queries of a search share the documents that are held."""
REMEMBERED_BYTES = 128_000_000
"""Vectors of documents that searches of a copy scored, for the next ones."""


class Replaced(KeyError):
    """A document was replaced while a search looked at it."""


class Copy:
    """A copy as it was when it was looked at: what it is, its documents, its words."""

    def __init__(self, engine: Engine, raw: bytes, before: Copy | None) -> None:
        """``raw`` is what the copy says it is: data from outside, like a catalog."""
        about: dict[str, Any] = json.loads(raw)
        for name, version in (("format", FORMAT), ("tokenizer", VERSION)):
            if about[name] != version:
                raise BadIndex(
                    f"{engine.address.shown} was published by another version of strop ({name}"
                    f" {about[name]!r:.20}, not {version}): publish it again"
                )
        checked_record(engine.address.shown, about["embedder"])
        self.engine, self.raw, self.about = engine, raw, about
        self.dim: int = about["embedder"]["dim"]
        self.sets: dict[str, dict[str, Any]] = {
            name: dict(of) for name, of in about["sets"].items()
        }
        self.mixed = [name for name, of in self.sets.items() if of["mixed"]]
        self.methods = {name: check_method(sharp_with(of)) for name, of in about["methods"].items()}
        self.default = self.methods[""]
        self.tokenizer = Tokenizer(about["languages"])
        older = None if before is None else before._copied
        words = json.loads(engine.read([WORDS])[WORDS])
        self._copied: WordCopy = WordCopy(words, engine.read, older)
        self._words: dict[tuple[str, ...], Words] = {}
        known = self._copied.sources([TEXT])[TEXT].entries.shape[1]
        every = engine.every()
        self.numbers: Ints = every[every < known]  # later ones come with their words
        self._filters: dict[Filter, Ints] = {}
        self._fields: set[str] = set()
        self.chunked = about["chunks"] is not None
        self.remembered = self.nothing_held()
        """The vectors of the last searches, which the next ones need not fetch."""

    def nothing_held(self) -> Held:
        """Return what holds no vectors yet."""
        return Held(self.dim, [int(of["id"]) for of in self.sets.values()])

    # -- documents and chunks by id or by a filter's test (``storage.facets.Values``) ------

    def wholes(self, ids: Iterable[str]) -> dict[str, Whole]:
        """Return documents that are cut, by id; none where documents are not cut."""
        return read_wholes(self.engine, ids) if self.chunked else {}

    def numbers_of(self, id_: str) -> list[int]:
        """Return the number of a document or chunk, or those of a cut document's chunks in order.

        A piece may outlive the chunks of its document.
        """
        whole = self.wholes([id_]).get(id_)
        ids = [id_] if whole is None else list(whole.chunks)
        there = {one: number for number, one in self.engine.ids(self.engine.with_ids(ids)).items()}
        if not there:
            raise BadInput(f"{self.engine.address.shown} has no document {id_!r}")
        return [there[one] for one in ids if one in there]

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents or chunks with these ids, ascending."""
        chunks = [id_ for whole in self.wholes(ids).values() for id_ in whole.chunks]
        return self.engine.with_ids([*ids, *chunks])

    def every(self) -> Ints:
        """Return the numbers of all documents, ascending."""
        return self.numbers

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass a test, ascending."""
        return self.engine.passing(test)

    def has(self, field: str) -> bool:
        """Tell whether any document has a field of metadata; an engine may look at all of them."""
        if field not in self._fields and len(self.passing(Test(field, "exists", "in", (None,)))):
            self._fields.add(field)
        return field in self._fields

    @cached_property
    def whitening(self) -> Whitening:
        """The map of the default method."""
        return Whitening.read(self.engine.read([WHITENING])[WHITENING], self.dim)

    def words(self, names: Sequence[str]) -> Words:
        """Return the words of the documents, with those of some query sets."""
        key = tuple(name for name in names if self.sets[name]["words"])
        if key not in self._words:
            ids = [TEXT, *(int(self.sets[name]["id"]) for name in key)]
            scores = WordScorer(self._copied.sources(ids))
            self._words[key] = Words(self.tokenizer, scores, self._copied.reading, self.numbers)
        return self._words[key]

    def part(self, filter_: Filter | None = None, exact: bool = False) -> Part:
        """Return the documents that a filter selects, for one search."""
        if filter_ is None:
            return Part(self, None, exact)
        places = self._filters.get(filter_)
        if places is None:
            places = np.flatnonzero(np.isin(self.numbers, select(filter_, self)))
            if len(self._filters) >= _FILTERS:
                self._filters.clear()
            self._filters[filter_] = places
        return Part(self, places, exact)


class Part:
    """The documents that one search looks at, as a ``scoring.Store``."""

    def __init__(self, copy: Copy, selected: Ints | None, exact: bool) -> None:
        """``selected`` are places in the copy, None for all of it."""
        self._copy, self._selected, self._exact = copy, selected, exact
        self.dim, self.tokenizer = copy.dim, copy.tokenizer
        self.numbers = copy.numbers if selected is None else copy.numbers[selected]
        self._held, self._most_held = copy.nothing_held(), HELD
        self._slots: dict[int, int] = {}
        """Where the vectors of this search are, by number."""
        self._ids: dict[int, str] = {}
        self._stamps: dict[int, str] = {}
        """The stamps of the records whose vectors this search scored, by number."""
        self._word_scores: dict[str, QueryWordScores] = {}
        self._hits: int | None = None
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

    def propose(
        self, query_vectors: Vectors, query_texts: Sequence[str], k: int, method: Method
    ) -> list[Ints]:
        """Return for each query the places of documents that can be among its best k."""
        hits = min(k, self._hits or k)
        rows = max(ROWS, ROWS_PER_HIT * hits, _ROWS_PER_RANKED * k)
        own = method.weighting == "none" or not (method.alpha or method.weighting == "max")
        if own:  # each document has one row
            rows = max(k, ROWS // ROWS_PER_HIT)
        if method.whiten:  # the rows of the engine are not whitened
            query_vectors = self._copy.whitening.before(query_vectors)
            rows *= _WHITENED
        by_words = [np.empty(0, np.int64)] * len(query_vectors)
        if method.words and query_texts:
            most = 2 * max(first_depth(hits), k)
            by_words = [self._scores_of(text, method).best(most) for text in query_texts]
        among = None if self._selected is None else self.numbers
        most = int(self._copy.about["rows"])
        if self._copy.remembered.nbytes > REMEMBERED_BYTES:  # searches at work keep what they have
            self._copy.remembered = self._copy.nothing_held()
        self._held, self._slots, self._most_held = self._copy.remembered, {}, len(self.numbers)
        found = []
        for query, wanted in zip(query_vectors, by_words, strict=True):
            asked = rows
            while True:
                near = self._copy.engine.nearest(query, asked, own, among)
                numbers = np.union1d(near, self.numbers[wanted])
                if len(numbers) >= k or asked >= 2 * most:
                    break
                # Few documents have the nearest rows. An engine may look at half of those wanted.
                asked *= 4
            places = np.searchsorted(self.numbers, numbers)
            places = places[self.numbers.take(places, mode="clip") == numbers]
            if len(places) < k:  # the others have no vectors: any of them
                places = np.union1d(places, np.arange(min(len(self.numbers), 2 * k)))
            found.append(places)
        return found

    def fetch(self, places: Ints, query_texts: Sequence[str], method: Method) -> Fetched:
        """Return what scoring these documents needs."""
        slots = self.hold(self.numbers[places])
        ids = [int(self._copy.sets[name]["id"]) for name in self.names(method)]
        own = self._held.own(slots)
        queries, counts = self._held.queries(slots, ids, method.n)
        fetched = Fetched(self.moved(own, method), self.moved(queries, method), counts)
        if not query_texts or not method.words:
            return fetched
        word_scores = np.array([self._scores_of(text, method).at(places) for text in query_texts])
        return replace(fetched, word_scores=word_scores)

    def hold(self, numbers: Ints) -> Ints:
        """Return where the vectors of documents are held; they are fetched if they are not."""
        wanted = numbers.tolist()
        missing = [number for number in wanted if number not in self._slots]
        if missing and len(self._slots) + len(missing) > self._most_held:
            self._held, self._slots, missing = self._copy.nothing_held(), {}, wanted
        if new := [number for number in missing if number not in self._held.slots]:
            self._held.add(self._copy.engine.found(np.array(new, np.int64)))
        for number in missing:
            self._slots[number] = slot = self._held.slots[number]
            self._ids[number], stamp = self._held.records[slot]
            if self._stamps.setdefault(number, stamp) != stamp:  # by another search, meanwhile
                raise Replaced(f"document {number}")
        return np.array([self._slots[number] for number in wanted], np.int64)

    def check_stamps(self, stored: Mapping[int, Stored]) -> None:
        """Raise ``Replaced`` if documents are not those any more whose vectors were scored."""
        for number, one in stored.items():
            if self._stamps.get(number, one.stamp) != one.stamp:
                self._copy.remembered = self._copy.nothing_held()
                raise Replaced(f"document {number}")

    def moved(self, vectors: Vectors, method: Method) -> Vectors:
        """Return vectors as they are compared (``Layout.moved``)."""
        return self._copy.whitening.apply(vectors) if method.whiten else vectors

    def _documents(self, places: Ints, method: Method) -> Vectors:
        """Return the documents' own vectors."""
        slots = self.hold(self.numbers[places])  # may begin to hold anew
        return self.moved(self._held.own(slots), method)

    # -- rankings -------------------------------------------------------------------------

    def best(
        self, query_vectors: Vectors, texts: Sequence[str], k: int, method: Method
    ) -> tuple[Floats, Ints]:
        """Return the best k documents for each query: scores and places, (queries, k).

        ``query_vectors`` are as they are compared (``moved``).
        """
        size = len(self.numbers)
        k = min(k, size)
        fusing = method.bm25 == "fused"
        depth = min(max(k, DEPTH), size) if fusing else ranked_first(k, method, size)
        if len(query_vectors) > _QUERIES_AT_ONCE and not self._scans(depth):
            firsts = range(0, len(query_vectors), _QUERIES_AT_ONCE)
            groups = (slice(at, at + _QUERIES_AT_ONCE) for at in firsts)
            found = [self.best(query_vectors[some], texts[some], k, method) for some in groups]
            scores, places = zip(*found, strict=True)
            return np.concatenate(scores), np.concatenate(places)
        if method.bm25 == "only":
            return self.words(method).rank(texts, k)
        self._hits = None if fusing else k
        if fusing:
            by_words = self.words(method).rank(texts, depth)
            return fuse(self._ranked(query_vectors, (), depth, method), by_words, size, k)
        ranked = self._ranked(query_vectors, texts, depth, method)
        return with_feedback(ranked, partial(self._documents, method=method), method, k)

    def _scans(self, k: int) -> bool:
        """Tell whether a search for the best k scores all documents."""
        return self._exact or len(self.numbers) <= max(SCANNED, 2 * k)

    def _ranked(
        self, query_vectors: Vectors, texts: Sequence[str], k: int, method: Method
    ) -> tuple[Floats, Ints]:
        """Return the best k by a method's dense score, and words where texts are given."""
        if self._scans(k):
            return self._scan(query_vectors, texts, k, method)
        found = search(self, query_vectors, texts, k, method)
        scores, places = (np.array([one[at] for one in found]) for at in (0, 1))
        shape = (len(query_vectors), k)
        return scores.astype(np.float32).reshape(shape), places.astype(np.int64).reshape(shape)

    def _scan(
        self, query_vectors: Vectors, texts: Sequence[str], k: int, method: Method
    ) -> tuple[Floats, Ints]:
        """Return the best k of all documents."""
        best = np.empty((len(query_vectors), 0), np.float32)
        places = np.empty((len(query_vectors), 0), np.int64)
        for at in range(0, len(self.numbers), AT_ONCE):
            some = np.arange(at, min(at + AT_ONCE, len(self.numbers)))
            scores = score(query_vectors, self.fetch(some, texts, method), method)
            here = np.broadcast_to(some, scores.shape)
            best, places = best_of(
                np.concatenate([best, scores], axis=1), np.concatenate([places, here], axis=1), k
            )
        return best, places
