"""Latency of searches with a filter, by how many documents match, against searches without one.

    python benchmarks/filters.py [--documents 100000] [--keep FOLDER]

The corpus is clustered (see references.py), with 4 queries of 256 dimensions for each document,
stored as int8. Metadata: a number at random below a million, so that a range selects any share.
The first call of a filter reads the catalog; later ones use what is remembered. Each query is one
call, of a vector, for the best 10; p50 and the worst of 100 calls. The overlap is with the exact
ranking of the documents that match. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from references import clustered

from strop import Document, Index
from strop.types import Kind, Vectors

DIM, QUERIES, CALLS, RANGE = 256, 4, 100, 1_000_000
SHARES = (0.00001, 0.001, 0.01, 0.1, 0.5)


class Given:
    """An embedder of texts that are numbers: rows of ``own``, then queries near each of them."""

    def __init__(self, own: Vectors) -> None:
        self._own = own
        rng = np.random.default_rng(1)
        self._noise = 0.05 * rng.standard_normal((10_007, own.shape[1]), np.float32)

    def __call__(self, texts: Sequence[str], kind: Kind) -> Vectors:
        rows = np.array([int(text) for text in texts])
        queries = rows >= len(self._own)
        vectors = self._own[np.where(queries, (rows - len(self._own)) // QUERIES, rows)]
        vectors[queries] += self._noise[rows[queries] % len(self._noise)]
        return vectors


def build(folder: Path, size: int) -> Index:
    """Return an index of so many documents, made if it is not there."""
    own = clustered(size, DIM)
    rng = np.random.default_rng(1)
    embedder = Given(own)
    if folder.exists():
        return Index.open(folder, embedder=embedder, name="given", dim=DIM)
    index = Index.create(folder, embedder=embedder, name="given", dim=DIM)
    numbers = rng.integers(0, RANGE, size).tolist()

    def documents() -> Iterator[Document]:
        for at, number in enumerate(numbers):
            yield Document(str(at), str(at), metadata={"number": number, "lang": "en"})

    index.add(documents())
    first = np.arange(size) * QUERIES + size
    lists = {str(at): [str(first[at] + i) for i in range(QUERIES)] for at in range(size)}
    index.import_queries(lists, "simple")
    return index


def measure(index: Index, vectors: Vectors, where: dict[str, Any] | None) -> dict[str, float]:
    """Return the milliseconds of the first call, and of a call later on."""
    spent = []
    for vector in vectors:
        began = time.perf_counter()
        index.search(vector[None], 10, "sharp", where=where, fields=())
        spent.append(1e3 * (time.perf_counter() - began))
    later = spent[1:]
    return {"first": spent[0], "p50": float(np.median(later)), "worst": max(later)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="folder that keeps the index")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        began = time.perf_counter()
        index = build((chosen.keep or Path(temporary)) / "index", chosen.documents)
        print(f"{len(index):,} documents after {time.perf_counter() - began:.0f} s")
        rng = np.random.default_rng(2)
        stored = [index.searcher.vector_of(str(at)) for at in rng.integers(0, len(index), CALLS)]
        vectors = np.array(stored) + 0.03 * rng.standard_normal((CALLS, DIM))
        vectors = (vectors / np.linalg.norm(vectors, axis=1)[:, None]).astype(np.float32)
        measure(index, vectors, {"number": {"$lt": 10}})  # compiles
        measure(index, vectors, {"number": {"$lt": RANGE}})
        results: dict[str, Any] = {"documents": len(index)}
        for share in (None, *SHARES):
            where = None if share is None else {"number": {"$lt": round(share * RANGE)}}
            row = measure(index, vectors, where)
            quick = index.search(vectors, 10, "sharp", where=where, fields=()).ids
            exact = index.search(vectors, 10, "sharp", where=where, exact=True, fields=()).ids
            same = [len({*a} & {*b}) / max(1, len(b)) for a, b in zip(quick, exact, strict=True)]
            row["overlap"] = float(np.mean(same))
            name = "unfiltered" if share is None else f"{100 * share:g}%"
            results[name] = {key: round(value, 3) for key, value in row.items()}
            print(f"{name:>12}  {results[name]}", flush=True)
        index.close()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
