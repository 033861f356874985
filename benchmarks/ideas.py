"""What was tried beyond the formula: the tables of docs/log.md, "Beyond the formula".

    python benchmarks/ideas.py --indexes FOLDER --data DATA [--cases minilm-scifact,…]

FOLDER holds the indexes ``benchmarks/quality.py --indexes FOLDER`` makes. Every idea is scored on
the documents that may come into the first ten: the best 120 by their own vector, by their best
query, and by both together. The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strop import Index
from strop.common.arrays import unit_rows
from strop.io.datasets import read_dataset
from strop.search.whitening import Whitening
from strop.types import Vectors

Doubles = NDArray[np.float64]
SHOWN = {"1", "3", "9", "11", "12"}
DEPTH, OTHERS, CHUNK = 120, 500, 150
DISCOUNT = 1 / np.log2(np.arange(2, 12))
Map = Callable[[Vectors], Vectors]


class Case:
    """The vectors of one index, its test queries and what is relevant."""

    def __init__(self, index: Index, data: Path, sets: tuple[str, ...]) -> None:
        dataset = read_dataset(data)
        queries = {
            id_: text for id_, text in dataset.queries.items()
            if not (data.name == "cranfield" and id_ in SHOWN)
        }  # fmt: skip
        self.asked = index.embed_queries(list(queries.values()))
        ids = index.ids()
        place = {id_: at for at, id_ in enumerate(ids)}
        self.grades = [
            {place[id_]: grade for id_, grade in dataset.qrels[query].items() if id_ in place}
            for query in queries
        ]
        with index._catalog.reading():
            snapshot, layout = index._layout(index.method("sharp", sets=sets))
            assert len(snapshot.numbers) == len(ids)
            self.documents = np.stack([layout.document(at) for at in range(len(ids))])
            lists = [layout.queries(at) for at in range(len(ids))]
        self.texts = [index.get(id_) for id_ in ids]
        self.queries = [[text for name in sets for text in index.queries_of(id_)[name]]
                        for id_ in ids]  # fmt: skip
        self.embed = index.embed_documents
        self._set(lists)

    def _set(self, lists: list[Vectors]) -> None:
        self.rows = np.concatenate(lists)
        self.owner = np.repeat(np.arange(len(lists)), [len(list_) for list_ in lists])
        self.ends = np.cumsum([0, *(len(list_) for list_ in lists)])

    def lists(self) -> list[Vectors]:
        return [self.rows[a:b] for a, b in pairwise(self.ends.tolist())]

    def embedded(self, texts: list[list[str]]) -> list[Vectors]:
        """Embed other lists of texts, one a document."""
        rows = self.embed([text for list_ in texts for text in list_])
        ends = np.cumsum([0, *map(len, texts)]).tolist()
        return [rows[a:b] for a, b in pairwise(ends)]

    def other(self, lists: list[Vectors] | None = None, documents: Vectors | None = None) -> Case:
        """Return the same case with other lists, or other vectors of the documents."""
        made = copy.copy(self)
        if lists is not None:
            made._set(lists)
        if documents is not None:
            made.documents = documents
        return made

    def ndcg(self, query: int, places: NDArray[np.int64], scores: Doubles) -> float:
        grades = self.grades[query]
        ranked = places[np.argsort(-scores, kind="stable")[:10]]
        ideal = sorted(grades.values(), reverse=True)[:10]
        best = float(np.dot(ideal, DISCOUNT[: len(ideal)]))
        found = [grades.get(int(at), 0) for at in ranked]
        return float(np.dot(found, DISCOUNT[: len(found)])) / best if best else 0.0


class Idea:
    """One way to score; the defaults are the formula with alpha 1 and temperature 0.1.

    ``space`` maps all vectors; ``weight`` adds to the logit of each stored query; ``mean`` adds
    that much of the mean query; ``power`` is the share of the division by the length of d*;
    ``strength`` scales alpha for each document; ``feedback`` is from how many, and how much,
    ``towards`` what of them: the document, d*, or its query that is nearest the asked one.
    ``against`` takes off that much of what the queries of so many neighbours are nearer.
    """

    def __init__(
        self,
        space: Map | None = None,
        *,
        alpha: float = 1.0,
        weight: Doubles | None = None,
        mean: float = 0.0,
        power: float = 1.0,
        strength: Doubles | None = None,
        feedback: tuple[int, float] = (0, 0.0),
        towards: str = "document",
        against: tuple[int, float] = (0, 0.0),
    ) -> None:
        self.space = space or (lambda vectors: vectors)
        self.alpha, self.weight, self.mean, self.power = alpha, weight, mean, power
        self.strength, self.feedback = strength, feedback
        self.towards, self.against = towards, against


def run(case: Case, idea: Idea) -> float:
    """Return the nDCG@10 of an idea, in percent."""
    asked, documents, rows = (idea.space(v) for v in (case.asked, case.documents, case.rows))
    values = []
    near = neighbours(documents, idea.against[0]) if idea.against[0] else None
    for query, vector in enumerate(asked):
        places, scores = score(case, idea, vector, documents, rows)
        if near is not None:
            peak = peaks(case, rows @ vector)
            lost = peak[near[places]].mean(axis=1) - peak[places]
            scores = scores - idea.against[1] * np.maximum(lost, 0)
        if idea.feedback[0]:
            first = places[np.argsort(-scores, kind="stable")[: idea.feedback[0]]]
            found = [aim(case, idea, vector, documents, rows, int(place)) for place in first]
            moved = vector + idea.feedback[1] * np.mean(found, axis=0)
            places, scores = score(case, idea, unit_rows(moved[None])[0], documents, rows)
        values.append(case.ndcg(query, places, scores))
    return 100 * float(np.mean(values))


def neighbours(documents: Vectors, n: int) -> NDArray[np.int64]:
    near = documents @ documents.T
    np.fill_diagonal(near, -1)
    return np.argpartition(-near, n, axis=1)[:, :n]


def peaks(case: Case, sims: Vectors) -> Doubles:
    """Return each document's largest of its queries' cosines; 0 where it has none."""
    has = np.diff(case.ends) > 0
    peak = np.zeros(len(has))
    peak[has] = np.maximum.reduceat(sims, case.ends[:-1][has])
    return peak


def aim(
    case: Case, idea: Idea, vector: Vectors, documents: Vectors, rows: Vectors, place: int
) -> Vectors:
    """Return what feedback moves the query towards."""
    own = rows[case.ends[place] : case.ends[place + 1]]
    found: Vectors = documents[place]
    if idea.towards != "document" and len(own):
        sims = own @ vector
        weights = np.exp((sims - sims.max()) / 0.1)
        best = own[sims.argmax()]
        built = documents[place] + weights @ own / weights.sum()
        found = best if idea.towards == "winner" else unit_rows(built[None])[0]
    return found


def score(
    case: Case, idea: Idea, vector: Vectors, documents: Vectors, rows: Vectors
) -> tuple[NDArray[np.int64], Doubles]:
    plain, sims = documents @ vector, rows @ vector
    peak = peaks(case, sims)
    places = np.unique(
        np.concatenate([np.argsort(-x)[:DEPTH] for x in (plain, peak, plain + peak)])
    )
    scores = np.empty(len(places))
    for at, place in enumerate(places):
        part = slice(case.ends[place], case.ends[place + 1])
        own, built = sims[part].astype(np.float64), documents[place].astype(np.float64)
        if len(own):
            logits = own / 0.1 + (0 if idea.weight is None else idea.weight[part])
            weights = np.exp(logits - logits.max())
            alpha = idea.alpha * (1 if idea.strength is None else idea.strength[place])
            built = built + (alpha * weights / weights.sum() + idea.mean / len(own)) @ rows[part]
        length = float(np.linalg.norm(built))
        scores[at] = vector @ built / max(length, 1e-9) ** idea.power
    return places, scores


def ideas(case: Case) -> dict[str, Idea]:
    rows, owner, sizes = case.rows, case.owner, np.diff(case.ends)
    near = np.einsum("ij,ij->i", rows, case.documents[owner]).astype(np.float64)
    others = rows[np.random.default_rng(0).choice(len(rows), OTHERS, replace=False)]
    centre = rows.mean(axis=0)
    axis = np.linalg.eigh(np.cov((rows - centre).T))[1][:, -1:].astype(np.float32)
    half = Whitening([rows], 0.5)
    log = np.log1p(sizes)
    spread = np.bincount(owner, 1 - near, len(sizes)) / np.maximum(sizes, 1)
    first = np.zeros(len(rows))
    first[case.ends[:-1][sizes > 0]] = 1
    position = np.arange(len(rows)) - case.ends[owner]
    return {
        "the formula": Idea(),
        "whitened by half": Idea(half.apply),
        "whitened by a quarter": Idea(Whitening([rows], 0.25).apply),
        "whitened fully": Idea(Whitening([rows], 1.0).apply),
        "by half, of documents": Idea(Whitening([case.documents], 0.5).apply),
        "centred only": Idea(lambda vectors: unit_rows(vectors - centre)),
        "first direction removed": Idea(
            lambda v: unit_rows((v - centre) - ((v - centre) @ axis) @ axis.T)
        ),
        "generic queries weigh less": Idea(weight=-5 * (rows @ others.T).mean(axis=1)),
        "plus half the mean": Idea(mean=0.5),
        "minus a quarter of it": Idea(mean=-0.25),
        "half the division": Idea(power=0.5),
        "alpha by number": Idea(strength=log / log.mean()),
        "alpha by spread": Idea(strength=spread / spread.mean()),
        "unlike queries weigh more": Idea(weight=-2 * near),
        "title weighs more": Idea(weight=first),
        "earlier sentences weigh more": Idea(weight=-0.3 * np.log1p(position)),
        "whitened, feedback of 2": Idea(half.apply, feedback=(2, 0.2)),
        "whitened, feedback of 3": Idea(half.apply, feedback=(3, 0.2)),
        "feedback of 2": Idea(feedback=(2, 0.2)),
        "feedback of 2 towards d*": Idea(feedback=(2, 0.2), towards="d*"),
        "feedback of 2 towards its best query": Idea(feedback=(2, 0.2), towards="winner"),
        "against 3 neighbours": Idea(against=(3, 0.25)),
        "against 10 neighbours": Idea(against=(10, 0.25)),
    }


def other_texts(case: Case) -> dict[str, Callable[[], Case]]:
    """Return the ideas that embed other texts than title and sentences."""
    titled = [
        [f"{of.title}. {text}" if of.title and text != of.title else text for text in own]
        for of, own in zip(case.texts, case.queries, strict=True)
    ]
    pairs = [
        [f"{a} {b}" for a, b in pairwise(own[bool(of.title) :])]
        for of, own in zip(case.texts, case.queries, strict=True)
    ]
    words = [of.content.split() for of in case.texts]
    chunks = [
        [" ".join(of[at : at + CHUNK]) for at in range(0, max(1, len(of)), CHUNK)] for of in words
    ]

    def both(texts: list[list[str]]) -> Case:
        made = case.embedded(texts)
        return case.other([np.concatenate(two) for two in zip(case.lists(), made, strict=True)])

    def mean() -> Case:
        return case.other(
            documents=unit_rows(np.stack([of.mean(axis=0) for of in case.embedded(chunks)]))
        )

    return {
        "title before each sentence": lambda: case.other(case.embedded(titled)),
        "with and without title": lambda: both(titled),
        "and pairs of sentences": lambda: both(pairs),
        "and chunks of 150 words": lambda: both(chunks),
        "d is the mean of chunks": mean,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--indexes", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    names = [f"{e}-{c}" for e in ("wordllama", "minilm") for c in ("scifact", "nfcorpus")]
    names += ["wordllama-cranfield", "minilm-cranfield"]
    parser.add_argument("--cases", default=",".join(names))
    parser.add_argument("--ideas", default="", help="only those whose names hold one of these")
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name in args.cases.split(","):
        with Index.open(args.indexes / f"{name}.index") as index:
            mixes: list[tuple[str, ...]] = [("sentences",)]
            if "simple" in index.info()["sets"]:
                mixes.append(("simple", "contrastive"))
            for sets in mixes:
                case = Case(index, args.data / name.partition("-")[2], sets)
                tried: dict[str, tuple[Callable[[], Case], Idea]] = {
                    label: (case.other, idea) for label, idea in ideas(case).items()
                }
                if sets == ("sentences",):
                    tried |= {label: (of, Idea()) for label, of in other_texts(case).items()}
                for label, (of, idea) in tried.items():
                    if any(part in label for part in args.ideas.split(",")):
                        value = round(run(of(), idea), 2)
                        found.setdefault(f"{name} {'+'.join(sets)}", {})[label] = value
                        print(f"{name:20} {'+'.join(sets):20} {label:30} {value}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
