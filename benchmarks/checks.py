"""What the checks of an index cost: the bounds of spans on opening, the checksums behind hits.

    python benchmarks/checks.py [--size 100000] [--queries 8] [--dim 256] [--runs 31]

An index as benchmarks/scale.py makes it is opened in new processes, after their imports (``open``),
and again and again in one process that has everything loaded (``open_again``); then it is searched.
Opening includes the explanation of one document, for which all spans must be known. ``check`` is
the processor time inside the check, ``all`` that of the whole act, in milliseconds, both medians;
``ratio`` is the act with its check over the act without. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scale import Synthetic, document, lists

from strop import Index
from strop.storage import snapshot
from strop.storage.ledger import VectorLedger

NEW_PROCESSES = 5
Times = tuple[float, float]


def timed(act: Callable[[], object], owner: Any, check: str) -> Times:
    """Return the processor time of an act, and of a check inside it, in milliseconds."""
    real, inside = getattr(owner, check), 0.0

    def checked(*given: Any) -> Any:
        nonlocal inside
        began = time.process_time()
        try:
            return real(*given)
        finally:
            inside += time.process_time() - began

    with mock.patch.object(owner, check, checked):
        began = time.process_time()
        act()
        return 1000 * (time.process_time() - began), 1000 * inside


def summary(times: list[Times]) -> dict[str, float]:
    every, check = np.median(times, axis=0).tolist()
    ratio = float(np.median([one / (one - inside) for one, inside in times]))
    return {"all": every, "check": check, "ratio": ratio}


def opened(path: Path, embedder: Synthetic, dim: int) -> None:
    with Index.open(path, embedder, name="synthetic", dim=dim) as index:
        index.explain("5 a query", "document-7", method="sharp")


def in_new_process(path: Path, dim: int) -> Times:
    command = [sys.executable, __file__, "--open", str(path), "--dim", str(dim)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    every, check = json.loads(done.stdout)
    return every, check


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--runs", type=int, default=31)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    embedder = Synthetic(given.dim)
    if given.open is not None:
        act = partial(opened, given.open, embedder, given.dim)
        print(json.dumps(timed(act, snapshot, "in_bounds")))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        with Index.create(path, embedder, name="synthetic", dim=given.dim) as index:
            index.add(document(at, 1, given.queries) for at in range(given.size))
            index.import_queries(lists(range(given.size), given.queries), "simple")
        again = partial(opened, path, embedder, given.dim)
        again()
        found = {
            "open": summary([in_new_process(path, given.dim) for _ in range(NEW_PROCESSES)]),
            "open_again": summary([timed(again, snapshot, "in_bounds") for _ in range(given.runs)]),
        }
        with Index.open(path, embedder, name="synthetic", dim=given.dim) as index:
            for name, exact in (("two_stage", False), ("exact", True)):
                search = partial(index.search, "5 a query", method="sharp", exact=exact)
                search()
                found[name] = summary(
                    [timed(search, VectorLedger, "verify_rows") for _ in range(given.runs)]
                )
    for name, figures in found.items():
        print(name, {key: round(value, 3) for key, value in figures.items()})
    print(json.dumps({"size": given.size, **found}))


if __name__ == "__main__":
    main()
