"""Arrays of vectors and row numbers: types, unit length, stored rows as floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.compiled import compiled
from strop.common.rows import unit_rows
from strop.types import Vectors

__all__ = ["Floats", "Ints", "as_floats", "ranges", "unit_floats", "unit_rows"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@compiled(reorder=True)
def unit_floats(stored: NDArray[Any], rows: Vectors) -> None:
    """Write ``rows`` (n, dim): what is stored (int8, float32) with unit length, or zero."""
    for r in range(len(stored)):
        square = np.float32(0.0)
        for c in range(stored.shape[1]):
            x = np.float32(stored[r, c])
            rows[r, c] = x
            square += x * x
        scale = np.float32(1.0) / np.sqrt(square) if square > 0 else np.float32(0.0)
        for c in range(stored.shape[1]):
            rows[r, c] *= scale


def as_floats(stored: NDArray[Any]) -> Vectors:
    """Return stored rows (int8, float32) as float32 (n, dim) of unit length."""
    if stored.dtype == np.float32:
        return stored
    rows = np.empty(stored.shape, np.float32)
    unit_floats(stored, rows)
    return rows


def ranges(start: Ints, count: Ints) -> Ints:
    """Return ``start[0], start[0]+1, … (count[0] of them), start[1], …``."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    rows: Ints = np.arange(total) + np.repeat(start - (ends - count), count)
    return rows
