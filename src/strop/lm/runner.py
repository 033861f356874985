"""Many calls at a time: worker threads, how many of them, when to repeat, when to wait."""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from strop.errors import ServiceError
from strop.lm.base import Answer, CallFailed, Failure, Reply, Request, one_line

T = TypeVar("T")
Call = Callable[[Request], Answer]

LONGEST_WAIT = 600.0
"""Seconds. A service that wants a longer pause ends the run, which can be resumed later."""
_LONGEST_BACKOFF = 60.0
_GARBLED_REPEATS = 2
_MANY = 32


class Clock:
    """Time, for tests to replace."""

    def now(self) -> float:
        """Seconds from an arbitrary moment."""
        return time.monotonic()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait until notified, or for so many seconds; the condition's lock is held."""
        condition.wait(seconds)


@dataclass(frozen=True)
class Policy:
    """How often to repeat a call that may succeed later, and how long to wait before.

    ``retries`` repetitions; before the n-th, a random part (so that many callers spread out)
    of ``backoff`` times 2 to the n-1 seconds, at most a minute.
    """

    retries: int = 8
    backoff: float = 0.5
    clock: Clock = field(default_factory=Clock)

    def pause(self, tries: int, asked: float | None) -> float:
        """Seconds to wait after so many tries; never less than the service asked for."""
        limit = min(self.backoff * 2 ** (tries - 1), _LONGEST_BACKOFF)
        return max(random.uniform(0, limit), asked or 0.0)


class Stopped(Exception):
    """The run is over; what waited is not sent any more."""


class Gate:
    """Lets as many calls through at a time as the service takes.

    Begins at ``most``. A call refused for crowding halves the number, once for all calls that
    were under way by then; after as many successes in a row as the number is, it grows by one.
    A pause that the service asks for holds for every call.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self.limit = self.most = most
        self.succeeded = False
        self._clock = clock
        self._changed = threading.Condition()
        self._active = self._streak = 0
        self._closed_until = self._halved_at = float("-inf")
        self._stopped = False

    def enter(self, not_before: float) -> float:
        """Wait for a place and for the moment; return the time, which is for ``leave``."""
        with self._changed:
            while True:
                if self._stopped:
                    raise Stopped
                now, opens = self._clock.now(), max(not_before, self._closed_until)
                if now < opens:
                    self._clock.wait(self._changed, opens - now)
                elif self._active >= self.limit:
                    self._clock.wait(self._changed, None)
                else:
                    self._active += 1
                    return now

    def leave(self, entered: float, failure: CallFailed | None = None, ok: bool = False) -> None:
        """Give the place back and learn from how the call went."""
        with self._changed:
            self._active -= 1
            if ok:
                self.succeeded = True
                self._streak += 1
                if self._streak >= self.limit and self.limit < self.most:
                    self.limit, self._streak = self.limit + 1, 0
            elif failure is not None:
                self._learn(failure, entered)
            self._changed.notify_all()

    def _learn(self, failure: CallFailed, entered: float) -> None:
        now = self._clock.now()
        self._streak = 0
        if failure.wait is not None:
            self._closed_until = max(self._closed_until, now + failure.wait)
        if failure.crowded and entered >= self._halved_at:
            self.limit, self._halved_at = max(1, self.limit // 2), now

    def stop(self) -> None:
        """Let nothing through any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def persist(call: Callable[[], T], gate: Gate, policy: Policy) -> T:
    """Call until it works or there is no point; then ``CallFailed``, or ``Stopped``."""
    tries = garbled = 0
    not_before = float("-inf")
    while True:
        entered = gate.enter(not_before)
        try:
            result = call()
        except CallFailed as failure:
            gate.leave(entered, failure)
            tries += 1
            garbled += failure.garbled
            if not failure.passing:
                raise
            if tries > policy.retries or garbled > _GARBLED_REPEATS:
                times = f"; gave up after {tries} tries" if tries > 1 else ""
                raise CallFailed(f"{failure}{times}", passing=True) from None
            not_before = policy.clock.now() + policy.pause(tries, failure.wait)
        except BaseException:
            gate.leave(entered)
            raise
        else:
            gate.leave(entered, ok=True)
            return result


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


_Done = Reply | Failure | _Unanswered | _Broken


class Run:
    """``Replies``: the requests pulled here, answered in threads, handed over here."""

    def __init__(
        self,
        requests: Iterable[Request],
        call: Call,
        *,
        concurrency: int,
        policy: Policy,
        release: Callable[[], object] | None = None,
    ) -> None:
        self._source = iter(requests)
        self._exhausted = False
        self._gate = Gate(concurrency, policy.clock)
        # Many calls at a time leave no moment idle: some wait while replies are being handled.
        self._ahead = concurrency // 4 if concurrency > _MANY else 0
        self._todo: SimpleQueue[Request | None] = SimpleQueue()
        self._done: SimpleQueue[_Done] = SimpleQueue()
        # Threads hold no reference to the run, so one that is dropped can be told to stop.
        self._work = partial(_work, self._todo, self._done, call, self._gate, policy)
        self._threads: list[threading.Thread] = []
        self._release = release
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
                self._todo.put(request)
                if len(self._threads) < min(self._outstanding, self._gate.most):
                    self._begin_thread()

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
        item = self._done.get(block=wait)
        self._outstanding -= 1
        if isinstance(item, Reply | Failure):
            return item
        if isinstance(item, _Broken):
            self._exhausted, self._error = True, self._error or item.error
            self._gate.stop()
        return None

    def close(self) -> list[Reply | Failure]:
        """End the run; return what was not handed over. See ``Replies``."""
        self._exhausted = True
        self._gate.stop()
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

    def _end(self) -> None:
        """Let the threads end, then what they used."""
        if self._ended:
            return
        self._ended = self._exhausted = True
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()
        if self._release is not None:
            self._release()

    def __del__(self) -> None:
        if getattr(self, "_ended", True):
            return
        self._gate.stop()
        for _ in self._threads:
            self._todo.put(None)
        if self._release is not None:
            with suppress(Exception):
                self._release()
        if self._outstanding:
            warnings.warn(
                f"{self._outstanding} requests to a language model were dropped on their way; "
                "end the requests and take what is left, or call close(), to keep their replies",
                ResourceWarning,
                stacklevel=2,
            )


def _work(
    todo: SimpleQueue[Request | None],
    done: SimpleQueue[_Done],
    call: Call,
    gate: Gate,
    policy: Policy,
) -> None:
    """Answer requests until there is a None."""
    now = policy.clock.now
    while (request := todo.get()) is not None:
        start = now()
        item: _Done
        try:
            answer = persist(partial(call, request), gate, policy)
        except CallFailed as failure:
            if failure.general and not gate.succeeded:
                item = _Broken(ServiceError(str(failure)), request, now() - start)
            else:
                item = Failure(request.key, str(failure), not failure.passing, now() - start)
        except Stopped:
            item = _Unanswered(request, now() - start)
        except Exception as error:  # of the whole run, or a mistake that must not pass unseen
            item = _Broken(error, request, now() - start)
        else:
            item = Reply(request.key, *answer, now() - start)
        done.put(item)
