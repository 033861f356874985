"""Rows of numbers as unit vectors, with numpy alone: importing this loads no compiler."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.types import Vectors


def unit_rows(vectors: NDArray[np.floating]) -> Vectors:
    """Return ``vectors`` (n, dim) as float32 with rows of length one; zero rows stay zero.

    Lengths are taken in float64, so that neither huge nor tiny numbers overflow on the way.
    """
    rows = np.asarray(vectors)
    if rows.dtype != np.float32:
        rows = rows.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[:, None]
    unit: Vectors = np.zeros(rows.shape, np.float32)
    np.divide(rows, lengths, out=unit, where=lengths > 0, casting="same_kind")
    return unit
