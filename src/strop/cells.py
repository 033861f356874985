"""Vectors at a byte a value, grouped into cells: which are nearest, roughly and quickly.

What stands in memory row after row is read several times faster than what is jumped to, so a
search reads all rows of a few cells (with few vectors there is just one cell) and keeps the best.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.compiled import compiled
from strop.kernels import Floats, Ints
from strop.types import Vectors

Bytes = NDArray[np.int8]

_BINS = 512


def rough_centres(points: Vectors, cells: int) -> Vectors:
    """Return unit centres (cells, dim) from a few rounds of KMeans on an even sample."""
    every = max(1, len(points) // (cells * 40))
    sample = np.ascontiguousarray(points[::every])
    centres = sample[np.linspace(0, len(sample) - 1, cells).astype(np.int64)].copy()
    for _ in range(8):
        nearest = nearest_centres(sample, centres)
        sums = np.zeros_like(centres)
        add_rows(sample, nearest, sums)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centres)
    return np.asarray(centres, np.float32)


def nearest_centres(points: Vectors, centres: Vectors) -> Ints:
    """Return for each point which centre has the largest product with it."""
    nearest = np.empty(len(points), np.int64)
    for at in range(0, len(points), 8192):
        nearest[at : at + 8192] = np.argmax(points[at : at + 8192] @ centres.T, axis=1)
    return nearest


@compiled()
def add_rows(points: Vectors, which: Ints, sums: Vectors) -> None:
    """Add each point to row ``which`` of the sums."""
    for r in range(len(points)):
        for c in range(points.shape[1]):
            sums[which[r], c] += points[r, c]


def as_bytes(vectors: Vectors) -> tuple[Bytes, Floats]:
    """Return vectors (n, dim) as int8, and what a product with each is to be multiplied by."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    codes = np.rint(
        vectors * np.divide(127, largest, out=np.zeros_like(largest), where=largest > 0)
    )
    lengths = np.linalg.norm(codes, axis=1)
    scales = np.divide(1, lengths, out=np.zeros(len(lengths), np.float32), where=lengths > 0)
    return codes.astype(np.int8), scales.astype(np.float32)


@compiled(reorder=True)
def products_of_bytes(codes: Bytes, scales: Floats, asked: Vectors, products: Floats) -> None:
    """Write the product of each row with one asked vector (dim,)."""
    for r in range(len(codes)):
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


@compiled()
def nearest_in_cells(
    asked: Vectors, centres: Bytes, centre_scales: Floats, probes: int, edges: Ints, codes: Bytes,
    scales: Floats, places: Ints, rows: Ints, values: Floats,
) -> int:  # fmt: skip
    """Write which rows are nearest to one asked vector, of those in the ``probes`` nearest cells.

    Cell c has the rows ``edges[c]:edges[c + 1]`` of the codes. Rows whose place is negative are
    passed over. Returns how many of ``rows`` were filled, and of ``values`` with their products.
    """
    cells = len(centres)
    near = np.zeros(max(1, min(probes, cells)), np.int64)
    if cells > 1:
        products = np.empty(cells, np.float32)
        products_of_bytes(centres, centre_scales, asked, products)
        largest(products, len(near), near)
    size = 0
    for cell in near:
        size += edges[cell + 1] - edges[cell]
    products = np.empty(size, np.float32)
    seen = np.empty(size, np.int64)
    at = 0
    for cell in near:
        first, last = edges[cell], edges[cell + 1]
        products_of_bytes(codes[first:last], scales[first:last], asked, products[at:])
        kept = at
        for r in range(last - first):
            if places[first + r] >= 0:
                products[kept] = products[at + r]
                seen[kept] = first + r
                kept += 1
        at = kept
    found = largest(products[:at], len(rows), rows)
    for i in range(found):
        values[i] = products[rows[i]]
        rows[i] = seen[rows[i]]
    return found
