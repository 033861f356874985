"""When a call may go out, and when again: for all calls of a run, however they are made.

A call is written as steps, a generator: it yields what is to be sent and is given the text that
came, or has the error thrown into it. So the same steps serve threads, each of which waits for
its own call (``drive``), and one thread that waits for all of them (``lm/loop``).
"""

from __future__ import annotations

import random
import selectors
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from strop.lm.base import CallFailed

T = TypeVar("T")
Step = float | tuple[str, Any]
"""Either a moment, not before which a place is wanted, or the path and the JSON of a call."""
Steps = Generator[Step, Any, T]
"""Is sent the time of entering for the one, the text that came for the other."""
Post = Callable[[str, Any], str]
"""Makes a call, waits, and returns the text that came."""

LONGEST_WAIT = 600.0
"""Seconds. A service that wants a longer pause ends the run, which can be resumed later."""
_LONGEST_BACKOFF = 60.0
_GARBLED_REPEATS = 2


class Clock:
    """Time, for tests to replace."""

    def now(self) -> float:
        """Seconds from an arbitrary moment."""
        return time.monotonic()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait until notified, or for so many seconds; the condition's lock is held."""
        condition.wait(seconds)

    def watch(
        self, selector: selectors.BaseSelector, seconds: float | None, silence: float | None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until connections have news, or for so many seconds, or for so long a silence."""
        return selector.select(min((x for x in (seconds, silence) if x is not None), default=None))


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
        self.clock = clock
        self._changed = threading.Condition()
        self._active = self._streak = 0
        self._closed_until = self._halved_at = float("-inf")
        self.stopped = False
        """Whether nothing is let through any more."""

    def enter(self, not_before: float) -> float:
        """Wait for a place and for the moment; return the time, which is for ``leave``."""
        with self._changed:
            while (pause := self._pause(not_before)) != 0:
                self.clock.wait(self._changed, pause)
            return self._enter()

    def try_enter(self, not_before: float, answered: int = 0) -> float | None:
        """As ``enter`` if that needs no waiting, else None.

        ``answered``: so many calls have not left yet, but are not under way any more either.
        """
        with self._changed:
            return self._enter() if self._pause(not_before, answered) == 0 else None

    def pause(self, not_before: float) -> float | None:
        """Seconds until a call may go, 0 if now; None: not before another leaves."""
        with self._changed:
            return self._pause(not_before)

    def _pause(self, not_before: float, answered: int = 0) -> float | None:
        if self.stopped:
            raise Stopped
        left = max(not_before, self._closed_until) - self.clock.now()
        if left > 0:
            return left
        return 0.0 if self._active - answered < self.limit else None

    def _enter(self) -> float:
        self._active += 1
        return self.clock.now()

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
        now = self.clock.now()
        self._streak = 0
        if failure.wait is not None:
            self._closed_until = max(self._closed_until, now + failure.wait)
        if failure.crowded and entered >= self._halved_at:
            self.limit, self._halved_at = max(1, self.limit // 2), now

    def stop(self) -> None:
        """Let nothing through any more."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()


def persisting(call: Callable[[], Steps[T]], gate: Gate, policy: Policy) -> Steps[T]:
    """Call until it works or there is no point; then ``CallFailed``, or ``Stopped``."""
    tries = garbled = 0
    not_before = float("-inf")
    while True:
        entered: float = yield not_before
        try:
            result = yield from call()
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


def in_one(call: Callable[..., T]) -> Callable[..., Steps[T]]:
    """A call that waits by itself, as steps of which there are none."""

    def steps(*given: Any) -> Steps[T]:
        yield from ()
        return call(*given)

    return steps


def drive(steps: Steps[T], gate: Gate, post: Post) -> T:
    """Carry out steps in this thread."""
    try:
        step = next(steps)
        while True:
            try:
                came = post(*step) if isinstance(step, tuple) else gate.enter(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(came)
    except StopIteration as end:
        result: T = end.value
        return result


def no_post(path: str, body: Any) -> str:
    """For calls in one piece."""
    raise AssertionError(f"nothing to call {path} with")


def persist(call: Callable[[], T], gate: Gate, policy: Policy) -> T:
    """As ``persisting``, for a call in one piece, in this thread."""
    return drive(persisting(in_one(call), gate, policy), gate, no_post)
