"""Overlap@10 of two-stage with exact search, for queries similar and dissimilar to what is stored.

    python benchmarks/recall.py [--data FOLDER] [--documents scifact nfcorpus lisa]
                                [--sentences 1] [--embedder wordllama] [--keep FOLDER]

FOLDER (STROP_DATA) contains collections in BEIR layout. Each sentence of the named collections is a
document (or each group of ``--sentences`` consecutive ones), sharpened by its own sentences; by
default more than 40,000. The queries are test queries of all collections in FOLDER, at most 300 of
each, in three groups. ``same``: the collection is stored. ``removed``: it is stored, but without
the documents judged for these queries, so whole topics are missing. ``other``: the collection is
not stored; some are in other languages. Results are per collection, because the margins of the
prefilter were chosen on some collections (``CHOSEN_ON``) and are tested on the others. Searches are
``Index.search`` by vector; the peer is ``exact=True``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import Times, data_folder, overlaps

from strop import Index
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.io.sentences import title_and_sentences

K = 10
MAX_QUERIES = 300
CHOSEN_ON = ("scifact", "cranfield", "time", "xquad-hi")
"""Collections whose queries were used to choose the prefilter's margins."""


def test_queries(folder: Path, stored: list[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Return the test queries by group and collection: texts by query id."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted(file.parent for file in folder.glob("*/corpus.jsonl")):
        queries = list(read_dataset(path).queries.items())[:MAX_QUERIES]
        if path.name in stored:
            groups["same", path.name] = dict(queries[::2])
            groups["removed", path.name] = dict(queries[1::2])
        else:
            groups["other", path.name] = dict(queries)
    return groups


def documents(
    folder: Path, name: str, removed: dict[str, str], sentences: int
) -> Iterator[dict[str, Any]]:
    """Yield sentences of a collection, without documents that are judged for a removed query."""
    qrels = read_dataset(folder / name).qrels
    judged = {id_ for query in removed for id_ in qrels.get(query, {})}
    for document in read_corpus(folder / name):
        if document.id in judged:
            continue
        texts = title_and_sentences(document.title, document.text, 1000)
        for i in range(0, len(texts), sentences):
            text = " ".join(texts[i : i + sentences])
            yield {"id": f"{name}-{document.id}-{i}", "text": text}


def summary(overlap: Times) -> dict[str, float]:
    row = {"queries": len(overlap), "overlap": overlap.mean(), "worst": overlap.min()}
    return {name: round(float(value), 4) for name, value in row.items()}


def measure(index: Index, groups: dict[tuple[str, str], dict[str, str]]) -> dict[str, Any]:
    report: dict[str, Any] = {"documents": len(index)}
    parts: dict[str, list[Times]] = {"chosen_on": [], "held_out": []}
    for (group, name), queries in groups.items():
        vectors = index.embed_queries(list(queries.values()))
        exact = index.search(vectors, K, "sharp", exact=True).ids
        start = time.perf_counter()
        matches = index.search(vectors, K, "sharp").ids
        milliseconds = 1e3 * (time.perf_counter() - start) / len(queries)
        overlap = overlaps(matches, exact)
        parts["chosen_on" if name in CHOSEN_ON else "held_out"].append(overlap)
        report[f"{group} {name}"] = summary(overlap) | {"ms": round(milliseconds, 2)}
        print(f"{group} {name}", report[f"{group} {name}"], flush=True)
    for part, rows in parts.items():
        report[part] = summary(np.concatenate(rows))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--documents", nargs="+", default=["scifact", "nfcorpus", "lisa"])
    parser.add_argument("--sentences", type=int, default=1, help="sentences per document")
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--keep", type=Path, help="folder in which the index is kept")
    args = parser.parse_args()
    groups = test_queries(args.data, args.documents)
    with tempfile.TemporaryDirectory() as scratch:
        path = args.keep or Path(scratch) / "index"
        if path.exists():
            index = Index.open(path)
        else:
            index = Index.create(path, args.embedder)
            index.sharpen("sentences")
            for name in args.documents:
                removed = groups["removed", name]
                index.add(documents(args.data, name, removed, args.sentences))
        with index:
            print(json.dumps(measure(index, groups)))


if __name__ == "__main__":
    main()
