"""The first stages: split a corpus into shards of documents, and embed them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from strop.distributed.shards import (
    ShardFile,
    TaskResult,
    documents_in,
    read_table,
    rows_in,
    vector_column,
    write_table,
)
from strop.embed import Embedder, load
from strop.errors import BadInput
from strop.io.corpora import LocatedDocument, read_corpus_with_locations
from strop.storage.pipeline import embed_lists
from strop.types import Document, Kind, Vectors

T = TypeVar("T")

INPUT_BITS = 32
"""A document's row is the number of its input file, then this many bits for its place there."""
_AT_ONCE = 2048
"""Texts given to the embedder at a time."""


@lru_cache(maxsize=2)
def _loaded(load: Callable[..., Any], name: str, options: str) -> Any:
    return load(name, **json.loads(options))


def loaded_once(load: Callable[..., T], spec: Mapping[str, Any]) -> T:
    """Return the embedder or language model of a run, loaded once in each process."""
    model: T = _loaded(load, spec["name"], json.dumps(spec["options"], sort_keys=True))
    return model


def embedder_of(spec: Mapping[str, Any]) -> Embedder:
    """Return the embedder of a run, loaded once in each process."""
    return loaded_once(load, spec)


def read_documents(
    folder: Path, name: str, *, source: str, reading: dict[str, Any], shard_documents: int
) -> TaskResult:
    """Split an input into shards of documents; ``name`` is its number."""
    documents = read_corpus_with_locations(source, **reading)
    files, seen = list[ShardFile](), dict[str, str]()
    while batch := list(islice(documents, shard_documents)):
        for one in batch:
            if (earlier := seen.setdefault(one.document.id, one.where)) != one.where:
                raise BadInput(
                    f"{one.where}: document id {one.document.id!r} is already used at {earlier}."
                    " Ids must be unique: remove one, or name another field with --id-field"
                )
        first = (int(name) << INPUT_BITS) + len(files) * shard_documents
        path = folder / "documents" / f"{name}-{len(files):05}.parquet"
        files.append(_write_documents(path, first, batch))
    if not files:
        raise BadInput(f"{source} contains no documents")
    return TaskResult(tuple(files))


def _write_documents(path: Path, first: int, batch: list[LocatedDocument]) -> ShardFile:
    documents = [one.document for one in batch]
    return write_table(
        path,
        {
            "row": np.arange(first, first + len(batch)),
            "id": [one.id for one in documents],
            "title": [one.title for one in documents],
            "text": [one.text for one in documents],
            "metadata": [json.dumps(dict(one.metadata), ensure_ascii=False) for one in documents],
        },
    )


def stored_documents(folder: Path, name: str) -> Iterator[Document]:
    """Yield the documents of a shard with their metadata."""
    table = read_table(folder / "documents" / f"{name}.parquet")
    for (_, one), metadata in zip(documents_in(table), table["metadata"].to_pylist(), strict=True):
        yield Document(one.id, one.text, one.title, json.loads(metadata))


def embed_documents(folder: Path, name: str, *, embedder: Mapping[str, Any]) -> TaskResult:
    """Embed a shard of documents."""
    table = read_table(folder / "documents" / f"{name}.parquet", ["row", "id", "title", "text"])
    texts = [[document.content] for _, document in documents_in(table)]
    rows, reasons = embed_texts(embedder_of(embedder), texts, "document")
    vectors = np.zeros((len(texts), rows.shape[1]), np.float32)
    vectors[[at for at in range(len(texts)) if at not in reasons]] = rows
    columns = {"row": rows_in(table), "vector": vector_column(vectors)}
    file = write_table(folder / "vectors" / f"{name}.parquet", columns)
    return TaskResult((file,), counts={"refused": len(reasons)})


def embed_texts(
    embedder: Embedder, lists: list[list[str]], kind: Kind
) -> tuple[Vectors, dict[int, str]]:
    """Embed lists of texts as an index does; return the rows, and why lists were refused, by place.

    Rows are not scaled: an index scales them to length one when it stores them, and rows that were
    scaled twice could differ in their last bit.
    """
    vectors, reasons, first = [np.zeros((0, embedder.dim), np.float32)], dict[int, str](), 0
    for batch in _batches(lists, _AT_ONCE):
        rows, refused = embed_lists(embedder.embed, batch, kind)
        vectors.append(rows)
        reasons |= {first + at: reason for at, reason in refused.items()}
        first += len(batch)
    return np.concatenate(vectors), reasons


def _batches(lists: Iterable[list[str]], batch_texts: int) -> Iterator[list[list[str]]]:
    """Yield the lists in batches of about ``batch_texts`` texts."""
    batch, count = list[list[str]](), 0
    for list_ in lists:
        batch.append(list_)
        count += len(list_)
        if count >= batch_texts:
            yield batch
            batch, count = [], 0
    if batch:
        yield batch
