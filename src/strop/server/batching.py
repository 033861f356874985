"""Concurrent queries are searched together: queries that arrive while a search runs wait for the
next one. A batch takes little more time than one query, so throughput grows with the load, and a
single query does not wait.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from strop.server import metrics
from strop.server.errors import Refused
from strop.types import Hit

MAX_BATCH_QUERIES = 32
"""The largest number of queries in a batch; a larger request is searched alone."""


@dataclass(frozen=True)
class SearchResult:
    """The hits of each query, the method, and warnings about the filter."""

    method: str
    hits: list[list[Hit]]
    warnings: Sequence[str] = ()


@dataclass
class _Job:
    queries: Sequence[str]
    done: asyncio.Future[SearchResult]


class Batcher:
    """Collects queries and searches them in batches, in separate threads."""

    def __init__(self, search: Callable[..., SearchResult], waiting: int, threads: int = 1) -> None:
        """``search`` gets queries, and options by name; at most ``waiting`` queries wait for it.

        Searches that only compute are best done one after another: much of a search is Python,
        which runs one thread at a time (docs/log.md has both measured).
        """
        self._search, self._limit = search, waiting
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="strop-search")
        self._max_running = threads
        self._jobs: dict[str, list[_Job]] = {}  # by their options
        self._waiting = self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Wait for the searches under way."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def search(self, queries: Sequence[str], **options: Any) -> SearchResult:
        """Return the hits of each query. Options are JSON values; equal ones share a batch."""
        if self._waiting + len(queries) > self._limit:
            raise Refused(429, f"{self._waiting} queries wait already: try again in a second")
        job = _Job(queries, asyncio.get_running_loop().create_future())
        self._jobs.setdefault(json.dumps(options), []).append(job)
        self._waiting += len(queries)
        if self._running < self._max_running:
            self._running += 1
            task = asyncio.create_task(self._drain())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await job.done

    async def _drain(self) -> None:
        """Search the waiting jobs until there are none."""
        try:
            while self._jobs:
                await self._answer(*self._next())
        finally:
            self._running -= 1

    def _next(self) -> tuple[str, list[_Job]]:
        """Take jobs with equal options, in the order of their first one."""
        options = next(iter(self._jobs))
        waiting, taken, size = self._jobs.pop(options), list[_Job](), 0
        while waiting and (not taken or size + len(waiting[0].queries) <= MAX_BATCH_QUERIES):
            job = waiting.pop(0)
            self._waiting -= len(job.queries)
            if not job.done.done():  # its client may have been told to try again
                taken.append(job)
                size += len(job.queries)
        if waiting:
            self._jobs[options] = waiting
        return options, taken

    async def _answer(self, options: str, jobs: Sequence[_Job]) -> None:
        """Search jobs together; if that fails, one by one, so that only a bad job fails."""
        if not jobs:
            return
        texts = [query for job in jobs for query in job.queries]
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(self._threads, self._run, texts, options)
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    await self._answer(options, [job])
            elif not jobs[0].done.done():
                jobs[0].done.set_exception(error)
            return
        hits = iter(result.hits)
        for job in jobs:
            job_hits = list(islice(hits, len(job.queries)))
            if not job.done.done():
                job.done.set_result(replace(result, hits=job_hits))

    def _run(self, texts: list[str], options: str) -> SearchResult:
        began = time.perf_counter()
        try:
            return self._search(texts, **json.loads(options))
        finally:
            metrics.STAGE_SECONDS.labels("search").observe(time.perf_counter() - began)
            metrics.BATCH_QUERIES.observe(len(texts))
