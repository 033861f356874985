"""Embedders side by side: what plain search finds with each, and what embedding costs.

    python benchmarks/embedders.py DATASET ... [--embedders wordllama,minilm,st:FOLDER]
                                   [--threads 1]

DATASET is a BEIR folder. Every embedder embeds all documents and queries of it, with the same
number of threads and nothing from the cache; ``nDCG@10`` is that of plain search by these vectors.
``s_per_1000`` is the processor time of ``Index.add`` for 1,000 documents, of which embedding is the
most, ``characters`` their mean length, ``mb`` the peak memory of the process. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scale import peak_memory


def measure(path: str, embedder: str) -> dict[str, Any]:
    """Embed one collection with one embedder, in this process."""
    from strop import Index, evaluate
    from strop.embed import load
    from strop.io.corpora import read_corpus

    documents = list(read_corpus(path))
    model = load(embedder, cache=False)
    model.embed(["The first text loads the model."], "document")
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "i", model) as index:
        began = time.process_time()
        index.add(documents)
        seconds = time.process_time() - began
        found = evaluate(index, path, ["trad"], measures=["nDCG@10"]).results["trad"]["nDCG@10"]
    return {
        "nDCG@10": round(100 * found, 2),
        "s_per_1000": round(1000 * seconds / len(documents), 2),
        "characters": round(float(np.mean([len(one.title + one.text) for one in documents]))),
        "mb": round(peak_memory() / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--embedders", default="wordllama,minilm")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.datasets[0], given.one)))
        return
    names = ("STROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    threads = dict.fromkeys(names, str(given.threads))
    report: dict[str, dict[str, Any]] = {}
    for path in given.datasets:
        for embedder in given.embedders.split(","):
            command = [sys.executable, __file__, path, "--one", embedder]
            settings = {**os.environ, **threads}
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=settings
            )
            row = json.loads(done.stdout.splitlines()[-1])
            report.setdefault(embedder, {})[Path(path).name] = row
            print(Path(path).name, embedder, row, flush=True)
    for embedder, rows in report.items():
        mean = np.mean([row["nDCG@10"] for row in rows.values()])
        print(f"{embedder}: mean nDCG@10 {mean:.2f}")
    print(json.dumps({"threads": given.threads, "embedders": report}))


if __name__ == "__main__":
    main()
