"""Runners of tasks: this process, local processes, or the workers of a Ray cluster.

If a worker is killed, another worker repeats its task. Ray is used as a pool of actors that read
and write shard files: Ray's data operators took five times as long.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol, TypeVar

from threadpoolctl import threadpool_limits

from strop.distributed.shards import TaskResult
from strop.distributed.tasks import Task, perform
from strop.errors import MissingExtra, StropError

MAX_KILLS = 3
"""The run fails once this many workers died over one task, or without a finished task between."""
Work = Callable[[Path, Task], TaskResult]
T = TypeVar("T")


class Runner(Protocol):
    """Does tasks in any order, each at least once."""

    def run(
        self, folder: Path, tasks: Sequence[Task], work: Work = perform
    ) -> Iterator[tuple[Task, TaskResult]]:
        """Yield each task with its result, as soon as it is done; raise its error."""

    def close(self) -> None:
        """Release the workers."""


class LocalRunner:
    """Processes on this machine; with one worker, this process."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(
        self, folder: Path, tasks: Sequence[Task], work: Work = perform
    ) -> Iterator[tuple[Task, TaskResult]]:
        """Yield each task with its result. See ``Runner``."""
        if self.workers == 1:
            for task in tasks:
                yield task, work(folder, task)
            return
        pending, kills = {task.name: task for task in tasks}, 0
        while pending:
            threads = max(1, (os.cpu_count() or 1) // self.workers)
            pool = _processes(min(self.workers, len(pending)), threads)
            futures = {pool.submit(work, folder, task): task for task in pending.values()}
            try:
                for future in as_completed(futures):
                    task, result = futures[future], future.result()
                    del pending[task.name]
                    kills = 0
                    yield task, result
            except BrokenProcessPool:
                kills += 1
                if kills >= MAX_KILLS:
                    raise _keep_dying(next(iter(pending.values()))) from None
            finally:
                pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Do nothing: the processes end with each stage."""


def in_subprocess(work: Callable[..., T], *args: Any) -> T:
    """Call a function in a new process, with one thread."""
    with _processes(1, 1) as pool:
        return pool.submit(work, *args).result()


def _processes(workers: int, threads: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, _begin_worker, (threads,))


def _begin_worker(threads: int) -> None:
    """Limit this worker's threads, and end it when the driver ends, however that happens."""
    os.environ["STROP_THREADS"] = str(threads)
    threadpool_limits(threads)
    driver = multiprocessing.parent_process()
    if driver is not None:

        def exit_with_driver() -> None:
            driver.join()
            os._exit(1)

        threading.Thread(target=exit_with_driver, daemon=True).start()


def _keep_dying(task: Task) -> StropError:
    return StropError(
        f"workers keep dying over {task.stage} {task.name}: most likely memory runs out. Use fewer "
        "--workers, or smaller --shard-documents"
    )


class RayRunner:
    """Actors on a Ray cluster, one for each core; the folder must be on a disk that all share."""

    def __init__(self, address: str, workers: int | None = None) -> None:
        """``address`` is that of a cluster, or ``local``: a cluster of this machine alone."""
        try:
            import ray
        except ImportError:
            raise MissingExtra("--ray", "ray") from None
        self._ray = ray
        local = address == "local"
        if not ray.is_initialized():
            options: dict[str, Any] = {"num_cpus": workers or os.cpu_count()} if local else {}
            ray.init(
                None if local else address, include_dashboard=False if local else None,
                log_to_driver=False, logging_level=logging.ERROR, **options,
            )  # fmt: skip
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._actor = ray.remote(num_cpus=1, max_restarts=0)(_RayWorker)
        self._idle: list[Any] = []

    def run(
        self, folder: Path, tasks: Sequence[Task], work: Work = perform
    ) -> Iterator[tuple[Task, TaskResult]]:
        """Yield each task with its result. See ``Runner``."""
        ray, pending = self._ray, deque(tasks)
        running: dict[Any, tuple[Any, Task]] = {}
        kills = Counter[str]()
        while pending or running:
            while pending and len(running) < self.workers:
                actor = self._idle.pop() if self._idle else self._actor.remote()
                task = pending.popleft()
                running[actor.do.remote(work, folder.resolve(), task)] = actor, task
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            actor, task = running.pop(ready)
            try:
                result = ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                cause = getattr(error, "cause", None)
                raise (cause if isinstance(cause, StropError) else error) from None
            except ray.exceptions.RayError:  # the worker or its machine is gone
                kills[task.name] += 1
                if kills[task.name] >= MAX_KILLS:
                    raise _keep_dying(task) from None
                pending.appendleft(task)
                continue
            self._idle.append(actor)
            yield task, result

    def close(self) -> None:
        """Leave the cluster."""
        self._idle.clear()
        self._ray.shutdown()


class _RayWorker:
    """One process of a Ray cluster."""

    def __init__(self) -> None:
        os.environ["STROP_THREADS"] = "1"
        threadpool_limits(1)

    def do(self, work: Work, folder: Path, task: Task) -> TaskResult:
        return work(folder, task)
