"""Random documents with query vectors, and their scores by the formula of the paper."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import numpy as np

from strop.common.arrays import unit_rows
from strop.methods import Method
from strop.search.layout import Layout
from strop.storage.snapshot import Spans
from strop.types import Vectors

MORE = int(os.environ.get("STROP_EXAMPLES", "1"))
"""Factor by which the default number of random cases is multiplied."""


class Case(NamedTuple):
    query_vectors: Vectors
    documents: Vectors
    lists: list[list[Vectors]]  # by set, by document: (n, dim)

    def layout(self, n: int | None = None) -> Layout:
        ones = np.ones(len(self.documents), np.int64)
        return Layout(
            Spans(self.documents, np.arange(len(self.documents)), ones),
            [make_spans(lists, self.documents.shape[1]) for lists in self.lists],
            n,
        )

    def queries(self, document: int) -> Vectors:
        return np.concatenate([lists[document] for lists in self.lists])


def make_spans(lists: list[Vectors], dim: int) -> Spans:
    counts = np.array([len(rows) for rows in lists], np.int64)
    rows = np.concatenate([*lists, np.empty((0, dim), np.float32)])
    return Spans(rows, np.cumsum(counts) - counts, counts)


def literal(query_vectors: Vectors, document: Vectors, queries: Vectors, method: Method) -> float:
    """The paper's formula, term by term."""
    q, d = query_vectors.astype(np.float64), document.astype(np.float64)
    rows = queries.astype(np.float64)
    if not d.any() and (method.weighting == "none" or not len(rows)):
        return -1.0
    if method.weighting == "none":
        return float(q @ d)
    if method.weighting == "max":
        return float(q @ d) + (max(float(q @ row) for row in rows) if len(rows) else 0.0)
    built, scale = d.copy(), 1.0
    if len(rows):
        scale = max(1.0, abs(method.alpha))
        sims = [float(q @ row) for row in rows]
        if method.weighting == "equal":
            weights = [1.0] * len(sims)
        elif method.temperature < 1e-12:
            weights = [1.0 if sim == max(sims) else 0.0 for sim in sims]
        else:
            weights = [math.exp((sim - max(sims)) / method.temperature) for sim in sims]
        for weight, row in zip(weights, rows, strict=True):
            built = built + method.alpha * weight / sum(weights) * row
    length = math.sqrt(float(built @ built))
    if length <= 1e-10 * scale:
        return -1.0
    return float(q @ built) / length


# Rows with four entries of +-1/2 are of length one exactly, and so are their products: even a
# temperature of nearly zero, which turns the last bit of a product into a choice, has one answer.
def _exact_row(rng: np.random.Generator, dim: int) -> Vectors:
    row = np.zeros(dim, np.float32)
    row[rng.choice(dim, 4, replace=False)] = rng.choice([-0.5, 0.5], 4)
    return row


def make_case(seed: int, sizes: tuple[int, int, int, int, int], exact: bool) -> Case:
    n_query_vectors, n_documents, dim, n_sets, most = sizes
    rng = np.random.default_rng(seed)

    def rows(count: int) -> Vectors:
        if exact:
            vectors = np.array([_exact_row(rng, dim) for _ in range(count)], np.float32)
        else:
            vectors = unit_rows(rng.normal(size=(count, dim)) + rng.normal(size=dim))
        vectors = vectors.reshape(count, dim)
        vectors[rng.random(count) < 0.05] = 0  # an empty text
        return vectors

    documents = rows(n_documents)
    lists = []
    for _ in range(n_sets):
        queries = [rows(int(rng.integers(0, most + 1))) for _ in range(n_documents)]
        for j in range(n_documents):  # equal vectors, and opposites that can cancel the document
            if len(queries[j]) and rng.random() < 0.2:
                queries[j][0] = documents[j] * rng.choice([-1, 1])
            if len(queries[j]) > 1 and rng.random() < 0.2:
                queries[j][1] = queries[j][0]
        lists.append(queries)
    return Case(rows(n_query_vectors), documents, lists)
