"""Retry-After headers and the limit of concurrent calls."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

from helpers.lm import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from strop.common.http import retry_after
from strop.common.retries import CallFailed, ConcurrencyLimit


def test_retry_after_headers() -> None:
    assert retry_after({}) is None
    assert retry_after({"retry-after": "whenever"}) is None
    assert retry_after({"retry-after": "nan"}) is None
    assert retry_after({"retry-after": "-3"}) == 0
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}) == 0
    soon = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=20), usegmt=True)
    assert 15 < (retry_after({"retry-after": soon}) or 0) <= 20
    assert retry_after({"retry-after": "9", "retry-after-ms": "1500"}) == 1.5
    assert retry_after({"retry-after": "9", "retry-after-ms": "soon"}) == 9


def test_calls_refused_together_halve_the_limit_once() -> None:
    clock = FakeClock()
    limit = ConcurrencyLimit(16, clock)
    permits = [limit.enter(0) for _ in range(16)]
    clock.time += 1
    for permit in permits:
        limit.leave(permit, CallFailed("busy", retryable=True, rate_limited=True))
    assert limit.current == 8
    clock.time += 1
    limit.leave(limit.enter(0), CallFailed("busy", retryable=True, rate_limited=True))
    assert limit.current == 4
    limit.leave(limit.enter(0), CallFailed("broken", retryable=True))
    assert limit.current == 4
    for _ in range(4):
        limit.leave(limit.enter(0), ok=True)
    assert limit.current == 5


@given(st.integers(1, 8), st.lists(st.sampled_from("okay crowd fail wait".split()), max_size=60))
def test_the_limit_stays_within_its_bounds(maximum: int, outcomes: list[str]) -> None:
    clock = FakeClock()
    limit = ConcurrencyLimit(maximum, clock)
    for outcome in outcomes:
        permits = [limit.enter(0) for _ in range(limit.current)]
        clock.time += 1
        for permit in permits:
            if outcome == "okay":
                limit.leave(permit, ok=True)
            else:
                wait = 2.0 if outcome == "wait" else None
                limit.leave(permit, CallFailed("x", rate_limited=outcome == "crowd", wait=wait))
        assert 1 <= limit.current <= maximum
        if outcome == "wait":
            before = clock.now()
            limit.leave(limit.enter(0), ok=True)
            assert clock.now() >= before + 2
