"""Stored rows as floats, compiled: what a scan reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.compiled import compiled
from strop.types import Vectors


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
    """Return stored rows as float32 (n, dim): float32 as they are, int8 with unit length."""
    if stored.dtype == np.float32:
        return stored
    rows = np.empty(stored.shape, np.float32)
    unit_floats(stored, rows)
    return rows
