"""Any index as a model of mteb, so that its retrieval tasks can be run with it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.errors import BadInput, MissingExtra
from strop.index import Index
from strop.io.datasets import read_query_lists
from strop.types import Document

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.model_meta import ModelMeta
    from mteb.types import (
        CorpusDatasetType,
        EncodeKwargs,
        QueryDatasetType,
        RetrievalOutputType,
        TopRankedDocumentsType,
    )


class StropSearch:
    """mteb's SearchProtocol over an index: ``mteb.evaluate(StropSearch(), task)``.

    ``sentences`` sharpens with the documents' own sentences; ``files`` maps names of sets to
    files of queries; ``prepare`` is called with each finished index and may do anything else to
    it, such as having a model write queries. ``method`` is a spec as ``strop eval`` takes it, None
    for the index's default. Indexes are kept in ``folder``, one for each part of a task, and
    continued there; without one they go when the adapter does. ``options`` are the embedder's.
    """

    def __init__(
        self,
        embedder: str = "wordllama",
        method: str | None = None,
        *,
        sentences: bool = True,
        files: Mapping[str, str | os.PathLike[str]] | None = None,
        prepare: Callable[[Index], None] | None = None,
        folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        try:
            import mteb  # noqa: F401
        except ImportError:
            raise MissingExtra("The adapter for mteb", "mteb") from None
        self._embedder, self._method, self._options = embedder, method, options
        self._sentences, self._files, self._prepare = sentences, dict(files or {}), prepare
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="strop-mteb-")
        self._folder = Path(folder or self._temporary.name)  # type: ignore[union-attr]
        self._index: Index | None = None

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """What mteb files its results under: the embedder, and what is done with it."""
        from mteb.models.model_meta import ModelMeta

        settings = [self._embedder, self._options, self._sentences, sorted(self._files)]
        how = f"{self._embedder}-{self._method or 'default'}"
        told = json.dumps([*settings, self._method], sort_keys=True, default=str)
        meta: ModelMeta = ModelMeta.create_empty(
            {
                "name": f"strop/{re.sub(r'[^0-9A-Za-z.=]+', '-', how)}",
                "revision": hashlib.sha256(told.encode()).hexdigest()[:12],
            }
        )
        return meta

    def index(
        self,
        corpus: CorpusDatasetType,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: EncodeKwargs,
        num_proc: int | None,
        **kwargs: Any,
    ) -> None:
        """Index a corpus; one that is there already is brought up to date."""
        self.close()
        path = self._folder / re.sub(
            r"[^\w.-]+", "-", f"{task_metadata.name}-{hf_subset}-{hf_split}"
        )
        if (path / "catalog.sqlite").exists():
            index = Index.open(path, self._embedder, **self._options)
        else:
            index = Index.create(path, self._embedder, **self._options)
        self._index = index
        documents = [_document(row) for row in corpus]
        index.add(documents)
        index.keep_only(document.id for document in documents)
        if self._sentences:
            index.sharpen("sentences")
        for name, file in self._files.items():
            index.import_queries(read_query_lists(file), name)
        if self._prepare is not None:
            self._prepare(index)
        method = index.method(self._method)
        if method.expanded is not None:
            index.expand(method.expanded)

    def search(
        self,
        queries: QueryDatasetType,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: EncodeKwargs,
        top_ranked: TopRankedDocumentsType | None = None,
        num_proc: int | None,
        **kwargs: Any,
    ) -> RetrievalOutputType:
        """Return {query: {document: score}} of the best ``top_k``, or of the documents given."""
        index = self._index
        if index is None:
            raise BadInput("search was called before index: mteb indexes the corpus first")
        rows = list(queries)
        ids, texts = [str(row["id"]) for row in rows], [_query(row) for row in rows]
        found: dict[str, dict[str, float]] = {}
        if top_ranked is None:
            hits = index.search(texts, min(top_k, len(index)), self._method)
            for id_, documents, scores in zip(ids, hits.ids, hits.scores, strict=True):
                found[id_] = dict(zip(documents.tolist(), scores.tolist(), strict=True))
            return found
        for id_, text in zip(ids, texts, strict=True):
            hits = index.search(text, len(index), self._method)
            wanted = {str(document) for document in top_ranked.get(id_, ())}
            pairs = zip(hits.ids[0].tolist(), hits.scores[0].tolist(), strict=True)
            kept = [pair for pair in pairs if pair[0] in wanted]
            found[id_] = dict(kept[:top_k])
        return found

    def close(self) -> None:
        """Let go of the index."""
        if self._index is not None:
            self._index.close()
            self._index = None


def _document(row: Mapping[str, Any]) -> Document:
    """Read a row as datasets have them (title, text) or as mteb's loaders do (title, body).

    Behind a loader ``text`` is title and body already joined.
    """
    text = row["body"] if row.get("body") is not None else row.get("text")
    return Document(str(row["id"]), text or "", row.get("title") or "")


def _query(row: Mapping[str, Any]) -> str:
    """Return a query's text with its instruction behind it, as mteb joins the two."""
    text = row["text"]
    if not isinstance(text, str):
        text = "; ".join(_turns(text))
    instruction = row.get("instruction")
    return f"{text} {instruction}" if instruction else text


def _turns(conversation: Sequence[Any]) -> Iterator[str]:
    for turn in conversation:
        yield turn if isinstance(turn, str) else f"{turn['role']}: {turn['content']}"
