"""A batch of query vectors, and its products with stored rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats
from strop.search.rows import as_floats
from strop.types import Vectors

QUERIES_AT_ONCE = 64
"""Queries of one batch."""
_FEW = 8
"""Up to so many queries a product is limited by reading rows, and BLAS is not the fastest."""


class Tile:
    """Some of the query vectors, with rows of zeros up to a number the kernels like."""

    def __init__(self, query_vectors: Vectors, at: int) -> None:
        self.part = slice(at, min(at + QUERIES_AT_ONCE, len(query_vectors)))
        n = self.part.stop - at
        self.width = 1 if n == 1 else -(-n // 4) * 4 if n <= _FEW else -(-n // 8) * 8
        self.query_vectors = np.zeros((self.width, query_vectors.shape[1]), np.float32)
        self.query_vectors[:n] = query_vectors[self.part]
        self._transposed = np.ascontiguousarray(self.query_vectors.T)

    def multiply(self, rows: NDArray[Any], products: Floats) -> None:
        """Write ``products`` (n, width) = rows . query_vectors, rows as stored."""
        from strop.search import kernels

        if self.width > _FEW:
            np.matmul(as_floats(rows), self._transposed, out=products)
        elif rows.dtype == np.int8:
            kernels.products_of_few_stored(rows, self.query_vectors, products)
        else:
            kernels.products_of_few(as_floats(rows), self.query_vectors, products)
