"""How words should enter the score: the table of docs/log.md, "Words inside the score".

    python benchmarks/words.py --indexes FOLDER --data DATA [--cases wordllama-scifact,…]

FOLDER holds the indexes ``benchmarks/quality.py --indexes FOLDER`` makes; those of the further
cases (XQuAD, and the documentation of this Python with the demo's questions) are made there if
missing. The weight of words was chosen looking at all of them: none is held out. Cases are
sharpened by sentences, alpha 1, T 0.1; every document is ranked. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ideas import DISCOUNT, SHOWN
from numpy.typing import NDArray

from strop import Index
from strop.cli.demo import read_questions
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.io.stdlib_docs import read_stdlib
from strop.search.words import Words, fuse

Doubles = NDArray[np.float64]
CASES = [f"{e}-{c}" for e in ("wordllama", "minilm") for c in ("scifact", "nfcorpus", "cranfield")]
FURTHER = ["wordllama-python", "wordllama-xquad-hi", "wordllama-xquad-th"]
SHARES = (0.1, 0.25, 0.5, 1.0, 2.0)
TOPS = (0.1, 0.2, 0.3, 0.5)
SPREADS = (0.1, 0.3, 0.5, 1.0)


def opened(path: Path, embedder: str, collection: str, data: Path) -> Index:
    """Open an index, made if it is not there."""
    if (path / "catalog.sqlite").exists():
        return Index.open(path)
    index = Index.create(path, embedder)
    index.sharpen("sentences")
    index.add(read_stdlib() if collection == "python" else read_corpus(data / collection))
    return index


class Scores:
    """All dense scores and all BM25 scores of one case's queries (queries, documents)."""

    def __init__(self, index: Index, collection: str, data: Path) -> None:
        dataset = read_questions() if collection == "python" else read_dataset(data / collection)
        queries = {
            id_: text for id_, text in dataset.queries.items()
            if not (collection == "cranfield" and id_ in SHOWN)
        }  # fmt: skip
        texts = list(queries.values())
        ids = index.ids()
        place = {id_: at for at, id_ in enumerate(ids)}
        self.grades = [
            {place[id_]: grade for id_, grade in dataset.qrels[query].items() if id_ in place}
            for query in queries
        ]
        self.trad, self.sharp = (
            self._all(index, texts, method, len(ids))
            for method in ("trad", "sharp:sets=sentences:words=0")
        )
        words = Words(index.get(id_).content for id_ in ids)
        self.bm25: Doubles = np.array(
            [words._scores(of) for of in words._tokens(texts)], np.float64
        )
        self.share: Doubles = np.array([words.share(text) for text in texts], np.float64)

    @staticmethod
    def _all(index: Index, texts: list[str], method: str, size: int) -> Doubles:
        hits = index.search(texts, size, method, exact=True)
        place = {id_: at for at, id_ in enumerate(index.ids())}
        scores = np.empty(hits.scores.shape)
        for row, (ids, of) in enumerate(zip(hits.ids.tolist(), hits.scores, strict=True)):
            scores[row, [place[id_] for id_ in ids]] = of
        return scores

    def ndcg(self, scores: Doubles) -> float:
        """Return the nDCG@10 of these scores, in percent."""
        values = []
        for row, grades in zip(scores, self.grades, strict=True):
            first = np.argsort(-row, kind="stable")[:10]
            found = [max(0, grades.get(int(at), 0)) for at in first]
            ideal = sorted(grades.values(), reverse=True)[:10]
            best = float(np.dot(ideal, DISCOUNT[: len(ideal)]))
            values.append(float(np.dot(found, DISCOUNT[: len(found)])) / best if best else 0.0)
        return round(100 * float(np.mean(values)), 2)

    def ways(self) -> Iterator[tuple[str, Doubles]]:
        """Yield each way to mix the two, by name."""
        dense, bm25 = self.sharp, self.bm25
        yield "trad", self.trad
        yield "sharp", dense
        yield "BM25", bm25
        yield "reciprocal ranks", self._by_rank()
        for weight in TOPS:
            yield (
                f"+ {weight:g} of the best score",
                dense + weight * bm25 / _least(bm25.max(axis=1)),
            )
        for weight in SPREADS:
            yield f"+ {weight:g}, both by their spread", _spread(dense) + weight * _spread(bm25)
        for weight in SHARES:
            yield f"words={weight:g}", dense + weight * self.share
        yield "trad:words=1", self.trad + self.share

    def _by_rank(self) -> Doubles:
        scores = np.zeros_like(self.sharp)
        size = self.sharp.shape[-1]
        for row in range(len(scores)):
            ranked = []
            for of in (self.sharp[row], self.bm25[row]):
                places = np.argsort(-of, kind="stable")[:1000]
                ranked.append((of[places][None].astype(np.float32), places[None]))
            best, places = fuse(ranked, size, size)
            scores[row, places[0]] = best[0]
        return scores


def _spread(scores: Doubles) -> Doubles:
    centred = scores - scores.mean(axis=1, keepdims=True)
    evened: Doubles = centred / _least(scores.std(axis=1))
    return evened


def _least(values: Doubles) -> Doubles:
    return np.maximum(values, 1e-9)[:, None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--indexes", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cases", default=",".join(CASES + FURTHER))
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for case in args.cases.split(","):
        embedder, _, collection = case.partition("-")
        path = args.indexes / f"{case}.index"
        with opened(path, embedder, collection, args.data) as index:
            scores = Scores(index, collection, args.data)
        found[case] = {name: scores.ndcg(mixed) for name, mixed in scores.ways()}
        for name, value in found[case].items():
            print(f"{case:20} {name:30} {value:.2f}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
