"""What the page shows beyond a search: the terms of the formula, one document, a map, the corpus.

A published copy has no references, no neighbours and no replies: these parts are empty there.
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
from strop.server.compatible import packed
from strop.server.errors import Refused
from strop.server.models import Id, Name, Query, Request
from strop.server.routes import Operation
from strop.server.service import Service
from strop.types import Collection

_GRAMS = 400_000
"""Gram values in a reply, 4 bytes each; documents beyond are left out."""
_SNIPPET = 280
_LOOKED_AT = 5000
_ALIKE = 0.98
_SHOWN, _ISOLATED = 12, 5
_WITH_REFERENCES, _WITH_QUERIES = 5, 10
"""So many of the first documents of a map are drawn with their references, and their queries."""


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
    """Send the terms of the formula for the documents that any setting may rank high."""
    collection = service.collection
    default = collection.method()
    sharp = METHODS["trad"]
    if default.weighting == "softmax":  # the browser has the formula, not these two
        sharp = replace(default, whiten=0.0, feedback=0.0)
    fields = ("id", "title", "text", "metadata", "chunk")
    with service.steady():
        ranked = [
            collection.search(
                body.query, body.k, method, where=body.where, fields=fields, chunks=True
            )[0]
            for method in (default, METHODS["trad"], METHODS["bm25"])
        ]
        found = {hit.id: hit for same_rank in zip(*ranked, strict=True) for hit in same_rank}
        chosen = list(found.values())[: body.k]
        terms = collection.terms([hit.id for hit in chosen], body.query, sharp) if chosen else []
    q = collection.embed_queries(body.query)[0]
    rows: list[dict[str, Any]] = []
    used = 0
    for hit, of in zip(chosen, terms, strict=True):
        used += len(of.queries) ** 2
        if used > _GRAMS and rows:
            break
        rows.append(
            {
                "id": hit.id, "document": hit.chunk.document if hit.chunk else hit.id,
                "title": hit.title, "text": hit.text[:_SNIPPET], "metadata": dict(hit.metadata),
                "t": float(of.vector @ q), "dd": float(of.vector @ of.vector),
                "words": of.word_score,
                "s": packed(of.queries @ q), "u": packed(of.queries @ of.vector),
                "g": packed(of.queries @ of.queries.T),
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
    with service.steady():
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
    own, *others = service.collection.terms([id_, *ids], "", _all_sets(service.collection))
    found = []
    for reference, other in zip(selected, others, strict=True):
        apart = own.queries @ (own.vector - other.vector)
        best = int(np.argmax(apart)) if len(apart) else None
        found.append(
            {
                "id": reference.id, "similarity": reference.similarity,
                "cluster_size": reference.cluster_size,
                "title": service.collection.get(reference.id).title or reference.id,
                "query": None if best is None else own.texts[best][1],
                "margin": None if best is None else float(apart[best]),
            }
        )  # fmt: skip
    return found


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
    with service.steady():
        given = list(dict.fromkeys(body.ids))
        near = [one.id for id_ in given[:_WITH_REFERENCES] for one in service.references_of(id_)]
        shown = list(dict.fromkeys([*given, *near]))
        terms = collection.terms(shown, "", _all_sets(collection))
        titles = [collection.get(id_).title or id_ for id_ in shown]
    for at, (id_, title, of) in enumerate(zip(shown, titles, terms, strict=True)):
        kind = "document" if at < len(given) else "reference"
        points.append({"kind": kind, "label": title, "id": id_})
        vectors.append(of.vector)
        if at < min(len(given), _WITH_QUERIES):
            for best in np.argsort(-(of.queries @ q))[:4].tolist():
                points.append({"kind": "sentence", "label": of.texts[best][1], "id": id_})
                vectors.append(of.queries[best])
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
    return await service.measure(_collection, service)


def _collection(service: Service) -> dict[str, Any]:
    index = service.index
    if index is None:  # a copy is made for searching
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
    known = index.catalog.references.known()
    numbers = known[known[:, 2] > 0, 0][:_LOOKED_AT]
    others, similarities = index.catalog.references.lists(numbers, 10)
    hubs = Counter(others[others >= 0].tolist()).most_common(_SHOWN)
    rows, columns = np.nonzero((similarities >= _ALIKE) & (numbers[:, np.newaxis] < others))
    pairs = zip(numbers[rows], others[rows, columns], similarities[rows, columns], strict=True)
    alike = sorted(pairs, key=lambda pair: -pair[2])[:_SHOWN]
    isolated = numbers[similarities[:, 0].argsort()][:_ISOLATED].tolist() if len(numbers) else []
    wanted = {number for number, _ in hubs} | {int(n) for pair in alike for n in pair[:2]}
    ids = index.catalog.documents.ids_of(sorted(wanted | set(isolated)))
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
    found = service.index.catalog.replies.overview(_SHOWN)
    for row in found["models"]:
        known = price(row["model"]) or price(row["lm"].partition(":")[2])
        tokens = (row["input_tokens"], row["output_tokens"], row["cached_tokens"])
        row["dollars"] = known.cost(*tokens) if known else None
    about = service.index.info()
    waiting = about["waiting"] + sum(of["waiting"] for of in about["sets"].values())
    return {**found, "waiting": waiting}


OPERATIONS = [
    Operation("POST", "/explore/candidates", candidates, "Explore"),
    Operation("POST", "/explore/document", detail, "Explore", errors=(404,)),
    Operation("POST", "/explore/map", map_, "Explore"),
    Operation("GET", "/explore/collection", collection, "Explore"),
    Operation("GET", "/explore/generation", generation, "Explore", errors=(404,)),
]
