"""One small pool of threads for compiled kernels that release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache


@cache
def pool() -> ThreadPoolExecutor:
    """Return the pool; tasks in it must not wait for other tasks in it."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="strop")


@cache
def thread_count() -> int:
    """Return how many threads to use: STROP_THREADS, else the cores this process may use."""
    said = os.environ.get("STROP_THREADS", "")
    if said.isdigit():
        return max(1, int(said))
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
    list(pool().map(work, edges[:-1], edges[1:]))
