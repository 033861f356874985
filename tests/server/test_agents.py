"""MCP with the official client, over standard input and output and over HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.strop_server import KEYS, READ_KEY, RunningServer, serving
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from strop import Index

QUERY = "copy a folder with all files"


@pytest.fixture
def client(request: pytest.FixtureRequest, served: Path) -> Client:
    """Return an MCP client of the index or of a published copy."""
    if request.param == "stdio":
        arguments = ["-m", "strop", "mcp", str(served)]
        return Client(
            StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
        )
    server: RunningServer = request.getfixturevalue(request.param)
    return Client(f"{server.url}/mcp")


@pytest.mark.parametrize("client", ["stdio", "running", "copy"], indirect=True)
def test_an_agent_searches_fetches_and_explains(client: Any, opened: Index, served: Path) -> None:
    async def talk() -> None:
        async with client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert {*tools} == {"search", "fetch", "similar", "explain", "info"}
            assert all(tool.annotations.read_only_hint for tool in tools.values())

            method = "sharp:feedback=0"  # feedback is not part of an explanation
            best = opened.search(QUERY, 3, method)[0]
            hits = (await _call(client, "search", query=QUERY, k=3, method=method))["results"]
            assert [hit["id"] for hit in hits] == [hit.id for hit in best]
            assert hits[0]["passage"] == (best[0].passage and best[0].passage.text)

            filtered = await _call(client, "search", query="folders", where={"year": 2020})
            assert [hit["id"] for hit in filtered["results"]] == ["note-2020"]
            assert filtered["warnings"] == []
            misspelled = await _call(client, "search", query="folders", where={"yeer": 2020})
            assert "no document has the field 'yeer'" in misspelled["warnings"][0]

            id_ = best[0].id
            text = opened.get(id_).text
            first = await _call(client, "fetch", id=id_, length=20)
            assert (first["text"], first["next"], first["length"]) == (text[:20], 20, len(text))
            rest = await _call(client, "fetch", id=id_, start=20, length=100_000)
            assert (first["text"] + rest["text"], rest["next"]) == (text, None)

            similar = (await _call(client, "similar", id="note-2020", k=3))["results"]
            assert len(similar) == 3
            assert all(
                hit["id"].startswith("note-") and hit["id"] != "note-2020" for hit in similar
            )

            explanation = await _call(client, "explain", query=QUERY, id=id_, method=method)
            assert explanation["score"] == pytest.approx(best[0].score, abs=1e-4)
            assert explanation["parts"]

            info = await _call(client, "info")
            assert info["documents"] == len(opened)
            await _read_resources(client, opened)
            await _check_errors(client, served)

    anyio.run(talk)


async def _read_resources(client: Any, opened: Index) -> None:
    (template,) = (await client.list_resource_templates()).resource_templates
    assert template.uri_template == "strop://documents/{+id}"
    resource = await client.read_resource("strop://documents/shutil.move")
    assert opened.get("shutil.move").text in resource.contents[0].text
    with pytest.raises(MCPError, match="no document"):
        await client.read_resource("strop://documents/nobody")


async def _check_errors(client: Any, served: Path) -> None:
    """Errors are returned to the agent as messages."""
    for name, arguments, message in (
        ("search", {"query": "x", "method": "magic"}, "choose from"),
        ("search", {"query": "x", "where": {"a": {"$near": 1}}}, "$near"),
        ("search", {"query": "x", "k": 10_000}, "k"),
        ("search", {}, "query"),
        ("fetch", {"id": "nobody"}, "no document"),
        ("explain", {"query": "x", "id": "nobody"}, "no document"),
    ):
        result = await client.call_tool(name, arguments)
        assert result.is_error
        assert message in result.content[0].text
        assert str(served.parent) not in result.content[0].text


@pytest.mark.slow
def test_mcp_over_http_needs_a_key(index: Path) -> None:
    import httpx2

    @asynccontextmanager
    async def keyed(url: str, key: str) -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {key}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            yield client

    async def talk(url: str) -> None:
        async with keyed(url, READ_KEY) as client:
            assert (await _call(client, "search", query=QUERY))["results"]
        with pytest.raises(BaseException):  # noqa: B017, PT011  # an ExceptionGroup of the SDK's
            async with keyed(url, "not-a-key-of-this-server") as client:
                await client.list_tools()

    with serving(index, keys=KEYS) as server:
        anyio.run(talk, f"{server.url}/mcp")
        statuses = {line["status"] for line in server.requests() if line["route"] == "/mcp"}
    assert statuses >= {200, 401}


async def _call(client: Client, name: str, **arguments: Any) -> Any:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    return result.structured_content
