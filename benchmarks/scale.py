"""Build, open, search, change and compact an index, by its size: time, memory and disk.

    python benchmarks/scale.py [--sizes 10000,100000,1000000] [--queries 8] [--dim 256]
        [--folder DIR] [--changed 1000] [--engines tantivy,bm25s]

A function returns random vectors in place of an embedder; its time is subtracted. Texts have 45
words with Zipf frequencies. Everything else is timed as a user sees it: ``Index.add`` and
``Index.import_queries`` include a commit to disk. ``open`` is measured in a new process, after its
imports: it opens the index and explains one document, which needs the places of all vectors but
does not read them; ``open_cpu`` is its CPU time. Each size runs in a new process with a warm page
cache. A search is the median of 9 (exact) or 25 queries, each run once before; a plain search is
one query repeated. Changes are means of three; ``compact`` and ``waste_before_compaction`` follow
all three. A ``words_search`` is ``sharp:words=1`` with six words, its overlap that of its top 10
with the exact ones. The peers, with --engines, are other keyword engines (see words.py) with the
same words and queries; ``words_ratio`` is a words_search divided by the sum of a sharpened_search
with the same vectors and a query of the fastest engine. Peak memory includes mapped pages of vector
files, which the system may drop. The targets: figures per document grow at most 1.3-fold for ten
times the size, and the time of a fixed number of changes does not grow with the index. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import overlaps, peak_memory, run_script, seconds

from strop import Document, Index
from strop.storage.vectors import DEFAULT_STORED, STORED
from strop.types import Vectors

_WORDS = 45  # per text
_MARKS = str.maketrans("0123456789", "!$%()*/:;<")
_DIGITS = str.maketrans("!$%()*/:;<", "0123456789")
_POOL_SIZES = 4093, 4099  # primes: the sums of two vectors repeat after 16 million texts
TURNS = 3  # changes of each kind
PER_DOCUMENT = (
    "build", "plain_search", "sharpened_search", "words_search", "exact_search",
    "build_peak_bytes", "compact",
)  # fmt: skip


@cache
def _pool() -> list[str]:
    """Return words as frequent as in text: the n-th of 200,000 is 1/n as frequent as the first."""
    frequencies = 1 / np.arange(1, 200_001)
    drawn = np.random.default_rng(2).choice(200_000, 1_000_003, p=frequencies / frequencies.sum())
    return [f"word{rank}" for rank in drawn.tolist()]


def words(number: int, count: int) -> str:
    start = number * _WORDS % (len(_pool()) - _WORDS)
    return " ".join(_pool()[start : start + count])


class RandomEmbedder:
    """Computes a random vector from the number at the start of a text, and adds up its time.

    The digits are written as marks, because a number in only one text must not become a word.
    """

    def __init__(self, dim: int) -> None:
        rng = np.random.default_rng(0)
        self._pools = [rng.normal(size=(size, dim)).astype(np.float32) for size in _POOL_SIZES]
        self.seconds = 0.0

    def __call__(self, texts: list[str]) -> Vectors:
        start = time.perf_counter()
        numbers = (int(text[: text.index(" ")].translate(_DIGITS)) for text in texts)
        keys = np.fromiter(numbers, np.int64, len(texts))
        first, second = (pool[keys % len(pool)] for pool in self._pools)
        vectors: Vectors = first + second
        self.seconds += time.perf_counter() - start
        return vectors


def _marks(number: int) -> str:
    return str(number).translate(_MARKS)


def document(number: int, version: int, queries: int) -> Document:
    text = words(number + 7 * version, _WORDS)
    return Document(f"document-{number}", f"{_marks(number * (queries + 1))} {text}")


def lists(documents: range, queries: int) -> Iterator[tuple[str, str, list[str]]]:
    for i in documents:
        numbers = range(i * (queries + 1) + 1, (i + 1) * (queries + 1))
        texts = [f"{_marks(number)} {words(3 * number, 6)}" for number in numbers]
        yield "here", f"document-{i}", texts


class Clock:
    """Times steps without the time of the embedder."""

    def __init__(self, embedder: RandomEmbedder) -> None:
        self._embedder = embedder
        self.times: dict[str, float] = {}

    def __call__(self, name: str, step: Callable[[], object]) -> None:
        embedding = self._embedder.seconds
        elapsed = seconds(step) - (self._embedder.seconds - embedding)
        self.times[name] = self.times.get(name, 0.0) + elapsed
        print(f"  {name}: {elapsed:.2f} s", flush=True)


def open_index(path: Path, dim: int) -> dict[str, float]:
    """Return the seconds of opening an index and of a plain search; run in a new process."""
    embedder = RandomEmbedder(dim)
    vector = np.ones((1, dim), np.float32)
    with Index.create(path.with_name("tiny"), embedder, name="synthetic", dim=dim) as tiny:
        tiny.add([document(0, 1, 0)])  # loads and compiles
        tiny.import_queries(lists(range(1), 2), "simple")
        tiny.search(vector, method="trad")
        tiny.explain(vector, "document-0")
    shutil.rmtree(path.with_name("tiny"))
    wall, cpu = time.perf_counter(), time.process_time()
    index = Index.open(path, embedder, name="synthetic", dim=dim)
    index.explain(vector, "document-0")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    times = [seconds(partial(index.search, vector, method="trad")) for _ in range(10)]
    return {"open": wall, "open_cpu": cpu, "plain_search": float(np.median(times[1:]))}


def run(
    path: Path, n: int, queries: int, dim: int, changed: int, stored: str, engines: list[str]
) -> dict[str, Any]:
    embedder = RandomEmbedder(dim)
    clock = Clock(embedder)
    index = Index.create(path, embedder, stored, name="synthetic", dim=dim)
    clock("build", lambda: index.add(document(i, 1, queries) for i in range(n)))
    clock("build", lambda: index.import_queries(lists(range(n), queries), "simple"))
    peak = peak_memory()
    disk = index.info()["sizes"]
    row: dict[str, Any] = run_script(__file__, "--open", path, "--dim", dim)
    print(f"  open: {row['open']:.2f} s, plain search {row['plain_search']:.3f} s", flush=True)
    vectors = np.random.default_rng(1).normal(size=(25, dim)).astype(np.float32)
    for name, count, exact in (("sharpened_search", 25, False), ("exact_search", 9, True)):
        searches = [partial(index.search, one[None], exact=exact) for one in vectors[:count]]
        clock(f"first {name}", searches[0])
        row[name] = median(searches)
        print(f"  {name}: {row[name]:.4f} s", flush=True)
    row |= words_searches(index, vectors, clock, "")
    if engines:
        texts = query_texts(len(vectors))
        row["engines"] = engine_searches(engines, n, queries, path.parent, texts)
        parts = row["sharpened_search"] + min(row["engines"].values())
        row["words_ratio"] = row["words_search"] / parts
    for turn in range(TURNS):  # word segments are merged during some of the changes
        new = range(n + turn * changed, n + (turn + 1) * changed)
        clock("add", partial(index.add, (document(i, 1, queries) for i in new)))
        clock("add", partial(index.import_queries, lists(new, queries), "simple"))
        clock("plain search after", partial(index.search, vectors[:1], method="trad"))
        updated = range(2 * turn, n, max(2 * TURNS, n // changed))[:changed]
        clock("update", partial(index.add, (document(i, 2, queries) for i in updated)))
        removed = [f"document-{i + 1}" for i in updated]
        clock("remove", partial(index.remove, removed))
        assert not set(index.search(vectors, k=100).ids.ravel()) & set(removed)
    for name in ("add", "update", "remove", "plain search after"):
        clock.times[name] /= TURNS
    clock("sharpened_search after", lambda: index.search(vectors[:1]))
    clock("exact_search after", lambda: index.search(vectors[:1], exact=True))
    row |= words_searches(index, vectors, clock, "_after")
    row["info"] = seconds(index.info)
    waste = index.info()["sizes"]["waste"]
    clock("compact", index.compact)
    clock("check", lambda: _no_problems(index.check()))
    index.close()
    return {
        "documents": n, **row, **clock.times,
        "build_per_document": clock.times["build"] / n, "build_peak_bytes": peak,
        "peak_bytes": peak_memory(), "disk": disk, "waste_before_compaction": waste,
    }  # fmt: skip


def query_texts(count: int) -> list[str]:
    return [words(31 * i + 5, 6) for i in range(count)]


def words_searches(index: Index, vectors: Vectors, clock: Clock, suffix: str) -> dict[str, float]:
    """Time searches with keyword matching, and compare their top 10 with the exact ones."""
    texts, numbers = query_texts(len(vectors)), range(len(vectors))

    def search(i: int, exact: bool = False) -> Any:
        one = vectors[i : i + 1]
        return index.search([texts[i]], method="sharp:words=1", vectors=one, exact=exact).ids[0]

    clock(f"first words_search{suffix}", partial(search, 0))
    latency = median([partial(search, i) for i in numbers])
    overlap = float(overlaps(map(search, numbers), [search(i, True) for i in numbers]).mean())
    print(f"  words_search{suffix}: {latency:.4f} s, overlap {overlap:.3f}", flush=True)
    return {f"words_search{suffix}": latency, f"words_overlap{suffix}": overlap}


def engine_searches(
    names: list[str], n: int, queries: int, folder: Path, texts: list[str]
) -> dict[str, float]:
    """Return the median seconds of a query in other keyword engines with the same words."""
    from words import ENGINES

    def terms() -> Iterator[tuple[int, list[str]]]:
        for i, (_, _, generated) in enumerate(lists(range(n), queries)):
            text = words(i + 7, _WORDS).split()
            yield i, text + [word for query in generated for word in query.split()[1:]]

    medians = {}
    for name in names:
        with tempfile.TemporaryDirectory(dir=folder) as path:
            engine = ENGINES[name](Path(path))
            engine.write(terms())
            engine.open()
            medians[name] = median([partial(engine.search, text.split(), 10) for text in texts])
        print(f"  {name}: {medians[name]:.4f} s", flush=True)
    return medians


def _no_problems(problems: list[str]) -> None:
    assert not problems, problems


def median(steps: Sequence[Any]) -> float:
    """Return the median seconds of steps, after each has run once."""
    return float(np.median([[seconds(step) for step in steps] for _ in range(2)][1]))


def growth(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare each size with the previous one: per document, and for a fixed number of changes."""
    rows = []
    for small, large in pairwise(results):
        factor = large["documents"] / small["documents"]
        per_document = {key: round(large[key] / small[key] / factor, 2) for key in PER_DOCUMENT}
        per_document["disk"] = round(large["disk"]["total"] / small["disk"]["total"] / factor, 2)
        fixed = {key: round(large[key] / small[key], 2) for key in ("add", "update", "remove")}
        rows.append(
            {
                "from": small["documents"], "to": large["documents"],
                "per_document": per_document, "for_a_fixed_change": fixed,
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--queries", type=int, default=8, help="queries per document")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--changed", type=int, default=1000, help="documents per change")
    parser.add_argument("--stored", choices=STORED, default=DEFAULT_STORED)
    parser.add_argument("--folder", type=Path, help="folder for temporary indexes")
    parser.add_argument("--engines", help="other keyword engines (pip install them)")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.open:
        print(json.dumps(open_index(args.open, args.dim)))
        return
    if args.one:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            path = Path(folder) / "index"
            engines = args.engines.split(",") if args.engines else []
            options = args.queries, args.dim, args.changed, args.stored, engines
            print(json.dumps(run(path, args.one, *options)))
        return
    results = []
    for size in map(int, args.sizes.split(",")):
        print(f"{size:,} documents, {args.queries} queries each, {args.dim} dimensions")
        command = [sys.executable, __file__, "--one", str(size)]
        for name in ("queries", "dim", "changed", "stored", "folder", "engines"):
            if (value := getattr(args, name)) is not None:
                command += [f"--{name}", str(value)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            last = ""
            for line in process.stdout:
                if last:
                    print(last, flush=True)
                last = line.rstrip()
        if process.returncode:
            sys.exit(process.returncode)
        results.append(json.loads(last))
    report = {"queries": args.queries, "dim": args.dim, "stored": args.stored, "results": results}
    print(json.dumps({**report, "growth": growth(results)}))


if __name__ == "__main__":
    main()
