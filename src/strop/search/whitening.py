"""Soft whitening: evens out the directions a corpus uses, so that rare ones count for more.

Embedders put much of every text's vector into a few directions that all texts share; these say
little about which document a query means. With the mean ``m`` and covariance ``C`` of the stored
queries, every vector ``x`` becomes ``C^(-power/2) (x - m)``, brought back to length one. Power 0
keeps the directions as they are, 1 makes them equal; a half keeps part of the embedder's own order.
No labels are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import unit_rows
from strop.search.rows import as_floats
from strop.storage.snapshot import Spans
from strop.types import Vectors

_SAMPLE = 100_000
"""Stored queries that are looked at; more would not change the figures."""
_BLOCK = 65_536
_FLOOR = 1e-4
"""Of the largest variance: directions with less are noise and are not raised further."""


class Whitening:
    """A map from an embedder's space to the evened one, the same for all vectors of an index."""

    def __init__(self, rows: Sequence[Vectors], power: float) -> None:
        """Learn the map from the vectors of stored queries; few of them move it little."""
        step = max(1, -(-sum(map(len, rows)) // _SAMPLE))
        sample = np.concatenate([as_floats(np.asarray(part[::step])) for part in rows]).astype(
            np.float64
        )
        sample = sample[sample.any(axis=1)]
        dim = sample.shape[1]
        # Shrunk: few vectors tell little about directions, and about their mean.
        trust = len(sample) / (len(sample) + dim)
        self._mean = trust * sample.mean(axis=0) if len(sample) else np.zeros(dim)
        centred = sample - self._mean
        spread = centred.T @ centred / max(1, len(sample))
        even = np.eye(dim) * np.trace(spread) / dim
        variances, axes = np.linalg.eigh(trust * spread + (1 - trust) * even)
        floor = max(float(variances[-1]), np.finfo(float).tiny) * _FLOOR
        scales: NDArray[np.float64] = (np.maximum(variances, 0) + floor) ** (-power / 2)
        scales /= scales.max()  # lengths do not matter, only float32's range
        self._map = ((axes * scales) @ axes.T).astype(np.float32)
        self._mean = self._mean.astype(np.float32)

    def to_bytes(self) -> bytes:
        """Return the map as bytes, for ``read``."""
        return np.concatenate([self._mean[None], self._map]).astype("<f4").tobytes()

    @classmethod
    def read(cls, content: bytes, dim: int) -> Whitening:
        """Return the map that ``to_bytes`` was called on."""
        values = np.frombuffer(content, "<f4").reshape(dim + 1, dim)
        read = cls.__new__(cls)
        read._mean, read._map = values[0], values[1:]
        return read

    def before(self, vectors: Vectors) -> Vectors:
        """Return directions (n, dim) of the embedder's space that rank about as these do here."""
        return unit_rows(vectors @ self._map)

    def apply(self, vectors: Vectors) -> Vectors:
        """Return vectors (n, dim) in the evened space, of unit length; zero rows stay zero."""
        made = np.empty((len(vectors), len(self._map)), np.float32)
        for at in range(0, len(vectors), _BLOCK):
            part = as_floats(np.asarray(vectors[at : at + _BLOCK]))
            mapped = (part - self._mean) @ self._map
            mapped[~part.any(axis=1)] = 0
            made[at : at + _BLOCK] = unit_rows(mapped)
        return made

    def spans(self, spans: Spans) -> Spans:
        """Return the same lists with their vectors in the evened space, held in memory."""
        return Spans(self.apply(spans.vectors), spans.start, spans.count)
