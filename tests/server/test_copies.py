"""The server with a published copy, a database, instead of an index folder."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.strop_server import WRITE_KEY, RunningServer

from strop.server import models

QUERY = "copy a folder with all files"


def test_a_copy_gives_the_results_of_its_index(copy: RunningServer, running: RunningServer) -> None:
    bodies: list[dict[str, Any]] = [
        {"query": QUERY},
        {"query": QUERY, "method": "bm25", "k": 3, "fields": ["id", "score"]},
        {"queries": [QUERY, "folders"], "where": {"year": {"$gte": 2020}}},
        {"query": QUERY, "k": 2, "explain": True, "method": "sharp:alpha=2"},
    ]
    for body in bodies:
        reply, expected = (server.post("/search", body) for server in (copy, running))
        models.SearchReply.model_validate(reply)
        assert _rounded(reply) == _rounded(expected)
    requests: list[tuple[str, Any]] = [
        ("/v1/rerank", {"query": QUERY, "documents": ["Copy folders.", "Sail ships."]}),
        ("/v1/rerank", {"query": QUERY, "documents": [{"id": "note-2020"}, {"id": "note-2021"}]}),
        ("/v1/embeddings", {"input": "a text", "input_type": "document"}),
        ("/explore/map", {"query": QUERY, "ids": ["note-2020", "note-2021"]}),
    ]
    for path, body in requests:
        reply, expected = (server.post(path, body) for server in (copy, running))
        assert reply.keys() == expected.keys()
        if "results" in reply:
            assert _rounded(reply["results"]) == _rounded(expected["results"])
        if "data" in reply:
            assert _rounded(reply["data"]) == _rounded(expected["data"])


def test_info_describes_a_copy_without_its_path(copy: RunningServer, copy_url: str) -> None:
    with copy.client() as client:
        info = client.get("/info").json()
        models.Info.model_validate(info)
        assert info["writable"] is False
        assert "docexp" not in info["methods"]
        sets = client.get("/sets").json()
        models.Sets.model_validate(sets)
        assert sets["sets"][0]["documents"]
        assert client.get("/metrics").text.count("strop_index_version")
        missing = client.get("/documents/nobody")
        refused = client.post("/search", json={"query": "x", "method": "sharp:sets=nobody"})
    assert (missing.status_code, refused.status_code) == (404, 400)
    for text in (str(info), missing.text, refused.text):
        assert copy_url.removeprefix("duckdb://") not in text


def test_the_score_inputs_of_a_copy_equal_those_of_its_index(
    copy: RunningServer, running: RunningServer
) -> None:
    body = {"query": QUERY, "k": 20}
    reply, expected = (server.post("/explore/candidates", body) for server in (copy, running))
    assert [candidate["id"] for candidate in reply["candidates"]] == [
        candidate["id"] for candidate in expected["candidates"]
    ]
    for candidate, other in zip(reply["candidates"], expected["candidates"], strict=True):
        for key in ("t", "dd", "words"):
            assert candidate[key] == pytest.approx(other[key], abs=1e-5)
        assert len(candidate["s"]) == len(other["s"])


def test_a_copy_can_be_evaluated(copy: RunningServer) -> None:
    body = {"queries": {"1": "copy a tree"}, "qrels": {"1": {"shutil.copytree": 1}}}
    models.EvalReply.model_validate(copy.post("/eval", body))


def test_unsupported_operations_on_a_copy_are_refused_with_the_remedy(copy: RunningServer) -> None:
    with copy.client(WRITE_KEY) as client:
        for reply in (
            client.put("/documents/x", json={"text": "x"}),
            client.delete("/documents/x"),
            client.post("/documents", json={"documents": [{"id": "x", "text": "x"}]}),
            client.post("/documents/delete", json={"ids": ["x"]}),
        ):
            assert reply.status_code == 405
            assert "publish again" in reply.json()["error"]["message"]
        generation = client.get("/explore/generation")
        assert generation.status_code == 404
        assert "index folder" in generation.json()["error"]["message"]
        corpus = client.get("/explore/collection").json()
        assert (corpus["hubs"], corpus["alike"]) == ([], [])
        assert corpus["sets"][0]["documents"]
        detail = client.post("/explore/document", json={"id": "shutil.move", "query": QUERY}).json()
        assert detail["explanation"]["queries"]
        assert detail["references"] == []


def _rounded(value: object) -> object:
    """Return JSON values with numbers rounded: databases store scaled vectors."""
    if isinstance(value, float):
        return round(value, 3) + 0.0
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
