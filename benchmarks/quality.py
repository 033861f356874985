"""Every method on real collections: nDCG@10, R@50, AP@50 and significance.

    python benchmarks/quality.py --data DATA [--indexes FOLDER] [--embedders wordllama,minilm]
        [--collections scifact,nfcorpus,cranfield] [--output benchmarks/results/quality.json]

DATA holds collections in BEIR's layout, and generated queries in ``cranfield/generated``. An
index that is in FOLDER already is used as it is. ``tuned`` is ``sharp`` with what ``strop tune``
chose without labels, ``tuned, dense`` the same without words, ``whiten+feedback`` adds
``whiten=0.5:feedback=0.2`` to that; ``+words`` is with ``words=1``. Cranfield is scored with its
generated queries, without the five test queries the generator saw, and once more behind a leak gate
of 0.9. ``p`` is of two-sided paired t-tests (Holm): against plain search, and against the paper's
formula (alpha 1, T 1).
Results are merged into the output, collection by collection; the last line is JSON. Render them
into README.md with ``python benchmarks/render_quality.py``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from strop import METHODS, Index, Method, Report, evaluate
from strop.evaluation.scoring import holm
from strop.evaluation.tune import WORDS, Choice, tune
from strop.io.corpora import read_corpus
from strop.io.datasets import read_query_lists

SHOWN = ("1", "3", "9", "11", "12")
GATE = 0.9
GENERATED = ("simple", "contrastive")
RESULTS = Path(__file__).parent / "results" / "quality.json"


def build(path: Path, data: Path, name: str, embedder: str) -> Index:
    """Open the index of a collection, made if it is not there."""
    if (path / "catalog.sqlite").exists():
        return Index.open(path)
    index = Index.create(path, embedder)
    index.sharpen("sentences")
    index.add(read_corpus(data / name))
    for style in GENERATED:
        file = data / name / "generated" / f"{style}.jsonl"
        if file.exists():
            index.import_queries(read_query_lists(str(file)), style)
    return index


def methods(index: Index, tuned: Method) -> list[Method]:
    """Return the methods to compare; ``paper`` is its formula on the best set at hand."""
    generated = set(GENERATED) <= set(index.info()["sets"])
    sharp = METHODS["sharp"]
    own = ("sentences",)
    best = GENERATED if generated else own
    dense = replace(tuned, name="tuned, dense", words=0.0)
    evened = replace(dense, name="whiten+feedback", whiten=0.5, feedback=0.2)
    compared = [
        METHODS["trad"],
        METHODS["bm25"],
        METHODS["hybrid"],
        replace(METHODS["trad"], name="trad+words", words=WORDS),
        replace(METHODS["maxsim"], sets=best),
        replace(sharp, name="paper", sets=best, temperature=1.0),
        replace(sharp, sets=best),
        replace(sharp, name="sharp+words", sets=best, words=WORDS),
        dense,
        replace(tuned, name="tuned"),
        evened,
        replace(evened, name="whiten+feedback+words", words=WORDS),
        replace(evened, name="hybrid:of=whiten+feedback", bm25="fused"),
    ]
    if generated:
        compared += [METHODS[name] for name in
                     ("consharp", "simsharp", "indexsharp", "doc2query", "docexp")]  # fmt: skip
        alone = replace(sharp, name="sharp:sets=sentences", sets=own)
        compared += [alone, replace(alone, name=f"{alone.name}+words", words=WORDS)]
    return compared


def against(report: Report, base: str) -> dict[str, dict[str, float]]:
    """Return p-values of every method against one, by measure."""
    p_values: dict[str, dict[str, float]] = {name: {} for name in report.results if name != base}
    for measure in report.measures:
        raw = {}
        for name in p_values:
            ours, theirs = (
                np.array(list(report.per_query[which][measure].values())) for which in (name, base)
            )
            raw[name] = float(ttest_rel(ours, theirs).pvalue) if (ours != theirs).any() else 1.0
        for name, p_value in holm(raw).items():
            p_values[name][measure] = p_value
    return p_values


def percent(report: Report) -> dict[str, dict[str, float]]:
    return {
        name: {measure: round(100 * value, 2) for measure, value in values.items()}
        for name, values in report.results.items()
    }


def _usual(index: Index, choice: Choice) -> Method:
    return choice.method if choice.taken else index.method("sharp", sets=["sentences"])


def score(index: Index, data: Path, name: str) -> dict[str, Any]:
    generated = name == "cranfield"
    choice = tune(index)
    index.keep_tuned(None)
    report = evaluate(
        index, data / name, methods(index, _usual(index, choice)),
        exclude=SHOWN if generated else (), leak_gate=GATE if generated else None,
    )  # fmt: skip
    told: dict[str, Any] = {
        "queries": report.queries,
        "results": percent(report),
        "p_against_trad": against(report, "trad"),
        "p_against_paper": against(report, "paper"),
        "tuned": choice.to_json(),
    }
    if report.gated is not None:
        told["leak_gate"] = {
            "cosine": GATE, "left_out": dict(report.left_out), "results": percent(report.gated),
        }  # fmt: skip
    return told


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--indexes", type=Path)
    parser.add_argument("--embedders", default="wordllama,minilm")
    parser.add_argument("--collections", default="scifact,nfcorpus,cranfield")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(args.output.read_text("utf-8")) if args.output.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for embedder in args.embedders.split(","):
            for name in args.collections.split(","):
                path = (args.indexes or Path(folder)) / f"{embedder}-{name}.index"
                with build(path, args.data, name, embedder) as index:
                    told = score(index, args.data, name)
                found.setdefault(embedder, {})[name] = told
                args.output.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
                for method, values in told["results"].items():
                    print(f"{embedder:10} {name:10} {method:22}", values, flush=True)
    print(json.dumps({e: {n: of["results"] for n, of in c.items()} for e, c in found.items()}))


if __name__ == "__main__":
    main()
