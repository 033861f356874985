"""Rough clusters ("cells") of unit vectors: the centres, and the nearest centre of a vector."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints
from strop.common.compiled import compiled
from strop.types import Vectors

_POINTS_PER_CELL = 40
_ROUNDS = 8


def rough_centres(points: Vectors, cells: int) -> Vectors:
    """Return unit centres (cells, dim): a few rounds of KMeans on a sample of the points."""
    step = max(1, len(points) // (cells * _POINTS_PER_CELL))
    sample = np.ascontiguousarray(points[::step])
    centres = sample[np.linspace(0, len(sample) - 1, cells).astype(np.int64)].copy()
    for _ in range(_ROUNDS):
        sums = np.zeros_like(centres)
        _add_rows(sample, nearest_centres(sample, centres), sums)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centres)
    return np.asarray(centres, np.float32)


def nearest_centres(points: Vectors, centres: Vectors) -> Ints:
    """Return for each point the number of the centre with the largest product."""
    nearest = np.empty(len(points), np.int64)
    for at in range(0, len(points), 8192):
        nearest[at : at + 8192] = np.argmax(points[at : at + 8192] @ centres.T, axis=1)
    return nearest


def probed_cells(points: Vectors, centres: Vectors, probes: int) -> NDArray[np.int32]:
    """Return for each point the ``probes`` cells with the nearest centres, the nearest first."""
    probed = np.empty((len(points), min(probes, len(centres))), np.int32)
    for at in range(0, len(points), 8192):
        probed[at : at + 8192] = largest(points[at : at + 8192] @ centres.T, probes)
    return probed


def largest(values: Vectors, count: int) -> Ints:
    """Return where the ``count`` largest values of each row are, the largest first."""
    count = min(count, values.shape[1])
    some = np.argpartition(-values, max(0, count - 1), axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(values, some, 1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(some, order, 1))


@compiled()
def _add_rows(points: Vectors, cell_of: Ints, sums: Vectors) -> None:
    """Add each point to the row of its cell in ``sums``."""
    for r in range(len(points)):
        for c in range(points.shape[1]):
            sums[cell_of[r], c] += points[r, c]
