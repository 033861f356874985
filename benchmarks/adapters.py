"""Milliseconds that each adapter adds to ``Index.search``, on one index in one run.

    python benchmarks/adapters.py [--calls 200]

The index holds 1,000 docstrings of the Python that runs this, with WordLlama and their sentences.
Each query is searched by every adapter in turn, each time in another order, for the best 10 with
texts and passages; what an adapter adds is its time less that of ``Index.search`` for the same
query, and the median of that over all calls is shown. It is processor time, which other programs
on the machine change least. PyTerrier is made for many queries at once: "PyTerrier, all" is one
call with all queries, by query, against one ``Index.search`` of all. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = os.environ["LANGSMITH_TRACING"] = "false"

import numpy as np
import pandas as pd

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


def milliseconds(call: Callable[[Any], Any], query: Any) -> float:
    """Return the processor time of one call."""
    began = time.process_time()
    call(query)
    return 1e3 * (time.process_time() - began)


def batched(index: Index, queries: list[str]) -> float:
    """Return what PyTerrier adds to each query of one call with all of them, the median of five."""
    transformer = pyterrier.StropRetriever(index, num_results=K, include_fields=FIELDS)
    frame = pd.DataFrame({"qid": [str(at) for at in range(len(queries))], "query": queries})
    added = [
        milliseconds(transformer.transform, frame)
        - milliseconds(lambda texts: index.search(texts, K), queries)
        for _ in range(6)
    ]
    return float(np.median(added[1:])) / len(queries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=200)
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index") as index:
        documents = list(read_stdlib())[:1000]
        index.sharpen()
        index.add(documents)
        rng = np.random.default_rng(0)
        texts = [documents[at].text for at in rng.integers(0, len(documents), calls)]
        queries = [" ".join(text.split()[:8]) or "text" for text in texts]
        ways = adapters(index)
        for call in ways.values():  # imports, caches
            call(queries[0])
        gc.collect()
        spent = np.empty((calls, len(ways)))
        for row, query in zip(spent, queries, strict=True):
            for at in rng.permutation(len(ways)):
                row[at] = milliseconds(list(ways.values())[at], query)
        added = np.median(spent - spent[:, :1], axis=0)
        result = dict(zip(ways, added.round(3).tolist(), strict=True))
        del result["Index.search"]
        result["PyTerrier, all"] = round(batched(index, queries), 3)
        base = round(float(np.median(spent[:, 0])), 3)
        print(f"{len(index):,} documents, {calls} calls; Index.search: {base} ms")
        for name, more in result.items():
            print(f"{name:26}{more:+8.3f} ms")
        print(json.dumps({"documents": len(index), "search_ms": base, "added_ms": result}))


if __name__ == "__main__":
    main()
