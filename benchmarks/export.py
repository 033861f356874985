"""What each form of ``strop export`` keeps of the gain, in a database that only knows cosines.

    python benchmarks/export.py --data DATA

SciFact and NFCorpus with sentences, Cranfield with generated queries (its five example queries left
out); WordLlama; nDCG@10. ``plain`` and ``sharp`` (without BM25 and feedback) are searches of the
folder; ``indexsharp`` and ``augmented`` rank by one exported vector, ``rows`` by a document's best
row. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from strop import Index, evaluate
from strop.engines.export import Form, export
from strop.evaluation.scoring import select_queries
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.types import Dataset, Vectors

EXAMPLES = ["1", "3", "9", "11", "12"]


def ndcg(index: Index, data: Dataset, path: Path, query_vectors: Vectors) -> float:
    """Return nDCG@10 of ranking documents by their nearest exported vector."""
    import ir_measures

    lines = path.with_suffix(".npy.ids.jsonl").read_text("utf-8").splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    known = {id_: at for at, id_ in enumerate(dict.fromkeys(ids))}
    names, owner = list(known), np.array([known[id_] for id_ in ids])
    scores = np.full((len(query_vectors), len(known)), -1.0, np.float32)
    products = query_vectors @ np.load(path).T
    for row in range(len(scores)):
        np.maximum.at(scores[row], owner, products[row])
    run = {
        query: {names[at]: float(scores[row, at]) for at in np.argsort(-scores[row])[:50]}
        for row, query in enumerate(data.queries)
    }
    qrels = {query: dict(data.qrels.get(query, {})) for query in data.queries}
    measure = ir_measures.parse_measure("nDCG@10")
    values = {one.query_id: one.value for one in ir_measures.iter_calc([measure], qrels, run)}
    return float(100 * sum(values.values()) / len(data.queries))


def measure(index: Index, data: Dataset, folder: Path, augmented: str | None) -> dict[str, Any]:
    vectors = index.embed_queries(list(data.queries.values()))
    methods = ["trad", "sharp:words=0:feedback=0"]
    report = evaluate(index, data, methods, measures=["nDCG@10"], query_vectors=vectors)
    row = {
        name: 100 * report.results[method]["nDCG@10"]
        for name, method in zip(("plain", "sharp"), methods, strict=True)
    }
    forms: list[Form] = ["indexsharp", "rows"]
    for form in forms:
        export(index.searcher, folder / f"{form}.npy", form)
        row[form] = ndcg(index, data, folder / f"{form}.npy", vectors)
    if augmented:
        index.augment(augmented)
        export(index.searcher, folder / "augmented.npy", "augmented", sets=[augmented])
        row["augmented"] = ndcg(index, data, folder / "augmented.npy", vectors)
    return {name: round(value, 2) for name, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    result = {}
    for name in ("scifact", "nfcorpus", "cranfield"):
        source = given.data / name
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            index = stack.enter_context(Index.create(folder / "index"))
            index.add(read_corpus(str(source)))
            data, augmented = read_dataset(str(source)), None
            if name == "cranfield":
                data, augmented = select_queries(data, EXAMPLES), "simple"
                for style in ("simple", "contrastive"):
                    lines = (source / "generated" / f"{style}.jsonl").read_text("utf-8")
                    lists = (json.loads(line) for line in lines.splitlines())
                    index.import_queries({one["id"]: one["queries"] for one in lists}, style)
            else:
                index.sharpen("sentences")
            result[name] = measure(index, data, folder, augmented)
        print(name, result[name], flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
