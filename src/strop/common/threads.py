"""One small thread pool for compiled kernels, which release the GIL, and one BLAS thread.

BLAS gets a single thread while the pool works: both together would be more threads than cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import pairwise

from threadpoolctl import ThreadpoolController

from strop.errors import BadInput


@cache
def pool() -> ThreadPoolExecutor:
    """Return the pool. A task in it must not wait for another task in it."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="strop")


@cache
def thread_count() -> int:
    """Return the number of threads: STROP_THREADS, or the cores this process may use."""
    setting = os.environ.get("STROP_THREADS")
    if setting:
        if not setting.isdecimal() or int(setting) < 1:
            raise BadInput(f"STROP_THREADS={setting}: it must be a number of threads, 1 or more")
        return int(setting)
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def in_parts(size: int, work: Callable[[int, int], None]) -> None:
    """Split ``range(size)`` into one part per thread and call ``work(first, last)`` for each."""
    count = max(1, min(thread_count(), size))
    if count == 1:
        return work(0, size)
    edges = [size * part // count for part in range(count + 1)]
    with _waiting() as tasks:  # this thread does the first part: starting another takes time
        for first, last in pairwise(edges[1:]):
            tasks.append(pool().submit(work, first, last))
        work(0, edges[1])


def on_each_thread(work: Callable[[], None], most: int) -> None:
    """Call ``work`` on this thread and on threads of the pool, at most ``most`` in total.

    Each ``work`` takes pieces from a shared list until it is empty. So a task of the pool that has
    not started when this thread is done is cancelled.
    """
    with _waiting() as tasks:
        for _ in range(min(thread_count(), most) - 1):
            tasks.append(pool().submit(work))
        work()
        tasks[:] = [task for task in tasks if not task.cancel()]


@contextmanager
def _waiting() -> Iterator[list[Future[None]]]:
    """Wait for all started tasks before leaving, even after an error; raise the first error."""
    tasks: list[Future[None]] = []
    try:
        yield tasks
    except BaseException:
        tasks = [task for task in tasks if not task.cancel()]
        raise
    finally:
        wait(tasks)
    for task in tasks:
        task.result()


class _Blas:
    """Counts the callers inside ``one_blas_thread``. The last one to leave lifts the limit."""

    lock = threading.Lock()
    callers = 0
    limit = ExitStack()


def _reset() -> None:
    """Reset the pool and the limit in a forked child: it has no other threads of its parent."""
    pool.cache_clear()
    _Blas.lock, _Blas.callers = threading.Lock(), 0
    _Blas.limit.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to the calling thread, in the whole process, while the pool uses the cores."""
    with _Blas.lock:
        if not _Blas.callers:
            _Blas.limit.enter_context(_blas().limit(limits=1))
        _Blas.callers += 1
    try:
        yield
    finally:
        with _Blas.lock:
            _Blas.callers -= 1
            if not _Blas.callers:
                _Blas.limit.close()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
