"""LlamaIndex: an index as a retriever and a vector store (docs/adapters/llamaindex.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from strop.adapters import shared
from strop.adapters.shared import Collection, Opened, Where, in_thread, raising
from strop.embed import Embedder
from strop.errors import BadInput, MissingExtra
from strop.methods import Method
from strop.types import Document as StropDocument
from strop.types import Hit

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.schema import (
        BaseNode,
        MetadataMode,
        NodeWithScore,
        QueryBundle,
        TextNode,
        TransformComponent,
    )
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        FilterOperator,
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
except ImportError:
    raise MissingExtra("The adapter for LlamaIndex", "llamaindex") from None

QUESTIONS = "questions_this_excerpt_can_answer"
"""The metadata key of the questions of LlamaIndex's QuestionsAnsweredExtractor."""


def embedder_of(model: BaseEmbedding, name: str | None = None) -> Embedder:
    """Return an embedding model of LlamaIndex as the embedder of an index."""
    return shared.framework_embedder(
        model, model.get_text_embedding_batch, model.get_query_embedding, name
    )


class StropRetriever(BaseRetriever):
    """Retrieves from an index: ``StropRetriever("my.index", similarity_top_k=5)``.

    ``index`` is an ``Index``, its folder or a published copy. ``settings`` are additional
    arguments of ``Index.search`` (``alpha``, ``words``…). The metadata of a node has the passage
    nearest to the query as ``strop_passage``; prompts do not show it.
    """

    def __init__(
        self,
        index: Collection | str,
        similarity_top_k: int = 10,
        *,
        method: str | Method | None = None,
        filters: MetadataFilters | None = None,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.strop_index = shared.open_collection(index)
        self._k, self._method, self._where = similarity_top_k, method, to_where(filters)
        self._settings = dict(settings or {})

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        embedding = query_bundle.embedding
        vectors = None if embedding is None else np.array([embedding], np.float32)
        hits = shared.find(
            self.strop_index, query_bundle.query_str, self._k, method=self._method,
            where=self._where, vectors=vectors, **self._settings,
        )  # fmt: skip
        return [NodeWithScore(node=_hit_node(hit), score=hit.score) for hit in hits]

    _aretrieve = in_thread(_retrieve)


class StropVectorStore(BasePydanticVectorStore):
    """An index as a vector store: ``StropVectorStore("my.index", embedder)``.

    ``index`` is a folder, in which a missing index is created, an ``Index``, or a published copy
    (read only); without it the index is temporary. The index embeds nodes and queries
    itself, with ``embedder``: a name such as ``"minilm"`` or a model of LlamaIndex. Give
    ``MockEmbedding(embed_dim=1)`` to ``VectorStoreIndex``, so that nothing is embedded twice.
    ``settings`` are the defaults of each search.
    """

    stores_text: bool = True
    is_embedding_query: bool = False
    _collection: Any = PrivateAttr()
    _method: Any = PrivateAttr()
    _settings: dict[str, Any] = PrivateAttr()

    def __init__(
        self,
        index: Opened = None,
        embedder: BaseEmbedding | str | None = None,
        *,
        method: str | Method | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(stores_text=True, is_embedding_query=False)
        model = embedder_of(embedder) if isinstance(embedder, BaseEmbedding) else embedder
        self._collection = shared.open_collection(index, model, create=True)
        self._method, self._settings = method, settings

    @property
    def client(self) -> Collection:
        """The index."""
        collection: Collection = self._collection
        return collection

    # -- nodes ----------------------------------------------------------------------------

    def add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        """Add nodes, or replace those with a known id."""
        with raising(ValueError, BadInput), shared.writing(self.client) as index:
            index.add({node.node_id: _stored(node) for node in nodes}.values())
        return [node.node_id for node in nodes]

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes with these ids that match the filters."""
        return [_node(hit) for hit in self._matching(node_ids, filters)]

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        """Delete the nodes of a document."""
        self._remove(shared.matching(self.client, {"ref_doc_id": ref_doc_id}))

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **_: Any,
    ) -> None:
        """Delete the nodes with these ids that match the filters."""
        self._remove(self._matching(node_ids, filters))

    def clear(self) -> None:
        """Delete all nodes."""
        with raising(ValueError, BadInput):
            shared.remove_all(self.client)

    def _remove(self, hits: list[Hit]) -> None:
        with raising(ValueError, BadInput):
            shared.remove(self.client, [hit.id for hit in hits])

    def _matching(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> list[Hit]:
        ids = None if node_ids is None else {"$id": {"$in": node_ids}}
        return shared.matching(self.client, _all(ids, to_where(filters)))

    # -- searching ------------------------------------------------------------------------

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Search by the query's text, or by its vector if there is no text."""
        where = _all(
            to_where(query.filters),
            {"$id": {"$in": query.node_ids}} if query.node_ids else None,  # an empty list: any
            {"ref_doc_id": {"$in": query.doc_ids}} if query.doc_ids else None,
        )
        text_or_vector = (
            query.query_str if query.query_str is not None else query.query_embedding or []
        )
        settings = {"method": self._method_of(query.mode), **self._settings, **kwargs}
        hits = shared.find(
            self.client, text_or_vector, query.similarity_top_k, where=where, **settings
        )
        return VectorStoreQueryResult(
            nodes=[_hit_node(hit) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.id for hit in hits],
        )

    def _method_of(self, mode: VectorStoreQueryMode) -> str | Method | None:
        if mode == VectorStoreQueryMode.DEFAULT:
            method: str | Method | None = self._method
            return method
        if mode in (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE):
            return "bm25"
        if mode == VectorStoreQueryMode.HYBRID:
            return "hybrid:of=sharp" if self.client.query_sets() else "hybrid"
        raise ValueError(f"no mode {mode.value!r}: use default, text_search, sparse or hybrid")

    async_add = in_thread(add)
    aget_nodes = in_thread(get_nodes)
    adelete = in_thread(delete)
    adelete_nodes = in_thread(delete_nodes)
    aclear = in_thread(clear)
    aquery = in_thread(query)


class QuestionsToQuerySet(TransformComponent):
    """Adds nodes to a store, and their questions as the query set ``name``.

    Use it as the last transformation, after ``QuestionsAnsweredExtractor``. It returns the nodes
    without the questions.
    """

    store: StropVectorStore
    name: str = "questions"

    def __call__(self, nodes: Sequence[BaseNode], **_: Any) -> Sequence[BaseNode]:
        """Store nodes and questions; a new list of questions replaces the old one."""
        lists = {
            node.node_id: _questions(str(node.metadata[QUESTIONS]))
            for node in nodes
            if QUESTIONS in node.metadata
        }
        without_questions = [
            _with_metadata(
                node, {key: value for key, value in node.metadata.items() if key != QUESTIONS}
            )
            for node in nodes
        ]
        self.store.add(without_questions)
        with raising(ValueError, BadInput), shared.writing(self.store.client) as index:
            index.import_queries(lists, self.name)
        return without_questions

    acall = in_thread(__call__)


_BULLET = re.compile(r"^\s*(?:[-*•]|\(?\d+[.):])\s*")


def _questions(text: str) -> list[str]:
    """Return the lines of a list without their numbers."""
    lines = (_BULLET.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


# -- filters and nodes --------------------------------------------------------------------------


def to_where(filters: MetadataFilters | None) -> Where | None:
    """Translate filters of LlamaIndex; one without a translation raises ValueError."""
    if filters is None or not filters.filters:
        return None
    conditions = [
        to_where(condition) or {}
        if isinstance(condition, MetadataFilters)
        else _comparison(condition)
        for condition in filters.filters
    ]
    if filters.condition == FilterCondition.NOT:  # none of them matches
        return shared.combined("not", [shared.combined("or", conditions)])
    return shared.combined((filters.condition or FilterCondition.AND).value, conditions)


def _comparison(filter_: MetadataFilter) -> Where:
    field, operator, value = filter_.key, filter_.operator, filter_.value
    values = value if isinstance(value, list) else [value]
    if operator == FilterOperator.ANY:
        return {field: {"$in": values}}
    if operator == FilterOperator.ALL:
        return shared.combined("and", [{field: one} for one in values])
    if operator == FilterOperator.CONTAINS:
        return {field: value}
    if operator == FilterOperator.IS_EMPTY:
        return {field: {"$in": [None, ""]}}
    with raising(ValueError, BadInput):
        return shared.comparison(field, operator.value, value)


def _all(*filters: Where | None) -> Where | None:
    present = [filter_ for filter_ in filters if filter_ is not None]
    return shared.combined("and", present) if present else None


def _with_metadata(node: BaseNode, metadata: dict[str, Any]) -> BaseNode:
    changed: BaseNode = node.model_copy(update={"metadata": metadata})
    return changed


def _stored(node: BaseNode) -> StropDocument:
    """Return a node as a document; its other fields are stored as metadata, too."""
    plain = _with_metadata(node, shared.stored_metadata(node.metadata))
    metadata = node_to_metadata_dict(plain, remove_text=True)
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return StropDocument(node.node_id, text, metadata=metadata)


def _node(hit: Hit) -> BaseNode:
    """Return a document as the node it was stored from, or as a new one."""
    if "_node_content" in hit.metadata:
        return metadata_dict_to_node(dict(hit.metadata), hit.text)
    return TextNode(id_=hit.id, text=hit.text, metadata=shared.metadata_of(hit))


def _hit_node(hit: Hit) -> BaseNode:
    node = _node(hit)
    if hit.passage is not None:
        node.metadata[shared.PASSAGE] = hit.passage.to_dict()
        node.excluded_llm_metadata_keys = [*node.excluded_llm_metadata_keys, shared.PASSAGE]
        node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, shared.PASSAGE]
    return node
