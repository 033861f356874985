"""The exact sharpened scan compared with one BLAS product and with the formula as written.

    python benchmarks/scoring.py [--documents 50000] [--queries 10] [--dim 384] [--rounds 15]

The floor is one BLAS product, on all threads, of all stored vectors (documents and queries) with
the query vectors, written into allocated memory. The scan computes that and everything else:
softmax, lengths, top 10. The two alternate, so that other load on the machine affects both. Times
are medians; ``scan_to_floor`` is the median of the ratios of adjacent turns, and
``scan_to_floor_processor_time`` compares CPU time over all cores, which a busy machine affects
less. ``literal`` builds each sharpened document in numpy, query by query; ``einsum`` does the same
with numpy's einsum for the weighted sum. Gram terms, which are fixed per document, are computed
before and timed separately (``fixed_s``). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from common import seconds

from strop.common.arrays import unit_rows
from strop.common.threads import thread_count
from strop.methods import METHODS
from strop.search.layout import Layout
from strop.storage.snapshot import Spans
from strop.types import Vectors


def time_apart(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of a call after a pause, in which BLAS threads stop spinning."""
    time.sleep(0.1)
    return seconds(work, clock)


def literal(
    query_vector: Vectors, documents: Vectors, queries: Vectors, k: int, with_einsum: bool
) -> Vectors:
    """Return the best scores by the formula as written: documents (n, dim), queries (n, m, dim).

    The weighted sum of queries is a sum of products; einsum does not store the products.
    """
    sims = queries @ query_vector
    weights = np.exp(sims / np.float32(METHODS["sharp"].temperature))
    weights /= weights.sum(axis=1, keepdims=True)
    if with_einsum:
        sharpened = documents + np.einsum("ni,nid->nd", weights, queries)
    else:
        sharpened = documents + (weights[:, :, None] * queries).sum(axis=1)
    scores = (sharpened @ query_vector) / np.linalg.norm(sharpened, axis=1)
    best: Vectors = scores[np.argsort(-scores, kind="stable")[:k]]
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=10, help="per document")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    n, m, dim = args.documents, args.queries, args.dim
    rng = np.random.default_rng(0)
    stored = np.empty((n * (1 + m), dim), np.float32)
    for first in range(0, len(stored), 10_000):
        part = stored[first : first + 10_000]
        part[:] = unit_rows(rng.standard_normal(part.shape, np.float32) + 0.05)
    documents, queries = stored[:n], stored[n:]
    spans = (
        Spans(documents, np.arange(n), np.ones(n, np.int64)),
        [Spans(queries, np.arange(n) * m, np.full(n, m))],
        None,
    )
    Layout(*spans).gram_terms()  # compiles
    layout = Layout(*spans)
    fixed = time_apart(layout.gram_terms)
    method, k = METHODS["sharp"], 10
    report: dict[str, Any] = {
        "documents": n, "queries": m, "dim": dim, "threads": thread_count(),
        "load": round(os.getloadavg()[0], 1), "fixed_s": round(fixed, 2),
    }  # fmt: skip
    print(f"Gram terms: {fixed:.2f} s, once")
    for batch in (64, 1):
        query_vectors = unit_rows(rng.standard_normal((batch, dim), np.float32) + 0.05)
        columns = np.ascontiguousarray(query_vectors.T if batch > 1 else query_vectors[0])
        out = np.empty((len(stored), batch) if batch > 1 else len(stored), np.float32)

        floor = partial(np.matmul, stored, columns, out=out)
        scan = partial(layout.scan, query_vectors, method, k)
        floor()
        scores, _ = scan()
        pairs = [(time_apart(floor), time_apart(scan)) for _ in range(args.rounds)]
        processor = [
            time_apart(scan, time.process_time) / time_apart(floor, time.process_time)
            for _ in range(args.rounds // 2 + 1)
        ]
        times: dict[bool, list[float]] = {True: [], False: []}
        for i in range(min(batch, 5)):
            for with_einsum, column in times.items():
                time.sleep(0.1)
                start = time.perf_counter()
                expected = literal(
                    query_vectors[i], documents, queries.reshape(n, m, dim), k, with_einsum
                )
                column.append(time.perf_counter() - start)
                np.testing.assert_allclose(scores[i], expected, atol=1e-5)
        floors, scans = zip(*pairs, strict=True)
        floor_s, scan_s, literal_s, einsum_s = map(
            statistics.median, (floors, scans, times[False], times[True])
        )
        row = {
            "floor_ms_per_query": 1e3 * floor_s / batch,
            "scan_ms_per_query": 1e3 * scan_s / batch,
            "literal_ms_per_query": 1e3 * literal_s,
            "einsum_ms_per_query": 1e3 * einsum_s,
            "scan_to_floor": statistics.median(scan / floor for floor, scan in pairs),
            "scan_to_floor_of_fastest": min(scans) / min(floors),
            "scan_to_floor_processor_time": statistics.median(processor),
            "literal_to_scan": literal_s / scan_s * batch,
            "einsum_to_scan": einsum_s / scan_s * batch,
        }
        report[f"batch_{batch}"] = {name: round(value, 3) for name, value in row.items()}
        print(
            f"batch {batch}: floor {row['floor_ms_per_query']:.2f} ms per query, scan "
            f"{row['scan_ms_per_query']:.2f} ms ({row['scan_to_floor']:.2f}x), literal "
            f"{row['literal_ms_per_query']:.0f} ms ({row['literal_to_scan']:.0f}x the scan), with "
            f"einsum {row['einsum_ms_per_query']:.0f} ms ({row['einsum_to_scan']:.0f}x)"
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
