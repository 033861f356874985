"""Checks the arithmetic of ``strop cluster plan`` against a run and a simulation.

    python benchmarks/plan.py [--data FOLDER] [--documents 6000] [--machines 64] [--cores 16]
    python benchmarks/plan.py --shares 6250,12500,25000,50000,100000

FOLDER (STROP_DATA) holds collections in BEIR layout. Sentences of SciFact, NFCorpus and LISA are
documents, as in benchmarks/recall.py. First a plan for them, by rates measured on the first 2,000,
is compared with what the stages took in one process with one thread: processor seconds and bytes.
Then a cluster is simulated: tasks of unequal length, of which some are killed half way
and done again, against the plan; and a query that asks every machine of a cluster, of which
each answers in a time drawn from searches that were measured here. At last the plan for a million,
a hundred million and a thousand million documents. The last line is JSON.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from recall import data_folder, documents

from strop import Index
from strop.distributed.importing import import_shards
from strop.distributed.plan import Rates, Stage, measure, probed_share_at, stages_of
from strop.distributed.run import Cluster, Settings, cells_for
from strop.distributed.runners import LocalRunner
from strop.distributed.shards import Manifest
from strop.embed import load
from strop.lm import Price
from strop.references.neighbors import nearest_centres, probed_cells, rough_centres

EMBEDDER = {"name": "wordllama", "options": {}}
PRICE = Price(0.4, 1.6)
"""USD per million tokens: a small model of 2025, to have a round figure."""
SIZES = (1_000_000, 100_000_000, 1_000_000_000)


def write_corpus(path: Path, data: Path, count: int) -> Path:
    rows = (one for name in ("scifact", "nfcorpus", "lisa") for one in documents(data, name, {}, 1))
    with path.open("w", encoding="utf-8") as file:
        for row in islice(rows, count):
            file.write(json.dumps(row) + "\n")
    return path


def run_stages(corpus: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Run the stages in this process; return processor seconds, bytes and counts of each."""
    settings = Settings(str(corpus), EMBEDDER, shard_documents=1000, method="cells")
    cluster = Cluster(folder, settings, LocalRunner(1))
    cluster.run("references")
    cluster.run("queries")
    taken: dict[str, dict[str, float]] = {}
    for stage in (*("documents", "vectors", "cells", "buckets", "probes", "references"), "queries"):
        lines = Manifest(
            folder / stage / ("sentences" if stage == "queries" else "")
        ).lines.values()
        taken[stage] = {
            "cpu": sum(line["cpu"] for line in lines),
            "bytes": sum(file["bytes"] for line in lines for file in line["files"]),
            "compared": sum(line["counts"].get("compared", 0) for line in lines),
        }
    taken["probes"] |= Manifest(folder / "probes").lines["all"]["counts"]
    return taken


def compare(plan: list[Stage], taken: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return planned over taken, for each stage: core seconds and bytes."""
    ratios = {}
    for one in plan:
        if one.name in taken and one.bytes:
            real = taken[one.name]
            ratios[one.name] = {
                "core_seconds": round(one.core_seconds / real["cpu"], 2),
                "bytes": round(one.bytes / real["bytes"], 2),
            }
            print(one.name, ratios[one.name], flush=True)
    return ratios


def simulate(
    stage: Stage, slots: int, spread: float = 0.3, killed: float = 0.01, runs: int = 20
) -> float:
    """Return the simulated time of a stage over the planned one."""
    generator, spans = np.random.default_rng(0), []
    mean = stage.core_seconds / stage.tasks
    for _ in range(runs):
        lengths = mean * generator.lognormal(-(spread**2) / 2, spread, stage.tasks)
        again = generator.random(stage.tasks) < killed
        free = [0.0] * slots
        for length in np.concatenate([lengths, 0.5 * lengths[again]]):
            heapq.heapreplace(free, free[0] + float(length))
        spans.append(max(free))
    return float(np.mean(spans) / stage.seconds)


def fan_out(index: Path, machines: list[int]) -> dict[str, float]:
    """Return the median milliseconds of a query that waits for the slowest of several machines."""
    with Index.open(index) as opened:
        texts = [opened.get(id_).text for id_ in opened.ids()[:300]]
        vectors = opened.embed_queries(texts)
        spent = []
        for row in vectors:
            began = time.process_time()
            opened.search(row[None], k=10, fields=("id", "score"))
            spent.append(1e3 * (time.process_time() - began))
    draws = np.random.default_rng(0).choice(spent[20:], (2000, max(machines)))
    return {str(n): round(float(np.median(draws[:, :n].max(axis=1))), 2) for n in machines}


def shares(data: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """Return the share of cells to probe for a recall of the 100 nearest, by size and fineness."""
    rows = (one for name in ("scifact", "nfcorpus", "lisa") for one in documents(data, name, {}, 1))
    texts = [row["text"] for row in islice(rows, max(sizes)) if row["text"].strip()]
    vectors = load("wordllama").embed(texts, "document")
    vectors = vectors[np.random.default_rng(0).permutation(len(vectors))]
    found = []
    for size in sizes:
        points, sample = vectors[:size], vectors[:256]
        nearest = np.argsort(-(sample @ points.T), axis=1)[:, 1:101]
        for times in (1, 4):
            cells = times * math.isqrt(len(points))
            centres = rough_centres(points, cells)
            place = np.argsort(probed_cells(sample, centres, cells), axis=1)
            homes = nearest_centres(points, centres)[nearest]
            places = np.sort(np.take_along_axis(place, homes, 1).ravel())
            row: dict[str, Any] = {"documents": len(points), "cells": cells}
            for recall in (0.9, 0.95, 0.96, 0.97, 0.99):
                at = math.ceil(recall * len(places)) - 1
                row[str(recall)] = round((int(places[at]) + 1) / cells, 3)
            found.append(row)
            print(row, flush=True)
    return found


def large(rates: Rates, machines: int, cores: int) -> list[dict[str, Any]]:
    rows = []
    for size in SIZES:
        stages = stages_of(
            rates, size, machines=machines, cores=cores, shard_documents=100_000, price=PRICE
        )
        probed = probed_share_at(size) * size
        rows.append(
            {
                "documents": size,
                "hours": {one.name: round(one.seconds / 3600, 3) for one in stages},
                "core_hours": {one.name: round(one.core_seconds / 3600, 1) for one in stages},
                "gigabytes": {one.name: round(one.bytes / 1e9, 1) for one in stages},
                "usd": round(sum(one.cost or 0 for one in stages)),
                "flop_all_pairs": 2.0 * rates.dim * size**2,
                "flop_cells": 2.0 * rates.dim * size * (cells_for(size) + probed),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--documents", type=int, default=6000)
    parser.add_argument("--machines", type=int, default=64)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--shares", help="only the share of cells to probe: 6250,12500,…")
    given = parser.parse_args()
    if given.shares:
        print(json.dumps(shares(given.data, [int(size) for size in given.shares.split(",")])))
        return
    os.environ["STROP_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        corpus = write_corpus(Path(scratch) / "corpus.jsonl", given.data, given.documents)
        rates, found = measure(corpus, EMBEDDER, {})
        few = write_corpus(Path(scratch) / "few.jsonl", given.data, 300)
        run_stages(few, Path(scratch) / "few")  # loads and compiles what is needed
        taken = run_stages(corpus, Path(scratch) / "shards")
        about = taken["probes"]
        plan = stages_of(
            rates, given.documents, shard_documents=1000,
            probed_share=about["probes"] / about["cells"], by_cells=True,
        )  # fmt: skip
        report: dict[str, Any] = {
            "documents": given.documents,
            "documents_estimated": found,
            "rates": {name: round(value, 1) for name, value in vars(rates).items()},
            "probes": about,
            "compared_share": taken["references"]["compared"] / given.documents**2,
            "planned_over_taken": compare(plan, taken),
        }
        import_shards(Path(scratch) / "shards", Path(scratch) / "index")
        report["fan_out_ms"] = fan_out(Path(scratch) / "index", [1, 10, 100])
    slots = given.machines * given.cores
    stages = stages_of(
        rates, SIZES[1], machines=given.machines, cores=given.cores, shard_documents=20_000
    )
    report["simulated_over_planned"] = {
        one.name: round(simulate(one, slots), 3) for one in stages if one.tasks > 1
    }
    print(report["simulated_over_planned"])
    report["large"] = large(rates, given.machines, given.cores)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
