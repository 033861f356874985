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
    Signs,
    byte_codes,
    parts_of_documents,
    sign_codes,
    sign_words,
)
from strop.storage.sidecar import read_arrays, write_arrays
from strop.types import Vectors

FORMAT = 6
_CENTRE_FROM = 30_000
"""Documents whose mean stands for the mean of all."""


@dataclass(frozen=True)
class CodeTable:
    """The codes of documents, one row each, ordered by the numbers of the documents.

    ``codes`` are the byte codes of the centroids c = d + mean of q_i; ``row_factors`` (n, 3) have
    their factor, and the means of d.q_i and q_i.q_j. ``signs`` (words, n) are the sign codes, by
    column, of c as a unit vector less the mean of all of these.
    ``differences[begin[row]:begin[row + 1]]`` are those of each q_i - mean. Sign codes have
    factors. ``sources`` (n, 2 + sets) name the vectors that a row was made from: the document's
    number, the newest ``vector_version``, and how many queries of each of the ``sets`` it has.
    """

    codes: Bytes
    row_factors: Floats
    signs: Signs
    sign_factors: Floats
    differences: Signs
    difference_factors: Floats
    sources: Ints
    sets: list[str]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.sources)

    @cached_property
    def begin(self) -> Ints:
        """Where each row's differences begin."""
        counts = self.sources[:, 2:].sum(axis=1)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @classmethod
    def of(cls, layout: Layout, sources: Ints, sets: list[str]) -> CodeTable:
        """Compute the codes of a layout's documents."""
        begin = layout.offsets
        kinds = _kinds(layout.size, layout.dim, begin[-1], len(sets))
        arrays: Any = {name: np.empty(shape, dtype) for name, (dtype, shape) in kinds.items()}
        table, centre = cls(**{**arrays, "sources": sources}, sets=sets), _centre(layout)

        def fill(block: tuple[int, int]) -> None:
            part, rows = slice(*block), slice(begin[block[0]], begin[block[1]])
            centroids, differences, means = parts_of_documents(layout.fetch(np.arange(*block)))
            table.codes[part], table.row_factors[part, 0] = byte_codes(centroids)
            table.row_factors[part, 1:] = means
            signs, factors = sign_codes(unit_rows(centroids) - centre)
            table.signs[:, part], table.sign_factors[:, part] = signs.T, factors.T
            table.differences[rows], table.difference_factors[rows] = sign_codes(differences)

        with one_blas_thread():
            list(pool().map(fill, layout.blocks))
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
            table = cls(**arrays, sets=about["sets"])
            if not table._is_possible():
                raise ValueError("its arrays do not belong together")
            return table
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise IndexDamaged(f"the search codes {path} cannot be used: {error}") from error

    def _is_possible(self) -> bool:
        """Tell whether its arrays belong together: kernels would read outside of others."""
        (size, dim), (rows, _) = self.codes.shape, self.differences.shape
        known = all(
            getattr(self, name).dtype == dtype and getattr(self, name).shape == shape
            for name, (dtype, shape) in _kinds(size, dim, rows, len(self.sets)).items()
        )
        if not known or (self.sources[:, 2:] < 0).any() or (self.sources[:, 2:] > rows).any():
            return False  # of larger counts, sums could overflow
        return bool(self.begin[-1] == rows)

    def write(self, path: Path) -> None:
        """Write a new file; return when it is on the disk."""
        arrays = {name: getattr(self, name) for name in _kinds(0, 0, 0, 0)}
        write_arrays(path, arrays, {"format": FORMAT, "sets": self.sets}, sync=True)


def _kinds(size: int, dim: int, rows: int, sets: int) -> dict[str, tuple[type, tuple[int, ...]]]:
    """Return type and shape of each array, for ``rows`` differences."""
    words = sign_words(dim)
    return {
        "codes": (np.int8, (size, dim)),
        "row_factors": (np.float32, (size, 3)),
        "signs": (np.uint64, (words, size)),
        "sign_factors": (np.float32, (2, size)),
        "differences": (np.uint64, (rows, words)),
        "difference_factors": (np.float32, (rows, 2)),
        "sources": (np.int64, (size, 2 + sets)),
    }


def _centre(layout: Layout) -> Vectors:
    """Return the mean of the documents' centroids as unit vectors, from some of them."""
    total, documents = np.zeros(layout.dim, np.float32), 0
    for first, last in layout.blocks[:: max(1, layout.size // _CENTRE_FROM)]:
        total += unit_rows(parts_of_documents(layout.fetch(np.arange(first, last)))[0]).sum(axis=0)
        documents += last - first
    centre: Vectors = total / np.float32(max(1, documents))
    return centre
