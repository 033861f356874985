"""The codes of documents as arrays, and their file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from strop.common.arrays import Floats, Ints, unit_rows
from strop.common.threads import one_blas_thread, pool
from strop.errors import IndexDamaged
from strop.search.layout import Layout
from strop.search.prefilter.codes import (
    Bytes,
    Records,
    Signs,
    parts_of_documents,
    record_words,
    records_of,
    sign_codes,
    sign_words,
)
from strop.storage.sidecar import read_arrays, write_arrays
from strop.types import Vectors

FORMAT = 7
_CENTRE_FROM = 30_000
"""The mean of about this many documents is used as the mean of all."""


@dataclass(frozen=True)
class CodeTable:
    """The codes of documents, one row each, ordered by the numbers of the documents.

    ``records`` have most of them. ``signs`` (words, n) are the sign codes, by column, of the
    centroids c = d + mean of q_i as unit vectors, minus the mean of all of these; ``sign_factors``
    (2, n) are their factors. ``sources`` (n, 2 + sets) identify the vectors of a row: the
    document's number, the newest ``vector_version``, and how many queries of each of the ``sets``
    it has.
    """

    records: Records
    signs: Signs
    sign_factors: Floats
    sources: Ints
    sets: list[str]
    dim: int

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.sources)

    @cached_property
    def of_rows(self) -> tuple[Records, Bytes, Floats, Ints]:
        """The records as words, bytes and floats, and the word where each row's begins."""
        as_bytes, as_floats = self.records.view(np.int8), self.records.view(np.float32)
        return self.records, as_bytes, as_floats, _begin(self.sources, self.dim)

    @classmethod
    def of(cls, layout: Layout, sources: Ints, sets: list[str]) -> CodeTable:
        """Compute the codes of a layout's documents."""
        begin = _begin(sources, layout.dim)
        kinds = _kinds(layout.size, layout.dim, begin[-1], len(sets))
        arrays: Any = {name: np.empty(shape, dtype) for name, (dtype, shape) in kinds.items()}
        table = cls(**{**arrays, "sources": sources}, sets=sets, dim=layout.dim)
        centre = _centre(layout)

        def fill(block: tuple[int, int]) -> None:
            rows, words = slice(*block), slice(begin[block[0]], begin[block[1]])
            table.records[words], centroids = records_of(layout.fetch(np.arange(*block)))
            signs, factors = sign_codes(unit_rows(centroids) - centre)
            table.signs[:, rows], table.sign_factors[:, rows] = signs.T, factors.T

        with one_blas_thread():
            list(pool().map(fill, layout.blocks))
        for array in (table.records, table.signs, table.sign_factors):
            array.flags.writeable = False  # as in a file: numba compiles again for writable arrays
        return table

    @classmethod
    def open(cls, path: Path) -> CodeTable:
        """Open what ``write`` wrote; its arrays are read when they are used."""
        contents = read_arrays(path, trusted=True)
        try:
            if contents is None:
                raise ValueError("it is missing or not what was written")
            arrays, about = contents
            if about["format"] != FORMAT:
                raise ValueError(f"it has format {about['format']}, not {FORMAT}")
            # A copy, because the mapped file could change after the check.
            arrays["sources"] = np.array(arrays["sources"])
            table = cls(**arrays, sets=about["sets"], dim=about["dim"])
            if not table._is_consistent():
                raise ValueError("its arrays do not belong together")
            return table
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise IndexDamaged(f"the search codes {path} cannot be used: {error}") from error

    def _is_consistent(self) -> bool:
        """Return whether its arrays belong together; if not, kernels would read outside of them."""
        size, words, counts = len(self), len(self.records), self.sources[:, 2:]
        valid = type(self.dim) is int and self.dim > 0
        valid = valid and all(isinstance(name, str) for name in self.sets)
        valid = valid and all(
            getattr(self, name).dtype == dtype and getattr(self, name).shape == shape
            for name, (dtype, shape) in _kinds(size, self.dim, words, len(self.sets)).items()
        )
        if not valid or (counts < 0).any() or (counts > words).any():
            return False  # sums of larger counts could overflow
        head, each = record_words(self.dim)
        return head * size + each * int(counts.sum()) == words

    def write(self, path: Path) -> None:
        """Write a new file and sync it to the disk."""
        arrays = {name: getattr(self, name) for name in _kinds(0, 0, 0, 0)}
        about = {"format": FORMAT, "sets": self.sets, "dim": self.dim}
        write_arrays(path, arrays, about, sync=True)


def _kinds(size: int, dim: int, words: int, sets: int) -> dict[str, tuple[type, tuple[int, ...]]]:
    """Return type and shape of each array, for records of ``words`` in total."""
    return {
        "records": (np.uint64, (words,)),
        "signs": (np.uint64, (sign_words(dim), size)),
        "sign_factors": (np.float32, (2, size)),
        "sources": (np.int64, (size, 2 + sets)),
    }


def _begin(sources: Ints, dim: int) -> Ints:
    """Return the word where each row's record begins, and where the last one ends."""
    head, each = record_words(dim)
    return np.concatenate([[0], np.cumsum(head + each * sources[:, 2:].sum(axis=1))])


def _centre(layout: Layout) -> Vectors:
    """Return the mean of some documents' centroids as unit vectors."""
    total, documents = np.zeros(layout.dim, np.float32), 0
    for first, last in layout.blocks[:: max(1, layout.size // _CENTRE_FROM)]:
        total += unit_rows(parts_of_documents(layout.fetch(np.arange(first, last)))[0]).sum(axis=0)
        documents += last - first
    centre: Vectors = total / np.float32(max(1, documents))
    return centre
