"""Vectors of documents that a search scores, held side by side in memory."""

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
    """Vectors of documents, found by slot.

    It only grows, and what a slot says stays: readers need no lock. A document that is added again
    gets a new slot.
    """

    def __init__(self, dim: int, set_ids: Sequence[int]) -> None:
        self._dim = dim
        self.slots: dict[int, int] = {}
        """The newest slot of each document, by number."""
        self.records: list[tuple[str, bytes]] = []
        """The id of the document in each slot, and the checksum of its record."""
        self._columns = {set_id: column for column, set_id in enumerate((0, *set_ids))}
        self._spans: Ints = np.zeros((0, len(self._columns), 2), np.int64)
        """The first row and the number of rows of each slot, by set; 0 is the document's own."""
        self._rows: Vectors = np.empty((0, dim), np.float32)
        self._used = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """The bytes that its arrays take."""
        return int(self._rows.nbytes + self._spans.nbytes)

    def add(self, found: Mapping[int, PackedVectors]) -> dict[int, int]:
        """Add documents by number and return their slots."""
        pieces = [
            (slot, self._columns[set_id], rows)
            for slot, one in enumerate(found.values())
            for set_id, rows in unpack(one.packed, self._dim).items()
            if set_id in self._columns
        ]
        spans = np.zeros((len(found), len(self._columns), 2), np.int64)
        joined = _joined([rows for _, _, rows in pieces], self._dim)
        with self._lock:
            at, first = self._used, len(self.records)
            for slot, column, rows in pieces:
                spans[slot, column] = at, len(rows)
                at += len(rows)
            self._rows = _grown(self._rows, self._used, joined)
            self._spans = _grown(self._spans, first, spans)
            self._used = at
            self.records += [(one.id, checksum(one)) for one in found.values()]
            slots = {number: first + slot for slot, number in enumerate(found)}
            self.slots.update(slots)
        return slots

    def own(self, slots: Ints) -> Vectors:
        """Return the documents' own vectors."""
        rows: Vectors = self._rows.take(self._spans[slots, 0, 0], axis=0)
        return rows

    def queries(
        self, slots: Ints, set_ids: Sequence[int], most: int | None
    ) -> tuple[Vectors, Ints]:
        """Return the vectors of stored queries, and how many each document has.

        ``most`` limits those of a document and set.
        """
        columns = [self._columns[set_id] for set_id in set_ids]
        first, counts = np.moveaxis(self._spans[slots[:, None], columns], 2, 0)
        if most is not None:
            counts = np.minimum(counts, most)
        places = ranges(first.ravel(), counts.ravel())
        return self._rows.take(places, axis=0), counts.sum(axis=1)


def checksum(one: PackedVectors) -> bytes:
    """Return what tells the vectors of a record from others."""
    return one.packed[-8:]  # the CRC-32 of all, and the last values before it


def _grown(array: NDArray[Any], used: int, more: NDArray[Any]) -> Any:
    """Return an array with more rows behind those in use; a new one where they do not fit."""
    if used + len(more) > len(array):
        size = max(2 * len(array), used + len(more))
        larger = np.empty((size, *array.shape[1:]), array.dtype)
        larger[:used] = array[:used]
        array = larger
    array[used : used + len(more)] = more
    return array


def _joined(rows: list[Rows], dim: int) -> Vectors:
    """Return stored rows as floats of length one, in order; of int8, in single precision."""
    floats = np.concatenate([np.empty((0, dim), np.float32), *rows], dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", floats, floats))
    is_int8 = np.repeat([part.dtype == np.int8 for part in rows], [len(part) for part in rows])
    floats /= np.where(is_int8.astype(bool) & (lengths > 0), lengths, 1)[:, None]
    return floats
