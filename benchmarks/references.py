"""Reference selection against scikit-learn, and the whole stage on corpora of growing size.

    python benchmarks/references.py [--sizes 10000,40000,171000] [--documents 40] [--runs 3]

The first part times the choice among 100 known neighbours: squared distances, KMeans for
k = 3..10 with n_init 10, silhouettes, references. The peer is scikit-learn's KMeans(n_init=10) and
silhouette_score on the same points, with one thread and with its own choice of threads. Each side
runs equally often and its best run counts. The vectors are synthetic (384 and 1024 dimensions) and
real: SciFact's documents by WordLlama, read from the folder of collections (STROP_DATA).
The second part runs ``Index.select_references``, neighbours included, on synthetic vectors of 384
dimensions on all cores, each size in a process of its own, and reports time and peak memory.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from strop import Index, select_references
from strop.common import threads
from strop.common.arrays import unit_rows
from strop.references.neighbors import nearest_neighbors
from strop.references.selection import choose_references
from strop.references.settings import ReferenceSettings
from strop.types import Vectors


def clustered(n: int, dim: int, seed: int = 0) -> Vectors:
    """Topics of about 200 documents each, unevenly spread, blurred like an embedder's."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(1, n // 200), dim)).astype(np.float32)
    vectors = np.empty((n, dim), np.float32)
    for at in range(0, n, 10_000):
        part = slice(at, min(at + 10_000, n))
        size = part.stop - part.start
        noise = rng.normal(size=(size, dim)).astype(np.float32)
        vectors[part] = unit_rows(centres[rng.integers(0, len(centres), size)] + 1.2 * noise)
    return vectors


def scifact() -> Vectors:
    """SciFact's documents by WordLlama, 256 dimensions."""
    from strop.embed import load
    from strop.io.corpora import read_corpus

    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("STROP_DATA") or root.parent / "shared" / "data") / "scifact"
    texts = [f"{document.title}\n{document.text}" for document in read_corpus(folder)]
    return load("wordllama").embed(texts, "document")


def time_selection(vectors: Vectors, documents: int, runs: int) -> dict[str, float]:
    """Return milliseconds a document, the best of as many runs for each side."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    near = nearest_neighbors(vectors, 100)
    few = np.linspace(0, len(vectors) - 1, documents).astype(np.int64)
    settings = ReferenceSettings()

    def ours() -> None:
        choose_references(vectors, near.rows[few], near.similarities[few], settings)

    def theirs() -> None:
        for row in near.rows[few]:
            points = vectors[row]
            for k in range(3, 11):
                labels = KMeans(k, n_init=10, random_state=0).fit(points).labels_
                silhouette_score(points, labels)

    def best(work: Callable[[], None]) -> float:
        times = []
        for _ in range(runs):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return 1e3 * min(times) / documents

    with one_thread():
        ours()  # compiles
        strop_ms = best(ours)
    with threadpool_limits(1):
        theirs_ms = best(theirs)
    return {"strop_ms": strop_ms, "sklearn_1thread_ms": theirs_ms, "sklearn_ms": best(theirs)}


@contextmanager
def one_thread() -> Iterator[None]:
    """Let strop use one thread, as its peer does."""
    usual = threads.thread_count
    threads.thread_count = lambda: 1  # type: ignore[assignment]
    try:
        yield
    finally:
        threads.thread_count = usual


def run_stage(size: int) -> None:
    """Time ``strop references`` on an index of ``size`` documents; print JSON."""
    vectors = clustered(size, 384)

    def embed(texts: list[str]) -> Vectors:
        return vectors[[int(text) if text.isdigit() else 0 for text in texts]]

    with tempfile.TemporaryDirectory() as folder, Index.create(f"{folder}/index", embed) as index:
        index.add({"id": str(at), "text": str(at)} for at in range(size))
        select_references(vectors[:300])  # compiles
        spent: dict[str, float] = {}
        began = before = time.perf_counter()

        def note(label: str, done: int, total: int) -> None:
            nonlocal before
            now = time.perf_counter()
            spent[label] = spent.get(label, 0.0) + now - before
            before = now

        index.select_references(progress=note)
        total = time.perf_counter() - began
        print(
            json.dumps(
                {
                    "documents": size,
                    "neighbors_s": round(spent["finding neighbours"], 1),
                    "references_s": round(spent["choosing references"], 1),
                    "total_s": round(total, 1),
                    "ms_per_document": round(1e3 * total / size, 3),
                    "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                }
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,40000,171000")
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--runs", type=int, default=3, help="the best of so many, for each side")
    parser.add_argument("--stage", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        run_stage(arguments.stage)
        return
    result: dict[str, object] = {"documents": arguments.documents, "runs": arguments.runs}
    inputs = {"384": clustered(5000, 384), "1024": clustered(5000, 1024), "scifact": scifact()}
    for name, vectors in inputs.items():
        times = time_selection(vectors, arguments.documents, arguments.runs)
        print(f"{name}: milliseconds a document {times}", flush=True)
        result[f"ratio_1thread_{name}"] = round(times["sklearn_1thread_ms"] / times["strop_ms"], 1)
        result[f"ratio_default_{name}"] = round(times["sklearn_ms"] / times["strop_ms"], 1)
        result[f"strop_ms_{name}"] = round(times["strop_ms"], 3)
    stages = []
    for size in filter(None, arguments.sizes.split(",")):
        command = [sys.executable, __file__, "--stage", size]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        stages.append(json.loads(out))
        print(stages[-1], flush=True)
    result["stages"] = stages
    print(json.dumps(result))


if __name__ == "__main__":
    main()
