"""Sharpened search, as a user calls it, against plain HNSW on the same documents and vectors.

    python benchmarks/search.py [DATASET ...] [--embedder wordllama] [--synthetic 1000000]
                                [--threads 1] [--keep FOLDER]

DATASET is a BEIR folder; its documents are sharpened by their sentences and its queries are asked.
The synthetic corpus is clustered (see references.py) with 8 queries of 256 dimensions for each
document, stored as int8; FOLDER keeps its index and graph for the next run. Sharpened search is
``Index.search``; plain HNSW is usearch in float16 on the documents' own vectors, with the smallest
search width whose overlap@10 with the exact plain ranking is at least 0.99 (the largest, if none
is). Both use as many threads as ``--threads`` says and answer one query per call. They take turns,
query by query, five times. Searches by vector have no words; ``words`` are searches of a dataset's
texts with the default weight of words, their vectors given; ``formula`` is the sharpened score
alone, without the feedback that ``sharp`` has by default. The median of a query's five times
counts, so p99 is that of hard queries and not of other load on the machine. Needs usearch (pip
install usearch). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from references import clustered
from usearch.index import Index as Graph

from strop import Index
from strop.common.arrays import unit_rows
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.types import Kind, Vectors

K = 10
TURNS = 5
FORMULA = "sharp:words=0:feedback=0"
PERCENTILES = (("p50", 50), ("p99", 99))
WIDTHS = (64, 96, 128, 192, 256, 384)


def overlaps(found: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
    """Return for each query the share of the right documents that were found."""
    return np.array([np.isin(a, b).mean() for a, b in zip(right, found, strict=True)])


def plain_graph(documents: Vectors, path: Path) -> Any:
    """Return an HNSW graph of the documents' vectors, read from ``path`` if it is there."""
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
    began = time.perf_counter()
    plain = plain_graph(documents, folder / "plain")
    plain_build = time.perf_counter() - began
    place = {id_: at for at, id_ in enumerate(index.ids())}
    exact = index.search(query_vectors, K, "sharp", exact=True).ids
    exact_plain = index.search(query_vectors, K, "trad").ids
    right = np.array([[place[id_] for id_ in ids] for ids in exact_plain.tolist()])
    for width in WIDTHS:
        plain.expansion_search = width
        matches = [plain.search(q, K, threads=threads).keys for q in query_vectors]
        plain_overlap = overlaps(np.array(matches), right).mean()
        if plain_overlap >= 0.99:
            break
    found = overlaps(index.search(query_vectors, K, "sharp").ids, exact)
    of_formula = overlaps(
        index.search(query_vectors, K, FORMULA).ids,
        index.search(query_vectors, K, FORMULA, exact=True).ids,
    )
    for q in query_vectors[:50]:  # compiles, and reads what is read once
        index.search(q[None], K, "sharp")

    def with_words(at: int, exact: bool = False) -> Any:
        own = query_vectors[at : at + 1]
        return index.search([texts[at]], K, "sharp", vectors=own, fields=(), exact=exact).ids

    for at in range(min(50, len(texts))):
        with_words(at)
    spent = np.zeros((5, TURNS, len(query_vectors)))
    for turn in range(TURNS):
        for at, q in enumerate(query_vectors):
            began = time.perf_counter()
            plain.search(q, K, threads=threads)
            spent[0, turn, at] = time.perf_counter() - began
            began = time.perf_counter()
            index.search(q[None], K, "sharp", fields=())  # ids and scores, as the peer gives
            spent[1, turn, at] = time.perf_counter() - began
            began = time.perf_counter()
            index.search(q[None], K, "sharp")
            spent[2, turn, at] = time.perf_counter() - began
            began = time.perf_counter()
            index.search(q[None], K, FORMULA, fields=())
            spent[4, turn, at] = time.perf_counter() - began
            if texts:
                began = time.perf_counter()
                with_words(at)
                spent[3, turn, at] = time.perf_counter() - began
    theirs, ours, whole, words, formula = np.median(spent, axis=1)
    began = time.perf_counter()
    for q in query_vectors[:20]:
        index.search(q[None], K, "sharp", exact=True)
    scan = (time.perf_counter() - began) / len(query_vectors[:20])
    row = {"documents": len(documents), "overlap": found.mean(), "worst_overlap": found.min()}
    row |= {"plain_width": width, "plain_overlap": plain_overlap, "scan_ms": 1e3 * scan}
    row |= {"plain_build_s": plain_build, "threads": threads}
    row |= {"with_texts_p50_ms": 1e3 * np.median(whole)}
    row |= {"formula_overlap": of_formula.mean(), "formula_p50_ms": 1e3 * np.median(formula)}
    row |= {"formula_ratio_p50": np.median(formula) / np.median(theirs)}
    if texts:
        pairs = [(with_words(at), with_words(at, exact=True)) for at in range(len(texts))]
        same = [overlaps(found, right).mean() for found, right in pairs]
        row |= {"words_overlap": np.mean(same), "words_worst_overlap": np.min(same)}
        row |= {f"words_{name}_ms": 1e3 * np.percentile(words, at) for name, at in PERCENTILES}
        row |= {"words_ratio_p50": np.median(words) / np.median(theirs)}
    for name, share in PERCENTILES:
        a, b = 1e3 * np.percentile(theirs, share), 1e3 * np.percentile(ours, share)
        row |= {f"plain_{name}_ms": a, f"sharp_{name}_ms": b, f"ratio_{name}": b / a}
    return {name: round(float(value), 4) for name, value in row.items()}


def dataset(path: str, embedder: str, folder: Path, threads: int) -> dict[str, Any]:
    with Index.create(folder / "index", embedder) as index:
        index.sharpen("sentences")
        index.add(read_corpus(path))
        spans = index.searcher.views.snapshot().documents
        documents = np.array(spans.vectors[spans.start])
        texts = list(read_dataset(path).queries.values())
        return compare(index, documents, index.embed_queries(texts), folder, threads, texts)


class Synthetic:
    """A clustered corpus behind the interface of an embedder: a text names its vector."""

    name, revision = "synthetic", "1"
    worth_caching = False

    def __init__(self, size: int, each: int = 8, dim: int = 256) -> None:
        self.size, self.each, self.dim = size, each, dim
        self.options: dict[str, Any] = {}
        self.documents = clustered(size, dim)

    def prompt(self, kind: Kind) -> str:
        return ""

    def embed(self, texts: Sequence[str], kind: Kind) -> Vectors:
        numbers = np.array([text.split() for text in texts], np.int64)  # document, query or -1
        rows = self.documents[numbers[:, 0]]
        if kind == "query":  # each leans its own way from its document
            seeds = (numbers[:, 0] * self.each + numbers[:, 1]).tolist()
            leans = [np.random.default_rng(s).standard_normal(self.dim, np.float32) for s in seeds]
            rows = unit_rows(rows + 0.8 * unit_rows(np.array(leans)))
        return rows

    def index(self, path: Path) -> Index:
        if path.exists():
            return Index.open(path, self)
        index = Index.create(path, self)
        index.add({"id": str(at), "text": f"{at} -1"} for at in range(self.size))
        lists = {
            str(at): [f"{at} {query}" for query in range(self.each)] for at in range(self.size)
        }
        index.import_queries(lists, "simple")
        return index


def synthetic(size: int, folder: Path, threads: int) -> dict[str, Any]:
    corpus = Synthetic(size)
    rng = np.random.default_rng(2)
    picked = corpus.documents[rng.choice(size, 200, replace=False)]
    noise = rng.standard_normal(picked.shape, np.float32)
    query_vectors = unit_rows(picked + 0.8 * unit_rows(noise))
    with corpus.index(folder / "index") as index:
        return compare(index, corpus.documents, query_vectors, folder, threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="*")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--synthetic", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the synthetic index and graph")
    given = parser.parse_args()
    os.environ["STROP_THREADS"] = str(given.threads)  # read at the first search
    report: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
    for path in given.datasets:
        with tempfile.TemporaryDirectory() as folder:
            name = Path(path).name
            report[name] = dataset(path, given.embedder, Path(folder), given.threads)
        print(name, report[name], flush=True)
    if given.synthetic:
        with tempfile.TemporaryDirectory() as scratch:
            keep = given.keep or Path(scratch)
            keep.mkdir(exist_ok=True)
            report["synthetic"] = synthetic(given.synthetic, keep, given.threads)
        print("synthetic", report["synthetic"], flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
