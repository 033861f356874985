"""Concurrent queries are searched in batches, and each request gets its own hits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.errors import BadInput
from strop.server.batching import MAX_BATCH_QUERIES, Batcher, SearchResult
from strop.server.errors import Refused
from strop.types import Hit


class Recorder:
    """A search whose hits name their query; it records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int, Any]] = []
        self.open = threading.Event()
        self.open.set()

    def __call__(self, queries: list[str], k: int, method: str | None = None) -> SearchResult:
        self.open.wait(30)
        self.calls.append((queries, k, method))
        if "bad" in queries:
            raise BadInput("bad is refused")
        return SearchResult(str(method), [[Hit(f"{query}/{k}/{method}", 1.0)] for query in queries])


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "b", "c", "bad"]), min_size=1, max_size=80),
            st.sampled_from([1, 2]),
            st.sampled_from([None, "trad"]),
        ),
        max_size=20,
    )
)
def test_every_request_gets_the_hits_of_its_own_queries(
    requests: list[tuple[list[str], int, str | None]],
) -> None:
    search = Recorder()

    async def run() -> list[Any]:
        batcher = Batcher(search, 10_000)
        searches = [batcher.search(queries, k=k, method=method) for queries, k, method in requests]
        try:
            return await asyncio.gather(*searches, return_exceptions=True)
        finally:
            batcher.close()

    for (queries, k, method), result in zip(requests, asyncio.run(run()), strict=True):
        if "bad" in queries:
            assert isinstance(result, BadInput)
        else:
            assert result.method == str(method)
            assert [row[0].id for row in result.hits] == [
                f"{query}/{k}/{method}" for query in queries
            ]
    for queries, _, _ in search.calls:
        assert len(queries) <= max(MAX_BATCH_QUERIES, *(len(queries) for queries, _, _ in requests))


def test_queries_that_arrive_during_a_search_form_a_batch() -> None:
    search = Recorder()
    search.open.clear()

    async def run() -> None:
        batcher = Batcher(search, 1000)
        searches = [asyncio.ensure_future(batcher.search([str(n)], k=3)) for n in range(40)]
        await asyncio.sleep(0.05)
        search.open.set()
        await asyncio.gather(*searches)
        batcher.close()

    asyncio.run(run())
    assert sorted(query for queries, _, _ in search.calls for query in queries) == sorted(
        map(str, range(40))
    )
    assert len(search.calls) <= 4


def test_queries_beyond_the_limit_are_refused_and_cancelled_ones_not_searched() -> None:
    search = Recorder()
    search.open.clear()

    async def search_with(batcher: Batcher, queries: Sequence[str]) -> Any:
        return await batcher.search(queries, k=1)

    async def run() -> None:
        batcher = Batcher(search, 10)
        running = [asyncio.ensure_future(search_with(batcher, [f"r{n}"])) for n in range(2)]
        await asyncio.sleep(0.05)
        cancelled = asyncio.ensure_future(search_with(batcher, ["late"]))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="wait already"):
            await search_with(batcher, ["x"] * 10)
        cancelled.cancel()
        await asyncio.sleep(0)
        search.open.set()
        await asyncio.gather(*running)
        assert (await search_with(batcher, ["x"] * 10)).hits[0][0].id == "x/1/None"
        batcher.close()

    asyncio.run(run())
    assert ["late"] not in [queries for queries, _, _ in search.calls]
