"""Stored rows as floats, and their products with a batch of query vectors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common import arrays
from strop.common.arrays import Floats
from strop.types import Vectors

NUMPY_VALUES = 16_000_000
"""Up to this many values numpy converts: loading compiled code would take a second."""
QUERIES_AT_ONCE = 64
"""Queries of one batch."""
_FEW_QUERIES = 8
"""Up to this many queries, reading rows limits the speed of a product, and BLAS is slower."""


def as_floats(stored: NDArray[Any]) -> Vectors:
    """Return stored rows as float32 (n, dim): float32 rows unchanged, int8 with unit length."""
    if stored.dtype == np.float32 or ("numba" not in sys.modules and stored.size <= NUMPY_VALUES):
        return arrays.as_floats(stored)
    from strop.search.kernels import unit_floats

    rows = np.empty(stored.shape, np.float32)
    unit_floats(stored, rows)
    return rows


class QueryBatch:
    """Some of the query vectors, padded with zero rows to a number that the kernels handle fast.

    ``queries`` is their slice of all query vectors, ``width`` the number of rows.
    """

    def __init__(self, query_vectors: Vectors, at: int) -> None:
        self.queries = slice(at, min(at + QUERIES_AT_ONCE, len(query_vectors)))
        n = self.queries.stop - at
        self.width = 1 if n == 1 else -(-n // 4) * 4 if n <= _FEW_QUERIES else -(-n // 8) * 8
        self.query_vectors = np.zeros((self.width, query_vectors.shape[1]), np.float32)
        self.query_vectors[:n] = query_vectors[self.queries]
        self._transposed = np.ascontiguousarray(self.query_vectors.T)

    def multiply(self, rows: NDArray[Any], products: Floats) -> None:
        """Write ``products`` (n, width) = rows . query_vectors; the rows are as stored."""
        from strop.search import kernels

        if self.width > _FEW_QUERIES:
            np.matmul(as_floats(rows), self._transposed, out=products)
        elif rows.dtype == np.int8:
            kernels.products_of_few_stored(rows, self.query_vectors, products)
        else:
            kernels.products_of_few(as_floats(rows), self.query_vectors, products)
