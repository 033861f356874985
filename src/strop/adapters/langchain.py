"""LangChain: an index as a retriever and as a vector store (docs/adapters/langchain.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import numpy as np

from strop.adapters import shared
from strop.adapters.shared import Collection, Opened, metadata_of, open_collection, raising
from strop.embed import Embedder
from strop.errors import BadInput, MissingExtra
from strop.methods import Method
from strop.types import Document as StropDocument
from strop.types import Hit

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore
    from langchain_core.vectorstores.utils import maximal_marginal_relevance
    from pydantic import ConfigDict, Field, field_validator
except ImportError:
    raise MissingExtra("The adapter for LangChain", "langchain") from None

Filter = dict[str, Any] | None
_FIELDS = ("id", "score", "title", "text", "metadata")
_K = 4
"""The number of documents that LangChain's own stores return by default."""


def embedder_of(embedding: Embeddings, name: str | None = None) -> Embedder:
    """Return LangChain embeddings as the embedder of an index: ``Index.create(path, …)``."""
    return shared.framework_embedder(
        embedding, embedding.embed_documents, embedding.embed_query, name
    )


class StropRetriever(BaseRetriever):
    """Retrieves from an index: ``StropRetriever(index="my.index", k=5)``.

    ``index`` is an ``Index``, its folder or a published copy. ``filter`` is a filter of strop,
    ``settings`` are additional arguments of ``Index.search`` (``alpha``, ``words``, ``expand``…).
    All can be passed to ``invoke``, too. The metadata of a document has two additional keys:
    ``strop_score`` and ``strop_passage``, the part of the document nearest to the query.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Any
    k: int = _K
    method: str | Method | None = None
    filter: Filter = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @field_validator("index", mode="before")
    @classmethod
    def _open(cls, index: Opened) -> Collection:
        with raising(ValueError):
            return open_collection(index)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **overrides: Any
    ) -> list[Document]:
        arguments = {"k": self.k, "method": self.method, "filter": self.filter, **self.settings}
        arguments |= overrides
        hits = shared.find(self.index, query, where=arguments.pop("filter"), **arguments)
        return [_document(hit, shared.hit_metadata(hit, score=True)) for hit in hits]


class StropVectorStore(VectorStore):
    """An index as a vector store: ``StropVectorStore("my.index", embedding)``.

    ``index`` is an ``Index``, a published copy (read only), or a folder, in which a missing index
    is created; without it the index is temporary. ``embedding`` is for a folder: LangChain
    embeddings, or a name such as ``"minilm"``. ``method`` and ``settings`` (``alpha``, ``words``…)
    are the defaults of each search. Documents are returned as they were added. A ``filter`` has
    strop's syntax, the same as that of Chroma and Pinecone: ``{"year": {"$gte": 2020}}``.
    """

    def __init__(
        self,
        index: Opened = None,
        embedding: Embeddings | str | None = None,
        *,
        method: str | Method | None = None,
        **settings: Any,
    ) -> None:
        self._embedding = embedding if isinstance(embedding, Embeddings) else None
        embedder = embedder_of(embedding) if isinstance(embedding, Embeddings) else embedding
        with raising(ValueError, BadInput):
            self.index = open_collection(index, embedder, create=True)
        self._defaults = {"method": method, **settings}

    @property
    def embeddings(self) -> Embeddings | None:
        """The LangChain embeddings, if the index uses them."""
        return self._embedding

    # -- documents ------------------------------------------------------------------------

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, or replace those with a known id; missing ids are generated."""
        contents = list(texts)
        given_ids = ids if ids is not None else [None] * len(contents)
        fields = metadatas if metadatas is not None else [{}] * len(contents)
        if not len(contents) == len(given_ids) == len(fields):
            raise ValueError(
                f"{len(contents)} texts, {len(given_ids)} ids and {len(fields)} metadatas: give one"
                " of each for every text"
            )
        used_ids = [id_ or str(uuid4()) for id_ in given_ids]
        documents = {
            id_: StropDocument(id_, text, metadata=shared.stored_metadata(metadata))
            for id_, text, metadata in zip(used_ids, contents, fields, strict=True)
        }
        with raising(ValueError, BadInput), shared.writing(self.index) as index:
            index.add(documents.values())
        return used_ids

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents by id, without ids all of them; an unknown id is no error."""
        with raising(ValueError, BadInput):
            if ids is None:
                shared.remove_all(self.index)
            else:
                shared.remove(self.index, ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids, without missing ones."""
        documents = []
        for id_ in ids:
            with suppress(BadInput):
                documents.append(self.index.get(id_))
        return [_document(document, metadata_of(document)) for document in documents]

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | str,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        index: Opened = None,
        **settings: Any,
    ) -> StropVectorStore:
        """Create a store of texts; ``index`` is its folder, without one it is temporary."""
        store = cls(index, embedding, **settings)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    # -- searching ------------------------------------------------------------------------

    def similarity_search(
        self, query: str | list[float], k: int = _K, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """Return the best documents; ``kwargs`` are additional arguments of ``Index.search``."""
        scored = self.similarity_search_with_score(query, k, filter, **kwargs)
        return [document for document, _ in scored]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = _K, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """Return the best documents for a query's vector, without keyword matching."""
        return self.similarity_search(embedding, k, filter, **kwargs)

    def similarity_search_with_score(
        self, query: str | list[float], k: int = _K, filter: Filter = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the best documents with strop's scores; higher is better."""
        settings = {"fields": _FIELDS, **self._defaults, **kwargs}
        hits = shared.find(self.index, query, k, where=filter, **settings)
        return [(_document(hit, metadata_of(hit)), hit.score) for hit in hits]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = _K, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return scores from 0 to 1: divided by the largest possible score of the method."""
        search_options = ("filter", "exact", "fields", "vectors", "expand")
        settings = {key: value for key, value in kwargs.items() if key not in search_options}
        largest = _max_score(self.index.method(**{**self._defaults, **settings}))
        scored = self.similarity_search_with_score(query, k, **kwargs)
        return [(document, min(1.0, max(0.0, score / largest))) for document, score in scored]

    def max_marginal_relevance_search(
        self,
        query: str | list[float],
        k: int = _K,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Choose k of the best ``fetch_k`` documents that are close to the query and differ.

        The texts of the hits are embedded again, because a collection returns no vectors.
        """
        documents = self.similarity_search(query, fetch_k, filter, **kwargs)
        if not documents:
            return []
        embed = self.index.embed_queries
        query_vector = embed(query)[0] if isinstance(query, str) else np.array(query, np.float32)
        vectors = embed([document.page_content or " " for document in documents])
        chosen = maximal_marginal_relevance(query_vector, list(vectors), lambda_mult, k)
        return [documents[place] for place in chosen]

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = _K,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Do the same for a query's vector."""
        settings = {**kwargs, "filter": filter}
        return self.max_marginal_relevance_search(embedding, k, fetch_k, lambda_mult, **settings)


def _document(source: StropDocument | Hit, metadata: dict[str, Any]) -> Document:
    return Document(id=source.id, page_content=source.text, metadata=metadata)


def _max_score(method: Method) -> float:
    """Return the largest possible score of a method."""
    if method.bm25 == "fused":
        raise ValueError(
            f"{method.name} scores ranks, which say nothing of relevance: use sharp:words=1"
        )
    return 2.0 if method.weighting == "max" else 1.0 + method.words
