"""Imports the shards of a cluster run into an index folder. No text is embedded a second time.

The index does its usual work: it adds documents, makes query sets, stores replies. Its embedder is
a cache that was filled from the shards.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from strop.common.arrays import Ints
from strop.distributed.generation import SENTENCES, model_of, replies_path
from strop.distributed.run import Settings, finished_buckets, finished_shards
from strop.distributed.shards import Manifest, ShardFile, padded, read_table, rows_in, vectors_in
from strop.distributed.vectors import embedder_of, stored_documents
from strop.embed import CachedEmbedder
from strop.errors import BadInput
from strop.generate import GenerationSettings
from strop.index import Index
from strop.references.neighbors import Neighbors, resolve_method
from strop.references.selection import References
from strop.references.settings import ReferenceSettings
from strop.references.updates import import_references
from strop.storage.intake import CATALOG
from strop.storage.vectors import DEFAULT_STORED
from strop.storage.workspace import Workspace
from strop.types import Kind, Progress, Vectors


@dataclass
class Imported:
    """What was imported. ``embedded`` counts texts that had no vector in the shards."""

    documents: int = 0
    references: int = 0
    sets: tuple[str, ...] = ()
    embedded: int = 0
    notes: tuple[str, ...] = ()


def import_shards(
    folder: Path,
    path: Path,
    embedder: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    wait: float = 0,
) -> Imported:
    """Import everything that is finished in ``folder`` into the index ``path``, created if missing.

    ``embedder`` (name and options) is needed if that of the folder needs the user's consent.
    ``wait``: seconds to wait for another writer.
    """
    settings, result = Settings.read(folder), Imported()
    model = embedder_of(embedder or settings.trusted_embedder(folder))
    shards, buckets = finished_shards(folder), finished_buckets(folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        cache = CachedEmbedder(model, Path(scratch) / "vectors.sqlite")
        if (path / CATALOG).exists():
            workspace = Workspace.open(path, cache, {"wait": wait})
        else:
            workspace = Workspace.create(path, cache, {}, DEFAULT_STORED)
        with Index(workspace) as index:
            names = [file.name for file in shards]
            rows, ids = _add_documents(folder, names, index, cache, progress)
            result.documents = len(ids)
            numbers = _numbers(index, ids)
            if sum(file.rows for file in buckets) != len(ids):
                result.notes = ("no references for all of them: run --stage references first",)
            elif len(index) != len(ids):
                result.notes = (
                    f"the index has other documents too, so references were not imported: strop"
                    f" references {path}",
                )
            else:
                method = resolve_method(settings.method, len(ids))
                reference_settings = ReferenceSettings.from_json(settings.references)
                lists = _references(folder, buckets, reference_settings, rows, numbers)
                with workspace.writing():
                    snapshot = index.searcher.views.snapshot()
                    import_references(
                        workspace.catalog, snapshot, reference_settings, method, lists
                    )
                result.references = len(ids)
            result.sets = _import_sets(folder, settings, index, cache, progress)
        result.embedded = cache.misses
    return result


def _add_documents(
    folder: Path,
    shards: Sequence[str],
    index: Index,
    embedder: CachedEmbedder,
    progress: Progress | None,
) -> tuple[Ints, list[str]]:
    """Add the documents shard by shard; return the rows and ids of all."""
    rows, ids = list[Ints](), list[str]()
    for shard in shards:
        table = read_table(folder / "documents" / f"{shard}.parquet", ["row", "id"])
        rows.append(rows_in(table))
        ids += table["id"].to_pylist()
    if len(set(ids)) < len(ids):
        twice = next(one for one, count in Counter(ids).items() if count > 1)
        raise BadInput(f"document id {twice!r} is in two inputs. Ids must be unique: remove one")
    for at, shard in enumerate(shards, 1):
        documents = list(stored_documents(folder, shard))
        vectors = vectors_in(read_table(folder / "vectors" / f"{shard}.parquet")["vector"])
        _fill_cache(embedder, [one.content for one in documents], "document", vectors)
        index.add(documents)
        if progress is not None:
            progress("adding documents", at, len(shards))
    return np.concatenate(rows), ids


def _fill_cache(embedder: CachedEmbedder, texts: list[str], kind: Kind, vectors: Vectors) -> None:
    """Fill the cache; a zero row is a blank or refused text, which the index decides about."""
    kept = np.flatnonzero(vectors.any(axis=1))
    embedder.remember([texts[at] for at in kept], kind, vectors[kept])


def _numbers(index: Index, ids: Sequence[str]) -> Ints:
    """Return the catalog's number of each document."""
    stored = index.searcher.views.snapshot().numbers.tolist()
    number_of = {id_: number for number, id_ in index.catalog.documents.ids_of(stored).items()}
    return np.array([number_of.get(id_, -1) for id_ in ids], np.int64)


def _references(
    folder: Path,
    buckets: Sequence[ShardFile],
    settings: ReferenceSettings,
    rows: Ints,
    numbers: Ints,
) -> Iterator[tuple[Ints, Neighbors, References]]:
    """Yield the neighbours and references of each bucket; rows become catalog numbers."""

    def translated(column: Any, width: int) -> Ints:
        listed = padded(column, width, -1)
        places = np.minimum(np.searchsorted(rows, listed), len(rows) - 1)
        if not (rows[places] == listed)[listed >= 0].all():
            raise BadInput(f"{folder}: references are out of date: run --stage references again")
        return np.asarray(np.where(listed >= 0, numbers[places], -1))

    for bucket in buckets:
        table = read_table(folder / "references" / f"{bucket.name}.parquet")
        # A document that the index refuses has no number and no list, and is on no list.
        documents = numbers[np.searchsorted(rows, rows_in(table))]
        table, documents = table.filter(documents >= 0), documents[documents >= 0]
        width, max_references = settings.neighbors, settings.largest
        yield (
            documents,
            Neighbors(
                translated(table["neighbors"], width), padded(table["similarities"], width, 0)
            ),
            References(
                translated(table["references"], max_references),
                padded(table["reference_similarities"], max_references, 0),
                padded(table["cluster_sizes"], max_references, 0),
                table["silhouette"].to_numpy(),
            ),
        )


def _import_sets(
    folder: Path,
    settings: Settings,
    index: Index,
    embedder: CachedEmbedder,
    progress: Progress | None,
) -> tuple[str, ...]:
    """Make the query sets that have vectors in the shards."""
    styles = sorted(
        manifest.parent.name for manifest in (folder / "queries").glob("*/manifest.jsonl")
    )
    for style in styles:
        simple = style == SENTENCES or not _generation_settings(settings, style).needs_references
        units = finished_shards(folder) if simple else finished_buckets(folder)
        kind: Kind = "document" if style == SENTENCES else "query"
        queries = Manifest(folder / "queries" / style)
        names = [unit.name for unit in units if unit.name in queries.lines]
        for name in names:
            table = read_table(folder / "queries" / style / f"{name}.parquet")
            texts = list(chain.from_iterable(table["queries"].to_pylist()))
            flat = table["vectors"].combine_chunks().flatten().to_numpy()
            _fill_cache(embedder, texts, kind, flat.reshape(len(texts), -1))
        if style == SENTENCES:
            index.sharpen(SENTENCES, progress=progress)
            continue
        model_and_settings = settings.sets[style]
        generation_settings = _generation_settings(settings, style)
        generation = index.generation(
            model_of(model_and_settings["lm"]), generation_settings, into=style
        )
        with tempfile.NamedTemporaryFile("wb", dir=folder, suffix=".jsonl") as file:
            for name in names:
                file.write(replies_path(folder, style, name).read_bytes())
            file.flush()
            generation.read_replies(file.name, progress)
    return tuple(styles)


def _generation_settings(settings: Settings, style: str) -> GenerationSettings:
    return GenerationSettings.from_json(dict(settings.sets[style]["settings"]))
