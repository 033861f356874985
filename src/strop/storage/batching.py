"""Batches for long work: small enough that a stop loses little, large enough to be fast."""

from __future__ import annotations

import time
from collections.abc import Iterator

from strop.errors import BadIndex
from strop.types import Progress

_SECONDS = 2.0
FEWEST, MOST = 64, 8192


class Batches:
    """Yields batch sizes until all is done; they grow until a batch takes about two seconds.

    Each batch is a commit, so a stop loses two seconds' work, and a fast embedder is not held
    up by commits. Call ``did`` with what each batch really held.
    """

    def __init__(self, progress: Progress | None, label: str, total: int) -> None:
        self._progress, self._label, self._total = progress, label, total
        self._done, self._size, self._began = 0, FEWEST, 0.0

    def __iter__(self) -> Iterator[int]:
        while self._done < self._total:
            self._began = time.monotonic()
            yield self._size

    def did(self, count: int) -> None:
        """Report that a batch of ``count`` is committed."""
        if count == 0:  # cannot be while counts and batches agree; never loop for ever
            raise BadIndex("the catalog counts work that it does not find: strop check")
        self._done += count
        took = time.monotonic() - self._began
        if took < _SECONDS / 2:
            self._size = min(2 * self._size, MOST)
        elif took > _SECONDS:
            self._size = max(self._size // 2, FEWEST)
        if self._progress is not None:
            self._progress(self._label, self._done, self._total)
