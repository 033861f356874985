"""Cost of an index's integrity checks: bounds of spans on opening, checksums of hits on searching.

    python benchmarks/checks.py [--size 100000] [--queries 8] [--dim 256] [--runs 31]

The index is that of benchmarks/scale.py. It is opened in new processes, after their imports
(``open``), and repeatedly in one warm process (``open_again``); then it is searched. Opening
includes explaining one document, which needs all spans. ``all`` is the CPU time of the whole
operation and ``check`` that of the check within it, in milliseconds, both medians; ``ratio`` is the
time with the check divided by the time without it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from common import run_script, seconds
from scale import RandomEmbedder, document, lists

from strop import Index
from strop.storage import snapshot
from strop.storage.ledger import VectorLedger

NEW_PROCESSES = 5
Times = tuple[float, float]


def profile(operation: Callable[[], object], owner: Any, check: str) -> Times:
    """Return the CPU milliseconds of an operation, and of a check within it."""
    original, in_check = getattr(owner, check), 0.0

    def timed(*arguments: Any) -> Any:
        nonlocal in_check
        start = time.process_time()
        try:
            return original(*arguments)
        finally:
            in_check += time.process_time() - start

    with mock.patch.object(owner, check, timed):
        total = seconds(operation, time.process_time)
    return 1000 * total, 1000 * in_check


def summary(times: list[Times]) -> dict[str, float]:
    total, check = np.median(times, axis=0).tolist()
    ratio = float(np.median([total / (total - check) for total, check in times]))
    return {"all": total, "check": check, "ratio": ratio}


def open_index(path: Path, embedder: RandomEmbedder, dim: int) -> None:
    with Index.open(path, embedder, name="synthetic", dim=dim) as index:
        index.explain("5 a query", "document-7", method="sharp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="documents")
    parser.add_argument("--queries", type=int, default=8, help="queries per document")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--runs", type=int, default=31)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    embedder = RandomEmbedder(args.dim)
    if args.open is not None:
        operation = partial(open_index, args.open, embedder, args.dim)
        print(json.dumps(profile(operation, snapshot, "in_bounds")))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        with Index.create(path, embedder, name="synthetic", dim=args.dim) as index:
            index.add(document(i, 1, args.queries) for i in range(args.size))
            index.import_queries(lists(range(args.size), args.queries), "simple")
        reopen = partial(open_index, path, embedder, args.dim)
        reopen()
        command = (__file__, "--open", path, "--dim", args.dim)
        report = {
            "open": summary([tuple(run_script(*command)) for _ in range(NEW_PROCESSES)]),
            "open_again": summary(
                [profile(reopen, snapshot, "in_bounds") for _ in range(args.runs)]
            ),
        }
        with Index.open(path, embedder, name="synthetic", dim=args.dim) as index:
            for name, exact in (("two_stage", False), ("exact", True)):
                search = partial(index.search, "5 a query", method="sharp", exact=exact)
                search()
                report[name] = summary(
                    [profile(search, VectorLedger, "verify_rows") for _ in range(args.runs)]
                )
    for name, figures in report.items():
        print(name, {key: round(value, 3) for key, value in figures.items()})
    print(json.dumps({"size": args.size, **report}))


if __name__ == "__main__":
    main()
