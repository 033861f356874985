"""Threads and coroutines share an index; a writer waits for another."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock
from helpers.fakes import Bag

from strop import Index
from strop.errors import BadInput, IndexBusy


def build_index(path: Path, n: int = 60, chunking: str | None = None) -> Index:
    index = Index.create(path / "index", Bag(), chunking=chunking)
    index.sharpen()
    index.add(
        {"id": str(at), "text": f"word{at % 7} common. Second{at % 5} part here.", "odd": at % 2}
        for at in range(n)
    )
    return index


@pytest.mark.filterwarnings("ignore")  # about unfinished work and a field that does not exist yet
@pytest.mark.parametrize("chunking", [None, "10:2"])
def test_threads_search_an_index_that_changes(tmp_path: Path, chunking: str | None) -> None:
    """Each search sees one state: either all documents of a step or none."""
    with build_index(tmp_path, chunking=chunking) as index:
        queries = [f"word{at} common" for at in range(7)]
        ended = threading.Event()

        def search(thread: int) -> int:
            searches = 0
            while not ended.is_set() or not searches:
                where = {"step": {"$gte": 0}} if thread % 2 else None
                hits = index.search(queries[thread % 7], 1000, where=where)
                assert len(set(hits.ids[0])) == hits.ids.shape[1]
                new = [hit.metadata["step"] for hit in hits[0] if "step" in hit.metadata]
                assert len(new) in (0, 10)
                assert len(set(new)) <= 1, "documents of two steps"
                assert where or hits.ids.shape[1] == 60 + len(new)
                assert index.get(str(thread)).id == str(thread)
                searches += 1
            return searches

        with ThreadPoolExecutor(8) as threads:
            futures = [threads.submit(search, thread) for thread in range(8)]
            try:
                for step in range(6):
                    index.add(
                        {"id": f"n{at}", "text": f"word{step} common.", "step": step}
                        for at in range(10)
                    )
            finally:
                ended.set()
            assert all(future.result() > 0 for future in futures)
        assert index.check() == []


def test_asynchronous_searches_run_together(tmp_path: Path) -> None:
    with build_index(tmp_path) as index:

        async def search_all() -> list[str]:
            results = await asyncio.gather(
                *(index.asearch(f"word{at}", 1, where={"odd": 1}, exact=True) for at in range(7))
            )
            return [str(hits.ids[0, 0]) for hits in results]

        expected = [
            str(index.search(f"word{at}", 1, where={"odd": 1}).ids[0, 0]) for at in range(7)
        ]
        assert asyncio.run(search_all()) == expected


def test_a_cancelled_search_is_not_waited_for(tmp_path: Path) -> None:
    entered, gate = threading.Event(), threading.Event()

    class Slow(Bag):
        def __call__(self, texts, kind):  # type: ignore[no-untyped-def]
            if kind == "query":
                entered.set()
                gate.wait(60)
            return super().__call__(texts, kind)

    async def cancelled(index: Index) -> bool:
        task = asyncio.create_task(index.asearch("word"))
        while not entered.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return not gate.is_set()  # the search itself still runs
        finally:
            gate.set()
        return False

    with Index.create(tmp_path / "index", Slow()) as index:
        index.add([{"id": "a", "text": "word"}])
        assert asyncio.run(cancelled(index))
        assert index.search("word").ids.tolist() == [["a"]]


def test_a_writer_waits_for_another(tmp_path: Path) -> None:
    build_index(tmp_path).close()
    lock = FileLock(tmp_path / "index" / "writer.lock")
    with Index.open(tmp_path / "index", Bag(), wait=60) as index, ThreadPoolExecutor(1) as thread:
        with lock:
            adding = thread.submit(index.add, [{"id": "new", "text": "word"}])
            time.sleep(0.2)
            assert not adding.done()
        assert adding.result(60).new == 1
    with lock, Index.open(tmp_path / "index", Bag(), wait=0.01) as index:
        with pytest.raises(IndexBusy, match="--wait 60"):
            index.remove(["new"])
        assert len(index) == 61
    for wrong in (-1, "60", float("inf"), True):
        with pytest.raises(BadInput, match="wait is a number of seconds"):
            Index.open(tmp_path / "index", wait=wrong)
