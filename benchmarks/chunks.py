"""Documents cut into chunks against whole ones: quality, size and time.

    python benchmarks/chunks.py [--corpus time|man] [--embedder wordllama] [--chunk none,200:40]

``time`` are 423 articles of a news magazine with 83 labelled queries (``STROP_DATA``). ``man`` are
the longest manual pages of this machine, rendered by man. They have no labels: from the second half
of each page one sentence is taken out, and the page must be found with it (nDCG@10 of that one
page, and whether the best chunk stands where the sentence stood). The last line is JSON.
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

from strop import Document, Index, evaluate
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.types import Dataset

METHODS = ("trad", "sharp", "sharp:words=1", "bm25")
PAGES = Path("/usr/share/man")


def articles() -> tuple[list[Document], Dataset, dict[str, int]]:
    """Return the collection ``time``."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("STROP_DATA") or root.parent / "shared" / "data") / "time"
    return list(read_corpus(folder)), read_dataset(folder), {}


def manual_pages(count: int) -> tuple[list[Document], Dataset, dict[str, int]]:
    """Return the longest pages, a held-out sentence of each as a query, and where it stood."""
    files = sorted(PAGES.glob("man[1-8]/*.gz"), key=lambda path: -path.stat().st_size)
    documents: list[Document] = []
    queries: dict[str, str] = {}
    places: dict[str, int] = {}
    draw, seen = random.Random(0), set[str]()
    for file in files:
        if len(documents) == count:
            break
        name, command = file.name.removesuffix(".gz"), ["man", "-l", str(file)]
        shown = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "MANWIDTH": "100"}
        )
        text = re.sub(r".\x08", "", shown.stdout)
        sentences = [
            match
            for match in re.finditer(r"(?<=[.] )[A-Z][^.]{60,240}[.](?=\s)", text)
            if match.start() > len(text) // 2 and len(match[0].split()) > 9
        ]
        if not sentences or text[:5000] in seen:
            continue
        seen.add(text[:5000])
        taken = draw.choice(sentences)
        queries[name], places[name] = " ".join(taken[0].split()), taken.start()
        documents.append(Document(name, text[: taken.start()] + text[taken.end() :]))
    qrels = {name: {name: 1} for name in queries}
    return documents, Dataset("man", queries, qrels), places


def measure(
    path: Path, documents: list[Document], data: Dataset, places: dict[str, int],
    embedder: str, chunking: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Return what an index with this chunking gives."""
    began = time.process_time()
    with Index.create(path, embedder, chunking=chunking) as index:
        index.sharpen()
        index.add(documents)
        spent = time.process_time() - began
        report = evaluate(index, data, METHODS, measures=["nDCG@10"])
        about = index.info()
        result = {
            "rows": about["chunks"] or about["documents"],
            "megabytes": round(about["sizes"]["total"] / 1e6, 1),
            "seconds": round(spent, 1),
            **{name: round(100 * of["nDCG@10"], 2) for name, of in report.results.items()},
        }
        if places:
            hits = index.search(list(data.queries.values()), 10)
            found = [
                hit.passage.start
                for name, row in zip(data.queries, hits, strict=True)
                for hit in row
                if hit.id == name and hit.passage and hit.passage.start is not None
                and abs(hit.passage.start - places[name]) < 1500
            ]  # fmt: skip
            result["passage beside the place"] = round(100 * len(found) / len(places), 1)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", choices=("time", "man"), default="time")
    parser.add_argument("--pages", type=int, default=300, help="manual pages")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--chunk", default="none,200:40,400:80,800:160")
    chosen = parser.parse_args()
    made = articles() if chosen.corpus == "time" else manual_pages(chosen.pages)
    size = sum(len(document.text) for document in made[0]) // max(1, len(made[0]))
    print(f"{len(made[0]):,} documents of {size:,} characters, {len(made[1].queries)} queries")
    results: dict[str, Any] = {"corpus": chosen.corpus, "embedder": chosen.embedder}
    results |= {"documents": len(made[0]), "characters": size}
    with tempfile.TemporaryDirectory() as folder:
        for chunking in chosen.chunk.split(","):
            sizes = None if chunking == "none" else chunking
            path = Path(folder) / chunking.replace(":", "-")
            results[chunking] = measure(path, *made, chosen.embedder, sizes)
            print(f"{chunking:>9}  {results[chunking]}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
