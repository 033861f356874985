"""Leave one collection out: every setting is chosen on the others and reported on the one left out.

``python benchmarks/quality.py --data DATA --protocol`` runs it. For an embedder and a left-out
collection, the setting with the highest mean nDCG@10 over the other collections is taken, and its
score on the left-out one stands beside the best of the peers: plain search, BM25, their fusion by
rank, plain search with words. Peers see the documents' own text; ``equal`` are the same peers with
the words of the generated queries that ``sharp`` has. Fusion and BM25 have nothing to choose; the
weight of "plain with words" is chosen like the others. Scores are those of the product's own code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from strop import METHODS, Index, Method
from strop.evaluation.tune import default_sharp
from strop.search.feedback import FEEDBACK_DEPTH, with_feedback
from strop.search.ranking import FUSED_DEPTH, fuse
from strop.search.scoring import best_of, score
from strop.types import Dataset

WORDS = (0.2, 0.35, 0.5, 0.8, 1.2, 1.6)
FEEDBACKS = (0.0, 1.5, 3.0, 4.5)
SHARPENING = ((1.0, 0.1), (2.0, 0.1), (1.0, 0.2), (1.0, 0.05))
"""Alpha and temperature."""
Setting = tuple[float, ...]
_DISCOUNT = 1 / np.log2(np.arange(2, 12))


@dataclass(frozen=True)
class Scores:
    """nDCG@10 in percent of one collection: of each setting, of the default and of the peers."""

    tried: Mapping[Setting, float]
    default: float
    peers: Mapping[str, float]
    plain_words: Mapping[float, float]
    equal: Mapping[str, float]
    equal_words: Mapping[float, float]


def measure(index: Index, dataset: Dataset) -> Scores:
    """Score every setting on one collection."""
    texts = list(dataset.queries.values())
    vectors, views = index.embed_queries(texts), index.searcher.views
    default = default_sharp(index)
    numbers = views.snapshot().numbers.tolist()
    ids = index.catalog.documents.ids_of(numbers)
    at = {ids[number]: place for place, number in enumerate(numbers)}
    grades = [
        {at.get(id_, -1 - n): grade for n, (id_, grade) in enumerate(dataset.qrels[query].items())}
        for query in dataset.queries
    ]

    def ndcg(places: np.ndarray[Any, Any]) -> float:
        return round(100 * float(np.mean([*map(_ndcg, places, grades)])), 2)

    def ranked(total: np.ndarray[Any, Any], n: int) -> tuple[Any, Any]:
        every = np.broadcast_to(np.arange(total.shape[1]), total.shape)
        return best_of(total, every, min(n, total.shape[1]))

    def shares(method: Method) -> Any:
        counted = views.words(method)
        return np.array([counted.scores(text) for text in texts])

    layout = views.of(default).layout
    plain = score(vectors, layout.fetched, METHODS["trad"])
    tried: dict[Setting, float] = {}
    words = shares(default)
    for alpha, temperature in SHARPENING:
        method = replace(default, alpha=alpha, temperature=temperature, words=0.0)
        dense = score(vectors, layout.fetched, method)
        for weight in (*WORDS, default.words):
            first = ranked(dense + np.float32(weight) * words, FEEDBACK_DEPTH)
            for feedback in (*FEEDBACKS, default.feedback):
                again = replace(method, feedback=feedback)
                places = with_feedback(first, layout.documents, again, 10)[1]
                tried[alpha, temperature, weight, feedback] = ndcg(places)
    usual = tried[default.alpha, default.temperature, default.words, default.feedback]
    grid: dict[Setting, float] = {}
    for pair, weight, feedback in product(SHARPENING, WORDS, FEEDBACKS):
        key = (*pair, weight, feedback)
        grid[key] = tried[key]

    def peers(words: Any) -> tuple[dict[str, float], dict[float, float]]:
        of_words = ranked(words, FUSED_DEPTH)
        fused = fuse(ranked(plain, FUSED_DEPTH), of_words, layout.size, 10)[1]
        alone = {"bm25": ndcg(of_words[1][:, :10]), "fusion": ndcg(fused)}
        mixed = {w: ndcg(ranked(plain + np.float32(w) * words, 10)[1]) for w in WORDS}
        return {"plain": ndcg(ranked(plain, 10)[1])} | alone, mixed

    own, equal = peers(shares(METHODS["bm25"])), peers(words)
    return Scores(grid, usual, *own, *equal)


def _ndcg(places: Any, grades: Mapping[int, int]) -> float:
    gains = np.array([max(0, grades.get(place, 0)) for place in places.tolist()])
    ideal = np.array(sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:10])
    best = float(ideal @ _DISCOUNT[: len(ideal)])
    return float(gains @ _DISCOUNT[: len(gains)]) / best if best else 0.0


def leave_one_out(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Return what is chosen on the others and scored on each collection, and the means."""
    rows: dict[str, Any] = {}
    for name, own in scores.items():
        others = [other for other in scores if other != name]
        setting = _best({other: scores[other].tried for other in others})
        named = zip(("alpha", "temperature", "words", "feedback"), setting, strict=True)
        row: dict[str, Any] = {
            "chosen_on": others,
            "setting": dict(named),
            "strop": own.tried[setting],
            "default": own.default,
        }
        for kind in ("peers", "equal"):
            mixed = f"{'plain' if kind == 'peers' else kind}_words"
            weight = _best({other: getattr(scores[other], mixed) for other in others})
            values = {**getattr(own, kind), "plain with words": getattr(own, mixed)[weight]}
            best = max(values, key=lambda peer: values[peer])
            row[kind] = {**values, "best": best}
            row[f"above_{kind}"] = round(row["strop"] - values[best], 2)
            row[f"default_above_{kind}"] = round(row["default"] - values[best], 2)
        rows[name] = row
    keys = [f"{one}above_{kind}" for one in ("", "default_") for kind in ("peers", "equal")]
    means = {key: round(float(np.mean([row[key] for row in rows.values()])), 2) for key in keys}
    return {"collections": rows, "mean": means}


def _best(tried: Mapping[str, Mapping[Any, float]]) -> Any:
    """Return the key with the highest mean over the collections."""
    first: Sequence[Any] = list(next(iter(tried.values())))
    return max(first, key=lambda key: sum(of[key] for of in tried.values()))


def table(result: Mapping[str, Any]) -> str:
    """Return a result of ``leave_one_out`` as a Markdown table."""
    lines = [
        "| left out | setting chosen on the others | strop | best peer | above | defaults, above |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in result["collections"].items():
        setting = " ".join(f"{key} {value:g}" for key, value in row["setting"].items())
        peer = row["peers"]["best"]
        lines.append(
            f"| {name} | {setting} | {row['strop']:.2f} | {peer} {row['peers'][peer]:.2f} |"
            f" {row['above_peers']:+.2f} | {row['default_above_peers']:+.2f} |"
        )
    mean = result["mean"]
    lines.append(
        f"| mean | | | | {mean['above_peers']:+.2f} | {mean['default_above_peers']:+.2f} |"
    )
    return "\n".join(lines)
