"""What sharpening costs beside plain search, BM25, rank fusion and HyDE, on one collection.

    python benchmarks/costs.py DATASET [--embedder wordllama] [--lm gpt-5-mini] [--queries 50]

DATASET is a BEIR folder. Two indexes are built: without query sets, and sharpened by sentences.
Searches are of one query and the best 10 documents, without texts; the methods take turns, the
median of a method's times counts. Times are of the processor, with one thread, so that other work
on the machine matters little. Money is an estimate by list prices, before any call: queries written
once for the corpus, and what HyDE may take at most for 1,000 searches with its usual eight passages
of 512 tokens. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from strop import Index
from strop.generate import GenerationSettings, PromptSettings
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.lm.prices import price

METHODS = ("trad", "bm25", "hybrid", "sharp")
PASSAGES, PASSAGE_TOKENS, PROMPT_TOKENS = 8, 512, 60


def build(path: Path, data: str, embedder: str, sentences: bool) -> float:
    """Build an index; return the seconds that it took."""
    began = time.process_time()
    with Index.create(path, embedder) as index:
        if sentences:
            index.sharpen()
        index.add(read_corpus(data))
    return time.process_time() - began


def latency(index: Index, queries: list[str]) -> dict[str, float]:
    """Return each method's median milliseconds of processor time for one query."""
    spent: dict[str, list[float]] = {method: [] for method in METHODS}
    for turn in range(4):
        for query in queries:
            for method in METHODS:
                began = time.process_time()
                index.search(query, 10, method, fields=("id", "score"))
                if turn:  # the first compiles, and reads what is read once
                    spent[method].append(time.process_time() - began)
    return {method: round(1e3 * median(times), 2) for method, times in spent.items()}


def money(index: Index, model: str) -> dict[str, Any]:
    """Return what written queries would cost for this corpus, and what HyDE may cost."""
    os.environ.setdefault("OPENAI_API_KEY", "none")  # nothing is sent
    costs: dict[str, Any] = {}
    for style in ("simple", "contrastive"):
        settings = GenerationSettings(PromptSettings(style=style))
        estimate = index.generation(f"openai:{model}", settings).estimate()
        costs[f"{style}_usd"] = estimate.cost and round(estimate.cost, 2)
        if estimate.packed is not None and estimate.packed.cost is not None:
            costs[f"{style}_packed_usd"] = round(estimate.packed.cost, 2)
    if listed := price(model):
        once = PROMPT_TOKENS * listed.input + PASSAGE_TOKENS * listed.output
        costs["hyde_usd_1000_searches"] = round(1000 * PASSAGES * once / 1e6, 2)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--lm", default="gpt-5-mini")
    parser.add_argument("--queries", type=int, default=50)
    given = parser.parse_args()
    os.environ["STROP_THREADS"] = "1"
    row: dict[str, Any] = {"dataset": Path(given.dataset).name, "embedder": given.embedder}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plain", "sharp"):
            path = Path(folder) / name
            seconds = build(path, given.dataset, given.embedder, name == "sharp")
            row[f"{name}_seconds"] = round(seconds, 1)
            with Index.open(path) as index:
                row |= {"documents": len(index)}
                row[f"{name}_bytes"] = index.info()["sizes"]["total"]
        with Index.open(Path(folder) / "sharp") as index:
            queries = list(read_dataset(given.dataset).queries.values())[: given.queries]
            row["ms"] = latency(index, queries)
            row |= {"lm": given.lm, **money(index, given.lm)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
