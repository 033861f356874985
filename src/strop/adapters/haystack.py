"""Haystack: an index as a document store with two retrievers (docs/adapters/haystack.md)."""

from __future__ import annotations

import os
import threading
from typing import Any

from strop.adapters import shared
from strop.adapters.shared import Collection, Opened, Where, in_thread, raising, writing
from strop.embed import Embedder
from strop.errors import BadInput, MissingExtra
from strop.filters import Test, read_filter
from strop.types import Document as StropDocument
from strop.types import Hit

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.errors import DocumentStoreError, DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
    from haystack.errors import FilterError
except ImportError:
    raise MissingExtra("The adapter for Haystack", "haystack") from None

Filters = dict[str, Any]
_UNSTORED = ("content", "blob", "score", "embedding", "sparse_embedding")


def embedder_of(document_embedder: Any, text_embedder: Any, name: str | None = None) -> Embedder:
    """Return Haystack's embedders of documents and of queries as the embedder of an index."""

    def run(embedder: Any, **inputs: Any) -> Any:
        if hasattr(embedder, "warm_up"):
            embedder.warm_up()
        return embedder.run(**inputs)

    def embed_documents(texts: list[str]) -> list[Any]:
        embedded = run(document_embedder, documents=[Document(content=text) for text in texts])
        return [document.embedding for document in embedded["documents"]]

    def embed_query(text: str) -> Any:
        return run(text_embedder, text=text)["embedding"]

    return shared.framework_embedder(document_embedder, embed_documents, embed_query, name)


class StropDocumentStore:
    """An index as a document store: ``StropDocumentStore("my.index")``.

    ``index`` is a folder, in which a missing index is created, an ``Index``, or a published copy
    (read only); without it the index is temporary. The index embeds documents and queries
    itself: with ``embedder``, a name such as ``"minilm"``, or with a ``document_embedder`` and a
    ``text_embedder`` of Haystack. Embeddings of the documents themselves are not used. ``method``
    and ``settings`` (``{"alpha": 2}``) are the defaults of each search. The index is opened when
    it is first used.
    """

    def __init__(
        self,
        index: Opened = None,
        embedder: str | None = None,
        *,
        document_embedder: Any = None,
        text_embedder: Any = None,
        method: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        if (document_embedder is None) != (text_embedder is None):
            raise ValueError("give document_embedder and text_embedder together")
        if embedder is not None and document_embedder is not None:
            raise ValueError("give embedder, or document_embedder and text_embedder, not all three")
        self._index, self._embedder = index, embedder
        self._document_embedder, self._text_embedder = document_embedder, text_embedder
        self._method, self._settings = method, dict(settings or {})
        self._opened: Collection | None = None
        self._opening = threading.Lock()

    @property
    def index(self) -> Collection:
        """The index, opened on first use."""
        with self._opening, raising(DocumentStoreError):
            if self._opened is None:
                embedder: Any = self._embedder
                if self._document_embedder is not None:
                    embedder = embedder_of(self._document_embedder, self._text_embedder)
                self._opened = shared.open_collection(self._index, embedder, create=True)
        return self._opened

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of this store: the path of a folder or a URL, not its contents."""
        place = getattr(self._index, "path", self._index)
        if place is not None and not isinstance(place, (str, os.PathLike)):
            raise DocumentStoreError("only an index in a folder can be serialised: give its path")
        data: dict[str, Any] = default_to_dict(
            self, index=None if place is None else os.fspath(place), embedder=self._embedder,
            document_embedder=self._document_embedder, text_embedder=self._text_embedder,
            method=self._method, settings=self._settings,
        )  # fmt: skip
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> StropDocumentStore:
        """Make a store from what ``to_dict`` returned."""
        store: StropDocumentStore = default_from_dict(cls, data)
        return store

    # -- documents ------------------------------------------------------------------------

    def count_documents(self) -> int:
        """Return the number of documents."""
        return len(self.index)

    def filter_documents(self, filters: Filters | None = None) -> list[Document]:
        """Return the documents that match, in the order they were written."""
        return [_document(hit, shared.metadata_of(hit)) for hit in self._matching(filters)]

    def count_documents_by_filter(self, filters: Filters) -> int:
        """Return how many documents match."""
        return len(self._matching(filters))

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents, all or none, and return how many; without a policy, as with FAIL."""
        if not isinstance(documents, list) or not all(isinstance(d, Document) for d in documents):
            raise ValueError("write_documents takes a list of Documents")
        for document in documents:
            if document.content is None and document.blob is not None:
                raise ValueError(
                    f"document {document.id!r} has a blob and no text: convert it to text first"
                )
        with raising(DocumentStoreError), writing(self.index) as index:
            existing = {document.id for document in documents}
            existing -= index.unknown(existing)
            written: dict[str, Document] = {}
            for document in documents:
                if document.id in existing or document.id in written:
                    if policy == DuplicatePolicy.SKIP:
                        continue
                    if policy != DuplicatePolicy.OVERWRITE:
                        raise DuplicateDocumentError(f"there is a document {document.id!r} already")
                written[document.id] = document
            index.add(
                StropDocument(
                    id_, document.content or "", metadata=shared.stored_metadata(document.meta)
                )
                for id_, document in written.items()
            )
        return len(documents) if policy == DuplicatePolicy.OVERWRITE else len(written)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id; an unknown id is no error."""
        with raising(DocumentStoreError):
            shared.remove(self.index, document_ids)

    def delete_all_documents(self) -> None:
        """Delete all documents."""
        with raising(DocumentStoreError):
            shared.remove_all(self.index)

    def delete_by_filter(self, filters: Filters) -> int:
        """Delete the documents that match; return how many."""
        ids = [hit.id for hit in self._matching(filters)]
        self.delete_documents(ids)
        return len(ids)

    def update_by_filter(self, filters: Filters, meta: dict[str, Any]) -> int:
        """Set these fields in the metadata of documents that match; return how many."""
        hits = self._matching(filters)
        with raising(DocumentStoreError), writing(self.index) as index:
            index.add(
                StropDocument(hit.id, hit.text, hit.title, {**hit.metadata, **meta}) for hit in hits
            )
        return len(hits)

    def _matching(self, filters: Filters | None) -> list[Hit]:
        return shared.matching(self.index, to_where(filters))

    count_documents_async = in_thread(count_documents)
    filter_documents_async = in_thread(filter_documents)
    count_documents_by_filter_async = in_thread(count_documents_by_filter)
    write_documents_async = in_thread(write_documents)
    delete_documents_async = in_thread(delete_documents)
    delete_all_documents_async = in_thread(delete_all_documents)
    delete_by_filter_async = in_thread(delete_by_filter)
    update_by_filter_async = in_thread(update_by_filter)

    # -- searching ------------------------------------------------------------------------

    def search(
        self, query: str | list[float], top_k: int, filters: Filters | None, **settings: Any
    ) -> list[Document]:
        """Return the best documents for a text or a vector; retrievers call this."""
        given = {key: value for key, value in settings.items() if value is not None}
        chosen = {"method": self._method, **self._settings, **given}
        hits = shared.find(self.index, query, top_k, where=to_where(filters), **chosen)
        return [_document(hit, shared.hit_metadata(hit), hit.score) for hit in hits]


class _Retriever:
    """The common part of the two retrievers."""

    def __init__(
        self,
        document_store: StropDocumentStore,
        *,
        top_k: int = 10,
        filters: Filters | None = None,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        method: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(document_store, StropDocumentStore):
            raise ValueError("document_store must be a StropDocumentStore")
        self.document_store, self.top_k, self.filters = document_store, top_k, filters
        self.filter_policy = FilterPolicy.from_str(str(filter_policy))
        self.method, self.settings = method, dict(settings or {})

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of this component."""
        data: dict[str, Any] = default_to_dict(
            self, document_store=self.document_store, top_k=self.top_k, filters=self.filters,
            filter_policy=self.filter_policy.value, method=self.method, settings=self.settings,
        )  # fmt: skip
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Make a component from what ``to_dict`` returned."""
        return default_from_dict(cls, data)

    def _find(
        self, query: str | list[float], filters: Filters | None, top_k: int | None
    ) -> dict[str, list[Document]]:
        chosen = apply_filter_policy(self.filter_policy, self.filters, filters)
        k = self.top_k if top_k is None else top_k
        settings = {"method": self.method, **self.settings}
        return {"documents": self.document_store.search(query, k, chosen, **settings)}


@component
class StropTextRetriever(_Retriever):
    """Retrieves by a query's text. The index embeds it, and can match its keywords.

    The score is strop's; ``meta["strop_passage"]`` is the part of the document nearest to the
    query.
    """

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: Filters | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the best documents for a text."""
        return self._find(query, filters, top_k)

    run_async = in_thread(run)


@component
class StropEmbeddingRetriever(_Retriever):
    """Retrieves by a query's embedding by the index's model, without keyword matching."""

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: Filters | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return the best documents for an embedding."""
        return self._find(query_embedding, filters, top_k)

    run_async = in_thread(run)


def to_where(filters: Filters | None) -> Where | None:
    """Translate a filter of Haystack; an invalid one raises FilterError."""
    if not filters:
        return None
    with raising(FilterError, BadInput):
        where = _translated(filters)
        read_filter(where)
    return where


def _translated(filters: Any) -> Where:
    if not isinstance(filters, dict):
        raise BadInput(f"a filter is a dictionary, not {filters!r:.80}")
    for key in ("operator", "value" if "field" in filters else "conditions"):
        if key not in filters:
            raise BadInput(f"filter: {key!r} is missing in {filters!r:.120}")
    if "field" in filters:
        return _comparison(filters["field"], filters["operator"], filters["value"])
    conditions = [_translated(condition) for condition in filters["conditions"]]
    return shared.combined(str(filters["operator"]).lower(), conditions)


def _comparison(field: str, operator: str, value: Any) -> Where:
    name = field.removeprefix("meta.")
    if field in _UNSTORED:
        raise BadInput(f"filter: {field!r} cannot be filtered on: use id or fields of meta")
    if operator in ("in", "not in") and not isinstance(value, list):
        raise BadInput(f"filter: {field!r}: {operator!r} takes a list, not {value!r:.80}")
    where = shared.comparison("$id" if field == "id" else name, operator, value)
    parsed = read_filter(where)
    if operator[0] in "<>" and isinstance(parsed, Test) and parsed.kind == "string":
        raise BadInput(
            f"filter: {field!r}: {operator!r} takes a number or a date such as 2024-05-01, not"
            f" {value!r:.80}"
        )
    return where


def _document(hit: Hit, meta: dict[str, Any], score: float | None = None) -> Document:
    return Document(id=hit.id, content=hit.text or None, meta=meta, score=score)
