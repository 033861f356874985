"""A published copy of an index: searched in its engine, scored by the code of the folder."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from strop.common.arrays import Floats, Ints, unit_rows
from strop.embed import Embedder
from strop.embed.base import checked_vectors
from strop.engines.base import META, Engine, Stored, unpack
from strop.engines.copies import Copy, Part
from strop.engines.publish import FORMAT, WORDS
from strop.errors import BadIndex, BadInput
from strop.filters import Filter, Test, fields_of, read_filter
from strop.methods import METHODS, Method, check_count, chosen_method
from strop.search.explain import Explanation, Terms, explain
from strop.search.hits import nearest_passage, passage_by_words
from strop.search.queries import as_queries, text_and_vector, texts_and_vectors
from strop.search.scoring import search
from strop.search.words import DEPTH, fuse
from strop.storage.database import NONSENSE
from strop.storage.intake import EmbedderSpec, checked_record, given_embedder
from strop.storage.trust import consent, needs_consent
from strop.types import HIT_FIELDS, Document, Hit, Hits, Passage, Vectors

FRESH = 1.0
"""Seconds for which a copy is taken to be as it was when it was looked at last."""
_TIMES = 5
_FEEDBACK_FROM = 2
T = TypeVar("T")


class Published:
    """A copy of an index in a database, for reading; the methods are explained at ``Index``.

    ``strop.connect(url)`` opens one. Several threads may use it. It sees what was published within
    a second.
    """

    def __init__(
        self, engine: Engine, embedder: EmbedderSpec | None = None, **options: Any
    ) -> None:
        """Use ``strop.connect`` instead."""
        self._engine, self.path = engine, engine.address.shown
        self._given = embedder, options
        self._embedder: Embedder | None = None
        self._lock = threading.Lock()
        self._copy: Copy | None = None
        self._looked = 0.0
        try:
            copy = self._now()
            self.dim = copy.dim
            if embedder is not None or options:
                self._embedder = self._load(copy)
        except BaseException:
            engine.close()
            raise

    def close(self) -> None:
        """Release connections."""
        self._engine.close()

    def __enter__(self) -> Published:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of documents."""
        return len(self._now().numbers)

    # -- the copy as it is ----------------------------------------------------------------

    def _now(self) -> Copy:
        """Return the copy as it is, looked at anew if the last look is long ago."""
        with self._lock:
            if self._copy is None or time.monotonic() - self._looked > FRESH:
                self._copy = self._look(self._copy)
                self._looked = time.monotonic()
            return self._copy

    def _look(self, before: Copy | None) -> Copy:
        for left in reversed(range(_TIMES)):
            found = self._engine.read([META])
            if META not in found:
                raise BadIndex(f"{self.path} holds no copy: strop publish INDEX URL makes one")
            if before is not None and before.raw == found[META]:
                return before
            about = self._checked(found[META])
            try:
                words = json.loads(self._engine.read([WORDS])[WORDS])
                return Copy(self._engine, found[META], about, words, before)
            except NONSENSE as error:  # or a publisher is at work
                if not left:
                    raise BadIndex(
                        f"{self.path} is not what strop publishes ({error!r:.200}): publish again"
                    ) from error
                time.sleep(0.1)
        raise AssertionError

    def _checked(self, raw: bytes) -> dict[str, Any]:
        """Return what a copy says of itself: data from outside, like a catalog."""
        try:
            about: dict[str, Any] = json.loads(raw)
            if about["format"] != FORMAT:
                raise BadIndex(
                    f"{self.path} was published by another version of strop (format"
                    f" {about['format']!r:.20}, not {FORMAT}): publish it again"
                )
            checked_record(self.path, about["embedder"])
            return about
        except (*NONSENSE, RecursionError) as error:
            raise BadIndex(
                f"{self.path} does not say what it is ({error!r:.200}): publish it again"
            ) from error

    def _steady(self, read: Callable[[Copy], T]) -> T:
        """Return ``read(copy)``; again, if the copy was replaced meanwhile."""
        for left in reversed(range(_TIMES)):
            try:
                return read(self._now())
            except NONSENSE as error:  # or words and documents went meanwhile
                if not left:
                    raise BadIndex(
                        f"{self.path} is damaged ({error!r:.200}): publish it again"
                    ) from error
                with self._lock:
                    self._copy = None
        raise AssertionError

    # -- embedder and methods -------------------------------------------------------------

    @property
    def embedder(self) -> Embedder:
        """The embedder the index was made with; loaded when it is first needed."""
        if self._embedder is None:
            self._embedder = self._load(self._now())
        return self._embedder

    def _load(self, copy: Copy) -> Embedder:
        spec, options = self._given
        about = copy.about
        return given_embedder(self.path, about["index_id"], about["embedder"], spec, options)

    def trust(self) -> list[str]:
        """Accept the embedder that somebody else's copy names; return what that covers."""
        about = self._now().about
        name, options = about["embedder"]["name"], about["embedder"]["options"]
        consent(about["index_id"], name, options)
        return needs_consent(name, options)

    def embed_queries(self, queries: str | Sequence[str]) -> Vectors:
        """Embed texts as queries (n, dim), for ``search``."""
        texts = [queries] if isinstance(queries, str) else list(queries)
        rows = self.embedder.embed(texts, "query")
        return checked_vectors(rows, len(texts), self.embedder.name, self.dim)

    def query_sets(self) -> list[str]:
        """Return the names of the query sets that ``sharp`` mixes."""
        return self._now().mixed

    def method(self, method: str | Method | None = None, **settings: Any) -> Method:
        """Return a method for this copy, as tuned for its index; ``settings`` override it."""
        copy = self._now()
        known = METHODS | {name: one for name, one in copy.methods.items() if name}
        chosen = chosen_method(method or copy.default.name, settings, known)
        for name in chosen.sets or ():
            if name not in copy.sets:
                have = ", ".join(copy.sets) or "none"
                raise BadInput(f"{self.path} has no query set {name!r} (it has: {have})")
        if chosen.sets is None and not copy.mixed:
            raise BadInput(f"{chosen.name} needs a query set and {self.path} has none")
        if chosen.expanded is not None or chosen.whiten:
            what = "whiten" if chosen.whiten else chosen.name
            raise BadInput(f"{what} is not in a published copy: search the index folder")
        return chosen

    # -- searching ------------------------------------------------------------------------

    def search(
        self,
        queries: str | Iterable[str] | Vectors,
        k: int = 10,
        method: str | Method | None = None,
        *,
        where: Mapping[str, Any] | None = None,
        fields: Sequence[str] = HIT_FIELDS,
        exact: bool = False,
        vectors: Vectors | None = None,
        **settings: Any,
    ) -> Hits:
        """Return the best k documents for each query; ``exact`` scores all documents."""
        k, filter_ = check_count("k", k), None if where is None else read_filter(where)
        chosen = self.method(method, **settings)
        texts, rows = texts_and_vectors(
            as_queries(queries), vectors, chosen, self.dim, self.embed_queries
        )
        if filter_ is not None:
            self._warn_of_unknown(filter_)

        def read(copy: Copy) -> Hits:
            part = copy.part(filter_, exact)
            scores, places, moved = _best(part, rows, texts, k, chosen)
            return self._hits(part, chosen, moved, texts, scores, places, fields)

        return self._steady(read)

    def _warn_of_unknown(self, filter_: Filter) -> None:
        tests = [Test(field, "exists", "in", (None,)) for field in sorted(fields_of(filter_))]
        if unknown := [test.field for test in tests if not len(self._engine.passing(test))]:
            names = ", ".join(map(repr, unknown))
            warnings.warn(f"filter: no document has the field {names}", stacklevel=3)

    def _hits(
        self,
        part: Part,
        method: Method,
        moved: Vectors,
        texts: Sequence[str],
        scores: Floats,
        places: Ints,
        fields: Sequence[str],
    ) -> Hits:
        """Return the hits of a ranking, scores and places (queries, k), with some fields."""
        numbers = part.numbers[places]
        wanted = np.unique(numbers)
        if not {*fields} - {"id", "score"}:
            unread = [number for number in wanted.tolist() if number not in part.ids]
            more = self._engine.ids(np.array(unread, np.int64)) if unread else {}
            return Hits(_objects({**part.ids, **more}, numbers), scores)
        stored = self._engine.documents(wanted)
        ids = {number: one.document.id for number, one in stored.items()}
        found = _objects(ids, numbers)
        rows: list[list[Hit]] = []
        for query in range(len(scores)):
            rows.append([])
            pairs = zip(scores[query].tolist(), numbers[query].tolist(), strict=True)
            for score, number in pairs:
                one = stored[number].document
                passage = None
                if "passage" in fields:
                    text = texts[query] if texts else ""
                    passage = _passage(part, method, moved[query], text, number, stored[number])
                rows[-1].append(Hit(one.id, score, one.title, one.text, one.metadata, passage))
        return Hits(found, scores, rows)

    def explain(
        self,
        query: str | Vectors,
        id_: str,
        method: str | Method | None = None,
        *,
        vectors: Vectors | None = None,
        **settings: Any,
    ) -> Explanation:
        """Say how much each stored query of a document changed its score."""
        chosen = self.method(method, **settings)
        if chosen.weighting == "none" or chosen.bm25 != "no":
            raise BadInput(f"{chosen.name} has no score that stored queries move: explain sharp")
        text, q = text_and_vector(query, vectors, self.dim, self.embed_queries)
        text = text if chosen.words else ""

        def read(copy: Copy) -> Explanation:
            part = copy.part()
            (moved,) = _moved(part, q[None], chosen)
            return explain(id_, moved, self._terms(part, [id_], text, chosen)[0], chosen)

        return self._steady(read)

    def terms(self, ids: Sequence[str], query: str, method: Method) -> list[Terms]:
        """Return what the scores of documents for a query are made of: vectors, texts, words."""
        return self._steady(lambda copy: self._terms(copy.part(), ids, query, method))

    def _terms(self, part: Part, ids: Sequence[str], query: str, method: Method) -> list[Terms]:
        numbers = self._engine.with_ids(ids)
        stored = self._engine.documents(numbers)
        by_id = {one.document.id: (number, one) for number, one in stored.items()}
        if unknown := [id_ for id_ in ids if id_ not in by_id]:
            raise BadInput(f"{self.path} has no document {unknown[0]!r}")
        places = np.searchsorted(part.numbers, [by_id[id_][0] for id_ in ids])
        fetched = part.fetch(places, (), method)
        shares = part.words(method).of(query).at(places) if query else np.zeros(len(ids))
        rows = np.split(fetched.queries, np.cumsum(fetched.counts)[:-1])
        texts = [_texts(part, method, by_id[id_][1]) for id_ in ids]
        each = zip(fetched.documents, rows, texts, shares.tolist(), strict=True)
        return [Terms(*of) for of in each]

    # -- documents ------------------------------------------------------------------------

    def _stored(self, id_: str) -> tuple[int, Stored]:
        numbers = self._engine.with_ids([id_])
        if not len(numbers):
            raise BadInput(f"{self.path} has no document {id_!r}")
        return int(numbers[0]), self._engine.documents(numbers)[int(numbers[0])]

    def get(self, id_: str) -> Document:
        """Return a document."""
        return self._stored(id_)[1].document

    def queries_of(self, id_: str) -> dict[str, list[str]]:
        """Return a document's stored queries by set."""
        return self._stored(id_)[1].queries

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are not in the copy."""
        wanted = list(ids)
        known = set(self._engine.ids(self._engine.with_ids(wanted)).values())
        return {id_ for id_ in wanted if id_ not in known}

    # -- maintenance ----------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return what the copy holds, as JSON values."""
        copy = self._now()
        about = {key: value for key, value in copy.about.items() if key != "methods"}
        return {
            "path": self.path,
            "engine": self._engine.address.scheme,
            **about,
            "documents": len(copy.numbers),
            "method": asdict(copy.default),
            "bytes": self._engine.size(),
        }

    def check(self) -> list[str]:
        """Read everything and return the problems; publishing again mends them."""
        copy, problems = self._now(), []
        for at in range(0, len(copy.numbers), 1000):
            numbers = copy.numbers[at : at + 1000]
            found, stored = self._engine.found(numbers), self._engine.documents(numbers)
            for number in numbers.tolist():
                try:
                    rows = unpack(found[number].packed, self.dim)
                    texts = sum(map(len, stored[number].queries.values()))
                    if texts != sum(map(len, rows.values())) - 1:
                        raise BadIndex("queries without vectors, or vectors without queries")
                except (KeyError, BadIndex) as error:
                    problems.append(f"document {number}: {error}")
        if copy.about["documents"] != len(copy.numbers):
            problems.append(
                f"{copy.about['documents']:,} documents were published, {len(copy.numbers):,} are"
                " there: publish again"
            )
        return problems


def _best(
    part: Part, query_vectors: Vectors, texts: Sequence[str], k: int, method: Method
) -> tuple[Floats, Ints, Vectors]:
    """Return the best k: scores and places (queries, k), and the vectors that were compared."""
    k = min(k, len(part.numbers))
    if method.bm25 == "only":
        return *part.words(method).rank(texts, k), query_vectors
    moved = _moved(part, query_vectors, method)
    if method.bm25 == "no":
        return *_ranked(part, moved, texts, k, method), moved
    depth = min(max(k, DEPTH), len(part.numbers))
    by_words = part.words(method).rank(texts, depth)
    dense = _ranked(part, moved, (), depth, method)
    return *fuse(dense, by_words, len(part.numbers), k), moved


def _ranked(
    part: Part, query_vectors: Vectors, texts: Sequence[str], k: int, method: Method
) -> tuple[Floats, Ints]:
    """Return the best k by a method's dense score, and words where texts are given."""
    if part.scans(k):
        return part.scan(query_vectors, texts, k, method)
    found = search(part, query_vectors, texts, k, method)
    scores, places = (np.array([one[at] for one in found]) for at in (0, 1))
    shape = (len(query_vectors), k)
    return scores.astype(np.float32).reshape(shape), places.astype(np.int64).reshape(shape)


def _moved(part: Part, query_vectors: Vectors, method: Method) -> Vectors:
    """Return query vectors after feedback (``Layout.moved``)."""
    k = min(_FEEDBACK_FROM, len(part.numbers))
    if not method.feedback or not k:
        return query_vectors
    _, places = _ranked(part, query_vectors, (), k, method)
    first = [part.fetch(row, (), method).documents.mean(axis=0) for row in places]
    return unit_rows(query_vectors + np.float32(method.feedback) * np.array(first))


def _objects(ids: Mapping[int, str], numbers: Ints) -> Any:
    flat = [ids[number] for number in numbers.ravel().tolist()]
    found = np.empty(len(flat), object)
    found[:] = flat
    return found.reshape(numbers.shape)


def _texts(part: Part, method: Method, stored: Stored) -> list[tuple[str, str]]:
    names = part.names(method)
    return [(name, text) for name in names for text in stored.queries.get(name, [])[: method.n]]


def _passage(
    part: Part, method: Method, query_vector: Vectors, text: str, number: int, stored: Stored
) -> Passage | None:
    places = np.searchsorted(part.numbers, [number])
    pairs = _texts(part, method, stored)
    rows = part.fetch(places, (), method).queries
    if not pairs or len(pairs) != len(rows):  # it has none, or was replaced just now
        return passage_by_words(stored.document, text, part.tokenizer)
    return nearest_passage(stored.document, pairs, rows @ query_vector)
