"""What the checks of an index cost: opening without the bounds, searching without the checksums.

    python benchmarks/checks.py [--size 100000] [--queries 8] [--dim 256] [--runs 31]

An index as benchmarks/scale.py makes it is opened and searched with a check and without it in
turns, in one process. Figures are medians of processor time in milliseconds; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
from scale import Synthetic, document, lists

from strop import Index


def cpu_milliseconds(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return 1000 * (time.process_time() - began)


def in_turns(act: Callable[[], object], check: str, runs: int) -> dict[str, float]:
    """Return the medians of an act with a check and without, where all is taken for good."""
    act()
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(runs):
        times["with"].append(cpu_milliseconds(act))
        with mock.patch(check, return_value=True):
            times["without"].append(cpu_milliseconds(act))
    medians = {name: float(np.median(values)) for name, values in times.items()}
    return {**medians, "ratio": medians["with"] / medians["without"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--runs", type=int, default=31)
    given = parser.parse_args()
    embedder = Synthetic(given.dim)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        with Index.create(path, embedder, name="synthetic", dim=given.dim) as index:
            index.add(document(at, 1, given.queries) for at in range(given.size))
            index.import_queries(lists(range(given.size), given.queries), "simple")

        def opened() -> None:
            with Index.open(path, embedder, name="synthetic", dim=given.dim) as index:
                index.explain("5 a query", "document-7", method="sharp")

        found = {"open": in_turns(opened, "strop.storage.snapshot.in_bounds", given.runs)}
        with Index.open(path, embedder, name="synthetic", dim=given.dim) as index:
            for name, exact in (("two_stage", False), ("exact", True)):
                search = partial(index.search, "5 a query", method="sharp", exact=exact)
                found[name] = in_turns(
                    search,
                    "strop.storage.ledger.VectorLedger.verify_rows",
                    given.runs,
                )
    for name, figures in found.items():
        print(name, {key: round(value, 3) for key, value in figures.items()})
    print(json.dumps({"size": given.size, **found}))


if __name__ == "__main__":
    main()
