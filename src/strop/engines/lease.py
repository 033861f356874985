"""A lease: what keeps publishers apart in a database that has no locks."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from strop.errors import IndexBusy

LEASE = "lease"
"""The piece that names the publisher at work."""
SECONDS = 60.0
"""How long it counts without a sign of life."""


class Lease:
    """One publisher's claim to a copy, renewed while it writes."""

    def __init__(
        self,
        shown: str,
        read: Callable[[Sequence[str]], dict[str, bytes]],
        write: Callable[[Mapping[str, bytes]], None],
        forget: Callable[[Sequence[str], Sequence[str]], None],
    ) -> None:
        """The last three read, store and remove pieces of the copy (``base.Engine``)."""
        self._shown, self._read, self._write, self._forget = shown, read, write, forget
        self._owner = uuid.uuid4().hex
        self._renewed: float | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the only publisher, or fail."""
        if self._claim()[1] > time.time():
            raise IndexBusy(
                f"another process is publishing to {self._shown}, or was stopped less than"
                f" {SECONDS:.0f} seconds ago"
            )
        self._renewed = 0.0
        try:
            self.renew()
            if self._claim()[0] != self._owner:  # both looked before either wrote
                raise IndexBusy(f"another process is publishing to {self._shown}")
            yield
        finally:
            self._renewed = None
            if self._claim()[0] == self._owner:
                self._forget([], [LEASE])

    def renew(self) -> None:
        """Say that this publisher is still at work, now and then; nothing if it is not."""
        if self._renewed is not None and time.time() - self._renewed > SECONDS / 4:
            self._renewed = time.time()
            claim = {"owner": self._owner, "until": self._renewed + SECONDS}
            self._write({LEASE: json.dumps(claim).encode()})

    def _claim(self) -> tuple[str, float]:
        """Return who is at work, and until when that counts."""
        try:
            found = json.loads(self._read([LEASE])[LEASE])
            return str(found["owner"]), float(found["until"])
        except (KeyError, TypeError, ValueError):  # none, or not written by strop
            return "", 0.0
