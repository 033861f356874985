"""Published copies compared with the folder: overlap, quality, latency and size.

    python benchmarks/engines.py DATASET ... [--engines duckdb,postgresql,lancedb,qdrant]
                                 [--postgresql URL] [--qdrant URL] [--queries 300]
    python benchmarks/engines.py DATASET ... --scale 100000

DATASET is a BEIR folder; its documents are sharpened by their sentences (WordLlama) and published.
``overlap10`` is the share of the folder's exact top 10 that the copy finds: for the formula alone,
with feedback, and for ``sharp`` with its defaults (feedback and words). ``ndcg10`` compares folder
and copy on labelled queries. A search returns ids and scores; its peer is the engine's own query
for the ten nearest documents. The two alternate, query by query, and the fastest of three times per
query counts. ``sql`` is the formula computed inside the engine. ``--scale`` builds an index of as
many documents of two sentences each from all DATASETs and publishes it; then it changes, adds and
removes 1,000 documents each, publishes again, and also searches with a filter that matches 1%.
Without a URL, PostgreSQL and Qdrant (its embedded engine) are started by the helpers of the tests.
The last line is JSON.
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
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import overlaps, seconds, sharpened, take_turns

from strop import Document, Index, connect, evaluate
from strop.engines import open_engine
from strop.engines.published import Published
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.io.sentences import title_and_sentences

Search = Callable[[int], object]
K, TURNS = 10, 3
METHODS = {"": "sharp:words=0:feedback=0", "_feedback": "sharp:words=0", "_words": "sharp"}


def measure(index: Index, url: str, data: Any, texts: list[str]) -> dict[str, float]:
    row = {"publish_docs_per_s": len(index) / seconds(lambda: index.publish(url))}
    vectors = index.embed_queries(texts)
    copy, engine = connect(url), open_engine(url)
    assert isinstance(copy, Published)
    row["bytes_per_doc"] = engine.size() / len(index)

    def nearest(i: int) -> None:
        engine.nearest(vectors[i], K, True, None, np.empty(0, np.int64), ())

    def search(method: str, i: int) -> Any:
        return copy.search([texts[i]], K, method, vectors=vectors[i : i + 1], fields=()).ids[0]

    def exact(method: str) -> Any:
        return index.search(texts, K, method, vectors=vectors, exact=True, fields=()).ids

    for name, method in METHODS.items():
        matches = [search(method, i) for i in range(len(texts))]
        row[f"overlap10{name}"] = overlaps(matches, exact(method)).mean()
        searches: dict[str, Search] = {"plain": nearest, "strop": partial(search, method)}
        times = take_turns(searches, len(texts), TURNS)
        plain, strop = (1e3 * rows.min(axis=0) for rows in times.values())
        for share in (50, 99):
            a, b = np.percentile(plain, share), np.percentile(strop, share)
            row |= {f"p{share}_ratio{name}": b / a, f"p{share}_ms{name}": b}
        row["plain_p50_ms"] = np.median(plain)
        for place, searched in (("folder", index), ("copy", copy)):
            report = evaluate(searched, data, [method], measures=["nDCG@10"], query_vectors=vectors)
            row[f"ndcg10{name}_{place}"] = 100 * report.results[method]["nDCG@10"]
    copy.close()
    engine.close()
    if search_in_sql := in_sql(url):
        matches = []
        searches = {"sql": lambda i: matches.append(search_in_sql(vectors[i]))}
        row["sql_p50_ms"] = 1e3 * np.median(take_turns(searches, len(texts), 1)["sql"])
        # The formula in SQL does not re-rank.
        row["sql_overlap10"] = overlaps(matches, exact(METHODS[""])).mean()
    return {key: round(float(value), 4) for key, value in row.items()}


def in_sql(url: str) -> Callable[[Any], list[str]] | None:
    """Return a search by one SQL query, if the engine can compute the formula."""
    if url.startswith("duckdb"):
        import duckdb

        reader = duckdb.connect(url.removeprefix("duckdb://"), read_only=True)
        sql = "SELECT id FROM sharp(?)"
        return lambda vector: [id_ for (id_,) in reader.execute(sql, [vector]).fetchall()]
    if url.startswith("postgres"):
        import psycopg

        server = psycopg.connect(url, autocommit=True)
        server.execute("SELECT NULL::halfvec")
        server.execute("SET hnsw.ef_search = 400")
        sql = "SELECT id FROM strop_search(%s::text::halfvec)"
        return lambda vector: [id_ for (id_,) in server.execute(sql, [str(vector.tolist())])]
    return None


def sentence_pairs(datasets: list[str], count: int) -> Iterator[Document]:
    """Yield documents of two sentences each, with a metadata field of a hundred values."""
    sentences = (
        text
        for path in datasets
        for document in read_corpus(path)
        for text in title_and_sentences(document.title, document.text, 1000)
    )
    for i, (first, second) in enumerate(islice(pairwise(sentences), count)):
        yield Document(f"d{i}", f"{first} {second}", metadata={"part": i % 100})


def scale(index: Index, url: str, turn: int, texts: list[str]) -> dict[str, float]:
    """Publish; change, add and remove 1,000 documents each; publish again; search."""
    row = {"publish_s": seconds(lambda: index.publish(url))}
    row["publish_docs_per_s"] = len(index) / row["publish_s"]
    first = 10_000 + 2000 * turn
    index.add(
        [
            *(Document(f"d{i}", f"Changed {turn} {i}.") for i in range(first, first + 1000)),
            *(Document(f"n{i}", f"New {turn} {i}.") for i in range(first, first + 1000)),
        ]
    )
    index.remove([f"d{i}" for i in range(first + 1000, first + 2000)])
    start = time.perf_counter()
    published = index.publish(url)
    row["update_s"] = time.perf_counter() - start
    assert (published.new, published.changed, published.removed) == (1000, 1000, 1000), published
    vectors, engine = index.embed_queries(texts), open_engine(url)
    row["bytes_per_doc"] = engine.size() / len(index)
    engine.close()
    with connect(url) as copy:
        for name, where in (("", None), ("_filter", {"part": 7})):
            options: dict[str, Any] = {"fields": (), "where": where}
            exact = index.search(texts, K, "sharp", vectors=vectors, exact=True, **options).ids
            start = time.perf_counter()
            matches = [
                copy.search([texts[i]], K, "sharp", vectors=vectors[i : i + 1], **options).ids[0]
                for i in range(len(texts))
            ]
            row[f"mean_ms{name}"] = 1e3 * (time.perf_counter() - start) / len(texts)
            row[f"overlap10{name}"] = overlaps(matches, exact).mean()
    return {key: round(float(value), 4) for key, value in row.items()}


def engine_urls(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, str]:
    """Return a URL for each engine; start those that need a server."""
    urls = {
        "duckdb": f"duckdb://{folder}/copy.duckdb",
        "lancedb": f"lancedb://{folder}/lance",
        "qdrant": args.qdrant or f"qdrant://{folder}/edge/copy",
    }
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    if "qdrant" in args.engines and not args.qdrant:
        from helpers.edge import install  # type: ignore[import-not-found,unused-ignore]

        install()
    if "postgresql" in args.engines:
        url = args.postgresql
        if url is None:
            from helpers.postgres import postgres_server  # type: ignore[import-not-found,unused-ignore]

            url = stack.enter_context(postgres_server())
        urls["postgresql"] = url
    return {name: urls[name] for name in args.engines}


def measure_scale(args: argparse.Namespace) -> dict[str, Any]:
    texts = list(read_dataset(args.datasets[0]).queries.values())[:50]
    report: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        index = stack.enter_context(Index.create(folder / "index", chunking=None))
        index.sharpen("sentences", n=1)
        index.add(sentence_pairs(args.datasets, args.scale))
        for turn, (name, url) in enumerate(engine_urls(args, folder, stack).items()):
            report[name] = scale(index, url, turn, texts)
            print(name, json.dumps(report[name]), flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--engines", default="duckdb,postgresql,lancedb,qdrant")
    parser.add_argument("--postgresql", help="URL of a server; default: start one")
    parser.add_argument("--qdrant", help="URL of a server; default: the embedded engine")
    parser.add_argument("--queries", type=int, default=300, help="queries per dataset")
    parser.add_argument("--scale", type=int, help="documents of two sentences; measures updates")
    args = parser.parse_args()
    args.engines = args.engines.split(",")
    if args.scale:
        print(json.dumps(measure_scale(args)))
        return
    report: dict[str, dict[str, Any]] = {name: {} for name in args.engines}
    for path in args.datasets:
        with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
            folder, data = Path(scratch), read_dataset(path)
            queries = dict(list(data.queries.items())[: args.queries])
            data = type(data)(data.name, queries, data.qrels, data.excluded)
            with sharpened(folder / "index", path) as index:
                for name, url in engine_urls(args, folder, stack).items():
                    row = measure(index, url, data, list(queries.values()))
                    report[name][Path(path).name] = row
                    print(Path(path).name, name, json.dumps(row), flush=True)
    print(json.dumps({"load": round(os.getloadavg()[0], 1), **report}))


if __name__ == "__main__":
    main()
