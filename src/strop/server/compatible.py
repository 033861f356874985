"""Forms that other clients speak: OpenAI's embeddings and vector store search, Cohere's rerank."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from strop.common.arrays import Floats
from strop.errors import BadInput
from strop.io.sentences import title_and_sentences
from strop.lm.prices import count_tokens
from strop.methods import Method, method_spec
from strop.search.formula import reference
from strop.server import models
from strop.server.errors import Refused
from strop.server.routes import Operation
from strop.server.service import Service
from strop.types import Hit, Kind, Vectors

_TESTS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")


async def embeddings(service: Service, body: models.EmbeddingsRequest) -> dict[str, Any]:
    """Embed texts with the collection's embedder (OpenAI's form)."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    if body.dimensions not in (None, service.collection.dim):
        raise Refused(400, f"the embedder has {service.collection.dim} dimensions", "dimensions")
    rows = await service.read(_embed, service, texts, body.input_type)
    encoded = map(base64_floats, rows) if body.encoding_format == "base64" else rows.tolist()
    data = [
        {"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(encoded)
    ]
    return {
        "object": "list", "data": data, "model": body.model or service.name,
        "usage": _usage(texts),
    }  # fmt: skip


def _embed(service: Service, texts: Sequence[str], kind: Kind) -> Vectors:
    if kind == "query":
        return service.collection.embed_queries(list(texts))
    return service.collection.embedder.embed(list(texts), kind)


def base64_floats(values: Floats) -> str:
    """Return numbers as base64 of little-endian float32."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def _usage(texts: Sequence[str]) -> dict[str, int]:
    tokens = sum(map(count_tokens, texts))
    return {"prompt_tokens": tokens, "total_tokens": tokens}


# -- vector stores --------------------------------------------------------------------------------


async def store_search(service: Service, id: str, body: models.StoreRequest) -> dict[str, Any]:
    """Search as in an OpenAI vector store; its id is the collection's name."""
    if id != service.name:
        raise Refused(404, f"no vector store of that id: this server has {service.name!r}")
    queries = [body.query] if isinstance(body.query, str) else body.query
    where = None if body.filters is None else read_store_filter(body.filters)
    result = await service.search(queries, body.max_num_results, where=where)
    best: dict[str, Hit] = {}
    for hit in sorted(chain(*result.hits), key=lambda hit: -hit.score):
        best.setdefault(hit.id, hit)
    ranked = list(best.values())[: body.max_num_results]
    min_score = body.ranking_options.score_threshold if body.ranking_options else None
    return {
        "object": "vector_store.search_results.page",
        "search_query": queries,
        "data": [_store_hit(hit) for hit in ranked if min_score is None or hit.score >= min_score],
        "has_more": False,
        "next_page": None,
    }


def _store_hit(hit: Hit) -> dict[str, Any]:
    passage = [hit.passage.text] if hit.passage and hit.passage.text != hit.text else []
    return {
        "file_id": hit.id,
        "filename": hit.title or hit.id,
        "score": hit.score,
        "attributes": dict(hit.metadata),
        "content": [{"type": "text", "text": text} for text in [*passage, hit.text]],
    }


def read_store_filter(store_filter: Any) -> dict[str, Any]:
    """Return OpenAI's form of a filter as strop's: {"type": "gte", "key": …, "value": …}."""
    if not isinstance(store_filter, Mapping):
        raise BadInput("filters: give an object with type, key and value")
    kind = store_filter.get("type")
    if kind in ("and", "or"):
        nested_filters = store_filter.get("filters")
        if not isinstance(nested_filters, list) or not nested_filters:
            raise BadInput(f"filters: {kind} takes a list of filters")
        return {f"${kind}": [read_store_filter(nested_filter) for nested_filter in nested_filters]}
    if (
        kind not in _TESTS
        or not isinstance(store_filter.get("key"), str)
        or "value" not in store_filter
    ):
        raise BadInput(f"filters: type is one of {', '.join(_TESTS)}, and, or; with key and value")
    return {store_filter["key"]: {f"${kind}": store_filter["value"]}}


# -- reranking ------------------------------------------------------------------------------------


async def rerank(service: Service, body: models.RerankRequest) -> dict[str, Any]:
    """Rank documents that are given by id or as texts (Cohere's and Jina's form)."""
    ids = [one.id for one in body.documents if isinstance(one, models.RerankDocument) and one.id]
    method = await service.read(service.collection.method, body.method)
    if ids and len(ids) < len(body.documents):
        raise Refused(422, "documents are all ids or all texts: their scores do not compare")
    texts = [one if isinstance(one, str) else one.text or "" for one in body.documents]
    if ids:
        scores, texts = await _scores_of_ids(service, body, ids)
    else:
        scores = await service.read(_scores_of_texts, service, body.query, texts, method)
    order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))[: body.top_n]
    results: list[dict[str, Any]] = [{"index": at, "relevance_score": scores[at]} for at in order]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    return {
        "id": uuid.uuid4().hex, "model": body.model or method_spec(method), "results": results,
        "usage": _usage([body.query, *texts]),
    }  # fmt: skip


async def _scores_of_ids(
    service: Service, body: models.RerankRequest, ids: Sequence[str]
) -> tuple[list[float], list[str]]:
    where = {"$id": {"$in": sorted(set(ids))}}
    fields = ("id", "score", "text")
    answer = await service.search([body.query], len(ids), body.method, where, fields, exact=True)
    hits_by_id = {hit.id: hit for hit in answer.hits[0]}
    if unknown := [id_ for id_ in ids if id_ not in hits_by_id]:
        raise Refused(404, f"{service.name} has no document {unknown[0]!r} with a vector")
    return [hits_by_id[id_].score for id_ in ids], [hits_by_id[id_].text for id_ in ids]


def _scores_of_texts(
    service: Service, query: str, texts: Sequence[str], method: Method
) -> list[float]:
    """Score texts that are not in the index, sharpened by their own sentences.

    Keyword matching does not count: document frequencies are known only for the index.
    """
    if method.bm25 != "no":
        raise Refused(400, f"{method.name} ranks documents of the index: give ids, or use sharp")
    sentence_lists = [
        title_and_sentences("", text) if method.weighting != "none" else [] for text in texts
    ]
    rows = _embed(service, [*texts, *chain(*sentence_lists)], "document")
    text_vectors, sentences = np.split(rows, [len(texts)])
    sentence_vectors = np.split(
        sentences, np.cumsum([len(vectors) for vectors in sentence_lists])[:-1]
    )
    q = service.collection.embed_queries(query)[0]
    return [
        float(np.float32(reference(q, row, vectors, method)))
        for row, vectors in zip(text_vectors, sentence_vectors, strict=True)
    ]


OPERATIONS = [
    Operation("POST", "/v1/embeddings", embeddings, "Compatible", models.EmbeddingsReply),
    Operation("POST", "/v1/vector_stores/{id}/search", store_search, "Compatible",
              models.StoreReply, errors=(404,)),
    Operation("POST", "/v1/rerank", rerank, "Compatible", models.RerankReply, errors=(404,)),
]  # fmt: skip
