"""Split documents in a copy: records are chunks, a piece contains their parent.

A chunk's id is its document's id and a number (``storage.chunks``), so it names the document. A
piece is written before the records of its chunks: a chunk that is found normally has its document.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from strop.common.arrays import Ints
from strop.engines.base import Engine
from strop.filters import Test
from strop.storage.catalog import Catalog
from strop.types import Chunk, Document, Hit, Passage


@dataclass(frozen=True)
class ParentDocument:
    """A document with its chunks by id, in the order of its text."""

    document: Document
    chunks: Mapping[str, Chunk]


def document_id(chunk_id: str) -> str:
    """Return the id of a chunk's document."""
    return chunk_id.rpartition("#")[0]


def piece_name(id_: str) -> str:
    """Return the name of the piece that contains a document."""
    return f"w.{hashlib.blake2b(id_.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def parent_pieces(catalog: Catalog, ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the pieces (name, content) of documents."""
    for id_ in sorted(ids):
        chunks = [asdict(chunk) for chunk in catalog.documents.chunks_of(id_)]
        spans = [
            {key: chunk[key] for key in ("id", "start", "end", "headings")} for chunk in chunks
        ]
        content = {**asdict(catalog.documents.read(id_)), "chunks": spans}
        yield piece_name(id_), json.dumps(content).encode()


class ParentDocuments:
    """The parents of a copy's chunks; ``storage.facets.select`` can use it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.every: Callable[[], Ints] = engine.every
        self.passing: Callable[[Test], Ints] = engine.passing

    def read(self, ids: Iterable[str]) -> dict[str, ParentDocument]:
        """Return documents by id, without those that have no piece."""
        names = {piece_name(id_): id_ for id_ in ids}
        parents = {}
        for name, content in self._engine.read(list(names)).items():
            fields = json.loads(content)
            chunks, text = fields.pop("chunks"), fields["text"]
            parents[names[name]] = ParentDocument(
                Document(**fields),
                {
                    one["id"]: Chunk(
                        one["id"], fields["id"], text[one["start"] : one["end"]], one["start"],
                        one["end"], tuple(one["headings"]),
                    )
                    for one in chunks
                },
            )  # fmt: skip
        return parents

    def numbers(self, parent: ParentDocument) -> list[int]:
        """Return the numbers of a document's chunks in order, without missing chunks."""
        numbers = self._engine.with_ids(list(parent.chunks))
        by_id = {id_: number for number, id_ in self._engine.ids(numbers).items()}
        return [by_id[id_] for id_ in parent.chunks if id_ in by_id]

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the chunks with these ids, or of documents with these ids."""
        chunks = [id_ for parent in self.read(ids).values() for id_ in parent.chunks]
        return self._engine.with_ids([*ids, *chunks])

    def existing(self, ids: Sequence[str]) -> set[str]:
        """Return which of these ids a document or a chunk has."""
        chunk_ids = set(self._engine.ids(self.with_ids(ids)).values())
        return {id_ for id_ in ids if id_ in chunk_ids} | {
            document_id(chunk_id) for chunk_id in chunk_ids
        }


def group(ids: Sequence[str], shape: tuple[int, ...]) -> Ints:
    """Return for each chunk a number that identifies its document."""
    group_of: dict[str, int] = {}
    groups = [group_of.setdefault(document_id(chunk_id), len(group_of)) for chunk_id in ids]
    return np.array(groups, np.int64).reshape(shape)


def with_parent(hit: Hit, parent: ParentDocument | None, by_document: bool) -> Hit:
    """Return a chunk's hit with its chunk, or with ``by_document`` the hit of its document.

    While a publisher is writing, a search may find a chunk that its document no longer has.
    """
    if parent is None:
        return hit
    chunk, passage = parent.chunks.get(hit.id), hit.passage
    if chunk is None:
        passage = None
    elif passage is not None and passage.start is not None and passage.end is not None:
        span = chunk.start + passage.start, chunk.start + passage.end
        passage = Passage(passage.text, *span, passage.source)
    if by_document:
        document = parent.document
        hit = replace(hit, id=document.id, title=document.title, text=document.text)
    return replace(hit, passage=passage, chunk=chunk)
