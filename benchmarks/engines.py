"""Published copies against the folder: same ranking, how fast, how large.

    python benchmarks/engines.py DATASET ... [--engines duckdb,postgresql,lancedb]
                                 [--postgresql URL] [--qdrant URL] [--queries 300]

DATASET is a BEIR folder; its documents are sharpened by their sentences (WordLlama) and published.
``overlap10`` is the share of the folder's exact best ten that the copy finds, for ``sharp`` and
with words; ``ndcg10`` compares both on the labelled queries. A search returns ids and scores and is
compared with the engine's own query for the ten nearest documents; they take turns, query by
query, and the median of a query's three times counts. Without a URL, PostgreSQL is started by the
helper of the tests; Qdrant is measured where ``--engines`` and ``--qdrant`` name a server. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop import Index, connect, evaluate
from strop.engines import open_engine
from strop.engines.published import Published
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset

K, TURNS = 10, 3
METHODS = {"": "sharp:words=0", "_words": "sharp:words=1"}


def overlap(found: NDArray[Any], right: NDArray[Any]) -> float:
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(right, found, strict=True)]))


def measure(index: Index, url: str, data: Any, texts: list[str]) -> dict[str, float]:
    began = time.perf_counter()
    index.publish(url)
    seconds = time.perf_counter() - began
    row = {"publish_docs_per_s": len(index) / seconds}
    vectors = index.embed_queries(texts)
    copy, engine = connect(url), open_engine(url)
    assert isinstance(copy, Published)
    row["bytes_per_doc"] = engine.size() / len(index)
    for name, method in METHODS.items():
        exact = index.search(texts, K, method, vectors=vectors, exact=True, fields=()).ids
        spent = np.empty((2, TURNS, len(texts)))
        found = []
        for turn in range(TURNS):
            for at, text in enumerate(texts):
                one = vectors[at : at + 1]
                began = time.perf_counter()
                engine.nearest(one, K, True, None)
                spent[0, turn, at] = time.perf_counter() - began
                began = time.perf_counter()
                hits = copy.search([text], K, method, vectors=one, fields=())
                spent[1, turn, at] = time.perf_counter() - began
                if not turn:
                    found.append(hits.ids[0])
        row[f"overlap10{name}"] = overlap(np.array(found), exact)
        plain, ours = 1e3 * np.median(spent, axis=1)
        for share in (50, 99):
            a, b = np.percentile(plain, share), np.percentile(ours, share)
            row |= {f"p{share}_ratio{name}": b / a, f"p{share}_ms{name}": b}
        row["plain_p50_ms"] = float(np.median(plain))
        for where, held in (("folder", index), ("copy", copy)):
            report = evaluate(held, data, [method], measures=["nDCG@10"], query_vectors=vectors)
            row[f"ndcg10{name}_{where}"] = 100 * report.results[method]["nDCG@10"]
    copy.close()
    engine.close()
    return {key: round(float(value), 4) for key, value in row.items()}


def addresses(given: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, str]:
    """Return a URL for each engine."""
    urls = {
        "duckdb": f"duckdb://{folder}/copy.duckdb",
        "lancedb": f"lancedb://{folder}/lance",
        "qdrant": given.qdrant or f"qdrant://{folder}/copy",  # the local mode: slow
    }
    if "postgresql" in given.engines:
        url = given.postgresql
        if url is None:
            sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
            from helpers.postgres import postgres_server  # type: ignore[import-not-found,unused-ignore]

            url = stack.enter_context(postgres_server())
        urls["postgresql"] = url
    return {name: urls[name] for name in given.engines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--engines", default="duckdb,postgresql,lancedb")
    parser.add_argument("--postgresql")
    parser.add_argument("--qdrant")
    parser.add_argument("--queries", type=int, default=300)
    given = parser.parse_args()
    given.engines = given.engines.split(",")
    report: dict[str, dict[str, Any]] = {name: {} for name in given.engines}
    for path in given.datasets:
        with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
            folder, data = Path(scratch), read_dataset(path)
            with Index.create(folder / "index") as index:
                index.sharpen("sentences")
                index.add(read_corpus(path))
                texts = list(data.queries.values())
                data = type(data)(data.name, dict(list(data.queries.items())[: given.queries]),
                                  data.qrels, data.excluded)  # fmt: skip
                texts = texts[: given.queries]
                for name, url in addresses(given, folder, stack).items():
                    report[name][Path(path).name] = row = measure(index, url, data, texts)
                    print(Path(path).name, name, json.dumps(row), flush=True)
    print(json.dumps({"load": round(os.getloadavg()[0], 1), **report}))


if __name__ == "__main__":
    main()
