"""Published copies against the folder: same ranking, how fast, how large.

    python benchmarks/engines.py DATASET ... [--engines duckdb,postgresql,lancedb,qdrant]
                                 [--postgresql URL] [--qdrant URL] [--queries 300]
    python benchmarks/engines.py DATASET ... --scale 100000

DATASET is a BEIR folder; its documents are sharpened by their sentences (WordLlama) and published.
``overlap10`` is the share of the folder's exact best ten that the copy finds, for the formula
alone, with feedback, and for ``sharp`` as it is by default, with feedback and words; ``ndcg10``
compares both on labelled queries. A search
returns ids and scores and is compared with the engine's own query for the ten nearest documents;
they take turns, query by query, and the least of a query's three times counts. ``sql`` is the
formula inside the engine. ``--scale`` makes so many documents of two sentences each of all
DATASETs; it publishes them, then 1,000 that changed, 1,000 new ones and 1,000 removals, and
searches 1% of them by a filter. Without a URL, PostgreSQL and Qdrant (its own engine, embedded) are
run by the helpers of the tests. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop import Document, Index, connect, evaluate
from strop.engines import open_engine
from strop.engines.published import Published
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.io.sentences import title_and_sentences

K, TURNS = 10, 3
METHODS = {"": "sharp:words=0:feedback=0", "_feedback": "sharp:words=0", "_words": "sharp"}


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
                engine.nearest(one[0], K, True, None, np.empty(0, np.int64), ())
                spent[0, turn, at] = time.perf_counter() - began
                began = time.perf_counter()
                hits = copy.search([text], K, method, vectors=one, fields=())
                spent[1, turn, at] = time.perf_counter() - began
                if not turn:
                    found.append(hits.ids[0])
        row[f"overlap10{name}"] = overlap(np.array(found), exact)
        plain, ours = 1e3 * np.min(spent, axis=1)
        for share in (50, 99):
            a, b = np.percentile(plain, share), np.percentile(ours, share)
            row |= {f"p{share}_ratio{name}": b / a, f"p{share}_ms{name}": b}
        row["plain_p50_ms"] = float(np.median(plain))
        for where, held in (("folder", index), ("copy", copy)):
            report = evaluate(held, data, [method], measures=["nDCG@10"], query_vectors=vectors)
            row[f"ndcg10{name}_{where}"] = 100 * report.results[method]["nDCG@10"]
    copy.close()
    engine.close()
    if run := in_sql(url):
        spent_in_sql, found = [], []
        for one in vectors:
            began = time.perf_counter()
            found.append(run(one))
            spent_in_sql.append(time.perf_counter() - began)
        # The formula in SQL ranks nothing again.
        exact = index.search(texts, K, METHODS[""], vectors=vectors, exact=True, fields=()).ids
        row["sql_p50_ms"] = 1e3 * float(np.median(spent_in_sql))
        row["sql_overlap10"] = overlap(np.array(found), exact)
    return {key: round(float(value), 4) for key, value in row.items()}


def in_sql(url: str) -> Callable[[Any], list[str]] | None:
    """Return what searches in one query of the engine, where that can compute the formula."""
    if url.startswith("duckdb"):
        import duckdb

        reader = duckdb.connect(url.removeprefix("duckdb://"), read_only=True)
        sql = "SELECT id FROM sharp(?)"
        return lambda one: [id_ for (id_,) in reader.execute(sql, [one]).fetchall()]
    if url.startswith("postgres"):
        import psycopg

        server = psycopg.connect(url, autocommit=True)
        server.execute("SELECT NULL::halfvec")
        server.execute("SET hnsw.ef_search = 400")
        sql = "SELECT id FROM strop_search(%s::text::halfvec)"
        return lambda one: [id_ for (id_,) in server.execute(sql, [str(one.tolist())])]
    return None


def pairs(datasets: list[str], count: int) -> Iterator[Document]:
    """Yield documents of two sentences each, and a field with a hundred values."""
    sentences = (
        text
        for path in datasets
        for one in read_corpus(path)
        for text in title_and_sentences(one.title, one.text, 1000)
    )
    for at, (first, second) in enumerate(islice(pairwise(sentences), count)):
        yield Document(f"d{at}", f"{first} {second}", metadata={"part": at % 100})


def scale(index: Index, url: str, turn: int, texts: list[str]) -> dict[str, float]:
    """Publish, change 1,000 documents, add as many and remove as many, publish again."""
    began = time.perf_counter()
    index.publish(url)
    row = {"publish_s": time.perf_counter() - began}
    row["publish_docs_per_s"] = len(index) / row["publish_s"]
    first = 10_000 + 2000 * turn
    index.add(
        [
            *(Document(f"d{at}", f"Changed {turn} {at}.") for at in range(first, first + 1000)),
            *(Document(f"n{at}", f"New {turn} {at}.") for at in range(first, first + 1000)),
        ]
    )
    index.remove([f"d{at}" for at in range(first + 1000, first + 2000)])
    began = time.perf_counter()
    done = index.publish(url)
    row["update_s"] = time.perf_counter() - began
    assert (done.new, done.changed, done.removed) == (1000, 1000, 1000), done
    vectors, engine = index.embed_queries(texts), open_engine(url)
    row["bytes_per_doc"] = engine.size() / len(index)
    engine.close()
    with connect(url) as copy:
        for name, where in (("", None), ("_filter", {"part": 7})):
            how: dict[str, Any] = {"vectors": vectors, "fields": (), "where": where}
            exact = index.search(texts, K, "sharp", exact=True, **how).ids
            began = time.perf_counter()
            found = [
                copy.search([text], K, "sharp", **{**how, "vectors": vectors[at : at + 1]}).ids[0]
                for at, text in enumerate(texts)
            ]
            row[f"mean_ms{name}"] = 1e3 * (time.perf_counter() - began) / len(texts)
            row[f"overlap10{name}"] = overlap(np.array(found), exact)
    return {key: round(float(value), 4) for key, value in row.items()}


def addresses(given: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, str]:
    """Return a URL for each engine."""
    urls = {
        "duckdb": f"duckdb://{folder}/copy.duckdb",
        "lancedb": f"lancedb://{folder}/lance",
        "qdrant": given.qdrant or f"qdrant://{folder}/edge/copy",
    }
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    if "qdrant" in given.engines and not given.qdrant:
        from helpers.edge import install  # type: ignore[import-not-found,unused-ignore]

        install()
    if "postgresql" in given.engines:
        url = given.postgresql
        if url is None:
            from helpers.postgres import postgres_server  # type: ignore[import-not-found,unused-ignore]

            url = stack.enter_context(postgres_server())
        urls["postgresql"] = url
    return {name: urls[name] for name in given.engines}


def scaled(given: argparse.Namespace) -> dict[str, Any]:
    texts = list(read_dataset(given.datasets[0]).queries.values())[:50]
    report: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        index = stack.enter_context(Index.create(folder / "index", chunking=None))
        index.sharpen("sentences", n=1)
        index.add(pairs(given.datasets, given.scale))
        for turn, (name, url) in enumerate(addresses(given, folder, stack).items()):
            report[name] = scale(index, url, turn, texts)
            print(name, json.dumps(report[name]), flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--engines", default="duckdb,postgresql,lancedb,qdrant")
    parser.add_argument("--postgresql")
    parser.add_argument("--qdrant")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--scale", type=int)
    given = parser.parse_args()
    given.engines = given.engines.split(",")
    if given.scale:
        print(json.dumps(scaled(given)))
        return
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
