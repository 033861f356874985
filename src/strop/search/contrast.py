"""Whether queries tell their document apart from its references, in the embedder's opinion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints
from strop.generate.generation import Made, Summary
from strop.generate.query_filters import told_apart
from strop.search.layout import Layout
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Snapshot
from strop.types import Vectors

_SAMPLE = 2000
_AT_ONCE = 256


class Contrast:
    """Measures the queries of ``layout`` (one set's) or such as are to join them."""

    def __init__(
        self, catalog: Catalog, snapshot: Snapshot, layout: Layout, negative: bool
    ) -> None:
        """``negative`` sets are for the references: theirs should be nearer one of these."""
        self._catalog = catalog
        self._numbers: Ints = snapshot.numbers
        self._layout = layout
        self._negative = negative

    def rate(self) -> float | None:
        """Return the share of stored queries that are told apart, over an even sample."""
        step = max(1, len(self._numbers) // _SAMPLE)
        apart = [
            mask
            for place in range(0, len(self._numbers), step)
            if (mask := self._apart(place, self._layout.queries(place))) is not None
        ]
        return float(np.concatenate(apart).mean()) if sum(map(len, apart)) else None

    def verified(
        self, lists: Iterable[Made], embed: Callable[[list[str]], Vectors], summary: Summary
    ) -> Iterator[Made]:
        """Yield lists without the queries that are not told apart; count these."""
        lists = iter(lists)
        while batch := list(islice(lists, _AT_ONCE)):
            vectors = embed([query for made in batch for query in made.queries])
            ends = np.cumsum([len(made.queries) for made in batch])
            for made, own in zip(batch, np.split(vectors, ends[:-1]), strict=True):
                place = int(np.searchsorted(self._numbers, made.number))
                mask = self._apart(place, own) if self._is(place, made.number) else None
                if mask is None:
                    yield made
                    continue
                summary.unverified += int((~mask).sum())
                kept = np.flatnonzero(mask).tolist()
                yield replace(
                    made,
                    queries=[made.queries[at] for at in kept],
                    against=[made.against[at] for at in kept],
                )

    def _is(self, place: int, number: int) -> bool:
        return place < len(self._numbers) and int(self._numbers[place]) == number

    def _apart(self, place: int, queries: Vectors) -> NDArray[np.bool_] | None:
        """Say of each query whether it is told apart; None for a document without references."""
        selected = self._catalog.references.of(int(self._numbers[place]))
        if selected is None or not selected.references:
            return None
        others = []
        for one in selected.references:
            number = self._catalog.documents.number_of(one.id)
            at = int(np.searchsorted(self._numbers, number))
            if self._is(at, number):
                others.append(self._layout.document(at))
        mask = told_apart(queries, self._layout.document(place), np.array(others, np.float32))
        return ~mask if self._negative else mask
