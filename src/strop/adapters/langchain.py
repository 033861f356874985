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
"""How many documents LangChain's own stores return."""


def embedder_of(embedding: Embeddings, name: str | None = None) -> Embedder:
    """Return LangChain embeddings as the embedder of an index: ``Index.create(path, …)``."""
    return shared.framework_embedder(
        embedding, embedding.embed_documents, embedding.embed_query, name
    )


class StropRetriever(BaseRetriever):
    """Retrieves from an index: ``StropRetriever(index="my.index", k=5)``.

    ``index`` is an ``Index``, its folder or a published copy. ``filter`` is a filter of strop's,
    ``settings`` are further arguments of ``Index.search`` (``alpha``, ``words``, ``expand``…).
    All can be given to ``invoke`` too. The metadata of a document has two more keys:
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
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **given: Any
    ) -> list[Document]:
        asked = {"k": self.k, "method": self.method, "filter": self.filter, **self.settings}
        asked |= given
        hits = shared.find(self.index, query, where=asked.pop("filter"), **asked)
        return [_document(hit, shared.found_metadata(hit, score=True)) for hit in hits]


class StropVectorStore(VectorStore):
    """An index as a vector store: ``StropVectorStore("my.index", embedding)``.

    ``index`` is an ``Index``, a published copy (read only), or a folder, where an index is made if
    there is none; without it the index is temporary. ``embedding`` goes with a folder: LangChain
    embeddings, or a name such as ``"minilm"``. ``method`` and ``settings`` (``alpha``, ``words``…)
    are defaults of each search. Documents come back as they were added. A ``filter`` is one of
    strop's, the same as that of Chroma and Pinecone: ``{"year": {"$gte": 2020}}``.
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
        """The LangChain embeddings, if the index has such."""
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
        """Add texts, or replace those with a known id; ids are made where none are given."""
        listed = list(texts)
        given = ids if ids is not None else [None] * len(listed)
        about = metadatas if metadatas is not None else [{}] * len(listed)
        if not len(listed) == len(given) == len(about):
            raise ValueError(
                f"{len(listed)} texts, {len(given)} ids and {len(about)} metadatas: give one of"
                " each for every text"
            )
        used = [id_ or str(uuid4()) for id_ in given]
        documents = {
            id_: StropDocument(id_, text, metadata=shared.stored_metadata(metadata))
            for id_, text, metadata in zip(used, listed, about, strict=True)
        }
        with raising(ValueError, BadInput), shared.writing(self.index) as index:
            index.add(documents.values())
        return used

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents by id, all without ids; one that is not there is no error."""
        with raising(ValueError, BadInput):
            if ids is None:
                shared.remove_all(self.index)
            else:
                shared.remove(self.index, ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids, of those that are there."""
        found = []
        for id_ in ids:
            with suppress(BadInput):
                found.append(self.index.get(id_))
        return [_document(document, metadata_of(document)) for document in found]

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
        """Make a store of texts; ``index`` is its folder, without one it is temporary."""
        store = cls(index, embedding, **settings)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    # -- searching ------------------------------------------------------------------------

    def similarity_search(
        self, query: str | list[float], k: int = _K, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """Return the best documents; ``kwargs`` are further arguments of ``Index.search``."""
        found = self.similarity_search_with_score(query, k, filter, **kwargs)
        return [document for document, _ in found]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = _K, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """Return the best documents for a query's vector; it has no words."""
        return self.similarity_search(embedding, k, filter, **kwargs)

    def similarity_search_with_score(
        self, query: str | list[float], k: int = _K, filter: Filter = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the best documents with strop's scores, more is better."""
        settings = {"fields": _FIELDS, **self._defaults, **kwargs}
        hits = shared.find(self.index, query, k, where=filter, **settings)
        return [(_document(hit, metadata_of(hit)), hit.score) for hit in hits]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = _K, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return scores from 0 to 1: divided by the largest that the method can give."""
        others = ("filter", "exact", "fields", "vectors", "expand")
        settings = {key: value for key, value in kwargs.items() if key not in others}
        largest = _largest(self.index.method(**{**self._defaults, **settings}))
        found = self.similarity_search_with_score(query, k, **kwargs)
        return [(document, min(1.0, max(0.0, score / largest))) for document, score in found]

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

        The texts of the hits are embedded again: a collection hands out no vectors.
        """
        found = self.similarity_search(query, fetch_k, filter, **kwargs)
        if not found:
            return []
        embed = self.index.embed_queries
        row = embed(query)[0] if isinstance(query, str) else np.array(query, np.float32)
        rows = embed([document.page_content or " " for document in found])
        chosen = maximal_marginal_relevance(row, list(rows), lambda_mult, k)
        return [found[at] for at in chosen]

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


def _document(found: StropDocument | Hit, metadata: dict[str, Any]) -> Document:
    return Document(id=found.id, page_content=found.text, metadata=metadata)


def _largest(method: Method) -> float:
    """Return the largest score that a method can give."""
    if method.bm25 == "fused":
        raise ValueError(
            f"{method.name} scores ranks, which say nothing of relevance: use sharp:words=1"
        )
    return 2.0 if method.weighting == "max" else 1.0 + method.words
