"""Libraries for approximate neighbours, on the vectors the two-stage search would give them.

    python benchmarks/ann_libraries.py [--index INDEX] [--documents 20000] [--dim 256]

Vectors are clustered (see references.py), or with --index the ones an index would link. Each
library builds an HNSW graph (16 links, 128 candidates while building) and answers 200 queries one
at a time on one thread, for growing widths of its search. Reported are build time, file size,
overlap of its best 50 with the exact ones, and time per query. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from references import clustered

from strop.candidates import mean_vectors
from strop.index import Index
from strop.kernels import unit_rows
from strop.types import Vectors

LINKS, WIDTH, K = 16, 128, 50
Search = Callable[[Vectors, int], Any]


def usearch(kind: str) -> Callable[[Vectors, Path], Search]:
    def build(vectors: Vectors, file: Path) -> Search:
        from usearch.index import Index as Graph

        graph: Any = Graph(
            ndim=vectors.shape[1], metric="cos" if kind == "i8" else "ip", dtype=kind,
            connectivity=LINKS, expansion_add=WIDTH,
        )  # fmt: skip
        graph.add(np.arange(len(vectors)), vectors, threads=2)
        graph.save(str(file))
        mapped: Any = Graph.restore(str(file), view=True)

        def search(asked: Vectors, width: int) -> Any:
            mapped.expansion_search = width
            return mapped.search(asked, K, threads=1).keys

        return search

    return build


def faiss_(spec: str) -> Callable[[Vectors, Path], Search]:
    def build(vectors: Vectors, file: Path) -> Search:
        import faiss

        faiss.omp_set_num_threads(2)
        graph: Any = faiss.index_factory(vectors.shape[1], spec, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = WIDTH
        graph.train(vectors)
        graph.add(vectors)
        faiss.write_index(graph, str(file))
        faiss.omp_set_num_threads(1)

        def search(asked: Vectors, width: int) -> Any:
            graph.hnsw.efSearch = width
            return graph.search(asked[None], K)[1][0]

        return search

    return build


def hnswlib_(vectors: Vectors, file: Path) -> Search:
    import hnswlib

    graph: Any = hnswlib.Index("ip", vectors.shape[1])
    graph.init_index(len(vectors), ef_construction=WIDTH, M=LINKS)
    graph.set_num_threads(2)
    graph.add_items(vectors)
    graph.save_index(str(file))
    graph.set_num_threads(1)

    def search(asked: Vectors, width: int) -> Any:
        graph.set_ef(width)
        return graph.knn_query(asked, K)[0][0]

    return search


def voyager_(kind: str) -> Callable[[Vectors, Path], Search]:
    def build(vectors: Vectors, file: Path) -> Search:
        import voyager

        data = getattr(voyager.StorageDataType, kind)
        graph = voyager.Index(
            voyager.Space.Cosine, vectors.shape[1], LINKS, WIDTH, storage_data_type=data
        )
        graph.add_items(vectors, num_threads=2)
        graph.save(str(file))

        def search(asked: Vectors, width: int) -> Any:
            return graph.query(asked, K, query_ef=width)[0]

        return search

    return build


LIBRARIES: dict[str, Callable[[Vectors, Path], Search]] = {
    "usearch f32": usearch("f32"),
    "usearch f16": usearch("f16"),
    "usearch i8": usearch("i8"),
    "faiss HNSW,Flat": faiss_(f"HNSW{LINKS},Flat"),
    "faiss HNSW,SQ8": faiss_(f"HNSW{LINKS},SQ8"),
    "hnswlib": hnswlib_,
    "voyager Float32": voyager_("Float32"),
    "voyager E4M3": voyager_("E4M3"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--index", type=Path)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=256)
    given = parser.parse_args()
    rng = np.random.default_rng(1)
    if given.index:
        with Index.open(given.index) as index:
            vectors = mean_vectors(index._layout(index.method("sharp"))[1])
    else:
        vectors = clustered(given.documents, given.dim)
    picked = vectors[rng.choice(len(vectors), 200, replace=False)]
    asked = unit_rows(picked + 0.5 * unit_rows(rng.normal(size=picked.shape)))
    exact = np.argpartition(-(asked @ vectors.T), K, axis=1)[:, :K]
    told: dict[str, Any] = {
        "vectors": len(vectors), "dim": vectors.shape[1], "load": round(os.getloadavg()[0], 1)
    }  # fmt: skip
    print(f"{len(vectors):,} vectors of {vectors.shape[1]} dimensions")
    for name, build in LIBRARIES.items():
        with tempfile.TemporaryDirectory() as folder:
            began, work = time.perf_counter(), time.process_time()
            search = build(vectors, Path(folder) / "graph")
            row: dict[str, Any] = {
                "build_s": round(time.perf_counter() - began, 2),
                "build_processor_s": round(time.process_time() - work, 2),
                "file_mb": round(sum(f.stat().st_size for f in Path(folder).iterdir()) / 1e6, 1),
            }
            for width in (64, 128, 256):
                shared, spent = [], []
                for one, right in zip(asked, exact, strict=True):
                    began = time.perf_counter()
                    found = search(one, width)
                    spent.append(time.perf_counter() - began)
                    shared.append(np.isin(right, np.asarray(found)).mean())
                row[f"width_{width}"] = {
                    "overlap": round(float(np.mean(shared)), 4),
                    "ms": round(1e3 * statistics.median(spent), 3),
                }
            told[name] = row
        print(f"{name:16} {row}")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
