"""Many calls at a time: requests pulled here, answered by threads, handed over here."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from strop.common import interrupts
from strop.errors import ServiceError
from strop.lm.base import Answer, CallFailed, Failure, Reply, Request, one_line
from strop.lm.gate import Gate, Policy, Post, Steps, Stopped, drive, in_one, no_post, persisting

MANY = 32
"""Calls at a time, above which the time that they take of the processor counts."""
_MOMENT = 0.004
_LOOK_UP = 0.2
"""Seconds. With many calls at a time several replies come within it, and are handled together."""


@dataclass(frozen=True)
class _Unanswered:
    """A request that was not sent, or not sent again, because the run had ended."""

    request: Request
    seconds: float


@dataclass(frozen=True)
class _Broken:
    """What ends the whole run, and the request that brought it to light."""

    error: Exception
    request: Request
    seconds: float


Done = Reply | Failure | _Unanswered | _Broken
Task = Steps[Done]
"""A request on its way from being taken up to what came of it."""


class Workers(Protocol):
    """Who carries tasks out, in threads that know nothing of the run."""

    hungry: bool
    """Whether they have to be woken for a new task."""

    def wanted(self, tasks: int) -> int:
        """How many threads there should be for so many tasks."""

    def work(self, todo: SimpleQueue[Task | None], done: SimpleQueue[Done], gate: Gate) -> None:
        """What each thread does: carry out tasks until there is a None."""

    def wake(self) -> None:
        """Have them look: there is something to do, or the gate was stopped."""

    def close(self) -> None:
        """Let go of what was used; no more tasks come."""


class Threads:
    """A thread for each call. ``post`` makes those of tasks that are more than one piece."""

    hungry = False

    def __init__(self, post: Post = no_post, release: Callable[[], object] | None = None) -> None:
        self._post, self._release = post, release

    def wanted(self, tasks: int) -> int:
        """One for each."""
        return tasks

    def work(self, todo: SimpleQueue[Task | None], done: SimpleQueue[Done], gate: Gate) -> None:
        """Carry out one task after the other."""
        while (task := todo.get()) is not None:
            done.put(drive(task, gate, self._post))

    def wake(self) -> None:
        """Nothing: the queue and the gate wake threads by themselves."""

    def close(self) -> None:
        """Release what ``post`` used."""
        if self._release is not None:
            self._release()


class Run:
    """``Replies``: each request becomes a task, which ``workers`` carry out."""

    def __init__(
        self,
        requests: Iterable[Request],
        answer: Callable[[Request], Steps[Answer]],
        workers: Workers,
        *,
        concurrency: int,
        policy: Policy,
    ) -> None:
        self._source = iter(requests)
        self._exhausted = False
        self._gate = Gate(concurrency, policy.clock)
        self._task = partial(_task, answer=answer, gate=self._gate, policy=policy)
        # Many calls at a time leave no moment idle: some wait while replies are being handled.
        self._ahead = concurrency // 2 if concurrency > MANY else 0
        self._todo: SimpleQueue[Task | None] = SimpleQueue()
        self._done: SimpleQueue[Done] = SimpleQueue()
        # Threads hold no reference to the run, so one that is dropped can be told to stop.
        self._workers = workers
        self._work = partial(workers.work, self._todo, self._done, self._gate)
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        self._error: BaseException | None = None
        self._ended = False

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Reply | Failure:
        """Hand over the next reply or failure."""
        while True:
            self._fill()
            if not self._outstanding:
                self._end()
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                raise StopIteration
            if self._done.qsize() < self._ahead // 4:
                time.sleep(_MOMENT)
            if (item := self._take()) is not None:
                return item

    def _fill(self) -> None:
        """Pull requests while there is a free place."""
        while not self._exhausted and self._outstanding < self._gate.limit + self._ahead:
            try:
                request = next(self._source)
            except StopIteration:
                self._exhausted = True
            except Exception as error:  # raised once what is on its way has arrived
                self._exhausted, self._error = True, self._error or error
            else:
                self._outstanding += 1
                self._todo.put(self._task(request))
                wanted = self._workers.wanted(min(self._outstanding, self._gate.most))
                if len(self._threads) < wanted:
                    self._begin_thread()
                if self._workers.hungry:
                    self._workers.wake()

    def _begin_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="strop-lm", daemon=True)
        self._threads.append(thread)
        thread.start()

    def ready(self) -> list[Reply | Failure]:
        """Return what has come meanwhile. See ``Replies``."""
        come: list[Reply | Failure] = []
        with suppress(Empty):
            while True:
                if (item := self._take(wait=False)) is not None:
                    come.append(item)
        return come

    def send_more(self) -> None:
        """Fill the places that have become free. See ``Replies``."""
        self._fill()

    def _take(self, wait: bool = True) -> Reply | Failure | None:
        """Take the next result; None if it is not for handing over. ``Empty`` if there is none."""
        item = self._get() if wait else self._done.get_nowait()
        self._outstanding -= 1
        if isinstance(item, Reply | Failure):
            return item
        if isinstance(item, _Broken):
            self._exhausted, self._error = True, self._error or item.error
            self._stop()
        return None

    def _get(self) -> Done:
        while True:
            with suppress(Empty):
                return self._done.get(timeout=_LOOK_UP)
            interrupts.check()  # while nothing is in our hands

    def close(self) -> list[Reply | Failure]:
        """End the run; return what was not handed over. See ``Replies``."""
        self._exhausted = True
        self._stop()
        self._end()
        rest: list[Reply | Failure] = []
        with suppress(Empty):
            while True:
                item = self._done.get_nowait()
                if isinstance(item, Reply | Failure):
                    rest.append(item)
                    continue
                text = "stopped before it was answered"
                if isinstance(item, _Broken):
                    text = one_line(str(item.error))
                rest.append(Failure(item.request.key, text, False, item.seconds))
        self._outstanding = 0
        return rest

    def _stop(self) -> None:
        """Have nothing more sent."""
        self._gate.stop()
        self._workers.wake()

    def _dismiss(self) -> None:
        """Let threads end that find nothing more to do."""
        for _ in self._threads:
            self._todo.put(None)
        self._workers.wake()

    def _end(self) -> None:
        """Let the threads end, then what they used."""
        if self._ended:
            return
        self._ended = self._exhausted = True
        self._dismiss()
        for thread in self._threads:
            thread.join()
        self._workers.close()

    def __del__(self) -> None:
        if getattr(self, "_ended", True):
            return
        self._stop()
        self._dismiss()
        with suppress(Exception):
            self._workers.close()
        if self._outstanding:
            warnings.warn(
                f"{self._outstanding} requests to a language model were dropped on their way; "
                "end the requests and take what is left, or call close(), to keep their replies",
                ResourceWarning,
                stacklevel=2,
            )


def _task(
    request: Request, answer: Callable[[Request], Steps[Answer]], gate: Gate, policy: Policy
) -> Task:
    """All that is done about a request; whatever happens, it ends with something for the run."""
    now = policy.clock.now
    start = now()
    try:
        got = yield from persisting(partial(answer, request), gate, policy)
    except CallFailed as failure:
        if failure.general and not gate.succeeded:
            return _Broken(ServiceError(str(failure)), request, now() - start)
        return Failure(request.key, str(failure), not failure.passing, now() - start)
    except Stopped:
        return _Unanswered(request, now() - start)
    except Exception as error:  # of the whole run, or a mistake that must not pass unseen
        return _Broken(error, request, now() - start)
    return Reply(request.key, *got, now() - start)


def in_threads(
    requests: Iterable[Request], answer: Callable[[Request], Answer], concurrency: int
) -> Run:
    """Answer requests by a function that waits by itself, so many at a time, each tried once."""
    return Run(
        requests, in_one(answer), Threads(), concurrency=concurrency, policy=Policy(retries=0)
    )
