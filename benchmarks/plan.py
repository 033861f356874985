"""The arithmetic of ``strop cluster plan`` compared with a run and with a simulation.

    python benchmarks/plan.py [--data FOLDER] [--documents 6000] [--machines 64] [--cores 16]
    python benchmarks/plan.py --shares 6250,12500,25000,50000,100000

FOLDER (STROP_DATA) contains collections in BEIR layout. The documents are sentences of SciFact,
NFCorpus and LISA, as in benchmarks/recall.py. First they are planned with rates measured on the
first 2,000, and the plan is compared with a run of the stages in one process with one thread: CPU
seconds and bytes. Then a cluster is simulated, with tasks of unequal length; one in a hundred is
killed half way and run again. ``fan_out_ms`` is the latency of a query sent to all machines of a
cluster; the latency of each machine is drawn from searches measured here. ``large`` is the plan for
a million, a hundred million and a thousand million documents. ``--shares`` reports instead the
share of cells to probe for a recall of the 100 nearest neighbours. The last line is JSON.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from common import data_folder, take_turns
from recall import documents

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
"""USD per million tokens: rounded prices of a small model of 2025."""
SIZES = (1_000_000, 100_000_000, 1_000_000_000)
RECALLS = (0.9, 0.95, 0.96, 0.97, 0.99)


def sentences(data: Path, count: int) -> Iterator[dict[str, Any]]:
    """Yield the first sentences of three collections as documents."""
    names = ("scifact", "nfcorpus", "lisa")
    return islice((row for name in names for row in documents(data, name, {}, 1)), count)


def write_corpus(path: Path, data: Path, count: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in sentences(data, count))
    return path


def run_stages(corpus: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Run the stages in this process; return CPU seconds, bytes and counts of each."""
    settings = Settings(str(corpus), EMBEDDER, shard_documents=1000, method="cells")
    cluster = Cluster(folder, settings, LocalRunner(1))
    cluster.run("references")
    cluster.run("queries")
    measured: dict[str, dict[str, float]] = {}
    for stage in ("documents", "vectors", "cells", "buckets", "probes", "references", "queries"):
        place = folder / stage / ("sentences" if stage == "queries" else "")
        lines = Manifest(place).lines.values()
        measured[stage] = {
            "cpu": sum(line["cpu"] for line in lines),
            "bytes": sum(file["bytes"] for line in lines for file in line["files"]),
            "compared": sum(line["counts"].get("compared", 0) for line in lines),
        }
    measured["probes"] |= Manifest(folder / "probes").lines["all"]["counts"]
    return measured


def compare(plan: list[Stage], measured: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return planned divided by measured core seconds and bytes, for each stage."""
    ratios = {}
    for stage in plan:
        if stage.name in measured and stage.bytes:
            row = measured[stage.name]
            ratios[stage.name] = {
                "core_seconds": round(stage.core_seconds / row["cpu"], 2),
                "bytes": round(stage.bytes / row["bytes"], 2),
            }
            print(stage.name, ratios[stage.name], flush=True)
    return ratios


def simulate(
    stage: Stage, slots: int, spread: float = 0.3, killed: float = 0.01, runs: int = 20
) -> float:
    """Return the simulated time of a stage divided by the planned one."""
    rng, ends = np.random.default_rng(0), []
    mean = stage.core_seconds / stage.tasks
    for _ in range(runs):
        lengths = mean * rng.lognormal(-(spread**2) / 2, spread, stage.tasks)
        repeated = rng.random(stage.tasks) < killed
        free = [0.0] * slots
        for length in np.concatenate([lengths, 0.5 * lengths[repeated]]):
            heapq.heapreplace(free, free[0] + float(length))
        ends.append(max(free))
    return float(np.mean(ends) / stage.seconds)


def fan_out(path: Path, machines: list[int]) -> dict[str, float]:
    """Return the median milliseconds of a query that waits for the slowest of several machines."""
    with Index.open(path) as index:
        vectors = index.embed_queries([index.get(id_).text for id_ in index.ids()[:300]])

        def search(i: int) -> None:
            index.search(vectors[i : i + 1], k=10, fields=("id", "score"))

        times = 1e3 * take_turns({"": search}, len(vectors), 1, time.process_time)[""][0]
    draws = np.random.default_rng(0).choice(times[20:], (2000, max(machines)))
    return {str(n): round(float(np.median(draws[:, :n].max(axis=1))), 2) for n in machines}


def shares(data: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """Return the share of cells to probe for a recall of the 100 nearest, by corpus and cells."""
    texts = [row["text"] for row in sentences(data, max(sizes)) if row["text"].strip()]
    vectors = load("wordllama").embed(texts, "document")
    vectors = vectors[np.random.default_rng(0).permutation(len(vectors))]
    rows = []
    for size in sizes:
        points, sample = vectors[:size], vectors[:256]
        nearest = np.argsort(-(sample @ points.T), axis=1)[:, 1:101]
        for factor in (1, 4):
            cells = factor * math.isqrt(len(points))
            centres = rough_centres(points, cells)
            ranks = np.argsort(probed_cells(sample, centres, cells), axis=1)
            own_cells = nearest_centres(points, centres)[nearest]
            needed = np.sort(np.take_along_axis(ranks, own_cells, 1).ravel())
            row: dict[str, Any] = {"documents": len(points), "cells": cells}
            for recall in RECALLS:
                rank = int(needed[math.ceil(recall * len(needed)) - 1])
                row[str(recall)] = round((rank + 1) / cells, 3)
            rows.append(row)
            print(row, flush=True)
    return rows


def large_plans(rates: Rates, machines: int, cores: int) -> list[dict[str, Any]]:
    rows = []
    for size in SIZES:
        stages = stages_of(
            rates, size, machines=machines, cores=cores, shard_documents=100_000, price=PRICE
        )
        probed = probed_share_at(size) * size
        rows.append(
            {
                "documents": size,
                "hours": {stage.name: round(stage.seconds / 3600, 3) for stage in stages},
                "core_hours": {stage.name: round(stage.core_seconds / 3600, 1) for stage in stages},
                "gigabytes": {stage.name: round(stage.bytes / 1e9, 1) for stage in stages},
                "usd": round(sum(stage.cost or 0 for stage in stages)),
                "flop_all_pairs": 2.0 * rates.dim * size**2,
                "flop_cells": 2.0 * rates.dim * size * (cells_for(size) + probed),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--documents", type=int, default=6000, help="sentences to run")
    parser.add_argument("--machines", type=int, default=64, help="of the simulated cluster")
    parser.add_argument("--cores", type=int, default=16, help="per machine")
    parser.add_argument("--shares", help="corpus sizes; reports only the share of cells to probe")
    args = parser.parse_args()
    if args.shares:
        print(json.dumps(shares(args.data, [int(size) for size in args.shares.split(",")])))
        return
    os.environ["STROP_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        corpus = write_corpus(folder / "corpus.jsonl", args.data, args.documents)
        rates, estimated = measure(corpus, EMBEDDER, {})
        run_stages(write_corpus(folder / "few.jsonl", args.data, 300), folder / "few")  # compiles
        measured = run_stages(corpus, folder / "shards")
        probes = measured["probes"]
        plan = stages_of(
            rates, args.documents, shard_documents=1000,
            probed_share=probes["probes"] / probes["cells"], by_cells=True,
        )  # fmt: skip
        report: dict[str, Any] = {
            "documents": args.documents,
            "documents_estimated": estimated,
            "rates": {name: round(value, 1) for name, value in vars(rates).items()},
            "probes": probes,
            "compared_share": measured["references"]["compared"] / args.documents**2,
            "planned_over_taken": compare(plan, measured),
        }
        import_shards(folder / "shards", folder / "index")
        report["fan_out_ms"] = fan_out(folder / "index", [1, 10, 100])
    slots = args.machines * args.cores
    stages = stages_of(
        rates, SIZES[1], machines=args.machines, cores=args.cores, shard_documents=20_000
    )
    report["simulated_over_planned"] = {
        stage.name: round(simulate(stage, slots), 3) for stage in stages if stage.tasks > 1
    }
    print(report["simulated_over_planned"])
    report["large"] = large_plans(rates, args.machines, args.cores)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
