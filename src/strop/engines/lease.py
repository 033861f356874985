"""A lease: what keeps publishers apart in a database that has no locks."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from strop.errors import IndexBusy, StropError

LEASE = "lease"
"""The name under which an engine keeps it."""
SECONDS = 60.0
"""How long it counts without a sign of life, by the clocks of the publishers' machines."""
SETTLED = 0.5
"""Seconds between writing it and looking whether another publisher wrote at the same moment."""


class Lease:
    """One publisher's claim to a copy. A thread renews it while the publisher is at work."""

    def __init__(
        self,
        shown: str,
        read: Callable[[], bytes | None],
        write: Callable[[bytes], None],
        forget: Callable[[], None],
    ) -> None:
        """The last three read, store and remove the lease in the database."""
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
        time.sleep(SETTLED)
        self._lost = self._claim()[0] != self._owner
        self.check()
        ended = threading.Event()
        renewing = threading.Thread(target=self._keep, args=(ended,), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            with suppress(StropError):  # it ends by itself; what went wrong before counts
                if self._claim()[0] == self._owner:
                    self._forget()

    def check(self) -> None:
        """Fail if another publisher took the lease, because this one was silent for too long."""
        if self._lost:
            raise IndexBusy(f"another process is publishing to {self._shown}")

    def _keep(self, ended: threading.Event) -> None:
        while not ended.wait(SECONDS / 4):
            with suppress(StropError):  # a moment without a connection: the next time may do
                self._lost = self._claim()[0] != self._owner
                if self._lost:
                    return
                self.renew()

    def renew(self) -> None:
        """Say that this publisher is at work."""
        claim = {"owner": self._owner, "until": time.time() + SECONDS}
        self._write(json.dumps(claim).encode())

    def _claim(self) -> tuple[str, float]:
        """Return who is at work, and until when that counts."""
        stored = self._read()
        try:
            found = json.loads(stored or b"")
            return str(found["owner"]), float(found["until"])
        except (KeyError, TypeError, ValueError):  # none, or not written by strop
            return "", 0.0
