"""Hits: ranked documents with what people read of them, read in the transaction of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strop.common.arrays import Floats, Ints
from strop.errors import IndexDamaged
from strop.io.sentences import locate, title_and_sentences
from strop.io.tokenizer import Tokenizer
from strop.methods import Method
from strop.search.views import View, Views
from strop.storage.catalog import Catalog
from strop.types import Chunk, Document, Hit, Hits, Passage, Vectors


def read_hits(
    catalog: Catalog,
    views: Views,
    view: View,
    method: Method,
    transformed: Vectors,
    query_texts: Sequence[str],
    ranked: tuple[Floats, Ints],
    fields: Sequence[str],
    by_document: bool = False,
) -> Hits:
    """Return the hits of a ranking, scores and places (queries, k), with some of their fields.

    ``transformed`` are the query vectors as they were compared (``Layout.transformed``). With
    ``by_document`` the places are of chunks, and the hits of their documents.
    """
    scores, places = ranked
    numbers = view.snapshot.numbers[places]
    wanted = sorted({*numbers.ravel().tolist()})
    documents = catalog.documents.several(wanted) if {*fields} - {"id", "score"} else {}
    chunks = catalog.documents.chunks.rows(wanted) if catalog.documents.are_chunked() else {}
    document_ids = catalog.documents.document_ids_of(wanted) if chunks else {}
    if by_document:
        ids = document_ids
    else:
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
    wholes = {}
    if by_document and "text" in fields:
        wholes = catalog.documents.chunks.documents({row.whole for row in chunks.values()})
    mixed = views.mixed_texts(view, method, wanted) if "passage" in fields else {}

    def passage(query: int, place: int, document: Document, number: int) -> Passage | None:
        """Find a passage by the stored queries that a method mixes, else by words."""
        rows = view.layout.queries(place)
        if not len(rows):
            text = query_texts[query] if query_texts else ""
            return passage_by_words(document, text, catalog.words.tokenizer())
        if len(mixed[number]) != len(rows):
            raise IndexDamaged(
                f"{catalog.folder}: document {document.id!r} has {len(rows):,} query vectors and"
                f" {len(mixed[number]):,} queries. To see what is wrong: strop check"
                f" {catalog.folder}"
            )
        return nearest_passage(document, mixed[number], rows @ transformed[query])

    def hit(query: int, score: float, place: int, number: int) -> Hit:
        one = documents[number]
        where = passage(query, place, one, number) if "passage" in fields else None
        found = Hit(one.id, score, one.title, one.text, one.metadata, where)
        row = chunks.get(number)
        if row is None:
            return found
        document = document_ids[number]
        whole = (wholes.get(row.whole) or Document(document, "")) if by_document else None
        chunk = Chunk(one.id, document, one.text, row.start, row.end, row.headings)
        return _of_chunk(found, chunk, whole)

    rows = [
        [hit(query, *one) for one in zip(*row, strict=True)]
        for query, row in enumerate(
            zip(scores.tolist(), places.tolist(), numbers.tolist(), strict=True)
        )
    ]
    return Hits(flat.reshape(scores.shape), scores, rows)


def _of_chunk(hit: Hit, chunk: Chunk, whole: Document | None) -> Hit:
    """Return the hit of a chunk with its chunk, as one of the ``whole`` document if it is given."""
    passage = hit.passage
    if passage is not None and passage.start is not None and passage.end is not None:
        place = chunk.start + passage.start, chunk.start + passage.end
        passage = Passage(passage.text, *place, passage.source)
    if whole is not None:
        hit = replace(hit, id=whole.id, title=whole.title, text=whole.text)
    return replace(hit, passage=passage, chunk=chunk)


def nearest_passage(
    document: Document, texts: Sequence[tuple[str, str]], similarities: Floats
) -> Passage:
    """Return the most similar of a document's stored queries, given with their sets."""
    return _passage(document, *texts[int(np.argmax(similarities))])


def passage_by_words(document: Document, query: str, tokenizer: Tokenizer) -> Passage | None:
    """Return the sentence of a document that has most of a query's words; None without text."""
    parts = title_and_sentences(document.title, document.text)
    if not parts:
        return None
    terms = set(tokenizer.query(query))
    if not terms:
        return _passage(document, "text", parts[0])
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
