"""Compatible APIs: OpenAI embeddings and vector stores, Cohere and Jina rerank."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from helpers.strop_server import RunningServer

from strop import Index
from strop.server import models
from strop.server.compatible import read_store_filter

QUERY = "copy a folder with all files"


def test_embeddings_equal_those_of_the_index(running: RunningServer, opened: Index) -> None:
    texts = ["one text", "another"]
    reply = running.post("/v1/embeddings", {"input": texts, "model": "any", "user": "ignored"})
    models.EmbeddingsReply.model_validate(reply)
    vectors = np.array([item["embedding"] for item in reply["data"]], np.float32)
    np.testing.assert_allclose(vectors, opened.embed_queries(texts), atol=1e-6)
    encoded = running.post(
        "/v1/embeddings",
        {"input": texts[0], "encoding_format": "base64", "input_type": "document"},
    )
    vector = np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, opened.embedder.embed(texts[:1], "document")[0], atol=1e-6)


def test_another_number_of_dimensions_is_refused(running: RunningServer) -> None:
    with running.client() as client:
        reply = client.post("/v1/embeddings", json={"input": "x", "dimensions": 7})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "dimensions")


def test_a_vector_store_search_equals_index_search(running: RunningServer, opened: Index) -> None:
    path = "/v1/vector_stores/docs/search"
    reply = running.post(path, {"query": QUERY, "max_num_results": 4})
    models.StoreReply.model_validate(reply)
    hits = opened.search(QUERY, 4)[0]
    assert [item["file_id"] for item in reply["data"]] == [hit.id for hit in hits]
    assert reply["data"][0]["content"][-1]["text"] == hits[0].text
    threshold = (hits[1].score + hits[2].score) / 2
    above = running.post(
        path,
        {"query": QUERY, "max_num_results": 4, "ranking_options": {"score_threshold": threshold}},
    )
    assert [item["file_id"] for item in above["data"]] == [hit.id for hit in hits[:2]]
    both = running.post(path, {"query": [QUERY, "is it a link"], "max_num_results": 2})
    assert len({item["file_id"] for item in both["data"]}) == 2
    with running.client() as client:
        assert client.post("/v1/vector_stores/other/search", json={"query": "x"}).status_code == 404


def test_a_vector_store_search_can_be_filtered(running: RunningServer) -> None:
    filters = {
        "type": "and",
        "filters": [
            {"type": "gte", "key": "year", "value": 2018},
            {"type": "nin", "key": "year", "value": [2020, 2021]},
        ],
    }
    reply = running.post("/v1/vector_stores/docs/search", {"query": "note", "filters": filters})
    years = sorted(item["attributes"]["year"] for item in reply["data"])
    assert years == [2018, 2019, 2022, 2023, 2024]


@pytest.mark.parametrize(
    "filters", [{}, {"type": "eq", "key": 1, "value": 1}, {"type": "or", "filters": []}, []]
)
def test_an_invalid_vector_store_filter_is_refused(filters: Any) -> None:
    from strop.errors import BadInput

    with pytest.raises(BadInput, match="filters"):
        read_store_filter(filters)


def test_rerank_by_id_equals_index_search(running: RunningServer, opened: Index) -> None:
    ids = ["shutil.move", "shutil.copytree", "os.path.join", "shutil.move"]
    documents = [{"id": id_} for id_ in ids]
    reply = running.post("/v1/rerank", {"query": QUERY, "documents": documents})
    models.RerankReply.model_validate(reply)
    hits = opened.search(QUERY, 10, where={"$id": {"$in": ids}}, exact=True)[0]
    scores = {hit.id: hit.score for hit in hits}
    expected = sorted(range(4), key=lambda at: (-scores[ids[at]], at))
    assert [result["index"] for result in reply["results"]] == expected
    for result in reply["results"]:
        assert result["relevance_score"] == pytest.approx(scores[ids[result["index"]]], abs=1e-5)


def test_rerank_of_texts_scores_them_as_documents(running: RunningServer, opened: Index) -> None:
    ids = ["shutil.move", "shutil.copytree", "os.path.join"]
    documents = [opened.get(id_) for id_ in ids]
    method = "sharp:sets=sentences"
    reply = running.post(
        "/v1/rerank",
        {
            "query": QUERY, "method": method, "return_documents": True, "top_n": 2,
            "documents": [documents[0].content, *({"text": d.content} for d in documents[1:])],
        },
    )  # fmt: skip
    assert len(reply["results"]) == 2
    first = reply["results"][0]
    assert first["document"]["text"] == documents[first["index"]].content
    # The index has the title as a sentence of its own; the text alone begins with it.
    hit = opened.search(QUERY, 1, method, where={"$id": ids[first["index"]]}, words=0)[0][0]
    assert first["relevance_score"] == pytest.approx(hit.score, abs=0.05)


def test_rerank_refuses_mixed_ids_and_texts_and_unknown_ids(running: RunningServer) -> None:
    with running.client() as client:
        for documents, status in (
            ([{"id": "shutil.move"}, "a text"], 422),
            ([{"id": "nobody"}], 404),
            ([{"id": "a", "text": "b"}], 422),
            ([], 422),
        ):
            body = {"query": QUERY, "documents": documents}
            assert client.post("/v1/rerank", json=body).status_code == status
