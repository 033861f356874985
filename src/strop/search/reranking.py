"""Re-ranks the best documents by a model that reads a query and a document together."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from strop.errors import BadInput, MissingExtra
from strop.types import Hit, Hits

Reranker = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
"""A function from pairs of query and document text to their scores; higher is better."""
RERANKED = 50
"""The number of documents that are re-ranked."""
FIELDS = ("id", "score", "title", "text")
"""The fields of hits that ``reranked`` needs."""
_FORM = "rerank:of=METHOD:model=NAME"


def split_rerank(spec: str) -> tuple[str, str]:
    """Read ``rerank:of=sharp:model=NAME``: the method that ranks first, and the model.

    Settings of the method may be between the two; NAME is everything after ``model=``.
    """
    kind, _, rest = spec.partition(":")
    first, separator, model = rest.partition("model=")
    if kind != "rerank" or not first.startswith("of=") or not separator or not model:
        raise BadInput(f"method {spec!r}: write it like {_FORM}")
    return first.removeprefix("of=").rstrip(":"), model


def load_reranker(model: str) -> Reranker:
    """Load a CrossEncoder of sentence-transformers: a folder, or a name on the model hub."""
    if importlib.util.find_spec("sentence_transformers") is None:
        raise MissingExtra(f"the reranker {model!r}", "st")
    from sentence_transformers import CrossEncoder

    try:
        loaded = CrossEncoder(model)
    except (OSError, ValueError) as error:
        raise BadInput(f"{model!r} is no cross-encoder that can be loaded: {error}") from error
    return partial(loaded.predict, show_progress_bar=False)


def reranked(hits: Hits, queries: Sequence[str], model: str | Reranker, k: int) -> Hits:
    """Return the best k by a model among the first 50 hits of each query; the others follow.

    The scores are the model's. Hits after the 50 have the score of the last one.
    """
    if not queries and len(hits):
        raise BadInput("rerank reads the text of the queries: give texts, not vectors alone")
    if hits.rows is None:
        raise BadInput(f"rerank reads the documents' texts: search with fields={FIELDS}")
    reranker = load_reranker(model) if isinstance(model, str) else model
    rows: list[list[Hit]] = []
    for query, row in zip(queries, hits, strict=True):
        top = row[:RERANKED]
        pairs = [(hit.title, hit.chunk.text if hit.chunk else hit.text) for hit in top]
        texts = [f"{title}\n{text}".strip() for title, text in pairs]
        scores = reranker([(query, text) for text in texts]) if top else []
        if len(scores) != len(top):
            raise BadInput(f"the reranker returned {len(scores)} scores for {len(top)} texts")
        rescored = [replace(hit, score=float(s)) for hit, s in zip(top, scores, strict=True)]
        rescored.sort(key=lambda hit: -hit.score)  # stable: equal scores keep their order
        others = [replace(hit, score=rescored[-1].score) for hit in row[RERANKED:]]
        rows.append([*rescored, *others][:k])
    ids = np.empty((len(rows), min(map(len, rows), default=0)), object)
    for at, row in enumerate(rows):
        ids[at] = [hit.id for hit in row]
    new_scores = np.array([[hit.score for hit in row] for row in rows], np.float32)
    return Hits(ids, new_scores.reshape(ids.shape), rows)
