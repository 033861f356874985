"""Data of the search page: inputs of scores, one document, a map, the corpus, replies.

A published copy has no references, no neighbours and no replies: these parts are empty for it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from strop.errors import BadInput
from strop.lm.prices import price
from strop.methods import METHODS, Method
from strop.server.api import get_sets
from strop.server.compatible import base64_floats
from strop.server.errors import Refused
from strop.server.models import Id, Name, Query, Request
from strop.server.routes import Operation
from strop.server.service import Service
from strop.types import Collection

_MAX_GRAM_VALUES = 400_000
"""The largest number of Gram values in a reply, 4 bytes each; other documents are left out."""
_SNIPPET = 280
_EXAMINED_DOCUMENTS = 5000
_DUPLICATE_COSINE = 0.98
_MAX_ROWS, _MAX_ISOLATED = 12, 5
_WITH_REFERENCES, _WITH_QUERIES = 5, 10
"""How many of the first documents of a map are drawn with their references, with their queries."""


class CandidatesRequest(Request):
    """A query, and how many candidates to send for ranking in the browser."""

    query: Query
    k: int = Field(200, ge=1, le=400)
    where: dict[str, Any] | None = None


class DetailRequest(Request):
    """A document, seen from a query."""

    id: Id
    query: Query | None = None
    method: Name | None = None


class MapRequest(Request):
    """Documents to draw around a query."""

    query: Query
    ids: list[Id] = Field(min_length=1, max_length=60)


# -- candidates -----------------------------------------------------------------------------------


def candidates(service: Service, body: CandidatesRequest) -> dict[str, Any]:
    """Send the inputs of the scores of the documents that any setting may rank high."""
    collection = service.collection
    default = collection.method()
    sharp = METHODS["trad"]
    if default.weighting == "softmax":  # the browser computes no feedback
        sharp = replace(default, feedback=0.0)
    fields = ("id", "title", "text", "metadata", "chunk")
    with service.read_snapshot():
        ranked = [
            collection.search(
                body.query, body.k, method, where=body.where, fields=fields, chunks=True
            )[0]
            for method in (default, METHODS["trad"], METHODS["bm25"])
        ]
        hits_by_id = {hit.id: hit for same_rank in zip(*ranked, strict=True) for hit in same_rank}
        chosen = list(hits_by_id.values())[: body.k]
        ids = [hit.id for hit in chosen]
        inputs = collection.score_inputs(ids, body.query, sharp) if ids else []
    q = collection.embed_queries(body.query)[0]
    rows: list[dict[str, Any]] = []
    gram_values = 0
    for hit, one in zip(chosen, inputs, strict=True):
        gram_values += len(one.queries) ** 2
        if gram_values > _MAX_GRAM_VALUES and rows:
            break
        rows.append(
            {
                "id": hit.id, "document": hit.chunk.document if hit.chunk else hit.id,
                "title": hit.title, "text": hit.text[:_SNIPPET], "metadata": dict(hit.metadata),
                "t": float(one.vector @ q), "dd": float(one.vector @ one.vector),
                "words": one.word_score,
                "s": base64_floats(one.queries @ q),
                "u": base64_floats(one.queries @ one.vector),
                "g": base64_floats(one.queries @ one.queries.T),
            }
        )  # fmt: skip
    return {
        "defaults": {key: getattr(default, key) for key in ("alpha", "temperature", "words")},
        "candidates": rows,
        "total": len(collection),
    }


# -- one document ---------------------------------------------------------------------------------


def detail(service: Service, body: DetailRequest) -> dict[str, Any]:
    """Return a document with its queries, their weights and its references."""
    with service.read_snapshot():
        document = service.document(body.id)
        explanation = None
        if body.query is not None:
            with suppress(BadInput):  # plain methods have nothing to explain
                explanation = service.collection.explain(body.query, body.id, body.method)
        return {
            "document": document,
            "explanation": explanation,
            "queries": service.collection.queries_of(body.id),
            "references": _references(service, body.id),
        }


def _references(service: Service, id_: str) -> list[dict[str, Any]]:
    """Return the references, each with the stored query that best tells the document from it."""
    selected = service.references_of(id_)
    if not selected:
        return []
    ids = [reference.id for reference in selected]
    own, *others = service.collection.score_inputs([id_, *ids], "", _all_sets(service.collection))
    rows = []
    for reference, other in zip(selected, others, strict=True):
        margins = own.queries @ (own.vector - other.vector)
        best = int(np.argmax(margins)) if len(margins) else None
        rows.append(
            {
                "id": reference.id, "similarity": reference.similarity,
                "cluster_size": reference.cluster_size,
                "title": service.collection.get(reference.id).title or reference.id,
                "query": None if best is None else own.texts[best][1],
                "margin": None if best is None else float(margins[best]),
            }
        )  # fmt: skip
    return rows


def _all_sets(collection: Collection) -> Method:
    names = collection.query_sets()
    return Method("page", sets=tuple(names)) if names else METHODS["trad"]


# -- the map --------------------------------------------------------------------------------------


def map_(service: Service, body: MapRequest) -> dict[str, Any]:
    """Return the query's neighbourhood as points in the plane."""
    collection = service.collection
    q = collection.embed_queries(body.query)[0]
    points: list[dict[str, Any]] = [{"kind": "query", "label": body.query, "id": None}]
    vectors = [q]
    with service.read_snapshot():
        requested_ids = list(dict.fromkeys(body.ids))
        reference_ids = [
            one.id for id_ in requested_ids[:_WITH_REFERENCES] for one in service.references_of(id_)
        ]
        ids = list(dict.fromkeys([*requested_ids, *reference_ids]))
        inputs = collection.score_inputs(ids, "", _all_sets(collection))
        titles = [collection.get(id_).title or id_ for id_ in ids]
    for at, (id_, title, one) in enumerate(zip(ids, titles, inputs, strict=True)):
        kind = "document" if at < len(requested_ids) else "reference"
        points.append({"kind": kind, "label": title, "id": id_})
        vectors.append(one.vector)
        if at < min(len(requested_ids), _WITH_QUERIES):
            for best in np.argsort(-(one.queries @ q))[:4].tolist():
                points.append({"kind": "sentence", "label": one.texts[best][1], "id": id_})
                vectors.append(one.queries[best])
    matrix = np.array(vectors, np.float64)
    matrix -= matrix.mean(axis=0)
    left, sizes, __ = np.linalg.svd(matrix, full_matrices=False)
    plane = (left * sizes)[:, :2]
    shares = sizes**2 / max(float((sizes**2).sum()), 1e-12)
    for point, row in zip(points, plane.tolist(), strict=True):
        point["x"], point["y"] = row[0], row[1] if len(row) > 1 else 0.0
    return {"points": points, "explained": shares[:2].tolist()}


# -- the corpus -----------------------------------------------------------------------------------


async def collection(service: Service) -> dict[str, Any]:
    """Return what there is to know about the corpus before searching it."""
    return await service.run_exclusively(_collection, service)


def _collection(service: Service) -> dict[str, Any]:
    index = service.index
    if index is None:  # a published copy has no statistics
        return {
            "documents": len(service.collection), **get_sets(service), "looked_at": 0,
            "fields": [], "hubs": [], "alike": [], "isolated": [],
        }  # fmt: skip
    sets = [
        {
            "name": one.name, "source": one.source, "documents": one.lists,
            "queries": one.queries, "bytes": one.bytes,
            "contrast":
                index.searcher.contrast_rate(one.name) if one.source != "augmented" else None,
        }
        for one in index.sets
    ]  # fmt: skip
    reference_state = index.catalog.references.known()
    numbers = reference_state[reference_state[:, 2] > 0, 0][:_EXAMINED_DOCUMENTS]
    others, similarities = index.catalog.references.lists(numbers, 10)
    hubs = Counter(others[others >= 0].tolist()).most_common(_MAX_ROWS)
    rows, columns = np.nonzero(
        (similarities >= _DUPLICATE_COSINE) & (numbers[:, np.newaxis] < others)
    )
    pairs = zip(numbers[rows], others[rows, columns], similarities[rows, columns], strict=True)
    alike = sorted(pairs, key=lambda pair: -pair[2])[:_MAX_ROWS]
    isolated = (
        numbers[similarities[:, 0].argsort()][:_MAX_ISOLATED].tolist() if len(numbers) else []
    )
    listed_numbers = {number for number, _ in hubs} | {int(n) for pair in alike for n in pair[:2]}
    ids = index.catalog.documents.ids_of(sorted(listed_numbers | set(isolated)))
    return {
        "documents": len(index), "sets": sets, "looked_at": len(numbers),
        "fields": index.catalog.facets.field_names()[:50],
        "hubs": [{"id": ids[n], "neighbor_of": count} for n, count in hubs if n in ids],
        "alike": [
            {"id": ids[a], "other": ids[b], "similarity": round(float(similarity), 4)}
            for a, b, similarity in alike if a in ids and b in ids
        ],
        "isolated": [ids[n] for n in isolated if n in ids],
    }  # fmt: skip


def generation(service: Service) -> dict[str, Any]:
    """Return what language models have written, what it cost and what failed."""
    if service.index is None:
        raise Refused(
            404, f"{service.name} is a published copy: its index folder keeps the replies"
        )
    overview = service.index.catalog.replies.overview(_MAX_ROWS)
    for row in overview["models"]:
        model_price = price(row["model"]) or price(row["lm"].partition(":")[2])
        tokens = (row["input_tokens"], row["output_tokens"], row["cached_tokens"])
        row["dollars"] = model_price.cost(*tokens) if model_price else None
    info = service.index.info()
    waiting = info["waiting"] + sum(set_info["waiting"] for set_info in info["sets"].values())
    return {**overview, "waiting": waiting}


OPERATIONS = [
    Operation("POST", "/explore/candidates", candidates, "Explore"),
    Operation("POST", "/explore/document", detail, "Explore", errors=(404,)),
    Operation("POST", "/explore/map", map_, "Explore"),
    Operation("GET", "/explore/collection", collection, "Explore"),
    Operation("GET", "/explore/generation", generation, "Explore", errors=(404,)),
]
