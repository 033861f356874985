"""Recall of cheap candidate rankings: the share of the exact top 10 among their first C documents.

    python benchmarks/rankings.py DATASET [DATASET ...] [--embedder wordllama] [--queries 300]

DATASET is a BEIR folder; its documents are sharpened by their sentences (alpha 1, temperature 0.1).
Each ranking is computed exactly, for C from 32 to 1,000. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import sharpened

from strop.common.arrays import unit_rows
from strop.io.datasets import read_dataset
from strop.search.layout import Layout
from strop.types import Vectors

DEPTHS = 32, 64, 100, 200, 300, 400, 500, 1000


def cluster_centres(vectors: Vectors, limit: int) -> Vectors:
    """Return up to ``limit`` unit centres of vectors: KMeans, begun with the farthest apart."""
    chosen = [0]
    distances = 1 - vectors @ vectors[0]
    while len(chosen) < min(limit, len(vectors)):
        chosen.append(int(distances.argmax()))
        distances = np.minimum(distances, 1 - vectors @ vectors[chosen[-1]])
    centres = vectors[chosen]
    for _ in range(8):
        labels = (vectors @ centres.T).argmax(axis=1)
        sums = np.array([vectors[labels == i].sum(axis=0) for i in range(len(centres))])
        centres = np.where(np.linalg.norm(sums, axis=1)[:, None] > 0, unit_rows(sums), centres)
    return np.asarray(centres, np.float32)


def rankings(layout: Layout) -> Iterator[tuple[str, list[Vectors]]]:
    """Yield the name of each ranking and, for each document, vectors of which the best counts."""
    documents = [layout.document(place)[None] for place in range(layout.size)]
    lists = [layout.queries(place) for place in range(layout.size)]
    pairs = [(d, q if len(q) else d) for d, q in zip(documents, lists, strict=True)]
    yield "d", documents
    yield "d + mean of q_i", [unit_rows(d + q.mean(axis=0)) for d, q in pairs]
    for n in (2, 3, 4):
        yield f"best of {n} centres + d", [unit_rows(d + cluster_centres(q, n)) for d, q in pairs]
    yield "best of all q_i", [q for _, q in pairs]
    yield "best of all d + q_i", [unit_rows(d + q) for d, q in pairs]


def measure(path: str, embedder: str, count: int, folder: Path) -> dict[str, Any]:
    with sharpened(folder / "index", path, embedder) as index:
        query_vectors = index.embed_queries(list(read_dataset(path).queries.values())[:count])
        method = index.method("sharp")
        layout = index.searcher.views.of(method).layout
        exact = layout.scan(query_vectors, method, 10)[1]
        report = {}
        for name, vectors in rankings(layout):
            starts = np.cumsum([0, *map(len, vectors)])[:-1]
            products = query_vectors @ np.concatenate(vectors).T
            scores = np.maximum.reduceat(products, starts, axis=1)
            ranks = np.argsort(np.argsort(-scores, axis=1), axis=1)
            exact_ranks = np.take_along_axis(ranks, exact, axis=1)
            report[name] = {c: round(float((exact_ranks < c).mean()), 4) for c in DEPTHS}
            print(f"{Path(path).name:10} {name:22} {report[name]}", flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--queries", type=int, default=300, help="queries per dataset")
    args = parser.parse_args()
    report: dict[str, Any] = {"embedder": args.embedder, "queries": args.queries}
    for path in args.datasets:
        with tempfile.TemporaryDirectory() as folder:
            report[Path(path).name] = measure(path, args.embedder, args.queries, Path(folder))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
