"""Documents that are cut into chunks, in a copy: records are chunks, a piece has a whole document.

A chunk's id is its document's with a number (``storage.chunks``), so it says whose it is. A piece
is written before the records of its chunks, so who finds a chunk finds its document.
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
    """Return the name of the piece that has a document."""
    return f"w.{hashlib.blake2b(id_.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def whole_pieces(catalog: Catalog, ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the pieces (name, content) of documents."""
    for id_ in sorted(ids):
        chunks = [asdict(one) for one in catalog.documents.chunks_of(id_)]
        parts = [{key: one[key] for key in ("id", "start", "end", "headings")} for one in chunks]
        content = {**asdict(catalog.documents.read(id_)), "chunks": parts}
        yield piece_name(id_), json.dumps(content).encode()


class ParentDocuments:
    """The whole documents of a copy with chunks; ``select`` can ask it (``storage.facets``)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.every: Callable[[], Ints] = engine.every
        self.passing: Callable[[Test], Ints] = engine.passing

    def read(self, ids: Iterable[str]) -> dict[str, ParentDocument]:
        """Return documents by id, of those that have a piece."""
        names = {piece_name(id_): id_ for id_ in ids}
        found = {}
        for name, content in self._engine.read(list(names)).items():
            value = json.loads(content)
            chunks, text = value.pop("chunks"), value["text"]
            found[names[name]] = ParentDocument(
                Document(**value),
                {
                    one["id"]: Chunk(
                        one["id"], value["id"], text[one["start"] : one["end"]], one["start"],
                        one["end"], tuple(one["headings"]),
                    )
                    for one in chunks
                },
            )  # fmt: skip
        return found

    def numbers(self, whole: ParentDocument) -> list[int]:
        """Return the numbers of a document's chunks in order, of those that are there."""
        numbers = self._engine.with_ids(list(whole.chunks))
        by_id = {id_: number for number, id_ in self._engine.ids(numbers).items()}
        return [by_id[id_] for id_ in whole.chunks if id_ in by_id]

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the chunks with these ids, or of documents with these ids."""
        chunks = [id_ for whole in self.read(ids).values() for id_ in whole.chunks]
        return self._engine.with_ids([*ids, *chunks])

    def known(self, ids: Sequence[str]) -> set[str]:
        """Return those of some ids that a document or a chunk has."""
        there = set(self._engine.ids(self.with_ids(ids)).values())
        return {id_ for id_ in ids if id_ in there} | {document_id(one) for one in there}


def group(ids: Sequence[str], shape: tuple[int, ...]) -> Ints:
    """Return a number for the document of each chunk."""
    known: dict[str, int] = {}
    groups = [known.setdefault(document_id(one), len(known)) for one in ids]
    return np.array(groups, np.int64).reshape(shape)


def with_parent(hit: Hit, whole: ParentDocument | None, by_document: bool) -> Hit:
    """Return the hit of a chunk with its chunk, or that of its document.

    While a publisher is at work a chunk may be found that its document has no more.
    """
    if whole is None:
        return hit
    chunk, passage = whole.chunks.get(hit.id), hit.passage
    if chunk is None:
        passage = None
    elif passage is not None and passage.start is not None and passage.end is not None:
        place = chunk.start + passage.start, chunk.start + passage.end
        passage = Passage(passage.text, *place, passage.source)
    if by_document:
        one = whole.document
        hit = replace(hit, id=one.id, title=one.title, text=one.text)
    return replace(hit, passage=passage, chunk=chunk)
