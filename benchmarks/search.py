"""Latency and overlap of sharpened search compared with plain HNSW on the same documents.

    python benchmarks/search.py [DATASET ...] [--embedder wordllama] [--synthetic 1000000]
                                [--threads 1] [--keep FOLDER]

DATASET is a BEIR folder; its documents are sharpened by their sentences, and its queries are
searched. The synthetic corpus has clustered vectors of 256 dimensions and 8 queries per document,
stored as int8; FOLDER keeps its index and graph for the next run. Sharpened search is
``Index.search``. Its peer is usearch's HNSW in float16 on the documents' vectors, with the smallest
search width whose overlap@10 with the exact plain ranking is at least 0.99 (the largest width, if
none reaches it). Both use ``--threads`` threads and get one query per call. They alternate, query
by query, five times; the median of a query's five times counts, so p99 shows slow queries and not
other load on the machine. ``sharp`` searches by vector, without words, and returns ids and scores;
``with_texts`` returns texts too; ``words`` searches texts with the default weight of words, with
vectors given; ``formula`` is the sharpened score without feedback. ``scan`` is exact search. Needs
usearch (pip install usearch). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import Synthetic, overlaps, seconds, sharpened, take_turns
from usearch.index import Index as Graph

from strop import Index
from strop.io.datasets import read_dataset
from strop.types import Vectors

K = 10
TURNS = 5
FORMULA = "sharp:words=0:feedback=0"
WIDTHS = (64, 96, 128, 192, 256, 384)


def open_graph(documents: Vectors, path: Path) -> Any:
    """Open the HNSW graph of the documents' vectors at ``path``, or build it there."""
    if not path.exists():
        graph: Any = Graph(
            ndim=documents.shape[1], metric="ip", dtype="f16", connectivity=16, expansion_add=128
        )
        graph.add(np.arange(len(documents)), documents, threads=os.cpu_count() or 1)
        graph.save(str(path))
    return Graph.restore(str(path), view=True)


def compare(
    index: Index,
    documents: Vectors,
    query_vectors: Vectors,
    folder: Path,
    threads: int,
    texts: Sequence[str] = (),
) -> dict[str, Any]:
    path, count = folder / "plain", len(query_vectors)
    build_seconds = seconds(lambda: open_graph(documents, path))
    graph = open_graph(documents, path)
    numbers = {id_: number for number, id_ in enumerate(index.ids())}
    exact = index.search(query_vectors, K, "trad").ids.tolist()
    exact_numbers = [[numbers[id_] for id_ in ids] for ids in exact]
    for width in WIDTHS:
        graph.expansion_search = width
        matches = [graph.search(vector, K, threads=threads).keys for vector in query_vectors]
        plain_overlap = overlaps(matches, exact_numbers).mean()
        if plain_overlap >= 0.99:
            break

    def search(i: int, method: str = "sharp", **options: Any) -> Any:
        return index.search(query_vectors[i : i + 1], K, method, **options).ids

    def words(i: int, exact: bool = False) -> Any:
        own = query_vectors[i : i + 1]
        return index.search([texts[i]], K, "sharp", vectors=own, fields=(), exact=exact).ids[0]

    def overlap(method: str) -> Any:
        exact = index.search(query_vectors, K, method, exact=True).ids
        return overlaps(index.search(query_vectors, K, method).ids, exact)

    sharp_overlap, formula_overlap = overlap("sharp"), overlap(FORMULA)
    calls: dict[str, Callable[[int], object]] = {
        "plain": lambda i: graph.search(query_vectors[i], K, threads=threads),
        "sharp": partial(search, fields=()),  # ids and scores, as the peer returns
        "with_texts": search,
        "formula": partial(search, method=FORMULA, fields=()),
    }
    if texts:
        calls["words"] = words
    for call in calls.values():  # compiles, and reads what is read once
        for i in range(min(50, count)):
            call(i)
    times = take_turns(calls, count, TURNS)
    scans = take_turns({"scan": partial(search, exact=True)}, min(20, count), 1)["scan"]
    row = {
        "documents": len(documents), "overlap": sharp_overlap.mean(),
        "worst_overlap": sharp_overlap.min(), "formula_overlap": formula_overlap.mean(),
        "plain_width": width, "plain_overlap": plain_overlap, "plain_build_s": build_seconds,
        "scan_ms": 1e3 * scans.mean(), "threads": threads,
    }  # fmt: skip
    if texts:
        words_overlap = overlaps(map(words, range(count)), [words(i, True) for i in range(count)])
        row |= {"words_overlap": words_overlap.mean(), "words_worst_overlap": words_overlap.min()}
    figures = {
        name: np.percentile(1e3 * np.median(turns, axis=0), (50, 99))
        for name, turns in times.items()
    }
    for name, (p50, p99) in figures.items():
        row |= {f"{name}_p50_ms": p50, f"{name}_p99_ms": p99}
        if name != "plain":
            ratios = figures[name] / figures["plain"]
            prefix = "" if name == "sharp" else f"{name}_"
            row |= {f"{prefix}ratio_p50": ratios[0], f"{prefix}ratio_p99": ratios[1]}
    return {name: round(float(value), 4) for name, value in row.items()}


def dataset(path: str, embedder: str, folder: Path, threads: int) -> dict[str, Any]:
    with sharpened(folder / "index", path, embedder) as index:
        spans = index.searcher.views.snapshot().documents
        documents = np.array(spans.vectors[spans.start])
        texts = list(read_dataset(path).queries.values())
        return compare(index, documents, index.embed_queries(texts), folder, threads, texts)


def synthetic(size: int, folder: Path, threads: int) -> dict[str, Any]:
    corpus = Synthetic(size)
    with corpus.index(folder / "index") as index:
        return compare(index, corpus.documents, corpus.query_vectors(200, 0.8), folder, threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="*")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--synthetic", type=int, default=1_000_000, help="documents; 0: none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the synthetic index and graph")
    args = parser.parse_args()
    os.environ["STROP_THREADS"] = str(args.threads)  # read at the first search
    report: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
    for path in args.datasets:
        with tempfile.TemporaryDirectory() as folder:
            name = Path(path).name
            report[name] = dataset(path, args.embedder, Path(folder), args.threads)
        print(name, report[name], flush=True)
    if args.synthetic:
        with tempfile.TemporaryDirectory() as scratch:
            keep = args.keep or Path(scratch)
            keep.mkdir(exist_ok=True)
            report["synthetic"] = synthetic(args.synthetic, keep, args.threads)
        print("synthetic", report["synthetic"], flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
