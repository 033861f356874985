"""The lease of a publisher, in a store in memory and with a fake clock."""

from __future__ import annotations

import pytest

from strop.engines import lease
from strop.engines.base import EngineError
from strop.engines.lease import Lease
from strop.errors import IndexBusy


class Store:
    """A store for the lease; it can fail, and other publishers can write to it."""

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


def test_one_holder_at_a_time_and_release(store: Store) -> None:
    with store.lease().held():
        with pytest.raises(IndexBusy, match="another process"), store.lease().held():
            raise AssertionError
        assert store.stored is not None
    assert store.stored is None
    with store.lease().held():
        pass


def test_a_lease_expires_if_not_renewed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("strop.engines.lease.time.time", lambda: now)
    expired = store.lease()
    expired.renew()
    now += lease.SECONDS - 1
    with pytest.raises(IndexBusy), store.lease().held():
        raise AssertionError
    now += 2
    with store.lease().held():
        pass


def test_simultaneous_claims_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    other = store.lease()
    monkeypatch.setattr("strop.engines.lease.time.sleep", lambda _: other.renew())
    with pytest.raises(IndexBusy), store.lease().held():
        raise AssertionError


def test_a_publisher_that_lost_the_lease_stops(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 0.02)
    first, other = store.lease(), store.lease()

    def publish() -> None:
        while True:  # until the thread of the first holder has checked
            other.renew()
            first.check()

    with first.held():
        with pytest.raises(IndexBusy):
            publish()
        taken = store.stored
    assert taken is not None
    assert store.stored == taken


def test_a_held_lease_is_renewed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SECONDS", 0.02)
    with store.lease().held():
        first = store.stored
        while store.stored == first:  # until the thread has written
            pass


def test_the_first_error_is_raised_if_the_release_fails_too(store: Store) -> None:
    def interrupted() -> None:
        store.down = True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.lease().held():
        interrupted()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b"\xff", b'{"until": "x"}'])
def test_a_malformed_lease_is_ignored(store: Store, content: bytes) -> None:
    store.stored = content
    with store.lease().held():
        pass
