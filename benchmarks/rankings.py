"""Which cheaper ranking names good candidates: how deep does it hide the exact best 10?

    python benchmarks/rankings.py DATASET [DATASET ...] [--embedder wordllama] [--asked 300]

DATASET is a BEIR folder; its documents are sharpened by their sentences (alpha 1, temperature 0.1).
For each ranking, computed exactly: the share of the exact best 10 among its best C. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from strop import Index
from strop.common.arrays import unit_rows
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.search.layout import Layout
from strop.types import Vectors

DEPTHS = 32, 64, 100, 200, 300, 400, 500, 1000


def centres(queries: Vectors, most: int) -> Vectors:
    """Return up to ``most`` unit centres of queries: KMeans, begun with those farthest apart."""
    picked = [0]
    apart = 1 - queries @ queries[0]
    while len(picked) < min(most, len(queries)):
        picked.append(int(apart.argmax()))
        apart = np.minimum(apart, 1 - queries @ queries[picked[-1]])
    found = queries[picked]
    for _ in range(8):
        which = (queries @ found.T).argmax(axis=1)
        sums = [queries[which == at].sum(axis=0) for at in range(len(found))]
        found = np.where(
            np.linalg.norm(sums, axis=1)[:, None] > 0, unit_rows(np.array(sums)), found
        )
    return np.asarray(found, np.float32)


def rankings(layout: Layout) -> Iterator[tuple[str, list[Vectors]]]:
    """Yield a name and, for each document, the vectors of which the best counts."""
    documents = [layout.document(place)[None] for place in range(layout.size)]
    lists = [layout.queries(place) for place in range(layout.size)]
    pairs = [(d, q if len(q) else d) for d, q in zip(documents, lists, strict=True)]
    yield "d", documents
    yield "d + mean of q_i", [unit_rows(d + q.mean(axis=0)) for d, q in pairs]
    for most in (2, 3, 4):
        yield f"best of {most} centres + d", [unit_rows(d + centres(q, most)) for d, q in pairs]
    yield "best of all q_i", [q for _, q in pairs]
    yield "best of all d + q_i", [unit_rows(d + q) for d, q in pairs]


def measure(path: str, embedder: str, count: int, folder: Path) -> dict[str, Any]:
    with Index.create(folder / "index", embedder) as index:
        index.sharpen("sentences")
        index.add(read_corpus(path))
        asked = index.embed_queries(list(read_dataset(path).queries.values())[:count])
        method = index.method("sharp")
        layout = index.searcher.views.of(method).layout
        right = layout.scan(asked, method, 10)[1]
        told = {}
        for name, vectors in rankings(layout):
            edges = np.cumsum([0, *map(len, vectors)])[:-1]
            scores = np.maximum.reduceat(asked @ np.concatenate(vectors).T, edges, axis=1)
            ranks = np.argsort(np.argsort(-scores, axis=1), axis=1)
            deep = np.take_along_axis(ranks, right, axis=1)
            told[name] = {at: round(float((deep < at).mean()), 4) for at in DEPTHS}
            print(f"{Path(path).name:10} {name:22} {told[name]}", flush=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--asked", type=int, default=300)
    given = parser.parse_args()
    told: dict[str, Any] = {"embedder": given.embedder, "asked": given.asked}
    for path in given.datasets:
        with tempfile.TemporaryDirectory() as folder:
            told[Path(path).name] = measure(path, given.embedder, given.asked, Path(folder))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
