"""Code that the adapters share: opening an index, embedders, filters, the metadata of a hit."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from strop.common.text import is_url
from strop.embed.function import CallableEmbedder
from strop.engines.published import Published
from strop.errors import BadInput, StropError
from strop.index import Index
from strop.opening import connect
from strop.storage.intake import CATALOG, EmbedderSpec
from strop.types import Document, Hit, Kind

Where: TypeAlias = dict[str, Any]
"""A filter as ``Index.search`` accepts it."""
Collection: TypeAlias = Index | Published
"""``strop.types.Collection`` at run time: frameworks evaluate annotations of constructors."""
Opened: TypeAlias = Collection | str | os.PathLike[str] | None
"""A collection, the folder of an index, the URL of a copy, or None for a temporary index."""

SCORE, PASSAGE = "strop_score", "strop_passage"
"""The metadata keys of a hit's score and passage. They are never stored."""
NOTHING: Where = {"$id": {"$in": []}}
"""The filter that no document matches."""
_FIELDS = ("id", "title", "text", "metadata")


# -- opening and writing ----------------------------------------------------------------------


def open_collection(
    index: Opened, embedder: EmbedderSpec | None = None, *, create: bool = False
) -> Collection:
    """Return an open collection unchanged, or open a published copy or an index folder.

    With ``create`` a missing index is created, sharpened by the documents' own sentences. A
    temporary index is deleted with its object.
    """
    if index is not None and not isinstance(index, (str, os.PathLike)):
        if embedder is not None:
            raise BadInput("an open index has its embedder: give the embedder where it is opened")
        return index
    if index is not None and (not create or is_url(index) or (Path(index) / CATALOG).exists()):
        return connect(index, embedder)
    folder = tempfile.mkdtemp(prefix="strop-") if index is None else None
    created = Index.create(index or Path(folder or "") / "index", embedder or "wordllama")
    created.sharpen("sentences")
    if folder is not None:
        weakref.finalize(created, shutil.rmtree, folder, ignore_errors=True)
    return created


_LOCKS: weakref.WeakKeyDictionary[Index, threading.Lock] = weakref.WeakKeyDictionary()
_LOCKING = threading.Lock()


@contextmanager
def writing(collection: Collection) -> Iterator[Index]:
    """Yield the index to write to; threads, such as those of async calls, take turns."""
    if not isinstance(collection, Index):
        raise BadInput(
            "a published copy is read only: add to the index it was published from, and publish it"
        )
    with _LOCKING:
        lock = _LOCKS.setdefault(collection, threading.Lock())
    with lock:
        yield collection


def remove(collection: Collection, ids: Iterable[str]) -> None:
    """Remove documents; an unknown id is no error."""
    with writing(collection) as index:
        requested = set(ids)
        if existing := requested - index.unknown(requested):
            index.remove(list(existing))


def remove_all(collection: Collection) -> None:
    """Remove all documents."""
    with writing(collection) as index:
        index.keep_only([])


def find(
    collection: Collection, query: str | Sequence[float], k: int, **settings: Any
) -> list[Hit]:
    """Search by a text or a vector; bad input raises ValueError, as the frameworks expect."""
    text_or_vector: Any = query if isinstance(query, str) else np.array([query], np.float32)
    with raising(ValueError, BadInput):
        return collection.search(text_or_vector, k, **settings)[0]


def matching(collection: Collection, where: Where | None) -> list[Hit]:
    """Return every document that a filter matches, in the order they were added.

    All have the same distance to a zero vector, and equal scores are ranked in that order.
    """
    if not len(collection):
        return []
    zero = np.zeros((1, collection.dim), np.float32)
    hits = collection.search(zero, len(collection), "trad", where=where, exact=True, fields=_FIELDS)
    return hits[0]


@contextmanager
def raising(error: type[Exception], caught: type[StropError] = StropError) -> Iterator[None]:
    """Raise strop's errors, or one kind of them, as an error of the framework."""
    try:
        yield
    except caught as problem:
        raise error(str(problem)) from problem


def in_thread(method: Callable[..., Any]) -> Any:
    """Return the async form of a method, which runs it, or its override, in a thread."""

    @wraps(method)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self, method.__name__), *args, **kwargs)

    return run


# -- embedders --------------------------------------------------------------------------------


def framework_embedder(
    model: object,
    embed_documents: Callable[[list[str]], Any],
    embed_query: Callable[[str], Any],
    name: str | None = None,
) -> CallableEmbedder:
    """Wrap a framework's embedding object for an index.

    The index stores its name (the class and the model's name) and later refuses another one.
    """

    def embed(texts: list[str], kind: Kind) -> Any:
        return [embed_query(text) for text in texts] if kind == "query" else embed_documents(texts)

    values = [getattr(model, key, None) for key in ("model_name", "model", "model_id")]
    names = [type(model).__name__, *(value for value in values if isinstance(value, str))]
    return CallableEmbedder(embed, name=name or ":".join(names[:2]).rstrip(":"))


# -- metadata and filters ---------------------------------------------------------------------


def metadata_of(document: Document | Hit) -> dict[str, Any]:
    """Return metadata for the frameworks: with the title, for which they have no field."""
    title = {"title": document.title} if document.title else {}
    return {**title, **document.metadata}


def hit_metadata(hit: Hit, score: bool = False) -> dict[str, Any]:
    """Return a hit's metadata with the passage and, if requested, the score."""
    metadata = metadata_of(hit)
    if score:
        metadata[SCORE] = hit.score
    if hit.passage is not None:
        metadata[PASSAGE] = hit.passage.to_dict()
    return metadata


def stored_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata to store, without the keys that a search added."""
    return {key: value for key, value in (metadata or {}).items() if key not in (SCORE, PASSAGE)}


_OPERATORS = {
    "==": "$eq", "!=": "$ne", ">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte",
    "in": "$in", "not in": "$nin", "nin": "$nin",
}  # fmt: skip


def comparison(field: str, operator: str, value: Any) -> Where:
    """Return one comparison as a filter. None is neither greater nor less than any value."""
    if operator not in _OPERATORS:
        raise BadInput(
            f"filter: {field!r}: {operator!r} is not one of {', '.join(sorted(_OPERATORS))}"
        )
    if value is None and operator[0] in "<>":
        return NOTHING
    return {field: {_OPERATORS[operator]: value}}


def combined(operator: str, filters: list[Where]) -> Where:
    """Return filters joined by ``and``, ``or``, or ``not``, which means: not all of them."""
    if operator not in ("and", "or", "not"):
        raise BadInput(f"filter: {operator!r} is not one of and, or, not")
    if operator == "or":
        return {"$or": filters} if filters else NOTHING
    all_of: Where = {"$and": filters} if filters else {}
    return {"$not": all_of} if operator == "not" else all_of
