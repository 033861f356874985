"""Helpers of the benchmarks: data, indexes, synthetic vectors, times and memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop import Document, Index
from strop.common.arrays import unit_rows
from strop.io.corpora import read_corpus
from strop.types import Kind, Vectors

Times = NDArray[np.float64]


def data_folder() -> Path:
    """Return the folder of collections in BEIR layout: STROP_DATA, or one beside the checkout."""
    root = Path(__file__).resolve().parents[1]
    return Path(os.environ.get("STROP_DATA") or root.parent / "shared" / "data")


def sharpened(path: Path, corpus: str, embedder: str = "wordllama") -> Index:
    """Create an index of a corpus, sharpened by its sentences."""
    index = Index.create(path, embedder)
    index.sharpen("sentences")
    index.add(read_corpus(corpus))
    return index


def overlaps(matches: Any, expected: Any) -> Times:
    """Return for each query the share of the expected ids that are among its matches."""
    pairs = zip(matches, expected, strict=True)
    return np.array([np.isin(ids, row).sum() / max(1, len(ids)) for row, ids in pairs])


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that a call takes."""
    start = clock()
    call()
    return clock() - start


def take_turns(
    calls: Mapping[str, Callable[[int], object]],
    count: int,
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Return the seconds (turns, count) of each call with the arguments 0 to ``count - 1``.

    The calls alternate for each argument, so that other load on the machine affects all of them.
    """
    times = {name: np.empty((turns, count)) for name in calls}
    for turn in range(turns):
        for i in range(count):
            for name, call in calls.items():
                start = clock()
                call(i)
                times[name][turn, i] = clock() - start
    return times


def run_script(*command: object, **environment: str) -> Any:
    """Run a Python script in a new process; return its last line, which is JSON."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def clustered(n: int, dim: int, seed: int = 0) -> Vectors:
    """Return n unit vectors in clusters of about 200, of unequal size."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(1, n // 200), dim)).astype(np.float32)
    vectors = np.empty((n, dim), np.float32)
    for start in range(0, n, 10_000):
        part = slice(start, min(start + 10_000, n))
        size = part.stop - part.start
        noise = rng.normal(size=(size, dim)).astype(np.float32)
        vectors[part] = unit_rows(centres[rng.integers(0, len(centres), size)] + 1.2 * noise)
    return vectors


class Synthetic:
    """Clustered documents with queries near each, and an embedder that computes their vectors.

    The text of document 5 is "5 -1", that of its third query is "5 2".
    """

    name, revision, worth_caching = "synthetic", "1", False

    def __init__(self, size: int, queries: int = 8, dim: int = 256) -> None:
        self.size, self.queries, self.dim = size, queries, dim
        self.options: dict[str, Any] = {}
        self.documents = clustered(size, dim)

    def prompt(self, kind: Kind) -> str:
        return ""

    def embed(self, texts: Sequence[str], kind: Kind) -> Vectors:
        numbers = np.array([text.split() for text in texts], np.int64)
        rows = self.documents[numbers[:, 0]]
        if kind == "query":
            seeds = (numbers[:, 0] * self.queries + numbers[:, 1]).tolist()
            noise = [np.random.default_rng(s).standard_normal(self.dim, np.float32) for s in seeds]
            rows = unit_rows(rows + 0.8 * unit_rows(np.array(noise)))
        return rows

    def query_vectors(self, count: int, noise: float) -> Vectors:
        """Return vectors near randomly drawn documents."""
        rng = np.random.default_rng(2)
        drawn = self.documents[rng.choice(self.size, count, replace=False)]
        return unit_rows(drawn + noise * unit_rows(rng.standard_normal(drawn.shape, np.float32)))

    def index(self, path: Path, metadata: Callable[[int], dict[str, Any]] = lambda _: {}) -> Index:
        """Open the index at ``path``, or build it there."""
        if path.exists():
            return Index.open(path, self)
        index = Index.create(path, self)
        index.add(Document(str(i), f"{i} -1", metadata=metadata(i)) for i in range(self.size))
        lists = {str(i): [f"{i} {j}" for j in range(self.queries)] for i in range(self.size)}
        index.import_queries(lists, "simple")
        return index
