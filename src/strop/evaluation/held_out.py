"""How much words should count, measured without any query: sentences held out of documents.

One sentence is taken out of each of some documents and used as a query for that document. The
documents are scored by the mean of their other sentences' vectors, plus a weight times the share
of the query's words that their other sentences have. Sentences share more words with their
document than users' queries do, so half of the weight that is best for them is taken: on eight of
ten collections that is within a point of the best weight for real queries (docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import unit_rows
from strop.index import Index
from strop.search.sampling import sample_lists
from strop.search.words import count_words
from strop.types import Progress

Doubles = NDArray[np.float64]

WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0)
SENTENCES = 50_000
"""At most so many sentences are compared; of a larger index some documents are drawn."""


@dataclass(frozen=True)
class HeldOut:
    """The weight that half of the sentences chose, and nDCG@10 of each of the other half."""

    weight: float
    without: Doubles
    with_words: Doubles


def measure_words(
    index: Index, name: str, queries: int, progress: Progress | None = None
) -> HeldOut:
    """Choose a weight of words by at most ``queries`` held-out sentences of the set ``name``."""
    lists, vectors = sample_lists(index.searcher, name, SENTENCES)
    ends = np.cumsum([0, *map(len, lists)])
    sums = np.add.reduceat(vectors, ends[:-1], axis=0) if len(lists) else vectors
    rng = np.random.default_rng(0)
    owners = rng.permutation([at for at, texts in enumerate(lists) if len(texts) > 2])[:queries]
    others = [list(texts) for texts in lists]
    texts, rows = [], []
    for owner in owners.tolist():
        which = int(rng.integers(1, len(lists[owner])))  # the first one is often the title
        texts.append(others[owner].pop(which))
        rows.append(int(ends[owner]) + which)
        sums[owner] -= vectors[rows[-1]]
    dense = vectors[rows] @ unit_rows(sums).T
    words = count_words(" ".join(of) for of in others)
    values, halved = np.zeros((2, len(WEIGHTS), len(texts)))
    for at, (text, owner) in enumerate(zip(texts, owners.tolist(), strict=True)):
        share = words.share(text)
        values[:, at] = [_ndcg(dense[at] + weight * share, owner) for weight in WEIGHTS]
        halved[:, at] = [_ndcg(dense[at] + weight / 2 * share, owner) for weight in WEIGHTS]
        if progress is not None:
            progress("trying held-out sentences", at + 1, len(texts))
    best = int(values[:, ::2].mean(axis=1).argmax()) if texts else 0
    return HeldOut(WEIGHTS[best] / 2, values[0, 1::2], halved[best, 1::2])


def _ndcg(scores: NDArray[np.floating], right: int) -> float:
    """Return the nDCG@10 where one document is right."""
    rank = 1 + int((scores > scores[right]).sum())
    return float(1 / np.log2(rank + 1)) if rank <= 10 else 0.0
