"""Many calls at a time: requests are pulled here, answered by threads, returned here."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from strop.common import interrupts
from strop.common.retries import CallFailed, Gate, Policy, Stopped, persist
from strop.common.secrets import one_line
from strop.errors import ServiceError
from strop.lm.base import Answer, Failure, Reply, Request

MANY = 32
"""Above so many calls at a time, more requests are pulled than can be sent: replies then arrive so
fast that handling them would leave places empty."""
_LOOK_UP = 0.2


@dataclass(frozen=True)
class _Unanswered:
    """A request without a result: the run had ended, or it ends with this error."""

    request: Request
    seconds: float
    error: Exception | None = None


_Result = Reply | Failure | _Unanswered
_Call = Callable[[Request], Answer]


class Run:
    """``Replies``: each request is answered by one of ``concurrency`` threads.

    ``answer`` makes one call. It is repeated by ``policy``. ``release`` is called in the end.
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
        self._gate = Gate(concurrency, policy.clock)
        self._ahead = concurrency // 2 if concurrency > MANY else 0
        self._waiting: SimpleQueue[Request | None] = SimpleQueue()
        self._results: SimpleQueue[_Result] = SimpleQueue()
        # Threads hold no reference to the run, so a run that is dropped can stop them.
        self._work = partial(_work, self._waiting, self._results, answer, self._gate, policy)
        self._release = release
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        self._error: BaseException | None = None
        self._ended = False

    @property
    def limit(self) -> int:
        """How many calls may be in flight now."""
        return self._gate.limit

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
        """Pull requests while there is a free place. See ``Replies``."""
        while not self._exhausted and self._outstanding < self._gate.limit + self._ahead:
            try:
                request = next(self._source)
            except StopIteration:
                self._exhausted = True
            except Exception as error:  # raised once calls in flight have ended
                self._exhausted, self._error = True, self._error or error
            else:
                self._outstanding += 1
                self._waiting.put(request)
                if len(self._threads) < min(self._outstanding, self._gate.most):
                    thread = threading.Thread(target=self._work, name="strop-lm", daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def ready(self) -> list[Reply | Failure]:
        """Return the results that have arrived. See ``Replies``."""
        arrived: list[Reply | Failure] = []
        while not self._results.empty():
            if (item := self._take()) is not None:
                arrived.append(item)
        return arrived

    def _take(self) -> Reply | Failure | None:
        """Wait for the next result and take it; None if it is not for the caller."""
        while True:
            with suppress(Empty):
                item = self._results.get(timeout=_LOOK_UP)
                break
            interrupts.check()  # while no reply is held here
        self._outstanding -= 1
        if not isinstance(item, _Unanswered):
            return item
        if item.error is not None:
            self._exhausted, self._error = True, self._error or item.error
            self._gate.stop()
        return None

    def close(self) -> list[Reply | Failure]:
        """End the run; return the results not returned yet. See ``Replies``."""
        self._gate.stop()
        self._end()
        rest: list[Reply | Failure] = []
        while not self._results.empty():
            item = self._results.get()
            if isinstance(item, _Unanswered):
                error = item.error or "stopped before it was answered"
                item = Failure(item.request.key, one_line(error), False, item.seconds)
            rest.append(item)
        self._outstanding = 0
        return rest

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
        if getattr(self, "_ended", True):
            return
        self._gate.stop()
        with suppress(Exception):
            self._end(wait=False)
        if self._outstanding:
            warnings.warn(
                f"{self._outstanding} requests to a language model were dropped in flight; "
                "to keep their replies, read all results or call close()",
                ResourceWarning,
                stacklevel=2,
            )


def _work(
    waiting: SimpleQueue[Request | None],
    results: SimpleQueue[_Result],
    answer: _Call,
    gate: Gate,
    policy: Policy,
) -> None:
    """Answer requests until there is a None; each thread runs this."""
    while (request := waiting.get()) is not None:
        results.put(_result(request, answer, gate, policy))


def _result(request: Request, answer: _Call, gate: Gate, policy: Policy) -> _Result:
    """Answer a request, with retries; every outcome, errors too, is a result for the run."""
    now = policy.clock.now
    start = now()
    try:
        answered = persist(partial(answer, request), gate, policy)
    except CallFailed as failure:
        if failure.configuration and not gate.succeeded:
            return _Unanswered(request, now() - start, ServiceError(str(failure)))
        return Failure(request.key, str(failure), not failure.retryable, now() - start)
    except Stopped:
        return _Unanswered(request, now() - start)
    except Exception as error:  # of the whole run, or a bug that must be seen
        return _Unanswered(request, now() - start, error)
    return Reply(request.key, *answered, now() - start)
