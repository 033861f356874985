"""Arrays of vectors and row numbers: types, unit length, stored rows as floats. Uses only numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.types import Vectors

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def unit_rows(vectors: NDArray[np.floating]) -> Vectors:
    """Return ``vectors`` (n, dim) as float32 with rows of length one; zero rows stay zero.

    Lengths are computed in float64, so that neither huge nor tiny numbers overflow.
    """
    rows = np.asarray(vectors)
    if rows.dtype != np.float32:
        rows = rows.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[:, None]
    unit: Vectors = np.zeros(rows.shape, np.float32)
    np.divide(rows, lengths, out=unit, where=lengths > 0, casting="same_kind")
    return unit


def as_floats(stored: NDArray[Any]) -> Vectors:
    """Return stored rows as float32 (n, dim): float32 unchanged, int8 with unit length."""
    if stored.dtype == np.float32:
        return stored
    return unit_rows(stored.astype(np.float32))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view of an array; for compiled code it has another type."""
    view: NDArray[Any] = array.view()
    view.flags.writeable = False
    return view


def ranges(start: Ints, count: Ints) -> Ints:
    """Return ``start[0], start[0]+1, … (count[0] of them), start[1], …``."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    rows: Ints = np.arange(total) + np.repeat(start - (ends - count), count)
    return rows
