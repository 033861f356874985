"""Hits: ranked documents with what people read of them, read in the transaction of the search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.errors import BadInput, IndexDamaged
from strop.io.passages import locate
from strop.io.sentences import title_and_sentences
from strop.methods import Method
from strop.search.views import View, Views
from strop.storage.catalog import Catalog
from strop.types import HIT_FIELDS, Document, Hit, Hits, Passage, Vectors


def check_fields(fields: Sequence[str]) -> None:
    """Refuse a name that no field of a hit has."""
    if isinstance(fields, str) or (unknown := [one for one in fields if one not in HIT_FIELDS]):
        shown = repr(fields) if isinstance(fields, str) else ", ".join(map(repr, unknown))
        raise BadInput(f"fields: give a list of {', '.join(HIT_FIELDS)}, not {shown}")


class Passages:
    """Finds the passage of a document that is nearest to a query.

    It is found by the stored queries that a method mixes, else by words. ``query_vectors`` are as
    they were compared (``Layout.moved``).
    """

    def __init__(
        self,
        catalog: Catalog,
        views: Views,
        view: View,
        method: Method,
        query_vectors: Vectors,
        query_texts: Sequence[str],
    ) -> None:
        self.catalog = catalog
        self._views, self._view, self._n = views, view, method.n
        self._query_vectors, self._query_texts = query_vectors, query_texts
        self._lists: dict[str, dict[int, list[str]]] = {}

    def load(self, numbers: Sequence[int]) -> None:
        """Read the stored queries of the documents that ``of`` is called with."""
        known = self.catalog.sets.all()
        self._lists = {
            name: self._views.texts_of_all(known[name], numbers) for name in self._view.names
        }

    def of(self, query: int, place: int, document: Document) -> Passage | None:
        """Return the passage of the document at a place, None if it has no text."""
        vectors = self._view.layout.queries(place) if self._lists else ()
        if not len(vectors):
            return self._by_words(query, document)
        number = int(self._view.snapshot.numbers[place])
        texts = [
            (name, text)
            for name, lists in self._lists.items()
            for text in lists.get(number, [])[: self._n]
        ]
        if len(texts) != len(vectors):
            folder = self.catalog.folder
            raise IndexDamaged(
                f"{folder}: document {document.id!r} has {len(vectors):,} query vectors and"
                f" {len(texts):,} queries. To see what is wrong: strop check {folder}"
            )
        return _passage(document, *texts[int(np.argmax(vectors @ self._query_vectors[query]))])

    def _by_words(self, query: int, document: Document) -> Passage | None:
        parts = title_and_sentences(document.title, document.text)
        if not parts:
            return None
        tokenizer = self.catalog.words.tokenizer()
        terms = set(tokenizer.query(self._query_texts[query])) if self._query_texts else set()
        shared = [len(terms.intersection(tokenizer.document(part))) for part in parts]
        # A title says what a document is about, not what it answers: only if nothing else fits.
        if document.title and any(shared[1:]):
            shared[0] = 0
        return _passage(document, "text", parts[int(np.argmax(shared))])


def _passage(document: Document, source: str, text: str) -> Passage:
    if text == " ".join(document.title.split()):
        return Passage(text, None, None, "title")
    start, end = locate(text, document.text) or (None, None)
    return Passage(text, start, end, source)


def read_hits(
    view: View, ranked: tuple[Floats, Ints], fields: Sequence[str], passages: Passages
) -> Hits:
    """Return the hits of a ranking, scores and places (queries, k), with some of their fields."""
    scores, places = ranked
    catalog, numbers = passages.catalog, view.snapshot.numbers[places]
    wanted = np.unique(numbers).tolist()
    documents = catalog.documents.several(wanted) if {*fields} - {"id", "score"} else {}
    ids = {number: one.id for number, one in documents.items()}
    ids = ids or catalog.documents.ids_of(wanted)
    if missing := len(wanted) - len(ids):
        raise IndexDamaged(
            f"{catalog.folder}: {missing:,} documents have vectors and no text. To mend that:"
            f" strop check {catalog.folder} --repair"
        )
    flat = np.array([ids[number] for number in numbers.ravel().tolist()], dtype=object)
    if not documents:
        return Hits(flat.reshape(scores.shape), scores)
    if "passage" in fields:
        passages.load(wanted)
    rows: list[list[Hit]] = []
    for query in range(len(scores)):
        rows.append([])
        for score, place, number in zip(
            scores[query].tolist(), places[query].tolist(), numbers[query].tolist(), strict=True
        ):
            one = documents[number]
            passage = passages.of(query, place, one) if "passage" in fields else None
            rows[-1].append(Hit(one.id, score, one.title, one.text, one.metadata, passage))
    return Hits(flat.reshape(scores.shape), scores, rows)
