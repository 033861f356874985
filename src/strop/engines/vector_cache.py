"""Vectors of documents that searches score, in one array in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints, ranges
from strop.engines.base import PackedVectors, Rows, unpack
from strop.types import Vectors


class VectorCache:
    """Vectors of documents, addressed by slot.

    The cache only grows, and the content of a slot never changes, so readers need no lock. A
    document that is added again gets a new slot.
    """

    def __init__(self, dim: int, set_ids: Sequence[int]) -> None:
        self._dim = dim
        self.slots: dict[int, int] = {}
        """The newest slot of each document, by number."""
        self.records: list[tuple[str, bytes]] = []
        """The id of the document in each slot, and the checksum of its record."""
        self._columns = {set_id: column for column, set_id in enumerate((0, *set_ids))}
        self._spans: Ints = np.zeros((0, len(self._columns), 2), np.int64)
        """The first row and the number of rows of each slot, by set; column 0 is the document."""
        self._rows: Vectors = np.empty((0, dim), np.float32)
        self._used = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """The size of its arrays in bytes."""
        return int(self._rows.nbytes + self._spans.nbytes)

    def add(self, records: Mapping[int, PackedVectors]) -> dict[int, int]:
        """Add documents by number and return their slots."""
        arrays = [
            (slot, self._columns[set_id], rows)
            for slot, record in enumerate(records.values())
            for set_id, rows in unpack(record.packed, self._dim).items()
            if set_id in self._columns
        ]
        spans = np.zeros((len(records), len(self._columns), 2), np.int64)
        joined = _joined([rows for _, _, rows in arrays], self._dim)
        with self._lock:
            end, first = self._used, len(self.records)
            for slot, column, rows in arrays:
                spans[slot, column] = end, len(rows)
                end += len(rows)
            self._rows = _grown(self._rows, self._used, joined)
            self._spans = _grown(self._spans, first, spans)
            self._used = end
            self.records += [(record.id, checksum(record)) for record in records.values()]
            slots = {number: first + slot for slot, number in enumerate(records)}
            self.slots.update(slots)
        return slots

    def document_vectors(self, slots: Ints) -> Vectors:
        """Return the documents' own vectors."""
        rows: Vectors = self._rows.take(self._spans[slots, 0, 0], axis=0)
        return rows

    def queries(
        self, slots: Ints, set_ids: Sequence[int], limit: int | None
    ) -> tuple[Vectors, Ints]:
        """Return the vectors of stored queries, and how many each document has.

        ``limit`` is the maximum for each document and set.
        """
        columns = [self._columns[set_id] for set_id in set_ids]
        first, counts = np.moveaxis(self._spans[slots[:, None], columns], 2, 0)
        if limit is not None:
            counts = np.minimum(counts, limit)
        places = ranges(first.ravel(), counts.ravel())
        return self._rows.take(places, axis=0), counts.sum(axis=1)


def checksum(record: PackedVectors) -> bytes:
    """Return bytes that identify the vectors of a record."""
    return record.packed[-8:]  # the CRC-32 of all bytes, and the last values before it


def _grown(array: NDArray[Any], used: int, new: NDArray[Any]) -> Any:
    """Return the array with new rows after those in use; a larger array if they do not fit."""
    if used + len(new) > len(array):
        size = max(2 * len(array), used + len(new))
        larger = np.empty((size, *array.shape[1:]), array.dtype)
        larger[:used] = array[:used]
        array = larger
    array[used : used + len(new)] = new
    return array


def _joined(arrays: list[Rows], dim: int) -> Vectors:
    """Return stored rows as float32 of length one, in order; int8 rows are scaled here."""
    floats = np.concatenate([np.empty((0, dim), np.float32), *arrays], dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", floats, floats))
    is_int8 = np.repeat(
        [array.dtype == np.int8 for array in arrays], [len(array) for array in arrays]
    )
    floats /= np.where(is_int8.astype(bool) & (lengths > 0), lengths, 1)[:, None]
    return floats
