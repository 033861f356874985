"""What if no generated query were nearly a test query? Takes such queries out of a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints, ranges
from strop.search.rows import as_floats
from strop.storage.catalog import Catalog
from strop.storage.query_sets import QuerySet
from strop.storage.snapshot import Snapshot, Spans
from strop.types import Kind, Vectors

Flags = NDArray[np.bool_]
Embed = Callable[[list[str], Kind], Vectors]
_ROWS_AT_ONCE = 8192


def drop_leaks(
    catalog: Catalog, snapshot: Snapshot, query_vectors: Vectors, gate: float, embed: Embed
) -> tuple[Snapshot, dict[str, dict[int, Flags]]]:
    """Return a snapshot without the generated queries that are too close to a test query.

    Gone is every stored query whose cosine to any of ``query_vectors`` (n, dim) is ``gate`` or
    more, whatever its document; also from augmented texts, which are embedded anew without it.
    Sentences stay: they are the corpus's own. Also says of each set which of a document's queries
    went, by its number.
    """
    known, numbers = catalog.sets.all(), snapshot.numbers
    close = {
        name: _too_close(spans, query_vectors, gate)
        for name, spans in snapshot.sets.items()
        if not known[name].derived
    }
    gone = {name: _by_place(snapshot.sets[name].count, flags) for name, flags in close.items()}
    sets = dict(snapshot.sets)
    for name, spans in snapshot.sets.items():
        of = known[name].settings.get("of")
        if name in close:
            sets[name] = _without(spans, close[name])
        elif of in close:
            vectors = as_floats(np.array(spans.vectors[spans.start]))
            changed = [place for place in gone[of] if spans.count[place]]
            if changed:
                texts = [
                    _augmented(catalog, known[of], int(numbers[place]), gone[of][place])
                    for place in changed
                ]
                vectors[changed] = embed(texts, "document")
            sets[name] = Spans(vectors, np.arange(len(spans.count)), spans.count)
    by_number = {
        name: {int(numbers[place]): lost for place, lost in of_set.items()}
        for name, of_set in gone.items()
    }
    return replace(snapshot, sets=sets), by_number


def _too_close(spans: Spans, query_vectors: Vectors, gate: float) -> Flags:
    """Tell of every query of a set, document after document, whether it is too close."""
    rows, turned = ranges(spans.start, spans.count), np.ascontiguousarray(query_vectors.T)
    close = np.zeros(len(rows), bool)
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        part = as_floats(np.asarray(spans.vectors[rows[at : at + _ROWS_AT_ONCE]]))
        close[at : at + _ROWS_AT_ONCE] = (part @ turned >= gate).any(axis=1)
    return close


def _by_place(count: Ints, close: Flags) -> dict[int, Flags]:
    """Return which of a document's queries are too close, by its place, where one is."""
    ends = np.cumsum(count)
    places = np.unique(np.repeat(np.arange(len(count)), count)[close])
    return {place: close[ends[place] - count[place] : ends[place]] for place in places.tolist()}


def _without(spans: Spans, close: Flags) -> Spans:
    """Return a set's lists without some of its queries, the others in the same order."""
    rows = ranges(spans.start, spans.count)[~close]
    whose = np.repeat(np.arange(len(spans.count)), spans.count)[~close]
    count = np.bincount(whose, minlength=len(spans.count)).astype(np.int64)
    start = (np.cumsum(count) - count).astype(np.int64)
    return Spans(np.ascontiguousarray(spans.vectors[rows]), start, count)


def _augmented(catalog: Catalog, set_: QuerySet, number: int, gone: Flags) -> str:
    texts = catalog.sets.queries(set_, number)
    left = [text for text, leaks in zip(texts, gone, strict=True) if not leaks]
    return " ".join([catalog.documents.get(number).content, *left])
