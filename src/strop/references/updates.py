"""Updates neighbour lists and references after documents were added, changed or removed.

Only lists that a change affects are recomputed, and only their documents get new references. The
result equals that of a fresh run. Each part is committed, so a run that was stopped continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from strop.common.arrays import Floats, Ints, as_floats
from strop.references.neighbors import (
    ROUNDING,
    SPARE,
    Candidates,
    Neighbors,
    nearest_neighbors,
    neighbors_of,
    nonzero_rows,
    propose,
    rank,
    resolve_method,
)
from strop.references.selection import References, choose_references
from strop.references.settings import ReferenceSettings
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Snapshot, Spans
from strop.types import Progress, Vectors

PART = 4096
"""Documents between two commits."""
ALL_AT_ONCE = 50_000
"""Up to this size all lists are computed in one pass, each pair once; above, part by part."""
RESTART_SHARE = 0.3
"""If more of the corpus than this is new, computing all lists again is faster than merging."""


def update_references(
    catalog: Catalog,
    snapshot: Snapshot,
    settings: ReferenceSettings | None = None,
    method: str = "auto",
    progress: Progress | None = None,
) -> int:
    """Choose the references of every document whose references are missing or outdated.

    ``snapshot`` is the newest. Without ``settings`` those of the last run are used, in the first
    run the defaults. Return the number of documents done.
    """
    settings = settings or ReferenceSettings.from_json(catalog.references.settings())
    method = resolve_method(method, len(snapshot.numbers))
    update = _Update(catalog, snapshot.numbers, snapshot.documents, progress)
    width = update.apply_settings(settings, method)
    update.apply_changes(width)
    update.compute_lists(width, method)
    return update.choose(settings)


def import_references(
    catalog: Catalog,
    snapshot: Snapshot,
    settings: ReferenceSettings,
    method: str,
    parts: Iterable[tuple[Ints, Neighbors, References]],
) -> None:
    """Store neighbour lists and references that were computed elsewhere, for all documents.

    A part is (numbers of documents, their lists, their references), all as catalog numbers.
    After an interruption, ``update_references`` computes what is missing.
    """
    stored, nothing = catalog.references, np.empty(0, np.int64)
    about = {**asdict(settings), "method": method, "width": settings.neighbors}
    stored.begin(about, lists=False, selections=False)
    versions = snapshot.documents.vector_version.tolist()
    stored.replace_documents(
        nothing, zip(snapshot.numbers.tolist(), versions, strict=True), nothing
    )
    for numbers, lists, chosen in parts:
        with catalog.writing(searchable=False):
            stored.store_lists(numbers, *lists)
            stored.store_selections(numbers, *chosen)


class _Update:
    """One run of ``update_references``.

    A document has a number in the catalog and a position among those that have a vector; neighbour
    lists are stored as numbers and computed as positions.
    """

    def __init__(
        self, catalog: Catalog, numbers: Ints, documents: Spans, progress: Progress | None
    ) -> None:
        self._catalog = catalog
        self._stored = catalog.references
        self._numbers = numbers
        self._versions = documents.vector_version
        self._vectors = _contiguous(documents)
        self._usable = nonzero_rows(self._vectors)
        self._progress = progress

    def apply_settings(self, settings: ReferenceSettings, method: str) -> int:
        """Store the settings and drop what they invalidate; return the length of the lists.

        Lists that are longer than these settings need stay.
        """
        requested: dict[str, Any] = {**asdict(settings), "method": method}
        previous = self._stored.settings()
        width = max(settings.neighbors, int(previous.get("width", 0)))
        if previous == {**requested, "width": width}:
            return width
        lists = previous.get("width", width) >= settings.neighbors
        lists = lists and previous.get("method") == method
        if not lists:
            width = settings.neighbors
        selections = lists and {key: previous.get(key) for key in requested} == requested
        self._stored.begin({**requested, "width": width}, lists=lists, selections=selections)
        return width

    def apply_changes(self, width: int) -> None:
        """Merge new and changed documents into the lists; empty the lists with removed ones."""
        numbers, versions, listed = self._stored.known().T
        at = np.searchsorted(self._numbers, numbers)
        at[at == len(self._numbers)] = 0
        current = np.zeros(len(numbers), bool)
        if len(self._numbers):
            current = (self._numbers[at] == numbers) & (self._versions[at] == versions)
        new = np.setdiff1d(np.arange(len(self._numbers)), at[current])
        removed = numbers[~current]
        if not len(new) and not len(removed):
            return
        with_list = at[current & (listed > 0)]
        if len(new) > RESTART_SHARE * len(self._numbers):
            with_list = with_list[:0]
        others, similarities = self._stored.lists(self._numbers[with_list], width)
        stale = np.isin(others, removed).any(axis=1)
        valid = with_list[~stale]
        changed, lists, uncertain = self._merge(valid, others[~stale], similarities[~stale], new)
        emptied = np.setdiff1d(at[current], np.setdiff1d(valid, uncertain))
        rows = zip(self._numbers[new].tolist(), self._versions[new].tolist(), strict=True)
        with self._catalog.writing():
            self._stored.replace_documents(removed, rows, self._numbers[emptied])
            self._stored.store_lists(self._numbers[changed], *lists)

    def _merge(
        self, listed: Ints, others: Candidates, similarities: Floats, new: Ints
    ) -> tuple[Ints, tuple[Ints, Floats], Ints]:
        """Merge new documents into the lists of the positions ``listed``.

        Return the positions whose list changed, these lists, and the positions where more new
        documents are equally near than could be kept: their lists must be computed again.
        """
        width = others.shape[1]
        empty = (np.empty((0, width), np.int64), np.empty((0, width), np.float32))
        new = new[self._usable[new]]
        if not len(listed) or not len(new):
            return listed[:0], empty, listed[:0]
        shape = (len(listed), min(len(new), width + SPARE))
        best, nearest = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int32)
        propose(self._vectors, self._usable, listed, new, best, nearest)
        # The similarity that a new document must reach; none if a list is not full.
        worst = np.where(others[:, -1] >= 0, similarities[:, -1], np.float32(-np.inf))
        reached = np.flatnonzero(best[:, 0] > worst - ROUNDING)
        added = nearest[reached]
        uncertain = (added[:, -1] >= 0) & (best[reached, -1] > worst[reached] - ROUNDING)
        uncertain &= added.shape[1] < len(new)
        candidates = np.concatenate([self._positions(others[reached]), added], axis=1)
        candidates = candidates.astype(np.int32)
        lists = rank(self._vectors, self._usable, listed[reached], candidates, width)
        numbers = self._numbers_of(lists.rows)
        differs = (numbers != others[reached]).any(axis=1) & ~uncertain
        return (
            listed[reached[differs]],
            (numbers[differs], lists.similarities[differs]),
            listed[reached[uncertain]],
        )

    def compute_lists(self, width: int, method: str) -> None:
        """Compute the lists that are missing."""
        missing = np.searchsorted(self._numbers, self._stored.without_list())
        n = len(self._numbers)
        if not len(missing):
            return
        many = len(missing) > RESTART_SHARE * n
        if (method == "cells" and many) or (len(missing) == n and n <= ALL_AT_ONCE):
            lists = nearest_neighbors(self._vectors, width, method=method, progress=self._progress)
            self._store_lists(missing, Neighbors(lists.rows[missing], lists.similarities[missing]))
            return
        for first in range(0, len(missing), PART):
            part = missing[first : first + PART]
            self._store_lists(part, neighbors_of(self._vectors, self._usable, part, width))
            if self._progress is not None:
                self._progress("finding neighbours", first + len(part), len(missing))

    def choose(self, settings: ReferenceSettings) -> int:
        """Choose the missing references; return the number of documents."""
        missing = np.searchsorted(self._numbers, self._stored.without_selection())
        for first in range(0, len(missing), PART):
            part = missing[first : first + PART]
            others, similarities = self._stored.lists(self._numbers[part], settings.neighbors)
            chosen = choose_references(
                self._vectors, self._positions(others), similarities, settings
            )
            chosen = chosen._replace(rows=self._numbers_of(chosen.rows))
            self._stored.store_selections(self._numbers[part], *chosen)
            if self._progress is not None:
                self._progress("choosing references", first + len(part), len(missing))
        return len(missing)

    def _positions(self, numbers: Candidates) -> Ints:
        positions: Ints = np.searchsorted(self._numbers, numbers)
        positions[numbers < 0] = -1
        return positions

    def _numbers_of(self, positions: Ints) -> Ints:
        return np.asarray(np.where(positions >= 0, self._numbers[positions], -1))

    def _store_lists(self, positions: Ints, lists: Neighbors) -> None:
        numbers = self._numbers_of(lists.rows)
        self._stored.store_lists(self._numbers[positions], numbers, lists.similarities)


def _contiguous(documents: Spans) -> Vectors:
    """Return the documents' vectors in order, without a copy if they are stored in order."""
    start = documents.start
    if len(start) and (start == np.arange(start[0], start[0] + len(start))).all():
        return as_floats(documents.vectors[start[0] : start[0] + len(start)])
    return as_floats(np.ascontiguousarray(documents.vectors[start]))
