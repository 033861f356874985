"""The pool of threads: who shares the work, who is waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count

import pytest

from strop.common import threads
from strop.common.threads import in_parts, on_each_thread, pool
from strop.errors import BadInput


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pool.cache_clear()
    monkeypatch.setattr(threads, "thread_count", lambda: 4)
    yield
    pool().shutdown()
    pool.cache_clear()


@pytest.fixture
def busy() -> Iterator[list[Future[None]]]:
    """Every thread of the pool does something else."""
    go_on, begun = threading.Event(), threading.Barrier(5, timeout=60)

    def keep_busy() -> None:
        begun.wait()
        go_on.wait(60)

    holding = [pool().submit(keep_busy) for _ in range(4)]
    begun.wait()
    yield holding
    go_on.set()


def test_who_comes_when_all_is_done_is_not_waited_for(busy: list[Future[None]]) -> None:
    left, done = count(), []

    def work() -> None:
        while (piece := next(left)) < 10:
            done.append(piece)

    on_each_thread(work, 10)
    assert done == list(range(10))
    assert not any(held.done() for held in busy)


def test_after_an_error_here_what_has_not_begun_never_does(busy: list[Future[None]]) -> None:
    calls = []

    def fail(*_: int) -> None:
        calls.append(threading.current_thread())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_each_thread(fail, 4)
    with pytest.raises(KeyboardInterrupt):
        in_parts(4, fail)
    assert calls == [threading.main_thread()] * 2
    assert not any(held.done() for held in busy)


def test_what_fails_on_another_thread_is_raised_here() -> None:
    started = threading.Barrier(2, timeout=60)

    def fail_elsewhere() -> None:
        here = threading.current_thread() is threading.main_thread()
        started.wait()
        if not here:
            raise ValueError("elsewhere")

    with pytest.raises(ValueError, match="elsewhere"):
        on_each_thread(fail_elsewhere, 2)


@pytest.mark.parametrize("size", [1, 3, 4, 1001])
def test_parts_cover_all_once(size: int) -> None:
    seen: list[int] = []
    in_parts(size, lambda first, last: seen.extend(range(first, last)))
    assert sorted(seen) == list(range(size))


@pytest.mark.parametrize("said", ["two", "0", "-1", "²"])
def test_a_number_of_threads_that_is_none(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("STROP_THREADS", said)
    with pytest.raises(BadInput, match=f"STROP_THREADS={said}"):
        threads.thread_count.__wrapped__()
