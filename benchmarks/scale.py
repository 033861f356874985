"""An index of growing size: build, open, search, add, update, remove, compact; memory and disk.

    python benchmarks/scale.py [--sizes 10000,100000,1000000] [--queries 8] [--dim 256]
        [--folder DIR] [--changed 1000] [--engines tantivy,bm25s]

Vectors are synthetic and handed in by a function in place of an embedder; the time spent in that
function is taken off. Texts have 45 words, the n-th most frequent word 1/n as often as the first.
Everything else is timed as a user meets it: ``Index.add`` and ``Index.import_queries``, each a
commit on disk. ``open`` is a new process (after its imports) that opens the index and explains one
document, for which it must know where all vectors stand but need not read them; ``open_cpu`` is the
processor's share of that. Each size runs in a process of its own; the page cache is as warm as
memory allows, as it is for an index in use. A search is the median of 9 (exact) or 25 queries,
each asked once before; a plain search is one query asked often. Changes are the mean of three; what
comes after them (compact, waste) has seen all three. A words_search is ``sharp:words=1`` with six
words; its overlap is that of its best ten with the exact ones. With --engines, the same words are
also given to other word engines (see words.py), which are asked the same six words;
``words_ratio`` is a words_search over the sum of a sharpened_search, for
the same vectors, and a query of the fastest engine. Peak memory counts mapped pages of vector
files, which the system may drop. Per-document figures should grow at most 1.3-fold from one size to
ten times that; the time for changing a fixed number of documents should not grow with the index.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from strop import Document, Index
from strop.storage.vectors import DEFAULT_STORED, STORED
from strop.types import Vectors

_WORDS = 45  # of a text
_MARKS = str.maketrans("0123456789", "!$%()*/:;<")
_DIGITS = str.maketrans("!$%()*/:;<", "0123456789")
_POOL = 4093, 4099  # primes: their sums repeat after 16 million texts
TURNS = 3  # changes of each kind


@cache
def _pool() -> list[str]:
    """Return words as they come in text: the n-th most frequent of 200,000 is 1/n as frequent."""
    frequencies = 1 / np.arange(1, 200_001)
    drawn = np.random.default_rng(2).choice(200_000, 1_000_003, p=frequencies / frequencies.sum())
    return [f"word{rank}" for rank in drawn.tolist()]


def words(at: int, count: int) -> str:
    begin = at * _WORDS % (len(_pool()) - _WORDS)
    return " ".join(_pool()[begin : begin + count])


class Synthetic:
    """Turns a text that begins with a number into a vector, and knows how long that took.

    The digits are written as marks: a number that only one text has must not be a word.
    """

    def __init__(self, dim: int) -> None:
        rng = np.random.default_rng(0)
        self._pools = [rng.normal(size=(size, dim)).astype(np.float32) for size in _POOL]
        self.seconds = 0.0

    def __call__(self, texts: list[str]) -> Vectors:
        began = time.perf_counter()
        numbers = (int(text[: text.index(" ")].translate(_DIGITS)) for text in texts)
        keys = np.fromiter(numbers, np.int64, len(texts))
        first, second = (pool[keys % len(pool)] for pool in self._pools)
        made: Vectors = first + second
        self.seconds += time.perf_counter() - began
        return made


def _number(number: int) -> str:
    return str(number).translate(_MARKS)


def document(at: int, version: int, queries: int) -> Document:
    text = words(at + 7 * version, _WORDS)
    return Document(f"document-{at}", f"{_number(at * (queries + 1))} {text}")


def lists(numbers: range, queries: int) -> Iterator[tuple[str, str, list[str]]]:
    for at in numbers:
        numbers = range(at * (queries + 1) + 1, (at + 1) * (queries + 1))
        texts = [f"{_number(one)} {words(3 * one, 6)}" for one in numbers]
        yield "here", f"document-{at}", texts


class Clock:
    """Times steps without what the function in place of the embedder takes."""

    def __init__(self, embedder: Synthetic) -> None:
        self._embedder = embedder
        self.times: dict[str, float] = {}

    def __call__(self, name: str, step: Any) -> Any:
        before, began = self._embedder.seconds, time.perf_counter()
        result = step()
        took = time.perf_counter() - began - (self._embedder.seconds - before)
        self.times[name] = self.times.get(name, 0.0) + took
        print(f"  {name}: {took:.2f} s", flush=True)
        return result


def opened(path: Path, dim: int) -> dict[str, float]:
    """Open an index and search it plainly; for a process of its own."""
    embedder = Synthetic(dim)
    asked = np.ones((1, dim), np.float32)
    with Index.create(path.with_name("tiny"), embedder, name="synthetic", dim=dim) as tiny:
        tiny.add([document(0, 1, 0)])  # loads and compiles what any search needs
        tiny.import_queries(lists(range(1), 2), "simple")
        tiny.search(asked, method="trad")
        tiny.explain(asked, "document-0")
    shutil.rmtree(path.with_name("tiny"))
    began, busy = time.perf_counter(), time.process_time()
    index = Index.open(path, embedder, name="synthetic", dim=dim)
    index.explain(asked, "document-0")
    ready, busy = time.perf_counter() - began, time.process_time() - busy
    took = [_timed(partial(index.search, asked, method="trad")) for _ in range(10)]
    return {"open": ready, "open_cpu": busy, "plain_search": float(np.median(took[1:]))}


def run(
    path: Path, n: int, queries: int, dim: int, changed: int, stored: str, engines: list[str]
) -> dict[str, Any]:
    embedder = Synthetic(dim)
    clock = Clock(embedder)
    index = Index.create(path, embedder, stored, name="synthetic", dim=dim)
    clock("build", lambda: index.add(document(at, 1, queries) for at in range(n)))
    clock("build", lambda: index.import_queries(lists(range(n), queries), "simple"))
    peak = peak_memory()
    disk = index.info()["sizes"]
    command = [sys.executable, __file__, "--open", str(path), "--dim", str(dim)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    about = json.loads(done.stdout.splitlines()[-1])
    print(f"  open: {about['open']:.2f} s, plain search {about['plain_search']:.3f} s", flush=True)
    asked = np.random.default_rng(1).normal(size=(25, dim)).astype(np.float32)
    searched: dict[str, Any] = {}
    for name, times, exact in (("sharpened_search", 25, False), ("exact_search", 9, True)):
        clock(f"first {name}", lambda exact=exact: index.search(asked[:1], exact=exact))
        searched[name] = median(
            [partial(index.search, one[None], exact=exact) for one in asked[:times]]
        )
        print(f"  {name}: {searched[name]:.4f} s", flush=True)
    searched |= words_searches(index, asked, clock, "")
    if engines:
        texts = asked_texts(len(asked))
        searched["engines"] = engine_searches(engines, n, queries, path.parent, texts)
        parts = searched["sharpened_search"] + min(searched["engines"].values())
        searched["words_ratio"] = searched["words_search"] / parts
    for turn in range(TURNS):  # words are put together now and then, which falls on some changes
        more = range(n + turn * changed, n + (turn + 1) * changed)
        clock("add", lambda more=more: index.add(document(at, 1, queries) for at in more))
        clock("add", lambda more=more: index.import_queries(lists(more, queries), "simple"))
        clock("plain search after", lambda: index.search(asked[:1], method="trad"))
        apart = range(2 * turn, n, max(2 * TURNS, n // changed))[:changed]
        clock("update", lambda of=apart: index.add(document(at, 2, queries) for at in of))
        gone = [f"document-{at + 1}" for at in apart]
        clock("remove", lambda gone=gone: index.remove(gone))
        assert not set(index.search(asked, k=100).ids.ravel()) & set(gone)
    for name in ("add", "update", "remove", "plain search after"):
        clock.times[name] /= TURNS
    clock("sharpened_search after", lambda: index.search(asked[:1]))
    clock("exact_search after", lambda: index.search(asked[:1], exact=True))
    searched |= words_searches(index, asked, clock, "_after")
    about["info"] = _timed(index.info)
    waste = index.info()["sizes"]["waste"]
    clock("compact", index.compact)
    clock("check", lambda: _no_problems(index.check()))
    index.close()
    return {
        "documents": n, **about, **searched, **clock.times,
        "build_per_document": clock.times["build"] / n, "build_peak_bytes": peak,
        "peak_bytes": peak_memory(), "disk": disk, "waste_before_compaction": waste,
    }  # fmt: skip


def asked_texts(count: int) -> list[str]:
    return [words(31 * at + 5, 6) for at in range(count)]


def words_searches(index: Index, asked: Vectors, clock: Clock, when: str) -> dict[str, float]:
    """Time searches whose score counts words, and compare their best ten with the exact ones."""
    texts = asked_texts(len(asked))

    def search(at: int, exact: bool = False) -> list[str]:
        hits = index.search(
            [texts[at]], method="sharp:words=1", vectors=asked[at : at + 1], exact=exact
        )
        return list(hits.ids[0])

    clock(f"first words_search{when}", partial(search, 0))
    took = median([partial(search, at) for at in range(len(asked))])
    common = [len({*search(at)} & {*search(at, True)}) / 10 for at in range(len(asked))]
    print(f"  words_search{when}: {took:.4f} s, overlap {np.mean(common):.3f}", flush=True)
    return {
        f"words_search{when}": took,
        f"words_overlap{when}": float(np.mean(common)),
    }


def engine_searches(
    names: list[str], n: int, queries: int, folder: Path, texts: list[str]
) -> dict[str, float]:
    """Return the median seconds of a query in other word engines that have the same words."""
    from words import ENGINES

    def terms() -> Iterator[tuple[int, list[str]]]:
        for at, (_, _, generated) in enumerate(lists(range(n), queries)):
            own = words(at + 7, _WORDS).split()
            yield at, own + [word for text in generated for word in text.split()[1:]]

    medians = {}
    for name in names:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            engine = ENGINES[name](Path(place))
            engine.write(terms())
            engine.open()
            medians[name] = median([partial(engine.search, text.split(), 10) for text in texts])
        print(f"  {name}: {medians[name]:.4f} s", flush=True)
    return medians


def _no_problems(problems: list[str]) -> None:
    assert not problems, problems


def median(steps: Sequence[Any]) -> float:
    """Return the median seconds of steps that were all done once before."""
    return float(np.median([[_timed(step) for step in steps] for _ in range(2)][1]))


def _timed(step: Any) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def growth(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare each size with the one before: per document, and for a fixed number of changes."""
    found = []
    for small, large in pairwise(results):
        times = large["documents"] / small["documents"]
        per_document = {
            key: round(large[key] / small[key] / times, 2)
            for key in (
                "build",
                "plain_search",
                "sharpened_search",
                "words_search",
                "exact_search",
                "build_peak_bytes",
                "compact",
            )
        }
        per_document["disk"] = round(large["disk"]["total"] / small["disk"]["total"] / times, 2)
        fixed = {key: round(large[key] / small[key], 2) for key in ("add", "update", "remove")}
        found.append(
            {
                "from": small["documents"], "to": large["documents"],
                "per_document": per_document, "for_a_fixed_change": fixed,
            }
        )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--changed", type=int, default=1000)
    parser.add_argument("--stored", choices=STORED, default=DEFAULT_STORED)
    parser.add_argument("--folder", type=Path, help="where indexes are made and deleted again")
    parser.add_argument("--engines", help="other word engines to compare with (pip install them)")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.open:
        print(json.dumps(opened(given.open, given.dim)))
        return
    if given.one:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            path = Path(folder) / "index"
            engines = given.engines.split(",") if given.engines else []
            how = given.queries, given.dim, given.changed, given.stored, engines
            print(json.dumps(run(path, given.one, *how)))
        return
    results = []
    for size in map(int, given.sizes.split(",")):
        print(f"{size:,} documents, {given.queries} queries each, {given.dim} dimensions")
        command = [sys.executable, __file__, "--one", str(size)]
        for name in ("queries", "dim", "changed", "stored", "folder", "engines"):
            if (value := getattr(given, name)) is not None:
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
    told = {"queries": given.queries, "dim": given.dim, "stored": given.stored, "results": results}
    print(json.dumps({**told, "growth": growth(results)}))


if __name__ == "__main__":
    main()
