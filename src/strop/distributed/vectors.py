"""The first stages: a corpus cut into shards of documents, and their vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from strop.distributed.shards import (
    File,
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
"""A document's row is the number of its input file, then so many bits for its place there."""
_AT_ONCE = 2048
"""Texts given to the embedder at a time."""


@lru_cache(maxsize=2)
def _loaded(load: Callable[..., Any], name: str, options: str) -> Any:
    return load(name, **json.loads(options))


def loaded_once(load: Callable[..., T], given: Mapping[str, Any]) -> T:
    """Return the embedder or language model of a run, loaded once in each process."""
    model: T = _loaded(load, given["name"], json.dumps(given["options"], sort_keys=True))
    return model


def embedder_of(given: Mapping[str, Any]) -> Embedder:
    """Return the embedder of a run, loaded once in each process."""
    return loaded_once(load, given)


def read_documents(
    folder: Path, name: str, *, source: str, reading: dict[str, Any], shard_documents: int
) -> TaskResult:
    """Cut an input into shards of documents; ``name`` is its number."""
    documents = read_corpus_with_locations(source, **reading)
    files, seen = list[File](), dict[str, str]()
    while part := list(islice(documents, shard_documents)):
        for one in part:
            if (earlier := seen.setdefault(one.document.id, one.where)) != one.where:
                raise BadInput(
                    f"{one.where}: document id {one.document.id!r} is already used at {earlier}."
                    " Ids must be unique: remove one, or name another field with --id-field"
                )
        first = (int(name) << INPUT_BITS) + len(files) * shard_documents
        path = folder / "documents" / f"{name}-{len(files):05}.parquet"
        files.append(_write_documents(path, first, part))
    if not files:
        raise BadInput(f"{source} contains no documents")
    return TaskResult(tuple(files))


def _write_documents(path: Path, first: int, part: list[LocatedDocument]) -> File:
    documents = [one.document for one in part]
    return write_table(
        path,
        {
            "row": np.arange(first, first + len(part)),
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
    """Embed lists of texts as an index does; also return which it refuses, by place, and why.

    Rows are as the embedder gives them: an index scales them to length one when it takes them in,
    and rows that were scaled twice could differ in their last bit.
    """
    parts, reasons, done = [np.zeros((0, embedder.dim), np.float32)], dict[int, str](), 0
    for part in _of_size(lists, _AT_ONCE):
        rows, refused = embed_lists(embedder.embed, part, kind)
        parts.append(rows)
        reasons |= {done + at: reason for at, reason in refused.items()}
        done += len(part)
    return np.concatenate(parts), reasons


def _of_size(lists: Iterable[list[str]], most: int) -> Iterator[list[list[str]]]:
    """Yield the lists in parts of about ``most`` texts."""
    part, texts = list[list[str]](), 0
    for one in lists:
        part.append(one)
        texts += len(one)
        if texts >= most:
            yield part
            part, texts = [], 0
    if part:
        yield part
