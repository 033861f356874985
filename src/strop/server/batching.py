"""Concurrent queries are searched together: while a search runs, those that arrive wait for the
next one. A batch costs little more than one query, so throughput grows with the load, and a query
that comes alone waits for nobody.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from strop.server.errors import Refused
from strop.types import HIT_FIELDS, Hit

MOST = 32
"""Queries in a batch; a larger request is searched alone."""
Observe = Callable[[str, float], None]


@dataclass(frozen=True)
class Options:
    """What queries must have in common to be searched together. ``where`` is JSON."""

    k: int
    method: str | None = None
    where: str | None = None
    fields: tuple[str, ...] = HIT_FIELDS
    exact: bool = False

    def filter(self) -> Any:
        """Return the filter's value."""
        return None if self.where is None else json.loads(self.where)

    @classmethod
    def of(cls, k: int, method: str | None = None, where: Any = None, **more: Any) -> Options:
        """Make options of a filter's value."""
        return cls(k, method, None if where is None else json.dumps(where), **more)


@dataclass(frozen=True)
class Found:
    """The hits of each query, the method that found them, and what to know about the filter."""

    method: str
    hits: list[list[Hit]]
    warnings: Sequence[str] = ()


Search = Callable[[list[str], Options], Found]


@dataclass
class _Job:
    queries: Sequence[str]
    done: asyncio.Future[Found]
    since: float = field(default_factory=time.perf_counter)


class Batcher:
    """Collects queries and searches them in batches, in threads of its own."""

    def __init__(self, search: Search, waiting: int, observe: Observe, threads: int = 1) -> None:
        """``waiting`` queries at most wait; ``observe`` gets a stage's name and its seconds.

        Searches that only compute are best done one after another: much of a search is Python,
        which runs one thread at a time (docs/log.md has both measured).
        """
        self._search, self._limit, self._observe = search, waiting, observe
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="strop-search")
        self._most_running = threads
        self._jobs: dict[Options, list[_Job]] = {}
        self._waiting = self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Wait for the searches under way."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def search(self, queries: Sequence[str], options: Options) -> Found:
        """Return the hits of each query."""
        if self._waiting + len(queries) > self._limit:
            raise Refused(429, f"{self._waiting} queries wait already: try again in a second")
        job = _Job(queries, asyncio.get_running_loop().create_future())
        self._jobs.setdefault(options, []).append(job)
        self._waiting += len(queries)
        if self._running < self._most_running:
            self._running += 1
            task = asyncio.create_task(self._drain())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await job.done

    async def _drain(self) -> None:
        """Search what waits until nothing does."""
        try:
            loop = asyncio.get_running_loop()
            while batch := self._next():
                options, jobs = batch
                texts = [query for job in jobs for query in job.queries]
                results = await loop.run_in_executor(self._threads, self._run, texts, options)
                if isinstance(results, Exception) and len(jobs) > 1:
                    # One text that cannot be embedded must not fail the others.
                    for job in jobs:
                        alone = await loop.run_in_executor(
                            self._threads, self._run, job.queries, options
                        )
                        _settle([job], alone)
                else:
                    _settle(jobs, results)
        finally:
            self._running -= 1

    def _next(self) -> tuple[Options, list[_Job]] | None:
        """Take jobs with equal options, in the order of their first one."""
        while self._jobs:
            options = next(iter(self._jobs))
            waiting, taken, size = self._jobs.pop(options), list[_Job](), 0
            while waiting and (not taken or size + len(waiting[0].queries) <= MOST):
                job = waiting.pop(0)
                self._waiting -= len(job.queries)
                if not job.done.done():  # its client may have been told to try again
                    taken.append(job)
                    size += len(job.queries)
            if waiting:
                self._jobs[options] = waiting
            if taken:
                return options, taken
        return None

    def _run(self, texts: Sequence[str], options: Options) -> Found | Exception:
        began = time.perf_counter()
        try:
            return self._search(list(texts), options)
        except Exception as error:  # is raised where the request waits
            return error
        finally:
            self._observe("search", time.perf_counter() - began)
            self._observe("batch", len(texts))


def _settle(jobs: Sequence[_Job], results: Found | Exception) -> None:
    at = 0
    for job in jobs:
        if job.done.done():
            pass
        elif isinstance(results, Exception):
            job.done.set_exception(results)
        else:
            hits = results.hits[at : at + len(job.queries)]
            job.done.set_result(replace(results, hits=hits))
        at += len(job.queries)
