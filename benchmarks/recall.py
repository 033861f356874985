"""How many of the exact best ten a search finds, for real queries like and unlike what is stored.

    python benchmarks/recall.py [--data FOLDER] [--documents scifact nfcorpus lisa]
                                [--sentences 1] [--embedder wordllama] [--keep FOLDER]

FOLDER (STROP_DATA) holds collections in BEIR layout. Every sentence (or every ``--sentences`` that
follow each other) of the named collections is a document, sharpened by its own sentences; these
are more than 40,000. The queries are the test queries of all collections in FOLDER, at most 300 of
each, in three groups: ``same`` are of a collection that is stored; ``removed`` are too, but every
document judged for one of them was left out, whole topics; ``other`` are of collections that are
not stored, in other languages too. A group is shown by collection, because the margins of the
prefilter were chosen on some collections and are reported on others (``CHOSEN_ON``). Searches are
``Index.search`` by vector, compared with ``exact=True``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop import Index
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.io.sentences import title_and_sentences

K = 10
MOST_QUERIES = 300
CHOSEN_ON = ("scifact", "cranfield", "time", "xquad-hi")
"""Collections whose queries had a part in choosing the prefilter's margins."""


def data_folder() -> Path:
    root = Path(__file__).resolve().parents[1]
    return Path(os.environ.get("STROP_DATA") or root.parent / "shared" / "data")


def test_queries(folder: Path, stored: list[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Return the test queries by group and collection: texts by query id."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted(one.parent for one in folder.glob("*/corpus.jsonl")):
        asked = list(read_dataset(path).queries.items())[:MOST_QUERIES]
        if path.name in stored:
            groups["same", path.name] = dict(asked[::2])
            groups["removed", path.name] = dict(asked[1::2])
        else:
            groups["other", path.name] = dict(asked)
    return groups


def documents(
    folder: Path, name: str, removed: dict[str, str], sentences: int
) -> Iterator[dict[str, Any]]:
    """Yield the sentences of a collection, but of none that is judged for a removed query."""
    qrels = read_dataset(folder / name).qrels
    judged = {id_ for query in removed for id_ in qrels.get(query, {})}
    for document in read_corpus(folder / name):
        if document.id in judged:
            continue
        texts = title_and_sentences(document.title, document.text, 1000)
        for at in range(0, len(texts), sentences):
            text = " ".join(texts[at : at + sentences])
            yield {"id": f"{name}-{document.id}-{at}", "text": text}


def overlaps(found: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
    """Return for each query the share of the right documents that were found."""
    return np.array([np.isin(a, b).mean() for a, b in zip(right, found, strict=True)])


def summary(shared: NDArray[np.float64]) -> dict[str, float]:
    row = {"queries": len(shared), "overlap": shared.mean(), "worst": shared.min()}
    return {name: round(float(value), 4) for name, value in row.items()}


def measure(index: Index, groups: dict[tuple[str, str], dict[str, str]]) -> dict[str, Any]:
    report: dict[str, Any] = {"documents": len(index)}
    parts: dict[str, list[NDArray[np.float64]]] = {"chosen_on": [], "held_out": []}
    for (group, name), asked in groups.items():
        vectors = index.embed_queries(list(asked.values()))
        exact = index.search(vectors, K, "sharp", exact=True).ids
        began = time.perf_counter()
        shared = overlaps(index.search(vectors, K, "sharp").ids, exact)
        spent = 1e3 * (time.perf_counter() - began) / len(asked)
        parts["chosen_on" if name in CHOSEN_ON else "held_out"].append(shared)
        report[f"{group} {name}"] = summary(shared) | {"ms": round(spent, 2)}
        print(f"{group} {name}", report[f"{group} {name}"], flush=True)
    for part, rows in parts.items():
        report[part] = summary(np.concatenate(rows))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--documents", nargs="+", default=["scifact", "nfcorpus", "lisa"])
    parser.add_argument("--sentences", type=int, default=1)
    parser.add_argument("--embedder", default="wordllama")
    parser.add_argument("--keep", type=Path, help="a folder for the index")
    given = parser.parse_args()
    groups = test_queries(given.data, given.documents)
    with tempfile.TemporaryDirectory() as scratch:
        path = given.keep or Path(scratch) / "index"
        if path.exists():
            index = Index.open(path)
        else:
            index = Index.create(path, given.embedder)
            index.sharpen("sentences")
            for name in given.documents:
                removed = groups["removed", name]
                index.add(documents(given.data, name, removed, given.sentences))
        with index:
            print(json.dumps(measure(index, groups)))


if __name__ == "__main__":
    main()
