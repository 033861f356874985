"""The server with an index whose documents are split into chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from strop import Index
from strop.server import models
from strop.server.app import make_app
from strop.server.service import Service
from strop.server.settings import Settings

LONG = "\n\n".join(
    f"# Part {n}\n\n" + f"The {name} is number {n}. It stands alone here. " * 12
    for n, name in enumerate(["heron", "otter", "badger", "lynx"])
)


def test_documents_split_into_chunks(tmp_path: Path) -> None:
    path = tmp_path / "cut.index"
    with Index.create(path, chunking="60:10") as index:
        index.add([{"id": "long", "text": LONG}, {"id": "short", "text": "A lynx and an otter."}])
        index.sharpen()
        assert len(index.chunks("long")) > 1
        expected = index.search("where is the badger", 2)[0]
    app = make_app(Service(str(path)), Settings(str(path)), ())
    with TestClient(app, "http://localhost") as client:

        def post(url: str, body: Any) -> Any:
            reply = client.post(url, json=body)
            assert reply.status_code == 200, reply.text
            return reply.json()

        reply = post("/search", {"query": "where is the badger", "k": 2})
        models.SearchReply.model_validate(reply)
        assert [hit["id"] for hit in reply["hits"]] == [hit.id for hit in expected]
        assert reply["hits"][0]["chunk"]["document"] == "long"
        candidates = post("/explore/candidates", {"query": "where is the badger"})["candidates"]
        assert {candidate["document"] for candidate in candidates} == {"long", "short"}
        for id_ in (candidates[0]["id"], "long"):
            detail = post("/explore/document", {"id": id_, "query": "badger"})
            assert detail["explanation"]["queries"]
        post(
            "/explore/map",
            {"query": "badger", "ids": [candidate["id"] for candidate in candidates]},
        )
