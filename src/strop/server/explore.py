"""What the page shows beyond a search: the terms of the formula, one document, a map, the corpus.

These look inside an index folder; a published copy has the search only.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from pydantic import Field
from starlette.requests import Request

from strop.common.arrays import Floats, Ints
from strop.errors import BadInput
from strop.index import Index
from strop.lm.prices import price
from strop.methods import METHODS, Method
from strop.search.searcher import Folder
from strop.search.views import View
from strop.server.api import document_value
from strop.server.models import Id, Name, Query, Reply
from strop.server.models import Request as Body
from strop.server.routes import Operation
from strop.server.service import Service

_GRAMS = 400_000
"""Gram values in a reply, 4 bytes each; documents beyond are left out."""
_SNIPPET = 280
_LOOKED_AT = 5000
_ALIKE = 0.98
_SHOWN = 12


class CandidatesRequest(Body):
    """A query, and how many candidates to send for ranking in the browser."""

    query: Query
    k: int = Field(200, ge=1, le=400)
    where: dict[str, Any] | None = None


class CandidatesReply(Reply):
    """The terms of the formula for each candidate; arrays are base64 of little-endian float32."""

    defaults: dict[str, Any]
    candidates: list[dict[str, Any]]
    total: int


class DetailRequest(Body):
    """A document, seen from a query."""

    id: Id
    query: Query | None = None
    method: Name | None = None


class DetailReply(Reply):
    """The document, why it scores as it does, and what tells it from its references."""

    document: dict[str, Any]
    explanation: dict[str, Any] | None
    queries: dict[str, list[str]]
    references: list[dict[str, Any]]


class MapRequest(Body):
    """Documents to draw around a query."""

    query: Query
    ids: list[Id] = Field(min_length=1, max_length=60)


class MapReply(Reply):
    """Points in the plane: the first two principal components."""

    points: list[dict[str, Any]]
    explained: list[float]


class CollectionReply(Reply):
    """The corpus: coverage and contrast of sets, hubs, near-duplicates, fields."""

    documents: int
    sets: list[dict[str, Any]]
    fields: list[str]
    looked_at: int
    hubs: list[dict[str, Any]]
    alike: list[dict[str, Any]]
    isolated: list[str]


class GenerationReply(Reply):
    """What language models have written so far."""

    models: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    newest: list[dict[str, Any]]
    waiting: int


# -- candidates -----------------------------------------------------------------------------------


async def candidates(service: Service, _: Request, asked: CandidatesRequest) -> dict[str, Any]:
    """Send the terms of the formula for the documents that any setting may rank high."""
    return await service.read(_candidates, service.writable(), asked)


def _candidates(index: Index, asked: CandidatesRequest) -> dict[str, Any]:
    default = index.method()
    sharp = METHODS["trad"]
    if default.weighting == "softmax":  # the browser has the formula, not these two
        sharp = replace(default, whiten=0.0, feedback=0.0)
    with index.catalog.reading():
        ids: dict[str, None] = {}
        methods = [default, METHODS["trad"], METHODS["bm25"]]
        ranked = [
            index.search(asked.query, asked.k, method, where=asked.where, fields=()).ids[0].tolist()
            for method in methods
        ]
        for same_rank in zip(*ranked, strict=True):
            ids |= dict.fromkeys(same_rank)
        view = index.searcher.views.of(sharp)
        chosen = list(ids)[: asked.k]
        documents = [index.get(id_) for id_ in chosen]
        places = _places(index, view, chosen)
        words = index.searcher.views.words(sharp)
        fetched = Folder(view.layout, None, words).fetch(places, [asked.query], sharp)
    q = index.embed_queries(asked.query)[0]
    own, along, grams = fetched.gram
    assert fetched.word_scores is not None
    rows, used, begin = [], 0, 0
    for at, count in enumerate(fetched.counts.tolist()):
        used += count * count
        if used > _GRAMS and at:
            break
        sims = fetched.queries[begin : begin + count] @ q
        begin += count
        rows.append(
            {
                "id": documents[at].id, "title": documents[at].title,
                "text": documents[at].text[:_SNIPPET], "metadata": dict(documents[at].metadata),
                "t": float(fetched.documents[at] @ q), "dd": float(own[at]),
                "words": float(fetched.word_scores[0, at]),
                "s": _packed(sims), "u": _packed(along[at, :count]),
                "g": _packed(grams[at, :count, :count]),
            }
        )  # fmt: skip
    return {
        "defaults": {key: getattr(default, key) for key in ("alpha", "temperature", "words")},
        "candidates": rows,
        "total": len(index),
    }


def _packed(values: Floats) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def _places(index: Index, view: View, ids: Sequence[str]) -> Ints:
    numbers = np.array([index.catalog.documents.number_of(id_) for id_ in ids], np.int64)
    return np.searchsorted(view.snapshot.numbers, numbers)


# -- one document ---------------------------------------------------------------------------------


async def detail(service: Service, _: Request, asked: DetailRequest) -> dict[str, Any]:
    """Return a document with its queries, their weights and its references."""
    value = await service.read(document_value, service, asked.id)
    return {"document": value} | await service.read(_detail, service.writable(), asked)


def _detail(index: Index, asked: DetailRequest) -> dict[str, Any]:
    explanation = None
    if asked.query is not None:
        try:
            explanation = asdict(index.explain(asked.query, asked.id, asked.method))
        except BadInput:  # plain methods have nothing to explain
            explanation = None
    return {
        "explanation": explanation,
        "queries": index.queries_of(asked.id),
        "references": _references(index, asked.id),
    }


def _references(index: Index, id_: str) -> list[dict[str, Any]]:
    """Return the references, each with the stored query that best tells the document from it."""
    selected = index.references_of(id_)
    names = index.query_sets()
    if selected is None:
        return []
    method = Method("page", sets=tuple(names)) if names else METHODS["trad"]
    with index.catalog.reading():
        view = index.searcher.views.of(method)
        ids = [id_, *(reference.id for reference in selected.references)]
        own, *others = _places(index, view, ids).tolist()
        rows = view.layout.queries(own)
        number = int(view.snapshot.numbers[own])
        texts = [
            text
            for name in view.names
            for text in index.searcher.views.texts_of(index.searcher.require(name), number)
        ]
        titles = [index.get(one).title or one for one in ids[1:]]
        vectors = [view.layout.document(place) for place in (own, *others)]
    found = []
    for reference, title, vector in zip(selected.references, titles, vectors[1:], strict=True):
        apart = rows @ (vectors[0] - vector) if len(rows) and len(rows) == len(texts) else None
        best = int(np.argmax(apart)) if apart is not None else 0
        found.append(
            {
                "id": reference.id, "title": title, "similarity": reference.similarity,
                "cluster_size": reference.cluster_size,
                "query": texts[best] if apart is not None else None,
                "margin": float(apart[best]) if apart is not None else None,
            }
        )  # fmt: skip
    return found


# -- the map --------------------------------------------------------------------------------------


async def map_(service: Service, _: Request, asked: MapRequest) -> dict[str, Any]:
    """Return the query's neighbourhood as points in the plane."""
    return await service.read(_map, service.writable(), asked)


def _map(index: Index, asked: MapRequest) -> dict[str, Any]:
    names = index.query_sets()
    method = Method("page", sets=tuple(names)) if names else METHODS["trad"]
    q = index.embed_queries(asked.query)[0]
    points: list[dict[str, Any]] = [{"kind": "query", "label": asked.query, "id": None}]
    vectors = [q]
    with index.catalog.reading():
        view = index.searcher.views.of(method)
        shown = [*asked.ids]
        for id_ in asked.ids[:5]:
            selected = index.references_of(id_)
            shown += [one.id for one in selected.references] if selected else []
        for id_, place in zip(dict.fromkeys(shown), _places(index, view, [*dict.fromkeys(shown)]),
                              strict=True):  # fmt: skip
            title = index.get(id_).title or id_
            kind = "document" if id_ in asked.ids else "reference"
            points.append({"kind": kind, "label": title, "id": id_})
            vectors.append(view.layout.document(int(place)))
            if kind == "document" and asked.ids.index(id_) < 10:
                number = int(view.snapshot.numbers[place])
                texts = [
                    text
                    for name in view.names
                    for text in index.searcher.views.texts_of(index.searcher.require(name), number)
                ]
                rows = view.layout.queries(int(place))
                for at in np.argsort(-(rows @ q))[:4].tolist():
                    points.append({"kind": "sentence", "label": texts[at], "id": id_})
                    vectors.append(rows[at])
    matrix = np.array(vectors, np.float64)
    matrix -= matrix.mean(axis=0)
    left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    plane = (left * sizes)[:, :2]
    shares = sizes**2 / max(float((sizes**2).sum()), 1e-12)
    for point, row in zip(points, plane.tolist(), strict=True):
        point["x"], point["y"] = row[0], row[1] if len(row) > 1 else 0.0
    return {"points": points, "explained": shares[:2].tolist()}


# -- the corpus -----------------------------------------------------------------------------------


async def collection(service: Service, _: Request, __: None) -> dict[str, Any]:
    """Return what there is to know about the corpus before searching it."""
    return await service.measure(_collection, service.writable())


def _collection(index: Index) -> dict[str, Any]:
    about = index.info()
    sets = [
        {
            "name": one.name, "source": one.source, "documents": one.lists,
            "queries": one.queries, "bytes": one.bytes,
            "contrast": _contrast(index, one.name, one.source),
        }
        for one in index.sets
    ]  # fmt: skip
    known = index.catalog.references.known()
    numbers = known[known[:, 2] > 0, 0][:_LOOKED_AT]
    others, similarities = index.catalog.references.lists(numbers, 10)
    counts = np.bincount(others[others >= 0].ravel()) if len(numbers) else np.zeros(1, np.int64)
    hubs = np.argsort(-counts, kind="stable")[:_SHOWN]
    alike = [
        (int(number), int(other), float(similarity))
        for number, row, of in zip(numbers, others, similarities, strict=True)
        for other, similarity in zip(row, of, strict=True)
        if similarity >= _ALIKE and number < other
    ]
    alike.sort(key=lambda pair: -pair[2])
    isolated = numbers[similarities[:, 0].argsort()][:5].tolist() if len(numbers) else []
    wanted = {*hubs.tolist(), *isolated, *(n for pair in alike[:_SHOWN] for n in pair[:2])}
    ids = index.catalog.documents.ids_of(sorted(wanted))
    return {
        "documents": about["documents"], "sets": sets, "looked_at": len(numbers),
        "fields": index.catalog.facets.field_names()[:50],
        "hubs": [
            {"id": ids[n], "neighbor_of": int(counts[n])}
            for n in hubs.tolist() if counts[n] and n in ids
        ],
        "alike": [
            {"id": ids[a], "other": ids[b], "similarity": round(similarity, 4)}
            for a, b, similarity in alike[:_SHOWN] if a in ids and b in ids
        ],
        "isolated": [ids[n] for n in isolated if n in ids],
    }  # fmt: skip


def _contrast(index: Index, name: str, source: str) -> float | None:
    return None if source == "expanded" else index.searcher.contrast_rate(name)


async def generation(service: Service, _: Request, __: None) -> dict[str, Any]:
    """Return what language models have written, what it cost and what failed."""
    return await service.read(_generation, service.writable())


def _generation(index: Index) -> dict[str, Any]:
    found = index.catalog.replies.overview(_SHOWN)
    for row in found["models"]:
        known = price(row["model"]) or price(row["lm"].partition(":")[2])
        tokens = (row["input_tokens"], row["output_tokens"], row["cached_tokens"])
        row["dollars"] = known.cost(*tokens) if known else None
    about = index.info()
    waiting = about["waiting"] + sum(of["waiting"] for of in about["sets"].values())
    return {**found, "waiting": waiting}


OPERATIONS = [
    Operation("POST", "/explore/candidates", candidates, "The formula's terms for candidates",
              "Explore", body=CandidatesRequest, reply=CandidatesReply, errors=(501,)),
    Operation("POST", "/explore/document", detail, "A document seen from a query", "Explore",
              body=DetailRequest, reply=DetailReply, errors=(404, 501)),
    Operation("POST", "/explore/map", map_, "The query's neighbourhood in the plane", "Explore",
              body=MapRequest, reply=MapReply, errors=(501,)),
    Operation("GET", "/explore/collection", collection, "Coverage, hubs, near-duplicates",
              "Explore", reply=CollectionReply, errors=(501,)),
    Operation("GET", "/explore/generation", generation, "What language models have written",
              "Explore", reply=GenerationReply, errors=(501,)),
]  # fmt: skip
