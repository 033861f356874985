"""Libraries of nearest neighbours, and reading all vectors in bytes, as finders of candidates.

    python benchmarks/ann_libraries.py [--index INDEX] [--documents 100000] [--dim 256]

The vectors are ``d + mean of q_i`` of an index's documents, or clustered ones (references.py).
Two-stage search wants hundreds of candidates for each query, so each is asked for 500, one query at
a time on one thread, at the width at which it was asked. Reported: processor time of building, size
of the file, resident memory that building took, share of the exact best 100 among the 500, median
and 99th percentile of a query's time, milliseconds until the saved file has answered a first query
in the way it is opened (mapped or read), and, where documents can be removed, microseconds for each
and the share of the exact best 100 of those left after a tenth was. ``all, in bytes`` reads
them all (codes.py; strop reads signs first). Needs the libraries (pip install usearch faiss-cpu
hnswlib voyager). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from references import clustered

from strop import Index
from strop.common.arrays import unit_rows
from strop.search.candidates import taken_apart
from strop.search.codes import as_bytes, leading, products_of_bytes
from strop.types import Vectors

WANTED, COUNTED = 500, 100
LINKS, WIDTH = 16, 128
THREADS = 2


class Made(NamedTuple):
    """What a library made; ``remove`` is None where it cannot, ``open`` reads what was saved."""

    search: Callable[[Vectors], Any]
    remove: Callable[[Any], Any] | None
    open: Callable[[], Callable[[Vectors], Any]]
    mapped: bool


def usearch(kind: str) -> Callable[[Vectors, Path], Made]:
    def make(vectors: Vectors, file: Path) -> Made:
        from usearch.index import Index as Graph

        graph: Any = Graph(
            ndim=vectors.shape[1], metric="ip", dtype=kind, connectivity=LINKS, expansion_add=WIDTH
        )
        graph.expansion_search = WANTED
        graph.add(np.arange(len(vectors)), vectors, threads=THREADS)
        graph.save(str(file))

        def opened() -> Callable[[Vectors], Any]:
            mapped: Any = Graph.restore(str(file), view=True)
            mapped.expansion_search = WANTED
            return lambda asked: mapped.search(asked, WANTED, threads=1).keys

        return Made(
            lambda asked: graph.search(asked, WANTED, threads=1).keys, graph.remove, opened, True
        )

    return make


def faiss_(factory: str) -> Callable[[Vectors, Path], Made]:
    def make(vectors: Vectors, file: Path) -> Made:
        import faiss

        faiss.omp_set_num_threads(THREADS)
        kind = faiss.METRIC_INNER_PRODUCT
        graph: Any = faiss.index_factory(vectors.shape[1], factory, kind)
        cells = factory.startswith("IVF")
        graph.train(vectors)
        if not cells:
            graph.hnsw.efConstruction, graph.hnsw.efSearch = WIDTH, WANTED
        graph.add(vectors)
        if cells:
            graph.nprobe = max(8, graph.nlist // 16)
        faiss.write_index(graph, str(file))
        faiss.omp_set_num_threads(1)

        def opened() -> Callable[[Vectors], Any]:
            flags = faiss.IO_FLAG_MMAP if cells else 0
            read = faiss.read_index(str(file), flags)
            return lambda asked: read.search(asked[None], WANTED)[1][0]

        remove = graph.remove_ids if cells else None
        return Made(lambda asked: graph.search(asked[None], WANTED)[1][0], remove, opened, cells)

    return make


def hnswlib_(vectors: Vectors, file: Path) -> Made:
    import hnswlib

    graph = hnswlib.Index("ip", vectors.shape[1])
    graph.init_index(len(vectors), M=LINKS, ef_construction=WIDTH)
    graph.add_items(vectors, num_threads=THREADS)
    graph.save_index(str(file))

    def with_width(one: Any) -> Callable[[Vectors], Any]:
        one.set_ef(WANTED)
        return lambda asked: one.knn_query(asked, WANTED, num_threads=1)[0][0]

    def remove(rows: Any) -> None:
        for row in rows:
            graph.mark_deleted(row)

    def opened() -> Callable[[Vectors], Any]:
        read = hnswlib.Index("ip", vectors.shape[1])
        read.load_index(str(file))
        return with_width(read)

    return Made(with_width(graph), remove, opened, False)


def voyager_(kind: str) -> Callable[[Vectors, Path], Made]:
    def make(vectors: Vectors, file: Path) -> Made:
        import voyager

        data = getattr(voyager.StorageDataType, kind)
        graph = voyager.Index(
            voyager.Space.Cosine, vectors.shape[1], LINKS, WIDTH, storage_data_type=data
        )
        graph.add_items(vectors, num_threads=THREADS)
        graph.save(str(file))

        def remove(rows: Any) -> None:
            for row in rows:
                graph.mark_deleted(row)

        def opened() -> Callable[[Vectors], Any]:
            read = voyager.Index.load(str(file))
            return lambda asked: read.query(asked, WANTED, query_ef=WANTED)[0]

        return Made(
            lambda asked: graph.query(asked, WANTED, query_ef=WANTED)[0], remove, opened, False
        )

    return make


def codes_(vectors: Vectors, file: Path) -> Made:
    codes, scales = as_bytes(vectors)
    everyone = np.arange(len(scales))
    codes.tofile(file)

    def over(rows: Any) -> Callable[[Vectors], Any]:
        near = np.empty(len(scales), np.float32)

        def search(asked: Vectors) -> Any:
            products_of_bytes(rows, scales, everyone, asked, near)
            return leading(near, 1, WANTED, np.inf)

        return search

    def remove(rows: Any) -> None:
        scales[rows] = 0

    mapped = np.asarray(np.memmap(file, np.int8, "r", shape=codes.shape))
    return Made(over(codes), remove, lambda: over(mapped), True)


LIBRARIES: dict[str, Callable[[Vectors, Path], Made]] = {
    "usearch f32": usearch("f32"),
    "usearch f16": usearch("f16"),
    "usearch i8": usearch("i8"),
    "faiss HNSW,Flat": faiss_(f"HNSW{LINKS},Flat"),
    "faiss HNSW,SQ8": faiss_(f"HNSW{LINKS},SQ8"),
    "faiss IVF,SQ8": faiss_("IVF{cells},SQ8"),
    "hnswlib": hnswlib_,
    "voyager Float32": voyager_("Float32"),
    "voyager E4M3": voyager_("E4M3"),
    "all, in bytes": codes_,
}


def resident() -> float:
    """Megabytes of memory this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def share(search: Callable[[Vectors], Any], asked: Vectors, right: Any) -> tuple[float, Any]:
    shared, spent = [], []
    for one, best in zip(asked, right, strict=True):
        began = time.perf_counter()
        found = search(one)
        spent.append(time.perf_counter() - began)
        shared.append(np.isin(best, np.asarray(found).astype(np.int64)).mean())
    return round(float(np.mean(shared)), 4), spent


def best(asked: Vectors, vectors: Vectors, gone: Any = ()) -> Any:
    products = asked @ vectors.T
    products[:, gone] = -np.inf
    return np.argpartition(-products, COUNTED, axis=1)[:, :COUNTED]


def measure(make: Callable[[Vectors, Path], Made], vectors: Vectors, asked: Vectors) -> Any:
    gone = np.random.default_rng(2).choice(len(vectors), len(vectors) // 10, replace=False)
    with tempfile.TemporaryDirectory() as folder:
        before, work = resident(), time.process_time()
        made = make(vectors, Path(folder) / "graph")
        row: dict[str, Any] = {
            "build_processor_s": round(time.process_time() - work, 2),
            "memory_mb": round(resident() - before),
            "file_mb": round(sum(f.stat().st_size for f in Path(folder).iterdir()) / 1e6, 1),
        }
        made.search(asked[0])
        row["share"], spent = share(made.search, asked, best(asked, vectors))
        row["p50_ms"] = round(1e3 * float(np.median(spent)), 3)
        row["p99_ms"] = round(1e3 * float(np.percentile(spent, 99)), 3)
        began = time.perf_counter()
        made.open()(asked[0])
        row["first_answer_ms"] = round(1e3 * (time.perf_counter() - began), 1)
        row["mapped"] = made.mapped
        if made.remove is not None:
            began = time.perf_counter()
            made.remove(gone)
            row["remove_us"] = round(1e6 * (time.perf_counter() - began) / len(gone), 2)
            row["share_after"], _ = share(made.search, asked, best(asked, vectors, gone))
            came = [np.isin(np.asarray(made.search(one)).astype(np.int64), gone) for one in asked]
            row["gone_stay_away"] = not any(one.any() for one in came)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--index", type=Path)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    given = parser.parse_args()
    if given.index:
        with Index.open(given.index) as index:
            layout = index._layout(index.method("sharp"))[1]
            parts = [taken_apart(layout, block)[0] for block in range(len(layout.blocks))]
            vectors = np.concatenate(parts)
    else:
        vectors = clustered(given.documents, given.dim)
    rng = np.random.default_rng(1)
    picked = vectors[rng.choice(len(vectors), 200, replace=False)]
    asked = unit_rows(picked + 0.5 * unit_rows(rng.normal(size=picked.shape)))
    told: dict[str, Any] = {
        "vectors": len(vectors), "dim": vectors.shape[1], "load": round(os.getloadavg()[0], 1)
    }  # fmt: skip
    print(f"{len(vectors):,} vectors of {vectors.shape[1]} dimensions")
    measure(codes_, vectors[:2000], asked)  # compiles
    for name, make in LIBRARIES.items():
        if name.startswith("faiss IVF"):
            make = faiss_(f"IVF{2 * int(np.sqrt(len(vectors)))},SQ8")
        told[name] = measure(make, vectors, asked)
        print(f"{name:16} {told[name]}", flush=True)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
