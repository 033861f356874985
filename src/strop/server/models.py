"""The bodies of requests and replies, typed. The OpenAPI document is generated from them.

A reply is built from plain values and serialised without a check, for speed; the tests compare
every reply with its model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from strop.server.settings import LIMITS

HitField = Literal["id", "score", "title", "text", "metadata", "passage", "chunk"]
Name = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Query = Annotated[str, StringConstraints(min_length=1, max_length=100_000)]
Grade = Annotated[int, Field(ge=-10, le=1000)]
Measure = Annotated[
    str, StringConstraints(pattern=r"^(nDCG|R|P|AP|RR|Success)@[1-9][0-9]{0,2}$")
]  # not any of ir_measures: some that it reads end the process


class Request(BaseModel):
    """A request of strop's own API: unknown names are refused, so that none is overlooked."""

    model_config = ConfigDict(extra="forbid", strict=True)


class LenientRequest(BaseModel):
    """A request in another API's form: names that mean nothing here are ignored."""

    model_config = ConfigDict(extra="ignore")


# -- searching ------------------------------------------------------------------------------------


class SearchRequest(Request):
    """One query, or several at once."""

    query: Query | None = Field(None, examples=["copy a folder"])
    queries: list[Query] | None = Field(None, min_length=1, max_length=LIMITS.queries)
    k: int = Field(10, ge=1, le=LIMITS.k, description="Hits for each query.")
    method: Name | None = Field(
        None,
        description="A scoring method with optional settings; the index's default without one.",
        examples=["sharp:alpha=2", "trad"],
    )
    where: dict[str, Any] | None = Field(
        None,
        description="A filter on metadata, as in docs/python.md.",
        examples=[{"year": {"$gte": 2020}}],
    )
    fields: list[HitField] | None = Field(None, description="Fields of hits; all without it.")
    exact: bool = Field(False, description="Score every document, also in a large index.")
    explain: bool = Field(
        False,
        description=f"Say how each stored query moved the score; {LIMITS.explained} hits at most.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> SearchRequest:
        if (self.query is None) == (self.queries is None):
            raise ValueError("give either query or queries")
        if self.explain and self.k * len(self.texts) > LIMITS.explained:
            raise ValueError(f"explain takes at most {LIMITS.explained} hits: lower k")
        return self

    @property
    def texts(self) -> list[str]:
        """The queries as a list."""
        return [self.query] if self.query is not None else self.queries or []


class Passage(BaseModel):
    """The stored text of a document that is nearest to the query."""

    text: str
    start: int | None = Field(description="Its place in the document's text, null if elsewhere.")
    end: int | None
    source: str = Field(description="The query set it is from, or title or text.")


class QueryContribution(BaseModel):
    """A stored query, and how much of a document's score is due to it."""

    set: str
    text: str
    similarity: float
    weight: float
    moved: float


class Explanation(BaseModel):
    """Why a document scores as it does: plain + sum of moved + words = score."""

    id: str
    plain: float
    score: float
    queries: list[QueryContribution]
    words: float


class Chunk(BaseModel):
    """The part of a document that was found, of a document that is split."""

    id: str
    document: str = Field(description="The id of its document.")
    text: str
    start: int = Field(description="Its place in the document's text.")
    end: int
    headings: list[str] = Field([], description="Those it stands under, outermost first.")


class Hit(BaseModel):
    """A document that was found, with the fields that were asked for."""

    id: str | None = None
    score: float | None = None
    title: str | None = None
    text: str | None = None
    metadata: dict[str, Any] | None = None
    passage: Passage | None = None
    chunk: Chunk | None = None
    explanation: Explanation | None = None


class SearchReply(BaseModel):
    """Hits, best first: one list for "query", a list of lists for "queries"."""

    method: str
    hits: list[Hit] | list[list[Hit]]
    warnings: list[str] | None = Field(
        None, description="What may be wrong with the filter, such as a field no document has."
    )


# -- documents ------------------------------------------------------------------------------------


class DocumentBody(Request):
    """A document without its id."""

    text: str
    title: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)


class DocumentModel(DocumentBody):
    """A document."""

    id: Id


class BulkRequest(Request):
    """Documents to add; one with a known id replaces the old one. All are stored, or none."""

    documents: list[DocumentModel] = Field(min_length=1, max_length=LIMITS.documents)


class DeleteRequest(Request):
    """Documents to remove: all, or none if an id is unknown."""

    ids: list[Id] = Field(min_length=1, max_length=LIMITS.documents)


class Changes(BaseModel):
    """How many documents were new, changed and unchanged; "empty" of them have no text.

    "removed" is always 0: documents are removed by DELETE.
    """

    new: int
    changed: int
    unchanged: int
    empty: int
    removed: int


class Deleted(BaseModel):
    """How many documents were removed."""

    deleted: int


# -- about ----------------------------------------------------------------------------------------


class Set(BaseModel):
    """A query set."""

    name: str
    source: str
    documents: int | None = Field(description="How many have queries; null where not known.")
    queries: int


class Sets(BaseModel):
    """The query sets of the collection."""

    sets: list[Set]


class Info(BaseModel):
    """What the collection holds; more fields depend on where it is stored."""

    model_config = ConfigDict(extra="allow")
    name: str
    documents: int
    writable: bool
    methods: list[str]
    default_method: str


class Status(BaseModel):
    """Whether the server is alive, or can answer searches."""

    status: str


class EvalRequest(Request):
    """Labelled queries: "qrels[query id][document id] = grade"."""

    queries: dict[Id, Query] = Field(min_length=1, max_length=500)
    qrels: dict[Id, dict[Id, Grade]]
    methods: list[Name] = Field(["trad", "sharp"], min_length=1, max_length=10)
    measures: list[Measure] = Field(["nDCG@10", "R@50", "AP@50"], min_length=1, max_length=10)
    per_query: bool = False


class EvalReply(BaseModel):
    """Means by method and measure, with p-values against the first method."""

    model_config = ConfigDict(extra="allow")
    queries: int
    results: dict[str, dict[str, float]]
    baseline: str
    p_values: dict[str, dict[str, float]]


class ErrorBody(BaseModel):
    """What went wrong, and what to do about it."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorReply(BaseModel):
    """Every error has this form, which clients of OpenAI's API read too."""

    error: ErrorBody


# -- forms of other APIs --------------------------------------------------------------------------


class EmbeddingsRequest(LenientRequest):
    """OpenAI's request for embeddings, by the collection's embedder."""

    input: Query | Annotated[list[Query], Field(min_length=1, max_length=LIMITS.queries)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    input_type: Literal["query", "document"] = Field(
        "query", description="How the text is embedded."
    )


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Estimated tokens: nothing is charged."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(BaseModel):
    """OpenAI's reply with embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class RankingOptions(LenientRequest):
    """OpenAI's options of a vector store search; other names are ignored."""

    score_threshold: float | None = None


class StoreRequest(LenientRequest):
    """OpenAI's vector store search."""

    query: Query | Annotated[list[Query], Field(min_length=1, max_length=10)]
    max_num_results: int = Field(10, ge=1, le=50)
    filters: dict[str, Any] | None = None
    ranking_options: RankingOptions | None = None


class StoreContent(BaseModel):
    """A text of a search result."""

    type: Literal["text"]
    text: str


class StoreHit(BaseModel):
    """One result of a vector store search: the passage, then the document."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, Any]
    content: list[StoreContent]


class StoreReply(BaseModel):
    """OpenAI's page of vector store search results."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[StoreHit]
    has_more: bool
    next_page: str | None


class RerankDocument(LenientRequest):
    """A document to rank: by id, or by text."""

    id: Id | None = None
    text: Query | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> RerankDocument:
        if (self.id is None) == (self.text is None):
            raise ValueError("give either id or text")
        return self


class RerankRequest(LenientRequest):
    """Cohere's and Jina's request to rank documents, given as texts or as ids of the index."""

    query: Query
    documents: list[Query | RerankDocument] = Field(min_length=1, max_length=LIMITS.queries)
    model: str | None = None
    method: Name | None = None
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False


class Ranked(BaseModel):
    """A document's place in the request, and its score."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RerankReply(BaseModel):
    """Documents, best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: Usage
