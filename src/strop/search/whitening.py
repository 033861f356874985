"""Soft whitening: makes the variances of all directions more equal, so that rare ones count more.

Embedders put much of every text's vector into a few directions that all texts share; these hardly
indicate which document a query means. With the mean ``m`` and covariance ``C`` of the stored
queries, every vector ``x`` becomes ``C^(-power/2) (x - m)``, scaled to length one. Power 0
keeps the variances, 1 makes them equal; a half keeps part of the embedder's own weighting.
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
"""At most this many stored queries are used; more would not change the figures."""
_BLOCK = 65_536
_FLOOR = 1e-4
"""Share of the largest variance: directions below it are noise and are not scaled up further."""


class Whitening:
    """A map from an embedder's space to the whitened one, the same for all vectors of an index."""

    def __init__(self, rows: Sequence[Vectors], power: float) -> None:
        """Learn the map from the vectors of stored queries; few vectors change it little."""
        step = max(1, -(-sum(map(len, rows)) // _SAMPLE))
        sampled = [as_floats(np.asarray(vectors[::step])) for vectors in rows]
        sample = np.concatenate(sampled).astype(np.float64)
        sample = sample[sample.any(axis=1)]
        dim = sample.shape[1]
        # Shrinkage: few vectors estimate the covariance, and the mean, poorly.
        trust = len(sample) / (len(sample) + dim)
        self._mean = trust * sample.mean(axis=0) if len(sample) else np.zeros(dim)
        centred = sample - self._mean
        covariance = centred.T @ centred / max(1, len(sample))
        isotropic = np.eye(dim) * np.trace(covariance) / dim
        variances, axes = np.linalg.eigh(trust * covariance + (1 - trust) * isotropic)
        floor = max(float(variances[-1]), np.finfo(float).tiny) * _FLOOR
        scales: NDArray[np.float64] = (np.maximum(variances, 0) + floor) ** (-power / 2)
        scales /= scales.max()  # scores ignore the scale; this keeps it within float32's range
        self._map = ((axes * scales) @ axes.T).astype(np.float32)
        self._mean = self._mean.astype(np.float32)

    def to_bytes(self) -> bytes:
        """Return the map as bytes, for ``read``."""
        return np.concatenate([self._mean[None], self._map]).astype("<f4").tobytes()

    @classmethod
    def read(cls, content: bytes, dim: int) -> Whitening:
        """Return the map that ``to_bytes`` was called on."""
        values = np.frombuffer(content, "<f4").reshape(dim + 1, dim)
        whitening = cls.__new__(cls)
        whitening._mean, whitening._map = values[0], values[1:]
        return whitening

    def before(self, vectors: Vectors) -> Vectors:
        """Return directions (n, dim) of the embedder's space that rank about like whitened ones."""
        return unit_rows(vectors @ self._map)

    def apply(self, vectors: Vectors) -> Vectors:
        """Return vectors (n, dim) in the whitened space, of unit length; zero rows stay zero."""
        whitened = np.empty((len(vectors), len(self._map)), np.float32)
        for at in range(0, len(vectors), _BLOCK):
            block = as_floats(np.asarray(vectors[at : at + _BLOCK]))
            mapped = (block - self._mean) @ self._map
            mapped[~block.any(axis=1)] = 0
            whitened[at : at + _BLOCK] = unit_rows(mapped)
        return whitened

    def spans(self, spans: Spans) -> Spans:
        """Return the same lists with their vectors in the whitened space, in memory."""
        return Spans(self.apply(spans.vectors), spans.start, spans.count)
