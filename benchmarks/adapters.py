"""CPU time that each adapter adds to ``Index.search``, on one index in one run.

    python benchmarks/adapters.py [--calls 200]

The index contains 1,000 docstrings of Python's standard library, embedded with WordLlama and
sharpened by their sentences. Each query is searched through every adapter, in random order, for the
top 10 with texts and passages. The time added is the adapter's minus that of ``Index.search`` for
the same query; the table shows the median over all calls. CPU time is used because other processes
affect it little. PyTerrier is designed for many queries at once: "PyTerrier, all" is one call with
all queries compared with one ``Index.search`` of all, per query. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = os.environ["LANGSMITH_TRACING"] = "false"

import numpy as np
import pandas as pd
from common import seconds

from strop import Index
from strop.adapters import haystack, langchain, llamaindex, pyterrier
from strop.io.stdlib_docs import read_stdlib

K = 10
FIELDS = ("title", "text", "passage")


def adapters(index: Index) -> dict[str, Callable[[str], Any]]:
    """Return each way to search for one query."""
    retriever = langchain.StropRetriever(index=index, k=K)
    vector_store = langchain.StropVectorStore(index)
    texts = haystack.StropTextRetriever(haystack.StropDocumentStore(index), top_k=K)
    nodes = llamaindex.StropRetriever(index, K)
    transformer = pyterrier.StropRetriever(index, num_results=K, include_fields=FIELDS)
    return {
        "Index.search": lambda query: index.search(query, K),
        "LangChain retriever": retriever.invoke,
        "LangChain vector store": lambda query: vector_store.similarity_search(query, K),
        "Haystack text retriever": texts.run,
        "LlamaIndex retriever": nodes.retrieve,
        "PyTerrier, one query": transformer.search,
    }


def milliseconds(search: Callable[[Any], Any], query: Any) -> float:
    """Return the CPU time of one search."""
    return 1e3 * seconds(partial(search, query), time.process_time)


def batched(index: Index, queries: list[str]) -> float:
    """Return the time that PyTerrier adds per query if one call has all queries: median of five."""
    transformer = pyterrier.StropRetriever(index, num_results=K, include_fields=FIELDS)
    frame = pd.DataFrame({"qid": [str(i) for i in range(len(queries))], "query": queries})
    added = [
        milliseconds(transformer.transform, frame)
        - milliseconds(lambda texts: index.search(texts, K), queries)
        for _ in range(6)
    ]
    return float(np.median(added[1:])) / len(queries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=200, help="searches through each adapter")
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index") as index:
        documents = list(read_stdlib())[:1000]
        index.sharpen()
        index.add(documents)
        rng = np.random.default_rng(0)
        texts = [documents[i].text for i in rng.integers(0, len(documents), calls)]
        queries = [" ".join(text.split()[:8]) or "text" for text in texts]
        searches = adapters(index)
        for search in searches.values():  # imports, caches
            search(queries[0])
        gc.collect()
        times = np.empty((calls, len(searches)))
        for row, query in zip(times, queries, strict=True):
            for i in rng.permutation(len(searches)):
                row[i] = milliseconds(list(searches.values())[i], query)
        added = np.median(times - times[:, :1], axis=0)
        result = dict(zip(searches, added.round(3).tolist(), strict=True))
        del result["Index.search"]
        result["PyTerrier, all"] = round(batched(index, queries), 3)
        base = round(float(np.median(times[:, 0])), 3)
        print(f"{len(index):,} documents, {calls} calls; Index.search: {base} ms")
        for name, difference in result.items():
            print(f"{name:26}{difference:+8.3f} ms")
        print(json.dumps({"documents": len(index), "search_ms": base, "added_ms": result}))


if __name__ == "__main__":
    main()
