"""Embedders compared: quality of plain search, time and memory of embedding.

    python benchmarks/embedders.py DATASET ... [--embedders wordllama,minilm,st:FOLDER]
                                   [--threads 1]

DATASET is a BEIR folder. Each embedder embeds all its documents and queries in a new process,
without a cache and with the same number of threads. ``nDCG@10`` is that of plain search.
``s_per_1000`` is the CPU time of ``Index.add`` per 1,000 documents, most of it embedding;
``characters`` is the mean length of a document; ``mb`` is the peak memory of the process. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import peak_memory, run_script, seconds

from strop import Index, evaluate
from strop.embed import load
from strop.io.corpora import read_corpus


def measure(path: str, embedder: str) -> dict[str, Any]:
    """Embed one collection with one embedder, in this process."""
    documents = list(read_corpus(path))
    model = load(embedder, cache=False)
    model.embed(["The first text loads the model."], "document")
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "i", model) as index:
        add_seconds = seconds(lambda: index.add(documents), time.process_time)
        report = evaluate(index, path, ["trad"], measures=["nDCG@10"])
    lengths = [len(document.title + document.text) for document in documents]
    return {
        "nDCG@10": round(100 * report.results["trad"]["nDCG@10"], 2),
        "s_per_1000": round(1000 * add_seconds / len(documents), 2),
        "characters": round(float(np.mean(lengths))),
        "mb": round(peak_memory() / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--embedders", default="wordllama,minilm")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.datasets[0], args.one)))
        return
    names = ("STROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    threads = dict.fromkeys(names, str(args.threads))
    report: dict[str, dict[str, Any]] = {}
    for path in args.datasets:
        for embedder in args.embedders.split(","):
            row = run_script(__file__, path, "--one", embedder, **threads)
            report.setdefault(embedder, {})[Path(path).name] = row
            print(Path(path).name, embedder, row, flush=True)
    for embedder, rows in report.items():
        mean = np.mean([row["nDCG@10"] for row in rows.values()])
        print(f"{embedder}: mean nDCG@10 {mean:.2f}")
    print(json.dumps({"threads": args.threads, "embedders": report}))


if __name__ == "__main__":
    main()
