"""What a reader sees of an index at one moment, and how it follows the catalog.

A snapshot is brought up to date by what changed since: from the one at hand, else from a cache
file in the index folder, else from the catalog's table of spans. Vectors themselves are mapped.
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
"""The kind of sidecar that holds the spans of a version."""
LOG_SHARE = 0.02
LOG_LEAST = 4096
"""The cache is written anew when the log has more changes than this, or that share of all."""


@dataclass(frozen=True)
class Spans:
    """Where each document's vectors stand in a file: rows ``start[j] : start[j] + count[j]``.

    ``vectors`` are as they are stored, of any type: ``arrays.as_floats`` reads them.

    ``vector_version`` names the vectors wherever they stand: a document with the same one in two
    snapshots has the same vectors in both, also when compaction has moved them.
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
    """The numbers behind a snapshot; ``columns`` by set id."""

    version: int
    numbers: Ints
    columns: Mapping[int, Columns]


def load_snapshot(catalog: Catalog, before: Snapshot | None = None) -> Snapshot:
    """Return what the catalog says now; ``before`` is followed if it can be.

    Where nothing changed since ``before``, the spans are the same objects.
    """
    with catalog.reading():
        for attempt in range(5):
            files = catalog.vectors.files()
            try:
                return _load(catalog, files, before)
            except IndexDamaged:
                # Compaction may have taken a file away since this read began.
                catalog.database.read_anew()
                if attempt == 4 or catalog.vectors.files() == files:
                    raise
        raise AssertionError


def _load(catalog: Catalog, files: dict[int, VectorFile], before: Snapshot | None) -> Snapshot:
    names, table = _set_names(catalog), None
    if before is not None:
        table = _followed(catalog, _table_of(before, names))
        same_sets = before.sets.keys() == set(names.values())
        if table and same_sets and table.numbers is before.numbers:  # nothing changed
            return replace(before, version=table.version)
    table = table or _followed(catalog, _cached(catalog)) or _whole(catalog)
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
    """Tell whether the spans of a set can be what strop wrote: nothing else may be read."""
    numbers, (start, count, _) = table.numbers, table.columns[set_id]
    if not len(start):
        return True
    # As unsigned numbers, those below zero are the greatest: one look at each column is enough.
    start, count = start.view(np.uint64), count.view(np.uint64)
    last, most = int(start.max()), int(count.max())
    if set_id == DOCUMENTS:
        return last < rows and most == count.min() == 1 and bool((numbers[1:] > numbers[:-1]).all())
    if last > rows or most > rows:
        return False
    return last + most <= rows or bool((start + count).max() <= rows)


def _table_of(snapshot: Snapshot, names: Mapping[int, str]) -> _Table:
    spans = {DOCUMENTS: snapshot.documents}
    spans |= {
        set_id: snapshot.sets[name] for set_id, name in names.items() if name in snapshot.sets
    }
    columns = {set_id: [one.start, one.count, one.vector_version] for set_id, one in spans.items()}
    return _Table(snapshot.version, snapshot.numbers, columns)


def _whole(catalog: Catalog) -> _Table:
    """Read everything from the catalog."""
    own = catalog.vectors.searchable_spans(DOCUMENTS)
    columns = {DOCUMENTS: _aligned(own[:, 0], own)}
    for set_id in _set_names(catalog):
        columns[set_id] = _aligned(own[:, 0], catalog.vectors.searchable_spans(set_id))
    return _Table(catalog.settings.number("version"), np.ascontiguousarray(own[:, 0]), columns)


def _followed(catalog: Catalog, table: _Table | None) -> _Table | None:
    """Read anew what changed since, and only that; None if the log does not reach back so far."""
    changes = None if table is None else catalog.vectors.changes(table.version)
    if table is None or changes is None:
        return None
    version = catalog.settings.number("version")
    none = _aligned(table.numbers, np.zeros((0, 4), np.int64))
    set_ids = DOCUMENTS, *_set_names(catalog)
    columns = {set_id: table.columns.get(set_id, none) for set_id in set_ids}
    if not len(changes):
        return _Table(version, table.numbers, columns)
    first, last = _joined(changes)
    own = catalog.vectors.changed_spans(DOCUMENTS, table.version)
    # Between what is kept stands what was read anew: nothing has to be sorted.
    old_ends = np.searchsorted(table.numbers, first).tolist()
    old_starts = [0, *np.searchsorted(table.numbers, last + 1).tolist()]
    new_edges = np.searchsorted(own[:, 0], [first, last + 1]).T.tolist()
    old_ends.append(len(table.numbers))
    new_edges.append([0, 0])

    def joined(old: Ints, new: Ints) -> Ints:
        parts = []
        for start, end, (begin, behind) in zip(old_starts, old_ends, new_edges, strict=True):
            parts += [old[start:end], new[begin:behind]]
        return np.concatenate(parts)

    for set_id, old in columns.items():
        new = own if set_id == DOCUMENTS else catalog.vectors.changed_spans(set_id, table.version)
        columns[set_id] = list(map(joined, old, _aligned(own[:, 0], new)))
    return _Table(version, joined(table.numbers, own[:, 0]), columns)


def _joined(changes: NDArray[np.int64]) -> tuple[Ints, Ints]:
    """Return ranges (first, last) of numbers as ranges apart from each other, ascending."""
    changes = changes[np.argsort(changes[:, 0])]
    last = np.maximum.accumulate(changes[:, 1])
    begins = np.concatenate([[True], changes[1:, 0] > last[:-1]])
    return changes[begins, 0], last[np.append(begins[1:], True)]


def _aligned(numbers: Ints, spans: NDArray[np.int64]) -> Columns:
    """Return start, count, vector_version of each of ``numbers``; zeros for no list.

    A list may be there before its document's vector, and is then left out.
    """
    places = np.searchsorted(numbers, spans[:, 0])
    known = places < len(numbers)
    known[known] = numbers[places[known]] == spans[known, 0]
    columns = np.zeros((3, len(numbers)), np.int64)
    columns[:, places[known]] = spans[known, 1:].T
    return list(columns)


# -- the cache -------------------------------------------------------------------------------


def _cached(catalog: Catalog) -> _Table | None:
    name = catalog.settings.sidecar(SPANS)
    cached = read_arrays(catalog.folder / CACHE / name) if name else None
    if cached is None:
        return None
    arrays, about = cached
    numbers = arrays.pop("numbers")
    # Of a smaller type, sums could overflow unnoticed.
    whole = all(array.shape == (3, len(numbers)) for array in arrays.values())
    if not whole or any(array.dtype != np.int64 for array in (numbers, *arrays.values())):
        return None
    columns = {int(id_): list(array) for id_, array in arrays.items()}
    if DOCUMENTS in columns:  # each has one vector, whatever the file says
        columns[DOCUMENTS][1] = np.broadcast_to(np.int64(1), numbers.shape)
    return _Table(about["version"], numbers, columns)


def keep_cache(catalog: Catalog) -> None:
    """Write the cache anew if the log has grown long; for the one writer.

    It is a cache: where it cannot be written (a full disk), the older one still serves.
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
    """Tell whether the cache, followed to now, says what the catalog says; true without one."""
    with catalog.reading():
        here = _followed(catalog, _cached(catalog))
        if here is None:
            return True
        there = _whole(catalog)
    return np.array_equal(here.numbers, there.numbers) and all(
        np.array_equal(here.columns[set_id], there.columns[set_id]) for set_id in there.columns
    )
