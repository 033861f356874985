"""Every method on real collections: nDCG@10, R@50, AP@50 and significance.

    python benchmarks/quality.py --data DATA [--indexes FOLDER] [--embedders wordllama,minilm]
        [--collections scifact,nfcorpus,…] [--output benchmarks/results/quality.json]
        [--protocol] [--quick]

DATA holds collections in BEIR's layout; queries in ``<collection>/generated`` are used where there
are any, else the documents' sentences. An index that is in FOLDER already is used as it is, and
vectors of slow embedders are cached (STROP_CACHE).

``peers`` are methods without sharpening: plain search, BM25, their fusion by rank, words in the
score; ``+sets`` gives them the words of the same generated queries that ``sharp`` has. p-values are
of two-sided paired t-tests (Holm): against plain search, against the paper's formula (alpha 1,
T 1), and against the best peer of the column. ``tuned`` is ``sharp`` with what ``strop tune`` chose
without labels, ``sharp, dense`` the default without words and feedback. Cranfield is scored
without the five queries the generator saw, and again behind a leak gate of 0.9.

``--protocol`` leaves one collection out at a time instead (protocol.py): alpha, temperature, the
weights of words and feedback are chosen on the others.

``--quick`` leaves out ``tuned`` and the methods that embed the documents again.

``CHOICES`` says which collections had a part in which choice; ``held out`` in the results are
those that had none. Results are merged into the output; the last line is JSON. Render them into
README.md with ``python benchmarks/render_quality.py``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol import Scores, leave_one_out, measure, table

from strop import METHODS, Index, Method, Report, evaluate
from strop.embed import load
from strop.errors import BadInput
from strop.evaluation.scoring import select_queries, significance
from strop.evaluation.tune import Choice, default_sharp, tune
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset, read_query_lists
from strop.types import Dataset

COLLECTIONS = (
    "scifact", "nfcorpus", "cranfield", "nq-utd", "medline", "time", "lisa", "xquad-hi", "xquad-th",
)  # fmt: skip
SHOWN = {"cranfield": ("1", "3", "9", "11", "12")}
"""Test queries that the generator saw as examples of style."""
GATE = 0.9
GENERATED = ("simple", "contrastive")
PEERS = ("trad", "bm25", "hybrid", "trad+words", "bm25+sets", "hybrid+sets", "trad+words+sets")
RESULTS = Path(__file__).parent / "results" / "quality.json"

CHOICES = {
    "temperature 0.1, alpha 1": ("scifact", "nfcorpus", "cranfield"),
    "words in the score": ("scifact", "nfcorpus", "cranfield", "python", "xquad-hi", "xquad-th"),
    "words over the length of the query, titles twice": (
        "scifact", "nfcorpus", "cranfield", "nq-utd", "medline", "time", "lisa",
    ),
    "feedback 3 among 50, with WordLlama; words 1.1 with WordLlama": (
        "scifact", "nfcorpus", "cranfield", "nq-utd", "medline", "time", "lisa", "python", "man",
    ),
    "words 0.45 with all others": (
        "scifact", "nfcorpus", "cranfield", "nq-utd", "medline", "time", "lisa",
    ),
    "words 2 where the embedder does not know the language": ("xquad-hi", "xquad-th", "time"),
    "capitals in lower case": ("time", "lisa", "scifact", "medline"),
    "no whitening": COLLECTIONS,  # with MiniLM: medline, cranfield, time, nq-utd only
    "where a sentence ends, int8 vectors": ("scifact", "nfcorpus", "cranfield"),
}  # fmt: skip
"""Which collections' test queries had a part in which choice; docs/log.md has the trials."""


def build(path: Path, data: Path, embedder: str) -> Index:
    """Open the index of a collection, made if it is not there."""
    model = load(embedder, cache=True)
    if (path / "catalog.sqlite").exists():
        return Index.open(path, model)
    index = Index.create(path, model)
    index.sharpen("sentences")
    index.add(read_corpus(data))
    for style in GENERATED:
        file = data / "generated" / f"{style}.jsonl"
        if file.exists():
            index.import_queries(read_query_lists(str(file)), style)
    return index


def methods(index: Index, tuned: Method | None) -> list[Method]:
    """Return the methods to compare; ``paper`` is its formula on the best sets at hand."""
    generated = set(GENERATED) <= set(index.query_sets())
    sets = GENERATED if generated else ("sentences",)
    sharp = replace(default_sharp(index), sets=sets)
    every = replace(default_sharp(index), name="sharp")  # as installed: all sets
    without = replace(sharp, name="sharp, dense", words=0.0, feedback=0.0)
    compared = [
        METHODS["trad"],
        METHODS["bm25"],
        METHODS["hybrid"],
        replace(METHODS["trad"], name="trad+words", words=sharp.words),
        replace(METHODS["maxsim"], sets=sets),
        replace(without, name="paper", temperature=1.0),
        without,
        every,
        replace(every, name="sharp, no feedback", feedback=0.0),
        replace(without, name="hybrid:of=sharp", bm25="fused"),
    ]
    if tuned is not None:
        compared.append(replace(tuned, name="tuned"))
    if generated:
        compared += [METHODS[name] for name in ("consharp", "simsharp", "indexsharp")]
        if tuned is not None:
            compared += [METHODS[name] for name in ("doc2query", "docexp")]
        compared.append(replace(sharp, name="sharp:sets=sentences", sets=("sentences",)))
        compared.append(replace(sharp, name="sharp:sets=simple+contrastive"))
        compared += _with_sets(index)
    return compared


def _with_sets(index: Index) -> list[Method]:
    """Return the peers that count the words of generated queries, as far as they exist."""
    found = []
    mixed = f"sets={'+'.join(GENERATED)}"
    for name, spec in (
        ("bm25+sets", f"bm25:{mixed}"),
        ("hybrid+sets", f"hybrid:{mixed}"),
        ("trad+words+sets", f"trad:words={default_sharp(index).words}:{mixed}"),
    ):
        try:
            found.append(replace(index.method(spec), name=name))
        except BadInput as error:
            print(f"left out: {error}")
    return found


def percent(report: Report) -> dict[str, dict[str, float]]:
    return {
        name: {measure: round(100 * value, 2) for measure, value in values.items()}
        for name, values in report.results.items()
    }


def score(index: Index, data: Path, quick: bool) -> dict[str, Any]:
    choice: Choice | None = None
    tuned: Method | None = None
    if not quick:
        choice = tune(index)
        tuned = index.method("sharp")
        index.keep_tuned(None)
    shown = SHOWN.get(data.name, ())
    report = evaluate(
        index, data, methods(index, tuned), exclude=shown,
        leak_gate=GATE if shown else None,
    )  # fmt: skip
    peers = [name for name in PEERS if name in report.results]
    peer = max(peers, key=lambda name: report.results[name]["nDCG@10"])
    figures: dict[str, Any] = {
        "queries": report.queries,
        "results": percent(report),
        "best_peer": peer,
        "p_against_trad": significance(report.per_query, "trad"),
        "p_against_paper": significance(report.per_query, "paper"),
        "p_against_peer": significance(report.per_query, peer),
        "tuned": choice and choice.to_json(),
        "held_out_of": [what for what, names in CHOICES.items() if data.name not in names],
    }
    if report.gated is not None:
        figures["leak_gate"] = {
            "cosine": GATE, "left_out": dict(report.left_out), "results": percent(report.gated),
        }  # fmt: skip
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--indexes", type=Path)
    parser.add_argument("--embedders", default="wordllama,minilm")
    parser.add_argument("--collections", default=",".join(COLLECTIONS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="without tuned, doc2query, docexp")
    parser.add_argument("--protocol", action="store_true", help="leave one collection out")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(args.output.read_text("utf-8")) if args.output.exists() else {}
    for what, names in CHOICES.items():
        print(f"{what}: chosen on {', '.join(names)}")
    with tempfile.TemporaryDirectory() as folder:
        for embedder in args.embedders.split(","):
            left_out: dict[str, Scores] = {}
            for name in args.collections.split(","):
                path = (args.indexes or Path(folder)) / f"{embedder}-{name}.index"
                with build(path, args.data / name, embedder) as index:
                    if args.protocol:
                        left_out[name] = measure(index, _scored(args.data / name))
                        print(f"{embedder:10} {name:10} {left_out[name].default}", flush=True)
                        continue
                    figures = score(index, args.data / name, args.quick)
                results.setdefault(embedder, {})[name] = figures
                _write(args.output, results)
                for method, values in figures["results"].items():
                    print(f"{embedder:10} {name:10} {method:22}", values, flush=True)
            if args.protocol:
                results.setdefault("protocol", {})[embedder] = leave_one_out(left_out)
                _write(args.output, results)
                print(table(results["protocol"][embedder]), flush=True)
    told = results.pop("protocol", None)
    every = {e: {n: of["results"] for n, of in c.items()} for e, c in results.items()}
    print(json.dumps(told if args.protocol else every))


def _scored(data: Path) -> Dataset:
    return select_queries(read_dataset(data), SHOWN.get(data.name, ()))


def _write(output: Path, results: dict[str, Any]) -> None:
    output.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
