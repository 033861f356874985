"""Counts and sizes for people: what an index holds and how many bytes it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strop.storage.catalog import Catalog
from strop.storage.ledger import DOCUMENTS
from strop.storage.sidecar import CACHE, entries
from strop.storage.vectors import row_type


def counts(catalog: Catalog) -> dict[str, Any]:
    """Return numbers for people: documents, lists and queries by set, what waits."""
    with catalog.reading() as connection:

        def number(sql: str, *values: object) -> int:
            return int(connection.execute(sql, values).fetchone()[0] or 0)

        files = catalog.vectors.files()
        sets = {
            set_.name: {
                **set_.settings,
                "vectors": files[set_.set_id].dtype,
                "documents": files[set_.set_id].lists,
                "queries": files[set_.set_id].live,
                "older_than_text": 0
                if set_.derived
                else number(
                    "SELECT count(*) FROM spans INDEXED BY older_spans WHERE set_id = ? AND older"
                    " AND count > 0",
                    set_.set_id,
                ),
                "waiting": catalog.vectors.waiting_count(set_.set_id, refused=False),
            }
            for set_ in catalog.sets.all().values()
        }
        return {
            "references": catalog.references.counts(),
            "documents": catalog.documents.count(),
            "empty": number("SELECT count(*) FROM documents WHERE empty"),
            "waiting": catalog.vectors.waiting_count(refused=False),
            "refused": catalog.vectors.refused(),
            "sets": sets,
        }


def sizes(catalog: Catalog, folder: Path, dim: int) -> dict[str, Any]:
    """Return bytes by kind. ``waste`` is part of the others: what compaction would give back.

    ``plain`` is what the documents' vectors alone take as float32, ``times_plain`` how many
    times that they and the query vectors take here (without expanded texts).
    """
    with catalog.reading():
        sets = catalog.sets.all().values()
        files, names = catalog.vectors.files(), {set_.set_id: set_.name for set_ in sets}
        waste, documents = catalog.database.free_bytes(), catalog.documents.count()
    named = {file.name for file in files.values()}
    vectors = {}
    for file in files.values():
        size = _size(folder / "vectors" / file.name)
        vectors[file.set_id] = size
        waste += max(0, size - file.live * row_type(file.dtype, dim).itemsize)
    left = sum(_size(one) for one in entries(folder / "vectors") if one.name not in named)
    told: dict[str, Any] = {
        "catalog": sum(_size(one) for one in folder.glob(f"{catalog.path.name}*")),
        "documents": vectors.pop(DOCUMENTS),
        "sets": {names[set_id]: size for set_id, size in vectors.items() if set_id in names},
        "cache": sum(map(_size, entries(folder / CACHE))),
        "left_over": left,
        "waste": waste + left,
    }
    total = sum(told[kind] for kind in ("catalog", "documents", "cache", "left_over"))
    total += sum(vectors.values())
    own = {set_.set_id for set_ in sets if set_.settings["source"] != "expanded"}
    used = told["documents"] + sum(size for set_id, size in vectors.items() if set_id in own)
    plain = 4 * dim * documents
    return {
        **told, "total": total, "per_document": total / documents if documents else None,
        "plain": plain, "times_plain": used / plain if plain else None,
    }  # fmt: skip


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file of an index, by its path in the folder."""
    return {
        file.relative_to(folder).as_posix(): _size(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "writer.lock"
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
