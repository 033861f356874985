"""The pool of threads: who shares the work, who is waited for."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from strop import threads
from strop.threads import in_parts, on_each_thread, pool


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "thread_count", lambda: 4)


def test_who_comes_when_all_is_done_is_not_waited_for() -> None:
    go_on, busy = threading.Event(), threading.Semaphore(0)

    def keep_busy() -> None:
        busy.release()
        go_on.wait(60)

    holding = [pool().submit(keep_busy) for _ in range(pool()._max_workers)]
    try:
        for _ in holding:
            assert busy.acquire(timeout=60)
        left, done = count(), []

        def work() -> None:
            while (piece := next(left)) < 10:
                done.append(piece)

        on_each_thread(work, 10)
        assert done == list(range(10))
        assert not any(held.done() for held in holding)
    finally:
        go_on.set()


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
