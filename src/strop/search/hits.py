"""Hits: ranked documents with the fields that users see, read in the transaction of the search."""

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
    query_vectors: Vectors,
    query_texts: Sequence[str],
    ranked: tuple[Floats, Ints],
    fields: Sequence[str],
    by_document: bool = False,
) -> Hits:
    """Return the hits of a ranking, scores and places (queries, k), with some of their fields.

    With ``by_document`` the places are those of chunks, and the hits are their documents.
    """
    scores, places = ranked
    numbers = view.snapshot.numbers[places]
    row_numbers = sorted({*numbers.ravel().tolist()})
    documents = catalog.documents.several(row_numbers) if {*fields} - {"id", "score"} else {}
    chunks = catalog.documents.chunks.rows(row_numbers) if catalog.documents.are_split() else {}
    document_ids = catalog.documents.document_ids_of(row_numbers) if chunks else {}
    if by_document:
        ids = document_ids
    else:
        ids = {number: document.id for number, document in documents.items()}
        ids = ids or catalog.documents.ids_of(row_numbers)
    if missing := len(row_numbers) - len(ids):
        raise IndexDamaged(
            f"{catalog.folder}: {missing:,} documents have vectors and no text. To mend that:"
            f" strop check {catalog.folder} --repair"
        )
    flat = np.array([ids[number] for number in numbers.ravel().tolist()], dtype=object)
    if not documents:
        return Hits(flat.reshape(scores.shape), scores)
    parents = {}
    if by_document and "text" in fields:
        parents = catalog.documents.chunks.documents({row.parent for row in chunks.values()})
    mixed = views.mixed_texts(view, method, row_numbers) if "passage" in fields else {}

    def passage(query: int, place: int, document: Document, number: int) -> Passage | None:
        """Find a passage by the stored queries that a method mixes, or else by words."""
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
        return nearest_passage(document, mixed[number], rows @ query_vectors[query])

    def hit(query: int, score: float, place: int, number: int) -> Hit:
        row = documents[number]  # a document, or one of its chunks
        nearest = passage(query, place, row, number) if "passage" in fields else None
        row_hit = Hit(row.id, score, row.title, row.text, row.metadata, nearest)
        span = chunks.get(number)
        if span is None:
            return row_hit
        document_id = document_ids[number]
        parent = (parents.get(span.parent) or Document(document_id, "")) if by_document else None
        chunk = Chunk(row.id, document_id, row.text, span.start, span.end, span.headings)
        return _chunk_hit(row_hit, chunk, parent)

    rows = [
        [hit(query, *ranked_row) for ranked_row in zip(*row, strict=True)]
        for query, row in enumerate(
            zip(scores.tolist(), places.tolist(), numbers.tolist(), strict=True)
        )
    ]
    return Hits(flat.reshape(scores.shape), scores, rows)


def _chunk_hit(hit: Hit, chunk: Chunk, parent: Document | None) -> Hit:
    """Return the hit of a chunk with that chunk; as a hit of its ``parent``, if given."""
    passage = hit.passage
    if passage is not None and passage.start is not None and passage.end is not None:
        place = chunk.start + passage.start, chunk.start + passage.end
        passage = Passage(passage.text, *place, passage.source)
    if parent is not None:
        hit = replace(hit, id=parent.id, title=parent.title, text=parent.text)
    return replace(hit, passage=passage, chunk=chunk)


def nearest_passage(
    document: Document, texts: Sequence[tuple[str, str]], similarities: Floats
) -> Passage:
    """Return the most similar of a document's stored queries, given with their sets."""
    return _passage(document, *texts[int(np.argmax(similarities))])


def passage_by_words(document: Document, query: str, tokenizer: Tokenizer) -> Passage | None:
    """Return the sentence that contains most of a query's words; None if there is no text."""
    sentences = title_and_sentences(document.title, document.text)
    if not sentences:
        return None
    terms = set(tokenizer.query(query))
    if not terms:
        return _passage(document, "text", sentences[0])
    shared = [len(terms.intersection(tokenizer.document(sentence))) for sentence in sentences]
    # A title names the subject but answers nothing: it is used only if no sentence fits.
    if document.title and any(shared[1:]):
        shared[0] = 0
    return _passage(document, "text", sentences[int(np.argmax(shared))])


def _passage(document: Document, source: str, text: str) -> Passage:
    if text == " ".join(document.title.split()):
        return Passage(text, None, None, "title")
    start, end = locate(text, document.text) or (None, None)
    return Passage(text, start, end, source)
