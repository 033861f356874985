"""The queries of a search, texts, vectors or both: checked, and embedded by a given function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from strop.common.arrays import unit_rows
from strop.errors import BadInput
from strop.methods import Method
from strop.types import HIT_FIELDS, Vectors

Embed = Callable[[list[str]], Vectors]


def as_queries(queries: Any) -> list[str] | Vectors:
    """Return queries as a list of texts, or vectors unchanged; refuse anything else."""
    if isinstance(queries, np.ndarray) and queries.dtype.kind not in "OUS":
        return queries
    if isinstance(queries, bytes) or not isinstance(queries, Iterable):
        raise BadInput(f"a query is a text, not {queries!r}")
    texts = [queries] if isinstance(queries, str) else list(queries)
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadInput(f"query {at + 1} is {text!r}: a query is a text")
        if not text.strip():
            raise BadInput(f"query {at + 1} is empty: write what to look for")
    return texts


def texts_and_vectors(
    queries: list[str] | Vectors, vectors: Vectors | None, method: Method, dim: int, embed: Embed
) -> tuple[list[str], Vectors]:
    """Return the texts of the queries, none if they are vectors, and their vectors (n, dim).

    ``vectors`` given with texts are used instead of embedding these. If a method uses words only,
    nothing is embedded and the vectors are zeros.
    """
    if isinstance(queries, np.ndarray):
        if method.bm25 != "no":
            raise BadInput(f"{method.name} compares words: give the queries' texts")
        if vectors is not None:
            raise BadInput("give vectors once: either as the queries, or beside their texts")
        return [], _checked_vectors(queries, dim)
    if vectors is not None and len(vectors) != len(queries):
        raise BadInput(f"{len(vectors):,} vectors cannot stand for {len(queries):,} queries")
    if method.bm25 == "only":
        return queries, np.zeros((len(queries), dim), np.float32)
    return queries, embed(queries) if vectors is None else _checked_vectors(vectors, dim)


def text_and_vector(
    query: str | Vectors, vectors: Vectors | None, dim: int, embed: Embed
) -> tuple[str, Vectors]:
    """Return the text of one query, "" if it is a vector, and its vector (dim,)."""
    text = query if isinstance(query, str) else ""
    if vectors is None and isinstance(query, np.ndarray):
        vectors = np.atleast_2d(query)
    checked = as_queries(query if vectors is None else vectors)
    rows = _checked_vectors(checked, dim) if isinstance(checked, np.ndarray) else embed(checked)
    return text, rows[0]


def check_fields(fields: Sequence[str]) -> None:
    """Refuse a name that no field of a hit has."""
    if isinstance(fields, str) or any(name not in HIT_FIELDS for name in fields):
        raise BadInput(f"fields is a list of {', '.join(HIT_FIELDS)}, not {fields!r}")


def _checked_vectors(vectors: Vectors, dim: int) -> Vectors:
    """Return a user's query vectors (n, dim) as unit rows; refuse other shapes and values."""
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise BadInput(f"query vectors must be (n, {dim}), not {vectors.shape}")
    if vectors.dtype.kind not in "fiu" or not np.isfinite(vectors).all():
        raise BadInput("a query vector holds NaN or infinity")
    return unit_rows(vectors)
