"""A published copy of an index: searched in its engine, scored by the code of the folder."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.embed import Embedder
from strop.embed.base import checked_vectors
from strop.engines.base import META, Engine, StoredDocument, unpack
from strop.engines.copies import QUERIES_AT_ONCE, Copy, CopyStore
from strop.engines.parents import ParentDocument, document_id, group, with_parent
from strop.engines.publish import FORMAT, WORDS
from strop.errors import BadIndex, BadInput, UnknownDocument
from strop.filters import fields_of, read_filter
from strop.methods import METHODS, Method, check_count, chosen_method
from strop.search.explain import Explanation, ScoreInputs, explain, score_inputs_of
from strop.search.grouping import best_documents
from strop.search.hits import nearest_passage, passage_by_words
from strop.search.queries import as_queries, check_fields, text_and_vector, texts_and_vectors
from strop.search.ranking import rank
from strop.storage.database import DECODING_ERRORS
from strop.storage.intake import EmbedderSpec, checked_record, given_embedder
from strop.storage.trust import consent, needs_consent
from strop.types import HIT_FIELDS, Chunk, Document, Hit, Hits, Passage, Vectors

FRESH = 1.0
"""Seconds for which a copy is assumed to be unchanged since it was last read."""
_ATTEMPTS = 5
"""Attempts of a read: it is repeated if the copy was replaced meanwhile."""
_MAX_METHODS = 100
"""Maximum number of methods by name that a copy caches."""
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
        self._requested_embedder = embedder, options
        self._embedder: Embedder | None = None
        self._lock = threading.Lock()
        self._copy: Copy | None = None
        self._read_at = 0.0
        try:
            copy = self._current()
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

    def __repr__(self) -> str:
        return f"Published({self.path!r})"

    def __len__(self) -> int:
        """The number of documents."""
        copy = self._current()
        return int(copy.about["documents"]) if copy.is_split else len(copy.numbers)

    # -- the current copy -----------------------------------------------------------------

    def _current(self) -> Copy:
        """Return the copy, read again if the last read is more than ``FRESH`` seconds ago."""
        with self._lock:
            if self._copy is None or time.monotonic() - self._read_at > FRESH:
                self._copy = self._refresh(self._copy)
                self._read_at = time.monotonic()
            return self._copy

    def _refresh(self, previous: Copy | None) -> Copy:
        for remaining in reversed(range(_ATTEMPTS)):
            pieces = self._engine.read([META])
            if META not in pieces:
                address = self._engine.address
                hint = address.hint if os.path.exists(address.path[1:]) else ""
                raise BadIndex(
                    f"{self.path} holds no copy: strop publish INDEX URL makes one{hint}"
                )
            if previous is not None and previous.raw == pieces[META]:
                return previous
            about = self._checked(pieces[META])
            try:
                words = json.loads(self._engine.read([WORDS])[WORDS])
                return Copy(self._engine, pieces[META], about, words, previous)
            except DECODING_ERRORS as error:  # damage, or a publisher is writing
                if not remaining:
                    raise BadIndex(
                        f"{self.path} is not what strop publishes ({error!r:.200}): publish again"
                    ) from error
                time.sleep(0.1)
        raise AssertionError

    def _checked(self, raw: bytes) -> dict[str, Any]:
        """Return the description of a copy, validated: it is data from outside, like a catalog."""
        try:
            about: dict[str, Any] = json.loads(raw)
            if about["format"] != FORMAT:
                raise BadIndex(
                    f"{self.path} was published by another version of strop (format"
                    f" {about['format']!r:.20}, not {FORMAT}): publish it again"
                )
            checked_record(self.path, about["embedder"])
            return about
        except (*DECODING_ERRORS, RecursionError) as error:
            raise BadIndex(
                f"{self.path} does not say what it is ({error!r:.200}): publish it again"
            ) from error

    def _retry_if_replaced(self, read: Callable[[Copy], T]) -> T:
        """Return ``read(copy)``; repeat it if the copy was replaced meanwhile."""
        for remaining in reversed(range(_ATTEMPTS)):
            try:
                return read(self._current())
            except DECODING_ERRORS as error:  # damage, or something was removed meanwhile
                if not remaining:
                    raise BadIndex(
                        f"{self.path} is damaged ({error!r:.200}): publish it again"
                    ) from error
                with self._lock:
                    self._copy = None
        raise AssertionError

    # -- embedder and methods -------------------------------------------------------------

    @property
    def embedder(self) -> Embedder:
        """The embedder that the index was built with; loaded when it is first needed."""
        if self._embedder is None:
            self._embedder = self._load(self._current())
        return self._embedder

    def _load(self, copy: Copy) -> Embedder:
        spec, options = self._requested_embedder
        about = copy.about
        return given_embedder(self.path, about["index_id"], about["embedder"], spec, options)

    def trust(self) -> list[str]:
        """Accept the embedder that somebody else's copy names; return what that covers."""
        about = self._current().about
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
        return self._current().mixed

    def method(self, method: str | Method | None = None, **settings: Any) -> Method:
        """Return a method for this copy, as tuned for its index; ``settings`` override it."""
        copy = self._current()
        spec = method or "" if isinstance(method, str | None) and not settings else None
        if spec is not None and spec in copy.chosen:
            return copy.chosen[spec]
        methods = METHODS | {name: tuned for name, tuned in copy.methods.items() if name}
        chosen = chosen_method(method or copy.default.name, settings, methods)
        for name in chosen.sets or ():
            if name not in copy.sets:
                have = ", ".join(copy.sets) or "none"
                raise BadInput(f"{self.path} has no query set {name!r} (it has: {have})")
        if chosen.sets is None and not copy.mixed:
            raise BadInput(f"{chosen.name} needs a query set and {self.path} has none")
        if chosen.augmented is not None:
            raise BadInput(f"{chosen.name} is not in a published copy: search the index folder")
        if spec is not None:
            if len(copy.chosen) >= _MAX_METHODS:
                copy.chosen = {}
            copy.chosen[spec] = chosen
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
        chunks: bool = False,
        vectors: Vectors | None = None,
        **settings: Any,
    ) -> Hits:
        """Return the best k documents for each query; ``exact`` scores all documents.

        A split document has the score of its best chunk; with ``chunks`` a hit is a chunk.
        """
        check_fields(fields)
        k, filter_ = check_count("k", k), None if where is None else read_filter(where)
        chosen = self.method(method, **settings)
        texts, rows = texts_and_vectors(
            as_queries(queries), vectors, chosen, self.dim, self.embed_queries
        )
        if filter_ is not None:
            copy = self._current()
            if unknown := [field for field in sorted(fields_of(filter_)) if not copy.has(field)]:
                names = ", ".join(map(repr, unknown))
                warnings.warn(f"filter: no document has the field {names}", stacklevel=2)

        def read(copy: Copy) -> Hits:
            store = copy.store_for(chosen, filter_, exact)
            by_document = copy.is_split and not chunks

            def best(n: int) -> tuple[Floats, Ints]:
                step = max(1, len(rows)) if store.scans(n) else QUERIES_AT_ONCE
                groups = [slice(at, at + step) for at in range(0, max(1, len(rows)), step)]
                ranked = [rank(store, rows[group], texts[group], n) for group in groups]
                scores, places = zip(*ranked, strict=True)
                return np.concatenate(scores), np.concatenate(places)

            def group_of(places: Ints) -> Ints:
                return group(store.ids_of(places), places.shape)

            ranked = best_documents(best, group_of, k, store.size) if by_document else best(k)
            return self._hits(copy, store, rows, texts, ranked, fields, by_document)

        return self._retry_if_replaced(read)

    def _hits(
        self,
        copy: Copy,
        store: CopyStore,
        query_vectors: Vectors,
        texts: Sequence[str],
        ranked: tuple[Floats, Ints],
        fields: Sequence[str],
        by_document: bool,
    ) -> Hits:
        """Return the hits of a ranking, scores and places (queries, k), with some fields."""
        scores, places = ranked
        numbers = store.numbers[places]
        if not {*fields} - {"id", "score"}:
            ids = store.ids_of(places)
            return Hits(_objects(map(document_id, ids) if by_document else ids, scores), scores)
        if "passage" in fields:
            store.prefetch(numbers)
        stored = self._engine.documents(np.unique(numbers))
        store.check_cached(numbers)
        parents: dict[str, ParentDocument] = {}
        if copy.is_split:
            parents = copy.parents.read({document_id(one.document.id) for one in stored.values()})
        rows: list[list[Hit]] = []
        for query in range(len(scores)):
            rows.append([])
            pairs = zip(scores[query].tolist(), numbers[query].tolist(), strict=True)
            for score, number in pairs:
                one = stored[number].document
                passage = None
                if "passage" in fields:
                    text = texts[query] if texts else ""
                    passage = _passage(store, query_vectors[query], text, number, stored[number])
                hit = Hit(one.id, score, one.title, one.text, one.metadata, passage)
                rows[-1].append(with_parent(hit, parents.get(document_id(one.id)), by_document))
        return Hits(_objects((hit.id for row in rows for hit in row), scores), scores, rows)

    def explain(
        self,
        query: str | Vectors,
        id_: str,
        method: str | Method | None = None,
        *,
        vectors: Vectors | None = None,
        **settings: Any,
    ) -> Explanation:
        """Return how much each stored query of a document changed its score."""
        chosen = self.method(method, **settings)
        if chosen.weighting == "none" or chosen.bm25 != "no":
            raise BadInput(f"{chosen.name} has no score that stored queries move: explain sharp")
        text, q = text_and_vector(query, vectors, self.dim, self.embed_queries)
        text = text if chosen.words else ""

        def read(copy: Copy) -> Explanation:
            numbers = self._numbers(copy, id_)
            inputs = self._inputs_by_id(copy.store_for(chosen), numbers, text)
            explained = [explain(row_id, q, row, chosen) for row_id, row in inputs.items()]
            return max(explained, key=lambda explanation: explanation.score)

        return self._retry_if_replaced(read)

    def score_inputs(self, ids: Sequence[str], query: str, method: Method) -> list[ScoreInputs]:
        """Return the inputs of the scores of documents for a query: vectors, texts, words."""

        def read(copy: Copy) -> list[ScoreInputs]:
            numbers = [self._numbers(copy, id_)[0] for id_ in ids]
            return list(self._inputs_by_id(copy.store_for(method), numbers, query).values())

        return self._retry_if_replaced(read)

    def _inputs_by_id(
        self, store: CopyStore, numbers: Sequence[int], query: str
    ) -> dict[str, ScoreInputs]:
        stored = self._engine.documents(np.unique(numbers))
        places = np.searchsorted(store.numbers, numbers)
        scores = store.words.of(query).at(places) if query else np.zeros(len(numbers))
        texts = [_texts(store, stored[number]) for number in numbers]
        rows = zip(numbers, score_inputs_of(store.fetch(places), texts, scores), strict=True)
        return {stored[number].document.id: row for number, row in rows}

    # -- documents ------------------------------------------------------------------------

    def _parent(self, copy: Copy, id_: str) -> ParentDocument | None:
        """Return a split document; None for a chunk, and if documents are not split."""
        return copy.parents.read([id_]).get(id_) if copy.is_split else None

    def _numbers(self, copy: Copy, id_: str) -> list[int]:
        """Return the number of a document, or those of its chunks; or that of a chunk."""
        parent = self._parent(copy, id_)
        numbers: list[int] = (
            copy.parents.numbers(parent) if parent else self._engine.with_ids([id_]).tolist()
        )
        if not numbers:
            raise UnknownDocument(self.path, id_)
        return numbers

    def get(self, id_: str) -> Document:
        """Return a document, or a chunk of one."""

        def read(copy: Copy) -> Document:
            first = self._numbers(copy, id_)[0]  # raises if only the piece of the document is left
            if parent := self._parent(copy, id_):
                return parent.document
            return self._engine.documents(np.array([first]))[first].document

        return self._retry_if_replaced(read)

    def chunks(self, id_: str) -> list[Chunk]:
        """Return the chunks of a document, in order; none if documents are not split."""
        parent = self._parent(self._current(), id_)
        return [] if parent is None else list(parent.chunks.values())

    def queries_of(self, id_: str) -> dict[str, list[str]]:
        """Return a document's stored queries by set."""
        numbers = self._numbers(self._current(), id_)
        stored, lists = self._engine.documents(np.array(numbers)), dict[str, list[str]]()
        for number in numbers:
            for name, texts in stored[number].queries.items():
                lists.setdefault(name, []).extend(texts)
        return lists

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are not in the copy."""
        requested, copy = list(ids), self._current()
        if copy.is_split:
            return {*requested} - copy.parents.existing(requested)
        return {*requested} - {*self._engine.ids(self._engine.with_ids(requested)).values()}

    # -- maintenance ----------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return what the copy holds, as JSON values."""
        copy = self._current()
        about = {key: value for key, value in copy.about.items() if key != "methods"}
        return {
            "path": self.path,
            "engine": self._engine.address.scheme,
            **about,
            "documents": len(self),
            "method": asdict(copy.default),
            "bytes": self._engine.size(),
        }

    def check(self) -> list[str]:
        """Read everything and return the problems; publishing again repairs them."""
        copy, problems = self._current(), []
        for at in range(0, len(copy.numbers), 1000):
            numbers = copy.numbers[at : at + 1000]
            packed, stored = self._engine.packed_vectors(numbers), self._engine.documents(numbers)
            for number in numbers.tolist():
                try:
                    rows = unpack(packed[number].packed, self.dim)
                    texts = sum(map(len, stored[number].queries.values()))
                    if texts != sum(map(len, rows.values())) - 1:
                        raise BadIndex("queries without vectors, or vectors without queries")
                except (KeyError, BadIndex) as error:
                    problems.append(f"document {number}: {error}")
        published = copy.about["chunks" if copy.is_split else "documents"]
        if published != len(copy.numbers):
            problems.append(
                f"{published:,} documents or chunks were published, {len(copy.numbers):,} are"
                " there: publish again"
            )
        return problems


def _objects(ids: Iterable[str], scores: Floats) -> Any:
    array = np.empty(scores.size, object)
    array[:] = list(ids)
    return array.reshape(scores.shape)


def _texts(store: CopyStore, stored: StoredDocument) -> list[tuple[str, str]]:
    n = store.method.n
    return [(name, text) for name in store.set_names for text in stored.queries.get(name, [])[:n]]


def _passage(
    store: CopyStore, query_vector: Vectors, text: str, number: int, stored: StoredDocument
) -> Passage | None:
    pairs = _texts(store, stored)
    rows = store.fetch(np.searchsorted(store.numbers, [number])).queries
    if not pairs or len(pairs) != len(rows):  # it has no queries, or was replaced meanwhile
        return passage_by_words(stored.document, text, store.tokenizer)
    return nearest_passage(stored.document, pairs, rows @ query_vector)
