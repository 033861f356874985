"""strop's own API: search, documents, what the collection holds, evaluation, health."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from strop.errors import BadInput
from strop.evaluation.scoring import evaluate
from strop.methods import METHODS, method_spec
from strop.server import metrics, models
from strop.server.errors import Refused
from strop.server.routes import Operation, json_response
from strop.server.service import Service
from strop.types import HIT_FIELDS, Changes, Dataset, Document


async def search(service: Service, body: models.SearchRequest) -> dict[str, Any]:
    """Rank the documents for one query or several."""
    fields = tuple(body.fields) if body.fields is not None else HIT_FIELDS
    # In one order, so that equal requests are searched together.
    needed = tuple(name for name in HIT_FIELDS if name in fields)
    result = await service.search(body.texts, body.k, body.method, body.where, needed, body.exact)
    rows = [[hit.to_dict(fields) for hit in hits] for hits in result.hits]
    if body.explain:
        explain = service.collection.explain
        for query, hits, values in zip(body.texts, result.hits, rows, strict=True):
            for hit, value in zip(hits, values, strict=True):
                value["explanation"] = await service.read(explain, query, hit.id, result.method)
    about = {"warnings": result.warnings} if result.warnings else {}
    return {"method": result.method, "hits": rows if body.query is None else rows[0], **about}


# -- documents ------------------------------------------------------------------------------------


def get_document(service: Service, id: str) -> Document:
    """Return a document."""
    return service.document(id)


async def put_document(service: Service, id: str, body: models.DocumentBody) -> Response:
    """Add a document, or replace the one with this id."""
    document = Document(id, body.text, body.title, body.metadata)
    changes: Changes = await service.write(service.writable().add, [document])
    return json_response(changes, 201 if changes.new else 200)


async def add_documents(service: Service, body: models.BulkRequest) -> Changes:
    """Add or replace documents, all or none."""
    documents = [Document(one.id, one.text, one.title, one.metadata) for one in body.documents]
    return await service.write(service.writable().add, documents)


async def delete_document(service: Service, id: str) -> dict[str, int]:
    """Remove a document."""
    return await _remove(service, [id])


async def delete_documents(service: Service, body: models.DeleteRequest) -> dict[str, int]:
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


def get_info(service: Service) -> dict[str, Any]:
    """Return what the collection holds, without the place of its folder."""
    about = {key: value for key, value in service.collection.info().items() if key != "path"}
    return {
        **about,
        "name": service.name,
        "documents": len(service.collection),
        "dim": service.collection.dim,
        "writable": service.index is not None,
        "methods": [name for name in METHODS if _is_usable(service, name)],
        "default_method": method_spec(service.collection.method()),
        "version": service.version(),
    }


def _is_usable(service: Service, name: str) -> bool:
    """Return whether the collection can be searched with a method as it is."""
    try:
        return service.collection.method(name).augmented is None
    except BadInput:
        return False


def get_sets(service: Service) -> dict[str, Any]:
    """Return the query sets."""
    return {
        "sets": [
            {"name": name, **{key: set_info.get(key) for key in ("source", "documents", "queries")}}
            for name, set_info in service.collection.info()["sets"].items()
        ]
    }


async def post_eval(service: Service, body: models.EvalRequest) -> dict[str, Any]:
    """Compare methods on labelled queries."""
    dataset = Dataset("the request", body.queries, body.qrels)
    if unlabelled := body.qrels.keys() - body.queries.keys():
        raise Refused(400, f"qrels name the query {min(unlabelled)!r}, which queries does not have")
    for name in body.methods:
        if (await service.read(service.collection.method, name)).augmented is not None:
            raise Refused(400, f"{name} embeds all documents again: run strop eval instead")
    report = await service.run_exclusively(
        evaluate, service.collection, dataset, body.methods, measures=tuple(body.measures)
    )
    return report.to_json(body.per_query)


async def get_health(_: Service) -> dict[str, str]:
    """Return that the process answers."""
    return {"status": "ok"}


async def get_ready(service: Service) -> Response:
    """Return whether searches are answered."""
    if not service.ready:
        return json_response({"status": "loading"}, 503)
    return json_response({"status": "ready"})


def get_metrics(service: Service) -> Response:
    """Return counts and times for Prometheus."""
    metrics.DOCUMENTS.set(len(service.collection))
    metrics.VERSION.set(service.version())
    return Response(metrics.text(), media_type="text/plain; version=0.0.4")


OPERATIONS = [
    Operation("POST", "/search", search, "Search", models.SearchReply),
    Operation("GET", "/documents/{id:path}", get_document, "Documents", models.DocumentModel,
              errors=(404,)),
    Operation("PUT", "/documents/{id:path}", put_document, "Documents", models.Changes, "write"),
    Operation("DELETE", "/documents/{id:path}", delete_document, "Documents",
              models.Deleted, "write", (404,)),
    Operation("POST", "/documents", add_documents, "Documents", models.Changes, "write"),
    Operation("POST", "/documents/delete", delete_documents, "Documents",
              models.Deleted, "write", (404,)),
    Operation("GET", "/info", get_info, "Collection", models.Info),
    Operation("GET", "/sets", get_sets, "Collection", models.Sets),
    Operation("POST", "/eval", post_eval, "Collection", models.EvalReply),
    Operation("GET", "/health", get_health, "Server", models.Status, "open"),
    Operation("GET", "/ready", get_ready, "Server", models.Status, "open"),
    Operation("GET", "/metrics", get_metrics, "Server"),
]  # fmt: skip
