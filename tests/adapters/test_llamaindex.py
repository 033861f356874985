"""LlamaIndex has no test suite for vector stores: its own classes use the adapter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from helpers.animals import ANIMALS
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.extractors import QuestionsAnsweredExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.schema import Document, MetadataMode, QueryBundle, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from strop import Index
from strop.adapters.llamaindex import (
    QUESTIONS,
    QuestionsToQuerySet,
    StropRetriever,
    StropVectorStore,
    embedder_of,
    to_where,
)

NO_EMBEDDING = MockEmbedding(embed_dim=1)
DOCUMENTS = [
    Document(
        text=animal.text,
        id_=animal.id,
        metadata={"animal": animal.id, "legs": 4 if animal.id != "owl" else 2},
    )
    for animal in ANIMALS
]


@pytest.fixture
def store() -> StropVectorStore:
    return StropVectorStore(embedder="wordllama")


@pytest.fixture
def built(store: StropVectorStore) -> VectorStoreIndex:
    index = VectorStoreIndex.from_vector_store(store, embed_model=NO_EMBEDDING)
    for document in DOCUMENTS:
        index.insert(document)
    return index


def test_a_vector_store_index_uses_the_store(
    store: StropVectorStore, built: VectorStoreIndex
) -> None:
    (hits,) = store.client.search("who do mice fear", 2)
    nodes = built.as_retriever(similarity_top_k=2).retrieve("who do mice fear")
    assert [(node.node_id, node.score) for node in nodes] == [(hit.id, hit.score) for hit in hits]
    assert nodes[0].node.ref_doc_id == "owl"
    assert nodes[0].metadata["animal"] == "owl"
    assert nodes[0].metadata["strop_passage"]["text"] == "Mice fear the old owl."
    assert "strop_passage" not in nodes[0].node.get_content(MetadataMode.LLM)
    retriever = built.as_retriever(similarity_top_k=2)
    assert asyncio.run(retriever.aretrieve("who do mice fear")) == nodes
    built.delete_ref_doc("owl")
    assert {node.node.ref_doc_id for node in retriever.retrieve("mice")} == {"fox", "pig"}


def test_nodes_are_stored_and_returned_unchanged(
    store: StropVectorStore, built: VectorStoreIndex
) -> None:
    nodes = store.get_nodes()
    assert [node.ref_doc_id for node in nodes] == ["fox", "owl", "pig"]
    assert isinstance(nodes[0], TextNode)
    assert nodes[0].source_node is not None
    assert nodes[0].source_node.node_id == "fox"
    assert nodes[0].end_char_idx == len(DOCUMENTS[0].text)
    again = StropVectorStore(embedder="wordllama")
    retrieved = built.as_retriever(similarity_top_k=3).retrieve("fox")
    again.add([result.node for result in retrieved])
    assert {node.node_id: node.metadata for node in again.get_nodes()} == {
        node.node_id: node.metadata for node in nodes
    }
    store.delete_nodes([nodes[0].node_id, "unknown"])
    assert len(store.get_nodes()) == 2
    assert [node.ref_doc_id for node in asyncio.run(store.aget_nodes([nodes[1].node_id]))] == [
        "owl"
    ]
    store.clear()
    assert store.get_nodes() == []


METADATA: dict[str, dict[str, Any]] = {
    "a": {"year": 1969, "lang": "en", "tags": ["air", "old"]},
    "b": {"year": 2021, "lang": "de", "tags": ["sea"]},
    "c": {"lang": ""},
    "d": {"year": 1990},
}
FILTERS = [
    MetadataFilter(key="year", value=1990, operator=operator)
    for operator in (
        FilterOperator.EQ, FilterOperator.NE, FilterOperator.GT, FilterOperator.GTE,
        FilterOperator.LT, FilterOperator.LTE,
    )
] + [
    MetadataFilter(key="lang", value=["en", "fr"], operator=FilterOperator.IN),
    MetadataFilter(key="lang", value=["en", "fr"], operator=FilterOperator.NIN),
    MetadataFilter(key="tags", value=["air", "sea"], operator=FilterOperator.ANY),
    MetadataFilter(key="tags", value=["air", "old"], operator=FilterOperator.ALL),
    MetadataFilter(key="tags", value="sea", operator=FilterOperator.CONTAINS),
    MetadataFilter(key="lang", value=None, operator=FilterOperator.IS_EMPTY),
]  # fmt: skip


def test_filters_select_as_in_llamaindex(tmp_path: Path) -> None:
    """The oracle is LlamaIndex's own filter function."""
    groups: list[Any] = [MetadataFilters(filters=[filter_]) for filter_ in FILTERS]
    groups += [
        MetadataFilters(filters=[first, second], condition=condition)
        for condition in FilterCondition
        for first in FILTERS[:8:3]
        for second in FILTERS[1::4]
    ]
    with Index.create(tmp_path / "index") as index:
        index.add(
            [{"id": id_, "text": f"text {id_}", **metadata} for id_, metadata in METADATA.items()]
        )
        store = StropVectorStore(index)
        for group in groups:
            holds = build_metadata_filter_fn(METADATA.__getitem__, group)
            expected = [id_ for id_ in METADATA if holds(id_)]
            assert [node.node_id for node in store.get_nodes(filters=group)] == expected, group
    nested = MetadataFilters(filters=[groups[0], FILTERS[6]], condition=FilterCondition.OR)
    assert to_where(nested) == {
        "$or": [{"$and": [{"year": {"$eq": 1990}}]}, {"lang": {"$in": ["en", "fr"]}}]
    }
    assert to_where(MetadataFilters(filters=[])) is None
    unsupported = MetadataFilter(key="lang", value="e", operator=FilterOperator.TEXT_MATCH)
    with pytest.raises(ValueError, match="'text_match' is not one of"):
        to_where(MetadataFilters(filters=[unsupported]))


def test_queries_of_every_kind(store: StropVectorStore, built: VectorStoreIndex) -> None:
    ids = {node.ref_doc_id: node.node_id for node in store.get_nodes()}

    def first(**options: Any) -> str:
        result = store.query(VectorStoreQuery(similarity_top_k=1, **options))
        assert result.ids is not None
        return result.ids[0]

    (vector,) = store.client.embed_queries("a pig").tolist()
    assert first(query_embedding=vector) == ids["pig"]
    assert first(query_str="a pig", doc_ids=["owl"]) == ids["owl"]
    assert first(query_str="a pig", node_ids=[ids["fox"]]) == ids["fox"]
    two_legs = MetadataFilters(filters=[MetadataFilter(key="legs", value=2)])
    assert first(query_str="a pig", filters=two_legs) == ids["owl"]
    for mode in (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.HYBRID):
        assert first(query_str="roots", mode=mode) == ids["pig"]
    with pytest.raises(ValueError, match="no mode 'svm'"):
        first(query_str="roots", mode=VectorStoreQueryMode.SVM)


def test_the_retriever_ranks_as_search(index: Path) -> None:
    with Index.open(index) as opened:
        (hits,) = opened.search("join two paths", 3)
        nodes = StropRetriever(opened, 3).retrieve("join two paths")
        assert [(node.node_id, node.score) for node in nodes] == [
            (hit.id, hit.score) for hit in hits
        ]
        assert nodes[0].metadata["title"] == hits[0].title
        (vector,) = opened.embed_queries("join two paths").tolist()
        by_vector = StropRetriever(opened, 3, method="trad").retrieve(
            QueryBundle("other words", embedding=vector)
        )
        expected = opened.search("join two paths", 3, "trad")
        assert [node.node_id for node in by_vector] == expected.ids[0].tolist()
        with pytest.raises(ValueError, match="query 1 is empty"):
            StropRetriever(opened).retrieve(" ")


def test_questions_become_a_query_set(store: StropVectorStore) -> None:
    nodes = [
        TextNode(
            id_="owl", text="It sees at night.",
            metadata={QUESTIONS: "1. Which bird hunts mice?\n2) Who sees in the dark?\n\n- Why?"},
        ),
        TextNode(id_="pig", text="It digs for roots.", metadata={"legs": 4}),
    ]  # fmt: skip
    pipeline = IngestionPipeline(
        transformations=[QuestionsToQuerySet(store=store, name="simple")], disable_cache=True
    )
    remaining = pipeline.run(nodes=nodes)
    assert [node.metadata for node in remaining] == [{}, {"legs": 4}]
    index = store.client
    assert isinstance(index, Index)
    assert index.queries_of("owl")["simple"] == [
        "Which bird hunts mice?", "Who sees in the dark?", "Why?",
    ]  # fmt: skip
    assert index.query_sets() == ["sentences", "simple"]
    results = StropRetriever(index, 1).retrieve("which bird hunts mice")
    assert results[0].metadata["strop_passage"]["source"] == "simple"


def test_questions_of_the_extractor_become_a_query_set(store: StropVectorStore) -> None:
    class Scripted(MockLLM):
        def complete(self, *_: Any, **__: Any) -> CompletionResponse:
            return CompletionResponse(text="1. Which bird hunts mice?\n2. Who sees in the dark?")

    extractor = QuestionsAnsweredExtractor(
        questions=2, llm=Scripted(max_tokens=None), show_progress=False
    )
    pipeline = IngestionPipeline(
        transformations=[extractor, QuestionsToQuerySet(store=store)], disable_cache=True
    )
    pipeline.run(nodes=[TextNode(id_="owl", text="It sees at night.")])
    index = store.client
    assert isinstance(index, Index)
    assert index.queries_of("owl")["questions"] == [
        "Which bird hunts mice?", "Who sees in the dark?",
    ]  # fmt: skip


def test_an_index_can_use_llamaindex_embeddings(tmp_path: Path) -> None:
    store = StropVectorStore(tmp_path / "index", MockEmbedding(embed_dim=8))
    store.add([TextNode(id_="1", text="foo")])
    assert store.client.dim == 8
    scores = store.query(VectorStoreQuery(query_str="foo"), words=0).similarities
    assert scores == pytest.approx([1])
    assert embedder_of(MockEmbedding(embed_dim=8)).name.startswith("callable:MockEmbedding")
