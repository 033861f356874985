"""The small values that travel between the parts of strop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Kind = Literal["document", "query"]
"""What a text is to the embedder: many models embed the two differently."""

Vectors = NDArray[np.float32]
"""float32, one row per text, rows of length one (or all zero for a text with nothing in it)."""

Progress = Callable[[str, int, int], None]
"""Told how far long work is: ``progress(label, done, total)``."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document. ``metadata`` holds whatever else its source said, as JSON values."""

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The text that is embedded: title and body, as BEIR and MTEB join them."""
        return f"{self.title} {self.text}".strip()


class Hits(NamedTuple):
    """Ranked documents, a row for each query; rows are best first and of equal length.

    ``ids`` is an object array of document ids and ``scores`` a float32 array, both of shape
    (queries, k), where k is at most the number of documents in the index.
    """

    ids: NDArray[np.object_]
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class Dataset:
    """Test queries with relevance judgements: ``qrels[query id][document id] = grade``.

    ``excluded`` lists documents that are left out of a query's ranking, as BRIGHT has them.
    """

    name: str
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)
