"""MCP: the collection as tools and resources for agents, over stdio or streamable HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.server.mcpserver.resources import ResourceSecurity
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from strop import __version__
from strop.errors import StropError
from strop.methods import method_spec
from strop.search.explain import QueryContribution
from strop.server.api import get_info
from strop.server.errors import Refused, problem
from strop.server.service import Service
from strop.types import Hit

T = TypeVar("T")
_MAX_HITS = 50
_PAGE = 20_000
_READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

Query = Annotated[str, Field(min_length=1, max_length=100_000, description="What to look for.")]
Id = Annotated[str, Field(min_length=1, max_length=2000, description="A document's id.")]
K = Annotated[int, Field(ge=1, le=_MAX_HITS, description="The number of documents.")]
Where = Annotated[
    dict[str, Any] | None,
    Field(
        description='A filter on metadata: {"year": {"$gte": 2020}, "lang": "en"}. Operators'
        " are $eq, $ne, $in, $nin, $gt, $gte, $lt, $lte, $exists, $and, $or, $not."
    ),
]
MethodName = Annotated[
    str | None, Field(max_length=500, description="A scoring method; leave it out for the default.")
]


class AgentHit(BaseModel):
    """A document that was found; ``passage`` is the part nearest to the query."""

    id: str
    score: float
    title: str
    passage: str
    metadata: dict[str, Any]


class Results(BaseModel):
    """Documents, best first; ``warnings`` say what may be wrong with the filter."""

    results: list[AgentHit]
    warnings: list[str] = []


class Fetched(BaseModel):
    """A part of a document's text; ``next`` is where the next part begins, null at the end."""

    id: str
    title: str
    text: str
    metadata: dict[str, Any]
    length: int
    next: int | None


class ToolExplanation(BaseModel):
    """A document's score: plain cosine, what its stored texts added, what its words added."""

    id: str
    method: str
    plain: float
    score: float
    words: float
    parts: list[QueryContribution]


def agent_server(service: Service) -> MCPServer[Any]:
    """Return the MCP server of a collection."""
    server: MCPServer[Any] = MCPServer(
        "strop",
        version=__version__,
        instructions=(
            f"Search the collection {service.name!r}. search returns passages with document ids;"
            " fetch reads a document; similar finds documents like one; explain says why a"
            " document was found."
        ),
        log_level="WARNING",  # below it the SDK would log arguments
    )

    async def search_results(
        query: str, k: int, where: Any, method: str | None = None, excluded_id: str | None = None
    ) -> Results:
        """Search; the document ``excluded_id`` is left out."""
        limit = k if excluded_id is None else k + 1
        answer = await _tool_errors(service, service.search([query], limit, method, where))
        hits = [hit for hit in answer.hits[0] if hit.id != excluded_id][:k]
        return Results(results=[_agent_hit(hit) for hit in hits], warnings=list(answer.warnings))

    @server.tool(annotations=_READS)
    async def search(
        query: Query, k: K = 10, where: Where = None, method: MethodName = None
    ) -> Results:
        """Find documents that answer a query; returns ids, titles and the best passages."""
        return await search_results(query, k, where, method)

    @server.tool(annotations=_READS)
    async def similar(id: Id, k: K = 10, where: Where = None) -> Results:
        """Find the documents most like a given one."""
        document = await _tool_errors(service, service.read(service.document, id))
        return await search_results(
            document.content[:_PAGE] or document.id, k, where, excluded_id=id
        )

    @server.tool(annotations=_READS)
    async def fetch(
        id: Id,
        start: Annotated[int, Field(ge=0, description="First character to return.")] = 0,
        length: Annotated[int, Field(ge=1, le=200_000, description="Characters.")] = _PAGE,
    ) -> Fetched:
        """Read a document's text and metadata."""
        document = await _tool_errors(service, service.read(service.document, id))
        end = start + length
        return Fetched(
            id=document.id, title=document.title, text=document.text[start:end],
            metadata=dict(document.metadata), length=len(document.text),
            next=end if end < len(document.text) else None,
        )  # fmt: skip

    @server.tool(annotations=_READS)
    async def explain(query: Query, id: Id, method: MethodName = None) -> ToolExplanation:
        """Say why a document scores as it does for a query."""
        explain = service.collection.explain
        why = await _tool_errors(service, service.read(explain, query, id, method))
        return ToolExplanation(
            id=why.id, method=method_spec(service.collection.method(method)),
            plain=why.plain, score=why.score, words=why.words, parts=why.queries[:_MAX_HITS],
        )  # fmt: skip

    @server.tool(annotations=_READS)
    async def info() -> dict[str, Any]:
        """Say what the collection holds: documents, query sets, embedder, methods."""
        return await _tool_errors(service, service.read(get_info, service))

    # An id may look like a path: it is looked up in the catalog, never in a file system.
    @server.resource(
        "strop://documents/{+id}", name="document", mime_type="text/plain",
        description="A document's title and text.", security=ResourceSecurity(exempt_params={"id"}),
    )  # fmt: skip
    async def document(id: str) -> str:
        try:
            stored = await service.read(service.document, id)
        except Refused as error:
            raise ResourceNotFoundError(service.public(str(error))) from None
        return "\n\n".join(filter(None, (stored.title, stored.text)))

    return server


async def _tool_errors(service: Service, work: Awaitable[T]) -> T:
    """Await a result; an error of strop reaches the agent as a message that it can act on."""
    try:
        return await work
    except (StropError, asyncio.TimeoutError) as error:
        raise ToolError(service.public(problem(error)[1])) from None


def _agent_hit(hit: Hit) -> AgentHit:
    return AgentHit(
        id=hit.id, score=hit.score, title=hit.title, metadata=dict(hit.metadata),
        passage=hit.passage.text if hit.passage else hit.text[:500],
    )  # fmt: skip
