"""The documents that a filter selects: where they stand, and layouts of them alone.

A search with a filter is a search of a smaller layout, so it is exact however few documents match.
The last few filters are remembered until the index changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from strop.common.arrays import Ints
from strop.filters import Filter
from strop.search.layout import Layout
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Snapshot

if TYPE_CHECKING:
    from strop.search.prefilter.prefilter import Prefilter

FILTERS = 8
DOCUMENTS = 2_000_000
"""So many filters are remembered, and so many documents that they select, all together."""


class Selected:
    """What a filter selects from a snapshot: ``places`` of documents, ascending."""

    def __init__(self, places: Ints) -> None:
        self.places = places
        self._layouts: dict[Layout, Layout] = {}
        self._prefilters: dict[Prefilter, Prefilter] = {}

    def layout(self, whole: Layout) -> Layout:
        """Return the layout of the selected documents alone; kept, with what it computes."""
        if whole not in self._layouts:
            self._layouts[whole] = whole.only(self.places)
        return self._layouts[whole]

    def prefilter(self, whole: Prefilter) -> Prefilter:
        """Return a prefilter that proposes selected documents only."""
        if whole not in self._prefilters:
            self._prefilters = {whole: whole.only(self.places, self.layout(whole.layout))}
        return self._prefilters[whole]


class Selections:
    """What the last filters selected; several threads may use it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._version = -1
        self._last: OrderedDict[Filter, Selected] = OrderedDict()

    def close(self) -> None:
        """Release the layouts."""
        with self._lock:
            self._last.clear()

    def of(self, snapshot: Snapshot, filter_: Filter) -> Selected:
        """Return what a filter selects; within the transaction that the snapshot is of."""
        with self._lock:
            if self._version == snapshot.version and filter_ in self._last:
                self._last.move_to_end(filter_)
                return self._last[filter_]
        numbers = self._catalog.facets.select(filter_)
        numbers = numbers[numbers <= snapshot.numbers[-1]] if len(snapshot.numbers) else numbers[:0]
        places = np.searchsorted(snapshot.numbers, numbers)
        selected = Selected(places[snapshot.numbers[places] == numbers])
        with self._lock:
            if self._version != snapshot.version:
                self._version = snapshot.version
                self._last.clear()
            self._last[filter_] = selected
            while len(self._last) > 1 and (  # the filters used longest ago are forgotten
                len(self._last) > FILTERS
                or sum(len(one.places) for one in self._last.values()) > DOCUMENTS
            ):
                self._last.popitem(last=False)
        return selected
