"""Vectors at a byte a value: which are nearest, roughly, by reading them all quickly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.compiled import compiled
from strop.kernels import Floats, Ints
from strop.types import Vectors
from strop.vectors import stored_rows

Bytes = NDArray[np.int8]

_BINS = 512


def as_bytes(vectors: Vectors) -> tuple[Bytes, Floats]:
    """Return vectors (n, dim) as int8, and what a product with each is to be multiplied by."""
    codes = stored_rows(vectors, "int8")
    lengths = np.linalg.norm(codes.astype(np.float32), axis=1)
    scales = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return codes, scales


@compiled(reorder=True)
def products_of_bytes(
    codes: Bytes, scales: Floats, asked: Vectors, products: Floats, first: int, last: int
) -> None:
    """Write the products of the rows ``first:last`` with one asked vector (dim,)."""
    for r in range(first, last):
        row = codes[r]
        total = np.float32(0.0)
        for c in range(len(asked)):
            total += np.float32(row[c]) * asked[c]
        products[r] = total * scales[r]


@compiled()
def largest(values: Floats, most: int, order: Ints) -> int:
    """Write the places of the ``most`` largest values, largest first up to 1/512 of their range.

    Counts how many fall where instead of comparing them. Returns how many were written.
    """
    if not len(values):
        return 0
    low = high = values[0]
    for i in range(len(values)):
        low = min(low, values[i])
        high = max(high, values[i])
    scale = np.float32(_BINS - 1) / max(high - low, np.float32(1e-12))
    begin = np.zeros(_BINS, np.int64)
    for i in range(len(values)):
        begin[int((high - values[i]) * scale)] += 1
    total = 0
    for at in range(_BINS):
        there = begin[at]
        begin[at] = total
        total += there
    for i in range(len(values)):
        at = int((high - values[i]) * scale)
        if begin[at] < most:
            order[begin[at]] = i
            begin[at] += 1
    return min(most, len(values))
