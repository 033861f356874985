"""The codes of documents as arrays, and their file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

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


def centroids_and_differences(layout: Layout, block: int) -> tuple[Vectors, Floats, Vectors]:
    """Return what ``codes.parts_of_documents`` writes for a block's documents."""
    first, last = layout.blocks[block]
    centroids = np.empty((last - first, layout.dim), np.float32)
    means = np.empty((last - first, 2), np.float32)
    rows = layout.offsets[last] - layout.offsets[first] + last - first
    differences = np.empty((rows, layout.dim), np.float32)
    parts_of_documents(*layout.block(block), centroids, means, differences)
    return centroids, means, differences


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
    def of(
        cls, layout: Layout, sources: Ints, sets: list[str], centre: Vectors | None = None
    ) -> CodeTable:
        """Compute the codes of a layout's documents; ``centre`` is that of a table to extend."""
        size, words = layout.size, sign_words(layout.dim)
        begin = layout.offsets + np.arange(size + 1)
        if centre is None:
            centre = _centre(layout)
        table = cls(
            np.empty((size, layout.dim), np.int8), np.empty(size, np.float32),
            np.empty((size, words), np.uint64), np.empty((size, 2), np.float32), centre,
            np.empty((begin[-1], words), np.uint64), np.empty((begin[-1], 2), np.float32),
            np.empty((size, 2), np.float32), sources, sets,
        )  # fmt: skip

        def fill(block: int) -> None:
            first, last = layout.blocks[block]
            part, rows = slice(first, last), slice(begin[first], begin[last])
            centroids, table.means[part], differences = centroids_and_differences(layout, block)
            table.codes[part], table.scales[part] = byte_codes(centroids)
            table.signs[part], table.sign_factors[part] = sign_codes(centroids - centre)
            table.differences[rows], table.difference_factors[rows] = sign_codes(differences)

        with one_blas_thread():
            list(pool().map(fill, range(len(layout.blocks))))
        return table

    def extended(self, layout: Layout, sources: Ints) -> CodeTable:
        """Return these rows and, behind them, those of more documents."""
        more = CodeTable.of(layout, sources, self.sets, self.centre)
        joined = {
            name: np.concatenate([getattr(self, name), getattr(more, name)])
            for name in _ARRAYS
            if name != "centre"
        }
        return CodeTable(**joined, centre=self.centre, sets=self.sets)

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
        words = sign_words(dim)
        shapes = {
            "codes": (np.int8, (size, dim)), "scales": (np.float32, (size,)),
            "signs": (np.uint64, (size, words)), "sign_factors": (np.float32, (size, 2)),
            "centre": (np.float32, (dim,)), "means": (np.float32, (size, 2)),
            "differences": (np.uint64, (rows, words)),
            "difference_factors": (np.float32, (rows, 2)),
            "sources": (np.int64, (size, 2 + 2 * len(self.sets))),
        }  # fmt: skip
        known = all(
            getattr(self, name).dtype == dtype and getattr(self, name).shape == shape
            for name, (dtype, shape) in shapes.items()
        )
        if not known or (self.sources[:, 3::2] < 0).any() or (self.sources[:, 3::2] > rows).any():
            return False  # of larger counts, sums could overflow
        return bool(self.begin[-1] == rows)

    def write(self, path: Path) -> None:
        """Write a new file; return when it is on the disk."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        write_arrays(path, arrays, {"format": FORMAT, "sets": self.sets}, sync=True)


_ARRAYS = [field.name for field in fields(CodeTable) if field.name != "sets"]


def _centre(layout: Layout) -> Vectors:
    """Return the mean of the documents' centroids, from some of them."""
    if not layout.size:
        return np.zeros(layout.dim, np.float32)
    blocks = range(0, len(layout.blocks), max(1, layout.size // _CENTRE_FROM))
    some = [centroids_and_differences(layout, block)[0] for block in blocks]
    centre: Vectors = np.mean(np.concatenate(some), axis=0)
    return centre
