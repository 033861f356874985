"""The documents that a filter selects: where they stand, and layouts of them alone.

A search with a filter is a search of a smaller layout, so it is exact however few documents match.
The last few filters are remembered until the index changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strop.common.arrays import Ints
from strop.filters import Filter
from strop.search.layout import Layout
from strop.search.words import Words
from strop.storage.catalog import Catalog

if TYPE_CHECKING:
    from strop.search.prefilter.prefilter import Prefilter
    from strop.search.views import VersionCache

FILTERS = 8
DOCUMENTS = 2_000_000
"""So many filters are remembered, and so many documents that they select, all together."""


class FilteredDocuments:
    """What a filter selects from a snapshot: ``places`` of documents, ascending; None for all."""

    def __init__(self, places: Ints | None = None) -> None:
        self.places = places
        self._layouts: dict[Layout, Layout] = {}
        self._prefilters: dict[Prefilter, Prefilter] = {}

    @property
    def size(self) -> int:
        """How many documents a filter selected."""
        return 0 if self.places is None else len(self.places)

    def layout(self, whole: Layout) -> Layout:
        """Return the layout of the selected documents alone; kept, with what it computes."""
        if self.places is None:
            return whole
        if whole not in self._layouts:
            self._layouts[whole] = whole.only(self.places)
        return self._layouts[whole]

    def prefilter(self, whole: Prefilter) -> Prefilter:
        """Return a prefilter that proposes selected documents only."""
        if self.places is None:
            return whole
        if whole not in self._prefilters:
            self._prefilters = {whole: whole.only(self.places, self.layout(whole.layout))}
        return self._prefilters[whole]

    def words(self, whole: Words) -> Words:
        """Return the words of the selected documents."""
        return whole if self.places is None else whole.only(self.places)

    def among_all(self, places: Ints) -> Ints:
        """Return places among the selected documents as places among all."""
        return places if self.places is None else self.places[places]


def select(catalog: Catalog, cache: VersionCache, filter_: Filter) -> FilteredDocuments:
    """Return what a filter selects; within the transaction that the snapshot is of."""
    selected = cache.selected.get(filter_)
    if selected is None:
        present, numbers = cache.snapshot.numbers, catalog.facets.select(filter_)
        numbers = numbers[numbers <= present[-1]] if len(present) else numbers[:0]
        places = np.searchsorted(present, numbers)
        selected = FilteredDocuments(places[present[places] == numbers])
    last = {one: of for one, of in cache.selected.items() if one != filter_}
    last[filter_] = selected
    while len(last) > 1 and (  # the filters used longest ago are forgotten
        len(last) > FILTERS or sum(one.size for one in last.values()) > DOCUMENTS
    ):
        del last[next(iter(last))]
    cache.selected = last  # as one value: several threads may be here
    return selected
