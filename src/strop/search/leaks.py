"""The leak gate: leaves generated queries that resemble a test query out of a snapshot."""

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

    Every stored query whose cosine to any of ``query_vectors`` (n, dim) is at least ``gate`` is
    left out, whatever its document, including from augmented texts, which are embedded again
    without it. Sentences stay: they are part of the corpus. Also returns, for each set and document
    number, flags of the queries that were left out.
    """
    all_sets, numbers = catalog.sets.all(), snapshot.numbers
    close = {
        name: _too_close(spans, query_vectors, gate)
        for name, spans in snapshot.sets.items()
        if not all_sets[name].derived
    }
    removed = {name: _by_place(snapshot.sets[name].count, flags) for name, flags in close.items()}
    sets = dict(snapshot.sets)
    for name, spans in snapshot.sets.items():
        source = all_sets[name].settings.get("of")
        if name in close:
            sets[name] = _without(spans, close[name])
        elif source in close:
            vectors = as_floats(np.array(spans.vectors[spans.start]))
            changed = [place for place in removed[source] if spans.count[place]]
            if changed:
                texts = [
                    _augmented(catalog, all_sets[source], int(numbers[place]), flags)
                    for place, flags in removed[source].items()
                    if spans.count[place]
                ]
                vectors[changed] = embed(texts, "document")
            sets[name] = Spans(vectors, np.arange(len(spans.count)), spans.count)
    by_number = {
        name: {int(numbers[place]): flags for place, flags in by_place.items()}
        for name, by_place in removed.items()
    }
    return replace(snapshot, sets=sets), by_number


def _too_close(spans: Spans, query_vectors: Vectors, gate: float) -> Flags:
    """Return for every query of a set, document after document, whether it is too close."""
    rows, transposed = ranges(spans.start, spans.count), np.ascontiguousarray(query_vectors.T)
    close = np.zeros(len(rows), bool)
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        vectors = as_floats(np.asarray(spans.vectors[rows[at : at + _ROWS_AT_ONCE]]))
        close[at : at + _ROWS_AT_ONCE] = (vectors @ transposed >= gate).any(axis=1)
    return close


def _by_place(count: Ints, close: Flags) -> dict[int, Flags]:
    """Return flags of the queries that are too close, by place, for documents that have any."""
    ends = np.cumsum(count)
    places = np.unique(np.repeat(np.arange(len(count)), count)[close])
    return {place: close[ends[place] - count[place] : ends[place]] for place in places.tolist()}


def _without(spans: Spans, close: Flags) -> Spans:
    """Return a set's lists without the queries that are too close; the others keep their order."""
    rows = ranges(spans.start, spans.count)[~close]
    place_of = np.repeat(np.arange(len(spans.count)), spans.count)[~close]
    count = np.bincount(place_of, minlength=len(spans.count)).astype(np.int64)
    start = (np.cumsum(count) - count).astype(np.int64)
    return Spans(np.ascontiguousarray(spans.vectors[rows]), start, count)


def _augmented(catalog: Catalog, set_: QuerySet, number: int, removed: Flags) -> str:
    texts = catalog.sets.queries(set_, number)
    kept = [text for text, leaks in zip(texts, removed, strict=True) if not leaks]
    return " ".join([catalog.documents.get(number).content, *kept])
