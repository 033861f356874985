"""Keeps every document's neighbours and references in the catalog, and up to date.

``neighbors`` has a row for each document whose vector is known here (``vector_version`` says which)
with its list, or none while that is still to be made. After documents came, changed or went,
only lists that this touches are made again, and only for these are references chosen anew; the
result is that of a fresh run. All work is committed in parts, and goes on where it stopped.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats, Ints, as_floats
from strop.common.threads import in_parts
from strop.references.neighbors import (
    ROUNDING,
    SPARE,
    merge_columns,
    nearest_neighbors,
    neighbors_of,
    nonzero_rows,
    rank,
    resolve_method,
)
from strop.references.selection import ReferenceSettings, choose_references
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Spans
from strop.types import Progress, Vectors

_PART = 4096
_AT_ONCE = 50_000
"""Up to here all lists are made in one go, each pair compared once; beyond, part by part."""
_AFRESH = 0.3
"""If more of the corpus than this is new, making all lists again is the shorter way."""


def update_references(
    catalog: Catalog,
    numbers: Ints,
    documents: Spans,
    settings: ReferenceSettings,
    *,
    method: str = "auto",
    progress: Progress | None = None,
) -> int:
    """Choose the references of every document where they are missing or out of date.

    ``numbers`` and ``documents`` are a snapshot's. Returns for how many they were chosen.
    """
    vectors = _gathered(documents)
    method = resolve_method(method, len(numbers))
    work = _Work(catalog, numbers, documents.vector_version, vectors, progress)
    width = work.settle(settings, method)
    work.follow_changes(width)
    work.fill_lists(width, method)
    return work.choose(settings)


class _Work:
    """One run of ``update_references``; positions count the documents that have a vector."""

    def __init__(
        self,
        catalog: Catalog,
        numbers: Ints,
        versions: Ints,
        vectors: Vectors,
        progress: Progress | None,
    ) -> None:
        self._catalog = catalog
        self._stored = catalog.references
        self._numbers = numbers
        self._versions = versions
        self._vectors = vectors
        self._usable = nonzero_rows(vectors)
        self._progress = progress

    def settle(self, settings: ReferenceSettings, method: str) -> int:
        """Write the settings down, drop what other ones made; return the length of lists kept.

        Lists of more neighbours than wanted serve as they are.
        """
        wanted: dict[str, Any] = {**asdict(settings), "method": method}
        before = self._stored.settings()
        width = max(settings.neighbors, int(before.get("width", 0)))
        if before == {**wanted, "width": width}:
            return width
        lists = before.get("width", width) >= settings.neighbors and before.get("method") == method
        if not lists:
            width = settings.neighbors
        selections = lists and {key: before.get(key) for key in wanted} == wanted
        self._stored.begin({**wanted, "width": width}, lists=lists, selections=selections)
        return width

    def follow_changes(self, width: int) -> None:
        """Take in new, changed and removed documents; lists they touch are mended or emptied."""
        known, versions, listed = self._stored.known().T
        at = np.searchsorted(self._numbers, known)
        at[at == len(self._numbers)] = 0
        kept = np.zeros(len(known), bool)
        if len(self._numbers):
            kept = (self._numbers[at] == known) & (self._versions[at] == versions)
        fresh = np.setdiff1d(np.arange(len(self._numbers)), at[kept])
        gone = known[~kept]
        if not len(fresh) and not len(gone):
            return
        have = at[kept & (listed > 0)]
        if len(fresh) > _AFRESH * len(self._numbers):
            have = have[:0]
        others, similarities = self._stored.lists(self._numbers[have], width)
        # What a newcomer must reach; anything will do where a list is not full.
        worst = np.where(others[:, -1] >= 0, similarities[:, -1], np.float32(-np.inf))
        stale = np.isin(others, gone).any(axis=1) if len(gone) else np.zeros(len(have), bool)
        changed, lists, unsure = self._merged(have[~stale], others[~stale], worst[~stale], fresh)
        emptied = np.setdiff1d(at[kept], np.setdiff1d(have[~stale], unsure))
        new = zip(self._numbers[fresh].tolist(), self._versions[fresh].tolist(), strict=True)
        with self._catalog.writing():
            self._stored.replace_documents(gone, new, self._numbers[emptied])
            self._stored.store_lists(self._numbers[changed], *lists)

    def _merged(
        self, have: Ints, others: NDArray[np.int32], worst: Floats, fresh: Ints
    ) -> tuple[Ints, tuple[Ints, Floats], Ints]:
        """Merge new documents into lists: positions whose list changed, these lists, and
        positions where too many new documents are equally near to be sure."""
        width = others.shape[1]
        none = (np.empty((0, width), np.int64), np.empty((0, width), np.float32))
        fresh = fresh[self._usable[fresh]]
        if not len(have) or not len(fresh):
            return have[:0], none, have[:0]
        spare = min(len(fresh), width + SPARE)
        best = np.full((len(have), spare), -np.inf, np.float32)
        found = np.full((len(have), spare), -1, np.int32)
        for first in range(0, len(fresh), 1024):
            part = fresh[first : first + 1024]
            for begin in range(0, len(have), 8192):
                end = min(begin + 8192, len(have))
                products = self._vectors[part] @ self._vectors[have[begin:end]].T
                in_parts(
                    end - begin,
                    partial(
                        merge_columns,
                        products,
                        self._usable[part],
                        self._usable[have[begin:end]],
                        first,
                        best[begin:end],
                        found[begin:end],
                    ),
                )
        old = self._positions(others)
        reached = np.flatnonzero(best[:, 0] > worst - ROUNDING)
        new = np.where(found[reached] >= 0, fresh[found[reached]], -1)
        unsure = (new[:, -1] >= 0) & (best[reached, -1] > worst[reached] - ROUNDING)
        unsure &= spare < len(fresh)
        candidates = np.concatenate([old[reached], new], axis=1).astype(np.int32)
        scores = np.zeros(candidates.shape, np.float32)
        lists = rank(
            self._vectors, self._usable, have[reached], scores, candidates, width, exact=False
        )
        now = np.where(lists.rows >= 0, self._numbers[lists.rows], -1)
        differs = (now != others[reached]).any(axis=1) & ~unsure
        return (
            have[reached[differs]],
            (now[differs], lists.similarities[differs]),
            have[reached[unsure]],
        )

    def fill_lists(self, width: int, method: str) -> None:
        """Make the lists that are missing."""
        todo = np.searchsorted(self._numbers, self._stored.without_list())
        n = len(self._numbers)
        if not len(todo):
            return
        many = len(todo) > _AFRESH * n
        if (method == "cells" and many) or (len(todo) == n and n <= _AT_ONCE):
            lists = nearest_neighbors(self._vectors, width, method=method, progress=self._progress)
            self._commit_lists(todo, lists.rows[todo], lists.similarities[todo])
            return
        for first in range(0, len(todo), _PART):
            part = todo[first : first + _PART]
            lists = neighbors_of(self._vectors, self._usable, part, width)
            self._commit_lists(part, lists.rows, lists.similarities)
            if self._progress is not None:
                self._progress("finding neighbours", first + len(part), len(todo))

    def choose(self, settings: ReferenceSettings) -> int:
        """Choose references where they are missing."""
        todo = np.searchsorted(self._numbers, self._stored.without_selection())
        for first in range(0, len(todo), _PART):
            part = todo[first : first + _PART]
            others, similarities = self._stored.lists(self._numbers[part], settings.neighbors)
            chosen = choose_references(
                self._vectors, self._positions(others), similarities, settings
            )
            self._stored.store_selections(
                self._numbers[part],
                np.where(chosen.rows >= 0, self._numbers[chosen.rows], -1),
                chosen.similarities,
                chosen.cluster_sizes,
                chosen.silhouettes,
            )
            if self._progress is not None:
                self._progress("choosing references", first + len(part), len(todo))
        return len(todo)

    def _positions(self, others: NDArray[np.int32]) -> Ints:
        found: Ints = np.searchsorted(self._numbers, others)
        found[others < 0] = -1
        return found

    def _commit_lists(self, positions: Ints, rows: Ints, similarities: Floats) -> None:
        numbers = np.where(rows >= 0, self._numbers[rows], -1)
        self._stored.store_lists(self._numbers[positions], numbers, similarities)


def _gathered(documents: Spans) -> Vectors:
    """Return the documents' vectors in order, without a copy where they stand so."""
    start = documents.start
    if len(start) and (start == np.arange(start[0], start[0] + len(start))).all():
        return as_floats(documents.vectors[start[0] : start[0] + len(start)])
    return as_floats(np.ascontiguousarray(documents.vectors[start]))
