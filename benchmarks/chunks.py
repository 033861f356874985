"""Documents split into chunks compared with whole documents: quality, size and time.

    python benchmarks/chunks.py [--corpus time|man] [--embedder wordllama] [--chunk none,200:40]

``time`` is a collection of 423 news articles with 83 labelled queries (folder STROP_DATA). ``man``
are the longest manual pages of this machine, rendered by man, without labels: one sentence is
removed from the second half of each page and becomes a query for that page. Reported are nDCG@10
and, for ``man``, how often the best chunk is near the place of the removed sentence. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from common import data_folder

from strop import Document, Index, evaluate
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.types import Dataset

METHODS = ("trad", "sharp", "sharp:words=1", "bm25")
PAGES = Path("/usr/share/man")


def articles() -> tuple[list[Document], Dataset, dict[str, int]]:
    """Return the collection ``time``."""
    folder = data_folder() / "time"
    return list(read_corpus(folder)), read_dataset(folder), {}


def manual_pages(count: int) -> tuple[list[Document], Dataset, dict[str, int]]:
    """Return the longest pages, a removed sentence of each as its query, and where it was."""
    files = sorted(PAGES.glob("man[1-8]/*.gz"), key=lambda path: -path.stat().st_size)
    documents: list[Document] = []
    queries: dict[str, str] = {}
    places: dict[str, int] = {}
    rng, seen = random.Random(0), set[str]()
    for file in files:
        if len(documents) == count:
            break
        name, command = file.name.removesuffix(".gz"), ["man", "-l", str(file)]
        page = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "MANWIDTH": "100"}
        )
        text = re.sub(r".\x08", "", page.stdout)
        sentences = [
            match
            for match in re.finditer(r"(?<=[.] )[A-Z][^.]{60,240}[.](?=\s)", text)
            if match.start() > len(text) // 2 and len(match[0].split()) > 9
        ]
        if not sentences or text[:5000] in seen:
            continue
        seen.add(text[:5000])
        removed = rng.choice(sentences)
        queries[name], places[name] = " ".join(removed[0].split()), removed.start()
        documents.append(Document(name, text[: removed.start()] + text[removed.end() :]))
    qrels = {name: {name: 1} for name in queries}
    return documents, Dataset("man", queries, qrels), places


def measure(
    path: Path, documents: list[Document], data: Dataset, places: dict[str, int],
    embedder: str, chunking: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Return size, CPU seconds and quality of an index with this chunking."""
    start = time.process_time()
    with Index.create(path, embedder, chunking=chunking) as index:
        index.sharpen()
        index.add(documents)
        build_seconds = time.process_time() - start
        report = evaluate(index, data, METHODS, measures=["nDCG@10"])
        info = index.info()
        result = {
            "rows": info["chunks"] or info["documents"],
            "megabytes": round(info["sizes"]["total"] / 1e6, 1),
            "seconds": round(build_seconds, 1),
            **{name: round(100 * row["nDCG@10"], 2) for name, row in report.results.items()},
        }
        if places:
            near = [
                hit
                for name, hits in zip(
                    data.queries, index.search(list(data.queries.values()), 10), strict=True
                )
                for hit in hits
                if hit.id == name and hit.passage and hit.passage.start is not None
                and abs(hit.passage.start - places[name]) < 1500
            ]  # fmt: skip
            result["passage beside the place"] = round(100 * len(near) / len(places), 1)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", choices=("time", "man"), default="time")
    parser.add_argument("--pages", type=int, default=300, help="number of manual pages")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--chunk", default="none,200:40,400:80,800:160", help="chunkings to test")
    args = parser.parse_args()
    documents, data, places = articles() if args.corpus == "time" else manual_pages(args.pages)
    size = sum(len(document.text) for document in documents) // max(1, len(documents))
    print(f"{len(documents):,} documents of {size:,} characters, {len(data.queries)} queries")
    report: dict[str, Any] = {"corpus": args.corpus, "embedder": args.embedder}
    report |= {"documents": len(documents), "characters": size}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.chunk.split(","):
            chunking = None if name == "none" else name
            path = Path(folder) / name.replace(":", "-")
            report[name] = measure(path, documents, data, places, args.embedder, chunking)
            print(f"{name:>9}  {report[name]}", flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
