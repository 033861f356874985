"""strop's own API gives the same results as the library."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers.strop_server import WRITE_KEY, RunningServer, serving
from pydantic import TypeAdapter

from strop import Index
from strop.evaluation.scoring import evaluate
from strop.io.datasets import read_dataset
from strop.methods import Method, method_spec
from strop.server import models
from strop.server.app import DESCRIBED, OPERATIONS
from strop.server.settings import LIMITS
from strop.types import HIT_FIELDS

QUERY = "copy a folder with all files"


def test_search_equals_index_search(running: RunningServer, opened: Index) -> None:
    reply = running.post("/search", {"query": QUERY, "k": 5})
    models.SearchReply.model_validate(reply)
    assert [reply["hits"]] == _approximate(opened.search(QUERY, 5).to_dict())
    assert reply["method"] == method_spec(opened.method())


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({"method": "trad"}, {"method": "trad"}),
        ({"method": "sharp:alpha=2:words=1"}, {"method": "sharp:alpha=2:words=1"}),
        ({"where": {"year": {"$gte": 2020}}}, {"where": {"year": {"$gte": 2020}}}),
        ({"fields": ["id", "score"], "exact": True}, {"fields": ("id", "score"), "exact": True}),
        ({"fields": []}, {"fields": ()}),
    ],
)
def test_search_options_are_those_of_the_library(
    running: RunningServer, opened: Index, body: dict[str, Any], options: dict[str, Any]
) -> None:
    queries = [QUERY, "is it a link", QUERY]
    hits = running.post("/search", {"queries": queries, "k": 4, **body})["hits"]
    fields: tuple[str, ...] = options.get("fields", HIT_FIELDS)
    expected = opened.search(queries, 4, **options).to_dict(fields)
    assert hits == _approximate(expected)


def _approximate(rows: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Return hits with approximate scores: their last digits depend on the batch."""
    for hit in (hit for row in rows for hit in row):
        if "score" in hit:
            hit["score"] = pytest.approx(hit["score"], abs=1e-5)
    return rows


def test_an_unknown_field_gives_a_warning(running: RunningServer, opened: Index) -> None:
    with pytest.warns(UserWarning, match="filter") as warned:
        assert opened.search(QUERY, where={"yeer": 2020}).ids.size == 0
    reply = running.post("/search", {"query": QUERY, "where": {"yeer": 2020}})
    models.SearchReply.model_validate(reply)
    assert reply["hits"] == []
    assert reply["warnings"] == [str(warning.message) for warning in warned]
    assert "'yeer' (fields there are: " in reply["warnings"][0]
    assert "warnings" not in running.post("/search", {"query": QUERY, "where": {"year": 2020}})


def test_explanations_add_up_to_scores(running: RunningServer, opened: Index) -> None:
    hits = running.post(
        "/search", {"query": QUERY, "k": 3, "explain": True, "method": "sharp:feedback=0"}
    )["hits"]
    for hit in hits:
        explanation = hit["explanation"]
        models.Explanation.model_validate(explanation)
        moved = sum(query["moved"] for query in explanation["queries"])
        assert explanation["plain"] + moved + explanation["words"] == pytest.approx(
            hit["score"], abs=1e-4
        )
        assert len(explanation["queries"]) == len(opened.explain(QUERY, hit["id"]).queries)


def test_concurrent_searches_get_their_own_hits(running: RunningServer, opened: Index) -> None:
    queries = [
        document.text[:40].strip() or document.id for document in map(opened.get, opened.ids())
    ]
    expected = [[hit.id for hit in hits] for hits in opened.search(queries, 3, fields=())]

    def search(at: int) -> list[str]:
        body = {"query": queries[at], "k": 3, "fields": ["id"]}
        return [hit["id"] for hit in client.post("/search", json=body).json()["hits"]]

    with running.client() as client, ThreadPoolExecutor(16) as threads:
        assert list(threads.map(search, range(len(queries)))) == expected


# -- documents ------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["one", "with/slash", "../up", "a b?c#d%2F", "ü✓", "delete"])
def test_create_read_update_and_delete_a_document(running: RunningServer, id_: str) -> None:
    path = f"/documents/{_escaped(id_)}"
    body = {"text": "A zebra has stripes.", "title": "Zebras", "metadata": {"legs": 4, "a": [None]}}
    with running.client(WRITE_KEY) as client:
        assert client.get(path).status_code == 404
        assert client.delete(path).status_code == 404
        created = client.put(path, json=body)
        assert (created.status_code, created.json()["new"]) == (201, 1)
        assert client.put(path, json=body).json()["unchanged"] == 1
        assert client.get(path).json() == {"id": id_, **body}
        hits = client.post("/search", json={"query": "stripes of a zebra", "k": 1}).json()["hits"]
        assert hits[0]["id"] == id_
        changed = client.put(path, json={**body, "text": "A zebra is no horse."})
        assert (changed.status_code, changed.json()["changed"]) == (200, 1)
        assert client.delete(path).json() == {"deleted": 1}
        assert client.get(path).status_code == 404


def _escaped(id_: str) -> str:
    from urllib.parse import quote

    return quote(id_, safe="")


def test_bulk_writes_store_all_documents_or_none(running: RunningServer, opened: Index) -> None:
    before = len(opened)
    new = [{"id": f"bulk-{n}", "text": f"Bulk document {n}."} for n in range(5)]
    with running.client(WRITE_KEY) as client:
        duplicate = client.post("/documents", json={"documents": [*new, new[0]]})
        assert duplicate.status_code == 400
        assert "bulk-0" in duplicate.json()["error"]["message"]
        assert len(opened) == before
        stored = client.post("/documents", json={"documents": new})
        counts = {"new": 5, "changed": 0, "unchanged": 0, "empty": 0, "removed": 0}
        assert stored.json() == counts
        ids = [document["id"] for document in new]
        assert client.post("/documents/delete", json={"ids": [*ids, "nobody"]}).status_code == 404
        assert len(opened) == before + 5
        assert client.post("/documents/delete", json={"ids": [*ids, ids[0]]}).json()["deleted"] == 5
    assert len(opened) == before


# -- about ----------------------------------------------------------------------------------------


def test_info_describes_the_index_without_its_path(running: RunningServer, served: Path) -> None:
    with running.client() as client:
        reply = client.get("/info")
    info = models.Info.model_validate(reply.json())
    assert (info.name, info.writable) == ("docs", True)
    assert {"trad", "sharp", "simsharp"} <= {*info.methods}
    assert not {"consharp", "doc2query"} & {*info.methods}
    assert str(served.parent) not in reply.text


def test_replies_to_get_match_their_models(running: RunningServer) -> None:
    with running.client() as client:
        for operation in OPERATIONS:
            if operation.method == "GET" and operation.reply and "{" not in operation.path:
                reply = client.get(operation.path)
                assert reply.status_code == 200
                TypeAdapter(operation.reply).validate_python(reply.json())
        names = [query_set["name"] for query_set in client.get("/sets").json()["sets"]]
    assert names == ["sentences", "simple"]


def test_the_openapi_document_is_for_callers(running: RunningServer) -> None:
    with running.client() as client:
        schema = client.get("/openapi.json").json()
    assert not [path for path in schema["paths"] if path.startswith("/explore")]
    assert len(schema["paths"]) == len({operation.path for operation in DESCRIBED})
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert "content" in operation["responses"]["200"], (method, path)
    schemas = schema["components"]["schemas"]
    passage = schemas["Passage"]["properties"]
    assert "place in the document" in passage["start"]["description"]
    assert "query set" in passage["source"]["description"]
    for name, component in schemas.items():
        descriptions = json.dumps(
            [component.get("description"), *component.get("properties", {}).values()]
        )
        assert not re.search(r"``|Index\.", descriptions), name


def test_the_page_gets_isolated_documents_and_reference_margins(
    running: RunningServer, opened: Index
) -> None:
    with running.client() as client:
        corpus = client.get("/explore/collection").json()
    assert len(corpus["isolated"]) == 5
    records = opened.catalog.references.known()
    numbers = records[records[:, 2] > 0, 0]
    nearest = opened.catalog.references.lists(numbers, 1)[1][:, 0]
    ids = opened.catalog.documents.ids_of(numbers.tolist())
    isolated = [ids[int(number)] for number in numbers[nearest.argsort()]][:5]
    assert corpus["isolated"] == isolated
    id_ = next(hub["id"] for hub in corpus["hubs"] if opened.references_of(hub["id"]))
    references = running.post("/explore/document", {"id": id_})["references"]
    selected = opened.references_of(id_)
    assert selected is not None
    assert [reference["cluster_size"] for reference in references] == [
        reference.cluster_size for reference in selected.references
    ]
    method = Method("all", sets=tuple(opened.query_sets()))
    own, *others = opened.score_inputs(
        [id_, *(reference["id"] for reference in references)], "", method
    )
    for reference, other in zip(references, others, strict=True):
        margins = own.queries @ (own.vector - other.vector)
        assert reference["margin"] == pytest.approx(float(margins.max()), abs=1e-6)
        assert reference["query"] in {text for _, text in own.texts}


def test_eval_equals_evaluate(running: RunningServer, opened: Index, dataset: Path) -> None:
    labelled = read_dataset(dataset)
    body = {"queries": labelled.queries, "qrels": labelled.qrels, "methods": ["trad", "sharp"]}
    reply = running.post("/eval", body)
    models.EvalReply.model_validate(reply)
    assert reply["results"] == evaluate(opened, labelled).to_json()["results"]


def test_metrics_count_requests_and_batches(running: RunningServer, opened: Index) -> None:
    running.post("/search", {"query": QUERY})
    with running.client() as client:
        client.get("/documents/nobody-has-this-id")
        text = client.get("/metrics").text
    assert 'strop_requests_total{method="POST",route="/search",status="200"}' in text
    assert 'route="/documents/{id:path}",status="404"' in text
    assert "nobody-has-this-id" not in text
    assert f"strop_documents {len(opened)}.0" in text
    assert "strop_batch_queries_bucket" in text
    assert 'strop_stage_seconds_count{stage="search"}' in text


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({}, 422, "query"),
        ({"query": QUERY, "queries": [QUERY]}, 422, "either"),
        ({"query": ""}, 422, "query"),
        ({"query": QUERY, "k": 0}, 422, "k"),
        ({"query": QUERY, "k": LIMITS.k + 1}, 422, "k"),
        ({"query": QUERY, "k": "5"}, 422, "k"),
        ({"query": QUERY, "kk": 5}, 422, "kk"),
        ({"queries": [QUERY] * (LIMITS.queries + 1)}, 422, "queries"),
        ({"query": QUERY, "k": 51, "explain": True}, 422, "lower k"),
        ({"query": QUERY, "method": "magic"}, 400, "choose from"),
        ({"query": QUERY, "method": "consharp"}, 400, "contrastive"),
        ({"query": QUERY, "where": {"year": {"$near": 1}}}, 400, "$near"),
        ({"query": QUERY, "fields": ["vector"]}, 422, "fields"),
    ],
)
def test_an_invalid_search_is_refused_and_names_the_field(
    running: RunningServer, served: Path, body: dict[str, Any], status: int, named: str
) -> None:
    with running.client() as client:
        reply = client.post("/search", json=body)
    models.ErrorReply.model_validate(reply.json())
    assert reply.status_code == status, reply.text
    assert named in reply.json()["error"]["message"]
    assert str(served.parent) not in reply.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"\xff", b"null", b'{"query": "\\ud800"}', b"[" * 100_000]
)
def test_a_body_that_is_no_json_object_is_refused(running: RunningServer, body: bytes) -> None:
    with running.client() as client:
        reply = client.post("/search", content=body, headers={"content-type": "application/json"})
    assert reply.status_code in (400, 422)
    models.ErrorReply.model_validate(reply.json())


def test_unknown_paths_and_methods_return_an_error_reply(running: RunningServer) -> None:
    with running.client() as client:
        for reply, status in ((client.get("/nowhere"), 404), (client.get("/search"), 405)):
            assert reply.status_code == status
            models.ErrorReply.model_validate(reply.json())


@pytest.mark.slow
def test_several_processes_serve_one_index_and_see_commits(index: Path) -> None:
    with serving(index, "--workers", "2", keys=f"write:{WRITE_KEY}") as server:
        for at in range(8):
            with server.client() as client:  # a new connection: may be either process
                created = client.put(
                    f"/documents/zebra-{at}", json={"text": f"A zebra numbered {at}."},
                    headers={"x-api-key": WRITE_KEY},
                )  # fmt: skip
                assert created.status_code == 201, created.text
            reply = server.post("/search", {"query": f"a zebra numbered {at}", "k": at + 1})
            assert f"zebra-{at}" in [hit["id"] for hit in reply["hits"]]
        with server.client() as client:
            text = client.get("/metrics").text
        count = 'strop_requests_total{method="PUT",route="/documents/{id:path}",status="201"} 8.0'
        assert count in text
        assert server.stop()
