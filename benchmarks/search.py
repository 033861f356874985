"""Two-stage sharpened search against plain HNSW on the same documents and library.

    python benchmarks/search.py [DATASET ...] [--embedder wordllama] [--synthetic 1000000]
                                [--keep FOLDER]

DATASET is a BEIR folder; its documents are sharpened by their sentences and its queries asked. The
synthetic corpus is clustered (see references.py) with 8 queries of 256 dimensions each, int8; its
plain graph takes long to make, and is kept in FOLDER for the next run. Each query is asked alone.
Plain HNSW (usearch, float16) holds the documents' own vectors and returns the best 10, with the
narrowest of its search widths whose overlap@10 with the exact plain ranking is at least 0.99 (the
widest, if none is). Both take turns, query by query, five times over; of a query's five times the
median counts, so that p99 is that of hard queries and not of what else the machine does. A walk
through a graph is work for one thread; where more than 200,000 rows are read, all threads read.
Needs usearch (pip install usearch). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from references import clustered
from usearch.index import Index as Graph

from strop import Index
from strop.common.arrays import unit_rows
from strop.common.threads import thread_count
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.methods import METHODS
from strop.search.candidates import Candidates, TwoStage
from strop.search.layout import Layout
from strop.storage.snapshot import Spans
from strop.types import Vectors

K = 10
TURNS = 5


def overlap(found: Any, right: Any) -> float:
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(right, found, strict=True)]))


def compare(layout: Layout, documents: Vectors, asked: Vectors, folder: Path) -> dict[str, Any]:
    made_from = np.arange(layout.size)[:, None]
    began = time.perf_counter()
    plain: Any = Graph(
        ndim=layout.dim, metric="ip", dtype="f16", connectivity=16, expansion_add=128
    )
    if not (folder / "plain").exists():
        plain.add(made_from[:, 0], documents, threads=thread_count())
        plain.save(str(folder / "plain"))
    plain = Graph.restore(str(folder / "plain"), view=True)
    spent = {"plain": time.perf_counter() - began}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        Candidates.make(layout, made_from, []).write(Path(scratch) / "candidates")
        two = TwoStage(Candidates.open(Path(scratch) / "candidates"), layout, made_from)
    spent["sharpened"] = time.perf_counter() - began
    exact = layout.scan(asked, METHODS["sharp"], K)[1]
    exact_plain = layout.scan(asked, METHODS["trad"], K)[1]
    for width in (64, 96, 128, 192, 256, 384):
        plain.expansion_search = width
        plain_overlap = overlap([plain.search(q, K, threads=1).keys for q in asked], exact_plain)
        if plain_overlap >= 0.99:
            break
    found = two.search(asked, METHODS["sharp"], K)[1]  # also compiles
    spent_on = np.empty((2, TURNS, len(asked)))
    for turn in range(TURNS):
        for at, q in enumerate(asked):
            began = time.perf_counter()
            plain.search(q, K, threads=1)
            spent_on[0, turn, at] = time.perf_counter() - began
            began = time.perf_counter()
            two.search(q[None], METHODS["sharp"], K)
            spent_on[1, turn, at] = time.perf_counter() - began
    theirs, ours = np.median(spent_on, axis=1)
    began = time.perf_counter()
    for q in asked[:20]:
        layout.scan(q[None], METHODS["sharp"], K)
    scan = (time.perf_counter() - began) / len(asked[:20])
    row = {"documents": layout.size, "overlap": overlap(found, exact), "plain_width": width}
    row |= {"plain_overlap": plain_overlap, "scan_ms": 1e3 * scan}
    row |= {"plain_build_s": spent["plain"], "sharp_build_s": spent["sharpened"]}
    for name, share in (("p50", 50), ("p99", 99)):
        a, b = 1e3 * np.percentile(theirs, share), 1e3 * np.percentile(ours, share)
        row |= {f"plain_{name}_ms": a, f"sharp_{name}_ms": b, f"ratio_{name}": b / a}
    return {name: round(float(value), 4) for name, value in row.items()}


def dataset(path: str, embedder: str, folder: Path) -> dict[str, Any]:
    with Index.create(folder / "index", embedder) as index:
        index.sharpen("sentences")
        index.add(read_corpus(path))
        asked = index.embed_queries(list(read_dataset(path).queries.values()))
        snapshot, layout = index._layout(index.method("sharp"))
        return compare(layout, snapshot.documents.vectors[snapshot.documents.start], asked, folder)


def synthetic(size: int, folder: Path, each: int = 8, dim: int = 256) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    documents = clustered(size, dim)
    queries = np.empty((size * each, dim), np.int8)
    for at in range(0, size, 10_000):  # each leans its own way from its document
        own = np.repeat(documents[at : at + 10_000], each, axis=0)
        rows = unit_rows(own + 0.8 * unit_rows(rng.standard_normal(own.shape, np.float32)))
        scale = 127 / np.abs(rows).max(axis=1, keepdims=True)
        queries[at * each : at * each + len(rows)] = np.rint(rows * scale)
    picked = documents[rng.choice(size, 200, replace=False)]
    asked = unit_rows(picked + 0.8 * unit_rows(rng.standard_normal(picked.shape, np.float32)))
    layout = Layout(
        Spans(documents, np.arange(size), np.ones(size, np.int64)),
        [Spans(queries, np.arange(size) * each, np.full(size, each))],
        None,
    )
    return compare(layout, documents, asked, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="*")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--synthetic", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="a folder for the synthetic corpus' graph")
    given = parser.parse_args()
    told: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
    for path in given.datasets:
        with tempfile.TemporaryDirectory() as folder:
            told[Path(path).name] = dataset(path, given.embedder, Path(folder))
        print(Path(path).name, told[Path(path).name], flush=True)
    if given.synthetic:
        with tempfile.TemporaryDirectory() as scratch:
            told["synthetic"] = synthetic(given.synthetic, given.keep or Path(scratch))
        print("synthetic", told["synthetic"], flush=True)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
