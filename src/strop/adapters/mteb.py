"""mteb: an index as a model that can run mteb's retrieval tasks (docs/mteb.md)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from strop import __version__
from strop.embed import load
from strop.errors import BadInput, MissingExtra
from strop.evaluation.scoring import decreasing
from strop.index import Index
from strop.io.datasets import read_query_lists
from strop.storage.intake import CATALOG
from strop.types import Document

if find_spec("mteb") is None:  # importing it takes seconds, so it is imported later
    raise MissingExtra("The adapter for mteb", "mteb")

_HITS = 1_000_000
"""Maximum number of hits in memory at a time."""


class StropSearch:
    """mteb's SearchProtocol over an index: ``mteb.evaluate(StropSearch(), task)``.

    ``sentences`` sharpens with the documents' own sentences; ``files`` maps names of query sets to
    files of queries; ``prepare`` is called with each finished index and may change it, for example
    generate queries. ``method`` is a spec as in ``strop eval``, None for the index's default.
    ``options`` are those of the embedder.

    Indexes are kept in ``folder``, one for each part of a task and each combination of embedder,
    options and query sets, and used again; without a folder they are removed with the adapter.
    mteb stores results under a revision: a hash of the same, the contents of ``files`` included,
    and of the method. What ``prepare`` does cannot be hashed: ``version`` names it. Without a
    version each adapter with a ``prepare`` has a revision of its own and reuses nothing.
    """

    def __init__(
        self,
        embedder: str = "wordllama",
        method: str | None = None,
        *,
        sentences: bool = True,
        files: Mapping[str, str | os.PathLike[str]] | None = None,
        prepare: Callable[[Index], None] | None = None,
        version: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        if version is not None and prepare is None:
            raise BadInput("version names what prepare does, and there is no prepare")
        self._embedder = load(embedder, cache=True, **options)
        self._method, self._sentences, self._files = method, sentences, dict(files or {})
        self._prepare = prepare
        self._version = version or (uuid4().hex if prepare else "")
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="strop-mteb-")
        self._folder = Path(folder or self._temporary.name)  # type: ignore[union-attr]
        self._index: Index | None = None

    def _contents(self) -> str:
        """Return a hash of everything that an index depends on."""
        embedder = self._embedder
        files = {
            name: hashlib.sha256(Path(file).read_bytes()).hexdigest()
            for name, file in self._files.items()
        }
        return _digest(
            embedder.name, embedder.revision, dict(embedder.options), self._sentences, files,
            self._version, __version__,
        )  # fmt: skip

    @property
    def mteb_model_meta(self) -> Any:
        """The name and revision under which mteb stores results."""
        from mteb.models.model_meta import ModelMeta

        name = f"{self._embedder.name}-{self._method or 'default'}"
        fields = {
            "name": f"strop/{re.sub(r'[^0-9A-Za-z.=]+', '-', name)}",
            "revision": _digest(self._contents(), self._method),
        }
        return ModelMeta.create_empty(fields)

    def index(
        self,
        corpus: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Any,
        num_proc: int | None,
        **kwargs: Any,
    ) -> None:
        """Index a corpus; an existing index of the same contents is brought up to date."""
        self.close()
        name = f"{task_metadata.name}-{hf_subset}-{hf_split}-{self._contents()}"
        path = self._folder / re.sub(r"[^\w.-]+", "-", name)
        if (path / CATALOG).exists():
            index = Index.open(path, self._embedder)
        else:
            index = Index.create(path, self._embedder, chunking=None)
        self._index = index
        documents = [read_document(row) for row in corpus]
        index.add(documents)
        index.keep_only(document.id for document in documents)
        if self._sentences:
            index.sharpen("sentences")
        for name, file in self._files.items():
            index.import_queries(read_query_lists(file), name)
        if self._prepare is not None:
            self._prepare(index)
        method = index.method(self._method)
        if method.augmented is not None:
            index.augment(method.augmented)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Any,
        top_ranked: Any = None,
        num_proc: int | None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Return {query: {document: score}} of the best ``top_k``, or of the documents given."""
        index = self._index
        if index is None:
            raise BadInput("search was called before index: mteb indexes the corpus first")
        rows = list(queries)
        k = min(top_k, len(index)) if top_ranked is None else len(index)
        step = max(1, _HITS // max(1, k))
        results: dict[str, dict[str, float]] = {}
        for start in range(0, len(rows), step):
            batch = rows[start : start + step]
            hits = index.search(
                [read_query(row) for row in batch], k, self._method, exact=True, fields=()
            )
            for row, ids, scores in zip(batch, hits.ids, hits.scores, strict=True):
                query, pairs = str(row["id"]), zip(ids.tolist(), decreasing(scores), strict=True)
                if top_ranked is None:
                    results[query] = dict(pairs)
                    continue
                allowed = {str(document) for document in top_ranked.get(query, ())}
                results[query] = dict([pair for pair in pairs if pair[0] in allowed][:top_k])
        return results

    def close(self) -> None:
        """Close the index."""
        if self._index is not None:
            self._index.close()
            self._index = None


def _digest(*values: Any) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_document(row: Mapping[str, Any]) -> Document:
    """Return the document of a row of a dataset (title, text) or of mteb's loaders (title, body).

    In a row of a loader, ``text`` is title and body joined.
    """
    text = row["body"] if row.get("body") is not None else row.get("text")
    return Document(str(row["id"]), text or "", row.get("title") or "")


def read_query(row: Mapping[str, Any]) -> str:
    """Return a query's text followed by its instruction, as mteb joins the two."""
    text, instruction = row["text"], row.get("instruction")
    if not isinstance(text, str):  # a conversation
        turns = [
            turn if isinstance(turn, str) else f"{turn['role']}: {turn['content']}" for turn in text
        ]
        text = "; ".join(turns)
    return f"{text} {instruction}" if instruction else text
