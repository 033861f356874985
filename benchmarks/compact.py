"""How much of the gain of sharpening each way to store vectors keeps, and in how many bytes.

    python benchmarks/compact.py --data DATA [--indexes FOLDER] [--cases wordllama-scifact,…]
        [--stored float32,int8,compact] [--methods sharp]

DATA holds collections in BEIR's layout, and generated queries in ``cranfield/generated``. A case is
EMBEDDER-COLLECTION, sharpened by sentences, or with a ``+`` behind it by the simple and contrastive
queries alone (without the five test queries their generator saw). An index that is in FOLDER
already is used as it is. Sizes are those of ``strop info``: the documents' vectors and all query
vectors, as multiples of the documents' vectors in float32. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from strop import Index, evaluate
from strop.io.corpora import read_corpus
from strop.io.datasets import read_query_lists

SHOWN = ("1", "3", "9", "11", "12")
CASES = [
    f"{embedder}-{name}"
    for embedder in ("wordllama", "minilm")
    for name in ("scifact", "nfcorpus", "cranfield", "cranfield+")
]


def build(path: Path, data: Path, case: str, stored: str) -> Index:
    """Open the index of a case, made if it is not there."""
    if (path / "catalog.sqlite").exists():
        return Index.open(path)
    embedder, _, name = case.partition("-")
    index = Index.create(path, embedder, query_vectors=stored)
    folder = data / name.rstrip("+")
    if not name.endswith("+"):
        index.sharpen("sentences")
    index.add(read_corpus(folder))
    for style in ("simple", "contrastive") if name.endswith("+") else ():
        lists = read_query_lists(str(folder / "generated" / f"{style}.jsonl"))
        index.import_queries(lists, style)
    return index


def measure(index: Index, data: Path, name: str, methods: list[str]) -> dict[str, Any]:
    """Return the nDCG@10 of plain search and of methods, in percent, and the size."""
    report = evaluate(
        index, data / name.rstrip("+"), ["trad", *methods], measures=["nDCG@10"],
        exclude=SHOWN if name.endswith("+") else (),
    )  # fmt: skip
    told: dict[str, Any] = {
        method: 100 * values["nDCG@10"] for method, values in report.results.items()
    }
    about = index.info()
    texts = sum(of["queries"] for of in about["sets"].values())
    return {
        **told, "times_plain": about["sizes"]["times_plain"], "texts": texts / about["documents"]
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--indexes", type=Path)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--stored", default="float32,int8,compact")
    parser.add_argument("--methods", default="sharp")
    args = parser.parse_args()
    methods = args.methods.split(",")
    found: dict[str, dict[str, Any]] = {}
    print("| case | texts each | stored | times plain | trad | method | nDCG@10 | gain kept |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case in args.cases.split(","):
            of = found[case] = {}
            for stored in args.stored.split(","):
                path = (args.indexes or Path(folder)) / f"{case}-{stored}.index"
                with build(path, args.data, case, stored) as index:
                    of[stored] = measure(index, args.data, case.partition("-")[2], methods)
                whole, told = next(iter(of.values())), of[stored]
                kept = {
                    method: (told[method] - whole["trad"]) / (whole[method] - whole["trad"])
                    for method in methods
                }
                told["kept"] = kept
                for method in methods:
                    print(
                        f"| {case} | {told['texts']:.1f} | {stored} | {told['times_plain']:.2f} "
                        f"| {told['trad']:.2f} | {method} | {told[method]:.2f} "
                        f"| {100 * kept[method]:.1f}% |",
                        flush=True,
                    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
