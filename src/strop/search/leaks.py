"""What if no generated query were nearly a test query? Takes such queries out of a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import ranges
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
    known = catalog.sets.all()
    dropped = {
        name: _too_close(spans, query_vectors, gate)
        for name, spans in snapshot.sets.items()
        if not known[name].derived
    }
    sets = {}
    for name, spans in snapshot.sets.items():
        of = known[name].settings.get("of")
        if name in dropped:
            sets[name] = _without(spans, dropped[name])
        elif of in dropped:
            changed = _with_leaks(snapshot.sets[of], dropped[of]) & (spans.count > 0)
            texts = [
                _augmented(catalog, known[of], int(snapshot.numbers[place]), gone)
                for place, gone in _gone(snapshot.sets[of], dropped[of], changed)
            ]
            vectors = as_floats(np.array(spans.vectors[spans.start]))
            if texts:
                vectors[changed] = embed(texts, "document")
            sets[name] = Spans(vectors, np.arange(len(spans.count)), spans.count)
        else:
            sets[name] = spans
    gone = {}
    for name, flags in dropped.items():
        spans = snapshot.sets[name]
        lost = _gone(spans, flags, _with_leaks(spans, flags))
        gone[name] = {int(snapshot.numbers[place]): which for place, which in lost}
    return replace(snapshot, sets=sets), gone


def _too_close(spans: Spans, query_vectors: Vectors, gate: float) -> Flags:
    """Tell of every row of a set's file whether it is a document's and too close."""
    close = np.zeros(len(spans.vectors), bool)
    rows = ranges(spans.start, spans.count)
    turned = np.ascontiguousarray(query_vectors.T)
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[at : at + _ROWS_AT_ONCE]
        close[part] = ((as_floats(np.asarray(spans.vectors[part])) @ turned) >= gate).any(axis=1)
    return close


def _without(spans: Spans, dropped: Flags) -> Spans:
    """Return a set's lists without some of its rows, the others in the same order."""
    rows = ranges(spans.start, spans.count)
    kept = ~dropped[rows]
    whose = np.repeat(np.arange(len(spans.count)), spans.count)[kept]
    count = np.bincount(whose, minlength=len(spans.count)).astype(np.int64)
    start = (np.cumsum(count) - count).astype(np.int64)
    return Spans(np.ascontiguousarray(spans.vectors[rows[kept]]), start, count)


def _with_leaks(spans: Spans, dropped: Flags) -> Flags:
    """Tell of each document whether it loses a query."""
    whose = np.repeat(np.arange(len(spans.count)), spans.count)[
        dropped[ranges(spans.start, spans.count)]
    ]
    changed = np.zeros(len(spans.count), bool)
    changed[whose] = True
    return changed


def _gone(spans: Spans, dropped: Flags, changed: Flags) -> list[tuple[int, Flags]]:
    return [
        (place, dropped[spans.start[place] : spans.start[place] + spans.count[place]])
        for place in np.flatnonzero(changed).tolist()
    ]


def _augmented(catalog: Catalog, set_: QuerySet, number: int, gone: Flags) -> str:
    texts = catalog.sets.queries(set_, number)
    left = [text for text, leaks in zip(texts, gone, strict=True) if not leaks]
    return " ".join([catalog.documents.get(number).content, *left])
