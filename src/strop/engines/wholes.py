"""Documents that are cut into chunks, in a copy: records are chunks, a piece has a whole document.

A chunk's id is its document's with a number (``storage.chunks``), so it says whose it is. A piece
is written before the records of its chunks, so who finds a chunk finds its document.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from strop.engines.base import Engine
from strop.storage.catalog import Catalog
from strop.types import Chunk, Document


@dataclass(frozen=True)
class Whole:
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


def read_wholes(engine: Engine, ids: Iterable[str]) -> dict[str, Whole]:
    """Return documents by id, of those that have a piece."""
    names = {piece_name(id_): id_ for id_ in ids}
    found = {}
    for name, content in engine.read(list(names)).items():
        value = json.loads(content)
        parts, id_, text = value.pop("chunks"), value["id"], value["text"]
        chunks = [
            Chunk(one["id"], id_, text[one["start"] : one["end"]], one["start"], one["end"],
                  tuple(one["headings"]))
            for one in parts
        ]  # fmt: skip
        found[names[name]] = Whole(Document(**value), {one.id: one for one in chunks})
    return found
