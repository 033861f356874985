"""The lease that keeps publishers apart, on a store in memory and a clock that is set."""

from __future__ import annotations

import pytest

from strop.engines import lease
from strop.engines.base import EngineError
from strop.engines.lease import Lease
from strop.errors import IndexBusy


class Store:
    """Where the lease is; it can fail, and another publisher can write into it."""

    def __init__(self) -> None:
        self.stored: bytes | None = None
        self.down = False

    def read(self) -> bytes | None:
        if self.down:
            raise EngineError("no connection")
        return self.stored

    def write(self, claim: bytes) -> None:
        self.read()
        self.stored = claim

    def forget(self) -> None:
        self.read()
        self.stored = None

    def lease(self) -> Lease:
        return Lease("the copy", self.read, self.write, self.forget)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(lease, "CONFLICT_WAIT", 0.0)
    return Store()


def test_it_is_held_by_one_and_given_back(store: Store) -> None:
    with store.lease().held():
        with pytest.raises(IndexBusy, match="another process"), store.lease().held():
            raise AssertionError
        assert store.stored is not None
    assert store.stored is None
    with store.lease().held():
        pass


def test_it_ends_without_a_sign_of_life(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("strop.engines.lease.time.time", lambda: now)
    stopped = store.lease()
    stopped.renew()
    now += lease.SECONDS - 1
    with pytest.raises(IndexBusy), store.lease().held():
        raise AssertionError
    now += 2
    with store.lease().held():
        pass


def test_two_that_write_at_the_same_moment_are_not_both_let_in(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = store.lease()
    monkeypatch.setattr("strop.engines.lease.time.sleep", lambda _: other.renew())
    with pytest.raises(IndexBusy), store.lease().held():
        raise AssertionError


def test_a_publisher_that_lost_it_stops(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SECONDS", 0.02)
    one, other = store.lease(), store.lease()

    def publish() -> None:
        while True:  # until the thread of the first has looked
            other.renew()
            one.check()

    with one.held():
        with pytest.raises(IndexBusy):
            publish()
        taken = store.stored
    assert taken is not None
    assert store.stored == taken


def test_it_is_renewed_while_held(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SECONDS", 0.02)
    with store.lease().held():
        first = store.stored
        while store.stored == first:  # until the thread has written
            pass


def test_what_went_wrong_is_told_and_not_that_the_store_is_gone(store: Store) -> None:
    def interrupted() -> None:
        store.down = True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.lease().held():
        interrupted()


@pytest.mark.parametrize("junk", [b"", b"[]", b"{}", b"null", b"\xff", b'{"until": "x"}'])
def test_junk_is_no_lease(store: Store, junk: bytes) -> None:
    store.stored = junk
    with store.lease().held():
        pass
