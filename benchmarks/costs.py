"""Costs of sharpening compared with plain search, BM25, rank fusion and HyDE, on one collection.

    python benchmarks/costs.py DATASET [--embedder wordllama] [--lm gpt-5-mini] [--queries 50]

DATASET is a BEIR folder. Two indexes are built: one without query sets, one sharpened by sentences.
A search has one query and returns ids and scores of the top 10. The methods alternate, and the
median of each is reported. Times are CPU times with one thread, which other processes affect
little. Prices are estimated from list prices without any call: generating queries once for the
corpus, and the maximum for 1,000 searches with HyDE (eight passages of 512 tokens, as is usual).
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import seconds, take_turns

from strop import Index
from strop.generate import GenerationSettings, PromptSettings
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.lm.prices import price

METHODS = ("trad", "bm25", "hybrid", "sharp")
PASSAGES, PASSAGE_TOKENS, PROMPT_TOKENS = 8, 512, 60


def build(path: Path, dataset: str, embedder: str, sentences: bool) -> None:
    with Index.create(path, embedder) as index:
        if sentences:
            index.sharpen()
        index.add(read_corpus(dataset))


def latency(index: Index, queries: list[str]) -> dict[str, float]:
    """Return the median CPU milliseconds of one query, for each method."""

    def search(method: str, i: int) -> None:
        index.search(queries[i], 10, method, fields=("id", "score"))

    searches = {method: partial(search, method) for method in METHODS}
    times = take_turns(searches, len(queries), 4, time.process_time)
    # The first turn compiles, and reads what is read once.
    return {name: round(1e3 * float(np.median(rows[1:])), 2) for name, rows in times.items()}


def prices(index: Index, model: str) -> dict[str, Any]:
    """Return the USD of generated queries for this corpus, and the maximum for HyDE."""
    os.environ.setdefault("OPENAI_API_KEY", "none")  # nothing is sent
    costs: dict[str, Any] = {}
    for style in ("simple", "contrastive"):
        settings = GenerationSettings(PromptSettings(style=style))
        estimate = index.generation(f"openai:{model}", settings).estimate()
        costs[f"{style}_usd"] = estimate.cost and round(estimate.cost, 2)
        if estimate.packed is not None and estimate.packed.cost is not None:
            costs[f"{style}_packed_usd"] = round(estimate.packed.cost, 2)
    if listed := price(model):
        passage = PROMPT_TOKENS * listed.input + PASSAGE_TOKENS * listed.output
        costs["hyde_usd_1000_searches"] = round(1000 * PASSAGES * passage / 1e6, 2)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--lm", default="gpt-5-mini", help="OpenAI model whose prices are used")
    parser.add_argument("--queries", type=int, default=50, help="queries to time")
    args = parser.parse_args()
    os.environ["STROP_THREADS"] = "1"
    row: dict[str, Any] = {"dataset": Path(args.dataset).name, "embedder": args.embedder}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plain", "sharp"):
            path = Path(folder) / name
            step = partial(build, path, args.dataset, args.embedder, name == "sharp")
            row[f"{name}_seconds"] = round(seconds(step, time.process_time), 1)
            with Index.open(path) as index:
                row |= {"documents": len(index)}
                row[f"{name}_bytes"] = index.info()["sizes"]["total"]
        with Index.open(Path(folder) / "sharp") as index:
            queries = list(read_dataset(args.dataset).queries.values())[: args.queries]
            row["ms"] = latency(index, queries)
            row |= {"lm": args.lm, **prices(index, args.lm)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
