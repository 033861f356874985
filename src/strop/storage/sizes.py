"""Counts and sizes for reports: what an index contains, and its size in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.storage.catalog import Catalog
from strop.storage.ledger import DOCUMENTS
from strop.storage.sidecar import CACHE, entries


def counts(catalog: Catalog) -> dict[str, Any]:
    """Return counts: documents, lists and queries by set, what waits to be embedded."""
    value = catalog.database.value
    with catalog.reading():
        files = catalog.vectors.files()
        sets = {
            set_.name: {
                **set_.settings,
                "vectors": files[set_.set_id].dtype,
                "documents": files[set_.set_id].lists,
                "queries": files[set_.set_id].live,
                "older_than_text": 0
                if set_.derived
                else value(
                    "SELECT count(*) FROM spans INDEXED BY older_spans WHERE set_id = ? AND older"
                    " AND count > 0",
                    (set_.set_id,),
                ),
                "waiting": catalog.waiting.count(set_.set_id, refused=False),
            }
            for set_ in catalog.sets.all().values()
        }
        return {
            "references": catalog.references.counts(),
            "documents": catalog.documents.total(),
            "chunking": catalog.documents.chunking(),
            "chunks": catalog.documents.count() if catalog.documents.are_split() else None,
            "empty": value("SELECT count(*) FROM documents WHERE empty"),
            "waiting": catalog.waiting.count(refused=False),
            "refused": catalog.waiting.refused(),
            "sets": sets,
        }


@dataclass(frozen=True)
class SetSize:
    """A query set: its number of lists (one per document) and queries, the size of its vectors."""

    name: str
    source: str
    lists: int
    queries: int
    bytes: int


def set_sizes(catalog: Catalog) -> list[SetSize]:
    """Return the query sets of a catalog, in the order they were created."""
    with catalog.reading():
        files = catalog.vectors.files()
        return [
            SetSize(
                set_.name, set_.settings["source"], files[set_.set_id].lists,
                files[set_.set_id].live, _size(catalog.vector_file(files[set_.set_id])[0]),
            )
            for set_ in catalog.sets.all().values()
        ]  # fmt: skip


def sizes(catalog: Catalog) -> dict[str, Any]:
    """Return bytes by kind.

    ``waste`` is what compaction would free; it is part of the other sizes. ``words`` is part of
    ``catalog``. ``times_plain`` compares the vectors of documents and queries (without augmented
    texts) with the documents' vectors alone as float32, which is ``plain``.
    """
    folder = catalog.folder
    with catalog.reading():
        sets, files = catalog.sets.all().values(), catalog.vectors.files()
        waste, documents = catalog.database.free_bytes(), catalog.documents.count()
        words = catalog.words.size()
    vectors = {}
    for file in files.values():
        path, row = catalog.vector_file(file)
        vectors[file.set_id] = _size(path)
        waste += max(0, vectors[file.set_id] - file.live * row.itemsize)
    in_use = {file.name for file in files.values()}
    left_over = sum(_size(path) for path in entries(folder / "vectors") if path.name not in in_use)
    catalog_size = sum(_size(path) for path in folder.glob(f"{catalog.path.name}*"))
    cache = sum(map(_size, entries(folder / CACHE)))
    total = catalog_size + sum(vectors.values()) + cache + left_over
    plain = 4 * catalog.dim * documents
    used = sum(vectors.values()) - sum(vectors[set_.set_id] for set_ in sets if set_.augmented)
    return {
        "catalog": catalog_size,
        "words": words,
        "documents": vectors[DOCUMENTS],
        "sets": {set_.name: vectors[set_.set_id] for set_ in sets},
        "cache": cache,
        "left_over": left_over,
        "waste": waste + left_over,
        "total": total,
        "per_document": total / documents if documents else None,
        "plain": plain,
        "times_plain": used / plain if plain else None,
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
