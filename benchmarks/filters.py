"""Latency of searches with a filter, by the share of documents that match, and without a filter.

    python benchmarks/filters.py [--documents 100000] [--keep FOLDER]

The corpus is synthetic: clustered vectors of 256 dimensions, 4 queries per document, stored as
int8. Metadata contains a random number below a million, so a range can select any share. The first
call with a filter reads the catalog; later calls use the cache. A call is a search with one vector
for the top 10. Reported are the first of 100 calls, and the median and maximum of the others, in
milliseconds; ``overlap`` is that of the top 10 with the exact ranking of the documents that match.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import Synthetic, overlaps, take_turns

from strop import Index
from strop.types import Vectors

QUERIES, CALLS, RANGE = 4, 100, 1_000_000
SHARES = (0.00001, 0.001, 0.01, 0.1, 0.5)


def measure(index: Index, vectors: Vectors, where: dict[str, Any] | None) -> dict[str, float]:
    """Return the milliseconds of the first call and of later ones."""

    def search(i: int) -> None:
        index.search(vectors[i : i + 1], 10, "sharp", where=where, fields=())

    times = 1e3 * take_turns({"search": search}, len(vectors), 1)["search"][0]
    first, *later = times.tolist()
    return {"first": first, "p50": float(np.median(later)), "worst": max(later)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="folder in which the index is kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        corpus = Synthetic(args.documents, QUERIES)
        numbers = np.random.default_rng(1).integers(0, RANGE, args.documents).tolist()
        path = (args.keep or Path(temporary)) / "index"
        start = time.perf_counter()
        with corpus.index(path, lambda i: {"number": numbers[i], "lang": "en"}) as index:
            print(f"{len(index):,} documents after {time.perf_counter() - start:.0f} s")
            vectors = corpus.query_vectors(CALLS, 0.5)
            measure(index, vectors, {"number": {"$lt": 10}})  # compiles
            measure(index, vectors, {"number": {"$lt": RANGE}})
            report: dict[str, Any] = {"documents": len(index)}
            for share in (None, *SHARES):
                where = None if share is None else {"number": {"$lt": round(share * RANGE)}}
                row = measure(index, vectors, where)
                matches = index.search(vectors, 10, "sharp", where=where, fields=()).ids
                exact = index.search(vectors, 10, "sharp", where=where, exact=True, fields=()).ids
                row["overlap"] = float(overlaps(matches, exact).mean())
                name = "unfiltered" if share is None else f"{100 * share:g}%"
                report[name] = {key: round(value, 3) for key, value in row.items()}
                print(f"{name:>12}  {report[name]}", flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
