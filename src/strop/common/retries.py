"""Rate limits and retries: when a call to a service is sent, and when it is repeated.

All services have the same rules. ``http.py`` decides after which answers a call may be repeated.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

T = TypeVar("T")

LONGEST_WAIT = 600.0
"""Seconds. A service that asks for a longer pause ends the run, which can be resumed later."""
UNREACHABLE_PATIENCE = 3.0
"""Seconds within which a service must be reached for the first time."""
_LONGEST_BACKOFF = 60.0
_MALFORMED_REPEATS = 2
"""How often a call is repeated after malformed replies."""


@dataclass(eq=False)
class CallFailed(Exception):
    """One call failed. The attributes determine what to do about it.

    ``retryable``: try again. ``malformed``: the reply cannot be read; try again, but only twice,
    since such replies cost money. ``unreachable``: nothing was sent. ``rate_limited``: the
    service requests fewer calls at a time. ``wait``: seconds for which it requests no calls.
    ``configuration``: if no call has worked yet, the cause is not this request but a setting.
    ``status`` is the HTTP status, 0 if there was none; ``fields`` are the fields of the request
    that the service names, in a structured way, as the cause.
    """

    message: str
    _: KW_ONLY
    retryable: bool = False
    malformed: bool = False
    unreachable: bool = False
    rate_limited: bool = False
    configuration: bool = False
    wait: float | None = None
    status: int = 0
    fields: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        super().__init__(self.message)
        self.retryable |= self.malformed or self.unreachable


class Stopped(Exception):
    """The run has ended; waiting calls are not sent."""


class Clock:
    """Time, for tests to replace."""

    def now(self) -> float:
        """Seconds from an arbitrary moment."""
        return time.monotonic()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait until notified, or for ``seconds``; the caller holds the condition's lock."""
        condition.wait(seconds)


@dataclass(frozen=True)
class Policy:
    """How often a call is repeated, and how long the pauses are.

    A call is repeated up to ``retries`` times. The pause before the n-th repetition is random, so
    that many callers spread out. It is at most ``backoff`` times 2 to the n-1 seconds and at most a
    minute, unless the service asks for a longer one.
    """

    retries: int = 8
    backoff: float = 0.5
    clock: Clock = field(default_factory=Clock)

    def pause(self, tries: int, wait: float | None) -> float:
        """Return the seconds to wait after ``tries`` tries; at least ``wait`` of the service."""
        limit = min(self.backoff * 2 ** min(tries - 1, 60), _LONGEST_BACKOFF)
        return max(random.uniform(0, limit), wait or 0.0)


class ConcurrencyLimit:
    """Limits the number of simultaneous calls to what the service accepts.

    The limit, ``current``, begins at ``most``. A rate-limited call halves it, once for all calls in
    flight at that moment. After as many successes in a row as the limit, it grows by one. A pause
    that the service requests applies to every call. ``succeeded``: whether any call has worked yet.
    """

    def __init__(self, most: int, clock: Clock, succeeded: bool = False) -> None:
        self.current = self.most = most
        self.succeeded = succeeded
        self.clock = clock
        self._changed = threading.Condition()
        self._active = self._streak = 0
        self._paused_until = self._halved_at = float("-inf")
        self._stopped = False

    def enter(self, not_before: float) -> float:
        """Wait for a free place, at least until ``not_before``; return the time for ``leave``."""
        with self._changed:
            while True:
                if self._stopped:
                    raise Stopped("stopped before it was answered")
                pause = max(not_before, self._paused_until) - self.clock.now()
                if pause > 0:
                    self.clock.wait(self._changed, pause)
                elif self._active < self.current:
                    self._active += 1
                    return self.clock.now()
                else:
                    self.clock.wait(self._changed, None)

    def leave(self, entered: float, failure: CallFailed | None = None, ok: bool = False) -> None:
        """Free the place and adapt the limit to the result of the call."""
        with self._changed:
            self._active -= 1
            if ok:
                self.succeeded = True
                self._streak += 1
                if self._streak >= self.current and self.current < self.most:
                    self.current, self._streak = self.current + 1, 0
            elif failure is not None:
                now, self._streak = self.clock.now(), 0
                if failure.wait is not None:
                    self._paused_until = max(self._paused_until, now + failure.wait)
                if failure.rate_limited and entered >= self._halved_at:
                    self.current, self._halved_at = max(1, self.current // 2), now
            # After a success one place is free, or two; otherwise all threads check again.
            self._changed.notify(2) if ok else self._changed.notify_all()

    def stop(self) -> None:
        """Let no more calls through."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def call_with_retries(call: Callable[[], T], limit: ConcurrencyLimit, policy: Policy) -> T:
    """Call until it works; raise ``CallFailed`` after the last retry, or ``Stopped``."""
    tries = malformed = 0
    not_before = float("-inf")
    began = policy.clock.now()
    while True:
        entered = limit.enter(not_before)
        try:
            result = call()
        except CallFailed as failure:
            limit.leave(entered, failure)
            tries += 1
            malformed += failure.malformed
            if not failure.retryable:
                raise
            never_reached = failure.unreachable and not limit.succeeded
            waited = policy.clock.now() - began
            if (
                tries > policy.retries
                or malformed > _MALFORMED_REPEATS
                or (never_reached and waited > UNREACHABLE_PATIENCE)
            ):
                gave_up = f"; gave up after {tries} tries" if tries > 1 else ""
                raise CallFailed(
                    f"{failure}{gave_up}", retryable=True, configuration=never_reached
                ) from None
            pause = policy.pause(tries, failure.wait)
            if never_reached:
                pause = min(pause, UNREACHABLE_PATIENCE - waited + 0.01)
            not_before = policy.clock.now() + pause
        except BaseException:
            limit.leave(entered)
            raise
        else:
            limit.leave(entered, ok=True)
            return result
