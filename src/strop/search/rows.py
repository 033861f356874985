"""Stored rows as floats: in numpy, or compiled where that is loaded or worth loading."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common import arrays
from strop.types import Vectors

FEW = 16_000_000
"""Values that are not worth the second that loading compiled code takes."""


def as_floats(stored: NDArray[Any]) -> Vectors:
    """Return stored rows as float32 (n, dim): float32 as they are, int8 with unit length."""
    if stored.dtype == np.float32 or ("numba" not in sys.modules and stored.size <= FEW):
        return arrays.as_floats(stored)
    from strop.search.kernels import unit_floats

    rows = np.empty(stored.shape, np.float32)
    unit_floats(stored, rows)
    return rows
