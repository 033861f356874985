"""The codes of documents as arrays, and their file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from strop.common.arrays import Floats, Ints
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

FORMAT = 5
_CENTRE_FROM = 30_000
"""Documents whose mean stands for the mean of all."""


@dataclass(frozen=True)
class CodeTable:
    """The codes of documents, one row each.

    ``codes`` and ``scales`` are the byte codes of the centroids c = d + mean of q_i. ``signs`` and
    ``sign_factors`` are the sign codes of c less ``centre``, the mean of all centroids.
    ``differences[begin[row]:begin[row + 1]]`` and their factors are the sign codes of what
    distinguishes the document and its queries from their mean; ``means`` of their products are as
    ``codes.estimated_scores`` takes them. ``sources`` (n, columns) names the vectors that a row was
    made from: the document's number and vector_version, then vector_version and count of each set.
    """

    codes: Bytes
    scales: Floats
    signs: Signs
    sign_factors: Floats
    centre: Vectors
    differences: Signs
    difference_factors: Floats
    means: Floats
    sources: Ints
    sets: list[str]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.codes)

    @cached_property
    def begin(self) -> Ints:
        """Where each row's differences begin: one for the document, one for each query."""
        each = 1 + self.sources[:, 3::2].sum(axis=1)
        return np.concatenate([[0], np.cumsum(each)]).astype(np.int64)

    @cached_property
    def sign_columns(self) -> tuple[Signs, Floats]:
        """The sign codes and their factors by column: every search reads all of them."""
        return np.ascontiguousarray(self.signs.T), np.ascontiguousarray(self.sign_factors.T)

    @classmethod
    def of(cls, layout: Layout, sources: Ints, sets: list[str]) -> CodeTable:
        """Compute the codes of a layout's documents."""
        begin = layout.offsets + np.arange(layout.size + 1)
        kinds = _kinds(layout.size, layout.dim, begin[-1], len(sets))
        arrays: Any = {name: np.empty(shape, dtype) for name, (dtype, shape) in kinds.items()}
        centre = _centre(layout)
        table = cls(**{**arrays, "centre": centre, "sources": sources}, sets=sets)

        def fill(block: int) -> None:
            first, last = layout.blocks[block]
            part, rows = slice(first, last), slice(begin[first], begin[last])
            centroids, table.means[part], differences = parts_of_documents(*layout.block(block))
            table.codes[part], table.scales[part] = byte_codes(centroids)
            table.signs[part], table.sign_factors[part] = sign_codes(centroids - centre)
            table.differences[rows], table.difference_factors[rows] = sign_codes(differences)

        with one_blas_thread():
            list(pool().map(fill, range(len(layout.blocks))))
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
        if not known or (self.sources[:, 3::2] < 0).any() or (self.sources[:, 3::2] > rows).any():
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
        "scales": (np.float32, (size,)),
        "signs": (np.uint64, (size, words)),
        "sign_factors": (np.float32, (size, 2)),
        "centre": (np.float32, (dim,)),
        "differences": (np.uint64, (rows, words)),
        "difference_factors": (np.float32, (rows, 2)),
        "means": (np.float32, (size, 2)),
        "sources": (np.int64, (size, 2 + 2 * sets)),
    }


def _centre(layout: Layout) -> Vectors:
    """Return the mean of the documents' centroids, from some of them."""
    if not layout.size:
        return np.zeros(layout.dim, np.float32)
    blocks = range(0, len(layout.blocks), max(1, layout.size // _CENTRE_FROM))
    some = [parts_of_documents(*layout.block(block))[0] for block in blocks]
    centre: Vectors = np.mean(np.concatenate(some), axis=0)
    return centre
