"""Rows of a few levels, several values to a byte: the compact form of vectors.

A value is one of an odd number of levels around zero (``-2 … 2``), as many to a byte as go in: the
digits of a number. The m bytes of a row have the first m values as their lowest digits, the next m
as their second, and so on, so that values are read in the order they lie in memory.
All vectors have unit length, so there is no scale beside a row: its direction says all. The step
between levels is the one that turns the row least.

A packed row is a numpy record whose one field is called by its form and dimension
(``levels5x384``), so that rows that were sliced, picked or mapped still say how to read them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.compiled import compiled
from strop.types import Vectors

LEVELS = {"levels15": (15, 2), "levels5": (5, 3)}
"""How many levels a value of each form has, and how many values go in a byte."""
_REACHES = 2.0 ** (-np.arange(12) / 4)
"""Where the outermost level may be, as shares of a row's largest value."""


def packed_type(form: str, dim: int) -> np.dtype[Any]:
    """Return numpy's type of a packed row of ``dim`` values."""
    _, together = LEVELS[form]
    return np.dtype([(f"{form}x{dim}", np.uint8, (-(-dim // together),))])


def pack(vectors: Vectors, form: str) -> NDArray[Any]:
    """Return vectors (n, dim) as packed rows (n,)."""
    levels, together = LEVELS[form]
    rows = np.zeros(len(vectors), packed_type(form, vectors.shape[1]))
    _pack(
        np.ascontiguousarray(vectors, np.float32), levels, together,
        _REACHES.astype(np.float32), _bytes(rows),
    )  # fmt: skip
    return rows


def unpack(stored: NDArray[Any]) -> Vectors:
    """Return the vectors (n, dim) of packed rows (n,), of unit length or zero."""
    form, _, dim = _name(stored).rpartition("x")
    rows = np.empty((len(stored), int(dim)), np.float32)
    _unpack(_bytes(stored), LEVELS[form][0], rows)
    return rows


def is_packed(stored: NDArray[Any]) -> bool:
    """Tell packed rows from those that numpy can read by itself."""
    return stored.dtype.names is not None


def _name(stored: NDArray[Any]) -> str:
    names = stored.dtype.names
    assert names is not None
    return names[0]


def _bytes(stored: NDArray[Any]) -> NDArray[np.uint8]:
    """Return packed rows as bytes (n, m), without a copy."""
    found: NDArray[np.uint8] = stored[_name(stored)]
    return found


@compiled(reorder=True)
def _pack(
    vectors: Vectors, levels: int, together: int, reaches: Any, packed: NDArray[np.uint8]
) -> None:
    """Write ``packed`` (n, bytes): of the given reaches, each row by the one that suits it best."""
    most = np.float32(levels // 2)
    dim = vectors.shape[1]
    for r in range(len(vectors)):
        row = vectors[r]
        largest = np.float32(0.0)
        for c in range(dim):
            largest = max(largest, abs(row[c]))
        best, scale = np.float32(-1.0), np.float32(0.0)
        if largest > 0:
            for reach in reaches:
                trial = most / (largest * reach)
                along, square = np.float32(0.0), np.float32(0.0)
                for c in range(dim):
                    level = min(np.float32(np.int32(abs(row[c]) * trial + np.float32(0.5))), most)
                    along += level * abs(row[c])
                    square += level * level
                cosine = along / np.sqrt(square)
                if cosine > best:
                    best, scale = cosine, trial
        for b in range(packed.shape[1]):
            code = 0
            for place in range(together - 1, -1, -1):
                c = place * packed.shape[1] + b
                level = 0
                if c < dim:
                    size = min(int(abs(row[c]) * scale + np.float32(0.5)), levels // 2)
                    level = size if row[c] >= 0 else -size
                code = code * levels + level + levels // 2
            packed[r, b] = code


@compiled(reorder=True)
def _unpack(packed: NDArray[np.uint8], levels: int, rows: Vectors) -> None:
    """Write ``rows`` (n, dim), of unit length: digit by digit, by floats, several at a time."""
    half, base, middle = np.float32(0.5), np.float32(levels), np.float32(levels // 2)
    shift = np.float32(1.0) / base
    width, dim = packed.shape[1], rows.shape[1]
    for r in range(len(packed)):
        square, digit = np.float32(0.0), np.float32(1.0)
        for first in range(0, dim, width):
            codes, row = packed[r], rows[r, first : first + width]
            for b in range(len(row)):
                code = np.float32(np.int32((np.float32(codes[b]) + half) * digit))
                x = code - base * np.float32(np.int32((code + half) * shift)) - middle
                row[b] = x
                square += x * x
            digit *= shift
        scale = np.float32(1.0) / np.sqrt(square) if square > 0 else np.float32(0.0)
        for c in range(dim):
            rows[r, c] *= scale
