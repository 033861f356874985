"""A published copy of an index: searched in its engine, scored by the code of the folder."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.embed import Embedder
from strop.embed.base import checked_vectors
from strop.engines.base import META, Engine, Stored, unpack
from strop.engines.copies import Copy, Part, Replaced
from strop.engines.publish import whitened
from strop.engines.wholes import document_id
from strop.errors import BadIndex, BadInput
from strop.filters import fields_of, read_filter
from strop.methods import METHODS, Method, check_count, chosen_method
from strop.search.explain import Explanation, Terms, explain, terms_of
from strop.search.grouping import best_documents
from strop.search.hits import nearest_passage, of_chunk, passage_by_words
from strop.search.queries import as_queries, check_fields, text_and_vector, texts_and_vectors
from strop.storage.database import NONSENSE
from strop.storage.intake import EmbedderSpec, given_embedder
from strop.storage.trust import consent, needs_consent
from strop.types import HIT_FIELDS, Chunk, Document, Hit, Hits, Passage, Vectors

FRESH = 1.0
"""Seconds for which a copy is taken to be as it was when it was looked at last."""
_TIMES = 5
"""How often a search begins anew because the copy was replaced meanwhile."""
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
        self._lock = threading.RLock()
        self._copy: Copy | None = None
        self._looked = 0.0
        try:
            self.dim = self._now().dim
            if embedder is not None or options:
                _ = self.embedder  # refused at once if it is another one
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
        copy = self._now()
        return int(copy.about["documents"]) if copy.chunked else len(copy.numbers)

    # -- the copy as it is ----------------------------------------------------------------

    def _now(self) -> Copy:
        """Return the copy as it is, looked at anew if the last look is long ago."""
        with self._lock:
            if self._copy is None or time.monotonic() - self._looked > FRESH:
                self._copy = self._tried(self._look)
                self._looked = time.monotonic()
            return self._copy

    def _look(self) -> Copy:
        found = self._engine.read([META])
        if META not in found:
            address = self._engine.address
            hint = address.hint if os.path.exists(address.path[1:]) else ""
            raise BadIndex(f"{self.path} holds no copy: strop publish INDEX URL makes one{hint}")
        if self._copy is not None and self._copy.raw == found[META]:
            return self._copy
        return Copy(self._engine, found[META], self._copy)

    def _steady(self, read: Callable[[Copy], T]) -> T:
        """Return ``read(copy)``; again, if the copy was replaced meanwhile."""
        return self._tried(lambda: read(self._now()))

    def _tried(self, read: Callable[[], T]) -> T:
        for left in reversed(range(_TIMES)):
            try:
                return read()
            except (*NONSENSE, RecursionError) as error:  # or a publisher is at work
                if not left:
                    raise BadIndex(
                        f"{self.path} is damaged, or is not what strop publishes ({error!r:.200}):"
                        " publish again"
                    ) from error
                if not isinstance(error, Replaced):
                    with self._lock:
                        self._copy = None
                    time.sleep(0.1)
        raise AssertionError

    # -- embedder and methods -------------------------------------------------------------

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder the index was made with; loaded when it is first needed."""
        about = self._now().about
        return given_embedder(self.path, about["index_id"], about["embedder"], *self._given)

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
        if chosen.augmented is not None:
            raise BadInput(f"{chosen.name} is not in a published copy: search the index folder")
        if chosen.whiten and whitened(chosen, copy.mixed) != copy.about["whitening"]:
            raise BadInput(
                f"whiten={chosen.whiten:g} is not in this published copy, which has the whitening"
                " of the index's default method only: search the index folder"
            )
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

        Documents that are cut are as good as their best chunk; with ``chunks`` a hit is a chunk.
        """
        check_fields(fields)
        k, filter_ = check_count("k", k), None if where is None else read_filter(where)
        chosen = self.method(method, **settings)
        texts, rows = texts_and_vectors(
            as_queries(queries), vectors, chosen, self.dim, self.embed_queries
        )
        if filter_ is not None:
            copy = self._now()
            if unknown := [field for field in sorted(fields_of(filter_)) if not copy.has(field)]:
                names = ", ".join(map(repr, unknown))
                warnings.warn(f"filter: no document has the field {names}", stacklevel=2)

        def read(copy: Copy) -> Hits:
            part, by_document = copy.part(filter_, exact), copy.chunked and not chunks
            moved = part.moved(rows, chosen)

            def best(n: int) -> tuple[Floats, Ints]:
                return part.best(moved, texts, n, chosen)

            def document_of(places: Ints) -> Ints:
                known = dict[str, int]()
                ids = map(document_id, part.ids_of(places))
                groups = [known.setdefault(id_, len(known)) for id_ in ids]
                return np.array(groups, np.int64).reshape(places.shape)

            size = len(part.numbers)
            ranked = best_documents(best, document_of, k, size) if by_document else best(k)
            return self._hits(copy, part, chosen, moved, texts, ranked, fields, by_document)

        return self._steady(read)

    def _hits(
        self,
        copy: Copy,
        part: Part,
        method: Method,
        moved: Vectors,
        texts: Sequence[str],
        ranked: tuple[Floats, Ints],
        fields: Sequence[str],
        by_document: bool,
    ) -> Hits:
        """Return the hits of a ranking, scores and places (queries, k), with some fields."""
        scores, places = ranked
        numbers = part.numbers[places]
        if not {*fields} - {"id", "score"}:
            ids = part.ids_of(places)
            return Hits(_objects(map(document_id, ids) if by_document else ids, scores), scores)
        each = np.unique(numbers)
        if "passage" in fields:
            part.hold(each)
        stored = self._engine.documents(each)
        part.check_stamps(stored)
        wholes = copy.wholes({document_id(one.document.id) for one in stored.values()})

        def passage(query: int, number: int) -> Passage | None:
            one, pairs = stored[number].document, _texts(part, method, stored[number])
            rows = part.fetch(np.searchsorted(part.numbers, [number]), (), method).queries
            if not pairs or len(pairs) != len(rows):  # it has none, or is damaged
                return passage_by_words(one, texts[query] if texts else "", part.tokenizer)
            return nearest_passage(one, pairs, rows @ moved[query])

        def hit(query: int, score: float, number: int) -> Hit:
            one = stored[number].document
            place = passage(query, number) if "passage" in fields else None
            found = Hit(one.id, score, one.title, one.text, one.metadata, place)
            if (whole := wholes.get(document_id(one.id))) is None:
                return found
            return of_chunk(
                found, whole.chunks.get(one.id), whole.document if by_document else None
            )

        rows = [
            [hit(query, *one) for one in zip(*row, strict=True)]
            for query, row in enumerate(zip(scores.tolist(), numbers.tolist(), strict=True))
        ]
        return Hits(_objects((one.id for row in rows for one in row), scores), scores, rows)

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
            (moved,) = part.moved(q[None], chosen)
            terms = self._terms(part, copy.numbers_of(id_), text, chosen)
            parts = [explain(one, moved, of, chosen) for one, of in terms.items()]
            return max(parts, key=lambda one: one.score)

        return self._steady(read)

    def terms(self, ids: Sequence[str], query: str, method: Method) -> list[Terms]:
        """Return what the scores of documents for a query are made of: vectors, texts, words."""

        def read(copy: Copy) -> list[Terms]:
            numbers = [copy.numbers_of(id_)[0] for id_ in ids]
            return list(self._terms(copy.part(), numbers, query, method).values())

        return self._steady(read)

    def _terms(
        self, part: Part, numbers: Sequence[int], query: str, method: Method
    ) -> dict[str, Terms]:
        stored = self._engine.documents(np.unique(numbers))
        places = np.searchsorted(part.numbers, numbers)
        scores = part.words(method).of(query).at(places) if query else np.zeros(len(numbers))
        texts = [_texts(part, method, stored[number]) for number in numbers]
        terms = terms_of(part.fetch(places, (), method), texts, scores)
        return {stored[number].document.id: of for number, of in zip(numbers, terms, strict=True)}

    # -- documents ------------------------------------------------------------------------

    def get(self, id_: str) -> Document:
        """Return a document, or a chunk of one."""

        def read(copy: Copy) -> Document:
            first = copy.numbers_of(id_)[0]
            if whole := copy.wholes([id_]).get(id_):
                return whole.document
            return self._engine.documents(np.array([first]))[first].document

        return self._steady(read)

    def chunks(self, id_: str) -> list[Chunk]:
        """Return the chunks of a document, in order; none where documents are not cut."""
        whole = self._now().wholes([id_]).get(id_)
        return [] if whole is None else list(whole.chunks.values())

    def queries_of(self, id_: str) -> dict[str, list[str]]:
        """Return a document's stored queries by set."""
        numbers = self._now().numbers_of(id_)
        stored, lists = self._engine.documents(np.array(numbers)), dict[str, list[str]]()
        for number in numbers:
            for name, texts in stored[number].queries.items():
                lists.setdefault(name, []).extend(texts)
        return lists

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are not in the copy."""
        wanted, copy = list(ids), self._now()
        known = {*self._engine.ids(copy.with_ids(wanted)).values()}
        if copy.chunked:
            known |= {*map(document_id, known)}
        return {*wanted} - known

    # -- maintenance ----------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return what the copy holds, as JSON values."""
        copy = self._now()
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
        published = copy.about["chunks" if copy.chunked else "documents"]
        if published != len(copy.numbers):
            problems.append(
                f"{published:,} documents or chunks were published, {len(copy.numbers):,} are"
                " there: publish again"
            )
        return problems


def _objects(ids: Iterable[str], scores: Floats) -> Any:
    found = np.empty(scores.size, object)
    found[:] = list(ids)
    return found.reshape(scores.shape)


def _texts(part: Part, method: Method, stored: Stored) -> list[tuple[str, str]]:
    names = part.names(method)
    return [(name, text) for name in names for text in stored.queries.get(name, [])[: method.n]]
