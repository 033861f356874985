"""The small values that the packages of strop hand to each other.

Nothing here loads numpy: every command imports this file, also ``strop --help``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["document", "query"]
"""What a text is to the embedder: many models embed the two differently."""

Vectors: TypeAlias = "NDArray[np.float32]"
"""float32, one row per text. Rows have length one; the row of a text without words is zero."""

Progress = Callable[[str, int, int], None]
"""Called during long work: ``progress(label, done, total)``."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document. ``metadata`` holds the other fields of its source, as JSON values."""

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The text that is embedded: title and body, joined as BEIR and MTEB join them."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True)
class Changes:
    """How many documents ``Index.add`` found new, changed and unchanged; ``empty`` have no text."""

    new: int
    changed: int
    unchanged: int
    empty: int


class Hits(NamedTuple):
    """Ranked documents, one row per query; rows are best first and of equal length.

    ``ids`` is an object array of document ids and ``scores`` a float32 array, both of shape
    (queries, k), where k is at most the number of documents in the index.
    """

    ids: NDArray[np.object_]
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class Dataset:
    """Test queries with relevance judgements: ``qrels[query id][document id] = grade``.

    ``excluded`` lists the documents to leave out of a query's ranking, as BRIGHT does.
    """

    name: str
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)
