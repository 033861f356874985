"""An index whose documents are cut into chunks, behind the server."""

from __future__ import annotations

from pathlib import Path

from helpers.strop_server import serving

from strop import Index
from strop.server import explore, models

LONG = "\n\n".join(
    f"# Part {n}\n\n" + f"The {name} is number {n}. It stands alone here. " * 12
    for n, name in enumerate(["heron", "otter", "badger", "lynx"])
)


def test_documents_that_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "cut.index"
    with Index.create(path, chunking="60:10") as index:
        index.add([{"id": "long", "text": LONG}, {"id": "short", "text": "A lynx and an otter."}])
        index.sharpen()
        assert len(index.chunks("long")) > 1
        expected = index.search("where is the badger", 2)[0]
    with serving(path) as server:
        reply = server.post("/search", {"query": "where is the badger", "k": 2})
        models.SearchReply.model_validate(reply)
        assert [hit["id"] for hit in reply["hits"]] == [hit.id for hit in expected]
        assert reply["hits"][0]["chunk"]["document"] == "long"
        found = server.post("/explore/candidates", {"query": "where is the badger"})["candidates"]
        assert {one["document"] for one in found} == {"long", "short"}
        for id_ in (found[0]["id"], "long"):
            detail = server.post("/explore/document", {"id": id_, "query": "badger"})
            explore.DetailReply.model_validate(detail)
            assert detail["explanation"]["queries"]
        server.post("/explore/map", {"query": "badger", "ids": [one["id"] for one in found]})
