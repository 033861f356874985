"""A lease: lets one publisher at a time write to a database without locks."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from strop.errors import IndexBusy, StropError

LEASE = "lease"
"""The name under which an engine stores the lease."""
SECONDS = 60.0
"""How long a lease is valid without renewal, by the clocks of the publishers' machines."""
CONFLICT_WAIT = 0.5
"""Seconds between writing the lease and checking that no other publisher overwrote it."""


class Lease:
    """One publisher's claim to a copy. A thread renews it while the publisher is at work."""

    def __init__(
        self,
        shown: str,
        read: Callable[[], bytes | None],
        write: Callable[[bytes], None],
        forget: Callable[[], None],
    ) -> None:
        """``read``, ``write`` and ``forget`` read, store and remove the lease in the database."""
        self._shown, self._read, self._write, self._forget = shown, read, write, forget
        self._owner = uuid.uuid4().hex
        self._lost = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the only publisher, or fail."""
        if self._claim()[1] > time.time():
            raise IndexBusy(
                f"another process is publishing to {self._shown}, or was stopped less than"
                f" {SECONDS:.0f} seconds ago"
            )
        self.renew()
        time.sleep(CONFLICT_WAIT)
        self._lost = self._claim()[0] != self._owner
        self.check()
        ended = threading.Event()
        renewal = threading.Thread(target=self._renew_until, args=(ended,), daemon=True)
        renewal.start()
        try:
            yield
        finally:
            ended.set()
            renewal.join()
            with suppress(StropError):  # a lease expires anyway; the earlier error is reported
                if self._claim()[0] == self._owner:
                    self._forget()

    def check(self) -> None:
        """Fail if another publisher took the lease, because this one did not renew it in time."""
        if self._lost:
            raise IndexBusy(f"another process is publishing to {self._shown}")

    def _renew_until(self, ended: threading.Event) -> None:
        while not ended.wait(SECONDS / 4):
            with suppress(StropError):  # no connection for a moment: the next attempt may succeed
                self._lost = self._claim()[0] != self._owner
                if self._lost:
                    return
                self.renew()

    def renew(self) -> None:
        """Extend the lease."""
        claim = {"owner": self._owner, "until": time.time() + SECONDS}
        self._write(json.dumps(claim).encode())

    def _claim(self) -> tuple[str, float]:
        """Return the owner of the stored lease, and when it expires."""
        stored = self._read()
        try:
            claim = json.loads(stored or b"")
            return str(claim["owner"]), float(claim["until"])
        except (KeyError, TypeError, ValueError):  # none, or not written by strop
            return "", 0.0
