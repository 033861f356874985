"""LangChain: its own suites, and what they do not test."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_tests")

from helpers.animals import ANIMALS
from helpers.commands import keyed_server
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager
from langchain_core.indexing import index as index_documents
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import (
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)

from strop import Index
from strop.adapters.langchain import StropRetriever, StropVectorStore, embedder_of


@pytest.mark.anyio
class TestVectorStoreSuite(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return StropVectorStore(embedding=self.get_embeddings())


@pytest.mark.anyio
class TestRetrieverSuite(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _index(self, index: Path) -> None:
        self.path = index

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return StropRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.path}

    @property
    def retriever_query_example(self) -> str:
        return "join two paths"


PAPERS = [
    Document("Wings lift a plane.", id="wing", metadata={"year": 1969, "tags": ["air"]}),
    Document("Hulls carry a ship.", id="hull", metadata={"year": 2021, "tags": ["sea", "new"]}),
    Document("Rails guide a train.", id="rail", metadata={"year": 1990}),
]
EMBEDDING = DeterministicFakeEmbedding(size=16)


@pytest.fixture
def store() -> StropVectorStore:
    store = StropVectorStore(embedding="wordllama")
    store.add_documents(PAPERS)
    return store


def test_scores_and_ranking_equal_search(store: StropVectorStore) -> None:
    (hits,) = store.index.search("a sailing ship", 3)
    results = store.similarity_search_with_score("a sailing ship", 3)
    assert [(document.id, score) for document, score in results] == [
        (hit.id, hit.score) for hit in hits
    ]
    (vector,) = store.index.embed_queries("a sailing ship")
    by_vector = store.similarity_search_by_vector(vector.tolist(), 3)
    assert by_vector == [document for document, _ in results]
    assert store.similarity_search("a sailing ship", 1, method="bm25")[0].id == "hull"


def test_filters_have_the_syntax_of_strop(store: StropVectorStore) -> None:
    def ids(where: Any) -> set[str | None]:
        return {document.id for document in store.similarity_search("travel", 9, filter=where)}

    assert ids({"year": {"$gte": 1990}}) == {"hull", "rail"}
    assert ids({"tags": "new"}) == {"hull"}
    assert ids({"$or": [{"tags": "air"}, {"tags": {"$exists": False}}]}) == {"wing", "rail"}
    retriever = store.as_retriever(search_kwargs={"k": 9, "filter": {"year": {"$lt": 1980}}})
    assert [document.id for document in retriever.invoke("travel")] == ["wing"]
    (vector,) = store.index.embed_queries("travel")
    old = {"year": {"$lt": 1980}}
    for documents in (
        store.similarity_search("travel", 9, old),
        store.similarity_search_with_score("travel", 9, old)[0],
        store.similarity_search_by_vector(vector.tolist(), 9, old),
        store.max_marginal_relevance_search("travel", 9, 20, 0.5, old),
        store.max_marginal_relevance_search_by_vector(vector.tolist(), 9, 20, 0.5, old),
    ):
        assert [document.id for document in documents if isinstance(document, Document)] == ["wing"]
    with pytest.raises(ValueError, match="'year': '\\$above' is not one of"):
        ids({"year": {"$above": 3}})
    with pytest.raises(ValueError, match="a filter is a mapping"):
        ids(lambda document: True)


@pytest.mark.parametrize("method", ["trad", "sharp", "sharp:words=3", "maxsim", "bm25"])
def test_relevance_is_between_0_and_1(store: StropVectorStore, method: str) -> None:
    results = store.similarity_search_with_relevance_scores(
        PAPERS[1].page_content, 3, method=method
    )
    assert results[0][0].id == "hull"
    assert all(0 <= score <= 1 for _, score in results)
    assert results[0][1] > 0.35 > results[-1][1]
    retriever = store.as_retriever(
        search_type="similarity_score_threshold",
        search_kwargs={"score_threshold": 0.35, "method": method},
    )
    assert [document.id for document in retriever.invoke(PAPERS[1].page_content)] == ["hull"]


def test_relevance_of_hybrid_is_refused(store: StropVectorStore) -> None:
    with pytest.raises(ValueError, match="use sharp:words=1"):
        store.similarity_search_with_relevance_scores("a ship", method="hybrid")


def test_mmr_prefers_diverse_documents() -> None:
    texts = ["a ship at sea", "a ship at sea today", "a train on rails"]
    store = StropVectorStore.from_texts(texts, "wordllama", ids=["1", "2", "3"])
    diverse = store.max_marginal_relevance_search("a ship at sea", k=2, lambda_mult=0.1)
    assert [document.id for document in diverse] == ["1", "3"]
    similar = store.max_marginal_relevance_search("a ship at sea", k=2, lambda_mult=1)
    assert [document.id for document in similar] == ["1", "2"]
    (vector,) = store.index.embed_queries("a ship at sea")
    assert diverse == store.max_marginal_relevance_search_by_vector(
        vector.tolist(), k=2, lambda_mult=0.1
    )
    empty = StropVectorStore(embedding="wordllama")
    assert empty.max_marginal_relevance_search("anything") == []


def test_an_index_folder_is_created_and_reopened(tmp_path: Path) -> None:
    path = tmp_path / "papers.index"
    first = StropVectorStore.from_documents(PAPERS, EMBEDDING, index=path)
    before = first.similarity_search_with_score("rails", 3)
    again = StropVectorStore(path, EMBEDDING)
    assert again.similarity_search_with_score("rails", 3) == before
    assert again.embeddings is EMBEDDING
    assert again.index.query_sets() == ["sentences"]
    with pytest.raises(ValueError, match="an open index has its embedder"):
        StropVectorStore(first.index, EMBEDDING)


def test_an_index_can_use_langchain_embeddings(tmp_path: Path) -> None:
    class Two(DeterministicFakeEmbedding):
        """An embedder with a prefix for queries."""

        model: str = "two-1"

        def embed_query(self, text: str) -> list[float]:
            return super().embed_query(f"query: {text}")

    embedder = embedder_of(Two(size=8))
    assert embedder.name == "callable:Two:two-1"
    with Index.create(tmp_path / "index", embedder) as index:
        index.add([{"id": "1", "text": "foo"}])
        assert index.search("query: foo")[0][0].score != pytest.approx(1)
        rows = Two(size=8).embed_documents(["query: foo"])
        index.add([{"id": "2", "text": "query: foo"}])
        assert index.search("foo")[0][0].score == pytest.approx(1)
        assert len(rows[0]) == index.dim


def test_scores_and_passages_of_hits_are_not_stored(index: Path) -> None:
    with Index.open(index) as opened:
        (hits,) = opened.search("join two paths", 2)
        retriever = StropRetriever(index=opened, k=2)
        documents = retriever.invoke("join two paths")
        for document, hit in zip(documents, hits, strict=True):
            assert document.id == hit.id
            assert document.page_content == hit.text
            assert document.metadata["title"] == hit.title
            assert document.metadata["strop_score"] == hit.score
            assert hit.passage is not None
            assert document.metadata["strop_passage"] == hit.passage.to_dict()
        assert retriever.invoke("join two paths", method="trad", k=1)[0].metadata[
            "strop_score"
        ] == pytest.approx(opened.search("join two paths", 1, "trad")[0][0].score)
    store = StropVectorStore(embedding="wordllama")
    store.add_documents(documents)
    (stored,) = store.get_by_ids([hits[0].id])
    assert set(stored.metadata) == {"title"}
    with pytest.raises(ValueError, match="does not exist"):
        StropRetriever(index="no such folder")


def test_invalid_input_is_a_value_error_and_changes_nothing(store: StropVectorStore) -> None:
    with pytest.raises(ValueError, match="cannot be stored as JSON"):
        store.add_texts(["x"], [{"when": object()}])
    with pytest.raises(ValueError, match="2 texts, 1 ids"):
        store.add_texts(["x", "y"], ids=["1"])
    with pytest.raises(ValueError, match="'beta' is not one of"):
        store.similarity_search("x", beta=1)
    assert len(store.index) == 3
    assert store.delete(None)
    assert len(store.index) == 0


async def _add_and_search(store: StropVectorStore) -> list[list[Document]]:
    texts = [f"text number {i}" for i in range(8)]
    await asyncio.gather(*(store.aadd_texts([text], ids=[text]) for text in texts))
    return await asyncio.gather(*(store.asimilarity_search(text, 1) for text in texts))


def test_concurrent_async_calls() -> None:
    results = asyncio.run(_add_and_search(StropVectorStore(embedding=EMBEDDING)))
    assert [document.id for (document,) in results] == [f"text number {i}" for i in range(8)]


def test_the_indexing_api_updates_changed_documents(tmp_path: Path) -> None:
    store = StropVectorStore(tmp_path / "index", EMBEDDING)
    manager = InMemoryRecordManager("papers")
    manager.create_schema()
    documents = [
        Document(text, metadata={"source": name}) for name, text in (("a", "one"), ("b", "two"))
    ]
    options: dict[str, Any] = {
        "cleanup": "incremental", "source_id_key": "source", "key_encoder": "sha256",
    }  # fmt: skip
    first = index_documents(documents, manager, store, **options)
    documents[0].page_content = "three"
    second = index_documents(documents, manager, store, **options)
    assert (first["num_added"], second["num_added"], second["num_deleted"]) == (2, 1, 1)
    assert {document.page_content for document in store.similarity_search("x")} == {"two", "three"}


def test_a_rag_chain_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retriever, prompt, a model over HTTP, parser: the answer quotes the right passage."""
    openai = pytest.importorskip("openai")
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnableLambda, RunnablePassthrough

    with Index.create(tmp_path / "index") as index, keyed_server(monkeypatch, "sk-1") as server:
        index.add(ANIMALS)
        index.sharpen()
        server.text = lambda prompt: f"I read: {prompt.partition('Context: ')[2]}"
        client = openai.OpenAI(base_url=server.url, api_key="sk-1")

        def model(prompt: Any) -> str:
            messages = [{"role": "user", "content": prompt.to_string()}]
            reply = client.chat.completions.create(model="scripted", messages=messages)
            return str(reply.choices[0].message.content)

        def passages(documents: list[Document]) -> str:
            return " ".join(document.metadata["strop_passage"]["text"] for document in documents)

        retriever = StropRetriever(index=index, k=1)
        prompt = ChatPromptTemplate.from_template("Question: {question} Context: {context}")
        context = {"context": retriever | passages, "question": RunnablePassthrough()}
        chain = context | prompt | RunnableLambda(model) | StrOutputParser()
        assert chain.invoke("who do mice fear") == "I read: Mice fear the old owl."
        assert asyncio.run(chain.ainvoke("what does a pig dig for")).endswith("digs for roots.")
        client.close()
