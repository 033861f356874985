"""The collection behind the endpoints: batched searches, reads in threads, one write at a time."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from strop.common.text import is_url
from strop.errors import BadInput
from strop.index import Index
from strop.methods import method_spec
from strop.opening import connect
from strop.server.batching import Batcher, SearchResult
from strop.server.errors import Refused
from strop.server.settings import LIMITS
from strop.storage.references import Reference
from strop.types import HIT_FIELDS, Collection, Document

T = TypeVar("T")
_READERS = 8
_WAITING_SEARCHES = 4
"""Concurrent searches if they wait for another program: a database, or an embedder's service."""
_FILTER_WARNINGS: ContextVar[list[str] | None] = ContextVar("filter warnings", default=None)
"""Messages about the filter of the search that runs in this thread.

``warnings.catch_warnings`` would change what other threads do.
"""


class Service:
    """A served collection. Everything that may take time runs in threads."""

    def __init__(self, place: str) -> None:
        """Open the folder or connect to the copy at ``place``.

        Clients know it by the folder's name, without the ending.
        """
        # A writer waits for one of another process.
        options: dict[str, Any] = {} if is_url(place) else {"wait": LIMITS.seconds / 2}
        self.collection = collection = connect(place, **options)
        self.name = Path(place.rstrip("/")).stem or "index"
        self.ready = False
        threads = 1 if _only_computes(collection) else _WAITING_SEARCHES
        self.batches = Batcher(self._search, LIMITS.waiting, threads)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="strop-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="strop-write")
        self._slow = asyncio.Semaphore(1)

    @property
    def index(self) -> Index | None:
        """The collection if it is an index folder, which can be written; else None."""
        return self.collection if isinstance(self.collection, Index) else None

    def writable(self) -> Index:
        """Return the index folder, or refuse: a published copy is written by its publisher."""
        if self.index is None:
            raise Refused(
                405, f"{self.name} is a published copy: change its index folder and publish again"
            )
        return self.index

    def close(self) -> None:
        """Wait for the work under way and close the collection."""
        self.batches.close()
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._writer.shutdown(wait=True)
        self.collection.close()

    def public(self, message: str) -> str:
        """Return a message without the path of the collection, which clients must not see."""
        return message.replace(str(self.collection.path), self.name)

    # -- work in threads ----------------------------------------------------------------------

    async def search(
        self, queries: Sequence[str], k: int, method: str | None = None, where: Any = None,
        fields: Sequence[str] = HIT_FIELDS, exact: bool = False,
    ) -> SearchResult:  # fmt: skip
        """Search together with the queries of other requests at the same time."""
        options = {"k": k, "method": method, "where": where, "fields": fields, "exact": exact}
        return await asyncio.wait_for(self.batches.search(queries, **options), LIMITS.seconds)

    def _search(self, queries: list[str], method: str | None, **options: Any) -> SearchResult:
        messages: list[str] = []
        _FILTER_WARNINGS.set(messages)
        chosen = self.collection.method(method)
        hits = self.collection.search(queries, method=chosen, **options)
        return SearchResult(method_spec(chosen), list(hits), messages)

    async def read(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call a function that reads the collection."""
        call = partial(work, *args, **named)
        future = asyncio.get_running_loop().run_in_executor(self._readers, call)
        return await asyncio.wait_for(future, LIMITS.seconds)

    async def run_exclusively(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call a function that takes long; one at a time."""
        if self._slow.locked():
            raise Refused(429, "another evaluation is under way: try again later")
        async with self._slow:
            return await self.read(work, *args, **named)

    async def write(self, work: Callable[..., T], *args: Any) -> T:
        """Call a function that writes.

        There is no timeout: the client must learn whether its documents are stored.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, partial(work, *args))

    # -- about the collection -----------------------------------------------------------------

    def warm_up(self) -> None:
        """Load the embedder and compile what searches need; a server is ready after that.

        One query and several queries use different code, and so do keywords and vectors,
        candidates and all documents. The first time on a machine, compiling each takes up to half
        a minute: no user should wait for that.
        """
        self.collection.embed_queries("warm up")
        ways = [(None, False), ("trad", False), ("trad:words=1", False), ("bm25", False),
                (None, True), ("trad", True), ("maxsim", True)]  # fmt: skip
        for method, exact in ways if len(self.collection) else ():
            with suppress(BadInput):  # without query sets there is no maxsim
                for queries in (["warm up"], ["warm up"], [f"warm up {n}" for n in range(16)]):
                    self.collection.search(queries, 10, method, exact=exact)
        self.ready = True

    def document(self, id_: str) -> Document:
        """Return a document, or refuse with 404."""
        try:
            return self.collection.get(id_)
        except BadInput as error:
            raise Refused(404, str(error)) from None

    def version(self) -> int:
        """Return the number of commits to the index so far; for a copy, until it was published."""
        if self.index is None:
            return int(self.collection.info()["version"])
        return self.index.catalog.settings.number("version")

    def read_snapshot(self) -> AbstractContextManager[object]:
        """Return a context in which all reads see the same commit, if it is an index folder."""
        return nullcontext() if self.index is None else self.index.catalog.reading()

    def references_of(self, id_: str) -> Sequence[Reference]:
        """Return a document's references; none if none were chosen, or in a copy."""
        with suppress(BadInput):  # a document of several chunks has none of its own
            selected = None if self.index is None else self.index.references_of(id_)
            return selected.references if selected else ()
        return ()


def _only_computes(collection: Collection) -> bool:
    if not isinstance(collection, Index):
        return False
    name = str(collection.catalog.embedder["name"])
    return name.startswith(("wordllama", "minilm", "st:"))


def capture_filter_warnings() -> None:
    """Keep warnings out of the log, as they may quote filters and texts.

    Warnings about a filter become part of the reply.
    """

    def receive(message: Warning | str, *_: Any, **__: Any) -> None:
        messages = _FILTER_WARNINGS.get()
        # Other warnings are for the operator of the server, not for clients.
        if messages is not None and str(message).startswith("filter: "):
            messages.append(str(message))

    warnings.simplefilter("always")
    warnings.showwarning = receive
