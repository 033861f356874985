"""strop's own API: search, documents, what the collection holds, evaluation, health."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from strop.errors import BadInput
from strop.evaluation.scoring import evaluate
from strop.methods import METHODS, method_spec
from strop.server import models
from strop.server.batching import Options
from strop.server.errors import Refused
from strop.server.routes import Operation, json_response
from strop.server.service import Service
from strop.types import HIT_FIELDS, Dataset, Document


async def search(service: Service, _: Request, asked: models.SearchRequest) -> dict[str, Any]:
    """Rank the documents for one query or several."""
    fields = tuple(asked.fields) if asked.fields is not None else HIT_FIELDS
    # In one order, so that equal requests are searched together.
    needed = tuple(name for name in HIT_FIELDS if name in fields)
    options = Options.of(asked.k, asked.method, asked.where, fields=needed, exact=asked.exact)
    found = await service.search(asked.texts, options)
    rows = [[hit.to_dict(fields) for hit in hits] for hits in found.hits]
    if asked.explain:
        for query, hits, values in zip(asked.texts, found.hits, rows, strict=True):
            for hit, value in zip(hits, values, strict=True):
                why = await service.read(service.collection.explain, query, hit.id, found.method)
                value["explanation"] = asdict(why)
    about = {"warnings": found.warnings} if found.warnings else {}
    return {"method": found.method, "hits": rows if asked.query is None else rows[0], **about}


# -- documents ------------------------------------------------------------------------------------


def get_document(service: Service, request: Request, _: None) -> dict[str, Any]:
    """Return a document."""
    return asdict(service.document(request.path_params["id"]))


async def put_document(service: Service, request: Request, body: models.DocumentBody) -> Any:
    """Add a document, or replace the one with this id."""
    document = Document(request.path_params["id"], body.text, body.title, body.metadata)
    changes = asdict(await service.write(service.writable().add, [document]))
    return json_response(changes, 201 if changes["new"] else 200)


async def add_documents(service: Service, _: Request, body: models.BulkRequest) -> dict[str, int]:
    """Add or replace documents, all or none."""
    documents = [Document(one.id, one.text, one.title, one.metadata) for one in body.documents]
    return asdict(await service.write(service.writable().add, documents))


async def delete_document(service: Service, request: Request, _: None) -> dict[str, int]:
    """Remove a document."""
    return await _remove(service, [request.path_params["id"]])


async def delete_documents(
    service: Service, _: Request, body: models.DeleteRequest
) -> dict[str, int]:
    """Remove documents, all or none."""
    return await _remove(service, list(dict.fromkeys(body.ids)))


async def _remove(service: Service, ids: list[str]) -> dict[str, int]:
    index = service.writable()

    def remove() -> None:
        if unknown := index.unknown(ids):
            raise Refused(404, f"{service.name} has no document {min(unknown)!r}")
        index.remove(ids)

    await service.write(remove)
    return {"deleted": len(ids)}


# -- about ----------------------------------------------------------------------------------------


def get_info(service: Service, _: object = None, __: None = None) -> dict[str, Any]:
    """Return what the collection holds, without the place of its folder."""
    about = {key: value for key, value in service.collection.info().items() if key != "path"}
    return {
        **about,
        "name": service.name,
        "documents": len(service.collection),
        "dim": service.collection.dim,
        "writable": service.index is not None,
        "methods": usable_methods(service),
        "default_method": method_spec(service.collection.method()),
        "version": service.version(),
    }


def usable_methods(service: Service) -> list[str]:
    """Return the names of the methods that this collection can be searched with."""
    usable = []
    for name, method in METHODS.items():
        try:
            service.collection.method(name)
        except BadInput:
            continue
        if method.augmented is None:
            usable.append(name)
    return usable


def get_sets(service: Service, _: object = None, __: None = None) -> dict[str, Any]:
    """Return the query sets."""
    return {
        "sets": [
            {"name": name, **{key: of.get(key) for key in ("source", "documents", "queries")}}
            for name, of in service.collection.info()["sets"].items()
        ]
    }


async def post_eval(service: Service, _: Request, asked: models.EvalRequest) -> dict[str, Any]:
    """Compare methods on labelled queries."""
    dataset = Dataset("the request", asked.queries, asked.qrels)
    if unlabelled := asked.qrels.keys() - asked.queries.keys():
        raise Refused(400, f"qrels name the query {min(unlabelled)!r}, which queries does not have")
    for name in asked.methods:
        if (await service.read(service.collection.method, name)).augmented is not None:
            raise Refused(400, f"{name} embeds all documents again: run strop eval instead")
    report = await service.measure(
        evaluate, service.collection, dataset, asked.methods, measures=tuple(asked.measures)
    )
    return report.to_json(asked.per_query)


async def get_health(_: Service, __: Request, ___: None) -> dict[str, str]:
    """Return that the process answers."""
    return {"status": "ok"}


async def get_ready(service: Service, _: Request, __: None) -> Response:
    """Return whether searches are answered."""
    if not service.ready:
        return json_response({"status": "loading"}, 503)
    return json_response({"status": "ready"})


def get_metrics(service: Service, _: Request, __: None) -> Response:
    """Return counts and times for Prometheus."""
    text = service.metrics.text(len(service.collection), service.version())
    return Response(text, media_type="text/plain; version=0.0.4")


OPERATIONS = [
    Operation("POST", "/search", search, "Rank documents for queries", "Search",
              body=models.SearchRequest, reply=models.SearchReply),
    Operation("GET", "/documents/{id:path}", get_document, "Read a document", "Documents",
              reply=models.DocumentModel, errors=(404,)),
    Operation("PUT", "/documents/{id:path}", put_document, "Add or replace a document", "Documents",
              "write", models.DocumentBody, models.Changes, (403, 405, 409), created=True),
    Operation("DELETE", "/documents/{id:path}", delete_document, "Remove a document", "Documents",
              "write", None, models.Deleted, (403, 404, 405, 409)),
    Operation("POST", "/documents", add_documents, "Add or replace documents", "Documents",
              "write", models.BulkRequest, models.Changes, (403, 405, 409)),
    Operation("POST", "/documents/delete", delete_documents, "Remove documents", "Documents",
              "write", models.DeleteRequest, models.Deleted, (403, 404, 405, 409)),
    Operation("GET", "/info", get_info, "What the collection holds", "Collection",
              reply=models.Info),
    Operation("GET", "/sets", get_sets, "Its query sets", "Collection", reply=models.Sets),
    Operation("POST", "/eval", post_eval, "Compare methods on labelled queries", "Collection",
              body=models.EvalRequest, reply=models.EvalReply),
    Operation("GET", "/health", get_health, "Whether the process answers", "Server", "open",
              reply=models.Status),
    Operation("GET", "/ready", get_ready, "Whether searches are answered", "Server", "open",
              reply=models.Status, errors=(503,)),
    Operation("GET", "/metrics", get_metrics, "Counts and times for Prometheus", "Server"),
]  # fmt: skip
