"""Haystack: its own suites, pipelines, and what the suites do not test."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("haystack")

from haystack import Document, Pipeline, component, default_from_dict, default_to_dict
from haystack.core.errors import DeserializationError
from haystack.document_stores.errors import DocumentStoreError, DuplicateDocumentError
from haystack.document_stores.types import DocumentStore, DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing.document_store import (
    CountDocumentsByFilterTest,
    DocumentStoreBaseExtendedTests,
)
from haystack.testing.document_store_async import (
    AsyncDocumentStore,
    CountDocumentsAsyncTest,
    CountDocumentsByFilterAsyncTest,
    DeleteAllAsyncTest,
    DeleteByFilterAsyncTest,
    DeleteDocumentsAsyncTest,
    FilterDocumentsAsyncTest,
    UpdateByFilterAsyncTest,
    WriteDocumentsAsyncTest,
)
from helpers.animals import ANIMALS
from helpers.commands import keyed_server
from helpers.fakes import vector_of

from strop import Index
from strop.adapters.haystack import (
    StropDocumentStore,
    StropEmbeddingRetriever,
    StropTextRetriever,
    to_where,
)


class Shared:
    """The store, and a comparison without embeddings, which it does not store."""

    @pytest.fixture
    def document_store(self) -> StropDocumentStore:
        return StropDocumentStore()

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        assert received == [replace(document, embedding=None) for document in expected]


# strop warns about a field that no document has.
@pytest.mark.filterwarnings("ignore:no document has the field")
class TestDocumentStoreSuite(Shared, DocumentStoreBaseExtendedTests, CountDocumentsByFilterTest):
    def test_write_documents(self, document_store: DocumentStore) -> None:
        """Haystack lets the store choose the default policy."""
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])
        self.assert_documents_are_equal(document_store.filter_documents(), [document])


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:no document has the field")
class TestAsyncDocumentStoreSuite(
    Shared,
    CountDocumentsAsyncTest,
    CountDocumentsByFilterAsyncTest,
    DeleteAllAsyncTest,
    DeleteByFilterAsyncTest,
    DeleteDocumentsAsyncTest,
    FilterDocumentsAsyncTest,
    UpdateByFilterAsyncTest,
    WriteDocumentsAsyncTest,
):
    async def test_write_documents_async(self, document_store: AsyncDocumentStore) -> None:
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])


class Serializable:
    """Serialization of an embedder without parameters."""

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = default_to_dict(self)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        return default_from_dict(cls, data)


@component
class TextEmbedder(Serializable):
    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        return {"embedding": vector_of(text, "query").tolist()}


@component
class DocumentEmbedder(Serializable):
    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        return {
            "documents": [
                replace(document, embedding=vector_of(document.content or "", "document").tolist())
                for document in documents
            ]
        }


PAPERS = [
    Document(id="wing", content="Wings lift a plane.", meta={"year": 1969, "tags": ["air"]}),
    Document(id="hull", content="Hulls carry a ship.", meta={"year": 2021, "by": {"name": "Ada"}}),
    Document(id="rail", content="Rails guide a train.", meta={"year": 1990}),
]


@pytest.fixture
def store() -> StropDocumentStore:
    store = StropDocumentStore()
    store.write_documents(PAPERS)
    return store


@pytest.mark.usefixtures("without_words")  # a query vector has no words
def test_retrievers_rank_as_search(store: StropDocumentStore) -> None:
    (hits,) = store.index.search("a sailing ship", 2)
    expected = [
        (hit.id, hit.score, hit.text, hit.passage and hit.passage.to_dict()) for hit in hits
    ]

    def fields(documents: list[Document]) -> list[Any]:
        return [
            (document.id, document.score, document.content, document.meta["strop_passage"])
            for document in documents
        ]

    by_text = StropTextRetriever(store, top_k=2)
    assert fields(by_text.run("a sailing ship")["documents"]) == expected
    assert fields(asyncio.run(by_text.run_async("a sailing ship"))["documents"]) == expected
    (vector,) = store.index.embed_queries("a sailing ship").tolist()
    by_vector = StropEmbeddingRetriever(store)
    assert fields(by_vector.run(vector, top_k=2)["documents"]) == expected
    assert fields(asyncio.run(by_vector.run_async(vector, top_k=2))["documents"]) == expected
    by_keywords = StropTextRetriever(store, method="bm25").run("a ship", top_k=1)["documents"]
    assert by_keywords[0].id == "hull"
    with pytest.raises(ValueError, match="k must be 1 or more"):
        by_text.run("a ship", top_k=0)


def test_filters_of_a_retriever_are_replaced_or_merged(store: StropDocumentStore) -> None:
    late = {"field": "meta.year", "operator": ">=", "value": 1990}
    ada = {"field": "meta.by.name", "operator": "==", "value": "Ada"}
    early = {"field": "meta.year", "operator": "<", "value": 2000}

    def ids(retriever: Any, filters: Any = None) -> set[str]:
        return {document.id for document in retriever.run("travel", filters=filters)["documents"]}

    replacing = StropTextRetriever(store, filters=late)
    assert ids(replacing) == {"hull", "rail"}
    assert ids(replacing, early) == {"wing", "rail"}
    merging = StropTextRetriever(
        store, filters={"operator": "AND", "conditions": [late]}, filter_policy="merge"
    )
    assert ids(merging, {"operator": "AND", "conditions": [ada]}) == {"hull"}
    assert ids(merging, ada) == {"hull"}


def test_unsupported_filters_are_refused(store: StropDocumentStore) -> None:
    def error_for(field: str, operator: str, value: Any) -> str:
        with pytest.raises(FilterError) as caught:
            store.filter_documents({"field": field, "operator": operator, "value": value})
        return str(caught.value)

    assert "'content' cannot be filtered on" in error_for("content", "==", "x")
    assert "'like' is not one of" in error_for("meta.year", "like", "x")
    assert "takes a number or a date" in error_for("meta.year", ">", "soon")
    assert "for several values use $in" in error_for("meta.tags", "==", ["air"])
    with pytest.raises(FilterError, match="'xor' is not one of and, or, not"):
        store.filter_documents({"operator": "XOR", "conditions": []})
    by_id = {"field": "id", "operator": "in", "value": ["wing", "none"]}
    assert [document.id for document in store.filter_documents(by_id)] == ["wing"]
    assert to_where({"operator": "NOT", "conditions": []}) == {"$not": {}}
    assert store.filter_documents({"operator": "NOT", "conditions": []}) == []
    assert store.filter_documents({"operator": "OR", "conditions": []}) == []
    assert len(store.filter_documents({"operator": "AND", "conditions": []})) == 3


def test_invalid_documents_are_refused_without_changes(store: StropDocumentStore) -> None:
    from haystack.dataclasses import ByteStream

    with pytest.raises(ValueError, match="has a blob and no text"):
        store.write_documents([Document(content="fine"), Document(blob=ByteStream(b"x"))])
    with pytest.raises(DocumentStoreError, match="cannot be stored as JSON"):
        store.write_documents([Document(id="1", content="x", meta={"what": object})])
    duplicates = [Document(id="1", content="first"), Document(id="1", content="second")]
    with pytest.raises(DuplicateDocumentError):
        store.write_documents(duplicates, DuplicatePolicy.FAIL)
    assert store.count_documents() == 3
    assert store.write_documents(duplicates, DuplicatePolicy.SKIP) == 1
    assert store.filter_documents()[-1].content == "first"
    assert store.write_documents(duplicates, DuplicatePolicy.OVERWRITE) == 2
    assert store.filter_documents()[-1].content == "second"


def test_delete_documents_refuses_none_and_takes_iterators(store: StropDocumentStore) -> None:
    with pytest.raises(TypeError):
        store.delete_documents(None)  # type: ignore[arg-type]
    assert store.count_documents() == 3
    store.delete_documents(id_ for id_ in ["wing", "unknown"])  # type: ignore[arg-type]
    assert {document.id for document in store.filter_documents()} == {"hull", "rail"}


def test_metadata_added_by_a_search_is_not_stored(store: StropDocumentStore) -> None:
    documents = StropTextRetriever(store).run("a ship")["documents"]
    other = StropDocumentStore()
    other.write_documents(documents)
    assert {document.id: document.meta for document in other.filter_documents()} == {
        document.id: document.meta for document in PAPERS
    }


def test_a_store_with_haystack_embedders_is_serialized(tmp_path: Path) -> None:
    store = StropDocumentStore(
        str(tmp_path / "index"),
        document_embedder=DocumentEmbedder(),
        text_embedder=TextEmbedder(),
        settings={"alpha": 2.0},
    )
    pipeline = Pipeline()
    pipeline.add_component("find", StropTextRetriever(store, top_k=1, method="sharp"))
    assert not (tmp_path / "index").exists()  # the folder is created at the first use
    store.write_documents(PAPERS)
    output = pipeline.run({"find": {"query": "who carry a ship"}})
    with pytest.raises(DeserializationError, match="allowlist"):  # the user decides
        Pipeline.loads(pipeline.dumps())
    loaded = Pipeline.loads(
        pipeline.dumps(), allowed_modules=["strop.adapters.haystack", TextEmbedder.__module__]
    )
    assert loaded.to_dict() == pipeline.to_dict()
    assert loaded.run({"find": {"query": "who carry a ship"}}) == output
    assert output["find"]["documents"][0].id == "hull"
    expected = store.index.search("who carry a ship", 1, "sharp", alpha=2.0)[0][0].score
    assert output["find"]["documents"][0].score == expected


def test_an_open_index_is_serialized_as_its_folder(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index") as index:
        index.add(ANIMALS)
        data = StropDocumentStore(index).to_dict()
    assert data["init_parameters"]["index"] == str(tmp_path / "index")
    assert StropDocumentStore.from_dict(data).count_documents() == 3
    with pytest.raises(DocumentStoreError, match="give its path"):
        StropDocumentStore(object()).to_dict()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="together"):
        StropDocumentStore(text_embedder=TextEmbedder())


def test_a_rag_pipeline_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writer, retriever, prompt, a model over HTTP: the answer quotes the right document."""
    from haystack.components.builders import ChatPromptBuilder
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.components.writers import DocumentWriter
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret

    store = StropDocumentStore(tmp_path / "index")
    indexing = Pipeline()
    indexing.add_component("writer", DocumentWriter(store))
    documents = [Document(id=animal.id, content=animal.text) for animal in ANIMALS]
    assert indexing.run({"writer": {"documents": documents}})["writer"]["documents_written"] == 3
    template = "Context: {% for d in documents %}{{ d.meta.strop_passage.text }}{% endfor %}"
    with keyed_server(monkeypatch, "sk-1") as server:
        server.text = lambda prompt: f"I read: {prompt.partition('Context: ')[2]}"
        rag = Pipeline()
        rag.add_component("find", StropTextRetriever(store, top_k=1))
        rag.add_component(
            "prompt",
            ChatPromptBuilder([ChatMessage.from_user(template)], required_variables=["documents"]),
        )
        rag.add_component(
            "model",
            OpenAIChatGenerator(
                Secret.from_token("sk-1"), "scripted", api_base_url=server.url, max_retries=0
            ),
        )
        rag.connect("find.documents", "prompt.documents")
        rag.connect("prompt.prompt", "model.messages")
        (reply,) = rag.run({"find": {"query": "who do mice fear"}})["model"]["replies"]
        assert reply.text == "I read: Mice fear the old owl."
