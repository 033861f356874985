"""Many calls at a time: the caller's thread pulls requests and returns results; threads answer.

``BaseLM`` is the base of all models: a new model implements how a single request is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import MappingProxyType

from strop.common import interrupts
from strop.common.retries import CallFailed, ConcurrencyLimit, Policy, Stopped, call_with_retries
from strop.common.secrets import one_line
from strop.errors import ServiceError
from strop.lm.base import THIS_PROCESS, Answer, Failure, Options, Reply, Request

_PREFETCH_ABOVE = 32
"""Above this concurrency, more requests are pulled than can be sent: replies then arrive so fast
that threads would have to wait for the next request."""
_POLL_SECONDS = 0.2

_Call = Callable[[Request], Answer]
_Outcome = tuple[str, Answer | Exception, float]
"""The key of a request, its answer or error, and the seconds that it took."""


class Run:
    """``Replies``: each request is answered by one of ``concurrency`` threads.

    ``answer`` makes one call, which is retried by ``policy``. ``release`` is called at the end.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        answer: _Call,
        *,
        concurrency: int,
        policy: Policy,
        release: Callable[[], object] = lambda: None,
    ) -> None:
        self._source = iter(requests)
        self._exhausted = False
        self._limit = ConcurrencyLimit(concurrency, policy.clock)
        self._prefetched = concurrency // 2 if concurrency > _PREFETCH_ABOVE else 0
        self._waiting: SimpleQueue[Request | None] = SimpleQueue()
        self._outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        # Threads have no reference to the run, so that a run that is garbage collected stops them.
        self._work = partial(_work, self._waiting, self._outcomes, answer, self._limit, policy)
        self._release = release
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        self._error: BaseException | None = None
        self._ended = False

    @property
    def limit(self) -> int:
        """How many calls may be in flight now."""
        return self._limit.current

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Reply | Failure:
        """Return the next reply or failure."""
        while True:
            self.send_more()
            if not self._outstanding:
                self._end()
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                raise StopIteration
            if (item := self._take()) is not None:
                return item

    def send_more(self) -> None:
        """Pull requests while the concurrency allows it. See ``Replies``."""
        while not self._exhausted and self._outstanding < self._limit.current + self._prefetched:
            try:
                request = next(self._source)
            except StopIteration:
                self._exhausted = True
            except Exception as error:  # raised once calls in flight have ended
                self._exhausted, self._error = True, self._error or error
            else:
                self._outstanding += 1
                self._waiting.put(request)
                if len(self._threads) < min(self._outstanding, self._limit.most):
                    thread = threading.Thread(target=self._work, name="strop-lm", daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def ready(self) -> list[Reply | Failure]:
        """Return the results that have arrived. See ``Replies``."""
        arrived: list[Reply | Failure] = []
        while not self._outcomes.empty():
            if (item := self._take()) is not None:
                arrived.append(item)
        return arrived

    def _take(self) -> Reply | Failure | None:
        """Wait for the next result and take it; None if it is not for the caller."""
        while True:
            with suppress(Empty):
                outcome = self._outcomes.get(timeout=_POLL_SECONDS)
                break
            interrupts.check()  # here no reply can be lost
        self._outstanding -= 1
        item = self._read(*outcome)
        if not isinstance(item, Exception):
            return item
        if not isinstance(item, Stopped):
            self._exhausted, self._error = True, self._error or item
            self._limit.stop()
        return None

    def _read(
        self, key: str, result: Answer | Exception, seconds: float
    ) -> Reply | Failure | Exception:
        """Return the result for the caller, or the error that ends the whole run."""
        if isinstance(result, Answer):
            return Reply(key, *result, seconds)
        if not isinstance(result, CallFailed):  # an error of the whole run, or a bug to report
            return result
        if result.configuration and not self._limit.succeeded:
            return ServiceError(str(result))
        return Failure(key, str(result), not result.retryable, seconds)

    def close(self) -> list[Reply | Failure]:
        """End the run; return the results not returned yet. See ``Replies``."""
        self._limit.stop()
        self._end()
        results: list[Reply | Failure] = []
        while not self._outcomes.empty():
            key, result, seconds = self._outcomes.get()
            item = self._read(key, result, seconds)
            if isinstance(item, Exception):
                item = Failure(key, one_line(item), False, seconds)
            results.append(item)
        self._outstanding = 0
        return results

    def _end(self, wait: bool = True) -> None:
        """End the threads, then release what they used."""
        if self._ended:
            return
        self._ended = self._exhausted = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads if wait else ():
            thread.join()
        self._release()

    def __del__(self) -> None:
        """Stop sending when the run is garbage collected."""
        if not getattr(self, "_ended", True):
            self._limit.stop()
            with suppress(Exception):
                self._end(wait=False)


def _work(
    waiting: SimpleQueue[Request | None],
    outcomes: SimpleQueue[_Outcome],
    answer: _Call,
    limit: ConcurrencyLimit,
    policy: Policy,
) -> None:
    """Answer requests, with retries, until None comes from the queue; each thread runs this."""
    now = policy.clock.now
    while (request := waiting.get()) is not None:
        start = now()
        result: Answer | Exception
        try:
            result = call_with_retries(partial(answer, request), limit, policy)
        except Exception as error:
            result = error
        outcomes.put((request.key, result, now() - start))


class BaseLM:
    """The base of all models: the name, and the options that differ from their defaults."""

    name: str
    options: Options
    host: str = THIS_PROCESS
    concurrency: int = 1
    unkeyed_options: frozenset[str] = frozenset()
    """Options that change speed or retries, not replies."""
    identity: Mapping[str, str] = MappingProxyType({})
    """Values that distinguish it from another model of the same name and options."""

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"<language model {self.name}{options}>"

    def complete(self, requests: Iterable[Request]) -> Run:
        """Answer requests, ``concurrency`` at a time."""
        return Run(requests, self._answer, concurrency=self.concurrency, policy=Policy(retries=0))

    def _answer(self, request: Request) -> Answer:
        """Make one call, without retries."""
        raise NotImplementedError
