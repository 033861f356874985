"""The small values that the packages of strop pass to each other.

Nothing here loads numpy: every command imports this file, even ``strop --help``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from strop.engines.published import Published
    from strop.index import Index

Kind = Literal["document", "query"]
"""The role of a text for the embedder: many models embed the two differently."""

Vectors: TypeAlias = "NDArray[np.float32]"
"""float32, one row per text. Rows have length one; the row of a text without words is zero."""

HIT_FIELDS = ("id", "score", "title", "text", "metadata", "passage", "chunk")
"""The fields of a hit."""

Progress = Callable[[str, int, int], None]
"""Called during long work: ``progress(label, done, total)``."""

Collection: TypeAlias = "Index | Published"
"""A searchable object (``strop.connect``): server and adapters use what both classes have."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document. ``metadata`` has the other fields of its source, as JSON values."""

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The text that is embedded: title and body, joined as BEIR and MTEB join them."""
        return f"{self.title} {self.text}".strip()

    @property
    def counted(self) -> str:
        """The text whose words are counted: those of the title count twice (docs/log.md)."""
        return f"{self.title} {self.content}".strip()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document, searched by itself (docs/python.md).

    ``start`` and ``end`` are its place in the document's text, ``headings`` the headings above it,
    outermost first.
    """

    id: str
    document: str
    text: str
    start: int
    end: int
    headings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        values = {name: getattr(self, name) for name in ("id", "document", "text", "start", "end")}
        return {**values, "headings": list(self.headings)}


@dataclass(frozen=True)
class Changes:
    """How many documents ``Index.add`` found new, changed and unchanged; ``empty`` have no text.

    ``removed``: those whose files are gone (``Index.sync``).
    """

    new: int
    changed: int
    unchanged: int
    empty: int
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """The stored text of a document that is nearest to the query.

    ``start`` and ``end`` are its place in the document's text; None if it is not there but in the
    title or in a query of the set ``source``.
    """

    text: str
    start: int | None
    end: int | None
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"text": self.text, "start": self.start, "end": self.end, "source": self.source}


@dataclass(frozen=True, slots=True)
class Hit:
    """A document, or a chunk of one, that was found, in the version that was scored.

    ``chunk`` is the part of the document that was found, None if documents are not split.
    """

    id: str
    score: float
    title: str = ""
    text: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    passage: Passage | None = None
    chunk: Chunk | None = None

    def to_dict(self, fields: Sequence[str] = HIT_FIELDS) -> dict[str, Any]:
        """Return the hit, or some of its fields, as JSON values; ``chunk`` only if it has one."""
        values = {name: getattr(self, name) for name in HIT_FIELDS}
        values["metadata"] = dict(self.metadata)
        values["passage"] = self.passage and self.passage.to_dict()
        values["chunk"] = self.chunk and self.chunk.to_dict()
        return {name: values[name] for name in fields if name != "chunk" or self.chunk}


@dataclass(frozen=True)
class Hits:
    """Ranked documents: ``hits[0]`` are those of the first query, a list of ``Hit``, best first.

    ``ids`` is an object array of document ids and ``scores`` a float32 array, both of shape
    (queries, k), where k is at most the number of documents that were searched. ``rows`` has
    their fields; a search for ids and scores alone leaves it out.
    """

    ids: NDArray[np.object_]
    scores: NDArray[np.float32]
    rows: Sequence[Sequence[Hit]] | None = None

    def __len__(self) -> int:
        """The number of queries."""
        return len(self.ids)

    def __getitem__(self, query: int) -> list[Hit]:
        """Return the hits of one query."""
        if self.rows is not None:
            return list(self.rows[query])
        pairs = zip(self.ids[query].tolist(), self.scores[query].tolist(), strict=True)
        return [Hit(id_, score) for id_, score in pairs]

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[query] for query in range(len(self)))

    def to_dict(self, fields: Sequence[str] = HIT_FIELDS) -> list[list[dict[str, Any]]]:
        """Return all hits, a list for each query, as JSON values."""
        return [[hit.to_dict(fields) for hit in row] for row in self]


@dataclass(frozen=True)
class Dataset:
    """Test queries with relevance judgements: ``qrels[query id][document id] = grade``.

    ``excluded`` lists the documents to leave out of a query's ranking, as BRIGHT does.
    """

    name: str
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)
