"""The thread pool: how work is divided, and which tasks are awaited."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from strop.common import threads
from strop.common.threads import in_parts, on_each_thread, one_blas_thread, pool
from strop.errors import BadInput


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pool.cache_clear()
    monkeypatch.setattr(threads, "thread_count", lambda: 4)
    yield
    if pool.cache_info().currsize:
        pool().shutdown()
    pool.cache_clear()


@pytest.fixture
def busy() -> Iterator[list[Future[None]]]:
    """Keep every thread of the pool occupied."""
    release, started = threading.Event(), threading.Barrier(5, timeout=60)

    def keep_busy() -> None:
        started.wait()
        release.wait(60)

    occupied = [pool().submit(keep_busy) for _ in range(4)]
    started.wait()
    yield occupied
    release.set()


def test_tasks_not_started_when_the_work_is_done_are_not_awaited(
    busy: list[Future[None]],
) -> None:
    pieces, done = count(), []

    def work() -> None:
        while (piece := next(pieces)) < 10:
            done.append(piece)

    on_each_thread(work, 10)
    assert done == list(range(10))
    assert not any(task.done() for task in busy)


def test_an_error_in_the_caller_cancels_tasks_not_started(
    busy: list[Future[None]],
) -> None:
    calls = []

    def fail(*_: int) -> None:
        calls.append(threading.current_thread())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_each_thread(fail, 4)
    with pytest.raises(KeyboardInterrupt):
        in_parts(4, fail)
    assert calls == [threading.main_thread()] * 2
    assert not any(task.done() for task in busy)


def test_an_error_on_another_thread_is_raised_in_the_caller() -> None:
    started = threading.Barrier(2, timeout=60)

    def fail_elsewhere() -> None:
        here = threading.current_thread() is threading.main_thread()
        started.wait()
        if not here:
            raise ValueError("elsewhere")

    with pytest.raises(ValueError, match="elsewhere"):
        on_each_thread(fail_elsewhere, 2)


@pytest.mark.parametrize("size", [1, 3, 4, 1001])
def test_parts_cover_everything_once(size: int) -> None:
    indices: list[int] = []
    in_parts(size, lambda first, last: indices.extend(range(first, last)))
    assert sorted(indices) == list(range(size))


@pytest.mark.parametrize("setting", ["two", "0", "-1", "²"])
def test_an_invalid_number_of_threads_is_refused(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("STROP_THREADS", setting)
    with pytest.raises(BadInput, match=f"STROP_THREADS={setting}"):
        threads.thread_count.__wrapped__()


def test_blas_has_one_thread_until_the_last_caller_leaves() -> None:
    def counts() -> set[int]:  # of numpy's BLAS; others may be loaded later
        return {
            library["num_threads"]
            for library in threadpool_info()
            if "numpy" in library["filepath"]
        }

    with threadpool_limits(2, user_api="blas"):
        allowed = counts()
        if not allowed:
            pytest.skip("the number of threads of this numpy's BLAS cannot be set")
        with one_blas_thread():
            with one_blas_thread():
                assert counts() == {1}
            assert counts() == {1}
        assert counts() == allowed
