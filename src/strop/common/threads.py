"""One small pool of threads for compiled kernels that release the GIL; BLAS kept out of it."""

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
    """Return the pool; tasks in it must not wait for other tasks in it."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="strop")


@cache
def thread_count() -> int:
    """Return how many threads to use: STROP_THREADS, else the cores this process may use."""
    said = os.environ.get("STROP_THREADS")
    if said:
        if not said.isdecimal() or int(said) < 1:
            raise BadInput(f"STROP_THREADS={said}: it takes a number of threads, 1 or more")
        return int(said)
    usable = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(usable(0)) if usable else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=pool.cache_clear)


def in_parts(size: int, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, last)`` over ``range(size)`` cut into one part per thread."""
    parts = min(thread_count(), size)
    if parts <= 1:
        work(0, size)
        return
    edges = [size * part // parts for part in range(parts + 1)]
    with _waiting() as others:  # this thread takes a part, too: waking one takes a while
        for first, last in pairwise(edges[1:]):
            others.append(pool().submit(work, first, last))
        work(0, edges[1])


def on_each_thread(work: Callable[[], None], most: int) -> None:
    """Call ``work`` on this thread and others of the pool, as many as there are or ``most``.

    It is to do what is left to be done, until nothing is: who comes after that is not waited for.
    """
    parts = min(thread_count(), most)
    if parts <= 1:
        work()
        return
    with _waiting() as others:
        for _ in range(parts - 1):
            others.append(pool().submit(work))
        work()
        others[:] = [other for other in others if not other.cancel()]


@contextmanager
def _waiting() -> Iterator[list[Future[None]]]:
    """Wait in the end for what was handed to the pool, also if something failed here or there."""
    others: list[Future[None]] = []
    try:
        yield others
    except BaseException:
        others = [other for other in others if not other.cancel()]
        raise
    finally:
        wait(others)
    for other in others:
        other.result()


class _Blas:
    """How many are inside ``one_blas_thread``; the last to leave puts its threads back."""

    lock = threading.Lock()
    inside = 0
    restore = ExitStack()

    @classmethod
    def forget(cls) -> None:
        """In a forked child nobody is inside."""
        cls.lock, cls.inside = threading.Lock(), 0
        cls.restore.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Blas.forget)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS run on the thread that calls it, for the whole process: ours share the cores."""
    with _Blas.lock:
        if not _Blas.inside:
            _Blas.restore.enter_context(_blas().limit(limits=1))
        _Blas.inside += 1
    try:
        yield
    finally:
        with _Blas.lock:
            _Blas.inside -= 1
            if not _Blas.inside:
                _Blas.restore.close()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
