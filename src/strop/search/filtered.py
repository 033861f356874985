"""The documents that a filter selects: their places, and layouts of these documents only.

A search with a filter is a search of a smaller layout, so it is exact however few documents match.
The most recent filters are cached until the index changes.
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
"""At most this many filters are cached, which select at most this many documents in total."""


class FilteredDocuments:
    """What a filter selects from a snapshot: ``places`` of documents, ascending; None for all."""

    def __init__(self, places: Ints | None = None) -> None:
        self.places = places
        self._layouts: dict[Layout, Layout] = {}
        self._prefilters: dict[Prefilter, Prefilter] = {}

    @property
    def size(self) -> int:
        """The number of documents that a filter selected, 0 without a filter."""
        return 0 if self.places is None else len(self.places)

    def layout(self, full: Layout) -> Layout:
        """Return the layout of the selected documents only; it is cached with its Gram terms."""
        if self.places is None:
            return full
        if full not in self._layouts:
            self._layouts[full] = full.only(self.places)
        return self._layouts[full]

    def prefilter(self, full: Prefilter) -> Prefilter:
        """Return a prefilter that proposes selected documents only."""
        if self.places is None:
            return full
        if full not in self._prefilters:
            self._prefilters = {full: full.only(self.places, self.layout(full.layout))}
        return self._prefilters[full]

    def words(self, full: Words) -> Words:
        """Return the words of the selected documents."""
        return full if self.places is None else full.only(self.places)

    def among_all(self, places: Ints) -> Ints:
        """Return places among the selected documents as places among all."""
        return places if self.places is None else self.places[places]


def select(catalog: Catalog, cache: VersionCache, filter_: Filter) -> FilteredDocuments:
    """Return what a filter selects; call it in the transaction of the snapshot."""
    selected = cache.selected.get(filter_)
    if selected is None:
        indexed, numbers = cache.snapshot.numbers, catalog.facets.select(filter_)
        numbers = numbers[numbers <= indexed[-1]] if len(indexed) else numbers[:0]
        places = np.searchsorted(indexed, numbers)
        selected = FilteredDocuments(places[indexed[places] == numbers])
    recent = {key: value for key, value in cache.selected.items() if key != filter_}
    recent[filter_] = selected
    while len(recent) > 1 and (  # the least recently used filters are dropped
        len(recent) > FILTERS or sum(value.size for value in recent.values()) > DOCUMENTS
    ):
        del recent[next(iter(recent))]
    cache.selected = recent  # replaced as one value, because several threads may do this
    return selected
