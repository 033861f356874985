"""A small embedder with meaningful vectors, and scores by the documented formulas."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strop import Index, connect
from strop.engines.published import Published

Doubles = NDArray[np.float64]
DIM = 32


class Failure(Exception):
    """Raised by an embedder after ``fail_after`` texts."""


class Bag:
    """A bag of words: each word has a fixed random direction, a text is the sum of its words'.

    Queries get a direction of their own added, as with models that use prompts. ``count`` is the
    number of texts embedded. ``log`` is a file that gets a line for each call, before it is
    answered: its number of texts. Each text takes ``pause`` seconds. After ``fail_after`` more
    texts a call raises.
    """

    def __init__(self, log: Path | None = None, pause: float = 0.0) -> None:
        self.count = 0
        self.fail_after: int | None = None
        self.log = log
        self.pause = pause

    def __call__(self, texts: Sequence[str], kind: str) -> Doubles:
        if self.log is not None:
            handle = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(handle, f"{len(texts)}\n".encode())  # atomic, even if killed
            os.close(handle)
        if self.fail_after is not None:
            self.fail_after -= len(texts)
            if self.fail_after < 0:
                raise Failure
        self.count += len(texts)
        if self.pause:
            time.sleep(self.pause * len(texts))
        return np.stack([vector_of(text, kind) for text in texts])


@cache
def _direction(word: str) -> Doubles:
    return np.random.default_rng(zlib.crc32(word.encode())).normal(size=DIM)


@cache
def vector_of(text: str, kind: str) -> Doubles:
    """Return the unit vector (dim,) of a text; zero if it is blank."""
    words = text.lower().replace(".", " ").split()
    if not words:
        return np.zeros(DIM)
    total = np.sum([_direction(word) for word in words], axis=0)
    if kind == "query":
        total = total + 0.5 * _direction("?")
    unit: Doubles = total / np.linalg.norm(total)
    return unit


def vectors_of(texts: Iterable[str], kind: str) -> Doubles:
    """Return the unit vectors (n, dim) of texts."""
    return np.array([vector_of(text, kind) for text in texts]).reshape(-1, DIM)


def create(
    path: Path, bag: Bag | None = None, language: str | None = None, chunking: str | None = None
) -> Index:
    settings = {"language": language, "chunking": chunking}
    return Index.create(path, bag or Bag(), "float32", **settings, name="bag", dim=DIM)


def reopen(path: Path, bag: Bag | None = None) -> Index:
    return Index.open(path, embedder=bag or Bag(), name="bag", dim=DIM)


def open_copy(url: str) -> Published:
    copy = connect(url, Bag(), name="bag", dim=DIM)
    assert isinstance(copy, Published)
    return copy


def memory() -> Path | None:
    """Return a folder in memory, None if there is none: syncs take minutes on a disk."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else None


# -- the scores, from the equations ----------------------------------------------------------


def sharpened_score(
    q: Doubles, d: Doubles, queries: Doubles, alpha: float, temperature: float
) -> float:
    """Return cosine(q, d*) with d* = d + alpha * sum_i w_i q_i, w = softmax_i(q.q_i / T)."""
    document = d.copy()
    if len(queries):
        exponents = [float(q @ q_i) / temperature for q_i in queries]
        weights = [np.exp(e - max(exponents)) for e in exponents]
        for weight, q_i in zip(weights, queries, strict=True):
            document += alpha * weight / sum(weights) * q_i
    length = float(np.linalg.norm(document))
    return float(q @ document) / length if length else -1.0


def max_score(q: Doubles, d: Doubles, queries: Doubles) -> float:
    if not d.any() and not len(queries):
        return -1.0
    return float(q @ d) + max((float(q @ q_i) for q_i in queries), default=0.0)


def all_scores(index: Index, query: str | Doubles, **options: object) -> dict[str, float]:
    """Return every document's score for a query, by one search for all of them."""
    query_or_vectors = query if isinstance(query, str) else query.astype(np.float32)[None]
    hits = index.search(query_or_vectors, k=10**6, **options)  # type: ignore[arg-type]
    ids, scores = hits.ids[0].tolist(), hits.scores[0].tolist()
    assert len(set(ids)) == len(ids)
    assert scores == sorted(scores, reverse=True)
    return dict(zip(ids, scores, strict=True))


def assert_close(
    scores: Mapping[str, float], expected: Mapping[str, float], tolerance: float
) -> None:
    assert scores.keys() == expected.keys()
    for id_ in expected:
        assert abs(scores[id_] - expected[id_]) <= tolerance, (id_, scores[id_], expected[id_])
