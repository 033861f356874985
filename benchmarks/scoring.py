"""The exact sharpened scan against the floor, one BLAS product, and against the literal formula.

    python benchmarks/scoring.py [--documents 50000] [--queries 10] [--dim 384] [--rounds 15]

The floor multiplies all stored vectors, documents' and queries', with the asked ones in one BLAS
product on all its threads, into memory that is there already. The scan does that and everything
else: softmax, lengths, best 10. Both take turns, so that what else the machine does meets both;
the figures are medians, and the ratio is the median of the ratios of neighbouring turns;
``processor_time`` compares seconds of work over all cores, which a busy machine disturbs less. The
literal formula builds every sharpened document in numpy, query by query; ``einsum`` is the
same with numpy's einsum for the weighted sum. What is fixed for each
document (Gram triangles) is computed before, and timed apart. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from strop.common.arrays import unit_rows
from strop.common.threads import thread_count
from strop.methods import METHODS
from strop.search.layout import Layout
from strop.storage.snapshot import Spans
from strop.types import Vectors


def seconds(work: Callable[[], Any]) -> float:
    time.sleep(0.1)  # BLAS's threads go on turning for a while after a product, at others' cost
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def processor_seconds(work: Callable[[], Any]) -> float:
    time.sleep(0.1)
    began = time.process_time()
    work()
    return time.process_time() - began


def literal(
    asked: Vectors, documents: Vectors, queries: Vectors, k: int, with_einsum: bool
) -> tuple[Vectors, Any]:
    """Score by the formula as it is written: documents (n, dim), queries (n, each, dim).

    The weighted sum of queries is a sum of products, or numpy's einsum, which spares the products.
    """
    sims = queries @ asked
    weights = np.exp(sims / np.float32(METHODS["sharp"].temperature))
    weights /= weights.sum(axis=1, keepdims=True)
    if with_einsum:
        built = documents + np.einsum("ni,nid->nd", weights, queries)
    else:
        built = documents + (weights[:, :, None] * queries).sum(axis=1)
    scores = (built @ asked) / np.linalg.norm(built, axis=1)
    best = np.argsort(-scores, kind="stable")[:k]
    return scores[best], best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    n, each, dim = given.documents, given.queries, given.dim
    rng = np.random.default_rng(0)
    stored = np.empty((n * (1 + each), dim), np.float32)
    for at in range(0, len(stored), 10_000):
        part = stored[at : at + 10_000]
        part[:] = unit_rows(rng.standard_normal(part.shape, np.float32) + 0.05)
    documents, queries = stored[:n], stored[n:]
    spans = (
        Spans(documents, np.arange(n), np.ones(n, np.int64)),
        [Spans(queries, np.arange(n) * each, np.full(n, each))],
        None,
    )
    Layout(*spans).gram_terms()  # compiles
    layout = Layout(*spans)
    fixed = seconds(layout.gram_terms)
    method, k = METHODS["sharp"], 10
    told: dict[str, Any] = {
        "documents": n, "queries": each, "dim": dim, "threads": thread_count(),
        "load": round(os.getloadavg()[0], 1), "fixed_s": round(fixed, 2),
    }  # fmt: skip
    print(f"what is fixed for each document: {fixed:.2f} s, once")
    for batch in (64, 1):
        asked = unit_rows(rng.standard_normal((batch, dim), np.float32) + 0.05)
        turned = np.ascontiguousarray(asked.T if batch > 1 else asked[0])
        out = np.empty((len(stored), batch) if batch > 1 else len(stored), np.float32)

        def floor(turned: Vectors = turned, out: Vectors = out) -> None:
            np.matmul(stored, turned, out=out)

        def scan(asked: Vectors = asked) -> Any:
            return layout.scan(asked, method, k)

        floor()
        scores, _ = scan()
        pairs = [(seconds(floor), seconds(scan)) for _ in range(given.rounds)]
        processor = [
            processor_seconds(scan) / processor_seconds(floor) for _ in range(given.rounds // 2 + 1)
        ]
        spent: dict[bool, list[float]] = {True: [], False: []}
        for at in range(min(batch, 5)):
            for with_einsum, into in spent.items():
                time.sleep(0.1)
                began = time.perf_counter()
                expected, _ = literal(
                    asked[at], documents, queries.reshape(n, each, dim), k, with_einsum
                )
                into.append(time.perf_counter() - began)
                np.testing.assert_allclose(scores[at], expected, atol=1e-5)
        floors, scans = zip(*pairs, strict=True)
        row = {
            "floor_ms_per_query": 1e3 * statistics.median(floors) / batch,
            "scan_ms_per_query": 1e3 * statistics.median(scans) / batch,
            "literal_ms_per_query": 1e3 * statistics.median(spent[False]),
            "einsum_ms_per_query": 1e3 * statistics.median(spent[True]),
            "scan_to_floor": statistics.median(ours / theirs for theirs, ours in pairs),
            "scan_to_floor_of_fastest": min(scans) / min(floors),
            "scan_to_floor_processor_time": statistics.median(processor),
            "literal_to_scan": statistics.median(spent[False]) / statistics.median(scans) * batch,
            "einsum_to_scan": statistics.median(spent[True]) / statistics.median(scans) * batch,
        }
        told[f"batch_{batch}"] = {name: round(value, 3) for name, value in row.items()}
        print(
            f"batch {batch}: floor {row['floor_ms_per_query']:.2f} ms a query, scan "
            f"{row['scan_ms_per_query']:.2f} ms ({row['scan_to_floor']:.2f}x), literal "
            f"{row['literal_ms_per_query']:.0f} ms ({row['literal_to_scan']:.0f}x the scan), with "
            f"einsum {row['einsum_ms_per_query']:.0f} ms ({row['einsum_to_scan']:.0f}x)"
        )
    print(json.dumps(told))


if __name__ == "__main__":
    main()
