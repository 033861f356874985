"""Snapshots: what a reader sees of an index at one moment, and how it follows the catalog.

A new snapshot starts from the reader's old one, else from a cache file in the index folder, and
applies the logged changes; else it reads the catalog's table of spans. Vectors are memory-mapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints
from strop.errors import BadIndex, IndexDamaged
from strop.storage.catalog import Catalog
from strop.storage.ledger import DOCUMENTS, VectorFile
from strop.storage.sidecar import CACHE, read_arrays, replaced_sidecar, write_arrays
from strop.storage.vectors import Rows, map_rows

SPANS = "spans"
"""The kind of the sidecar with the spans of a version."""
LOG_SHARE = 0.02
LOG_LEAST = 4096
"""The cache is rewritten when the log has more changes than ``LOG_LEAST`` and than ``LOG_SHARE`` of
the number of rows."""


@dataclass(frozen=True)
class Spans:
    """The rows of each document's vectors in a file: ``start[j] : start[j] + count[j]``.

    ``vectors`` have their stored type: ``arrays.as_floats`` converts them.

    ``vector_version`` identifies the vectors wherever they are stored: if it is the same in two
    snapshots, a document has the same vectors in both, even if compaction has moved them.
    """

    vectors: Rows
    start: Ints
    count: Ints
    vector_version: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def known_sums(self) -> Ints:
        """The checksums read so far (``VectorLedger.verify_rows``)."""
        return np.zeros(len(self.vectors), np.int64)


@dataclass(frozen=True)
class Snapshot:
    """What a reader sees: the documents that have vectors, in order, and their query lists."""

    version: int
    numbers: Ints
    documents: Spans
    sets: Mapping[str, Spans]


Columns = list[Ints]
"""Start, count and vector_version of each document."""


@dataclass(frozen=True)
class _Table:
    """The contents of a snapshot without the mapped files; ``columns`` by set id."""

    version: int
    numbers: Ints
    columns: Mapping[int, Columns]


def load_snapshot(catalog: Catalog, before: Snapshot | None = None) -> Snapshot:
    """Return a snapshot of the catalog; it applies the changes to ``before`` if possible.

    If nothing changed since ``before``, the spans are the same objects.
    """
    with catalog.reading():
        for attempt in range(5):
            files = catalog.vectors.files()
            try:
                return _load(catalog, files, before)
            except IndexDamaged:
                # Compaction may have deleted a file since this read began.
                catalog.database.read_anew()
                if attempt == 4 or catalog.vectors.files() == files:
                    raise
        raise AssertionError


def _load(catalog: Catalog, files: dict[int, VectorFile], before: Snapshot | None) -> Snapshot:
    names, table = _set_names(catalog), None
    if before is not None:
        table = _updated(catalog, _table_of(before, names))
        same_sets = before.sets.keys() == set(names.values())
        if table and same_sets and table.numbers is before.numbers:  # nothing changed
            return replace(before, version=table.version)
    table = table or _updated(catalog, _read_cache(catalog)) or _read_catalog(catalog)
    spans = {}
    for set_id in (DOCUMENTS, *names):
        path, row = catalog.vector_file(files[set_id])
        spans[set_id] = Spans(map_rows(path, files[set_id].rows, row), *table.columns[set_id])
        if not in_bounds(table, set_id, files[set_id].rows):
            raise IndexDamaged(
                f"{catalog.folder}: the catalog names rows of vectors/{files[set_id].name} that "
                f"cannot be. To repair that: strop check {catalog.folder} --repair"
            )
    sets = {name: spans[set_id] for set_id, name in names.items()}
    return Snapshot(table.version, table.numbers, spans[DOCUMENTS], sets)


def _set_names(catalog: Catalog) -> dict[int, str]:
    return {set_.set_id: set_.name for set_ in catalog.sets.all().values()}


def in_bounds(table: _Table, set_id: int, rows: int) -> bool:
    """Return whether the spans of a set are possible: no other rows may be read."""
    numbers, (start, count, _) = table.numbers, table.columns[set_id]
    if not len(start):
        return True
    # As unsigned numbers, negative ones are the largest: the maximum of each column is enough.
    start, count = start.view(np.uint64), count.view(np.uint64)
    max_start, max_count = int(start.max()), int(count.max())
    if set_id == DOCUMENTS:
        ascending = bool((numbers[1:] > numbers[:-1]).all())
        return max_start < rows and max_count == count.min() == 1 and ascending
    if max_start > rows or max_count > rows:
        return False
    return max_start + max_count <= rows or bool((start + count).max() <= rows)


def _table_of(snapshot: Snapshot, names: Mapping[int, str]) -> _Table:
    by_set = {DOCUMENTS: snapshot.documents}
    by_set |= {
        set_id: snapshot.sets[name] for set_id, name in names.items() if name in snapshot.sets
    }
    columns = {
        set_id: [spans.start, spans.count, spans.vector_version] for set_id, spans in by_set.items()
    }
    return _Table(snapshot.version, snapshot.numbers, columns)


def _read_catalog(catalog: Catalog) -> _Table:
    """Read all spans from the catalog."""
    documents = catalog.vectors.searchable_spans(DOCUMENTS)
    numbers = np.ascontiguousarray(documents[:, 0])
    columns = {DOCUMENTS: _aligned(numbers, documents)}
    for set_id in _set_names(catalog):
        columns[set_id] = _aligned(numbers, catalog.vectors.searchable_spans(set_id))
    return _Table(catalog.settings.number("version"), numbers, columns)


def _updated(catalog: Catalog, table: _Table | None) -> _Table | None:
    """Apply the logged changes to a table; None if there is no table, or the log begins later."""
    changes = None if table is None else catalog.vectors.changes(table.version)
    if table is None or changes is None:
        return None
    version = catalog.settings.number("version")
    no_lists = _aligned(table.numbers, np.zeros((0, 4), np.int64))
    set_ids = DOCUMENTS, *_set_names(catalog)
    columns = {set_id: table.columns.get(set_id, no_lists) for set_id in set_ids}
    if not len(changes):
        return _Table(version, table.numbers, columns)
    first, last = _disjoint_ranges(changes)
    changed = catalog.vectors.changed_spans(DOCUMENTS, table.version)
    # The changed spans are inserted between the kept ones: nothing has to be sorted.
    old_ends = np.searchsorted(table.numbers, first).tolist()
    old_starts = [0, *np.searchsorted(table.numbers, last + 1).tolist()]
    new_edges = np.searchsorted(changed[:, 0], [first, last + 1]).T.tolist()
    old_ends.append(len(table.numbers))
    new_edges.append([0, 0])

    def merged(old: Ints, new: Ints) -> Ints:
        pieces = []
        for start, end, (begin, behind) in zip(old_starts, old_ends, new_edges, strict=True):
            pieces += [old[start:end], new[begin:behind]]
        return np.concatenate(pieces)

    for set_id, old in columns.items():
        new = changed
        if set_id != DOCUMENTS:
            new = catalog.vectors.changed_spans(set_id, table.version)
        columns[set_id] = list(map(merged, old, _aligned(changed[:, 0], new)))
    return _Table(version, merged(table.numbers, changed[:, 0]), columns)


def _disjoint_ranges(changes: NDArray[np.int64]) -> tuple[Ints, Ints]:
    """Return ranges (first, last) of numbers as ranges that do not overlap, ascending."""
    changes = changes[np.argsort(changes[:, 0])]
    last = np.maximum.accumulate(changes[:, 1])
    begins = np.concatenate([[True], changes[1:, 0] > last[:-1]])
    return changes[begins, 0], last[np.append(begins[1:], True)]


def _aligned(numbers: Ints, spans: NDArray[np.int64]) -> Columns:
    """Return start, count, vector_version of each of ``numbers``; zeros if it has no list.

    A list whose document has no vector yet is left out.
    """
    places = np.searchsorted(numbers, spans[:, 0])
    has_vector = places < len(numbers)
    has_vector[has_vector] = numbers[places[has_vector]] == spans[has_vector, 0]
    columns = np.zeros((3, len(numbers)), np.int64)
    columns[:, places[has_vector]] = spans[has_vector, 1:].T
    return list(columns)


# -- the cache -------------------------------------------------------------------------------


def _read_cache(catalog: Catalog) -> _Table | None:
    name = catalog.settings.sidecar(SPANS)
    cached = read_arrays(catalog.folder / CACHE / name) if name else None
    if cached is None:
        return None
    arrays, about = cached
    numbers = arrays.pop("numbers")
    # With a smaller type, sums could overflow unnoticed.
    complete = all(array.shape == (3, len(numbers)) for array in arrays.values())
    if not complete or any(array.dtype != np.int64 for array in (numbers, *arrays.values())):
        return None
    columns = {int(id_): list(array) for id_, array in arrays.items()}
    if DOCUMENTS in columns:  # each document has one vector, whatever the file contains
        columns[DOCUMENTS][1] = np.broadcast_to(np.int64(1), numbers.shape)
    return _Table(about["version"], numbers, columns)


def keep_cache(catalog: Catalog) -> None:
    """Rewrite the cache if the log has grown long. Only the one writer may call this.

    If the cache cannot be written (a full disk), the older one stays in use.
    """
    with catalog.reading():
        if catalog.vectors.logged() <= max(LOG_LEAST, LOG_SHARE * catalog.documents.count()):
            return
        table = _table_of(load_snapshot(catalog), _set_names(catalog))
        older = catalog.settings.sidecar(SPANS)
    arrays = {"numbers": table.numbers}
    arrays |= {str(set_id): np.stack(columns) for set_id, columns in table.columns.items()}
    with suppress(OSError, BadIndex), replaced_sidecar(catalog.folder, SPANS, older) as path:
        write_arrays(path, arrays, {"version": table.version})
        catalog.vectors.cut_log(table.version, path.name)


def cache_is_true(catalog: Catalog) -> bool:
    """Return whether the cache with the logged changes equals the catalog; True without one."""
    with catalog.reading():
        cached = _updated(catalog, _read_cache(catalog))
        if cached is None:
            return True
        stored = _read_catalog(catalog)
    return np.array_equal(cached.numbers, stored.numbers) and all(
        np.array_equal(cached.columns[set_id], stored.columns[set_id]) for set_id in stored.columns
    )
