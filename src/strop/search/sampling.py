"""Random samples of stored queries, to choose settings and to measure the prefilter's recall."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from strop.common.arrays import unit_rows
from strop.methods import check_count
from strop.search.rows import as_floats
from strop.search.searcher import Searcher
from strop.types import Vectors


def sample_queries(
    searcher: Searcher, style: str, limit: int
) -> tuple[list[str], list[str], Vectors]:
    """Return up to ``limit`` stored queries of a set: document ids, texts and vectors (n, dim)."""
    set_ = searcher.require(style)
    with searcher.catalog.reading():
        snapshot = searcher.views.snapshot()
        spans = snapshot.sets[style]
        ends = np.cumsum(spans.count)
        drawn = np.sort(np.random.default_rng(0).permutation(int(spans.count.sum()))[:limit])
        places = np.searchsorted(ends, drawn, "right")
        which = drawn - (ends - spans.count)[places]
        numbers = snapshot.numbers[places].tolist()
        ids = searcher.catalog.documents.document_ids_of(numbers)
        lists = searcher.views.texts_of(set_, numbers)
    texts = [lists[number][at] for number, at in zip(numbers, which.tolist(), strict=True)]
    rows = as_floats(np.array(spans.vectors[spans.start[places] + which]))
    return [ids[number] for number in numbers], texts, rows


def measure_recall(searcher: Searcher, n: int, k: int = 10) -> dict[str, Any]:
    """Compare the best k of approximate and exact searches, for n queries of two kinds.

    Half are stored queries. The others are unlike any stored one: each is the sum of a stored
    query and of a copy of it with its values shuffled. Both are searched by their vectors.
    """
    n, k = check_count("n", n), check_count("k", k)
    method = replace(searcher.method("sharp"), words=0.0)
    with searcher.catalog.reading():
        layout = searcher.views.of(method).layout
        rng = np.random.default_rng(0)
        drawn = rng.permutation(np.flatnonzero(np.diff(layout.offsets)))[:n]
        samples = [rng.choice(layout.queries(place)) for place in drawn.tolist()]
        stored = np.array(samples, np.float32).reshape(-1, layout.dim)
        half = len(stored) // 2
        shuffled = np.random.default_rng(1).permuted(stored[:half], axis=1)
        rows = np.concatenate([stored[half:], unit_rows(stored[:half] + shuffled)])
        used = searcher.prefilter(method, k) is not None
        quick, exact = (searcher.search(rows, [], k, method, flag).ids for flag in (False, True))
    shared = np.array(
        [len(set(a) & set(b)) / max(1, len(b)) for a, b in zip(quick, exact, strict=True)]
    )
    kinds = {
        "overlap": shared,
        "stored": shared[: len(rows) - half],
        "unlike": shared[len(rows) - half :],
    }
    return {
        "queries": len(rows), "k": k, "two_stage": used,
        **{kind: float(part.mean()) if len(part) else 1.0 for kind, part in kinds.items()},
        "worst": float(shared.min(initial=1.0)),
    }  # fmt: skip
