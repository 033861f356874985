"""Selection of references compared with scikit-learn, and the whole stage by size of the corpus.

    python benchmarks/references.py [--sizes 10000,40000,171000] [--documents 40] [--runs 3]

The first part times the selection among 100 known neighbours: squared distances, KMeans for
k = 3..10 with n_init 10, silhouettes, references. The peer is scikit-learn's KMeans(n_init=10) and
silhouette_score on the same points, with one thread and with its default threads; strop has one
thread. The fastest run of each counts. The vectors are synthetic (384 and 1024 dimensions) and
real (SciFact's documents embedded with WordLlama, from the folder STROP_DATA). The second part
reports time and peak memory of ``Index.select_references``, neighbours included, for synthetic
vectors of 384 dimensions on all cores, each size in a new process. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from common import clustered, data_folder, peak_memory, run_script, seconds

from strop import Index, select_references
from strop.common import threads
from strop.embed import load
from strop.io.corpora import read_corpus
from strop.references.neighbors import nearest_neighbors
from strop.references.selection import choose_references
from strop.references.settings import ReferenceSettings
from strop.types import Vectors


def scifact() -> Vectors:
    """Return SciFact's documents embedded with WordLlama, 256 dimensions."""
    documents = read_corpus(data_folder() / "scifact")
    texts = [f"{document.title}\n{document.text}" for document in documents]
    return load("wordllama").embed(texts, "document")


def time_selection(vectors: Vectors, documents: int, runs: int) -> dict[str, float]:
    """Return milliseconds per document, the best of ``runs``."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    neighbors = nearest_neighbors(vectors, 100)
    sample = np.linspace(0, len(vectors) - 1, documents).astype(np.int64)
    rows, similarities = neighbors.rows[sample], neighbors.similarities[sample]

    def with_strop() -> None:
        choose_references(vectors, rows, similarities, ReferenceSettings())

    def with_sklearn() -> None:
        for row in rows:
            points = vectors[row]
            for k in range(3, 11):
                labels = KMeans(k, n_init=10, random_state=0).fit(points).labels_
                silhouette_score(points, labels)

    def best(selection: Callable[[], None]) -> float:
        return 1e3 * min(seconds(selection) for _ in range(runs)) / documents

    with one_thread():
        with_strop()  # compiles
        strop_ms = best(with_strop)
    with threadpool_limits(1):
        one_thread_ms = best(with_sklearn)
    sklearn_ms = best(with_sklearn)
    return {"strop_ms": strop_ms, "sklearn_1thread_ms": one_thread_ms, "sklearn_ms": sklearn_ms}


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit strop to one thread."""
    default = threads.thread_count
    threads.thread_count = lambda: 1  # type: ignore[assignment]
    try:
        yield
    finally:
        threads.thread_count = default


def run_stage(size: int) -> dict[str, float]:
    """Select the references of an index of ``size`` documents."""
    vectors = clustered(size, 384)

    def embed(texts: list[str]) -> Vectors:
        return vectors[[int(text) if text.isdigit() else 0 for text in texts]]

    with tempfile.TemporaryDirectory() as folder, Index.create(f"{folder}/index", embed) as index:
        index.add({"id": str(i), "text": str(i)} for i in range(size))
        select_references(vectors[:300])  # compiles
        times: dict[str, float] = {}
        start = previous = time.perf_counter()

        def note(label: str, done: int, total: int) -> None:
            nonlocal previous
            now = time.perf_counter()
            times[label] = times.get(label, 0.0) + now - previous
            previous = now

        index.select_references(progress=note)
        total = time.perf_counter() - start
    return {
        "documents": size,
        "neighbors_s": round(times["finding neighbours"], 1),
        "references_s": round(times["choosing references"], 1),
        "total_s": round(total, 1),
        "ms_per_document": round(1e3 * total / size, 3),
        "peak_mb": round(peak_memory() / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,40000,171000", help="of the second part")
    parser.add_argument("--documents", type=int, default=40, help="of the first part")
    parser.add_argument("--runs", type=int, default=3, help="runs of the first part")
    parser.add_argument("--stage", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        print(json.dumps(run_stage(args.stage)))
        return
    report: dict[str, object] = {"documents": args.documents, "runs": args.runs}
    inputs = {"384": clustered(5000, 384), "1024": clustered(5000, 1024), "scifact": scifact()}
    for name, vectors in inputs.items():
        times = time_selection(vectors, args.documents, args.runs)
        print(f"{name}: milliseconds per document {times}", flush=True)
        report[f"ratio_1thread_{name}"] = round(times["sklearn_1thread_ms"] / times["strop_ms"], 1)
        report[f"ratio_default_{name}"] = round(times["sklearn_ms"] / times["strop_ms"], 1)
        report[f"strop_ms_{name}"] = round(times["strop_ms"], 3)
    stages = []
    for size in filter(None, args.sizes.split(",")):
        stages.append(run_script(__file__, "--stage", size))
        print(stages[-1], flush=True)
    report["stages"] = stages
    print(json.dumps(report))


if __name__ == "__main__":
    main()
